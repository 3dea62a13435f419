"""What a campaign prints: a line while it runs, a table at its end, and the story of each broken promise."""

import argparse
import json
import statistics
from collections import Counter

from tests.chaos.clients import Users
from tests.chaos.faults import Faults
from tests.chaos.jobs import read_records
from tests.chaos.judge import Verdict
from tests.chaos.world import World, by_uptime, uptime

STORIES = 10
AROUND = 30.0
"""Seconds before and after a job for which faults are told with it."""


def progress(begun: float, users: Users, faults: Faults) -> str:
    """Return the present state."""
    parts = Counter(fault.kind if fault.kind != "killed" else f"killed {fault.target[:1]}" for fault in faults.log)
    cuts = sum(count for kind, count in parts.items() if kind.startswith("cut"))
    return (
        f"{uptime() - begun:6.0f} s  {len(users.told.plans)} jobs acknowledged, {users.waiting} not over | killed: "
        f"{parts['killed c']} coordinators, {parts['killed n']} agents, {parts['killed s']} supervisors | "
        f"{parts['stopped']} stopped, {cuts} links cut"
    )


def summary(
    arguments: argparse.Namespace,
    verdict: Verdict,
    users: Users,
    faults: Faults,
    returns: dict[str, list[float]],
    seconds: float,
) -> str:
    """The table at the end."""
    told, counts = users.told, faults.counts()
    causes = ", ".join(f"{count} {cause}" for cause, count in verdict.ended.most_common())
    kills = ", ".join(f"{counts[f'killed {part}']} {part}" for part in ("coordinator", "n", "supervisor of n"))
    rows = [
        ("seed", f"{arguments.seed}, {arguments.nodes} nodes, {seconds:.0f} s of faults"),
        ("jobs acknowledged", f"{len(told.plans)}, {len(told.plans) / seconds:.1f} a second"),
        ("ended", causes),
        ("attempts started", f"{verdict.attempts}, {verdict.again} of them again after a loss"),
        (
            "watched to the end",
            f"{len(told.ended)}, output read byte for byte: {len(told.results) + len(told.streams)}",
        ),
        ("clients", ", ".join(f"{count} times {what}" for what, count in told.habits.most_common())),
        ("killed with -9", kills.replace(" n,", " agent,").replace(" of n", "")),
        ("stopped for a while", f"{sum(count for kind, count in counts.items() if kind.startswith('stopped'))}"),
        ("links cut", f"{counts['cut n']} both ways, {counts['cut to n']} to a node, {counts['cut from n']} from one"),
        *((f"{kind} back after", _spread(times)) for kind, times in returns.items()),
        ("lost, twice, wrong", f"{len(verdict.lost)} {len(verdict.twice)} {len(verdict.wrong)}"),
    ]
    return "\n" + "\n".join(f"{name:22}{text}" for name, text in rows)


def _spread(times: list[float]) -> str:
    if not times:
        return "never"
    return f"{statistics.median(times):.1f} s in the middle, {max(times):.1f} s at most ({len(times)} times)"


def stories(verdict: Verdict, users: Users, faults: Faults, world: World) -> str:
    """Return what is known of each broken promise: the job's own record, the grid's story of it, and the faults around
    it."""
    records = read_records(world.records)
    lines = []
    for job, text in verdict.violations[:STORIES]:
        lines.append(f"\n!! {job or 'the grid'}: {text}")
        if job in users.told.plans:
            plan = users.told.plans[job]
            lines.append(f"   planned: {plan.kind}, {json.dumps(plan.submission.spec.argv[3:])}")
        times = []
        for allocation, record in sorted(records.items()):
            if allocation.rpartition(".")[0] == job:
                lines.append(f"   {allocation} {record.told()}")
                times += [*record.starts, *(at for at, _ in record.ends)]
        view = verdict.views.get(job)
        for step in view.story if view is not None else ():
            lines.append(f"   the grid at {by_uptime(step.at):.2f}: {step.state.value} {step.text}")
        if times:
            lines += _around(faults, min(times) - AROUND, max(times) + AROUND)
    if len(verdict.violations) > STORIES:
        lines.append(f"\nand {len(verdict.violations) - STORIES} more")
    return "\n".join(lines)


def _around(faults: Faults, begin: float, end: float) -> list[str]:
    near = [fault for fault in faults.log if fault.begin < end and (fault.end or end) > begin]
    return [f"   {fault.kind} {fault.target} from {fault.begin:.2f} to {fault.end:.2f}" for fault in near]
