"""What users submit in the grid of a seed: jobs of many kinds. Each kind is drawn independently, so that a new kind
leaves the others of a seed as they were."""

import random
from collections.abc import Collection

import msgspec
from msgspec.structs import replace

from distributed_grid.protocol.jobs import After, Priority, Request, RetryOn
from distributed_grid.protocol.placement import NO_CONSTRAINTS, Constraints, Strategy, Walls, parse_label
from distributed_grid.protocol.resources import GIB, MIB, MILLI, Resources


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """How large a world is: `seconds` with faults, then without; it goes on until all is over, and for `events` events
    at the least."""

    nodes: int = 20
    jobs: int = 10
    faults: int = 7
    seconds: float = 30.0
    events: int = 200


GANGS = 100
MANY = 200
"""Gangs are numbered from here on."""
PICKY = 300
"""Jobs with constraints are numbered from here on."""
ZONED = 350
"""Jobs for the nodes of a zone, which operators change, are numbered from here on."""
CROWD = 400
"""The jobs of several users are numbered from here on."""
PUSHING = 500
"""Urgent gangs and who is to give way to them are numbered from here on."""
SHORT = 600
"""Arrays of many short jobs are numbered from here on."""
STREAM = 700
"""Streams of jobs of which some are overdue are numbered from here on."""
SLACK = 800
"""Jobs that hold all cores of a node, and revocable ones, are numbered from here on."""
HOLDS = 850
"""Holds and the jobs inside of them are numbered from here on."""
BOOSTS = 900
"""Boosts that the grid lends by itself are numbered from here on."""
ENDLESS = 1e6
"""Seconds that a job runs which is only ended by somebody."""


class JobPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A job that a client submits at `at`, that runs `seconds` and exits with `codes` (one an attempt). `daemon`: it
    leaves a process behind. It needs `dying` seconds from SIGTERM to its end. `unheard` answers to its submit get lost.
    Times below zero: never. `name` is what it is called; `near`: where the newest job of that name is then."""

    number: int
    at: float
    request: Request
    seconds: float
    codes: tuple[int, ...]
    daemon: bool
    dying: float
    grace: float
    time_limit: float
    unheard: int
    cancel_at: float
    members: int = 0
    """An array of so many; `most` of them at once (0: all), and if more than `max_fails` fail, the rest is ended."""
    most: int = 0
    max_fails: int = -1
    after: tuple[tuple[int, After], ...] = ()
    """Planned jobs that it waits for."""
    delay: float = 0.0
    """Seconds before which it may not begin."""
    name: str = ""
    near: bool = False
    user: str = "u"
    bundle: str = ""
    """The hash of what is shipped with it."""
    holds: bool = False
    """It is a hold, for `time_limit` seconds."""
    within: int = -1
    """The planned hold that it runs in."""


def submitted(
    seed: int,
    chance: random.Random,
    picky: random.Random,
    shape: Shape,
    busy: int,
    moments: list[float],
    without: Collection[str],
) -> list[JobPlan]:
    """All jobs of a seed. `busy` nodes have what most of them want; in `moments` much happens; `without` as for a
    plan."""
    jobs = [planned(chance, number, shape, moments) for number in range(shape.jobs)]
    jobs += _gangs(random.Random(f"gangs of {seed}"), shape, moments)
    jobs += _many(random.Random(f"many of {seed}"), shape, moments)
    jobs += _picky(picky, shape, busy, moments)
    jobs += _crowd(random.Random(f"users of {seed}"), shape, moments)
    jobs += _pushing(random.Random(f"urgent gangs of {seed}"), shape, busy, moments)
    jobs += _short(random.Random(f"short jobs of {seed}"), shape, moments)
    jobs += _stream(random.Random(f"stream of {seed}"), shape, moments)
    jobs += _holds(random.Random(f"holds of {seed}"), shape, moments) if "holds" not in without else []
    jobs = _behind(random.Random(f"jobs and walls of {seed}"), jobs)
    return _not_requeued(random.Random(f"ends with the grid's will in {seed}"), jobs, without)


def when(chance: random.Random, first: float, last: float, moments: list[float]) -> float:
    """Any time, or, as troubles seldom come alone, one shortly after some moment of the plan."""
    if chance.random() < 0.4:
        return chance.uniform(first, last)
    return max(first, chance.choice(moments) + chance.choice((0.01, 0.5, 0.5, 5.0)) * chance.uniform(-0.2, 1.0))


def planned(chance: random.Random, number: int, shape: Shape, moments: list[float]) -> JobPlan:
    """Any job."""
    retry: tuple[RetryOn, ...] = ()
    if chance.random() < 0.5:
        retry = chance.choice(((RetryOn.LOST,), (RetryOn.FAILED,), (RetryOn.LOST, RetryOn.FAILED)))
    cpu = chance.choice((300, 500, MILLI, MILLI, 2 * MILLI))
    memory = chance.choice((0, 256 * MIB, 1 * GIB, 1 * GIB, 3 * GIB))
    wanted = Resources(cpu, memory, chance.choice((0, 0, 0, 0, 500, MILLI)))
    at = when(chance, 0.0, shape.seconds * 0.9, moments)
    return JobPlan(
        number=number,
        at=at,
        request=Request(
            wanted,
            chance.choice((Priority.LOW, Priority.MEDIUM, Priority.MEDIUM, Priority.URGENT)),
            immediate=chance.random() < 0.05,
            retry_on=retry,
            retries=chance.choice((1, 2)) if retry else 0,
        ),
        seconds=chance.choice((0.01, 0.3, 1.0, chance.uniform(2.0, 20.0), chance.uniform(20.0, 60.0), ENDLESS)),
        codes=tuple(chance.choice((0, 0, 0, 1, 3)) for _ in range(3)),
        daemon=chance.random() < 0.1,
        dying=chance.choice((0.0, 0.01, 0.5, 30.0)),
        grace=chance.choice((0.0, 1.0, 5.0)),
        time_limit=chance.choice((0.0, 0.0, 0.0, 0.0, 3.0)),
        unheard=chance.choice((0, 0, 0, 1, 2)),
        cancel_at=when(chance, at, shape.seconds, moments) if chance.random() < 0.35 else -1.0,
    )


def _gangs(chance: random.Random, shape: Shape, moments: list[float]) -> list[JobPlan]:
    """Jobs that want several nodes at once; drawn apart, so that the rest of a seed's plan stays as it was."""
    gangs = []
    for number in range(chance.choice((0, 0, 1, 2)) if shape.nodes >= 4 and shape.jobs else 0):
        one = planned(chance, GANGS + number, shape, moments)
        wanted = Resources(one.request.resources.cpu, min(one.request.resources.memory, 256 * MIB))
        request = replace(one.request, resources=wanted, gang=chance.choice((2, 2, 3)))
        gangs.append(replace(one, request=request))
    return gangs


