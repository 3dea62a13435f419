"""The coordinator's end of a provider's process: one that hangs is killed, and begun again."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from distributed_grid.coordinator.core.scaling.state import Answer, Listed
from distributed_grid.coordinator.providers.base import ProviderRefused
from distributed_grid.coordinator.providers.client import ProviderChild
from tests.coordinator.providers.scene import SPEC, settings


async def refusal(child: ProviderChild, what: str, seconds: float | None = None) -> ProviderRefused:
    with pytest.raises(ProviderRefused) as found:
        await child.ask(what, list[Listed], seconds)
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
