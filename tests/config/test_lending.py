"""What a configuration says of lending is taken out with the place where it stands; what it does not say is not."""

import ast
from pathlib import Path

import msgspec
import pytest

from distributed_grid.config import lending
from distributed_grid.config.kinds import Setting
from distributed_grid.config.schema import NODE_SETTINGS, SETTINGS
from distributed_grid.config.settings import ClusterConfig, load
from distributed_grid.config.sharing import ResourceSharing
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.nodes import LENDING, Layer, Lending, OwnerPolicy
from tests.config.conftest import Write

ROOT = Path(__file__).parents[2]
FILE = """\
resource_sharing:
  enabled: true
  mode: offload_only
  owner_policy: recall
  thresholds: {cpu_percent_max: 10, excess_threshold: 0.1}
nodes:
- name: lab1
  resource_sharing: {can_share: false, max_share_memory_gb: 1.5, owner_policy: continue}
"""


def test_what_is_said_for_all_nodes_and_for_one_has_its_line(written: Write) -> None:
    config = load(path := written(FILE), environment={"GRID_RESOURCE_SHARING__OFFER_EXPIRY": "90"})
    said = Lending(enabled=True, owner_policy=OwnerPolicy.RECALL, cpu_percent_max=10.0, offer_expiry=90.0)
    everyone = lending.of_all(config, "grid")
    assert everyone.values == said
    assert everyone.origins["cpu_percent_max"] == f"grid: {path}:5"
    assert everyone.origins["offer_expiry"] == "grid: env GRID_RESOURCE_SHARING__OFFER_EXPIRY"
    one = lending.of_node(config, "lab1", "grid")
    assert one.values == Lending(can_share=False, max_share_memory_gb=1.5, owner_policy=OwnerPolicy.CONTINUE)
    assert one.origins["can_share"] == f"grid, nodes[lab1]: {path}:8"
    assert lending.of_node(config, "lab2", "grid") == Layer()
    own = lending.of_agent(config, "lab1")
    assert (own.values.owner_policy, own.origins["owner_policy"]) == (
        OwnerPolicy.CONTINUE,
        f"node, nodes[lab1]: {path}:8",
    )


def test_what_a_program_sets_counts_as_said() -> None:
    config = ClusterConfig(resource_sharing=ResourceSharing(offer_expiry=9.0))
    assert lending.of_all(config, "grid") == Layer(Lending(offer_expiry=9.0), {"offer_expiry": "grid"})


def test_without_a_file_nothing_is_said() -> None:
    assert lending.of_agent(load(None, environment={}, here=Path("/nowhere")), "lab1") == Layer()


@pytest.mark.parametrize("name", LENDING)
def test_whatever_the_configuration_takes_can_be_sent_and_nothing_else(name: str) -> None:
    kind = _setting(name).kind
    ends = [kind.schema[end] for end in ("minimum", "maximum") if end in kind.schema]
    taken = [text for text in ("true", "0", "0.5", "1e9", "9e8d", "recall", *map(str, ends)) if _read(kind, text)]
    assert taken
    for text in taken:
        value = kind.read([text])
        sent = msgspec.msgpack.encode(Lending(**{name: value}))
        assert getattr(msgspec.msgpack.decode(sent, type=Lending), name) == value
    outside: tuple[object, ...] = (-1.0, -1, float("nan"), float("inf"), 1e300, 1 << 70, "x" * 2000, [])
    for wild in outside:
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({name: wild}, Lending)


def _setting(name: str) -> Setting:
    return SETTINGS[lending.GENERAL[name]] if name in lending.GENERAL else NODE_SETTINGS[lending.SINGLE[name]]


def _read(kind: object, text: str) -> bool:
    try:
        kind.read([text])  # type: ignore[attr-defined]
    except (BadValue, OverflowError):
        return False
    return True


def test_every_setting_is_used() -> None:
    others = {path for path in SETTINGS if path[0] not in ("preemption", "providers", "scaling")}  # taken as a whole
    unused = {path[-1] for path in others} - set(LENDING)
    for room in ("agent", "coordinator", "cli", "protocol", "distributed_grid/push", "distributed_grid/identity"):
        for file in (ROOT / room).rglob("*.py"):
            text = file.read_text()
            if any(name in text for name in unused):  # to parse all others as well takes ten times as long
                unused -= {node.attr for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)}
    assert not {path for path in others if path[-1] in unused}, "used by nothing"
