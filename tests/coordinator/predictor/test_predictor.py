import math
import resource
import sys
import time
from pathlib import Path
from random import Random

import pytest

from distributed_grid.coordinator.predictor.predictor import (
    SHAPES,
    How,
    Level,
    Predictor,
    Tier,
    Usage,
)
from distributed_grid.coordinator.predictor.shape import Shape, shape

GIB = float(1 << 30)


def taught(count: int, memory: float = GIB, seconds: float = 60.0) -> Predictor:
    """Has seen so many runs of one command."""
    predictor = Predictor()
    for n in range(count):
        predictor.learn(shape(["train", str(n)], "ann"), Usage(seconds * (1 + n % 5 / 100), memory, 2.0))
    return predictor


TRAIN = shape(["train", "7"], "ann")


def test_nothing_is_said_before_five_runs_are_known() -> None:
    assert taught(4).predict(TRAIN, 0.0).memory.tier is Tier.DEFAULT
    found = taught(5).predict(TRAIN, 0.0)
    assert (found.memory.tier, found.memory.level, found.memory.samples) == (Tier.STATISTICS, Level.SHAPE, 5)
    assert GIB < found.memory.value < 2 * GIB
    assert 60 <= found.seconds.value <= found.planned.value < 120


@pytest.mark.parametrize(
    ("argv", "user", "level"),
    [
        (["train", "9"], "ann", Level.SHAPE),
        (["train", "--fast", "9"], "ann", Level.PROGRAM),
        (["evaluate"], "ann", Level.USER),
        (["train", "9"], "bob", Level.NONE),
    ],
)
def test_what_is_not_known_of_a_command_is_asked_of_its_program_then_of_its_user(
    argv: list[str], user: str, level: Level
) -> None:
    assert taught(8).predict(shape(argv, user), 0.0).memory.level is level


def test_every_answer_says_why() -> None:
    predictor = taught(40)
    assert "40 runs of commands like it" in predictor.predict(TRAIN, 0.0).memory.why()
    assert Predictor().predict(TRAIN, 0.0).memory.why() == "fewer than 5 runs like it are known"


def test_a_line_that_goes_by_no_number_is_a_statistic() -> None:
    """As of a program whose runs come in ascending order, by a number that its other commands do not have."""
    predictor = Predictor()
    for batch in range(1, 41):
        of = shape(["train"], "ann", given={"batch_size": float(batch)})
        predictor.learn(of, Usage(60.0, GIB * batch, 1.0))
    small, large = (
        predictor.predict(shape(["train"], "ann", given={"batch_size": size}), 0.0).memory for size in (2.0, 40.0)
    )
    assert small.value == large.value and small.tier is Tier.STATISTICS
    assert small.why() == "order statistics of 40 runs of this program"


def test_out_of_memory_is_at_least_so_much_and_the_next_step_is_above_it() -> None:
    predictor = taught(20)
    before = predictor.predict(TRAIN, 0.0).memory.value
    for _ in range(4):
        predictor.learn(TRAIN, Usage(5.0, 0.9 * 3 * GIB, 1.0, held=3 * GIB, how=How.OUT_OF_MEMORY))
    assert predictor.predict(TRAIN, 0.0).memory.value > 3 * GIB > before
    step = predictor.next_memory(TRAIN, before)
    assert step is not None and step > before
    assert predictor.next_memory(TRAIN, 100 * GIB) is None


@pytest.mark.parametrize("how", [How.CUT, How.TIME_LIMIT])
def test_a_run_that_was_cut_short_lowers_nothing(how: How) -> None:
    predictor = taught(20)
    before = predictor.predict(TRAIN, 0.0)
    for _ in range(200):
        predictor.learn(TRAIN, Usage(0.1, 1000.0, 0.01, how=how))
    assert predictor.predict(TRAIN, 0.0) == before


def test_a_time_limit_says_that_a_run_takes_longer() -> None:
    predictor = taught(20)
    for _ in range(4):
        predictor.learn(TRAIN, Usage(600.0, GIB, 2.0, how=How.TIME_LIMIT))
    assert predictor.predict(TRAIN, 0.0).planned.value >= 600.0


def test_attempts_that_still_run_raise_the_run_time_until_they_end() -> None:
    predictor = taught(30)
    quiet = predictor.predict(TRAIN, 0.0)
    for n in range(30):
        predictor.started(TRAIN, f"j.{n}", 0.0, quiet.planned)
    later = predictor.predict(TRAIN, 1000.0)
    assert later.planned.value >= 1000.0 > quiet.planned.value
    for n in range(30):
        predictor.ended(TRAIN, f"j.{n}")
    assert predictor.predict(TRAIN, 1000.0) == quiet


def test_the_probability_of_a_run_time_grows_with_it() -> None:
    predictor = taught(50)
    chances = [predictor.within(TRAIN, seconds, 0.0) for seconds in (1.0, 61.0, 1000.0)]
    none, half, most = (chance or 0.0 for chance in chances)
    assert none == 0.0 and 0.1 < half < 0.9 < most
    assert Predictor().within(TRAIN, 1.0, 0.0) is None


def test_memory_grows_with_a_feature_that_explains_it() -> None:
    predictor = Predictor()
    for n in range(60):
        batch = 2.0 ** (n % 8)
        predictor.learn(shape(["train"], "ann", given={"batch": batch}), Usage(10.0, batch * GIB, 1.0))
    of = shape(["train"], "ann", given={"batch": 256.0})
    assert 200 * GIB < predictor.predict(of, 0.0).memory.value < 350 * GIB
    assert predictor.slope(of, "batch") == pytest.approx(1.1, abs=0.25)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0, 0.0, 1e300, -math.inf])
