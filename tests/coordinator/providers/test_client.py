"""The coordinator's end of a provider's process: one that hangs is killed, and begun again."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from distributed_grid.coordinator.core.scaling.state import Answer, Listed
from distributed_grid.coordinator.providers.base import ProviderRefused
from distributed_grid.coordinator.providers.child import AT_ONCE
from distributed_grid.coordinator.providers.client import ProviderChild
from tests.coordinator.providers.scene import SPEC, settings


async def refusal(child: ProviderChild, what: str, seconds: float | None = None, **words: Any) -> ProviderRefused:
    with pytest.raises(ProviderRefused) as found:
        await child.ask(what, list[Listed], seconds, **words)
    return found.value


async def test_it_asks_and_is_answered(tmp_path: Path) -> None:
    child = ProviderChild("command", "g1", settings(tmp_path))
    try:
        assert await child.ask("create", str, spec=SPEC) == "vm-a-1-1"
        assert [one.name for one in await child.ask("list", list[Listed])] == ["a-1-1"]
    finally:
        await child.close()


def running(folder: Path) -> list[int]:
    """The programs of this folder that run."""
    found = []
    for one in Path("/proc").iterdir():
        if one.name.isdigit():
            with contextlib.suppress(OSError):
                if str(folder).encode() in (one / "cmdline").read_bytes():
                    found.append(int(one.name))
    return found


def process_of(child: ProviderChild) -> int:
    assert child._process is not None
    return child._process.pid


async def test_a_process_that_does_not_answer_is_killed_and_begun_again(tmp_path: Path) -> None:
    child = ProviderChild("command", "g1", settings(tmp_path, seconds=2))
    try:
        assert await child.ask("list", list[Listed]) == []
        first = process_of(child)
        (tmp_path / "does").write_text("hang")
        found = await refusal(child, "list", 0.5)
        assert found.answer is Answer.LOST and "did not answer within 0.5 s" in found.text
        async with asyncio.timeout(30):
            while Path(f"/proc/{first}").exists():  # noqa: ASYNC110 (killed, and no zombie either)
                await asyncio.sleep(0.02)
        (tmp_path / "does").unlink()
        async with asyncio.timeout(30):
            while True:
                try:
                    assert await child.ask("list", list[Listed]) == []
                    break
                except ProviderRefused as error:
                    assert error.answer is Answer.LOST
                    await asyncio.sleep(0.1)
        assert process_of(child) != first
    finally:
        await child.close()


async def waiting(folder: Path, count: int) -> None:
    """So many programs have begun, and wait."""
    async with asyncio.timeout(60):
        while len((folder / "waits").read_text().split() if (folder / "waits").exists() else ()) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_the_time_of_a_creation_runs_from_when_it_is_begun_and_lists_do_not_wait_for_any(tmp_path: Path) -> None:
    child = ProviderChild("command", "g1", settings(tmp_path))
    (tmp_path / "does").write_text("wait")
    made = [asyncio.create_task(child.ask("create", str, spec=replace(SPEC, name=f"a-1-{n}"))) for n in range(AT_ONCE)]
    try:
        await waiting(tmp_path, AT_ONCE)
        late = asyncio.create_task(child.ask("create", str, 2.0, spec=replace(SPEC, name="a-1-late")))
        assert await child.ask("list", list[Listed]) == []
        done, _ = await asyncio.wait([late, *made], timeout=2.1, return_when=asyncio.FIRST_COMPLETED)
        assert not done, "it was not begun, and nobody was killed"
        (tmp_path / "go").touch()
        assert await asyncio.gather(*made) == [f"vm-a-1-{n}" for n in range(AT_ONCE)] and await late == "vm-a-1-late"
    finally:
        await child.close()


async def test_what_waits_for_its_turn_when_it_is_closed_begins_no_process(tmp_path: Path) -> None:
    child = ProviderChild("command", "g1", settings(tmp_path))
    (tmp_path / "does").write_text("wait")
    made = [asyncio.create_task(refusal(child, "create", 60, spec=SPEC)) for _ in range(AT_ONCE + 1)]
    await waiting(tmp_path, AT_ONCE)
    assert await child.ask("list", list[Listed]) == [], "it answers, so that it would be begun again at once"
    await child.close()
    (tmp_path / "go").touch()
    assert {one.answer for one in await asyncio.gather(*made)} == {Answer.LOST} and child._process is None


async def test_a_program_that_hangs_ends_in_time_also_when_its_provider_was_killed(tmp_path: Path) -> None:
    child = ProviderChild("command", "g1", settings(tmp_path, seconds=2))
    (tmp_path / "does").write_text("hang")
    asked = asyncio.create_task(refusal(child, "list", 60))
    async with asyncio.timeout(60):
        while not (tmp_path / "hangs").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await child.close()
        assert (await asked).answer is Answer.LOST
        while running(tmp_path):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_too_little_memory_ends_the_process_and_not_the_coordinator(tmp_path: Path) -> None:
    child = ProviderChild("command", "g1", settings(tmp_path), memory=32 << 20)
    try:
        assert (await refusal(child, "list", 20)).answer in (Answer.LOST, Answer.CREDENTIALS)
    finally:
        await child.close()


async def test_an_answer_of_another_type_is_no_answer(tmp_path: Path) -> None:
    child = ProviderChild("command", "g1", settings(tmp_path))
    try:
        with pytest.raises(ProviderRefused, match="answers what cannot be read") as found:
            await child.ask("list", str)
        assert found.value.answer is Answer.LOST
    finally:
        await child.close()
