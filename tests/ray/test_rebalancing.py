"""A real Ray cluster gets what it waits for by itself, and its lender has it back, whoever is killed in between."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.depth import DEEP
from tests.grid_fixture import until
from tests.ray.scene import Cluster, a_balancing_cluster, of_allocation

pytestmark = [pytest.mark.ray, pytest.mark.netns, pytest.mark.timeout(420)]

FOUR = """
@ray.remote(num_cpus=4)
def where():
    import os, time
    while not os.path.exists({go!r}):
        time.sleep(0.05)
    return os.environ.get("GRID_ALLOCATION_ID", "")
print("ran in", ray.get(where.remote(), timeout=300))
"""


def ran_in(lines: list[str]) -> list[str]:
    """The allocations whose raylets ran tasks of a program, by its output: Ray writes there, too."""
    return [line.split()[-1] for line in lines if line.startswith("ran in ")]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with a_balancing_cluster(Path(tmp_path_factory.mktemp("b", numbered=True))) as found:
        yield found


@pytest.fixture
def cluster(made: Cluster) -> Iterator[Cluster]:
    """Boosts are lent on request, nothing is lent, and no lender is barred: a coordinator that starts anew remembers no
    moves."""
    if ever_lent(made):
        made.master.kill("coordinator")
        made.master.start_coordinator()
    until(lambda: made.offered() == 8, "its agent is there", 60.0)
    yield made
    assert made.master.run("policy", "set", "--unset").returncode == 0
    until(lambda: made.lent() == [], "all is given back with the mode", 60.0)


def last_pass(cluster: Cluster) -> Any:
    return cluster.master.json("resource-sharing", "status")["last"]


def balance(cluster: Cluster) -> None:
    assert cluster.master.run("policy", "set", "--mode", "dynamic_balancing").returncode == 0


def ever_lent(cluster: Cluster) -> set[str]:
    """Boosts that have ended."""
    return {one["id"] for one in cluster.master.json("boost", "history")["boosts"]}


def moves_made(cluster: Cluster) -> tuple[int, int]:
    """Boosts that the grid lent by itself, and gave back."""
    audit = (cluster.master.home / "coordinator" / "audit.log").read_text()
    return audit.count('"event":"rebalance-lend"'), audit.count('"event":"rebalance-give-back"')


def test_a_program_that_waits_for_four_cores_gets_them_by_itself_and_they_go_back(
    cluster: Cluster, tmp_path: Path
) -> None:
    before, (lends, returns) = ever_lent(cluster), moves_made(cluster)
    go = tmp_path / "go"
    program = cluster.aside(FOUR.format(go=str(go)))

    def proposed() -> bool:
        found = last_pass(cluster)
        return bool(found and found["moves"])

    until(proposed, "the grid would lend", 120.0)
    assert not last_pass(cluster)["applied"]
    assert cluster.lent() == [] and moves_made(cluster) == (lends, returns), "it shares on request only"
    suggested = cluster.master.run("boost", "suggest")
    assert "grid boost request gpu-master cpu 4 --only-source lab1" in suggested.stdout, suggested.stdout
    balance(cluster)

    until(lambda: moves_made(cluster) == (lends + 1, returns), "it lends", 120.0)
    until(lambda: [one["state"] for one in cluster.lent() or []] == ["running"], "it has lent", 120.0)
    (boost,) = cluster.lent() or []
    cluster.kill_bridges()
    cluster.master.kill("coordinator")
    cluster.master.start_coordinator()
    cluster.kill_bridges()
    go.touch()
    assert ran_in(program.printed(180.0)) == [f"{boost['id']}.1"], "the task ran on what was lent"
    assert (boost["node"], boost["boost"]["amount"]) == ("lab1", 4)

    until(lambda: moves_made(cluster) == (lends + 1, returns + 1), "it gives it back", 180.0)
    until(lambda: cluster.lent() == [], "the lender has it back", 60.0)
    until(lambda: boost["id"] not in cluster.raylets(), "Ray has seen it end", 60.0)
    assert ever_lent(cluster) - before == {boost["id"]}, "no boost is lent twice"
    until(lambda: cluster.offered() == 8, "it offers all it has", 60.0)
    assert moves_made(cluster) == (lends + 1, returns + 1)
    assert cluster.master.run("replay", str(cluster.master.home / "coordinator")).returncode == 0


def the_coordinator(cluster: Cluster) -> None:
    cluster.master.kill("coordinator")
    cluster.master.start_coordinator()


def the_head(cluster: Cluster) -> None:
    """As heads mostly are: without a memory that outlives it."""
    cluster.kill_head()
    cluster.start_head()


KILLS = [(the_coordinator, "starting"), (Cluster.kill_bridges, "starting"), (the_head, "starting")]
if DEEP:  # its lender rests for a minute then
    KILLS.append((the_head, "running"))


@pytest.mark.long_ray
@pytest.mark.parametrize(("kill", "when"), KILLS)
def test_who_is_killed_while_the_grid_lends_leaves_no_boost_behind_and_none_is_lent_twice(
    cluster: Cluster, kill: Callable[[Cluster], None], when: str
) -> None:
    """A head takes its programs with it. What was joining it joins the next head or ends, and so the next program gets
    that boost, or one of its own."""
    before = ever_lent(cluster)

    def lent() -> list[dict[str, Any]]:
        found = [one for one in cluster.lent() or [] if one["state"] != "stopping"]
        assert len(found) <= 1, "it is lent twice"
        return found

    def served(program: subprocess.Popen[str]) -> bool:
        lent()
        return program.poll() is not None

    balance(cluster)
    program = cluster.begin(FOUR.format(go="/"))
    until(lambda: any(one["state"] in (when, "running") for one in lent()), "it lends", 120.0)
    kill(cluster)
    if kill is the_head:
        program.kill()
        program.communicate()
        program = cluster.begin(FOUR.format(go="/"))
    until(lambda: served(program), "the task has run", 240.0)
    out, _ = program.communicate()
    assert program.returncode == 0
    (boost,) = lent()
    assert ran_in(out.splitlines()) == [f"{boost['id']}.1"] and cluster.raylets() == [boost["id"]], out

    assert cluster.master.run("policy", "set", "--unset").returncode == 0
    until(lambda: cluster.lent() == [], "it is given back with the mode", 60.0)
    until(lambda: cluster.raylets() == [], "Ray has seen it end", 60.0)
    until(lambda: cluster.offered() == 8, "its lender offers all it has", 60.0)
    ended = ever_lent(cluster) - before
    assert boost["id"] in ended and len(ended) <= (2 if kill is the_head else 1)
    until(lambda: not any(of_allocation(f"{one}.1") for one in ended), "no process is left of any", 60.0)
