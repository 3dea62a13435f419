"""`grid init`, `grid login`, `grid context`, `grid token`, `grid access`: the members of the grid. Invitations are
secrets: one given as an argument is overwritten in what other users see of this process."""

import contextlib
import os
import platform
import shutil
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from distributed_grid.cli import formatting
from distributed_grid.cli.context import Invocation, client, complete_files, current
from distributed_grid.cli.lazy import Command, LazyGroup
from distributed_grid.cli.options import not_empty
from distributed_grid.coordinator.client.session import user_name
from distributed_grid.identity.credentials import has_identity
from distributed_grid.identity.member import Member, all_contexts, contexts, current_context, use_context, write_member
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.identity import INVITATION_CHARS, MOST_USES, PEOPLE, Role, check_name
from distributed_grid.protocol.messages import Access, Done, ListAccess, MakeToken, MemberView, TokenMade, Withdraw
from distributed_grid.protocol.text import format_duration, parse_duration

ROLES = [Role.AGENT.value, *(role.value for role in PEOPLE)]


@click.group(cls=LazyGroup)
def token() -> None:
    """Create, list and revoke tokens with which nodes and people join."""


@token.command()
@click.option("--role", type=click.Choice(ROLES), default="agent", help="Role of those who join (agent).")
@click.option("--node", type=not_empty, metavar="NAME", help="Name of the node, or a pattern such as 'lab*'.")
@click.option("--user", metavar="NAME", help="Name of the person.")
@click.option("--ttl", metavar="TIME", help="How long it is valid (1h; a bearer token 30d).")
@click.option("--uses", type=click.IntRange(1, MOST_USES), default=1, help="How often it may be used (1).")
@click.option("--label", "labels", multiple=True, metavar="K=V", help="A label of the nodes that join; repeatable.")
@click.option("--bearer", is_flag=True, help="A bearer token, which a person's programs show with each connection.")
def create(
    role: str, node: str | None, user: str | None, ttl: str | None, uses: int, labels: tuple[str, ...], bearer: bool
) -> None:
    """Create a token, and print the invitation for the new member.

    It is shown only once. Whoever has it can join: send it over a channel that you trust.
    """
    if node is not None and role != "agent":
        raise BadValue(f"--node is for agents, and this token is for a {role}", hint="say who it is with --user")
    if role != "agent" and not user:
        raise BadValue(f"for whom is this token of a {role}?", hint="say it with --user NAME")
    if role == "agent" and user:
        raise BadValue("--user is for people", hint="say --role client, operator or viewer; or --node for an agent")
    if labels and role != "agent" and not bearer:
        raise BadValue(f"--label is for nodes, and this token is for a {role}", hint="leave it out")
    if bearer and (role == "agent" or uses != 1 or labels):
        raise BadValue("a bearer token is for a person, without --uses and --label", hint="--role client --user NAME")
    ttl = ttl or ("30d" if bearer else "1h")
    invocation = current()
    given = dict(label_of(one) for one in labels)
    name, seconds = (node if role == "agent" else user) or "", parse_duration(ttl)
    made: TokenMade = invocation.ask(
        lambda n: MakeToken(id=n, role=Role(role), name=name, ttl=seconds, uses=uses, labels=given, bearer=bearer)
    )
    invitation = f"grid://{join_address(invocation) or f'{platform.node()}:{PORT}'}/{_pinned(made)}"
    about = {"token": made.token, "invitation": invitation, "role": role, "uses": uses}
    formatting.show(invocation, about, f"{invitation}\n", f"{invitation}\n")
    if invocation.output in ("json", "jsonl"):
        return
    command = "grid agent join" if role == "agent" else "grid login"
    if bearer:
        lasts = format_duration(seconds)
        invocation.say(f"{user} can use it for {lasts}: {command} INVITATION; `grid access` lists it")
        return
    often = "once" if uses == 1 else f"{uses} times"
    invocation.say(f"it can be used {often} within {format_duration(seconds)}: {command} INVITATION")


def join_address(invocation: Invocation) -> str:
    """Return HOST:PORT where new members reach the coordinator: the address of this connection if it uses TLS, else,
    with its Unix socket, the one that the coordinator reports. Empty: it has no such address. Raises
    GridUnavailable."""
    url = invocation.url()
    if url.startswith("unix:"):
        connected = invocation.connect()
        url = connected.reached_at
        connected.close()
    parts = urlsplit(url)
    if parts.scheme != "wss" or not parts.hostname:
        return ""
    return f"{_bracketed(parts.hostname)}:{parts.port or 443}"


