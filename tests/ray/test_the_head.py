"""The head of a Ray cluster dies: with a memory it comes back as what it was, and without one boosts end. These are the
last tests of their cluster: Ray 2.60 has left a free boost unused for a minute after such a restart."""

import pytest

from tests.ray.scene import Cluster
from tests.ray.test_boost_deaths import goes_on, is_over, one

pytestmark = [pytest.mark.ray, pytest.mark.netns, pytest.mark.timeout(300)]


def test_the_head_is_killed_and_started_with_its_memory_and_it_goes_on(guarded: Cluster, core: str) -> None:
    before = one(guarded, core)
    guarded.kill_head()
    guarded.start_head(guarded.place / "kept")
    goes_on(guarded, core, before)


@pytest.mark.long_ray
def test_the_head_is_killed_and_another_started_without_its_memory_and_all_end(guarded: Cluster) -> None:
    boost = guarded.boost("cpu", "1")
    guarded.kill_head()
    guarded.start_head()
    assert "Ray does not show it any more" in is_over(guarded, boost, 2.0)


@pytest.mark.long_ray
def test_the_head_is_killed_and_stays_away_and_its_raylets_end_by_themselves(guarded: Cluster) -> None:
    boost = guarded.boost("cpu", "1")
    guarded.kill_head()  # nobody needs it after this test
    said = is_over(guarded, boost, 2.0)  # in the words of `ray start`, where that had not ended its own start yet
    assert said.startswith("its raylet ended: ") and ("GCS within 30 s" in said or "timed out during startup" in said)
