"""A short piece of `make fuzz`, with one seed: only the documented errors come out, quickly, and the same each time."""

import pytest

from distributed_grid.protocol import codec
from tests.fuzz import campaign, readers
from tests.fuzz.frames import Frames, golden


@pytest.fixture(scope="module")
def reports() -> list[campaign.Report]:
    return campaign.campaign(seed=20261122, frames=10_000)


def test_nothing_but_the_documented_errors_comes_out(reports: list[campaign.Report]) -> None:
    assert [wrong for report in reports for wrong in report.wrong] == []
    assert [report.name for report in reports if not report.frames] == []


def test_the_frames_reach_much_of_what_reads_them(reports: list[campaign.Report]) -> None:
    frames, link, served = reports
    words = {word for outcome in frames.outcomes for word in outcome.partition(": ")[2].split()}
    assert len(words & set(golden())) > 40
    assert len(frames.outcomes) > 150 and len(link.outcomes) > 30 and len(served.outcomes) > 10
    assert any("still there" in outcome for outcome in served.outcomes)


def test_a_seed_and_a_number_make_the_same_frame_again() -> None:
    assert [Frames(1).make(number) for number in range(50)] == [Frames(1).make(number) for number in range(50)]
    assert Frames(1).make(7) != Frames(2).make(7)


def test_what_is_not_documented_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(direction: str, frame: bytes) -> tuple[int, list[object]]:
        raise KeyError(direction)

    monkeypatch.setattr(codec, "decode", broken)
    found = campaign.Report("codec")
    campaign.run(found, readers.decoded(Frames(1)), range(3))
    assert [wrong.partition(":")[2] for wrong in found.wrong] == [
        f"{n}: KeyError: '{readers.DIRECTIONS[n]}'" for n in range(3)
    ]
