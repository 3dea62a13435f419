"""Which tests one process takes one after another."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import side_by_side


@pytest.mark.parametrize(
    ("nodeid", "group"),
    [
        ("tests/ray/test_boosts.py::test_a", "Ray"),
        ("tests/ray/test_gpu_boosts.py::test_a", "guarded"),
        ("tests/ray/test_the_head.py::test_a", "guarded"),
        ("tests/agent/supervisor/test_rounds.py::test_a", "alone"),
        ("tests/agent/sampling/test_probe.py::test_a", "tests/agent/sampling/test_probe.py"),
        ("tests/agent/supervisor/test_spawners_nice.py::test_beside_a_job_on_the_same_core", "alone"),
        ("tests/agent/supervisor/test_spawners_nice.py::test_a", "tests/agent/supervisor/test_spawners_nice.py"),
        ("tests/e2e/service/test_tour.py::test_the_part_with_ray_prints", "alone"),
        ("tests/e2e/service/test_tour.py::test_a", "tests/e2e/service/test_tour.py"),
        ("tests/ray/test_placing.py::test_a", "heads"),
        ("tests/systemd/test_boot.py::test_a", "machines"),
        ("tests/test_packaging.py::test_a", "machines"),
        ("tests/agent/cgroups/test_control.py::test_a[x]", "groups"),
        ("tests/e2e/security/test_siege.py::test_a", "sieges"),
        ("tests/e2e/service/test_dev.py::test_a[a::b]", "tests/e2e/service/test_dev.py"),
    ],
)
def test_what_shares_a_scene_or_wants_much_is_a_chain_and_all_else_goes_by_file(nodeid: str, group: str) -> None:
    assert side_by_side.together(nodeid) == group


def test_what_takes_long_because_it_tries_more_is_handed_out_test_by_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "DEEP", True)
    assert side_by_side.together("tests/simulator/test_run.py::test_a[1]") == "tests/simulator/test_run.py::test_a[1]"
    assert side_by_side.together("tests/ray/test_boosts.py::test_a") == "Ray"


def test_every_chain_and_what_begins_first_is_there() -> None:
    paths = [path for paths in side_by_side.TOGETHER.values() for path in paths]
    root = Path(__file__).parents[1]
    for path in (*paths, *side_by_side.FIRST):
        file, _, test = path.partition("::")
        assert (root / file).exists(), path
        assert not test or f"def {test}" in (root / file).read_text(), path


def test_those_that_are_alone_come_last() -> None:
    others = (
        "tests/ray/test_boosts.py::test_a",
        "tests/e2e/service/test_tour.py::test_a",
        "tests/protocol/test_text.py::test_a",
    )
    assert max(map(side_by_side.turn, others)) < side_by_side.turn("tests/agent/supervisor/test_rounds.py::test_a")


ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("asked", "numbers"),
    [
        (["tests"], (3, 5, 33)),
        (["tests/protocol", "tests/cli"], (3, 5, 33)),
        (["tests/coordinator"], (3, 5, 33)),
        (["tests/protocol/", str(ROOT / "tests/simulator/test_run.py::test_a[x]")], (1, 2, 16)),
    ],
)
def test_there_are_more_processes_than_cores_where_tests_wait(
    asked: list[str], numbers: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = SimpleNamespace(
        option=SimpleNamespace(numprocesses="auto"),
        args=asked,
        rootpath=ROOT,
        invocation_params=SimpleNamespace(dir=ROOT),
    )
    for cores, processes in zip((1, 2, 16), numbers, strict=True):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        assert side_by_side.pytest_xdist_auto_num_workers(config) == processes  # type: ignore[arg-type]


def test_rewritten_tests_are_kept_also_where_bytecode_is_not_to_be_written(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text("from tests import conftest\n")
    (tmp_path / "test_it.py").write_text(
        "import os\n\ndef test_it():\n    assert 'PYTHONDONTWRITEBYTECODE' not in os.environ\n"
    )
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    assert list(tmp_path.glob("__pycache__/test_it.*-pytest-*.pyc"))


FATES = """
import pytest

@pytest.fixture
def broken_before():
    raise OSError("before")

@pytest.fixture
def broken_after():
    yield
    raise OSError("after")

def test_passes():
    print("not shown")

def test_fails():
    assert not "what is shown"

@pytest.mark.skip(reason="why not")
def test_is_skipped():
    pass

@pytest.mark.xfail(reason="known")
def test_is_known_to_fail():
    assert False

def test_has_no_scene(broken_before):
    pass

def test_leaves_something(broken_after):
    pass
"""


@pytest.mark.parametrize("asked", [[], ["-v"], ["--durations=0", "-vv"]])
def test_each_process_tells_how_every_test_ended(asked: list[str], tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text(
        "from tests.side_by_side import pytest_configure, pytest_unconfigure, pytest_xdist_make_scheduler\n"
    )
    for name in "abc":
        (tmp_path / f"test_{name}.py").write_text(FATES)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "TESTS_"))}
    environment |= {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-p", "no:cacheprovider", "-ra", "-n", "2", *asked]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert " 3 failed, 6 passed, 3 skipped, 3 xfailed, 6 errors in " in done.stdout, done.stdout + done.stderr
    for said in (
        "FAILED test_a.py::test_fails - AssertionError",
        "SKIPPED [1] test_a.py:",
        "XFAIL test_b.py::test_is_known_to_fail - known",
        "ERROR test_c.py::test_has_no_scene - OSError: before",
        "ERROR test_c.py::test_leaves_something - OSError: after",
    ):
        assert said in done.stdout
    assert ("PASSED" in done.stdout) == ("-v" in asked or "-vv" in asked)
    assert ("s setup    test_a.py::test_passes" in done.stdout) == ("--durations=0" in asked)


def test_of_a_test_that_passed_a_process_sends_how_it_went_and_nothing_about_what_was_before_and_after() -> None:
    sent: list[str] = []
    send = side_by_side.tell_less(lambda name, **_: sent.append(name))

    def report(when: str, outcome: str = "passed", sections: tuple[object, ...] = ()) -> dict[str, Any]:
        data = {"when": when, "outcome": outcome, "sections": list(sections), "keywords": {"parametrize": 1}}
        before = len(sent)
        send("testreport", data=data)
        return data if len(sent) > before else {}

    send("logstart", nodeid="a", location=("a", 1, "a"))
    send("logfinish", nodeid="a", location=("a", 1, "a"))
    assert not sent
    assert not report("setup") and not report("teardown")
    assert report("call")["keywords"] == {}
    assert report("teardown", sections=(("Captured stdout", "text"),))
    for when in ("setup", "call", "teardown"):
        assert report(when, "failed")["keywords"] and report(when, "skipped")["keywords"]
    send("runtest_protocol_complete", item_index=0, duration=0.0)
    assert sent[-1] == "runtest_protocol_complete"
