"""Asking Ray where there is none: one clear reason, at once, nothing is left running. With a real one: tests/ray."""

import asyncio
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from distributed_grid.coordinator.ray.bridge_client import Bridge, NoRay, environment
from distributed_grid.runtime.service import loop_factory


async def test_where_nobody_listens_that_is_said_each_time_and_no_process_is_started() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # taken, and nobody listens
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        bridge = Bridge(address, environment("disabled"))
        for _ in range(2):
            with pytest.raises(NoRay, match=f"there is no Ray at {address}") as refused:
                await bridge.ask("nodes")
            assert "ray.address" in refused.value.hint
        await bridge.close()
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "ray"]


@pytest.mark.parametrize("address", ["auto", "ray://127.0.0.1:10001", "gpu-master", ":6379", "127.0.0.1:99999"])
async def test_an_address_of_another_form_is_refused_with_the_one_that_it_is_to_have(address: str) -> None:
    with pytest.raises(NoRay, match=f"there is no Ray at {address}") as refused:
        await Bridge(address, environment("disabled")).ask("nodes")
    assert "HOST:PORT" in refused.value.why and "ray.address" in refused.value.hint


def test_how_rays_processes_know_each_other_is_always_said_and_a_token_goes_by_its_file() -> None:
    assert environment("disabled")["RAY_AUTH_MODE"] == "disabled"
    said = environment("token", "/etc/grid/ray.token")
    assert (said["RAY_AUTH_MODE"], said["RAY_AUTH_TOKEN_PATH"]) == ("token", "/etc/grid/ray.token")


async def test_a_bridge_that_is_not_understood_is_ended_and_who_waits_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\necho what?\nexec sleep 1000\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        bridge = Bridge(f"127.0.0.1:{listening.getsockname()[1]}", environment("disabled"))
        with pytest.raises(NoRay, match="cannot be asked"):
            await bridge.ask("nodes", seconds=60)
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), 0)
        await bridge.close()


async def test_a_coordinator_whose_ray_cannot_be_imported_says_so_and_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "ray.py").write_text("raise ModuleNotFoundError('No module named ray')\n")
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        said = environment("disabled") | {"PYTHONPATH": str(tmp_path)}
        bridge = Bridge(f"127.0.0.1:{listening.getsockname()[1]}", said)
        for _ in range(2):  # also who asks before it is tried again
            with pytest.raises(NoRay, match="has no Ray to ask the cluster with") as refused:
                await bridge.ask("nodes", seconds=60)
            assert "No module named ray" in refused.value.why and "pip install" in refused.value.hint
        await bridge.close()


async def test_where_something_else_listens_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray itself waits for ten seconds, and ends the process."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        bridge = Bridge(address, environment("disabled"))
        with pytest.raises(NoRay, match=f"there is no Ray at {address}") as refused:
            await bridge.ask("nodes", seconds=60)
        assert "something listens there" in refused.value.why and "ray.address" in refused.value.hint
        await bridge.close()


DEAF = """#!/bin/sh
echo $$ >> {pids}
read line
printf '{{"id": %s, "ok": "yes"}}\\n' "$(echo "$line" | tr -dc 0-9)"
exec sleep 1000
"""
"""A bridge that answers one question. Its end of the pipe is closed then, as of one that was killed and has not been
waited for yet."""


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, loop_factory()], ids=["asyncio", "as the service"])
def test_a_bridge_that_hears_nothing_any_more_is_replaced_by_the_next_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    program, pids = tmp_path / "python", tmp_path / "pids"
    program.write_text(DEAF.format(pids=pids))
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))

    async def ask_twice() -> list[str]:
        bridge = Bridge(f"127.0.0.1:{listening.getsockname()[1]}", environment("disabled"))
        first = await bridge.ask("nodes", seconds=60)
        process = bridge._process
        assert process is not None and process.stdin is not None
        process.stdin.close()
        assert process.returncode is None, "it lives"
        second = await bridge.ask("nodes", seconds=60)
        await process.wait()
        await bridge.close()
        return [first, second]

    with socket.socket() as listening, asyncio.Runner(loop_factory=loop) as runner:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        assert runner.run(ask_twice()) == ["yes", "yes"]
    assert len(pids.read_text().split()) == 2
