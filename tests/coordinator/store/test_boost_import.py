"""The file in which boosts were kept before there was a coordinator: read once, never deleted, and whatever is wrong
with it keeps nobody from starting."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from distributed_grid.coordinator.core.model import Job
from distributed_grid.coordinator.store.boost_import import ResourceBoostPersistence, places
from distributed_grid.coordinator.store.store import Store
from distributed_grid.protocol.jobs import Cause, Priority, State
from distributed_grid.protocol.resources import GIB, ResourceType

NOW = 1_800_000_000.0
OLD = {
    "boost_id": "5f2c",
    "source_node": "gpu2",
    "target_node": "gpu-master",
    "resource_type": "memory",
    "amount": 4.0,
    "priority": "high",
    "allocated_at": NOW - 600,
    "expires_at": NOW + 3000,
    "is_active": True,
}


class Scene:
    """A file of old boosts, a store, and what the log said."""

    def __init__(self, place: Path) -> None:
        self.folder = place / "home" / ".distributed_grid"
        self.folder.mkdir(parents=True)
        self.file = self.folder / "resource_boosts.json"
        self.store = Store(place / "grid.db")

    def write(self, content: Any) -> None:
        self.file.write_text(content if isinstance(content, str) else json.dumps(content))

    def import_(self, now: float = NOW) -> list[Any]:
        with capture_logs() as said:
            ResourceBoostPersistence(self.file).import_into(self.store, now)
        return [one for one in said if one["log_level"] == "warning"]

    def past(self) -> list[Job]:
        return self.store.list_ended(100)

    def files(self) -> list[str]:
        return sorted(os.listdir(self.folder))


@pytest.fixture
def scene(tmp_path: Path) -> Any:
    structlog.reset_defaults()
    made = Scene(tmp_path)
    yield made
    made.store.close()


def test_one_that_was_active_becomes_history_that_says_how_it_is_requested_again(scene: Scene) -> None:
    scene.write([OLD])
    assert scene.import_() == []
    (job,) = scene.past()
    assert job.state is State.ENDED and job.node == "gpu2" and job.request.priority is Priority.HIGH
    boost = job.spec.boost
    assert boost is not None
    assert (boost.target, boost.kind, boost.amount) == ("gpu-master", ResourceType.MEMORY, 4 * GIB)
    assert (job.started, job.spec.time_limit) == (NOW - 600, 3600.0)
    assert job.outcome is not None and job.outcome.cause is Cause.NOT_JOINED
    assert job.outcome.text == (
        "imported; the old way only reserved capacity: "
        "grid boost request gpu-master memory 4 --priority high --duration 3600"
    )
    assert scene.files() == ["resource_boosts.json.imported"]
    assert scene.store.load().jobs == [], "nothing of it is live"


def test_expired_and_released_ones_are_history_as_well(scene: Scene) -> None:
    expired = OLD | {"boost_id": "a", "expires_at": NOW - 1}
    released = OLD | {"boost_id": "b", "is_active": False}
    scene.write({"boosts": [expired, released]})
    assert scene.import_() == []
    told = {job.outcome.cause: job.outcome.text for job in scene.past() if job.outcome is not None}
    assert told == {Cause.TIME_LIMIT: "imported; it had expired", Cause.CANCELLED: "imported; it had ended"}


@pytest.mark.parametrize("shape", [lambda one: {"boosts": {"5f2c": one}}, lambda one: {"5f2c": one}, lambda one: [one]])
def test_lists_and_mappings_words_and_iso_times_are_all_read(scene: Scene, shape: Any) -> None:
    scene.write(
        shape(
            OLD
            | {
                "resource_type": "ResourceType.CPU",
                "priority": "HIGH",
                "allocated_at": "2027-01-15T07:50:00+00:00",
                "expires_at": "2027-01-15T08:50:00+00:00",
                "unknown": {},
            }
        )
    )
    assert scene.import_() == []
    (job,) = scene.past()
    assert (job.started, job.started + job.spec.time_limit) == (NOW - 600, NOW + 3000)
    assert job.id.startswith("j-") and len(job.id) == 14


def test_a_crash_between_the_steps_imports_nothing_twice(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.write([OLD, OLD | {"boost_id": "b"}])
    with monkeypatch.context() as crashing:
        crashing.setattr(os, "rename", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            scene.import_()
    assert scene.files() == ["resource_boosts.json"] and len(scene.past()) == 2
    assert scene.import_(NOW + 60) == []
    assert len(scene.past()) == 2 and scene.files() == ["resource_boosts.json.imported"]


def test_no_file_is_ever_overwritten(scene: Scene) -> None:
    for number in range(3):
        scene.write([OLD | {"boost_id": str(number)}])
        scene.import_()
    assert scene.files() == [
        "resource_boosts.json.imported",
        "resource_boosts.json.imported-2",
        "resource_boosts.json.imported-3",
    ]
    for _ in range(2):
        scene.write("no json")
        scene.import_()
    assert [name for name in scene.files() if "corrupt" in name] == [
        "resource_boosts.json.corrupt-20270115T080000Z",
        "resource_boosts.json.corrupt-20270115T080000Z-2",
    ]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ('[{"boost_id": "5f2c", "amo', "it is not JSON"),
        ("", "it is not JSON"),
        ("\0" * 100, "it is not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('"text"', "it holds no boosts"),
        ("null", "it holds no boosts"),
        ('{"version": 3, "containers": [1]}', "something else than boosts"),
        ('{"boosts": [1, 2]}', "something else than boosts"),
        ("9" * 10_000, "it is not JSON"),
        ([OLD | {"boost_id": str(number)} for number in range(10_001)], "10000 are the most"),
        (" " * (17 << 20), "more than 16 MiB"),
    ],
)
def test_what_is_no_list_of_boosts_is_named_and_kept_aside(scene: Scene, content: Any, why: str) -> None:
    scene.write(content)
    (said,) = scene.import_()
    assert said["event"] == "Persistence file corrupted" and why in said["why"]
    assert said["file"] == str(scene.file) and "grid boost request" in said["hint"]
    (name,) = scene.files()
    assert name == "resource_boosts.json.corrupt-20270115T080000Z" and said["kept"].endswith(name)
    assert scene.past() == [] and scene.import_() == [], "it is told once"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("amount", "four"),
        ("amount", -1),
        ("amount", True),
        ("amount", None),
        ("amount", 1e308),
        ("amount", float("nan")),
        ("amount", 10**400),
        ("resource_type", "disk"),
        ("resource_type", ["cpu"]),
        ("target_node", 7),
        ("target_node", ""),
        ("target_node", "a\x1b[2J"),
        ("target_node", "n" * 200),
        ("source_node", {"a": 1}),
        ("priority", "soon"),
        ("allocated_at", "yesterday"),
        ("allocated_at", 1e300),
        ("allocated_at", None),
        ("expires_at", [1]),
        ("is_active", "yes"),
    ],
)
def test_an_entry_that_is_wrong_is_left_out_and_named_and_the_others_are_there(
    scene: Scene, field: str, value: Any
) -> None:
    scene.write([OLD | {field: value, "boost_id": "wrong"}, OLD, 5])
    said = scene.import_()
    assert [one["event"] for one in said] == ["an old boost was left out"] * 2
    assert "'wrong'" in said[0]["why"] and (field in said[0]["why"] or "unknown priority" in said[0]["why"])
    assert len(scene.past()) == 1 and scene.files() == ["resource_boosts.json.imported"]


def test_strings_that_no_encoding_has_do_no_harm(scene: Scene) -> None:
    scene.write('[{"boost_id": "\\ud800", "target_node": "a", "resource_type": "cpu", "amount": 1, "allocated_at": 5}]')
    assert scene.import_() == [] and len(scene.past()) == 1


def test_what_is_no_file_is_left_alone_and_never_waited_for(scene: Scene) -> None:
    os.mkfifo(scene.file)
    (said,) = scene.import_()
    assert (said["event"], said["why"]) == ("old boosts cannot be read", "it is no file")
    scene.file.unlink()
    scene.file.mkdir()
    assert len(scene.import_()) == 1 and scene.files() == ["resource_boosts.json"]


def test_where_the_file_cannot_be_renamed_it_is_read_again_and_that_is_said(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "rename", denied)
    scene.write([OLD])
    for _ in range(2):
        (said,) = scene.import_()
        assert said["event"] == "the file of old boosts cannot be renamed" and said["why"] == "Permission denied"
        assert "move it away" in said["hint"] and len(scene.past()) == 1
    scene.write("no json")
    assert [one["event"] for one in scene.import_()] == [
        "the file of old boosts cannot be renamed",
        "Persistence file corrupted",
    ]


def test_without_a_file_nothing_is_said_or_made(scene: Scene) -> None:
    assert scene.import_() == [] and scene.files() == []


def test_it_is_looked_for_at_home_and_where_a_service_can_be_given_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    state = tmp_path / "state"
    assert places(state) == (
        tmp_path / ".distributed_grid" / "resource_boosts.json",
        state / "resource_boosts.json",
    )
