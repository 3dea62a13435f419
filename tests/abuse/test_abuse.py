"""What a job tries on its node is refused, and the job beside it comes to no harm. All attacks, levels of walls and
places are `make abuse`; here are the quick ones under walls that are promised to hold."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.abuse import enclosure
from tests.abuse.attacks import AT_ONCE, ATTACKS, HELD, LEVELS, QUICK, UNTOLD, expected, named
from tests.abuse.campaign import failures, table

pytestmark = pytest.mark.root
JOBS = Path(__file__).parent / "jobs"


def verdicts(level: str, *names: str) -> dict[str, dict[str, object]]:
    """Make these attacks in an enclosure."""
    if why := enclosure.lacking():
        pytest.skip(why)
    inside = [sys.executable, "-m", "tests.abuse.campaign", "--inside", level, *names]
    done = subprocess.run(inside, cwd=enclosure.ROOT, capture_output=True, text=True, timeout=220)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert {one["attack"] for one in found} >= set(names), done.stdout + done.stderr
    return {one["attack"]: one for one in found}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("level", ["user", "namespace"])
def test_quick_attacks_under_walls_that_hold_harm_nobody(level: str) -> None:
    found = verdicts(level, *QUICK)
    assert {name: one["harms"] for name, one in found.items() if one["harms"]} == {}


@pytest.mark.timeout(240)
def test_the_same_programs_do_harm_where_there_are_no_walls() -> None:
    """Else they would prove nothing."""
    found = verdicts("none", "read-secrets", "look")
    assert all(one["harms"] for one in found.values()), found


def test_an_enclosure_begun_by_hand_leaves_the_mounts_of_this_machine_alone() -> None:
    if why := enclosure.lacking():
        pytest.skip(why)
    begin = f"{sys.executable} -m tests.abuse.enclosure sysconfig >/dev/null; grep -c ^abuse /proc/mounts"
    apart = ["unshare", "--mount", "--propagation", "private", "sh", "-c", begin]
    assert subprocess.run(apart, cwd=enclosure.ROOT, capture_output=True, text=True).stdout == "0\n"


def test_every_program_is_an_attack_of_the_table() -> None:
    programs = {path.stem for path in JOBS.glob("*.py")} - {"kit", "neighbour"}
    assert {one.words[0] for one in ATTACKS if one.words} == programs
    assert {words[0] for words in AT_ONCE} < programs
    assert all(named(name) for name in QUICK)


def test_what_is_promised_never_shrinks_with_stronger_walls() -> None:
    for one in ATTACKS:
        held = [expected(one, level) == HELD for level in LEVELS]
        assert held == sorted(held, reverse=True), one.name


@pytest.mark.parametrize("program", sorted(JOBS.glob("*.py")), ids=lambda path: path.stem)
def test_a_program_says_what_it_tries(program: Path) -> None:
    text = program.read_text()
    assert text.startswith('"""') and text.index('"""', 3) > 80


def test_the_table_tells_harm_that_was_promised_against_from_other_harm() -> None:
    def verdict(*harms: str) -> dict[str, object]:
        return {"harms": list(harms)}

    found: dict[tuple[str, str, str], dict[str, object]] = {
        ("processes", "user", "look"): verdict("environment of agent"),
        ("processes", "none", "look"): verdict("environment of agent"),
        ("processes", "user", "trace"): verdict(),
    }
    assert failures(found) == ["processes user look: environment of agent"]
    untold = {("processes", "none", "kill-spawner"): verdict("the neighbour is gone", f"{UNTOLD} (its spawner)")}
    assert failures(untold) == [f"processes none kill-spawner: {UNTOLD} (its spawner)"]
    lines = [line.split() for line in table(found).splitlines()]
    assert lines == [["user", "none"], ["processes", "processes"], ["look", "HARM", "(harm)"], ["trace", "held", "-"]]
