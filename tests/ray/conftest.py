"""One cluster for all tests that leave it as it was, and in it one boost for those that leave that as it was, too."""

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.ray.scene import Cluster, a_cluster, a_guarded_cluster, forgive


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A node whose raylet did not join is left alone by boosts for a minute: after a test that failed for one, the next
    one would fail for that."""
    report = yield
    if report.when == "call" and report.failed:
        forgive()
    return report


@pytest.fixture(scope="package")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with a_cluster(Path(tmp_path_factory.mktemp("r", numbered=True))) as made:
        yield made


@pytest.fixture
def cluster(shared: Cluster, request: pytest.FixtureRequest) -> Cluster:
    """Nothing is lent in it, but to a test that uses `boost`."""
    if "boost" not in request.fixturenames:
        shared.keep_only()
    return shared


@pytest.fixture
def boost(cluster: Cluster) -> str:
    """A core of lab1 that is lent, and stays so for the next test that uses this."""
    return cluster.keep()


@pytest.fixture(scope="package")
def a_guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with a_guarded_cluster(Path(tmp_path_factory.mktemp("g", numbered=True))) as made:
        yield made


@pytest.fixture
def guarded(a_guarded: Cluster, request: pytest.FixtureRequest) -> Cluster:
    """Nothing is lent in it, but to a test that uses `core` or `gpu`."""
    a_guarded.keep_only(*(kind for name, kind in SHARED.items() if name in request.fixturenames))
    return a_guarded


SHARED = {"core": "cpu", "gpu": "gpu"}
"""What is lent for these fixtures."""


@pytest.fixture
def core(guarded: Cluster) -> str:
    """A core of lab1 that is lent in the guarded cluster, and stays so for the next test that uses this."""
    return guarded.keep()


@pytest.fixture
def gpu(guarded: Cluster) -> str:
    """A GPU of lab1 that is lent in the guarded cluster, and stays so for the next test that uses this."""
    return guarded.keep(kind="gpu")
