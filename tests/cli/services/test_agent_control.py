"""The running agent is asked over its socket, and where none runs that is said."""

import json
import threading
from pathlib import Path

import click
import pytest

from distributed_grid.cli.context import Invocation
from distributed_grid.cli.services import agent_control
from distributed_grid.cli.services.agent_control import AgentSocket, NoAgent
from distributed_grid.cli.services.systemd import Installed
from distributed_grid.protocol.errors import GridError
from distributed_grid.runtime.unix import bound


def answering(folder: Path, *answers: dict[str, object]) -> threading.Thread:
    listening = bound(folder / agent_control.SOCKET)
    listening.listen()

    def serve() -> None:
        made, _ = listening.accept()
        with made, listening:
            made.recv(4096)
            made.sendall(b"".join(json.dumps(one).encode() + b"\n" for one in answers))

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def test_answers_come_one_by_one_and_a_refusal_is_an_error(tmp_path: Path) -> None:
    thread = answering(tmp_path, {"left": 1}, {"left": 0}, {"error": "not now"})
    asking = AgentSocket(tmp_path).ask(op="stop")
    assert [next(asking), next(asking)] == [{"left": 1}, {"left": 0}]
    with pytest.raises(GridError, match="the agent refuses: not now"):
        next(asking)
    thread.join(10)


def test_where_no_agent_runs_there_is_no_status(tmp_path: Path) -> None:
    assert agent_control.status_of(tmp_path) is None
    with pytest.raises(NoAgent):
        AgentSocket(tmp_path)


def test_a_deadline_goes_with_draining_and_jobs_go_on_unless_somebody_says_otherwise(tmp_path: Path) -> None:
    assert agent_control.seconds("drain", "2m") == 120.0 and agent_control.seconds(None, None) == 0.0
    with pytest.raises(click.UsageError):
        agent_control.seconds("kill", "2m")
    assert (agent_control.chosen("kill", tmp_path), agent_control.chosen(None, tmp_path)) == ("kill", "keep")


def test_the_jobs_of_an_agent_that_does_not_run_cannot_be_drained_and_it_is_to_be_started_first(tmp_path: Path) -> None:
    service = Installed("agent", own=False)
    with pytest.raises(NoAgent) as caught:
        agent_control.stop(Invocation(), tmp_path, service, "drain", 0.0)
    assert caught.value.hint == "systemctl start grid-agent.service first, or --jobs keep"
