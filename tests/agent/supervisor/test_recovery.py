"""What lives of allocations that the journal does not name is found by groups and processes."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from distributed_grid.agent.cgroups.cgroupfs import Place
from distributed_grid.agent.cgroups.groups import Cgroups, SlotGroups
from distributed_grid.agent.supervisor.job import NEVER
from distributed_grid.agent.supervisor.recovery import ALLOCATION, Survivors

ONE = "j-aaaaaaaaaaaa.1"


def scene(tmp_path: Path, unknown: bool = True, sure: bool = False) -> tuple[Survivors, Any]:
    """Groups as the kernel shows them, in a directory; and the journaled."""
    journaled = SimpleNamespace(unknown=unknown, jobs={})
    at = Place(2, str(tmp_path))
    of_slots = SlotGroups(Cgroups({}, print, at), "/state", print)
    tree = SimpleNamespace(ending=set())
    slots = SimpleNamespace(left_over=lambda needed: [], knows_all=lambda: sure, names=set, groups=of_slots)
    groups = [at, None]
    return Survivors(journaled, tree, slots, groups, print), journaled  # type: ignore[arg-type]


def group(tmp_path: Path, name: str, *pids: int) -> None:
    (tmp_path / name).mkdir(parents=True)
    (tmp_path / name / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))


def test_processes_are_found_in_groups_that_are_named_after_allocations(tmp_path: Path) -> None:
    group(tmp_path, ONE, 7)
    group(tmp_path, f"{ONE}/below", 8)
    group(tmp_path, "j-bbbbbbbbbbbb_3.12", 9)
    group(tmp_path, "agent", os.getpid())
    group(tmp_path, "j-cccccccccccc.1")
    survivors, _ = scene(tmp_path)
    assert survivors.find() == {ONE: {7, 8}, "j-bbbbbbbbbbbb_3.12": {9}}


def test_processes_are_found_in_groups_of_slots_of_this_agent(tmp_path: Path) -> None:
    survivors, _ = scene(tmp_path)
    ours = SlotGroups(Cgroups({}, print), "/state", print).key("a1")
    group(tmp_path, ours, 7)
    group(tmp_path, SlotGroups(Cgroups({}, print), "/another", print).key("b2"), 8)
    assert survivors.find() == {"slot a1": {7}}


def test_what_is_no_id_is_no_allocation() -> None:
    names = ("..", "j-a.1", "j-aaaaaaaaaaaa", f"{ONE}/x", f"{ONE}x", "../" + ONE, "J-AAAAAAAAAAAA.1")
    assert [name for name in names if ALLOCATION.fullmatch(name)] == []


def test_it_is_looked_only_while_it_is_not_known_what_ran(tmp_path: Path) -> None:
    survivors, journaled = scene(tmp_path, unknown=False)
    assert survivors.due == NEVER and not survivors.poll(100.0)
    journaled.unknown = True
    assert survivors.due == 0.0 and not survivors.poll(100.0)
    assert survivors.due > 100.0


def test_finding_nothing_proves_it_only_where_all_would_be_found(tmp_path: Path) -> None:
    survivors, _ = scene(tmp_path)
    assert not survivors.poll(100.0)
    survivors, _ = scene(tmp_path, sure=True)
    assert survivors.poll(200.0)
    group(tmp_path, ONE, 2**22 + 1)  # a pid that nobody has
    assert not survivors.poll(300.0)