@token.command(name="list")
def list_tokens() -> None:
    """List the tokens that are still valid. Their secrets are not kept."""
    invocation = current()
    access: Access = invocation.ask(lambda number: ListAccess(id=number))
    rows = [
        (one.id, one.role, one.name or "any", str(one.uses), formatting.clock(one.expires), one.creator)
        for one in access.tokens
    ]
    text = formatting.table(invocation, ("TOKEN", "ROLE", "FOR", "USES", "UNTIL", "MADE BY"), rows)
    ids = formatting.lines(one.id for one in access.tokens)
    formatting.show(invocation, {"tokens": [_json(one) for one in access.tokens]}, text, ids, "tokens")


@token.command()
@click.argument("token")
def revoke(token: str) -> None:
    """Revoke a token, given by its id or as a whole. Members who joined with it stay."""
    parts = token.rpartition("/")[2].split(".")
    invocation = current()
    done: Done = invocation.ask(lambda number: Withdraw(id=number, token=parts[2] if len(parts) == 4 else token))
    invocation.say(done.text)


@click.group(cls=LazyGroup, invoke_without_command=True)
@click.pass_context
def access(ctx: click.Context) -> None:
    """List who has access; `access revoke ROLE NAME` revokes it at once."""
    if ctx.invoked_subcommand is not None:
        return
    invocation = current()
    answer: Access = invocation.ask(lambda number: ListAccess(id=number))
    rows = [
        (one.role, one.name, formatting.clock(one.issued), formatting.clock(one.expires), _what(one))
        for one in answer.members
    ]
    text = formatting.table(invocation, ("ROLE", "NAME", "SINCE", "UNTIL", ""), rows)
    names = formatting.lines(dict.fromkeys(one.name for one in answer.members))
    formatting.show(invocation, {"members": [_json(one) for one in answer.members]}, text, names, "members")


@access.command(name="revoke")
@click.argument("role", type=click.Choice(ROLES))
@click.argument("name")
def revoke_access(role: str, name: str) -> None:
    """Revoke all certificates of a node or a person, and the tokens for that name, and close their connections."""
    invocation = current()
    done: Done = invocation.ask(lambda number: Withdraw(id=number, role=Role(role), name=name))
    invocation.say(done.text)


def _what(one: MemberView) -> str:
    return ", ".join([f"bearer token {one.serial}"] * one.bearer + ["taken back"] * bool(one.revoked))


def _pinned(made: TokenMade) -> str:
    """Return a token in the form of an invitation: a bearer token gets the pin of the authority, too."""
    if not made.pin:
        return made.token
    kind, _, rest = made.token.partition(".")
    return f"{kind}.{made.pin}.{rest}"


