"""Values are read alike from YAML and from text."""

from pathlib import Path

from distributed_grid.protocol.resources import GIB
from tests.config.conftest import Write, read


def test_lists_cores_sizes_and_labels_are_read_from_yaml_and_from_text(written: Write) -> None:
    text = "agent: {cores: [0-2, 7], memory: 16G, gpus: [GPU-a, 1], labels: {rack: 3, zone: b}, virtual: yes}"
    agent = read(written(text)).agent
    assert (agent.cores, agent.memory, agent.gpus) == ((0, 1, 2, 7), 16 * GIB, ("GPU-a", "1"))
    assert (agent.labels, agent.virtual) == ({"rack": "3", "zone": "b"}, True)
    flagged = read(None, here=Path("/none"), flags={"agent.cores": "3,0-1", "agent.labels": "a=1,b=2"}).agent
    assert (flagged.cores, flagged.labels) == ((0, 1, 3), {"a": "1", "b": "2"})
