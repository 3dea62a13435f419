"""The process of a provider: which one it loads, and that what a library prints is no answer."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.coordinator.core.scaling.state import Answer
from distributed_grid.coordinator.providers.base import ProviderRefused
from distributed_grid.coordinator.providers.child import load
from distributed_grid.coordinator.providers.command import CommandProvider
from tests.coordinator.providers.scene import settings


def answers(begin: dict[str, Any], *asked: dict[str, Any]) -> dict[int, Any]:
    """What a child says to these questions, by their numbers."""
    with subprocess.Popen(
        [sys.executable, "-m", "distributed_grid.coordinator.providers.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        for line in (begin, *asked):
            child.stdin.write(json.dumps(line).encode() + b"\n")
        child.stdin.flush()
        found = [json.loads(child.stdout.readline()) for _ in asked]
        child.stdin.close()
        assert child.stdout.read() == b""
        assert child.wait(20) == 0, "it ends with its stdin"
    return {one["id"]: one for one in found}


def test_it_answers_each_question_by_its_number(tmp_path: Path) -> None:
    begin = {"provider": "command", "grid": "g1", "settings": settings(tmp_path)}
    found = answers(begin, {"id": 1, "ask": "list"}, {"id": 2, "ask": "end", "name": "a"}, {"id": 3, "ask": "dance"})
    assert found[1]["ok"] == [] and found[2]["ok"] is False and found[3]["error"] == "refused"


def test_settings_that_cannot_be_used_are_told_to_each_question() -> None:
    found = answers({"provider": "command", "grid": "g1", "settings": {}}, {"id": 1, "ask": "list"})
    assert found[1] == {"id": 1, "error": "credentials", "text": "providers.command.create is not set"}


def test_providers_are_found_by_name() -> None:
    assert load("command") is CommandProvider
    with pytest.raises(ProviderRefused, match="no package here brings a provider 'nowhere'") as refused:
        load("nowhere")
    assert refused.value.answer is Answer.CREDENTIALS


def test_a_library_that_is_not_installed_is_told_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "docker", None)
    monkeypatch.delitem(sys.modules, "distributed_grid.coordinator.providers.docker_local", raising=False)
    with pytest.raises(ProviderRefused, match=r"-m pip install 'docker>=7\.1'"):
        load("docker_local")