def _many(chance: random.Random, shape: Shape, moments: list[float]) -> list[JobPlan]:
    """Arrays, and jobs that wait for others; drawn apart, so that the rest of a seed's plan stays as it was."""
    made: list[JobPlan] = []
    for number in range(chance.choice((0, 0, 0, 3, 6)) if shape.jobs else 0):
        one = planned(chance, MANY + number, shape, moments)
        others = [*range(shape.jobs), *(job.number for job in made), *(job.number for job in made)]
        waits = chance.sample(others, chance.choice((0, 1, 1, 2)))
        members = chance.choice((0, 0, 2, 4))
        wanted = Resources(min(one.request.resources.cpu, MILLI), min(one.request.resources.memory, 256 * MIB))
        made.append(
            replace(
                one,
                request=replace(one.request, resources=wanted, immediate=False),
                members=members,
                most=chance.choice((0, 1, 2)) if members else 0,
                max_fails=chance.choice((-1, -1, 0, 1)) if members else -1,
                after=tuple(dict.fromkeys((other, chance.choice(list(After))) for other in waits)),
                delay=chance.choice((0.0, 0.0, 0.0, 3.0)),
            )
        )
    return made


def _behind(chance: random.Random, jobs: list[JobPlan]) -> list[JobPlan]:
    """In some worlds some jobs ask for walls."""
    if chance.random() >= 0.3:
        return jobs
    return [_asking(chance, one) if chance.random() < 0.3 else one for one in jobs]


def _asking(chance: random.Random, one: JobPlan) -> JobPlan:
    asked = replace(one.request.constraints or NO_CONSTRAINTS, walls=chance.choice(list(Walls)))
    return replace(one, request=replace(one.request, constraints=asked))


