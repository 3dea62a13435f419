"""Adds a host to the grid as a node, and removes it: performs the steps of a plan, and undoes them if one fails or is
interrupted."""

import asyncio
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.nodes import Lending, NodeState, NodeView
from distributed_grid.protocol.text import counted
from distributed_grid.push import plan
from distributed_grid.push.coordinator import Coordinator
from distributed_grid.push.plan import Target
from distributed_grid.push.ssh import Remote
from distributed_grid.runtime.xdg import state_home


class Pushed(msgspec.Struct, frozen=True):
    """How a node was reached by ssh, without secrets: `identity` is a file's name."""

    host: str
    user: str = ""
    port: int = 0
    identity: str = ""
    python: str = ""

    @property
    def target(self) -> Target:
        return Target(self.host, self.user, self.port)


def _file(grid: str, node: str) -> Path:
    return state_home() / "grid" / "pushed" / grid / f"{node}.json"


def write_record(grid: str, node: str, pushed: Pushed) -> None:
    """Remember it."""
    path = _file(grid, node)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(pushed) + b"\n")


def read_record(grid: str, node: str) -> Pushed | None:
    """Return where this node was pushed to; None: it was not pushed from here."""
    try:
        return msgspec.json.decode(_file(grid, node).read_bytes(), type=Pushed)
    except (OSError, msgspec.DecodeError):
        return None


def remove_record(grid: str, node: str) -> None:
    """Remove the record of a node."""
    _file(grid, node).unlink(missing_ok=True)


HEARTBEAT_SECONDS = 60.0
OFFER_SECONDS = 3.0
POLL_SECONDS = 0.2

Say = Callable[[str], None]
"""A line of progress, about one host."""


class Payload(NamedTuple):
    """The files for every host: a build, the files that make it up, and whether its dependencies come from the index of
    packages that the host knows (else they are among the files)."""

    build: str
    files: tuple[Path, ...]
    online: bool


class Added(NamedTuple):
    """The result: the node, what was done in a word (`added`, `upgraded`, `started`, `unchanged`), its state, and why
    it will not stay (None: it will)."""

    name: str
    verb: str
    view: NodeView
    warning: GridError | None = None


async def add(
    remote: Remote,
    coordinator: Coordinator,
    payload: Payload,
    name: str,
    labels: Mapping[str, str],
    lending: Lending,
    address: tuple[str, int],
    say: Say,
) -> Added:
    """Make a host a node called `name` (empty: as the host is called), or see that it is one and runs this version. It
    lends what is in `lending` at most. `address`: where it reaches the coordinator. Raises GridError; then all is as it
    was, or the error says what is not."""
    host, port = address
    found = msgspec.convert(await remote.call("survey", name=name, host=host, port=port), plan.Found)
    plan.judge(found, f"{host}:{port}")
    known = await coordinator.known(found.name)
    steps = plan.decide(found, known, payload.build)
    for note in steps.notes:
        say(f"note: {note}")
    adding = _Adding(remote, coordinator, payload, found, known, steps, dict(labels), lending, say)
    view = await adding.run()
    return Added(found.name, steps.verb, view, None if await _stays(remote, found) else plan.warning(found))


async def _stays(remote: Remote, found: plan.Found) -> bool:
    """Whether the agent goes on without a session of its user; where it would not, that is asked for."""
    if found.service != "user" or found.linger:
        return True
    try:
        return bool(await remote.call("linger"))
    except GridError:  # the node is there, and what becomes of it is not known
        return False


