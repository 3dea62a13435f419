"""`grid init`, `grid login`, `grid context`: who one is to which grid. Invitations are secrets, and what a program was
started with is for everybody to see: one that was given as an argument is taken out of what others see of this process.
"""

import contextlib
import sys
from pathlib import Path
from typing import Any

import click

from distributed_grid.cli.context import common, current, printable
from distributed_grid.cli.lazy import LazyGroup


def given(text: str) -> str:
    """The invitation that was meant: `-` stands for a line of stdin. One that was given as an argument is taken out of
    what other users can see of this process."""
    if text != "-":
        forget(text)
        return text
    if sys.stdin.isatty():
        import click

        asked: str = click.prompt("invitation", hide_input=True, err=True)
        return asked
    return sys.stdin.readline().strip()


def forget(secret: str) -> None:
    """Overwrite it in the memory from which the kernel tells this process's arguments (Linux; elsewhere nothing)."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        numbers = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        begin, end = int(numbers[45]), int(numbers[46])
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(begin)
            at = memory.read(end - begin).find(secret.encode())
            if at >= 0:
                memory.seek(begin + at)
                memory.write(b"-" * len(secret.encode()))


PORT = 7433


@click.command()
@common
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="A name or address it is reached by; repeatable.")
@click.option("--port", type=click.IntRange(1, 65535), default=PORT, help="The port that it will listen on (7433).")
@click.option("--state-dir", metavar="DIR", help="Where the coordinator keeps its state.")
@click.option("--context", "context", default="default", metavar="NAME", help="What your own access is called.")
def init(hosts: tuple[str, ...], port: int, state_dir: str | None, context: str) -> None:
    """Found a grid: its authority, its keys, and you as its first operator.

    Run it on the master, as who will run the coordinator. From then on every connection is TLS 1.3 and everybody who
    connects has an identity.
    """
    invocation = current()
    config = invocation.whole_config({"coordinator.state_dir": state_dir} if state_dir else {})
    from distributed_grid.cli import formatting
    from distributed_grid.cli.connection import user_name
    from distributed_grid.coordinator.access.joining import found, hosts_of
    from distributed_grid.identity.member import contexts, use_context

    folder = Path(config.coordinator_state_dir())
    url = f"wss://{_bracketed(hosts_of(hosts)[0] if hosts else 'localhost')}:{port}"
    founded = found(folder, hosts, user_name(), contexts() / _context(context), url)
    use_context(context)
    if invocation.output in ("json", "jsonl"):
        formatting.emit_json(invocation, {"grid": founded.grid, "pin": founded.pin, "hosts": founded.hosts, "url": url})
        return
    more = f" --port {port}" * (port != PORT) + (f" --state-dir {folder}" if state_dir else "")
    lines = [
        f"grid {founded.grid} is founded; its authority is in {folder / 'pki'} (keep ca.key secret, and a copy of it)",
        f"the coordinator's certificate is for {', '.join(founded.hosts)}",
        f"you ({user_name()}) are its first operator, by {contexts() / context}",
        "",
        f"next, on this machine:       grid coordinator run --host 0.0.0.0{more}",
        "for each node, make a token: grid token create --role agent",
        "and on the node:             grid agent join grid://HOST:PORT/TOKEN",
    ]
    formatting.emit("".join(printable(line) + "\n" for line in lines))


@click.command()
@common
@click.option("--context", "context", default="default", metavar="NAME", help="What this access is called here.")
@click.argument("invitation", metavar="grid://HOST:PORT/TOKEN")
def login(context: str, invitation: str) -> None:
    """Join a grid as a person, with a token from one of its operators.

    With - instead of the invitation it is read from stdin, where nobody else can see it.
    """
    from distributed_grid.cli.connection import user_name

    pass
    from distributed_grid.identity.joining import join, parse_invitation
    from distributed_grid.identity.member import contexts, use_context
    from distributed_grid.identity.renewing import has_expired
    from distributed_grid.identity.tls import has_identity
    from distributed_grid.protocol.errors import GridError

    folder = contexts() / _context(context)
    if folder.exists() and not (has_identity(folder) and has_expired(folder)):
        raise GridError(f"there is a context {context!r} already", hint="give another --context, or remove its folder")
    asked = parse_invitation(given(invitation))
    if asked.bearer:
        _keep_bearer(asked, context, folder)
        return
    joined = join(asked, user_name(), lambda _: folder, node=False)
    use_context(context)
    current().say(f"you are {joined.role} {joined.name} of grid {joined.grid}, by {folder}")


def _keep_bearer(asked: Any, name: str, folder: Path) -> None:
    """Log in by a bearer token: it is tried first, and kept only if it opens."""
    import shutil

    from distributed_grid.cli.connection import Connection
    from distributed_grid.identity.joining import keep_bearer
    from distributed_grid.identity.member import Member, use_context, write_member
    from distributed_grid.protocol.identity import Role

    keep_bearer(asked, folder)
    try:
        connection = Connection(asked.url, identity=folder)
        connection.close()
        write_member(folder, Member(asked.url, connection.grid, Role(connection.role), connection.user))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    use_context(name)
    current().say(f"you are {connection.role} {connection.user} of grid {connection.grid}, by {folder}")


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@common
def context() -> None:
    """See and choose which grid is spoken to: list, use."""


@context.command(name="list")
@common
def list_contexts() -> None:
    """List the grids you have joined."""
    from distributed_grid.cli import formatting
    from distributed_grid.identity.member import all_contexts, current_context

    invocation, used = current(), current_context()
    found = all_contexts()
    if invocation.output in ("json", "jsonl"):
        rows: list[dict[str, Any]] = [
            {"name": name, "url": one.url, "grid": one.grid, "role": one.role, "user": one.name, "used": name == used}
            for name, one in found
        ]
        formatting.emit_json(invocation, {"contexts": rows}, "contexts")
        return
    lines = [("*" if name == used else "", name, one.url, one.role.value, one.name) for name, one in found]
    formatting.emit(formatting.table(invocation, ("", "NAME", "COORDINATOR", "ROLE", "YOU ARE"), lines))


@context.command()
@common
@click.argument("name")
def use(name: str) -> None:
    """Speak to this grid from now on."""
    from distributed_grid.identity.member import use_context

    use_context(name)


def _context(name: str) -> str:
    from distributed_grid.protocol.identity import check_name

    return check_name("a context", name)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
