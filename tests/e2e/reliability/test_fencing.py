"""Of two coordinators with one state directory, agents obey the one they know or a later life of it."""

import shutil

import pytest

from distributed_grid.coordinator.client import GridClient
from distributed_grid.coordinator.client.session import RequestRefused
from distributed_grid.protocol.jobs import Cause, State
from tests.e2e.scenes import scene


async def test_a_coordinator_on_a_copied_state_directory_is_not_obeyed() -> None:
    async with scene() as on:
        await on.agent("n1", cores=[0], virtual=True)
        home, copy, real = (on.place / name for name in ("coordinator", "copy", "real"))
        on.kill("coordinator")
        shutil.copytree(home, copy, ignore=shutil.ignore_patterns("*.sock"))
        await on.coordinator()
        await on.until(on.offers, "the agent is back")
        async with GridClient(on.url) as client:
            running = await client.submit(["sleep", "600"])
            await on.until(lambda: is_(client, running, State.RUNNING), "it runs")
        on.kill("coordinator")
        home.rename(real)
        copy.rename(home)
        await on.coordinator()  # it claims the epoch that the real one had
        said = on.place / "n1.log"
        await on.until(lambda: "not the one this node obeys" in said.read_text(), "the agent turns away")
        async with GridClient(on.url) as client:
            with pytest.raises(RequestRefused, match="lost commits") as refused:
                await client.submit(["sh", "-c", f"touch {on.place}/ran"])
            assert "n1 has obeyed another coordinator of this grid" in str(refused.value.why)
            assert not await on.offers()
        on.kill("coordinator")
        home.rename(copy)
        real.rename(home)
        await on.coordinator()
        async with GridClient(on.url) as client:
            await on.until(lambda: is_(client, running, State.RUNNING), "its job is there and runs")
            await client.cancel(running, grace=0)
            view = await client.wait(running)
        assert view.outcome is not None and view.outcome.cause is Cause.CANCELLED
        assert not (on.place / "ran").exists()


async def is_(client: GridClient, job: str, state: State) -> bool:
    return (await client.show(job)).state is state
