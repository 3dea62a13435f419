"""Machines as containers: behind Docker's API by podman, with the program of a machine in real containers."""

import json
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from sys import executable
from typing import Any

import pytest
from msgspec.structs import replace

pytest.importorskip("docker", reason="needs the package docker")

from distributed_grid.coordinator.core.scaling.state import Answer, Listed
from distributed_grid.coordinator.providers import docker_local
from distributed_grid.coordinator.providers.base import ProviderRefused, WorkerSpec
from distributed_grid.coordinator.providers.docker_local import DockerLocalProvider
from distributed_grid.protocol.resources import Resources
from tests.coordinator.providers.leaks import leak_free
from tests.coordinator.providers.podman_engine import IMAGE, Engine, bound, lacking, podman_engine, refused
from tests.coordinator.providers.scene import LONGEST, SPEC
from tests.depth import tries
from tests.grid_fixture import until

NUMBERS = count(1)


@pytest.fixture(scope="module")
def podman() -> Iterator[Engine]:
    if why := lacking():
        pytest.skip(why)
    with podman_engine() as engine:
        if why := refused(engine):
            pytest.skip(why)
        yield engine


@pytest.fixture
def engine(podman: Engine) -> Iterator[Engine]:
    """The engine, with no container of an earlier test."""
    yield podman
    podman.clear()


def provider(engine: Engine, grid: str = "g1", **more: Any) -> DockerLocalProvider:
    settings = {"socket": str(engine.socket), "image": IMAGE, "volumes": bound(), "python": executable}
    return DockerLocalProvider(grid, settings | more)


def spec(**more: Any) -> WorkerSpec:
    now = time.time()
    given: dict[str, Any] = {"name": f"a-1-{next(NUMBERS)}", "born": now, "ends_by": now + 600, "join_within": 100.0}
    given |= {"resources": Resources(1000, 96 << 20), "url": "ws://127.0.0.1:9"}
    return replace(SPEC, **(given | more))


def listed(of: DockerLocalProvider, asked: WorkerSpec) -> Listed | None:
    return next((one for one in of.list_workers() if one.name == asked.name), None)


def test_a_machine_is_one_container_with_limits_and_ends_whole(engine: Engine) -> None:
    docker, asked = provider(engine), spec(invitation="grid://x/secret")
    handle = docker.create_worker(asked)
    assert docker.create_worker(asked) == provider(engine).create_worker(asked) == handle
    (shown,) = json.loads(engine.run("inspect", asked.name).stdout)
    assert shown["HostConfig"]["NanoCpus"] == 1_000_000_000 and shown["HostConfig"]["Memory"] == 96 << 20
    assert "secret" not in json.dumps(shown), "the invitation is in no environment and no command line"
    inside = engine.run("exec", asked.name, "cat", "/grid-machine/machine.json", "/grid-machine/invitation").stdout
    told, _, rest = inside.partition(b"grid:")
    assert rest.startswith(b"//x/secret") and json.loads(told)["handle"] == handle
    found = listed(docker, asked)
    assert found is not None and (found.handle, found.pool, found.born) == (handle, "a", round(asked.born, 3))
    assert docker.terminate_worker(asked.name, "another") is False and engine.containers() == [asked.name]
    assert docker.terminate_worker(asked.name, handle) is True
    assert listed(docker, asked) is None and engine.containers(all=True) == []
    assert docker.terminate_worker(asked.name, handle) is False


def test_the_longest_name_of_a_machine_is_that_of_its_container(engine: Engine) -> None:
    docker, asked = provider(engine, "0123456789abcdef"), spec(name=LONGEST)
    assert docker.create_worker(asked) == docker.create_worker(asked)
    assert engine.containers() == [LONGEST] and listed(docker, asked) is not None
    assert docker.terminate_worker(asked.name) is True


def test_a_machine_that_cannot_join_ends_with_its_container_and_says_why(engine: Engine) -> None:
    docker, asked = provider(engine), spec(join_within=1.0)
    docker.create_worker(asked)
    over = until(lambda: (found := listed(docker, asked)) is not None and found.ended and found, "it has ended")
    assert over.failed and "code 0" in over.why and "it has not joined within 1.0s" in over.why
    with pytest.raises(ProviderRefused, match="has ended"):
        docker.create_worker(asked)
    assert docker.terminate_worker(asked.name) is False, "what is left of it is removed"
    assert engine.containers(all=True) == []


def test_two_grids_at_one_engine_do_not_see_each_other(engine: Engine) -> None:
    mine, theirs, asked = provider(engine), provider(engine, "g2"), spec()
    mine.create_worker(asked)
    assert theirs.list_workers() == []
    for touch in (lambda: theirs.create_worker(asked), lambda: theirs.terminate_worker(asked.name)):
        with pytest.raises(ProviderRefused, match="is not of this grid"):
            touch()
    assert engine.containers() == [asked.name]


def test_a_creation_that_was_cut_off_before_the_start_is_completed_or_removed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker, cut, left = provider(engine), spec(), spec()
    for one in (cut, left):
        docker._create(one)
    assert docker.list_workers() == [], "it is not there before it runs"
    docker.create_worker(cut)
    assert engine.containers() == [cut.name]
    monkeypatch.setattr(docker_local, "BEGUN_WITHIN", 0.0)
    time.sleep(1.1)
    docker.list_workers()
    assert engine.containers(all=True) == [cut.name]


@pytest.mark.parametrize(
    ("settings", "more", "answer", "said"),
    [
        ({"image": "localhost/nothing:9"}, {}, Answer.BAD_TYPE, "is not here, and cannot be pulled"),
        ({"image": ""}, {}, Answer.BAD_TYPE, "image is not set"),
        ({"network": "bridge"}, {}, Answer.REFUSED, "nobody reaches the coordinator at ws://127.0.0.1:9"),
        ({}, {"resources": Resources(500, 96 << 20, 1000)}, Answer.BAD_TYPE, "get no GPUs"),
        ({"python": "/nowhere/python"}, {}, Answer.REFUSED, "it does not start"),
    ],
    ids=["no-image", "no-image-set", "no-way", "gpus", "no-python"],
)
def test_what_cannot_be_is_refused_in_words(
    engine: Engine, settings: dict[str, Any], more: dict[str, Any], answer: Answer, said: str
) -> None:
    with pytest.raises(ProviderRefused, match=said) as refused:
        provider(engine, **settings).create_worker(spec(**more))
    assert refused.value.answer is answer, refused.value.text
    assert engine.containers(all=True) == []


def test_an_engine_that_is_not_there_is_a_lost_answer(tmp_path: Path) -> None:
    docker = DockerLocalProvider("g1", {"socket": str(tmp_path / "none.sock"), "image": IMAGE})
    for ask in (docker.list_workers, lambda: docker.create_worker(spec()), lambda: docker.terminate_worker("a-1-1")):
        with pytest.raises(ProviderRefused, match="the engine does not answer") as refused:
            ask()
        assert refused.value.answer is Answer.LOST


def test_what_the_engine_has_is_told(engine: Engine) -> None:
    assert provider(engine).get_available_resources()["cpus"] >= 1


@pytest.mark.parametrize("seed", range(tries(1)))
async def test_no_machine_is_lost_or_made_twice_whatever_is_killed(engine: Engine, seed: int) -> None:
    settings = {"socket": str(engine.socket), "image": IMAGE, "volumes": bound(), "python": executable}
    await leak_free("docker_local", settings, engine.containers, seed)
