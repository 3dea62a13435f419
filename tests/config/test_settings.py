"""One configuration: the seeds' files are read as they are, every error is found with its line, every value knows
where it came from."""

import traceback
from pathlib import Path

import pytest

from distributed_grid.agent.core.spare.thresholds import Limits
from distributed_grid.agent.main import settings_for
from distributed_grid.config.settings import (
    ClusterConfig,
    ConfigError,
    OffloadingMode,
    PolicyName,
    SharingDisabled,
)
from distributed_grid.identity.member import Member, contexts, use_context, write_member
from distributed_grid.protocol.identity import Role
from distributed_grid.protocol.resources import GIB, MIB
from tests.config.conftest import Write, problems, read


def limits_for(config: ClusterConfig, node: str) -> Limits:
    """Those of this node's agent."""
    return settings_for(config, node, Path("/nowhere")).limits


SEED_000 = """
resource_sharing:
  enabled: true
  policy: "balanced"  # Options: balanced, aggressive, conservative
  rebalance_interval: 30  # seconds
  pressure_thresholds:
    cpu:
      high: 0.8
      low: 0.3
    memory:
      high: 0.7
      low: 0.3
    gpu:
      high: 0.8
      low: 0.3
"""
SEED_001 = """
execution:
  resource_sharing:
    enabled: true
    mode: dynamic_balancing  # offload_only, share_and_offload, dynamic_balancing
    policy: predictive  # conservative, balanced, aggressive, predictive
    rebalance_interval_seconds: 30
    monitoring_interval_seconds: 10
    thresholds:
      cpu_pressure_high: 0.8
      cpu_pressure_low: 0.3
      memory_pressure_high: 0.8
      memory_pressure_low: 0.3
      gpu_pressure_high: 0.8
      gpu_pressure_low: 0.3
      excess_threshold: 0.25
nodes:
- name: gpu-master
  resource_sharing:
    can_share: true
    max_share_cpu: 4
    max_share_memory_gb: 16
    max_share_gpu: 0
    priority: 1.0
"""
SEED_002 = """
resource_sharing:
  enabled: true
  check_interval: 60  # seconds
  offer_expiry: 300   # seconds
  max_offers_per_node: 5
  thresholds:
    gpu_utilization_max: 20.0    # GPU must be below 20% utilization
    gpu_memory_min_mb: 1024.0    # At least 1GB free GPU memory
    memory_percent_max: 50.0     # Memory must be below 50% used
    memory_min_gb: 2.0           # At least 2GB free memory
    cpu_percent_max: 30.0        # CPU must be below 30% utilization
    cpu_min_cores: 1.0           # At least 1 CPU core free
"""


# --- the seeds' files -------------------------------------------------------------------------------------------------


def test_the_boost_guides_file_is_read(written: Write) -> None:
    sharing = read(written(SEED_000)).resource_sharing
    assert (sharing.policy, sharing.rebalance_interval_seconds) == (PolicyName.BALANCED, 30.0)
    assert (sharing.thresholds.cpu_pressure_high, sharing.thresholds.memory_pressure_high) == (0.8, 0.7)


def test_the_intelligent_sharing_documents_file_is_read(written: Write) -> None:
    config = read(written(SEED_001))
    assert config.resource_sharing.mode is OffloadingMode.DYNAMIC_BALANCING
    assert config.resource_sharing.policy is PolicyName.PREDICTIVE
    assert config.resource_sharing.monitoring_interval_seconds == 10.0
    assert config.resource_sharing.thresholds.excess_threshold == 0.25
    limits = limits_for(config, "gpu-master")
    assert (limits.max_share_cpu, limits.max_share_memory, limits.max_share_gpu) == (4000, 16 * GIB, 0)
    assert limits_for(config, "another").max_share_cpu is None


