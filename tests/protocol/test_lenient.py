"""Records of versions without bounds are read, with what lies outside moved to the bound."""

import msgspec
import pytest

from distributed_grid.coordinator.core.model import Allocation, Job
from distributed_grid.protocol import lenient
from distributed_grid.protocol.jobs import JobView, Outcome, State
from distributed_grid.protocol.nodes import NodeFacts, Sample
from distributed_grid.protocol.resources import Resources
from tests.protocol.samples import FACTS, GRANT, REQUEST, SPEC, VIEW


def old(thing: object, **changed: object) -> bytes:
    plain = msgspec.to_builtins(thing, builtin_types=(bytes,))
    return msgspec.msgpack.encode(plain | changed)


def test_a_sound_record_is_read_as_it_is() -> None:
    assert lenient.reader(NodeFacts)(msgspec.msgpack.encode(FACTS)) == FACTS
    assert lenient.reader(JobView)(msgspec.msgpack.encode(VIEW)) == VIEW


def test_a_moment_of_no_calendar_is_moved_into_its_bounds() -> None:
    job = Job(id="j-a", key="k", user="ann", spec=SPEC, request=REQUEST, submitted=1.0)
    read = lenient.reader(Job)(old(job, begin=1e300, tries=3))
    assert read.tries == 3 and read.spec == SPEC
    view = lenient.reader(JobView)(old(VIEW, begin=1e300, submitted=float("nan")))
    assert (view.begin, view.submitted, view.grant) == (1e15, 0.0, GRANT)


def test_what_lies_deep_inside_is_moved_too() -> None:
    facts = lenient.reader(NodeFacts)(old(FACTS, lendable={"cpu": 2**64 - 1, "memory": -5}, cores=[0, 2**40]))
    assert facts.lendable == Resources(cpu=1 << 60)
    assert facts.cores == (0, (1 << 20) - 1)
    held = Allocation(id="j-a.1", job="j-a", node="n1", grant=GRANT, state=State.RUNNING, granted=1.0)
    read = lenient.reader(Allocation)(old(held, outcome={"cause": "exited", "seconds": 1e300}))
    assert read.outcome == Outcome(cause=read.outcome.cause, seconds=1e15) if read.outcome else False
    sample = lenient.reader(Sample)(old(Sample(at=1.0), cores={"3": 1} and {3: 2**40}))
    assert sample.cores == {3: (1 << 31) - 1}


def test_what_is_no_such_record_is_an_error() -> None:
    with pytest.raises(msgspec.DecodeError):
        lenient.reader(NodeFacts)(msgspec.msgpack.encode({"name": 5}))
    with pytest.raises(msgspec.DecodeError):
        lenient.reader(NodeFacts)(b"\xc1")
