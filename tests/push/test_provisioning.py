"""Whatever fails on the way, and when: the host and the coordinator are as they were. The host is a few values here,
and does what the real one does; `test_ssh.py` has a real one."""

import asyncio
import itertools
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
from msgspec.structs import replace

from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.nodes import Lending, NodeState, NodeView
from distributed_grid.protocol.resources import Resources
from distributed_grid.push.coordinator import Invited
from distributed_grid.push.plan import DISK, Known
from distributed_grid.push.provisioning import Payload, add
from distributed_grid.push.ssh import Remote
from tests.coordinator.core.scene import facts

GOODS = Payload("2-b", (Path("x.whl"),), True)


T = TypeVar("T")


@dataclass
class World:
    """A host and a coordinator. `calls` counts what they were asked; at `break_at` the asking fails, before anything is
    done, or after where `late`."""

    staged: set[str] = field(default_factory=set)
    builds: set[str] = field(default_factory=set)
    current: str = ""
    identity: str = ""
    aside: str = ""
    running: str = ""
    tokens: set[str] = field(default_factory=set)
    certificate: str = ""
    node: bool = False
    incarnation: int = 0
    owner: str = ""
    service: str = "none"
    allows: bool = False
    """Whether its systemd lets a user's services run without a session."""
    calls: int = 0
    break_at: int = -1
    late: bool = False
    breaks: Callable[[], BaseException] = lambda: GridError("it broke")
    made: Any = field(default_factory=itertools.count)
    lent: list[Lending] = field(default_factory=list)

    def holds(self) -> dict[str, Any]:
        """What of it has to be as it was."""
        passing = ("calls", "break_at", "late", "breaks", "made", "incarnation", "owner", "service", "allows")
        return {one.name: deepcopy(getattr(self, one.name)) for one in fields(self) if one.name not in passing}

    def ask(self, what: Callable[..., T], *args: Any, **told: Any) -> T:
        self.calls += 1
        now = self.calls == self.break_at
        if now and not self.late:
            raise self.breaks()
        done = what(*args, **told)
        if now:
            raise self.breaks()
        return done

    # --- the host ----------------------------------------------------------------------------------------------------

    async def call(self, what: str, /, **told: Any) -> Any:
        return self.ask(getattr(self, f"_{what}"), **told)

    async def copy(self, paths: object, folder: str) -> None:
        self.ask(lambda: None)

    def _survey(self, name: str, host: str, port: int) -> dict[str, Any]:
        return {
            "hostname": "lab1", "name": name or "lab1", "user": "ann", "root": False, "python": "3.11.7",
            "machine": "x86_64", "system": "Linux", "disk_free": DISK, "service": self.service, "linger": False,
            "builds": sorted(self.builds), "current": self.current, "grid": "g" if self.identity else "",
            "agent": 7 if self.running else 0, "running": self.running, "state_dir": "/s",
            "state_there": bool(self.identity),
        }  # fmt: skip

    def _stage(self, staged: str) -> str:
        self.staged.add(staged)
        return staged

    def _unstage(self, staged: str) -> None:
        self.staged.discard(staged)

    def _install(self, staged: str, build: str, index: bool) -> None:
        assert staged in self.staged
        self.builds.add(build)

    def _discard(self, build: str) -> None:
        assert self.current != build
        self.builds.discard(build)

    def _join(self, build: str, name: str, invitation: str) -> None:
        assert build in self.builds and self.tokens
        self.tokens.clear()
        self.aside, self.identity = self.identity, f"i{next(self.made)}"
        self.certificate = self.identity

    def _unjoin(self, name: str, member: bool, state_there: bool) -> None:
        if self.aside or not member:
            self.identity, self.aside = self.aside, ""

    def _switch(self, build: str) -> None:
        self.current = build

    def _start(self, name: str, service: str, owner: str = "") -> None:
        self.owner = owner or self.owner
        self.running = self.current
        self.incarnation += 1
        if self.certificate == self.identity:
            self.node = True

    def _linger(self) -> bool:
        return self.allows

    def _stop(self, name: str, service: str) -> None:
        self.running = ""

    def _log(self, name: str, service: str) -> str:
        return ""

    def _settle(self, staged: str, build: str, name: str) -> None:
        self.staged.discard(staged)
        self.aside = ""

    # --- the coordinator ---------------------------------------------------------------------------------------------

    def me(self) -> str:
        return "ann"

    async def known(self, name: str) -> Known:
        up = bool(self.node and self.running)
        return self.ask(lambda: Known("g", self.node, up, self.incarnation if self.node else 0, bool(self.certificate)))

    async def seen(self, name: str) -> NodeView | None:
        state = NodeState.UP if self.running and self.certificate == self.identity else NodeState.LOST
        of = replace(facts("lab1"), incarnation=self.incarnation)
        return self.ask(lambda: NodeView(facts=of, state=state, offered=Resources(cpu=1000)) if self.node else None)

    async def invite(self, name: str, labels: Mapping[str, str]) -> Invited:
        def make() -> Invited:
            self.tokens.add(token := f"t{next(self.made)}")
            return Invited(token, f"grid://m:1/{token}")

        try:
            return self.ask(make)
        except BaseException:
            self.tokens.clear()  # nobody heard the secret
            raise

    async def withdraw(self, token: str) -> None:
        self.ask(self.tokens.discard, token)

    async def revoke(self, name: str) -> None:
        def take() -> None:
            self.certificate = ""

        self.ask(take)

    async def lend(self, name: str, values: Lending) -> None:
        assert self.node and self.running, "only of a node that is known something can be ordered"
        self.ask(self.lent.append, values)

    async def forget(self, name: str) -> None:
        def drop() -> None:
            assert not self.running, "a node that is connected is not forgotten"
            self.node = False

        self.ask(drop)


