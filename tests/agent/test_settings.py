"""The grid's settings are followed at once, kept on disk, and never read from a file that is damaged."""

from pathlib import Path

import pytest

from distributed_grid.agent.core.spare.thresholds import Limits
from distributed_grid.agent.settings import FILE, NodeSettings
from distributed_grid.protocol.nodes import Layer, Lending, OwnerPolicy

OWN = Layer(Lending(max_share_cpu=4.0), {"max_share_cpu": "node: grid.yaml:3"})
GRID = Layer(Lending(max_share_cpu=2.0, owner_policy=OwnerPolicy.RECALL, priority=0.0), {"max_share_cpu": "grid: x:1"})


def settings(place: Path) -> NodeSettings:
    made = NodeSettings(place, OWN, Lending(), Limits())
    made.load()
    return made


def test_what_the_grid_said_last_counts_at_the_next_start(tmp_path: Path) -> None:
    first = settings(tmp_path)
    assert first.limits.max_share_cpu == 4000
    assert first.take(GRID) and not first.take(GRID)
    again = settings(tmp_path)
    assert (again.limits.max_share_cpu, again.limits.owner_policy, again.priority) == (2000, OwnerPolicy.RECALL, 0.0)
    assert again.effective.origins["max_share_cpu"] == "grid: x:1"
    assert again.take(Layer()) and settings(tmp_path).limits.max_share_cpu == 4000


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"values":{"max_share_cpu":-1}}', b'{"values":[]}', b"\xff" * (1 << 20)]
)
def test_a_damaged_file_counts_as_nothing_said(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    found = settings(tmp_path)
    assert found.limits.max_share_cpu == 4000
    assert found.take(GRID) and settings(tmp_path).limits.max_share_cpu == 2000


def test_a_disk_that_takes_nothing_does_not_keep_the_settings_from_being_followed(tmp_path: Path) -> None:
    found = NodeSettings(tmp_path / "none", OWN, Lending(), Limits())
    assert found.take(GRID) and found.limits.max_share_cpu == 2000