@dataclass
class _Adding:
    """One host in progress. `begun`: the steps that may have left something, in their order."""

    remote: Remote
    coordinator: Coordinator
    payload: Payload
    found: plan.Found
    known: plan.Known
    todo: plan.Plan
    labels: dict[str, str]
    lending: Lending
    say: Say
    begun: list[plan.Step] = field(default_factory=list)
    staged: str = ""
    token: str = ""
    invitation: str = ""
    view: NodeView | None = None

    async def run(self) -> NodeView:
        name = self.found.name
        try:
            for step in self.todo.steps:
                how = plan.HOW[self.found.service]
                self.say(step.doing.format(name=name, build=self.payload.build, how=how))
                self.begun.append(step)
                await self._do(step)
        except GridError as error:
            raise self._with_leftovers(error, await self._undo()) from None
        except BaseException:  # above all asyncio.CancelledError: somebody pressed ^C
            for left in await self._undo():
                self.say(left)
            raise
        if plan.AWAIT not in self.begun:
            await self._limit()
        await self._tidy()
        view = self.view or await self.coordinator.seen(name)
        if view is None:
            raise GridError(f"the coordinator knows no node {name}", why="it was removed meanwhile")
        return view

    # --- there -------------------------------------------------------------------------------------------------------

    async def _do(self, step: plan.Step) -> None:
        remote, name, build = self.remote, self.found.name, self.payload.build
        match step:
            case plan.COPY:
                self.staged = f"push-{secrets.token_hex(4)}"
                await remote.copy(self.payload.files, await remote.call("stage", staged=self.staged))
            case plan.INSTALL:
                await remote.call("install", staged=self.staged, build=build, index=self.payload.online)
            case plan.INVITE:
                self.token, self.invitation = await self.coordinator.invite(name, self.labels)
            case plan.JOIN:
                await remote.call("join", build=build, name=name, invitation=self.invitation)
            case plan.SWITCH:
                await remote.call("switch", build=build)
            case plan.START:
                # Who has the rights on the host to add it is an owner of the node.
                await remote.call("start", name=name, service=self.found.service, owner=self.coordinator.me())
            case plan.AWAIT:
                await self._heartbeat()

    async def _heartbeat(self) -> None:
        """The agent that was started is heard by the coordinator; and if that comes soon, what it offers."""
        name, loop = self.found.name, asyncio.get_running_loop()
        until = loop.time() + HEARTBEAT_SECONDS
        while not _is_up(view := await self.coordinator.seen(name), self.known.incarnation):
            if loop.time() > until:
                said = await self.remote.call("log", name=name, service=self.found.service)
                state = view.state.value if view is not None else "not heard of"
                raise GridError(
                    f"{name} is {state} {HEARTBEAT_SECONDS:g} s after its agent was started", why=f"it said: {said}"
                )
            await asyncio.sleep(POLL_SECONDS)
        await self._limit()
        until = loop.time() + OFFER_SECONDS
        while view is not None and not view.offered and loop.time() < until:
            await asyncio.sleep(POLL_SECONDS)
            view = await self.coordinator.seen(name)
        self.view = view

    async def _limit(self) -> None:
        """Set what it lends at most, if that was asked for."""
        if self.lending.given():
            await self.coordinator.lend(self.found.name, self.lending)

    async def _tidy(self) -> None:
        """Remove what was needed in between only. If that fails, or is interrupted, nothing is rolled back."""
        try:
            if self.todo.steps:
                build, name = self.payload.build, self.found.name
                await self.remote.call("settle", staged=self.staged, build=build, name=name)
        except (GridError, asyncio.CancelledError) as error:
            self.say(f"note: the node is there; not all was tidied up ({error})")

    # --- and back ----------------------------------------------------------------------------------------------------

    async def _undo(self) -> list[str]:
        """Undo the steps that were begun, the last one first; returns a text about those that could not be undone."""
        left = []
        for step in reversed(self.begun):
            try:
                await self._take_back(step)
                if step.undoing:
                    self.say(f"undone: {step.undoing}")
            except GridError as error:
                left.append(f"not undone: {step.name} ({error.what}: {error.why})")
        if plan.START in self.begun and self.found.agent:  # there was one, of what is in use again
            try:
                await self.remote.call("start", name=self.found.name, service=self.found.service)
            except GridError as error:
                left.append(f"not undone: its agent does not run any more ({error.what}: {error.why})")
        return left

    async def _take_back(self, step: plan.Step) -> None:
        remote, name = self.remote, self.found.name
        match step:
            case plan.COPY if self.staged:
                await remote.call("unstage", staged=self.staged)
            case plan.INSTALL:
                await remote.call("discard", build=self.payload.build)
            case plan.INVITE if self.token:
                await self.coordinator.withdraw(self.token)
            case plan.JOIN:
                try:
                    found = self.found
                    await remote.call("unjoin", name=name, member=bool(found.grid), state_there=found.state_there)
                finally:  # the more so where the host cannot be reached any more
                    await self.coordinator.revoke(name)
                    if not self.known.there and await self.coordinator.seen(name) is not None:
                        await self.coordinator.forget(name)
            case plan.SWITCH:
                await remote.call("switch", build=self.found.current)
            case plan.START:
                await remote.call("stop", name=name, service=self.found.service)

    def _with_leftovers(self, error: GridError, left: list[str]) -> GridError:
        if not left:
            return error
        return GridError(error.what, "; ".join(filter(None, (error.why, *left))), error.hint)