def test_numbers_that_no_run_can_have_are_not_learned(bad: float) -> None:
    predictor = taught(10)
    before = predictor.predict(TRAIN, 0.0)
    predictor.learn(TRAIN, Usage(bad, bad, bad, bad, bad, How.OUT_OF_MEMORY))
    assert predictor.predict(TRAIN, 0.0) == before


def test_whatever_is_learned_a_prediction_is_a_number() -> None:
    chance, predictor = Random(11), Predictor()
    for n in range(3000):
        of = shape(["p", "--n", str(chance.lognormvariate(0, 20))], "ann", chance.randrange(1 << 50))
        seconds, memory, cores, held = (chance.choice((0.0, chance.lognormvariate(9, 9))) for _ in range(4))
        predictor.started(of, str(n), float(n))
        usage = Usage(seconds, memory, cores, held=held, how=chance.choice(list(How)))
        predictor.learn(of, usage, str(n))
        found = predictor.predict(of, n + 1.0)
        assert predictor.planned(of, n + 1.0) == found.planned
        for answer in found:
            assert math.isfinite(answer.value) and answer.value >= 0
            assert answer.confidence is None or 0 <= answer.confidence <= 1


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_a_hundred_thousand_shapes_are_small_and_no_more_are_kept() -> None:
    predictor, before = Predictor(), resident()
    for number in range(SHAPES + 2000):
        for _ in range(2):
            one = Shape(number * 7919 + 10, number * 7919 + 10, number * 7919 + 10, "", "", (), ())
            predictor._latest(one.key, number % 1000).add((1.0, 2.0, 3.0, 4.0), (1.0,))
    assert len(predictor) <= SHAPES
    assert resident() - before < 64 << 20


def test_a_shape_that_is_out_of_use_still_answers_from_its_last_samples() -> None:
    predictor = taught(50)
    for number in range(1000):
        for _ in range(5):
            predictor.learn(shape([f"other{chr(97 + number % 26)}{chr(97 + number // 26)}"], "bob"), Usage(1, 1e6, 1))
    assert predictor.predict(TRAIN, 0.0).memory.level is Level.SHAPE


def test_a_flood_of_shapes_of_one_user_removes_none_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("SHAPES", 1200), ("IN_USE", 20), ("AT_ONCE", 100)):
        monkeypatch.setattr(f"distributed_grid.coordinator.predictor.predictor.{name}", value)
    predictor, rare = taught(50), shape(["rare", "7"], "bob")
    for _ in range(4):
        predictor.learn(rare, Usage(60.0, GIB, 2.0))
    before = predictor.predict(TRAIN, 0.0).memory
    for number in range(3000):
        word = "".join(chr(97 + int(digit)) for digit in str(number))
        for _ in range(6 if number < 100 else 1):
            predictor.learn(shape([word], "eve"), Usage(1.0, 1e6, 1.0))
        assert len(predictor) <= 1200
    assert predictor.predict(TRAIN, 0.0).memory == before, "with all of its samples"
    predictor.learn(rare, Usage(60.0, GIB, 2.0))
    assert predictor.predict(rare, 0.0).memory.samples == 5, "what was not in use is known, too"
    assert predictor.predict(shape([word], "eve"), 0.0).memory.level is Level.USER
    owners = predictor._owners.values()
    assert sum(one.known for one in owners) == len(predictor) and len(owners) == 3
    assert sum(one.in_use for one in owners) == len(predictor._models) <= 20


def steps(predictor: Predictor, of: Shape) -> int:
    """How many calls one prediction and one lesson make, in Python and in C."""
    count = 0

    def one_more(_: object, event: str, __: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(one_more)
    try:
        predictor.predict(of, 5000.0)
        predictor.learn(of, Usage(60.0, GIB, 2.0))
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("hostile", [False, True], ids=["plain", "hostile"])
def test_a_prediction_looks_at_no_more_samples_however_many_there_are(hostile: bool) -> None:
    """So it takes no longer than it may, whatever the history is, and whoever wrote it."""
    chance, predictor, found = Random(3), Predictor(), list[int]()
    for n in range(3000):
        amount = chance.choice([1e-9, 1e14, chance.lognormvariate(20, 9)]) if hostile else chance.lognormvariate(20, 1)
        of = shape(["train", "--n", str(n), "--m", str(amount)], "ann", 1000 + n)
        how = chance.choice([*How]) if hostile else How.DONE
        predictor.started(of, f"a{n}", float(n % 977))  # none of them ever ends
        predictor.learn(of, Usage(amount, amount, amount, amount, amount, how))
        if n in (599, 2999):
            found.append(max(steps(predictor, of) for _ in range(20)))
    for model in predictor._models.values():
        for one in (model.seconds, model.memory, model.cores, model.gpu_memory):
            assert one is None or max(len(one.values), len(one.residuals)) <= 200
        assert len(model.running) <= 64
    assert found[1] <= 1.1 * found[0] and found[0] < 2000, found


def test_the_longest_history_costs_what_a_short_one_does() -> None:
    predictor = taught(3000)
    began = time.process_time()
    for n in range(500):
        predictor.predict(TRAIN, float(n))
    assert (time.process_time() - began) / 500 < 0.001
