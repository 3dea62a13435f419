"""A Ray cluster that wants a token (RAY_AUTH_MODE=token): who has it joins, who has another is told so at once."""

import os
from pathlib import Path

import pytest

from tests.grid_fixture import Grid, until
from tests.ray.scene import CORES, TOKEN, WHERE, Cluster

pytestmark = [pytest.mark.ray, pytest.mark.netns, pytest.mark.timeout(300)]


def test_a_boost_joins_by_a_file_of_its_own_and_the_token_is_nowhere_else(guarded: Cluster, core: str) -> None:
    allocation = guarded.master.job(core)["allocation"]
    here = """.options(resources={"boost_gpu-master": 1})"""
    seen = guarded.compute(
        WHERE
        + f"""
@ray.remote
def environment():
    import os
    return dict(os.environ)

print(json.dumps(ray.get(environment{here}.remote(), timeout=60)))
"""
    )
    assert seen["RAY_AUTH_MODE"] == "token" and TOKEN not in str(seen)
    copy = Path(seen["RAY_AUTH_TOKEN_PATH"])
    assert allocation in str(copy) and (copy.read_text(), copy.stat().st_mode & 0o777) == (TOKEN, 0o600)
    found = guarded.node.processes_with(allocation)
    assert found
    for pid in found:
        for file in ("cmdline", "environ"):
            assert TOKEN.encode() not in _content(Path(f"/proc/{pid}/{file}"))
    for home in (guarded.master.home, guarded.node.home):
        for folder, _, names in os.walk(home):
            assert not [name for name in names if TOKEN.encode() in _content(Path(folder) / name)], folder
    guarded.keep_only()
    until(lambda: not copy.exists(), "the copy is gone with the boost", 60.0)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes() if path.is_file() else b""
    except OSError:  # Ray has taken it away meanwhile
        return b""


@pytest.mark.parametrize(
    ("token", "said"),
    [
        ("f" * 64, "does not take this node's token: it is another than that in"),
        pytest.param("", "it is empty", marks=pytest.mark.long_ray),
    ],
)
def test_a_source_with_another_token_is_told_so_before_a_raylet_is_started(
    guarded: Cluster, token: str, said: str
) -> None:
    path = guarded.node.home.parent / "node.token"
    path.write_text(token)
    only = ("--only-source", "lab1")  # else it would be left alone after the first time
    done = guarded.master.run("boost", "request", "gpu-master", "cpu", "1", *only, timeout=120.0)
    path.write_text(TOKEN)
    assert done.returncode == 1 and said in done.stderr and "ray_token" in done.stderr, done.stderr
    outcome = guarded.master.job("last")["outcome"]
    assert not outcome["started"] and outcome["seconds"] < 20.0
    assert guarded.lent() == []
    until(lambda: guarded.offered() == len(CORES), "all its cores are offered again")
    guarded.keep(*only)


def test_a_coordinator_with_another_token_says_so(guarded: Cluster, core: str) -> None:
    path = guarded.node.home.parent / "master.token"
    path.write_text("f" * 64)
    try:
        _again(guarded.master)
        done = guarded.master.run("boost", "request", "gpu-master", "cpu", "1", timeout=120.0)
        assert done.returncode == 1 and "the Ray cluster wants its token" in done.stderr, done.stderr
        assert "ours is another (ray.token)" in done.stderr
    finally:
        path.write_text(TOKEN)
        _again(guarded.master)
    until(lambda: guarded.lent() is not None, "Ray answers again", 60.0)
    assert [one["id"] for one in guarded.lent() or [] if one["in_ray"]] == [core], "what was lent outlives it"


def _again(master: Grid) -> None:
    master.kill("coordinator")
    master.start_coordinator()
    master.await_offers(1)
