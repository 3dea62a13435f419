"""Chains of successors on a simulated node, whatever fails: no core has two live processes (the judge looks at every
start), nothing runs twice, what a node said never ran never does, and all comes to its end."""

import pytest

from distributed_grid.agent.core.chains import Chains
from distributed_grid.agent.core.table import Table
from distributed_grid.agent.supervisor.allocations import Allocations
from distributed_grid.agent.supervisor.job import Job
from distributed_grid.simulator.engine import Violation
from tests.depth import tries
from tests.simulator.chained import Chainer


def test_chains_come_to_their_end_whatever_fails() -> None:
    runs = followed = 0
    for seed in range(tries(60, 12)):
        of = Chainer(seed)
        of.go()
        runs, followed = runs + len(of.judge.runs), followed + of.followed
    assert runs > 30 * tries(60, 12) and followed > 50 * tries(60, 12), (runs, followed)


def found() -> str:
    for seed in range(200):
        try:
            Chainer(seed).go()
        except Violation as violation:
            return violation.what
        except AssertionError as error:
            return str(error)
    return ""


def test_a_supervisor_that_lets_nobody_wait_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = Allocations.launch

    def at_once(self: Allocations, order: dict[str, object]) -> None:
        launch(self, order | {"kept": None})

    monkeypatch.setattr(Allocations, "launch", at_once)
    assert "a core is used twice" in found()


def test_a_supervisor_that_forgets_the_chain_of_what_runs_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    restore = Allocations.restore

    def forgets(self: Allocations, job: Job) -> None:
        kept, job.kept = job.kept, None
        restore(self, job)
        job.kept = kept

    monkeypatch.setattr(Allocations, "restore", forgets)
    assert "a core is used twice" in found()


def test_a_table_that_frees_what_a_successor_takes_over_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Table, "_hold", lambda self, key: None)
    assert found()


def test_a_chain_whose_successors_overtake_each_other_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    join = Chains.join

    def overtakes(self: Chains, key: str, chain: str) -> None:
        join(self, key, chain)
        self.make_head(key)

    monkeypatch.setattr(Chains, "join", overtakes)
    assert found()
