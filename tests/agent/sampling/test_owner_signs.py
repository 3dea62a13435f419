"""Pressure on others than the grid, and use of the keyboard: from what a kernel writes, and from this one's files."""

import os
import time
from pathlib import Path

import pytest

from distributed_grid.agent.sampling.owner_signs import InputWatch, foreign_groups, pressure

IDLE = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"


def busy(percent: float) -> str:
    return IDLE.replace("some avg10=0.00", f"some avg10={percent:.2f}")


class Machine:
    """A machine by its files: who is in which group, and how long each group waits."""

    def __init__(self, root: Path, base: str = "sys/fs/cgroup") -> None:
        self.root, self.base = root, root / base
        self.group("")
        (root / "proc/pressure").mkdir(parents=True)
        self.all(0.0)

    def all(self, percent: float) -> None:
        """The whole machine's pressure."""
        for name in ("cpu", "memory", "io"):
            (self.root / "proc/pressure" / name).write_text(busy(percent))

    def group(self, path: str, *pids: int, **waits: float) -> None:
        at = self.base / path
        at.mkdir(parents=True, exist_ok=True)
        (at / "cgroup.controllers").touch()
        for name in ("cpu", "memory", "io"):
            (at / f"{name}.pressure").write_text(busy(waits.get(name, 0.0)))
        for pid in pids:
            (self.root / f"proc/{pid}").mkdir(parents=True)
            groups = f"4:memory:/elsewhere\n0::/{path}\n"
            (self.root / f"proc/{pid}/cgroup").write_text(groups, errors="surrogateescape")


@pytest.fixture(params=["sys/fs/cgroup", "sys/fs/cgroup/unified"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    return Machine(tmp_path, request.param)


def test_the_pressure_of_groups_with_something_of_ours_in_them_is_nobodys_business(machine: Machine) -> None:
    machine.group("system.slice", cpu=90.0, memory=90.0)
    machine.group("system.slice/grid-agent.service", cpu=90.0, memory=90.0)
    machine.group("system.slice/grid-agent.service/jobs", 7, cpu=90.0, memory=90.0)
    machine.group("grid-j1", cpu=90.0)
    machine.group("system.slice/database.service", io=30.0)
    machine.group("user.slice", cpu=10.0, io=20.0)
    machine.group("user.slice/session", cpu=99.0)
    machine.all(90.0)
    assert {group.name for group in foreign_groups((7,), machine.root)} == {"database.service", "user.slice"}
    assert pressure((7,), machine.root) == {"cpu": 10.0, "io": 30.0}


def test_a_group_is_of_ours_whatever_a_job_calls_it(machine: Machine) -> None:
    machine.group("grid-agent.service/j1/\udcff", 7)
    assert list(foreign_groups((7,), machine.root)) == []


def test_where_the_machine_waits_for_nothing_no_group_is_looked_at(machine: Machine) -> None:
    machine.group("user.slice", cpu=50.0)
    assert pressure((7,), machine.root) == {}


def test_a_kernel_that_does_not_say_has_no_pressure(tmp_path: Path) -> None:
    assert pressure((7,), tmp_path) == {}
    assert pressure((os.getpid(),)).keys() <= {"cpu", "memory", "io"}


def test_a_terminal_that_was_used_and_a_key_that_was_hit_are_seen(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "proc").mkdir()
    terminal, interrupts = tmp_path / "dev/tty1", tmp_path / "proc/interrupts"
    terminal.touch()
    interrupts.write_text("  1:  5  7  IO-APIC  1-edge  i8042\n 16:  9  0  IO-APIC  usb\n")
    watch = InputWatch(tmp_path, lambda: ["tty1", "gone"])
    assert watch.idle() < 0
    now = time.time() + 60
    os.utime(terminal, (now, now))
    assert watch.idle() == 0.0
    deadline = time.monotonic() + 10
    while watch.idle() == 0.0:  # though the terminal was used in the future, as by a clock that was set back since
        assert time.monotonic() < deadline
    os.utime(terminal, (now - 120, now - 120))
    watch = InputWatch(tmp_path, lambda: [])
    assert watch.idle() < 0
    interrupts.write_text("  1:  5  8  IO-APIC  1-edge  i8042\n 16:  9  9  IO-APIC  usb\n")
    assert 0 <= watch.idle() < 10
