"""Configuration files to read, and how the tests read them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.config.settings import ClusterConfig, ConfigError, load

Write = Callable[..., Path]


@pytest.fixture
def written(tmp_path: Path) -> Write:
    def write(text: str, name: str = "grid.yaml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


def read(path: Path | None, **given: Any) -> ClusterConfig:
    """The configuration in this file; without an `environment`, an empty one."""
    return load(path, environment=given.pop("environment", {}), **given)


def problems(path: Path, **given: Any) -> list[str]:
    """What is wrong in this file, which is called F in each."""
    with pytest.raises(ConfigError) as caught:
        read(path, **given)
    return [str(problem).replace(f"{path}", "F") for problem in caught.value.problems]
