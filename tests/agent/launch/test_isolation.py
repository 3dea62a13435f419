import getpass
import os
from pathlib import Path

import pytest

from distributed_grid.agent import diagnostics
from distributed_grid.agent.launch import isolation
from distributed_grid.agent.launch.isolation import WallSettings, choose_walls, default_owners, end_proof, walls_remedy
from distributed_grid.agent.walls import available
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.placement import Walls, unfit
from distributed_grid.runtime.health import Level


def had(monkeypatch: pytest.MonkeyPatch, walls: Walls, why: str = "not root") -> None:
    """These are the strongest that this machine has."""
    monkeypatch.setattr(isolation, "strongest_walls", lambda asked: (walls, why))


def test_what_is_told_are_the_strongest_walls_and_why_there_are_no_stronger_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    had(monkeypatch, Walls.LANDLOCK)
    told = isolation.wall_facts(WallSettings(tmp_path, owners=("ann",))).facts
    assert told == {"walls": "landlock", "walls_why": "not root", "owners": ("ann",), "trusts": "owner"}


def test_weaker_walls_than_there_are_can_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    had(monkeypatch, Walls.USER, "")
    assert choose_walls(WallSettings(tmp_path, walls="none")) == (Walls.NONE, "agent.walls asks for no stronger ones")


