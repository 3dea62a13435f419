"""What a node keeps is found sound, or it is said what is not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.agent import diagnostics
from distributed_grid.agent.cgroups.hierarchies import Survey
from distributed_grid.agent.diagnostics import UNKNOWN, Running, WallSettings, check_state, run_checks
from distributed_grid.agent.supervisor.journal import Journal, line
from distributed_grid.agent.supervisor.procs import boot_id
from distributed_grid.protocol.errors import GridError
from distributed_grid.runtime.health import Level


def ran(state: Path, *names: str) -> None:
    """What an allocation leaves that was started."""
    for name in names:
        folder = state / "allocs" / name
        folder.mkdir(parents=True)
        (folder / "stdout").touch()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A node on which `a` was forgotten, `b` ended and `c` runs."""
    ran(tmp_path, "a", "b", "c")
    records: list[list[Any]] = [["boot", "x"], ["intent", "b", 1.0, 0.0, 5.0, []], ["exit", "b", {}], ["forget", "a"]]
    records += [["intent", "c", 1.0, 0.0, 5.0, [], 0.0, 0.0, {}, {"user": "ann"}], ["start", "c", 11, 1, 2]]
    Journal(str(tmp_path / "journal"), print).rewrite(records)
    (tmp_path / "epoch").write_text('["grid", 3, ""]')
    return tmp_path


def found(state: Path) -> list[str]:
    said = check_state(state)
    assert all(hint for _, _, hint in said)
    return [f"{where} {what}" for where, what, _ in said]


def test_a_node_that_is_at_work_is_sound(state: Path) -> None:
    assert found(state) == []


def test_a_last_line_that_is_just_being_written_is_no_damage(state: Path) -> None:
    journal = state / "journal"
    journal.write_bytes(journal.read_bytes().rstrip(b"\0") + line(["forget", "b"])[:-5])
    assert found(state) == []


def test_a_damaged_line_is_found_with_its_number(state: Path) -> None:
    journal = state / "journal"
    journal.write_bytes(journal.read_bytes().replace(b'"boot"', b'"toob"'))
    assert found(state) == ["journal, line 2 is damaged"]


def test_a_live_job_of_which_it_is_not_known_what_it_holds_is_found(state: Path) -> None:
    journal = journal_of(state)
    journal.append("intent", "c", 1.0, 0.0, 5.0, [])
    journal.commit()
    journal.sync()
    assert found(state) == ["allocation c has not ended, and it is not known what it holds"]


def test_a_job_that_the_journal_does_not_know_is_found(state: Path) -> None:
    ran(state, "d")
    (state / "allocs" / "prepared").mkdir()
    assert found(state) == ["allocation d was started, and the journal does not know it"]


def test_a_journal_that_was_put_aside_and_an_epoch_that_cannot_be_read_are_found(state: Path) -> None:
    (state / "journal.corrupt-1").touch()
    (state / "epoch").write_text("nothing")
    assert found(state) == [
        "journal.corrupt-1 a journal was damaged and put aside",
        "epoch cannot be read: which coordinator to obey is not known",
    ]


def test_where_no_agent_ever_was_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(GridError, match="no state of an agent"):
        check_state(tmp_path)


def journal_of(state: Path) -> Journal:
    """As a supervisor of now keeps it: with numbers and a mark."""
    journal = Journal(str(state / "journal"), print)
    journal.rewrite(journal.load())
    journal.append("forget", "b")
    journal.commit()
    journal.sync()
    return journal


def test_a_journal_that_is_kept_now_is_sound(state: Path) -> None:
    journal_of(state)
    assert found(state) == []


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda path: path.unlink(), "journal does not have all that was written: the journal is not there any more"),
        (lambda path: path.write_bytes(b""), "journal does not have all that was written: the journal is empty"),
        (
            lambda path: path.write_bytes(bytes(9000)),
            "journal does not have all that was written: the journal is empty",
        ),
        (
            lambda path: path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-2])),
            "journal does not have all that was written: the journal ends at line 7, and 8 were written",
        ),
        (lambda path: path.write_bytes(path.read_bytes().replace(b'"boot"', b'"toob"')), "journal, line 2 is damaged"),
    ],
    ids=["deleted", "emptied", "zeros", "cut", "a flipped byte"],
)
def test_every_damage_of_the_journal_is_found(state: Path, damage: Callable[[Path], object], says: str) -> None:
    journal_of(state)
    damage(state / "journal")
    assert says in found(state)


def test_a_loss_that_nobody_has_looked_into_is_told(state: Path) -> None:
    journal = journal_of(state)
    journal.append("loss", "a1", 1.0, "the journal is empty", boot_id(), True)
    journal.commit()
    journal.sync()
    assert found(state) == ["journal was damaged, and it is not known what ran before: the journal is empty"]
    journal.append("proven", "a1")
    journal.commit()
    journal.sync()
    assert found(state) == []


def test_what_a_running_agent_says_of_its_groups_counts_and_not_what_the_asking_shell_has(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (state / "instance").touch()
    nothing = Survey({}, {"memory": "none was delegated"}, None)
    monkeypatch.setattr(diagnostics, "survey", lambda setting: nothing)

    def levels(running: Running) -> list[Level]:
        asked = WallSettings(state, walls="none")
        checks = {one.check: one for one in run_checks(asked, "none", "auto", running)}
        return [checks["cgroup"].level, checks["ends"].level]

    assert levels(UNKNOWN) == [Level.WARNING, Level.WARNING]
    limits = dict.fromkeys(("memory", "pids", "cpuset", "cpu"), "cgroup v2")
    assert levels(Running(limits, "control group")) == [Level.OK, Level.OK]
    assert levels(Running({**limits, "cpu": "none"}, "descent")) == [Level.WARNING, Level.WARNING]
