"""A machine ends itself: not joined in time, silent without jobs, or at the end of its life. Nothing else ends it."""

import datetime
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from distributed_grid.agent.machine import Machine, Running, Timer, agent_status, descendants
from distributed_grid.runtime.unix import bound
from tests.agent.metadata_service import metadata_service
from tests.grid_fixture import until

OF = Machine(name="a-1-1", ends_by=10_000.0, join_within=100.0, abandoned_after=50.0)


def timer() -> Timer:
    return Timer(OF, 0.0, 9000.0)


def test_one_that_does_not_join_in_time_is_over() -> None:
    assert timer().over(99.0) == ""
    assert timer().over(100.0) == "it has not joined within 1m40s"


def test_one_without_a_coordinator_is_over_only_when_no_job_runs() -> None:
    one = timer()
    one.look(90.0, True, 1)
    one.look(95.0, False, 1)
    assert one.over(200.0) == ""
    one.look(200.0, False, 0)
    assert "silent for 50" in one.over(200.0)


def test_one_that_hears_its_coordinator_stays_without_jobs() -> None:
    one = timer()
    for now in range(0, 900, 10):
        one.look(float(now), True, 0)
        assert one.over(float(now)) == ""


def test_a_job_shows_that_it_has_joined_even_if_nobody_saw_it_connected() -> None:
    one = timer()
    one.look(90.0, False, 1)
    assert one.over(120.0) == ""


def test_at_the_end_of_its_life_it_is_over_whatever_runs() -> None:
    one = timer()
    one.look(999.0, True, 5)
    assert one.over(1000.0) == "its life is over"


def test_it_lives_no_longer_than_its_life_though_the_coordinators_clock_is_ahead() -> None:
    one = Timer(replace(OF, ends_by=9000.0 + 86_400.0, life=1000.0), 50.0, 9000.0)
    one.look(1049.0, True, 1)
    assert one.over(1049.0) == "" and one.over(1050.0) == "its life is over"
    assert one.wait(1047.0) == 3.0


def test_it_lives_though_the_coordinators_clock_is_far_behind_but_not_once_more() -> None:
    one, again = (Timer(replace(OF, life=1000.0), 50.0, 90_000.0, again) for again in (False, True))
    one.look(1049.0, True, 1)
    assert one.over(1049.0) == "" and one.over(1050.0) == "its life is over"
    assert again.over(50.0) == "its life is over"


def test_the_next_look_is_never_after_a_deadline() -> None:
    assert timer().wait(97.0) == 3.0
    assert timer().wait(0.0) == 5.0


def test_one_whose_provider_takes_it_back_drains_its_agent_and_ends_when_that_is_ready(tmp_path: Path) -> None:
    running, asked = Running(tmp_path, replace(OF, notice=100.0)), bytearray()
    (tmp_path / "agent").mkdir()
    with bound(tmp_path / "agent" / "agent.sock") as listening:
        listening.listen()
        assert running.left(0.0) is False
        agent, _ = listening.accept()
        with agent:
            asked += agent.recv(4096)
            assert json.loads(asked) == {"op": "stop", "jobs": "drain", "deadline": 60.0}
            agent.sendall(b'{"left": 1}\n')
            assert running.left(5.0) is False
            agent.sendall(b'{"ready": true, "left": 0}\n')
            assert running.left(6.0) is True


def test_one_whose_agent_does_not_answer_ends_before_it_is_taken(tmp_path: Path) -> None:
    running = Running(tmp_path, replace(OF, notice=100.0))
    assert running.left(0.0) is False and running.left(89.0) is False
    assert running.left(90.0) is True


def test_a_spot_machine_that_is_likely_to_be_taken_back_takes_no_more_jobs_and_one_that_is_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "agent").mkdir()
    with metadata_service() as service, bound(tmp_path / "agent" / "agent.sock") as listening:
        for name, value in service.environment.items():
            monkeypatch.setenv(name, value)
        running = Running(tmp_path, replace(OF, metadata="aws", spot=True))
        listening.listen()
        service.says = {"/latest/meta-data/events/recommendations/rebalance": "{}"}
        running.look_for_notice(0.0)
        running.keep_order(0.0)
        first, _ = listening.accept()
        assert json.loads(first.recv(4096)) == {"op": "stop", "jobs": "keep"}
        asked = len(service.asked)
        running.look_for_notice(4.0)
        assert len(service.asked) == asked, "every five seconds"
        soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=100)
        said = json.dumps({"action": "terminate", "time": soon.isoformat()})
        service.says = {"/latest/meta-data/spot/instance-action": said}
        running.look_for_notice(5.0)
        assert running.keep_order(5.0) is False
        second, _ = listening.accept()
        order = json.loads(second.recv(4096))
        assert order["jobs"] == "drain" and 50 < order["deadline"] <= 60
        first.setblocking(False)
        with pytest.raises(BlockingIOError):  # not withdrawn before the agent has the second order
            first.recv(1)
        second.sendall(b'{"ready": true, "left": 0}\n')
        assert running.keep_order(6.0) is True
        assert first.recv(1) == b"", "the first order is withdrawn"
        first.close()
        second.close()


def test_one_that_is_not_spot_asks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with metadata_service() as service:
        for name, value in service.environment.items():
            monkeypatch.setenv(name, value)
        Running(tmp_path, replace(OF, metadata="gcp")).look_for_notice(0.0)
        assert service.asked == []


def test_nobody_answers_where_no_agent_is(tmp_path: Path) -> None:
    assert agent_status(tmp_path) is None


def test_descendants_are_found_through_sessions_of_their_own() -> None:
    inner = "import subprocess, sys; subprocess.run(['sleep', '60'], start_new_session=True)"
    with subprocess.Popen([sys.executable, "-c", inner], start_new_session=True) as child:
        try:
            found = until(lambda: len(descendants(child.pid)) == 1 and descendants(child.pid), "its child is there")
            os.kill(found[0], signal.SIGKILL)
        finally:
            child.kill()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A machine whose coordinator is not there."""
    told = {
        "name": "a-1-1",
        "url": "ws://127.0.0.1:9",
        "ends_by": time.time() + 3600,
        "join_within": 3,
        "abandoned_after": 60,
        "cores": 1,
        "memory": 64 << 20,
    }
    (tmp_path / "machine.json").write_text(json.dumps(told))
    return tmp_path


def test_a_machine_that_cannot_join_ends_and_leaves_no_process(folder: Path) -> None:
    words = [sys.executable, "-m", "distributed_grid.agent.machine", str(folder)]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0 and "it has not joined within 3.0s" in ran.stdout + ran.stderr
    assert (folder / "ended").exists()
    left = [pid for pid in os.listdir("/proc") if pid.isdigit() and str(folder).encode() in _cmdline(pid)]
    assert left == []
    again = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert again.returncode == 1, "it does not begin anew"


def _cmdline(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