def label_of(text: str) -> tuple[str, str]:
    """A label as it is given on the command line: K=V. Raises BadValue."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise BadValue(f"--label {text!r} is no label", hint="write it as NAME=VALUE")
    return key, value


def _json(one: Any) -> dict[str, Any]:
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(one)
    times = {key: formatting.iso(plain[key]) for key in ("issued", "expires", "revoked") if key in plain}
    return plain | times


def read_invitation(text: str) -> str:
    """The invitation; `-`: a line of stdin. An invitation that was given as an argument is overwritten in what other
    users can see of this process."""
    if text != "-":
        hide_argument(text)
        return text
    if sys.stdin.isatty():
        asked: str = click.prompt("invitation", hide_input=True, err=True)
        return asked
    return sys.stdin.readline(INVITATION_CHARS).strip()


def hide_argument(secret: str) -> None:
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


@click.command(cls=Command)
@click.option(
    "--host", "hosts", multiple=True, metavar="NAME", help="A name or address of the coordinator; repeatable."
)
@click.option("--port", type=click.IntRange(1, 65535), help="Port of the coordinator (as configured; 7433).")
@click.option("--state-dir", metavar="DIR", shell_complete=complete_files, help="State directory of the coordinator.")
@click.option("--context", "context", default="default", metavar="NAME", help="Name of your own context.")
def init(hosts: tuple[str, ...], port: int | None, state_dir: str | None, context: str) -> None:
    """Create a grid: its certificate authority, its keys, and you as its first operator.

    Run it on the master, as the user who will run the coordinator. From then on every connection uses TLS 1.3, and
    everybody who connects has an identity.
    """
    invocation = current()
    config = invocation.whole_config({"coordinator.state_dir": state_dir})
    from distributed_grid.coordinator.access.joining import found, hosts_of

    folder = config.coordinator_state_dir()
    configured = config.coordinator.port or PORT
    url = f"wss://{_bracketed(hosts_of(hosts)[0] if hosts else 'localhost')}:{port or configured}"
    founded = found(folder, hosts, user_name(), contexts() / check_name("a context", context), url)
    use_context(context)
    own = " --user" if os.geteuid() else ""
    every = "::" if hosts and all(":" in host for host in hosts) else "0.0.0.0"  # noqa: S104
    more = (f" --port {port}" if port and port != configured else "") + (f" --state-dir {folder}" if state_dir else "")
    lines = [
        f"grid {founded.grid} is founded; its authority is in {folder / 'pki'} (keep ca.key secret, and a copy of it)",
        f"the coordinator's certificate is for {', '.join(founded.hosts)}",
        f"you ({user_name()}) are its first operator, by {contexts() / context}",
        "",
        f"next, on this machine:       grid coordinator install{own} --host {every}{more}",
        f"  or in the foreground:      grid coordinator run --host {every}{more}",
        "for each node, make a token: grid token create --role agent",
        "and on the node:             sudo grid agent install --join FILE, where FILE has the token",
        "  or in the foreground:      grid agent join grid://HOST:PORT/TOKEN, then grid agent run",
    ]
    about = {"grid": founded.grid, "pin": founded.pin, "hosts": founded.hosts, "url": url}
    formatting.show(invocation, about, formatting.lines(lines), f"{founded.grid}\n")


@click.command(cls=Command)
@click.option("--context", "context", default="default", metavar="NAME", help="Name of the new context.")
@click.argument("invitation", metavar="grid://HOST:PORT/TOKEN")
def login(context: str, invitation: str) -> None:
    """Join a grid as a person, with a token from one of its operators.

    With - the invitation is read from stdin, where other users cannot see it.
    """
    from distributed_grid.identity.enrollment import has_expired, join, parse_invitation

    folder = contexts() / check_name("a context", context)
    if folder.exists() and not (has_identity(folder) and has_expired(folder)):
        raise GridError(f"there is a context {context!r} already", hint="give another --context, or remove its folder")
    asked = parse_invitation(read_invitation(invitation))
    if asked.bearer:
        _keep_bearer(asked, context, folder)
        return
    joined = join(asked, user_name(), lambda _: folder, node=False)
    use_context(context)
    current().say(f"you are {joined.role} {joined.name} of grid {joined.grid}, by {folder}")


def _keep_bearer(asked: Any, name: str, folder: Path) -> None:
    """Log in by a bearer token: it is tried first, and kept only if it opens."""
    from distributed_grid.identity.enrollment import keep_bearer

    keep_bearer(asked, folder)
    try:
        with client(asked.url, identity=folder) as grid:
            write_member(folder, Member(asked.url, grid.grid, Role(grid.role), grid.user))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    use_context(name)
    current().say(f"you are {grid.role} {grid.user} of grid {grid.grid}, by {folder}")


@click.group(cls=LazyGroup)
def context() -> None:
    """List the grids you have joined, and choose one: list, use."""


@context.command(name="list")
def list_contexts() -> None:
    """List the grids you have joined."""
    invocation, used = current(), current_context()
    found = all_contexts()
    rows = [
        {"name": name, "url": one.url, "grid": one.grid, "role": one.role, "user": one.name, "used": name == used}
        for name, one in found
    ]
    cells = [("*" if name == used else "", name, one.url, one.role.value, one.name) for name, one in found]
    text = formatting.table(invocation, ("", "NAME", "COORDINATOR", "ROLE", "YOU ARE"), cells)
    names = formatting.lines([name for name, _ in found])
    formatting.show(invocation, {"contexts": rows}, text, names, "contexts")


@context.command()
@click.argument("name")
def use(name: str) -> None:
    """Use this grid from now on."""
    use_context(name)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