def _picky(chance: random.Random, shape: Shape, busy: int, moments: list[float]) -> list[JobPlan]:
    """Jobs that ask something of their node: its label, name, or GPU memory, or who else is there."""
    jobs = []
    for number in range(chance.choice((0, 1, 2, 4)) if shape.jobs else 0):
        one = planned(chance, PICKY + number, shape, moments)
        wanted = one.request.resources
        names = tuple(f"n{number}" for number in range(busy))
        name, kind = chance.choice(("web", "db")), chance.randrange(6)
        asked = Constraints(
            only=tuple(chance.sample(names, chance.randint(1, busy))) if kind == 0 else (),
            exclude=(chance.choice(names),) if kind == 1 else (),
            labels=(parse_label(chance.choice(("zone=a", "zone!=a", "zone"))),) if kind == 2 else (),
            gpu_memory=chance.choice((3, 7, 12)) * GIB if wanted.gpu else 0,
            apart=(f"u/{name}",) if kind == 3 else (),
        )
        strategy = chance.choice((None, *Strategy))
        request = replace(one.request, constraints=asked, strategy=strategy)
        jobs.append(replace(one, request=request, name=name, near=kind == 4))
    return jobs


def zoned(chance: random.Random, shape: Shape, moments: list[float]) -> list[JobPlan]:
    """Jobs for nodes of some zone, where operators change that."""
    jobs = []
    for number in range(chance.choice((4, 8))):
        one = planned(chance, ZONED + number, shape, moments)
        asked = Constraints(labels=(parse_label(chance.choice(("zone=a", "zone!=a", "zone"))),))
        memory = chance.choice((GIB // 4, GIB // 4, 2 * GIB, 6 * GIB))
        wanted = Resources(chance.choice((300, MILLI)), memory)
        request = replace(one.request, resources=wanted, constraints=asked, immediate=False)
        jobs.append(replace(one, request=request, seconds=chance.choice((1.0, 5.0, 20.0))))
    return jobs


def _crowd(chance: random.Random, shape: Shape, moments: list[float]) -> list[JobPlan]:
    """In some worlds several users want the same few nodes at the same time, one of them far more than the others, and
    some of them all of a node."""
    if not shape.jobs or chance.random() >= 0.15:
        return []
    crowd = []
    for number in range(chance.choice((8, 12))):
        one = planned(chance, CROWD + number, shape, moments)
        wanted = Resources(chance.choice((MILLI, MILLI, 2 * MILLI, 4 * MILLI)), chance.choice((2, 2, 3)) * GIB)
        priority = chance.choice((Priority.LOW, Priority.MEDIUM, Priority.MEDIUM, Priority.MEDIUM, Priority.HIGH))
        crowd.append(
            replace(
                one,
                at=moments[0] + chance.uniform(0.0, 4.0),
                request=replace(one.request, resources=wanted, priority=priority, immediate=False),
                seconds=chance.choice((0.3, 1.0, 2.0, chance.uniform(2.0, 8.0))),
                time_limit=chance.choice((0.0, 2.0, 10.0)),
                cancel_at=-1.0,
                user=chance.choice(("ann", "ann", "ann", "ben", "eve")),
            )
        )
    return crowd


def _pushing(chance: random.Random, shape: Shape, busy: int, moments: list[float]) -> list[JobPlan]:
    """In some worlds low and medium jobs, and gangs of them, fill all nodes that have much memory, and then urgent
    gangs want it."""
    if not shape.jobs or busy < 2 or chance.random() >= 0.3:
        return []
    jobs = []
    for number in range(busy * 3):
        one = planned(chance, PUSHING + number, shape, moments)
        urgent = number >= 2 * busy
        memory = chance.choice((2, 3, 4, 6)) * GIB
        gang = chance.randint(2, busy) if urgent or chance.random() < 0.4 else 0
        priority = Priority.URGENT if urgent else chance.choice((Priority.LOW, Priority.MEDIUM))
        request = replace(one.request, resources=Resources(300, memory), priority=priority, gang=gang, immediate=False)
        at = moments[0] + (chance.uniform(1.0, 12.0) if urgent else chance.uniform(-2.0, 3.0))
        seconds = chance.choice((1.0, 3.0, 8.0) if urgent else (5.0, 20.0, 60.0))
        jobs.append(replace(one, at=max(0.0, at), request=request, seconds=seconds))
    return jobs


def _short(chance: random.Random, shape: Shape, moments: list[float]) -> list[JobPlan]:
    """In some worlds arrays of many short jobs want the same few nodes: running ones get successors. In some of these
    files are shipped with them."""
    if not shape.jobs or chance.random() >= 0.25:
        return []
    arrays = []
    for number in range(chance.choice((1, 1, 2))):
        one = planned(chance, SHORT + number, shape, moments)
        wanted = Resources(chance.choice((MILLI, MILLI, 2 * MILLI)), GIB)
        priority = chance.choice((Priority.LOW, Priority.MEDIUM, Priority.MEDIUM))
        retry_on = (RetryOn.FAILED,) if chance.random() < 0.3 else ()
        arrays.append(
            replace(
                one,
                request=Request(wanted, priority, retry_on=retry_on, retries=len(retry_on)),
                seconds=chance.choice((0.005, 0.02, 0.1, 0.3)),
                time_limit=0.0,
                members=chance.choice((20, 60, 120)),
                user=chance.choice(("u", "ann", "ben")),
            )
        )
    bundle = "f" * 64 if chance.random() < 0.4 else ""
    return [replace(one, bundle=bundle) for one in arrays]


def _stream(chance: random.Random, shape: Shape, moments: list[float]) -> list[JobPlan]:
    """In some worlds users ask more of the large nodes than these can take, for a while, and with short time limits:
    large jobs among many small ones, so that some are overdue."""
    if not shape.jobs or chance.random() >= 0.08:
        return []
    stream = []
    for number in range(60):
        one = planned(chance, STREAM + number, shape, moments)
        wanted = Resources(300, chance.choice((2, 2, 2, 3, 7)) * GIB)
        limit = chance.choice((1.0, 2.0, 4.0))
        stream.append(
            replace(
                one,
                at=moments[0] + chance.uniform(0.0, 25.0),
                request=Request(wanted, chance.choice((Priority.MEDIUM, Priority.MEDIUM, Priority.HIGH))),
                seconds=limit * chance.choice((0.3, 0.9, 0.9)),
                codes=(0,),
                daemon=False,
                dying=0.0,
                grace=0.5,
                time_limit=limit,
                cancel_at=-1.0,
                user=chance.choice(("ann", "ben", "eve")),
            )
        )
    return stream


def _holds(chance: random.Random, shape: Shape, moments: list[float]) -> list[JobPlan]:
    """In some worlds users keep capacity for jobs that come later, more of these than there is room for at once."""
    if not shape.jobs or chance.random() >= 0.15:
        return []
    made: list[JobPlan] = []
    for _ in range(chance.choice((1, 1, 2, 3))):
        one, user = planned(chance, HOLDS + len(made), shape, moments), chance.choice(("u", "ann"))
        whole = Resources(chance.choice((MILLI, 1500, 1500, 2 * MILLI)), chance.choice((1, 2, 4)) * GIB)
        whole += Resources(gpu=chance.choice((0, 0, 0, 0, 500, MILLI)))
        request = Request(whole, one.request.priority, immediate=chance.random() < 0.2, requeue=False)
        lasts = chance.choice((3.0, 20.0, 40.0))
        hold = replace(one, request=request, time_limit=lasts, grace=0.0, holds=True, user=user, cancel_at=-1.0)
        if chance.random() < 0.3:
            hold = replace(hold, cancel_at=hold.at + chance.uniform(0.0, lasts))
        made.append(hold)
        for _ in range(chance.choice((2, 4, 8))):
            one = planned(chance, HOLDS + len(made), shape, moments)
            memory = min(one.request.resources.memory, whole.memory // chance.choice((1, 2)))
            part = Resources(min(whole.cpu, chance.choice((300, 500, 500, MILLI, whole.cpu))), memory)
            part += Resources(gpu=min(whole.gpu, chance.choice((0, 0, 300, 500))))
            request = replace(one.request, resources=part, immediate=chance.random() < 0.1)
            at, members = hold.at + chance.uniform(0.0, 0.8 * lasts), chance.choice((0, 0, 0, 3))
            lasting = min(one.seconds, 30.0)
            made.append(
                replace(
                    one, at=at, request=request, seconds=lasting, members=members, user=user, within=hold.number,
                    cancel_at=at + chance.uniform(0.0, 10.0) if one.cancel_at >= 0 else -1.0,
                )
            )  # fmt: skip
    return made


def _not_requeued(chance: random.Random, jobs: list[JobPlan], without: Collection[str]) -> list[JobPlan]:
    """In some worlds some jobs end where the grid itself takes their place back."""
    if chance.random() >= 0.15 or "requeue" in without:
        return jobs
    return [replace(one, request=replace(one.request, requeue=False)) if chance.random() < 0.3 else one for one in jobs]
