"""`grid node add` and `grid node remove`: hosts become nodes, and stop being nodes, by ssh. The coordinator is asked by
the same connection as for every command, one for a question, in a thread, so that several hosts do not wait for each
other.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from distributed_grid.cli import formatting
from distributed_grid.cli.completion import complete_nodes as complete_nodes
from distributed_grid.cli.context import Invocation, complain, current, printable
from distributed_grid.cli.grid.access import label_of
from distributed_grid.coordinator.client.blocking import Denied
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.identity import Role
from distributed_grid.protocol.messages import (
    Access,
    DrainNodes,
    ForgetNodes,
    GetStatus,
    ListAccess,
    MakeToken,
    MemberView,
    Status,
    TokenMade,
    UndrainNodes,
    Withdraw,
)
from distributed_grid.protocol.nodes import NodeState, NodeView
from distributed_grid.push.plan import Known
from distributed_grid.push.provisioning import Invited

if TYPE_CHECKING:
    from distributed_grid.push.plan import Target
    from distributed_grid.push.provisioning import Added, Goods
    from distributed_grid.push.ssh import Way


TOKEN_SECONDS = 600.0
"""A token is used within a minute of its making."""


class Asking:
    """It. `address`: where a node reaches it, as HOST:PORT."""

    def __init__(self, invocation: Invocation, address: str) -> None:
        self._invocation = invocation
        self._address = address

    def grid(self) -> str:
        """The id of the grid."""
        status: Status = self._invocation.ask(lambda number: GetStatus(id=number))
        return status.grid

    def me(self) -> str:
        """Who we are to it."""
        return self._invocation.user

    async def known(self, name: str) -> Known:
        """What it knows of a node."""
        status: Status = await self._ask(lambda number: GetStatus(id=number))
        view = _named(status, name)
        mine = [one for one in await self._members() if one.role is Role.AGENT and one.name == name]
        return Known(
            grid=status.grid,
            there=view is not None,
            up=view is not None and view.state is NodeState.UP,
            incarnation=view.facts.incarnation if view is not None else 0,
            certified=any(not one.revoked and one.expires > time.time() for one in mine),
        )

    async def _members(self) -> Sequence[MemberView]:
        """Who has certificates; nobody where there is no authority that gives any."""
        try:
            access: Access = await self._ask(lambda number: ListAccess(id=number))
        except Denied as denied:
            if denied.code != "no-authority":
                raise
            return ()
        return access.members

    async def seen(self, name: str) -> NodeView | None:
        """A node as it is now."""
        return _named(await self._ask(lambda number: GetStatus(id=number)), name)

    async def invite(self, name: str, labels: Mapping[str, str]) -> Invited:
        """A token with which a node of this name can join once, soon."""
        made: TokenMade = await self._ask(
            lambda number: MakeToken(
                id=number, role=Role.AGENT, name=name, ttl=TOKEN_SECONDS, uses=1, labels=dict(labels)
            )
        )
        return Invited(made.token.split(".")[2], f"grid://{self._address}/{made.token}")

    async def withdraw(self, token: str) -> None:
        """Take a token back."""
        await self._ask(lambda number: Withdraw(id=number, token=token))

    async def revoke(self, name: str) -> None:
        """Take the certificates of a node back, if it has any."""
        if (await self.known(name)).certified:
            await self._ask(lambda number: Withdraw(id=number, role=Role.AGENT, name=name))

    async def drain(self, name: str, now: bool) -> None:
        """No new job there."""
        deadline = 0.0 if now else -1.0
        await self._ask(lambda number: DrainNodes(id=number, nodes=(name,), reason="to be removed", deadline=deadline))

    async def undrain(self, name: str) -> None:
        """Jobs there again."""
        await self._ask(lambda number: UndrainNodes(id=number, nodes=(name,)))

    async def forget(self, name: str) -> None:
        """The node is no more."""
        await self._ask(lambda number: ForgetNodes(id=number, nodes=(name,)))

    async def _ask(self, make: Callable[[int], Any]) -> Any:
        return await asyncio.to_thread(self._invocation.ask, make)


def tls_address(invocation: Invocation) -> str:
    """HOST:PORT at which we reach it by TLS, and so may others; where we use its Unix socket, the one that our context
    names. Raises GridError where there is none: then nobody can join."""
    from distributed_grid.identity.member import contexts, current_context, read_member

    url = invocation.url()
    if not url.startswith("wss://") and (name := current_context()):
        member = read_member(contexts() / name)
        url = member.url if member is not None else url
    parts = urlsplit(url)
    if parts.scheme != "wss" or not parts.hostname:
        raise GridError(
            "nodes cannot be added to this grid from here",
            why=f"we reach its coordinator at {url}, and nodes join by TLS only",
            hint="grid init, where it has no authority yet; else say where nodes reach it: --reached-at HOST:PORT",
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{host}:{parts.port or 443}"


def _named(status: Status, name: str) -> NodeView | None:
    return next((node for node in status.nodes if node.facts.name == name), None)


AT_ONCE = 8
"""So many hosts are worked on at the same time."""
SAID = {
    "added": "is added",
    "upgraded": "is upgraded",
    "started": "is started again",
    "unchanged": "is as it should be",
}


def _ways(command: Any) -> Any:
    options = [
        click.option("--port", type=click.IntRange(1, 65535), help="The port of ssh (as your ssh configuration says)."),
        click.option("--identity", "-i", metavar="FILE", default="", help="The private key to get in with."),
        click.option("--accept-new", is_flag=True, help="Take the key of a host that was never seen, and remember it."),
        click.option("--python", metavar="PATH", default="", help="The Python to use there (the first new enough)."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@_ways
@click.option("--name", metavar="NODE", default="", help="What the node will be called (the host's own name).")
@click.option("--label", "labels", multiple=True, metavar="K=V", help="A label of the nodes; repeatable.")
@click.option(
    "--wheels",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Wheels of all that is needed, for hosts without an index of packages.",
)
@click.option(
    "--reached-at", metavar="HOST:PORT", default="", help="Where the hosts reach the coordinator (as we do, by TLS)."
)
@click.argument("hosts", nargs=-1, required=True, metavar="USER@HOST...")
def add(
    hosts: tuple[str, ...],
    name: str,
    labels: tuple[str, ...],
    wheels: Path | None,
    reached_at: str,
    port: int | None,
    identity: str,
    accept_new: bool,
    python: str,
) -> None:
    """Make hosts nodes of the grid, by ssh.

    This version of the grid is installed there, joins, and starts its agent. Your ssh configuration, agent and keys
    count, and hosts whose key is not known are refused. Jobs run there as the user you name. A host that is a node
    already is brought to this version, if it has another one. Where a step fails, or you press ^C, the host and the
    grid are as they were.
    """
    from distributed_grid.push.plan import parse_target
    from distributed_grid.push.ssh import Way, library

    invocation = current()
    targets = list(dict.fromkeys(parse_target(host, port or 0) for host in hosts))
    if name and len(targets) > 1:
        raise BadValue("--name is for one host", hint="several are called as they call themselves")
    given = dict(label_of(one) for one in labels)
    library()
    address = _address(invocation, reached_at)
    with tempfile.TemporaryDirectory(prefix="grid-push-") as made:
        goods = _goods(Path(made), wheels)
        work = _Work(invocation, Way(identity, accept_new), python)
        results = asyncio.run(
            work.together({target: _adding(work, target, goods, name, given, address) for target in targets})
        )
    _show(invocation, results)


@click.command()
@_ways
@click.option("--host", metavar="USER@HOST", default="", help="Where it is (as it was added from here).")
@click.option("--now", is_flag=True, help="Take its jobs back, rather than wait for their end.")
@click.option("--forget", "forgetting", is_flag=True, help="Only have the grid forget it; nothing is done on its host.")
@click.argument("node", shell_complete=complete_nodes)
def remove(
    node: str,
    host: str,
    now: bool,
    forgetting: bool,
    port: int | None,
    identity: str,
    accept_new: bool,
    python: str,
) -> None:
    """Take a node out of the grid, and clean its host by ssh.

    It gets no new job, and its jobs are waited for; then all that was installed there is removed, its certificate is
    taken back, and the grid forgets it. With --forget nothing is asked of the host, which may be gone: what ran there
    counts as lost.
    """
    from distributed_grid.push import provisioning
    from distributed_grid.push.plan import parse_target
    from distributed_grid.push.ssh import Way, library

    invocation = current()
    pass

    asking = Asking(invocation, "")
    grid = asking.grid()
    known = provisioning.read_record(grid, node)
    if forgetting:
        from distributed_grid.push.provisioning import forget

        asyncio.run(forget(asking, node, lambda text: invocation.say(f"{node}: {text}")))
        provisioning.remove_record(grid, node)
        where = f"on {known.target}" if known is not None else "on its host"
        invocation.say(
            f"{node} is out of the grid; {where} there may still be its agent, ~/.local/share/grid and the state of its"
            f" agent, with an identity that opens nothing any more"
        )
        return
    library()
    if not host and known is None:
        raise GridError(
            f"it is not known here where {node} is",
            why="it was not added from here, or by another user",
            hint=f"--host USER@HOST; or, without its host: grid node remove {node} --forget",
        )
    target = parse_target(host, port or 0) if host or known is None else known.target
    if port:
        target = target._replace(port=port)
    own = known if known is not None and not host else provisioning.Pushed("")
    way = Way(identity or own.identity, accept_new)
    asyncio.run(_removing(_Work(invocation, way, python or own.python), target, asking, node, now))
    provisioning.remove_record(grid, node)
    invocation.say(f"{node} is out of the grid, and nothing of it is left on {target}")


# --- the work ---------------------------------------------------------------------------------------------------------


class _Work:
    """How all hosts of one command are reached, and told of."""

    def __init__(self, invocation: Invocation, way: "Way", python: str) -> None:
        self.invocation = invocation
        self.way = way
        self.python = python

    def say(self, what: str) -> Callable[[str], None]:
        """Says lines of progress about this host or node."""
        return lambda text: self.invocation.say(f"{what}: {text}")

    async def together(self, works: "dict[Target, Callable[[], Awaitable[Added]]]") -> "dict[Target, Any]":
        """All of it, some at once: what came of each host."""
        room = asyncio.Semaphore(AT_ONCE)

        async def one(work: "Callable[[], Awaitable[Added]]") -> "Added":
            async with room:
                return await work()

        results = await asyncio.gather(*(one(work) for work in works.values()), return_exceptions=True)
        return dict(zip(works, results, strict=True))


def _adding(
    work: _Work, target: "Target", goods: "Goods", name: str, labels: dict[str, str], address: str
) -> "Callable[[], Coroutine[Any, Any, Added]]":
    pass
    from distributed_grid.push import provisioning
    from distributed_grid.push.provisioning import add
    from distributed_grid.push.ssh import Far, Host

    host, _, port = address.rpartition(":")
    place = (host.strip("[]"), int(port))
    identity = os.path.abspath(os.path.expanduser(work.way.identity)) if work.way.identity else ""
    pushed = provisioning.Pushed(target.host, target.user, target.port, identity, work.python)
    asking = Asking(work.invocation, address)

    async def go() -> "Added":
        async with Host(target, work.way) as there:
            added = await add(Far(there, work.python), asking, goods, name, labels, place, work.say(str(target)))
        provisioning.write_record(await asyncio.to_thread(asking.grid), added.name, pushed)
        return added

    return go


async def _removing(work: _Work, target: "Target", asking: Any, node: str, now: bool) -> None:
    from distributed_grid.push.provisioning import remove
    from distributed_grid.push.ssh import Far, Host

    async with Host(target, work.way) as there:
        await remove(Far(there, work.python), asking, node, now, work.say(node))


def _goods(made: Path, wheels: Path | None) -> "Goods":
    from distributed_grid.push.provisioning import Goods
    from distributed_grid.push.wheel import build_of, own_wheel

    own = own_wheel(made, wheels)
    others = sorted(wheels.glob("*.whl")) if wheels is not None else []
    others = [path for path in others if not path.name.startswith("distributed_grid-")]
    return Goods(build_of(own), (own, *others), wheels is None)


def _address(invocation: Invocation, reached_at: str) -> str:
    """HOST:PORT where nodes reach the coordinator. Raises GridError where this grid is none that can be joined."""
    from urllib.parse import urlsplit

    pass

    if reached_at:
        try:
            parts = urlsplit(f"wss://{reached_at}")
            if parts.hostname and parts.port:
                return reached_at
        except ValueError:
            pass
        raise BadValue(f"--reached-at {reached_at!r} is no address", hint="write it as HOST:PORT")
    return tls_address(invocation)


# --- what came of it --------------------------------------------------------------------------------------------------


def _show(invocation: Invocation, results: "dict[Target, Added | BaseException]") -> None:
    failed = {target: result for target, result in results.items() if isinstance(result, BaseException)}
    for target, result in failed.items():
        if not isinstance(result, GridError):
            raise result
        first, *rest = result.lines()
        complain("\n".join(printable(line) for line in (first.replace("error: ", f"error: {target}: ", 1), *rest)))
    done = [(target, result) for target, result in results.items() if not isinstance(result, BaseException)]
    match invocation.output:
        case "json" | "jsonl":
            rows: list[dict[str, Any]] = [
                {
                    "host": str(target),
                    "node": added.name,
                    "result": added.verb,
                    "software": added.view.facts.software,
                    "lends": formatting.resources_json(added.view.facts.lendable),
                    "offers": formatting.resources_json(added.view.offered),
                }
                for target, added in done
            ]
            rows += [{"host": str(target), "result": "failed", "error": str(error)} for target, error in failed.items()]
            formatting.emit_json(invocation, {"hosts": rows}, "hosts")
        case "quiet":
            formatting.emit("".join(printable(added.name) + "\n" for _, added in done))
        case _:
            formatting.emit("".join(printable(_line(added)) + "\n" for _, added in done))
    if failed:
        raise SystemExit(1)


def _line(added: "Added") -> str:
    view = added.view
    offers = f"offers {view.offered} now" if view.offered else f"offers nothing yet{_why(view.withheld)}"
    return f"{added.name} {SAID[added.verb]}: it lends up to {view.facts.lendable}, and {offers}"


def _why(withheld: Iterable[Any]) -> str:
    reasons = "; ".join(f"{one.what}: {one.why}" for one in withheld)
    return f" ({reasons})" if reasons else ""
