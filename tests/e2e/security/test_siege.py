"""All who misbehave at once, beside a grid at work: the work comes to no harm (`make abuse`: the same for longer)."""

from tests.e2e.security.crowd import CROWD
from tests.e2e.security.siege import siege

GROWTH = 160 << 20
"""What all outboxes and frames that this crowd may fill come to is some 60 MiB."""


async def test_a_grid_besieged_by_a_crowd_does_its_work() -> None:
    verdict = await siege(seconds=7, seed=1, alone=1.5)
    assert verdict.wrong == []
    assert len(verdict.besieged.seconds) >= 3
    assert verdict.peak - verdict.before < GROWTH, f"{(verdict.peak - verdict.before) >> 20} MiB more"
    assert verdict.log_bytes < 256 << 10
    assert set(verdict.misdeeds) == {misdeed.__name__ for misdeed in CROWD}
    assert sum(verdict.misdeeds.values()) > sum(CROWD.values()), "those that were cut came again"
