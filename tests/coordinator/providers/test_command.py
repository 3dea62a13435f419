"""The user's own programs as a provider: their answers, refusals, failures, rubbish and silence."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from distributed_grid.coordinator.core.scaling.state import Answer
from distributed_grid.coordinator.providers.base import ProviderRefused
from distributed_grid.coordinator.providers.command import CommandProvider
from tests.coordinator.providers.leaks import leak_free
from tests.coordinator.providers.scene import LONGEST, SPEC, settings
from tests.depth import tries


def provider(folder: Path, **more: Any) -> CommandProvider:
    return CommandProvider("g1", settings(folder, **more))


def refusal(of: CommandProvider) -> ProviderRefused:
    with pytest.raises(ProviderRefused) as found:
        of.create_worker(SPEC)
    return found.value


def test_a_machine_is_created_once_listed_and_ended(tmp_path: Path) -> None:
    one = provider(tmp_path)
    assert one.create_worker(SPEC) == one.create_worker(SPEC) == "vm-a-1-1"
    assert [(found.name, found.handle, found.pool) for found in one.list_workers()] == [("a-1-1", "vm-a-1-1", "a")]
    assert one.get_worker_status("a-1-1") == "running"
    assert one.terminate_worker("a-1-1") is True
    assert one.terminate_worker("a-1-1") is False
    assert one.list_workers() == [] and one.get_worker_status("a-1-1") == "gone"


def test_the_longest_name_of_a_machine_reaches_the_programs_whole(tmp_path: Path) -> None:
    one = provider(tmp_path)
    assert one.create_worker(replace(SPEC, name=LONGEST)) == f"vm-{LONGEST}"
    assert [found.name for found in one.list_workers()] == [LONGEST] and one.terminate_worker(LONGEST) is True


def test_machines_of_another_grid_are_not_listed(tmp_path: Path) -> None:
    provider(tmp_path).create_worker(SPEC)
    assert CommandProvider("g2", settings(tmp_path)).list_workers() == []


@pytest.mark.parametrize(
    ("does", "answer", "text"),
    [
        ("capacity", Answer.CAPACITY, "it says capacity"),
        ("credentials", Answer.CREDENTIALS, "it says credentials"),
        ("sulks", Answer.REFUSED, "it says sulks"),
        ("done", Answer.REFUSED, "it says done"),
        ("fail", Answer.LOST, "failed with code 1: no route to the hypervisor"),
        ("rubbish", Answer.LOST, "answers what cannot be read"),
        ("silent", Answer.LOST, "(create) answers nothing"),
    ],
)
def test_what_it_answers_instead_is_told(tmp_path: Path, does: str, answer: Answer, text: str) -> None:
    (tmp_path / "does").write_text(does)
    found = refusal(provider(tmp_path))
    assert found.answer is answer and text in found.text


def test_one_that_hangs_is_killed(tmp_path: Path) -> None:
    (tmp_path / "does").write_text("hang")
    found = refusal(provider(tmp_path, seconds=0.3))
    assert found.answer is Answer.LOST and "took more than 0.3 s" in found.text


def test_a_program_that_is_not_there_or_not_set_is_a_mistake_of_the_configuration(tmp_path: Path) -> None:
    found = refusal(provider(tmp_path, create="/nowhere/create"))
    assert found.answer is Answer.CREDENTIALS and "/nowhere/create cannot be run" in found.text
    with pytest.raises(ProviderRefused, match="providers.command.end is not set"):
        provider(tmp_path, end="")


@pytest.mark.parametrize("seed", range(tries(5, 2)))
async def test_no_machine_is_lost_or_made_twice_whatever_is_killed(tmp_path: Path, seed: int) -> None:
    """What a program was told before its provider was killed it does all the same, and nobody hears of it."""
    grid = tmp_path / f"g{seed}"
    there = lambda: sorted(one.name for one in grid.iterdir()) if grid.exists() else []  # noqa: E731
    await leak_free("command", settings(tmp_path), there, seed, longest=0.1)
