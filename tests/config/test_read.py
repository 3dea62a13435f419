"""A configuration file is read with all its names, and every error has its place."""

from pathlib import Path

import pytest

from distributed_grid.config import read as reading
from distributed_grid.config.settings import (
    ConfigError,
    load,
)
from tests.config.conftest import Write, problems, read


def test_both_places_of_resource_sharing_may_say_the_same_but_not_contradict(written: Write) -> None:
    both = "resource_sharing: {check_interval: 60}\nexecution: {resource_sharing: {check_interval: 1m}}\n"
    config = read(written(both))
    assert config.resource_sharing.check_interval == 60.0
    assert "same value" in config.warnings[0]
    assert problems(written(both.replace("1m", "2m"))) == [
        "F:2: execution.resource_sharing.check_interval says another value as F:1, for resource_sharing.check_interval"
        " (keep one of the two)"
    ]


def test_other_names_of_a_setting_are_accepted_and_merged(written: Write) -> None:
    config = read(
        written("resource_sharing: {rebalance_interval: 1h30m, monitoring_interval: 5}\ncluster: {name: lab}")
    )
    assert config.resource_sharing.rebalance_interval_seconds == 5400.0
    assert config.resource_sharing.monitoring_interval_seconds == 5.0
    assert config.name == "lab"
    assert read(written("cluster: lab")).name == "lab"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("a: [1, 2", "F:1:9"),
        ("resource_sharing:\n  enabled: true\n bad", "F:3"),
        ("a: b: c", "F:1:5"),
        ("x: \x07", "F"),
        ("- 1\n- 2", "F:1"),
        ("just words", "F:1"),
        ("a: !!python/object/apply:os.system [ls]", "F:1"),
        ("a: *b", "F:1"),
        ("a: " + "[" * 5000, "F"),
    ],
)
def test_what_is_no_yaml_is_one_error_with_its_place(written: Write, text: str, where: str) -> None:
    (one,) = problems(written(text))
    assert one.startswith(where)


def test_a_missing_file_and_a_directory_are_clear_errors(tmp_path: Path) -> None:
    assert problems(tmp_path / "none.yaml") == [
        "F: cannot be read: No such file or directory (write one with: grid config init)"
    ]
    assert "Is a directory" in problems(tmp_path)[0]


def test_a_wrong_variable_is_an_error_that_names_it() -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, environment={"GRID_COORDINATOR__PROT": "1", "GRID_AGENT__VIRTUAL": "perhaps"}, here=Path("/none"))
    assert [str(problem) for problem in caught.value.problems] == [
        "env GRID_AGENT__VIRTUAL: agent.virtual: 'perhaps' is not true or false",
        "env GRID_COORDINATOR__PROT: there is no setting coordinator.prot (did you mean 'coordinator.port'?)",
    ]


def test_a_key_in_the_wrong_section_is_told_where_it_stands(written: Write) -> None:
    text = "resource_sharing:\n  cpu_percent_max: 90\n  offer_after: 0\n"
    assert problems(written(text)) == [
        "F:2: unknown key 'cpu_percent_max' in resource_sharing (it is resource_sharing.thresholds.cpu_percent_max)",
        "F:3: unknown key 'offer_after' in resource_sharing (it is agent.offer_after)",
    ]


def test_a_section_inside_of_another_is_told_where_it_stands(written: Write) -> None:
    text = "coordinator:\n  rights: {users: {ann: {cores: 1}}}\nagent:\n  thresholds: {cpu_percent_max: 1}\n"
    assert problems(written(text)) == [
        "F:2: unknown key 'rights' in coordinator (it is not in any section: write it at the beginning of a line)",
        "F:4: unknown key 'thresholds' in agent (it is resource_sharing.thresholds)",
    ]
    text = "nodes: [{name: a, resource_sharing: {owner: ann}}]"
    assert problems(written(text)) == [
        "F:1: unknown key 'owner' in nodes[0].resource_sharing (it is not in any section: write it beside 'name')"
    ]


RIGHTS = """
rights:
  default: {highest_priority: normal, cores: 64}
  users:
    ann: {highest_priority: critical, memory_gb: 0.5, core_hours_per_day: 10}
    bob: {cores: unlimited, exclusive_boosts: no}
    eve:
  groups:
    lab: {members: [ann, bob], gpus: 8, jobs_waiting: -1}
"""


def test_rights_are_read_by_the_names_of_users_and_groups(written: Write) -> None:
    rights = read(written(RIGHTS)).rights
    assert (rights.default.highest_priority, rights.default.cores, rights.default.gpus) == ("medium", 64.0, None)
    ann, bob, eve = rights.users
    assert (ann.name, ann.highest_priority, ann.memory_gb, ann.core_hours_per_day) == ("ann", "urgent", 0.5, 10.0)
    assert (bob.cores, bob.exclusive_boosts, bob.highest_priority) == (-1.0, False, None) and eve.name == "eve"
    (lab,) = rights.groups
    assert (lab.name, lab.members, lab.gpus, lab.jobs_waiting) == ("lab", ("ann", "bob"), 8.0, -1)


def test_rights_that_are_set_are_shown_with_their_places(written: Write) -> None:
    path = written(RIGHTS)
    rows = {
        row.name: (row.value, row.origin) for row in read(path, environment={"GRID_RIGHTS__DEFAULT__GPUS": "2"}).rows()
    }
    assert rows["rights.users.ann.memory_gb"] == (0.5, f"{path}:5")
    assert rows["rights.default.gpus"] == (2.0, "env GRID_RIGHTS__DEFAULT__GPUS")
    assert "rights.users.ann.cores" not in rows


def test_without_a_setting_clients_go_up_to_high(written: Write) -> None:
    assert read(None, here=Path("/none")).rights.default.highest_priority == "high"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rights: {users: {ann: {core: 1}}}", "F:1: unknown key 'core' in rights.users.ann (did you mean 'cores'?)"),
        ("rights: {users: [ann]}", "F:1: rights.users must hold names, each with settings"),
        ("rights:\n  groups:\n    lab: {}\n    lab: {}", "F:4: rights.groups has lab twice"),
        (
            "rights: {default: {cores: many}}",
            "F:1: rights.default.cores: 'many' is not a number from 0 up, or unlimited",
        ),
        ("rights: {default: {highest_priority: top}}", "F:1: rights.default.highest_priority: unknown priority 'top'"),
        ("rights: {users: {ann: {name: bob}}}", "F:1: unknown key 'name' in rights.users.ann"),
    ],
)
def test_a_mistake_in_rights_has_its_place(written: Write, text: str, said: str) -> None:
    (found,) = problems(written(text))
    assert found.startswith(said.removesuffix(")")), found


def test_of_a_file_without_end_no_more_is_read_than_one_may_have(
    endless: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "FILE_BYTES", 1000)
    assert problems(endless) == ["F: has more than 1000 bytes"]
