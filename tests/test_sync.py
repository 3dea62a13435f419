"""The blocking client is all that the asyncio one is."""

from distributed_grid import core, sync


def test_both_clients_have_the_same_methods() -> None:
    assert {name for name in vars(core.GridClient) if not name.startswith("_")} <= set(vars(sync.GridClient))


def test_a_program_finds_what_it_has_to_catch_beside_the_client() -> None:
    assert {name for name in core.__all__ if name not in ("GridOrchestrator", "SharingDisabled")} <= set(sync.__all__)