def _is_up(view: NodeView | None, before: int) -> bool:
    return view is not None and view.state is NodeState.UP and view.facts.incarnation != before


FORGET_SECONDS = 150.0
"""So long what a silent node holds is waited for: longer than the default of `coordinator.lost_after`."""
CLOSING_SECONDS = 5.0
"""So long the connection of an agent may take to close that was just stopped, or whose certificate was just revoked."""


async def remove(remote: Remote, coordinator: Coordinator, name: str, now: bool, say: Say) -> None:
    """Take a node out, on its host as well. Nothing changes where the host cannot be reached, or is not that node;
    until its jobs have ended, whoever interrupts has the node back. Raises GridError."""
    found = await remote.call("survey", name=name, host="", port=0)
    known = await coordinator.known(name)
    if found["grid"] and found["grid"] != known.grid:
        raise GridError(f"{found['hostname']} is a node of another grid ({found['grid']})")
    if not (found["grid"] or found["builds"] or found["state_there"]):
        raise GridError(
            f"there is nothing of a node {name} on {found['hostname']}",
            why="it is another host, or nothing is left there",
            hint=f"grid node remove {name} --forget, if only the coordinator knows it still",
        )
    if known.there:
        await _emptied(coordinator, name, now, say)
    say("stopping its agent")
    await remote.call("stop", name=name, service=found["service"])
    say("taking its certificate back")
    await coordinator.revoke(name)
    say("removing what was installed, its identity and its state")
    await remote.call("remove", name=name)
    await _forgotten(coordinator, name)


async def forget(coordinator: Coordinator, name: str, say: Say) -> bool:
    """Take a node out on our side only, at once: what runs there counts as lost. True: its agent may still be on its
    host; False: it was a node without agent. An agent that stays connected although no certificate of it could be
    revoked keeps its node, as it was. Raises GridError."""
    known = await coordinator.known(name)
    view = await coordinator.seen(name)
    if not known.there and not known.certified:
        raise GridError(f"the coordinator knows no node {name}", hint="see `grid nodes`")
    if known.certified:
        if known.there:
            await coordinator.drain(name, now=True)
        say("taking its certificate back")
        await coordinator.revoke(name)
    await _forgotten(coordinator, name, say)
    return view is None or view.facts.declared is None


async def _emptied(coordinator: Coordinator, name: str, now: bool, say: Say) -> None:
    """The node has no jobs any more, and gets none."""
    view = await coordinator.seen(name)
    drained = view is not None and view.orders.drain is not None
    say("draining it" + (", its jobs are taken back" if now else ""))
    await coordinator.drain(name, now)
    reported = -1
    try:
        while (view := await coordinator.seen(name)) is not None and view.jobs:
            if view.jobs != reported:
                reported = view.jobs
                say(f"waiting for {counted(reported, 'job')} to end there" + ("" if now else "; --now ends them"))
            await asyncio.sleep(POLL_SECONDS)
    except BaseException:
        if not drained:
            await coordinator.undrain(name)
            say("undone: it gets jobs again")
        raise


async def _forgotten(coordinator: Coordinator, name: str, say: Say | None = None) -> None:
    """The coordinator knows it no more; that may take until it has given up what the node held."""
    loop = asyncio.get_running_loop()
    since, reported = loop.time(), False
    while (view := await coordinator.seen(name)) is not None:
        try:
            await coordinator.forget(name)
        except GridError as error:
            connected = getattr(error, "code", "") == "connected"
            if loop.time() > since + (CLOSING_SECONDS if connected else FORGET_SECONDS):
                raise
            if say is not None and not reported and not connected:
                reported = True
                say(f"waiting until what it holds ({counted(view.jobs, 'job')}) counts as lost")
            await asyncio.sleep(POLL_SECONDS)
