"""Where nodes reach the coordinator: as it is said, or as we reach it by TLS."""

import pytest

from distributed_grid.cli.context import Invocation
from distributed_grid.cli.grid.push import _address, _why
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.nodes import Withheld


def test_the_address_that_is_given_wins_and_has_a_port() -> None:
    assert _address(Invocation(coordinator="ws://here:1"), "there:7433") == "there:7433"
    for text in ("there", "there:x", ":1"):
        with pytest.raises(BadValue):
            _address(Invocation(coordinator="wss://here:1"), text)


def test_else_it_is_where_we_reach_it_by_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRID_CONTEXT", "")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nonexistent")
    assert _address(Invocation(coordinator="wss://[::1]:7000"), "") == "[::1]:7000"
    assert _address(Invocation(coordinator="wss://m"), "") == "m:443"
    with pytest.raises(GridError, match="cannot be added"):
        _address(Invocation(coordinator="ws://m:1"), "")


def test_what_is_withheld_is_the_reason_for_no_offer() -> None:
    assert _why([]) == "" and _why([Withheld("cpu", "busy"), Withheld("gpu", "hot")]) == " (cpu: busy; gpu: hot)"
