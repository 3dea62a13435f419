"""Asking Ray where there is none: one clear reason, at once, nothing is left running. With a real one: tests/ray."""

import asyncio
import socket

import pytest

from distributed_grid.coordinator.ray.asking import Bridge, NoRay, environment


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


async def test_an_address_that_is_none_is_no_ray_either() -> None:
    with pytest.raises(NoRay, match="there is no Ray at auto"):
        await Bridge("auto", environment("disabled")).ask("nodes")


def test_how_rays_processes_know_each_other_is_always_said_and_a_token_goes_by_its_file() -> None:
    assert environment("disabled")["RAY_AUTH_MODE"] == "disabled"
    said = environment("token", "/etc/grid/ray.token")
    assert (said["RAY_AUTH_MODE"], said["RAY_AUTH_TOKEN_PATH"]) == ("token", "/etc/grid/ray.token")