def test_the_sharing_guides_file_is_read_by_its_own_call(written: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRID_COORDINATOR", raising=False)
    limits = limits_for(ClusterConfig.from_yaml(str(written(SEED_002, "config/cluster_config.yaml"))), "any")
    assert (limits.gpu_utilization_max, limits.gpu_memory_min) == (20.0, 1024 * MIB)
    assert (limits.memory_percent_max, limits.memory_min) == (50.0, 2 * GIB)
    assert (limits.cpu_percent_max, limits.cpu_min_cores) == (30.0, 1000)
    assert (limits.offer_expiry, limits.check_interval, limits.max_offers_per_node) == (300.0, 60.0, 5)


def test_without_a_file_the_defaults_are_those_of_the_seeds_and_the_issue() -> None:
    config = read(None, here=Path("/nowhere"))
    assert config.resource_sharing.enabled
    assert config.resource_sharing.monitoring_interval_seconds == 2.0
    assert config.resource_sharing.offer_expiry == 300.0
    assert config.coordinator_url() == "ws://127.0.0.1:7433"
    assert limits_for(config, "any").cpu_percent_max == 30.0


def test_a_coordinator_without_a_port_is_found_by_its_socket(written: Write) -> None:
    config = read(written("coordinator: {host: none, state_dir: /var/lib/grid/x}"))
    assert config.coordinator_url() == config.client_url() == "unix:///var/lib/grid/x/coordinator.sock"


@pytest.mark.parametrize(
    ("host", "name"), [("lab1.example.org", "lab1"), ("", "node"), ("(none)", "node"), ("a b", "node"), ("-x", "node")]
)
def test_a_node_is_called_as_its_host_where_a_node_can_be(
    written: Write, monkeypatch: pytest.MonkeyPatch, host: str, name: str
) -> None:
    monkeypatch.setattr("platform.node", lambda: host)
    assert read(written("")).node_name() == name
    assert read(written("agent: {name: lab2}")).node_name() == "lab2"


@pytest.fixture
def joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Somebody who has joined two grids, and uses the first; the address of the second."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name, url in (("one", "wss://m:7433"), ("two", "wss://localhost:7544")):
        (contexts() / name).mkdir(parents=True)
        write_member(contexts() / name, Member(url, "g", Role.CLIENT, "ann"))
    use_context("one")
    return "wss://localhost:7544"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "'::'"])  # noqa: S104
def test_where_it_listens_is_reached_by_tls_where_its_grid_was_joined(written: Write, joined: str, host: str) -> None:
    config = read(written(f"coordinator: {{host: {host}, port: 7544, state_dir: /none}}"))
    assert config.client_url() == joined
    assert config.agent_url(Member(joined, "g", Role.AGENT, "n1")) == joined
    assert config.agent_url(None).startswith("ws://")


def test_another_place_than_where_one_has_joined_is_taken_as_it_is_said(written: Write, joined: str) -> None:
    assert (
        read(written("coordinator: {host: 192.0.2.1, port: 7544, state_dir: /none}")).client_url()
        == "ws://192.0.2.1:7544"
    )
    assert read(written("coordinator: {port: 7545, state_dir: /none}")).client_url() == "ws://127.0.0.1:7545"
    said = read(written("coordinator: {url: 'ws://127.0.0.1:7544'}"))
    assert said.client_url() == said.agent_url(Member(joined, "g", Role.AGENT, "n1")) == "ws://127.0.0.1:7544"
    assert read(written("name: x")).client_url() == "wss://m:7433"


# --- what is wrong ----------------------------------------------------------------------------------------------------


def test_all_errors_come_at_once_each_with_its_line_and_a_suggestion(written: Write) -> None:
    text = """\
resource_sharing:
  treshold: {}
  policy: balancd
  offer_expiry: soon
  thresholds:
    cpu_percent_max: 130
    memory_min_gb: -1
    gpu_utilization_max: .nan
coordinator:
  port: 70000
  hots: x
nodes:
- name: a
- name: a
- resource_sharing: {can_share: maybe}
agent: [1]
"""
    assert problems(written(text)) == [
        "F:2: unknown key 'treshold' in resource_sharing (did you mean 'thresholds'?)",
        "F:3: resource_sharing.policy: 'balancd' is not one of conservative, balanced, aggressive, predictive"
        " (did you mean 'balanced'?)",
        "F:4: resource_sharing.offer_expiry: 'soon' is not a duration (give seconds, or 30m, 1h30m, 2d, HH:MM:SS)",
        "F:6: resource_sharing.thresholds.cpu_percent_max: '130' is not a percentage from 0 to 100",
        "F:7: resource_sharing.thresholds.memory_min_gb: '-1' is not a number from 0 up",
        "F:8: resource_sharing.thresholds.gpu_utilization_max: '.nan' is not a percentage from 0 to 100",
        "F:10: coordinator.port: '70000' is not a port from 0 to 65535",
        "F:11: unknown key 'hots' in coordinator (did you mean 'host'?)",
        "F:15: nodes[2].resource_sharing.can_share: 'maybe' is not true or false",
        "F:15: nodes[2] has no name (add `name: NODE`)",
        "F:16: agent must hold settings, as `name: value`",
        "F:14: the node 'a' is listed twice, first at F:13",
    ]


@pytest.mark.parametrize("name", ['""', '"a\\nb"', "x" * 65])
def test_an_entry_for_a_node_that_there_cannot_be_is_refused(written: Write, name: str) -> None:
    (said,) = problems(written(f"nodes:\n- name: {name}\n  resource_sharing: {{can_share: false}}\n"))
    assert said.startswith("F:2: no node can be called ") and said.endswith("(give 1 to 64 printable characters)")