STARTS: dict[str, Callable[[], World]] = {
    "bare": World,
    "installed": lambda: World(builds={"2-b"}),
    "older": lambda: World(
        builds={"1-a"}, current="1-a", identity="i", running="1-a", certificate="i", node=True, incarnation=4
    ),
    "silent": lambda: World(builds={"2-b"}, current="2-b", identity="i", certificate="i", node=True, incarnation=4),
    "revoked": lambda: World(builds={"2-b"}, current="2-b", identity="i", running="2-b", node=True, incarnation=4),
}


async def go(world: World, lending: Lending = Lending()) -> str:  # noqa: B008
    said: list[str] = []
    far, coordinator = cast(Remote, world), cast(Any, world)
    return (await add(far, coordinator, GOODS, "", {}, lending, ("m", 1), said.append)).verb


async def test_what_a_node_lends_at_most_is_set_as_soon_as_it_is_heard_of_and_when_it_is_there_already() -> None:
    world, two = World(), Lending(max_share_cpu=2.0)
    assert await go(world) == "added" and not world.lent
    assert await go(world, two) == "unchanged" and world.lent == [two]
    fresh = World()
    assert await go(fresh, two) == "added" and fresh.lent == [two]


async def test_a_host_becomes_a_node_and_the_second_time_nothing_is_done() -> None:
    world = World()
    assert await go(world) == "added"
    assert (
        world.holds()
        == World(builds={"2-b"}, current="2-b", identity="i1", running="2-b", certificate="i1", node=True).holds()
    )
    assert world.owner == "ann"
    before, calls = world.holds(), world.calls
    assert await go(world) == "unchanged"
    assert world.holds() == before and world.calls - calls <= 3


@pytest.mark.parametrize(
    ("start", "verb"), [("older", "upgraded"), ("silent", "started"), ("revoked", "added"), ("installed", "added")]
)
async def test_what_is_not_as_it_should_be_is_put_right(start: str, verb: str) -> None:
    world = STARTS[start]()
    assert await go(world) == verb
    assert (world.current, world.running, world.staged, world.tokens) == ("2-b", "2-b", set(), set())
    assert world.identity == world.certificate and world.node and not world.aside


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("cancelled", [False, True], ids=["failed", "interrupted"])
@pytest.mark.parametrize("start", STARTS)
async def test_wherever_it_fails_all_is_as_it_was(start: str, cancelled: bool, late: bool) -> None:
    whole = STARTS[start]()
    await go(whole)
    failures = 0
    for number in range(1, whole.calls + 1):
        world = STARTS[start]()
        world.break_at, world.late = number, late
        if cancelled:
            world.breaks = asyncio.CancelledError
        before = world.holds()
        try:
            await go(world)
        except (GridError, asyncio.CancelledError):
            failures += 1
            assert world.holds() == before, f"asked {number} times"
        else:
            assert (world.identity, world.running) == (world.certificate, "2-b"), "what only tidies up may fail"
    assert failures >= whole.calls - 4


@pytest.mark.parametrize("start", ["bare", "older", "whole"])
async def test_a_node_that_ends_with_a_session_is_added_with_a_warning(start: str) -> None:
    world = World() if start == "whole" else STARTS[start]()
    if start == "whole":
        await go(world)
    world.service = "user"
    far, coordinator = cast(Remote, world), cast(Any, world)
    added = await add(far, coordinator, GOODS, "", {}, Lending(), ("m", 1), lambda _: None)
    assert added.warning is not None and world.node and world.running
    assert added.warning.what == "lab1 will be disconnected as soon as the last session of ann on lab1 ends"
    assert added.warning.hint == "on lab1: sudo loginctl enable-linger ann"
    world.allows = True
    assert (await add(far, coordinator, GOODS, "", {}, Lending(), ("m", 1), lambda _: None)).warning is None


async def test_what_cannot_be_undone_is_said() -> None:
    world = World()

    class Gone(World):
        async def call(self, what: str, /, **told: Any) -> Any:
            if what in ("join", "unjoin", "discard"):
                raise GridError("the connection broke")
            return await super().call(what, **told)

    world = Gone()
    with pytest.raises(GridError, match="the connection broke") as failed:
        await go(world)
    assert "not undone: join" in failed.value.why and "not undone: install" in failed.value.why
    assert world.tokens == set() and world.staged == set()
