"""`grid node add` and `grid node remove`: make hosts nodes of the grid by ssh, and remove them."""

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from distributed_grid.cli import formatting
from distributed_grid.cli.completion import complete_nodes
from distributed_grid.cli.context import Invocation, complete_files, current, print_error, printable
from distributed_grid.cli.grid.access import join_address, label_of
from distributed_grid.cli.lazy import Command
from distributed_grid.cli.options import lending, lending_options, not_empty
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.nodes import Lending
from distributed_grid.push import provisioning
from distributed_grid.push.coordinator import Coordinator
from distributed_grid.push.plan import Target, parse_target
from distributed_grid.push.provisioning import Added, Payload, Pushed
from distributed_grid.push.ssh import Host, Remote, SshOptions, library
from distributed_grid.push.wheel import build_of, own_wheel

WILL_NOT_STAY = 3
"""Exit code: all hosts are nodes, and one of them will not be for long."""
AT_ONCE = 8
"""So many hosts are worked on at the same time."""
SAID = {
    "added": "is added",
    "upgraded": "is upgraded",
    "started": "is started again",
    "unchanged": "is as it should be",
}


def _ssh_options(command: Any) -> Any:
    options = [
        click.option("--port", type=click.IntRange(1, 65535), help="The port of ssh (as your ssh configuration says)."),
        click.option(
            "--identity",
            "-i",
            metavar="FILE",
            shell_complete=complete_files,
            default="",
            help="The private key to log in with.",
        ),
        click.option("--accept-new", is_flag=True, help="Accept the key of an unknown host, and remember it."),
        click.option("--python", metavar="PATH", default="", help="The Python to use there (the first new enough)."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.command(cls=Command)
@_ssh_options
@click.option("--name", metavar="NODE", default="", help="Name of the node (the host's own name).")
@click.option("--label", "labels", multiple=True, metavar="K=V", help="A label of the nodes; repeatable.")
@lending_options
@click.option(
    "--wheels",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Wheels of all dependencies, for hosts without a package index.",
)
@click.option(
    "--reached-at",
    metavar="HOST:PORT",
    default="",
    help="Address at which the hosts reach the coordinator (ours, by TLS).",
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
    **limits: Any,
) -> None:
    """Make hosts nodes of the grid, by ssh.

    Installs this version of the grid there, joins the grid, and starts the agent. Your ssh configuration, agent and
    keys are used, and hosts with an unknown key are refused. Jobs run there as the user you name. A host that is a node
    already gets this version, if it has another one. If a step fails, or you press ^C, the host and the grid are left
    as they were before. --cores, --memory, --gpus and --no-share are those of `grid node set`.

    If you are not root there, the agent is a user service, which systemd ends with your last session unless lingering
    is enabled for you (loginctl). This command enables it; if that is not allowed, it ends with a warning and exit code
    3.
    """
    invocation = current()
    targets = list(dict.fromkeys(parse_target(host, port or 0) for host in hosts))
    if name and len(targets) > 1:
        raise BadValue("--name is for one host", hint="several are called as they call themselves")
    given, lent = dict(label_of(one) for one in labels), lending(limits)
    library()
    address = _address(invocation, reached_at)
    with tempfile.TemporaryDirectory(prefix="grid-push-") as made:
        payload = _payload(Path(made), wheels)
        work = _Work(invocation, SshOptions(identity, accept_new), python, address)
        results = asyncio.run(work.add_all(targets, payload, name, given, lent))
    _show(invocation, results)


@click.command(cls=Command)
@_ssh_options
@click.option("--host", metavar="USER@HOST", default="", help="Its host (as it was added from here).")
@click.option("--now", is_flag=True, help="Stop its jobs instead of waiting for their end.")
@click.option("--forget", "forgetting", is_flag=True, help="Only remove it from the grid; nothing is done on its host.")
@click.argument("node", type=not_empty, shell_complete=complete_nodes)
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
    """Remove a node from the grid, and clean its host by ssh.

    It is drained first; then all that was installed there is removed, its certificate is revoked, and the grid
    forgets it. With --forget the host is not contacted and may be gone: what ran there counts as lost.
    """
    invocation = current()
    grid = Coordinator(invocation.ask, lambda: invocation.user).grid()
    known = provisioning.read_record(grid, node)
    if forgetting:
        left = asyncio.run(_Work(invocation, SshOptions(), "").forget(node))
        provisioning.remove_record(grid, node)
        if not left:
            invocation.say(f"{node} is out of the grid")
            return
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
    own = known if known is not None and not host else Pushed("")
    work = _Work(invocation, SshOptions(identity or own.identity, accept_new), python or own.python)
    asyncio.run(work.remove(target, node, now))
    provisioning.remove_record(grid, node)
    invocation.say(f"{node} is out of the grid, and nothing of it is left on {target}")


# --- the work ---------------------------------------------------------------------------------------------------------


class _Work:
    """How the hosts of one command are reached, and where progress is reported."""

    def __init__(self, invocation: Invocation, given: SshOptions, python: str, address: str = "") -> None:
        self.coordinator = Coordinator(invocation.ask, lambda: invocation.user, address)
        self._invocation = invocation
        self._given = given
        self._identity = os.path.abspath(os.path.expanduser(given.identity)) if given.identity else ""
        self._python = python
        host, _, port = address.rpartition(":")
        self._place = (host.strip("[]"), int(port or 0))
        self._limit = asyncio.Semaphore(AT_ONCE)

    def _say(self, what: object) -> Callable[[str], None]:
        """Return a function that prints lines of progress about this host or node."""
        return lambda text: self._invocation.say(f"{what}: {text}")

    async def add_all(
        self, targets: list[Target], payload: Payload, name: str, labels: dict[str, str], lent: Lending
    ) -> dict[Target, Any]:
        """Add these hosts, a few at the same time: the outcome of each."""
        works = [self._add(target, payload, name, labels, lent) for target in targets]
        return dict(zip(targets, await asyncio.gather(*works, return_exceptions=True), strict=True))

    async def _add(self, target: Target, payload: Payload, name: str, labels: dict[str, str], lent: Lending) -> Added:
        async with self._limit, Host(target, self._given) as there:
            remote = Remote(there, self._python)
            say = self._say(target)
            added = await provisioning.add(remote, self.coordinator, payload, name, labels, lent, self._place, say)
        pushed = Pushed(target.host, target.user, target.port, self._identity, self._python)
        provisioning.write_record(await asyncio.to_thread(self.coordinator.grid), added.name, pushed)
        return added

    async def remove(self, target: Target, node: str, now: bool) -> None:
        """Take a node out of the grid, and clean its host."""
        async with Host(target, self._given) as there:
            await provisioning.remove(Remote(there, self._python), self.coordinator, node, now, self._say(node))

    async def forget(self, node: str) -> bool:
        """Take a node out of the grid without its host. True: its agent may still be there."""
        return await provisioning.forget(self.coordinator, node, self._say(node))


def _payload(made: Path, wheels: Path | None) -> Payload:
    own = own_wheel(made, wheels)
    others = sorted(wheels.glob("*.whl")) if wheels is not None else []
    others = [path for path in others if not path.name.startswith("distributed_grid-")]
    return Payload(build_of(own), (own, *others), wheels is None)


def _address(invocation: Invocation, reached_at: str) -> str:
    """Return HOST:PORT where nodes reach the coordinator: as given, or the address of this connection if it uses TLS;
    with its Unix socket, the one that the coordinator reports. Raises GridError if there is none, so that no node can
    join."""
    if reached_at:
        try:
            parts = urlsplit(f"wss://{reached_at}")
            if parts.hostname and parts.port:
                return reached_at
        except ValueError:
            pass
        raise BadValue(f"--reached-at {reached_at!r} is no address", hint="write it as HOST:PORT")
    if address := join_address(invocation):
        return address
    raise GridError(
        "nodes cannot be added to this grid from here",
        why=f"we reach its coordinator at {invocation.url()}, and nodes join by TLS only",
        hint="grid init, where it has no authority yet; else say where nodes reach it: --reached-at HOST:PORT",
    )


# --- what came of it --------------------------------------------------------------------------------------------------


def _show(invocation: Invocation, results: dict[Target, Added | BaseException]) -> None:
    failed = {target: result for target, result in results.items() if isinstance(result, BaseException)}
    for target, result in failed.items():
        if not isinstance(result, GridError):
            raise result
        first, *rest = result.lines()
        print_error("\n".join(printable(line) for line in (first.replace("error: ", f"error: {target}: ", 1), *rest)))
    done = [(target, result) for target, result in results.items() if not isinstance(result, BaseException)]
    match invocation.output:
        case "json" | "jsonl":
            rows: list[dict[str, Any]] = [
                {
                    "host": str(target),
                    "node": added.name,
                    "result": added.verb,
                    "warning": str(added.warning or ""),
                    "software": added.view.facts.software,
                    "lends": formatting.resources_json(added.view.facts.lendable),
                    "offers": formatting.resources_json(added.view.offered),
                }
                for target, added in done
            ]
            rows += [{"host": str(target), "result": "failed", "error": str(error)} for target, error in failed.items()]
            formatting.emit_json(invocation, {"hosts": rows}, "hosts")
        case "quiet":
            formatting.emit(formatting.lines(added.name for _, added in done))
        case _:
            formatting.emit(formatting.lines(_line(added) for _, added in done))
    warnings = [added.warning for _, added in done if added.warning is not None]
    for warning in warnings:
        first, *rest = warning.lines()
        print_error("\n".join(printable(line) for line in (first.replace("error: ", "warning: ", 1), *rest)))
    if failed or warnings:
        raise SystemExit(1 if failed else WILL_NOT_STAY)


def _line(added: Added) -> str:
    view = added.view
    offers = f"offers {view.offered} now" if view.offered else f"offers nothing yet{_why(view.withheld)}"
    return f"{added.name} {SAID[added.verb]}: it lends up to {view.facts.lendable}, and {offers}"


def _why(withheld: Iterable[Any]) -> str:
    reasons = "; ".join(f"{one.what}: {one.why}" for one in withheld)
    return f" ({reasons})" if reasons else ""