def test_the_error_for_people_has_no_traceback_and_all_lines(written: Write) -> None:
    with pytest.raises(ConfigError) as caught:
        read(written("nam: x\nport: 1\n"))
    lines = caught.value.lines()
    assert [line.partition(":")[0] for line in lines] == ["error", "  try", "error", "  try"]
    assert "did you mean 'name'?" in lines[1]


def test_a_traceback_tells_each_problem_once(written: Write) -> None:
    with pytest.raises(ConfigError) as caught:
        read(written("nam: x\nport: 1\n"))
    shown = "".join(traceback.format_exception(caught.value)).splitlines()[-1]
    assert shown.endswith(str(caught.value)) and shown.count("did you mean 'name'?") == 1 and "'port'" in shown


def test_a_key_twice_and_marks_that_are_too_close_are_errors(written: Write) -> None:
    assert problems(written("name: a\nname: b\n")) == ["F:2: name appears twice, first at F:1"]
    labels = "agent:\n  labels:\n    rack: 1\n    rack: 2\n"
    assert problems(written(labels)) == ["F:4: agent.labels.rack appears twice, first at F:3"]
    low = "resource_sharing:\n  pressure_thresholds:\n    gpu: {low: 0.9, high: 0.5}\n"
    assert problems(written(low)) == ["F:3: gpu_pressure_low (0.9) is not 0.2 or more below high (0.5)"]


def test_an_url_that_is_none_is_refused_with_what_was_meant(written: Write) -> None:
    assert problems(written("coordinator: {url: 'gpu-master:7433'}")) == [
        "F:1: 'gpu-master:7433' is not a coordinator's address (ws://gpu-master:7433)"
    ]


@pytest.mark.parametrize(
    "url",
    [
        "ws://",
        "wss://:7433",
        "ws://m:99999",
        "ws://m:0",
        "ws://[::1",
        "unix://",
        "http://m",
        "ws://a b:1",
        "ws://ann@m:1",
        "ws://ann:pw@m:1",
    ],
)
def test_an_url_that_no_program_could_connect_to_is_refused(written: Write, url: str) -> None:
    (problem,) = problems(written(f"coordinator: {{url: '{url}'}}"))
    assert "is not a coordinator's address" in problem


@pytest.mark.parametrize("url", ["ws://m:1", "wss://[::1]:7433", "wss://m", "unix:///run/x.sock", "~/x.sock"])
def test_an_url_that_one_can_connect_to_is_good(written: Write, url: str) -> None:
    assert read(written(f"coordinator: {{url: '{url}'}}")).coordinator.url == url


def test_nodes_are_to_be_heard_before_they_are_suspect(written: Write) -> None:
    assert problems(written("coordinator: {heartbeat: 5s}")) == [
        "F:1: 5 s is too long: a node that is silent for 6 s gets no new jobs (3 s or less)"
    ]
    assert read(written("coordinator: {heartbeat: 3s}")).coordinator.heartbeat == 3.0


def test_offers_that_expire_before_the_next_check_give_a_warning_only(written: Write) -> None:
    (warning,) = read(written("resource_sharing: {offer_expiry: 30}")).warnings
    assert "check_interval" in warning


def test_switched_off_means_nothing_lent_and_the_seeds_words(written: Write) -> None:
    config = read(path := written("resource_sharing:\n  enabled: false\n"))
    assert not limits_for(config, "any").can_share
    with pytest.raises(SharingDisabled, match="Resource sharing not enabled") as caught:
        config.require_sharing()
    assert f"{path}:2" in caught.value.why


# --- where values come from -------------------------------------------------------------------------------------------


def test_flags_win_over_the_environment_over_the_file_over_defaults(written: Write) -> None:
    path = written("coordinator: {port: 1, host: a}\nresource_sharing: {check_interval: 5}\n")
    environment = {"GRID_COORDINATOR__PORT": "2", "GRID_RESOURCE_SHARING__CHECK_INTERVAL": "1m", "GRID_OUTPUT": "json"}
    config = read(path, environment=environment, flags={"coordinator.port": "3"})
    assert config.coordinator.port == 3
    origins = {row.name: row.origin for row in config.rows()}
    assert origins["coordinator.port"] == "flag --port"
    assert origins["resource_sharing.check_interval"] == "env GRID_RESOURCE_SHARING__CHECK_INTERVAL"
    assert origins["coordinator.host"] == f"{path}:1"
    assert origins["agent.offer_after"] == "default"


def test_the_coordinators_address_has_a_variable_of_its_own(written: Write) -> None:
    config = read(written("coordinator: {url: 'ws://a:1'}"), environment={"GRID_COORDINATOR": "ws://b:2"})
    assert config.coordinator_url() == "ws://b:2"


# --- the schema for people and machines -------------------------------------------------------------------------------


def test_an_agent_takes_the_limits_as_they_are_and_has_the_same_defaults() -> None:
    assert limits_for(read(None, here=Path("/none")), "any") == Limits()
