"""What the configuration says of this node reaches its agent."""

from collections import defaultdict
from pathlib import Path

import pytest

from distributed_grid.cli.agent import _settings
from distributed_grid.cli.invocation import Invocation


def test_how_far_jobs_stand_back_comes_from_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing: dict[str, None] = defaultdict(lambda: None)
    file = tmp_path / "grid.yaml"
    file.write_text("agent: {name: n1}\n")
    said = Invocation(config_path=str(file))
    monkeypatch.delenv("GRID_AGENT__NICE")
    assert _settings(said, nothing, "info").nice == 15
    file.write_text("agent: {name: n1, nice: 3}\n")
    assert _settings(said, nothing, "info").nice == 3
