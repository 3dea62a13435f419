"""Amounts: whole units inside, sensible numbers from people, and a clear refusal of everything else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.resources import (
    GIB,
    GpuShare,
    Grant,
    Resources,
    ResourceType,
    format_bytes,
    parse_amount,
    parse_cpu,
    parse_gpu,
    parse_memory,
)

amounts = st.builds(Resources, cpu=st.integers(0, 10**6), memory=st.integers(0, 2**50), gpu=st.integers(0, 10**5))


@given(amounts, amounts)
def test_what_is_added_can_be_taken_off_again(one: Resources, other: Resources) -> None:
    assert one + other - other == one
    assert one.fits(one + other)


def test_an_amount_is_never_negative() -> None:
    with pytest.raises(ValueError, match="cannot be negative"):
        Resources(cpu=1) - Resources(cpu=2)


def test_one_kind_too_much_does_not_fit() -> None:
    room = Resources(2000, GIB, 1000)
    assert Resources(2000, GIB, 1000).fits(room)
    for more in (Resources(2001), Resources(memory=GIB + 1), Resources(gpu=1001)):
        assert not more.fits(room)


@pytest.mark.parametrize(
    ("kind", "text", "amount"),
    [
        ("cpu", "1", Resources(cpu=1000)),
        ("cpu", "0.5", Resources(cpu=500)),
        ("cpu", "2.0", Resources(cpu=2000)),
        ("cpu", "1e1", Resources(cpu=10_000)),
        ("memory", "4", Resources(memory=4 * GIB)),
        ("memory", "512M", Resources(memory=GIB // 2)),
        ("memory", "1.5GiB", Resources(memory=3 * GIB // 2)),
        ("memory", "2 gb", Resources(memory=2 * GIB)),
        ("memory", "512B", Resources(memory=512)),
        ("gpu", "1", Resources(gpu=1000)),
        ("gpu", "0.25", Resources(gpu=250)),
        ("gpu", "8", Resources(gpu=8000)),
    ],
)
def test_amounts_are_read_as_people_write_them(kind: str, text: str, amount: Resources) -> None:
    assert parse_amount(ResourceType(kind), text) == amount


@pytest.mark.parametrize("kind", list(ResourceType))
@pytest.mark.parametrize(
    "text", ["0", "-1", "nan", "inf", "-inf", "1e308", "1e99999999", "", " ", "two", "1,5", "0x10"]
)
def test_an_amount_that_makes_no_sense_is_refused_in_words(kind: ResourceType, text: str) -> None:
    with pytest.raises(BadValue) as refusal:
        parse_amount(kind, text)
    assert refusal.value.what and (refusal.value.why or refusal.value.hint)


@pytest.mark.parametrize(
    ("parse", "text", "words"),
    [
        (parse_cpu, "0.0001", "too fine"),
        (parse_gpu, "0.001", "too fine"),
        (parse_gpu, "1.5", "cannot be granted"),
        (parse_memory, "4X", "not a size"),
    ],
)
def test_an_amount_that_cannot_be_granted_says_why(parse: object, text: str, words: str) -> None:
    with pytest.raises(BadValue, match=words):
        parse(text)  # type: ignore[operator]


def test_a_grant_is_an_amount_with_names() -> None:
    grant = Grant(cores=(3, 1), shared_core=2, shared_milli=250, memory=5, gpus=(GpuShare("a"), GpuShare("b", 500)))
    assert grant.resources == Resources(2250, 5, 1500)
    assert grant.affinity == (1, 2, 3)


def test_virtual_cores_pin_nothing() -> None:
    assert Grant(cores=(0, 1), virtual=True).affinity == ()


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0B"), (1023, "1023B"), (1024, "1K"), (3 * GIB // 2, "1.5G"), (5 << 40, "5T"), (1 << 50, "1024T")],
)
def test_bytes_are_written_for_people(count: int, text: str) -> None:
    assert format_bytes(count) == text
