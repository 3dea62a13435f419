"""Sections of the configuration behave as frozen dataclasses."""

from dataclasses import FrozenInstanceError, asdict, dataclass, field, replace
from typing import Any

import pytest

from distributed_grid.config.section import section


@section(frozen=True)
class Section:
    """One of ours."""

    name: str
    size: int = 3
    labels: dict[str, str] = field(default_factory=dict)


@section(frozen=True)
class Larger(Section):
    """One that has more."""

    nodes: tuple[str, ...] = ()


def plain(cls: str) -> Any:
    """The same, as the library makes it."""

    @dataclass(frozen=True)
    class Section:
        name: str
        size: int = 3
        labels: dict[str, str] = field(default_factory=dict)

    Section.__qualname__ = cls
    return Section


@pytest.mark.parametrize(("values", "named"), [(("a",), {}), (("a", 4), {"labels": {"x": "y"}}), ((), {"name": "a"})])
def test_a_section_is_made_shown_and_read_as_a_dataclass(values: tuple[Any, ...], named: dict[str, Any]) -> None:
    ours, theirs = Section(*values, **named), plain("Section")(*values, **named)
    assert repr(ours) == repr(theirs)
    assert asdict(ours) == asdict(theirs)
    assert asdict(replace(ours, size=9)) == asdict(replace(theirs, size=9))


@pytest.mark.parametrize(
    ("values", "named"), [((), {}), (("a", 1, {}, 2), {}), (("a",), {"name": "b"}), (("a",), {"colour": "red"})]
)
def test_wrong_arguments_are_a_type_error(values: tuple[Any, ...], named: dict[str, Any]) -> None:
    for made in (Section, plain("Section")):
        with pytest.raises(TypeError):
            made(*values, **named)


def test_sections_are_equal_by_their_values_and_their_class() -> None:
    assert Section("a") == Section("a", 3) != Section("a", 4)
    assert Section("a") != Larger("a")
    assert hash(Frozen(1)) == hash(Frozen(1))
    with pytest.raises(TypeError):
        hash(Section("a"))  # of a dict


@section(frozen=True)
class Frozen:
    """One whose values can be hashed."""

    size: int = 3


def test_a_section_cannot_be_changed() -> None:
    made: Any = Section("a")
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'size'"):
        made.size = 4
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'size'"):
        del made.size
    assert made == Section("a")


def test_each_object_has_its_own_default_that_is_made() -> None:
    assert Section("a").labels is not Section("a").labels
    assert Larger("a", nodes=("x",)).nodes == ("x",)
