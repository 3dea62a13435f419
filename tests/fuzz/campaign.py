"""`make fuzz`: frames by the million against all that reads them. Prints figures; exit 1 when something came out that
is not documented, took too long, or grew. The same seed gives the same frames.

    make fuzz ARGS="--frames 1000000 --seed 1"
    make fuzz ARGS="--seed 1 --only codec:123456"     one frame again
"""

import argparse
import asyncio
import itertools
import logging
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from structlog.typing import EventDict

from tests.fuzz.frames import Frames
from tests.fuzz.readers import decoded, linked
from tests.fuzz.served import Served

SLOW = 1.0
"""Seconds of the processor that no frame may take. The slowest known is one of 65,535 empty maps, some milliseconds."""
GROWTH = 64 << 20
SESSION = 8
PARTS = 10
"""Of so many frames one goes to a whole coordinator, three to a link, the others to the codec."""


@dataclass
class Report:
    """What came of a part of the campaign."""

    name: str
    frames: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    slowest_at: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def took(self, number: int, seconds: float) -> None:
        if seconds > self.slowest:
            self.slowest, self.slowest_at = seconds, number
        if seconds > SLOW:
            self.wrong.append(f"{self.name}:{number} took {seconds:.2f} s of the processor")

    def line(self) -> str:
        rate = self.frames / self.seconds if self.seconds else 0.0
        slow = f"slowest {self.slowest * 1000:.1f} ms (number {self.slowest_at})"
        return f"{self.name:8} {self.frames:>9,} frames  {rate:>8,.0f}/s  {len(self.outcomes):>5} outcomes  {slow}"


def run(report: Report, read: Callable[[int], str], numbers: range, frames_each: int = 1) -> None:
    """Read all these, one after another."""
    began = time.monotonic()
    for number in numbers:
        before = time.thread_time()
        try:
            report.outcomes[read(number)] += 1
        except Exception as error:  # that is what is looked for
            report.wrong.append(f"{report.name}:{number}: {type(error).__name__}: {error}"[:500])
        report.took(number, time.thread_time() - before)
        report.frames += frames_each
    report.seconds += time.monotonic() - began


async def serve(report: Report, seed: int, frames: int, only: int | None = None) -> None:
    """The same with a coordinator, whose log must have nothing of a failure: sessions, until it was told so many
    frames."""
    failures: list[str] = []

    def note(logger: object, method: str, event: EventDict) -> EventDict:
        if event.get("exc_info") or method in ("error", "exception", "critical"):
            failures.append(str(event))
        raise structlog.DropEvent

    before = structlog.get_config()["processors"]
    structlog.configure(processors=[structlog.processors.format_exc_info, note])
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="grid-") as place:
        served = Served(Path(place), seed)
        try:
            for number in itertools.count(0, SESSION) if only is None else [only]:
                if report.frames >= frames:
                    break
                at = time.thread_time()
                try:
                    took, outcome = await served.session(number, SESSION)
                    report.outcomes[outcome] += 1
                    report.frames += took
                except Exception as error:
                    report.wrong.append(f"served:{number}: {type(error).__name__}: {error}"[:500])
                    break
                report.took(number, (time.thread_time() - at) / SESSION)
                report.wrong += [f"served:{number}: {failure[:3000]}" for failure in failures]
                failures.clear()
        finally:
            await served.grid.stop()
            structlog.configure(processors=before)
    report.seconds += time.monotonic() - began


def resident() -> int:
    """The most this process ever had resident, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def campaign(seed: int, frames: int, only: str = "") -> list[Report]:
    """All parts; one frame of one part where `only` names it."""
    source = Frames(seed)
    codec, link, served = Report("codec"), Report("link"), Report("served")
    part, again = frames // PARTS, None
    wanted = {
        "codec": range(frames - 4 * part),
        "link": range(part),
    }
    if only:
        name, _, number = only.partition(":")
        wanted = {key: range(int(number), int(number) + 1) if key == name else range(0) for key in wanted}
        part, again = int(name == "served"), int(number)
    run(codec, decoded(source), wanted["codec"])
    run(link, linked(source), wanted["link"], 3)
    asyncio.run(serve(served, seed, part, again))
    return [codec, link, served]


def main() -> int:
    parser = argparse.ArgumentParser(prog="make fuzz")
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", metavar="PART:NUMBER")
    said = parser.parse_args()
    logging.disable(logging.CRITICAL)
    campaign(said.seed, 2_000)  # what is loaded and cached once is no growth
    before = resident()
    reports = campaign(said.seed, said.frames, said.only)
    grown = resident() - before
    print(f"seed {said.seed}, {sum(report.frames for report in reports):,} frames")
    for report in reports:
        print(report.line())
    print(f"memory: {before >> 20} MiB before, {grown >> 20} MiB more at the most")
    wrong = [one for report in reports for one in report.wrong]
    if grown > GROWTH:
        wrong.append(f"memory grew by {grown >> 20} MiB, more than {GROWTH >> 20}")
    for one in wrong[:20]:
        print(f"WRONG {one}")
    print("nothing but the documented errors came out" if not wrong else f"{len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
