"""One cluster for all tests that leave it as it was."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ray.scene import Cluster, a_cluster, a_guarded_cluster


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with a_cluster(Path(tmp_path_factory.mktemp("r", numbered=True))) as made:
        yield made


@pytest.fixture(scope="package")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with a_guarded_cluster(Path(tmp_path_factory.mktemp("g", numbered=True))) as made:
        yield made


@pytest.fixture
def boost(cluster: Cluster) -> Iterator[str]:
    """A core of lab1 that is lent."""
    made = cluster.boost("cpu", "1")
    yield made
    cluster.release(made)