def test_walls_that_cannot_be_had_are_refused_with_what_would_help(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    had(monkeypatch, Walls.LANDLOCK)
    monkeypatch.setattr(available, "why_not", lambda walls, state_dir: "not root")
    with pytest.raises(GridError) as refused:
        choose_walls(WallSettings(tmp_path, walls="user"))
    assert refused.value.what == "jobs cannot be run behind walls user here (agent.walls)"
    assert refused.value.why == "not root"
    assert refused.value.hint.startswith("set agent.walls: auto, which is landlock here; or sudo grid agent install")


def test_where_the_strongest_walls_are_there_nothing_is_to_be_installed_for_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    had(monkeypatch, Walls.USER, "")
    monkeypatch.setattr(available, "why_not", lambda walls, state_dir: "root owns all files")
    with pytest.raises(GridError) as refused:
        choose_walls(WallSettings(tmp_path, walls="namespace"))
    assert refused.value.hint == "set agent.walls: auto, which is user here"


def test_a_node_whose_jobs_are_all_one_account_promises_nothing_to_strangers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They are kept from the agent, and so the supervisor builds walls `user`; but not from each other."""
    had(monkeypatch, Walls.USER, "")
    built, told, _, _ = isolation.wall_facts(WallSettings(tmp_path, run_as="render", owners=("ann",)))
    why = "the jobs of all submitters run as render (agent.run_as), not kept from each other"
    assert (built, told["walls"], told["walls_why"]) == (Walls.USER, "none", why)
    facts = told["walls"], told["owners"], told["trusts"]
    assert unfit(*facts, "ann", Walls.NONE) == ""
    assert unfit(*facts, "bob", Walls.NONE) == "its walls are none, and it runs jobs of its owners only"
    assert unfit(*facts, "ann", Walls.USER) == "its walls are none, and the job asks for user"
    found = diagnostics.walls(WallSettings(tmp_path, run_as="render", owners=("ann",)))
    assert (found.level, found.why) == (Level.WARNING, why)
    assert found.remedy == "agent.run_as: agent, or submitter; or agent.trust: everyone"
    for whom in ("agent", "submitter"):
        assert isolation.wall_facts(WallSettings(tmp_path, run_as=whom)).facts["walls"] == "user"


def test_more_owners_than_a_node_can_tell_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GridError, match="257 owners are too many"):
        isolation.wall_facts(WallSettings(tmp_path, owners=tuple(f"u{number}" for number in range(257))))


def test_an_agent_belongs_to_who_runs_it_and_to_who_became_that_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "ann")
    monkeypatch.setenv("LOGNAME", getpass.getuser())
    assert default_owners()[0] == "ann" and getpass.getuser() in default_owners()
    monkeypatch.delenv("SUDO_USER")
    assert "ann" not in default_owners() and "" not in default_owners()


@pytest.mark.parametrize(
    ("name", "off", "said"),
    [
        ("kernel/unprivileged_userns_clone", "0", "sudo sysctl kernel.unprivileged_userns_clone=1"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "kernel.apparmor_restrict_unprivileged_userns=0"),
        ("user/max_user_namespaces", "0", "user.max_user_namespaces=15000"),
    ],
)
def test_the_remedy_names_what_the_kernel_has_to_allow(name: str, off: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    path.write_text(off + "\n")
    assert said in walls_remedy(tmp_path)
    path.write_text("7\n")
    assert walls_remedy(tmp_path) == "sudo grid agent install, for walls user"


def test_the_doctor_warns_of_weak_walls_with_a_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(diagnostics, "choose_walls", lambda asked: (Walls.NONE, "not root"))
    found = diagnostics.walls(WallSettings(tmp_path, owners=("ann",)))
    assert (found.level, found.why) == (Level.WARNING, "not root")
    assert found.what == "jobs run behind walls none, so only those of ann do (agent.owners)"
    assert found.remedy.endswith("or agent.trust: everyone")
    found = diagnostics.walls(WallSettings(tmp_path, trust="everyone"))
    assert found.level is Level.WARNING and "jobs of everyone run behind walls none" in found.what


@pytest.mark.parametrize(
    ("walls", "asked", "as_root"),
    [
        (Walls.NONE, {"trust": "everyone"}, True),
        (Walls.NAMESPACE, {}, True),
        (Walls.USER, {}, False),
        (Walls.NONE, {}, False),  # of its owners alone
        (Walls.USER, {"trust": "everyone", "run_as": "root"}, True),
        (Walls.USER, {"run_as": "submitter"}, False),
    ],
)
def test_a_root_agent_that_runs_everyones_jobs_as_root_says_so_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, walls: Walls, asked: dict[str, str], as_root: bool
) -> None:
    had(monkeypatch, walls, "")
    settings = WallSettings(tmp_path, owners=("ann",), **asked)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert isolation.wall_facts(settings).all_as_root is as_root
    if tmp_path.stat().st_uid == 0:
        found = list(diagnostics.root_jobs(settings))
        assert [one.what for one in found] == ["jobs of everyone run as root on this machine"] * as_root
        assert all("grid agent install" in one.remedy and one.level is Level.WARNING for one in found)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert not isolation.wall_facts(settings).all_as_root


def test_a_node_says_why_its_jobs_have_no_name_and_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    had(monkeypatch, Walls.USER, "")
    monkeypatch.setattr(available, "nameless", lambda: "no mount can be made; be a service")
    assert isolation.wall_facts(WallSettings(tmp_path)).facts["nameless"] == "no mount can be made; be a service"
    found = diagnostics.walls(WallSettings(tmp_path))
    assert (found.level, found.why, found.remedy) == (Level.WARNING, "no mount can be made", "be a service")
    assert "have no name" in found.what
    for other in (WallSettings(tmp_path, walls="none"), WallSettings(tmp_path, run_as="submitter")):
        assert "nameless" not in isolation.wall_facts(other).facts


def test_the_doctor_is_content_with_strong_walls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(diagnostics, "choose_walls", lambda asked: (Walls.NAMESPACE, "not root"))
    assert diagnostics.walls(WallSettings(tmp_path)).level is Level.OK


def test_a_node_whose_proc_hides_the_processes_of_its_jobs_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    had(monkeypatch, Walls.USER, "")
    monkeypatch.setattr(isolation, "PROC", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid or 1000)
    why = "/proc hides processes, so that jobs would be taken for the owner's programs"
    remedy = "add the agent's group to gid= of its mount"
    assert isolation.wall_facts(WallSettings(tmp_path)).hidden == f"{why}; {remedy}"
    assert isolation.wall_facts(WallSettings(tmp_path, walls="none")).hidden == ""
    os.chown(tmp_path, os.geteuid(), -1)
    [found] = diagnostics.hidden_jobs(WallSettings(tmp_path))
    assert (found.level, found.why, found.remedy) == (Level.ERROR, why, remedy)
    (tmp_path / "1").mkdir()
    (tmp_path / "1/stat").touch()
    assert isolation.wall_facts(WallSettings(tmp_path)).hidden == ""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (tmp_path / "1/stat").unlink()
    assert isolation.wall_facts(WallSettings(tmp_path)).hidden == "", "root sees all"


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a directory to another user")
def test_the_doctor_says_nothing_of_what_another_user_could_have(tmp_path: Path) -> None:
    os.chown(tmp_path, 65534, 65534)
    found = diagnostics.walls(WallSettings(tmp_path))
    assert found.level is Level.OK and found.what.startswith("only user 65534")


@pytest.mark.parametrize(
    ("walls", "run_as", "grouped", "by"),
    [
        ("user", "agent", True, "user id"),
        ("user", "submitter", True, "control group"),
        ("user", "submitter", False, "descent"),
        ("namespace", "agent", False, "pid namespace"),
        ("landlock", "agent", True, "control group"),
        ("none", "agent", False, "descent"),
    ],
)
def test_by_what_an_end_is_proven_follows_from_user_namespace_and_group(
    walls: str, run_as: str, grouped: bool, by: str
) -> None:
    assert end_proof(walls, run_as, grouped) == by
