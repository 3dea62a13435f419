import pytest

from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.placement import Constraints, Strategy, parse_placing, parse_strategy, same_model
from distributed_grid.protocol.resources import GIB


@pytest.mark.parametrize("text", ["best-fit", "Best-Fit", " best_fit "])
def test_a_strategy_is_known_by_its_name_however_it_is_written(text: str) -> None:
    assert parse_strategy(text) is Strategy.BEST_FIT


def test_an_unknown_strategy_is_refused_with_the_one_that_may_be_meant() -> None:
    with pytest.raises(BadValue) as refused:
        parse_strategy("bestfit")
    assert "did you mean best-fit?" in refused.value.hint


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"labels": ["=a"]}, "'=a' says nothing"),
        ({"labels": ["zone="]}, "'zone=' says nothing"),
        ({"labels": ["zone=a", "zone=b"]}, "no node can have both zone=a and zone=b"),
        ({"labels": ["zone=a", "zone!=a"]}, "no node can have both zone=a and zone!=a"),
        ({"only": ["n1"], "exclude": ["n1"]}, "n1 is asked for and excluded"),
        ({"only": [""]}, "the name of a node or job is empty"),
        ({"only": ["n1", "a\nb"]}, "'a\\nb' is no name of a node"),
        ({"labels": ["x" * 151]}, f"{'x' * 40!r} is no name of a node, label, model or job"),
        ({"gpu_model": "a100"}, "a GPU like a100 is asked for, and no GPU"),
        ({"gpu_memory": "20G"}, "a GPU with 20G is asked for, and no GPU"),
        ({"only": [f"n{number}" for number in range(2000)]}, "at most 1000 nodes"),
    ],
)
def test_constraints_that_make_no_sense_are_refused(said: dict[str, object], words: str) -> None:
    with pytest.raises(BadValue) as refused:
        parse_placing(gpu=0, **said)  # type: ignore[arg-type]
    assert words in str(refused.value)


def test_no_constraints_are_none_at_all() -> None:
    assert parse_placing(gpu=1000) == {"strategy": None, "constraints": None}


def test_gpu_memory_without_a_unit_is_in_gb() -> None:
    assert parse_placing(gpu=1000, gpu_memory="20")["constraints"] == Constraints(gpu_memory=20 * GIB)


@pytest.mark.parametrize(
    ("pattern", "models"),
    [
        ("", ["T4", "V100M16", "V100M32", "A100-SXM4-80GB"]),
        ("v100", ["V100M16", "V100M32"]),
        ("*80gb", ["A100-SXM4-80GB"]),
        ("T4|a100*", ["T4", "A100-SXM4-80GB"]),
        ("V100M16|", ["V100M16"]),
        ("K80|H100", []),
    ],
)
def test_a_model_is_a_part_of_a_name_a_glob_or_one_of_several(pattern: str, models: list[str]) -> None:
    assert [one for one in ("T4", "V100M16", "V100M32", "A100-SXM4-80GB") if same_model(pattern, one)] == models
