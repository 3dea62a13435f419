"""What a job waits for, and what it needs to know of the end of that."""

import msgspec

from distributed_grid.protocol.jobs import After, Dependency


class End(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a job or group ended, as far as it matters to those that wait for it: all of it with exit code 0, all of it
    `started` at some time, and in words. `root`: by whom it failed, if it never ran since another one had failed."""

    ok: bool
    started: bool
    text: str = ""
    root: str = ""


class Condition(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a job or group waits for: something to become of another one. `name` is what that is called, `end` how it
    had ended before."""

    on: str
    kind: After
    name: str = ""
    end: End | None = None


def dependencies(after: tuple[Condition, ...]) -> tuple[Dependency, ...]:
    """What a job or group waits for still, as clients see it."""
    return tuple(Dependency(one.on, one.kind) for one in after) if after else ()
