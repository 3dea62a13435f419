"""The bridge's JSON lines, asked as the coordinator asks them. What stands for Ray here answers as the tests say;
tests/ray/test_bridge.py asks a real one."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.coordinator.ray.bridge_client import BEGUN

RAY = {
    "ray/__init__.py": "__version__ = '0.0'",
    "ray/_raylet.py": """
import os, sys
from ray.exceptions import AuthenticationError
class Id:
    def hex(self): return "c1"
class GcsClient:
    cluster_id = Id()
    def __init__(self, address):
        print("noise of ray's own on stdout", flush=True)
        os.write(1, b"and beneath Python\\n")
        if address == "token:1": raise AuthenticationError("wrong token")
        if address == "gone:1": raise RuntimeError("connection refused\\nto gone:1\\nand more\\n")
        self.address = address
    def get_all_node_info(self, **asked):
        if self.address == "another:1": raise RuntimeError("WrongClusterID: it is another")
        if self.address == "fails:1": raise TimeoutError("deadline exceeded")
        return {}
    def internal_kv_get(self, *asked, **more):
        return b'{"ray_version": "2.0", "python_version": "3.11"}'
""",
    "ray/exceptions.py": "class AuthenticationError(Exception): pass",
    "ray/core/__init__.py": "",
    "ray/core/generated/__init__.py": "autoscaler_pb2 = None",
    "ray/core/generated/gcs_service_pb2.py": """
class GetAllNodeInfoRequest:
    class NodeSelector:
        def __init__(self, **asked): pass
""",
}


@pytest.fixture
def played(tmp_path: Path) -> Path:
    """A folder with what stands for Ray."""
    for name, text in RAY.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def ask(played: Path, *lines: Any, address: str = "here:1", auth: str = "token") -> tuple[int, list[dict[str, Any]]]:
    """The bridge's exit code and its answers to these lines, after which its stdin ends."""
    text = "".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in lines)
    done = subprocess.run(
        [sys.executable, "-m", "distributed_grid.coordinator.ray.bridge", address],
        env={**os.environ, "PYTHONPATH": str(played), "RAY_AUTH_MODE": auth},
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def test_a_question_is_answered_under_its_number_and_nothing_that_ray_prints_is_an_answer(played: Path) -> None:
    code, answers = ask(played, {"id": 7, "ask": "cluster", "node": "n1"})
    assert code == 0, "it ends when its stdin does"
    (answer,) = answers
    assert answer["id"] == 7 and answer["ok"].items() >= {"id": "c1", "ray": "2.0", "knows": False}.items()


def test_what_is_no_question_is_refused_and_the_next_one_answered(played: Path) -> None:
    code, answers = ask(played, {"id": 1, "ask": "_table"}, {"id": 2, "ask": "sing"}, {"id": 3, "ask": "cluster"})
    told = {one["id"]: one for one in answers}
    assert code == 0 and told[3]["ok"]["id"] == "c1"
    assert told[1] == {"id": 1, "error": "what is '_table'?", "why": ""}
    assert told[2] == {"id": 2, "error": "what is 'sing'?", "why": ""}


def test_a_question_with_words_that_it_has_not_is_an_error_and_no_end(played: Path) -> None:
    code, answers = ask(played, {"id": 1, "ask": "cluster", "loud": True}, {"id": 2, "ask": "cluster"})
    told = {one["id"]: one for one in answers}
    assert code == 0 and "TypeError" in told[1]["why"] and "ok" in told[2]


def test_a_line_that_is_no_json_ends_it_after_what_was_asked_before(played: Path) -> None:
    code, answers = ask(played, {"id": 1, "ask": "cluster"}, "{no json", {"id": 2, "ask": "cluster"})
    assert code == 1 and [one["id"] for one in answers] == [1]


@pytest.mark.parametrize(
    ("address", "auth", "what", "why"),
    [
        ("gone:1", "token", "Ray does not answer as it should", "RuntimeError: connection refused to gone:1"),
        ("token:1", "token", "the Ray cluster wants its token", "ours is another (ray.token)"),
        ("token:1", "disabled", "the Ray cluster wants its token", "ray.auth is disabled, and not token"),
    ],
)
def test_a_cluster_that_cannot_be_reached_is_told_before_any_question(
    played: Path, address: str, auth: str, what: str, why: str
) -> None:
    code, answers = ask(played, {"id": 1, "ask": "cluster"}, address=address, auth=auth)
    assert (code, answers) == (1, [{"id": BEGUN, "error": what, "why": why}])


def test_what_ray_raises_is_told_and_it_goes_on(played: Path) -> None:
    code, answers = ask(played, {"id": 1, "ask": "cluster"}, {"id": 2, "ask": "cluster"}, address="fails:1")
    assert code == 0 and {one["id"] for one in answers} == {1, 2}
    assert all(one["why"] == "TimeoutError: deadline exceeded" for one in answers)


def test_where_the_head_was_started_anew_it_says_so_and_ends(played: Path) -> None:
    code, answers = ask(played, {"id": 1, "ask": "cluster"}, address="another:1")
    assert code == 1 and [(one["id"], one["error"]) for one in answers] == [(1, "Ray's head was started anew")]
