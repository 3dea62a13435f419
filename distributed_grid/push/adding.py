"""`grid node add`: goes through the steps of a plan on one host, and back where one fails or somebody interrupts."""

import asyncio
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.nodes import NodeState, NodeView
from distributed_grid.push import plan
from distributed_grid.push.coordinating import Coordinator
from distributed_grid.push.far import Far

HEARTBEAT_SECONDS = 60.0
OFFER_SECONDS = 3.0
POLL_SECONDS = 0.2

Say = Callable[[str], None]
"""A line of progress, about one host."""


class Goods(NamedTuple):
    """What is brought to every host: a build, the files that make it up, and whether what it needs comes from the index
    of packages that the host knows (else it is among the files)."""

    build: str
    files: tuple[Path, ...]
    online: bool


class Added(NamedTuple):
    """What came of it: the node, what was done in a word (`added`, `upgraded`, `started`, `unchanged`), and how
    it is."""

    name: str
    verb: str
    view: NodeView


async def add(
    far: Far,
    coordinator: Coordinator,
    goods: Goods,
    name: str,
    labels: Mapping[str, str],
    address: tuple[str, int],
    say: Say,
) -> Added:
    """Make a host a node called `name` (empty: as the host is called), or see that it is one and runs this version.
    `address`: where it reaches the coordinator. Raises GridError; then all is as it was, or the error says what
    is not."""
    host, port = address
    found = msgspec.convert(await far.call("survey", name=name, host=host, port=port), plan.Found)
    plan.judge(found, f"{host}:{port}")
    known = await coordinator.known(found.name)
    steps = plan.decide(found, known, goods.build)
    for note in steps.notes:
        say(f"note: {note}")
    adding = _Adding(far, coordinator, goods, found, known, steps, dict(labels), say)
    return Added(found.name, steps.verb, await adding.run())


@dataclass
class _Adding:
    """One host on its way. `begun`: the steps that something may be left of, in their order."""

    far: Far
    coordinator: Coordinator
    goods: Goods
    found: plan.Found
    known: plan.Known
    todo: plan.Plan
    labels: dict[str, str]
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
                self.say(step.doing.format(name=name, build=self.goods.build, how=how))
                self.begun.append(step)
                await self._do(step)
        except GridError as error:
            raise self._told(error, await self._undo()) from None
        except BaseException:  # above all asyncio.CancelledError: somebody pressed ^C
            for left in await self._undo():
                self.say(left)
            raise
        await self._tidy()
        view = self.view or await self.coordinator.seen(name)
        if view is None:
            raise GridError(f"the coordinator knows no node {name}", why="it was removed meanwhile")
        return view

    # --- there -------------------------------------------------------------------------------------------------------

    async def _do(self, step: plan.Step) -> None:
        far, name, build = self.far, self.found.name, self.goods.build
        match step:
            case plan.COPY:
                self.staged = f"push-{secrets.token_hex(4)}"
                await far.copy(self.goods.files, await far.call("stage", staged=self.staged))
            case plan.INSTALL:
                await far.call("install", staged=self.staged, build=build, index=self.goods.online)
            case plan.INVITE:
                self.token, self.invitation = await self.coordinator.invite(name, self.labels)
            case plan.JOIN:
                await far.call("join", build=build, name=name, invitation=self.invitation)
            case plan.SWITCH:
                await far.call("switch", build=build)
            case plan.START:
                # Who has the rights on the host to add it is an owner of the node.
                await far.call("start", name=name, service=self.found.service, owner=self.coordinator.me())
            case plan.AWAIT:
                await self._heartbeat()

    async def _heartbeat(self) -> None:
        """The agent that was started is heard by the coordinator; and if that comes soon, what it offers."""
        name, loop = self.found.name, asyncio.get_running_loop()
        until = loop.time() + HEARTBEAT_SECONDS
        while not _is_up(view := await self.coordinator.seen(name), self.known.incarnation):
            if loop.time() > until:
                said = await self.far.call("log", name=name, service=self.found.service)
                state = view.state.value if view is not None else "not heard of"
                raise GridError(
                    f"{name} is {state} {HEARTBEAT_SECONDS:g} s after its agent was started", why=f"it said: {said}"
                )
            await asyncio.sleep(POLL_SECONDS)
        until = loop.time() + OFFER_SECONDS
        while view is not None and not view.offered and loop.time() < until:
            await asyncio.sleep(POLL_SECONDS)
            view = await self.coordinator.seen(name)
        self.view = view

    async def _tidy(self) -> None:
        """What was needed on the way only is removed; that this fails, or is interrupted, is no reason to go back."""
        try:
            if self.todo.steps:
                build, name = self.goods.build, self.found.name
                await self.far.call("settle", staged=self.staged, build=build, name=name)
        except (GridError, asyncio.CancelledError) as error:
            self.say(f"note: the node is there; not all was tidied up ({error})")

    # --- and back ----------------------------------------------------------------------------------------------------

    async def _undo(self) -> list[str]:
        """Undo what was begun, the last first; what of it could not be, in words."""
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
                await self.far.call("start", name=self.found.name, service=self.found.service)
            except GridError as error:
                left.append(f"not undone: its agent does not run any more ({error.what}: {error.why})")
        return left

    async def _take_back(self, step: plan.Step) -> None:
        far, name = self.far, self.found.name
        match step:
            case plan.COPY if self.staged:
                await far.call("unstage", staged=self.staged)
            case plan.INSTALL:
                await far.call("discard", build=self.goods.build)
            case plan.INVITE if self.token:
                await self.coordinator.withdraw(self.token)
            case plan.JOIN:
                try:
                    found = self.found
                    await far.call("unjoin", name=name, member=bool(found.grid), state_there=found.state_there)
                finally:  # the more so where the host cannot be reached any more
                    await self.coordinator.revoke(name)
                    if not self.known.there and await self.coordinator.seen(name) is not None:
                        await self.coordinator.forget(name)
            case plan.SWITCH:
                await far.call("switch", build=self.found.current)
            case plan.START:
                await far.call("stop", name=name, service=self.found.service)

    def _told(self, error: GridError, left: list[str]) -> GridError:
        if not left:
            return error
        return GridError(error.what, "; ".join(filter(None, (error.why, *left))), error.hint)


def _is_up(view: NodeView | None, before: int) -> bool:
    return view is not None and view.state is NodeState.UP and view.facts.incarnation != before
