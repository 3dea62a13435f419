"""A made trace of owners who come at the same time each day, and of jobs that are worth moving."""

import random
from pathlib import Path

DAY, HOUR = 86_400, 3600
MACHINES, DAYS = 6, 10


def write(folder: Path, seed: int = 1) -> None:
    """Write `owners/` and `jobs.csv` there. Of every second machine the owner uses three quarters by day, about 9 to
    17 h, of the others by night, 21 to 5 h; each afternoon six jobs of four to six hours come, an hour before the
    other machines are left, and all through the day jobs of half an hour in the middle."""
    chance = random.Random(seed)
    (folder / "owners").mkdir()
    for number in range(MACHINES):
        lines = ["time,use", "0,0"]
        for day in range(DAYS):
            begins = (9 if number % 2 == 0 else 21) * HOUR + day * DAY + chance.gauss(0, 900)
            lines += [f"{begins:.0f},0.75", f"{begins + 8 * HOUR + chance.gauss(0, 1800):.0f},0"]
        lines.append(f"{DAYS * DAY + 6 * HOUR},0")
        (folder / "owners" / f"m{number}.csv").write_text("\n".join(lines) + "\n")
    jobs = []
    for day in range(DAYS - 1):
        for _ in range(6):
            jobs.append((day * DAY + chance.uniform(15.5, 16.8) * HOUR, chance.uniform(4, 6) * HOUR))
        for _ in range(12):
            jobs.append((day * DAY + chance.uniform(0, 24) * HOUR, chance.lognormvariate(0, 0.8) * HOUR / 2))
    rows = [f"{begins:.0f},{lasts:.0f},2,{1.1 * lasts:.0f},{chance.choice('abc')}" for begins, lasts in sorted(jobs)]
    (folder / "jobs.csv").write_text("\n".join(["submit,duration,cores,requested,user", *rows]) + "\n")
