"""A log is decided again: the same, or where not, in words. Another policy is asked turn by turn, in the world as it
was."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgpack
import msgspec
import pytest

from distributed_grid.coordinator.core.commands import CancelAsked, Event, Heard, JobsSubmitted, NodeUp, Tick, Told
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.policy import DEFAULT, WEIGHTS, Policy
from distributed_grid.coordinator.eventlog.format import FORMAT, BadLog, Turn, files, read
from distributed_grid.coordinator.eventlog.replay import logs, replay
from distributed_grid.coordinator.eventlog.what_if import changed, compare, lines
from distributed_grid.coordinator.eventlog.write import EventLog
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.jobs import Cause, Outcome, Request
from distributed_grid.protocol.messages import Exited, Inventory, Stale, Started
from distributed_grid.protocol.nodes import NodeFacts, Sample
from distributed_grid.protocol.placement import Strategy
from distributed_grid.protocol.resources import Resources
from tests.coordinator.core.scene import facts, job, offer

Story = Sequence[tuple[float, Event]]


def same(story: Story) -> list[tuple[float, Event]]:
    """The same events once more: a ledger changes the jobs that it takes."""
    return [(now, msgspec.msgpack.decode(msgspec.msgpack.encode(event), type=Event)) for now, event in story]


def written(folder: Path, story: Story, policy: Policy = DEFAULT) -> Path:
    """The log of these events, each in a turn of its own."""

    async def write() -> None:
        log = EventLog(Ledger(7, policy=policy), folder, 8 << 20, "grid")
        for now, event in same(story):
            log.next_deadline()
            log.handle(event, now)
            log.settle(now)
        log.close()

    asyncio.run(write())
    return files(folder)[-1]


def came(of: NodeFacts, at: float = 0.0) -> list[tuple[float, Event]]:
    """A node with nothing on it offers all it has."""
    return [(at, NodeUp(of, f"s-{of.name}")), (at, Told(of.name, Inventory(()))), (at, Told(of.name, offer(of)))]


def asked(name: str, at: float, cpu: int = 1000, on: tuple[str, ...] = ()) -> tuple[float, Event]:
    return at, JobsSubmitted(1, (job(name, Request(Resources(cpu=cpu), nodes=on), at),))


def beats(node: str, start: float, end: float) -> list[tuple[float, Event]]:
    """A heartbeat every second."""
    return [(start + n, Heard(node, Sample(at=start + n))) for n in range(int(end - start))]


def in_order(*parts: Story) -> list[tuple[float, Event]]:
    return sorted((one for part in parts for one in part), key=lambda one: one[0])


def otherwise(path: Path, *pairs: str) -> list[str]:
    """What another policy would have decided, with the seconds."""
    return [f"{line.at:g} {line.text}" for line in lines(compare(path, pairs).differences)]


SILENT = in_order(
    came(facts("lab1", cores=2)),
    came(facts("lab2", cores=2)),
    [asked("j1", 1.0, on=("lab1",)), asked("j2", 1.0, on=("lab1",)), (2.0, Told("lab1", Started(allocation="j1.1")))],
    beats("lab2", 0.0, 90.0),
)
"""lab1 is never heard again after 2 s, and lost at 72."""


# --- by the same policy -----------------------------------------------------------------------------------------------


def test_all_is_decided_the_same_again_and_counted(tmp_path: Path) -> None:
    report = replay(written(tmp_path, SILENT))
    assert report.difference is None and (report.files, report.events, report.cut) == (1, len(SILENT), 0)
    assert (report.began, report.ended) == (0.0, 89.0) and report.decisions > 10


def test_a_policy_that_was_not_the_ordinary_one_is_in_the_log(tmp_path: Path) -> None:
    report = replay(written(tmp_path, SILENT, Policy(lost_after=20.0)))
    assert report.difference is None


def test_it_stops_where_it_is_told_to(tmp_path: Path) -> None:
    report = replay(written(tmp_path, SILENT), until=50.5)
    assert report.ended == 50.0


def test_the_story_of_a_job_is_told(tmp_path: Path) -> None:
    path = written(tmp_path, [*SILENT, (90.0, CancelAsked(1, ("j1", "j2")))])
    assert [f"{one.at:g} {one.what}" for one in replay(path, job="j1").story] == [
        "1 ann submitted j1",
        "1 take j1",
        "1 j1 is starting on lab1",
        "1 start j1.1 on lab1 with cores 0",
        "2 lab1 told started of j1.1",
        "2 j1 is running on lab1",
        "12 j1 is lost on lab1",
        "72 j1 has ended: node-lost",
        "72 tell lab1: stop j1.1",
        "90 the end of j1, j2 was asked for",
    ]


def test_the_first_turn_that_does_not_come_out_the_same_is_told_with_then_and_now(tmp_path: Path) -> None:
    path = written(tmp_path, SILENT)
    rewrite(path, lambda turn: [one if one[:2] != ["job", "j1"] else [*one[:3], "lab9", one[4]] for one in turn])
    found = replay(path).difference
    assert found is not None and found.at == 1.0
    assert found.events == ["ann submitted j1"]
    assert (found.then, found.now) == (["j1 is starting on lab9"], ["j1 is starting on lab1"])


def places(path: Path) -> list[int]:
    """Where the records of a log end."""
    stream = msgpack.Unpacker(path.open("rb"), strict_map_key=False)
    return [stream.tell() for _ in stream]


def rewrite(path: Path, change: object) -> None:
    """Have other decisions in the log."""
    values = list(msgpack.Unpacker(path.open("rb"), strict_map_key=False))
    for turns in values[2:]:
        for turn in turns:
            turn[2] = change(turn[2])  # type: ignore[operator]
    path.write_bytes(b"".join(msgpack.packb(value) for value in values))


def test_where_a_file_follows_another_the_whole_ledger_is_compared(tmp_path: Path) -> None:
    first = written(tmp_path, SILENT)
    second = written(tmp_path, SILENT[:1])
    values = list(msgpack.Unpacker(second.open("rb"), strict_map_key=False))
    values[0][5] = True  # as if nothing had happened in between
    second.write_bytes(b"".join(msgpack.packb(value) for value in values))
    found = replay(tmp_path).difference
    assert found is not None and found.file == str(first) and found.state == "now"


# --- logs that are not whole ------------------------------------------------------------------------------------------


def test_a_log_that_ends_anywhere_is_replayed_up_to_there(tmp_path: Path) -> None:
    path = written(tmp_path, SILENT)
    data = path.read_bytes()
    ends = places(path)
    start = ends[1]
    assert ends[-1] == len(data)
    for end in range(start, len(data), 97):
        path.write_bytes(data[:end])
        report = replay(path)
        assert report.difference is None
        assert report.cut == end - max(place for place in ends if place <= end)


@pytest.mark.parametrize("byte", [0xC1, 0xFF, 0x00])
def test_a_log_that_was_changed_is_told_by_record_and_never_a_traceback(tmp_path: Path, byte: int) -> None:
    path = written(tmp_path, SILENT)
    data = path.read_bytes()
    told = 0
    for at in range(0, len(data), 61):
        path.write_bytes(data[:at] + bytes([byte]) + data[at + 1 :])
        try:
            replay(path)
        except BadLog as error:
            told += 1
            assert str(path) in error.what and error.why
    assert told > 10


def test_the_record_that_cannot_be_read_is_numbered(tmp_path: Path) -> None:
    path = written(tmp_path, SILENT)
    values = list(msgpack.Unpacker(path.open("rb"), strict_map_key=False))
    values[3][5][1] = [["Nonsense"]]
    path.write_bytes(b"".join(msgpack.packb(value) for value in values))
    with pytest.raises(BadLog, match=f"record 4, which begins at byte {places(path)[2]}, cannot be read") as error:
        replay(path)
    assert "Nonsense" in error.value.why


def test_a_checkpoint_that_does_not_hold_together_is_told(tmp_path: Path) -> None:
    path = written(tmp_path, SILENT)
    values = list(msgpack.Unpacker(path.open("rb"), strict_map_key=False))
    values[1]["allocations"] = ["j9.1"]
    path.write_bytes(b"".join(msgpack.packb(value) for value in values))
    for replaying in (lambda: replay(path), lambda: compare(path, ["lost_after=30"])):
        with pytest.raises(BadLog, match="record 2, the ledger as it was, does not hold together"):
            replaying()


def test_a_newer_log_and_what_is_none_are_refused_in_words(tmp_path: Path) -> None:
    path = written(tmp_path, SILENT)
    values = list(msgpack.Unpacker(path.open("rb"), strict_map_key=False))
    values[0][1:3] = [FORMAT + 1, "9.9"]
    path.write_bytes(b"".join(msgpack.packb(value) for value in values))
    with pytest.raises(BadLog, match=f"has format {FORMAT + 1}, this grid reads format {FORMAT}") as error:
        replay(path)
    assert error.value.why == "it was written by version 9.9"
    for content in (b"", b"hello", msgpack.packb({"a": 1}), b"\x93"):
        path.write_bytes(content)
        with pytest.raises(BadLog, match="is no event log"):
            replay(path)
    with pytest.raises(BadLog, match="cannot be read"):
        replay(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadLog, match="there is no event log in"):
        logs(tmp_path / "empty")


@pytest.mark.parametrize("content", [b"", b"\x93", b"garbage"])
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_of_several_files_one_that_cannot_be_read_is_left_out_and_that_is_told(
    tmp_path: Path, content: bytes, place: str
) -> None:
    whole = written(tmp_path, SILENT).read_bytes()
    folder = tmp_path / "events"
    folder.mkdir()
    bad = {"first": 1, "middle": 2, "last": 3}[place]
    for number in (1, 2, 3):
        (folder / f"{number:06}.log").write_bytes(content if number == bad else whole)
    report = replay(folder)
    assert report.files == 2 and report.difference is None
    (told,) = report.skipped
    assert f"{bad:06}.log is no event log" in told
    compared = compare(folder, ["lost_after=30"])
    assert compared.report.skipped == report.skipped


def test_a_file_that_is_not_there_is_told_and_the_ledgers_around_it_are_not_compared(tmp_path: Path) -> None:
    path = written(tmp_path, SILENT)
    values = list(msgpack.Unpacker(path.open("rb"), strict_map_key=False))
    folder = tmp_path / "events"
    folder.mkdir()
    (folder / "000001.log").write_bytes(path.read_bytes())
    values[0][5] = True  # it follows the one that is gone
    (folder / "000004.log").write_bytes(b"".join(msgpack.packb(value) for value in values))
    report = replay(folder)
    assert report.files == 2 and report.difference is None
    assert report.skipped == ["000002.log to 000003.log: not there, so what happened between 000001 and 000004 is not"]


def test_where_no_file_can_be_read_that_is_an_error(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"{number:06}.log").touch()
    with pytest.raises(BadLog, match="is no event log"):
        replay(tmp_path)


# --- by another policy ------------------------------------------------------------------------------------------------


def test_less_patience_would_have_lost_the_node_earlier(tmp_path: Path) -> None:
    path = written(tmp_path, SILENT)
    assert otherwise(path, "lost_after=30") == ["42 lab1 would have been taken for lost 30s earlier, ending j1, j2"]
    assert otherwise(path, "lost_after=60") == []


def test_more_patience_would_not_have_lost_it_yet(tmp_path: Path) -> None:
    assert otherwise(written(tmp_path, SILENT), "lost_after=10m") == [
        "72 j1, j2 were ended as node-lost on lab1, and would not have been yet"
    ]


def test_a_node_that_came_back_in_time_would_have_been_lost(tmp_path: Path) -> None:
    story = in_order(SILENT, [(60.0, Heard("lab1", Sample(at=60.0)))], beats("lab1", 60.5, 89.5))
    assert otherwise(written(tmp_path, story), "lost_after=30") == [
        "42 lab1 would have been taken for lost, ending j1, j2; it never was"
    ]


def test_a_result_that_came_would_have_come_too_late(tmp_path: Path) -> None:
    over = Exited(allocation="j1.1", outcome=Outcome(cause=Cause.EXITED))
    story = in_order(SILENT, [(62.0, Told("lab1", over))], beats("lab1", 62.5, 89.5))
    assert otherwise(written(tmp_path, story), "lost_after=30")[0] == (
        "42 j1 would have been ended as node-lost on lab1 20s earlier, not ended as exited on lab1"
    )


def test_times_at_which_nothing_happened_are_looked_at_too(tmp_path: Path) -> None:
    """Not a heartbeat between 2 s and 71 s."""
    story = in_order(came(facts("lab1")), [asked("j1", 1.0), (2.0, Tick()), (71.0, Tick()), (75.0, Tick())])
    assert otherwise(written(tmp_path, story), "lost_after=30") == [
        "10 j1 would have been out of reach on lab1; it never was",
        "40 lab1 would have been taken for lost 31s earlier, ending j1",
    ]


def test_other_weights_would_have_taken_another_node(tmp_path: Path) -> None:
    """lab1 is the tighter fit, lab2 is what its owner gives more priority."""
    story = in_order(
        came(facts("lab1", cores=2)), came(facts("lab2", cores=4, priority=1.2)), [asked("j1", 1.0), asked("j2", 2.0)]
    )
    path = written(tmp_path, story)
    assert otherwise(path) == []
    assert otherwise(path, "weight.fit=0", "weight.priority=0.9") == [
        "1 j1 was granted on lab1, would go to lab2",
        "2 j2 was granted on lab1, would go to lab2",
    ]
    both = compare(path, ["weight.fit=0", "weight.priority=0.9"], job="j2")
    assert both.counts == {"elsewhere": 1} and [one.job for one in both.differences] == ["j2"]


def test_a_device_that_is_left_alone_for_less_would_have_been_tried_earlier(tmp_path: Path) -> None:
    stale = Told("lab1", Stale(allocation="j1.1", reason="busy", device=""))
    ticks = [(float(second), Tick()) for second in range(3, 12)]
    path = written(tmp_path, in_order(came(facts("lab1")), [asked("j1", 1.0), (2.0, stale)], ticks))
    assert otherwise(path, "decline_first=2") == ["4 j1 would have been granted on lab1 3.0s earlier"]
    assert otherwise(path, "decline_first=20s", "decline_most=20s") == [
        "7 j1 was granted on lab1, and would not have been yet"
    ]


def test_each_difference_is_told_once_however_often_it_is_met(tmp_path: Path) -> None:
    compared = compare(written(tmp_path, SILENT), ["lost_after=5"])
    assert compared.counts == {"earlier": 2}


def test_what_cannot_be_set_is_refused_with_what_can() -> None:
    with pytest.raises(BadValue, match="there is no setting 'lost_aftr'") as error:
        changed(DEFAULT, ["lost_aftr=30"])
    assert error.value.hint == "did you mean lost_after?" and "suspect_after" in error.value.why
    for wrong in ("lost_after", "lost_after=soon", "candidates=0", "candidates=2.5", "weight.fit=-1", "weight.fit=nan"):
        with pytest.raises(BadValue):
            changed(DEFAULT, [wrong])
    with pytest.raises(BadValue, match="all weights are zero"):
        changed(DEFAULT, [f"weight.{name}=0" for name in ("fit", "gpus_spared", "quiet", "preferred", "priority")])


def test_weights_are_made_to_be_one_together() -> None:
    policy = changed(DEFAULT, ["weight.fit=1.4"])
    packed = changed(DEFAULT, ["strategy=pack"])
    assert packed.strategy is Strategy.PACK and packed.weights == WEIGHTS[Strategy.PACK]
    assert policy.weights.fit == pytest.approx(0.7) and policy.weights.gpus_spared == pytest.approx(0.1)
    assert changed(DEFAULT, ["candidates=9", "decline_most=1m"]) == Policy(candidates=9, decline_most=60.0)


def test_a_log_is_read_as_it_was_written(tmp_path: Path) -> None:
    turns = [record for record in read(written(tmp_path, SILENT)) if isinstance(record, Turn)]
    assert [(turn.now, event) for turn in turns for event in turn.events][3:] == list(SILENT)[3:]
