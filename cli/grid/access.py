"""`grid token` and `grid access`: who may come into the grid."""

from typing import Any

import click

from distributed_grid.cli import formatting
from distributed_grid.cli.context import common, current
from distributed_grid.cli.lazy import LazyGroup
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.identity import PEOPLE, Role
from distributed_grid.protocol.messages import Access, Done, ListAccess, MakeToken, MemberView, TokenMade, Withdraw
from distributed_grid.protocol.text import format_duration, parse_duration

ROLES = [Role.AGENT.value, *(role.value for role in PEOPLE)]


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@common
def token() -> None:
    """Make tokens with which nodes and people join, list them, take them back."""


@token.command()
@common
@click.option("--role", type=click.Choice(ROLES), default="agent", help="As what they join (agent).")
@click.option("--node", metavar="NAME", help="What the node will be called, or a pattern of it such as 'lab*'.")
@click.option("--user", metavar="NAME", help="What the person will be called.")
@click.option("--ttl", metavar="TIME", help="How long it may be used (1h; a bearer token 30d).")
@click.option("--uses", type=int, default=1, help="How often it may be used (1).")
@click.option("--label", "labels", multiple=True, metavar="K=V", help="A label of the nodes that join; repeatable.")
@click.option("--bearer", is_flag=True, help="A token that a person's programs show each time, instead of joining.")
def create(
    role: str, node: str | None, user: str | None, ttl: str | None, uses: int, labels: tuple[str, ...], bearer: bool
) -> None:
    """Make a token, and print the invitation to give to who is to join.

    It is shown this once. Whoever has it can join with it: send it on a way that you trust.
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
    connection = invocation.connect()
    try:
        name, seconds = (node if role == "agent" else user) or "", parse_duration(ttl)
        asked = MakeToken(
            id=connection.number(), role=Role(role), name=name, ttl=seconds, uses=uses, labels=given, bearer=bearer
        )
        made: TokenMade = connection.call(asked)
    finally:
        connection.close()
    invitation = f"grid://{invocation.url().partition('://')[2].rstrip('/')}/{_pinned(made)}"
    if invocation.output in ("json", "jsonl"):
        formatting.emit_json(invocation, {"token": made.token, "invitation": invitation, "role": role, "uses": uses})
        return
    formatting.emit(invitation + "\n")
    command = "grid agent join" if role == "agent" else "grid login"
    if bearer:
        invocation.say(f"{user} can use it for {format_duration(seconds)}: {command} INVITATION; grid access lists it")
        return
    often = "once" if uses == 1 else f"{uses} times"
    invocation.say(f"it can be used {often} within {format_duration(seconds)}: {command} INVITATION")


@token.command(name="list")
@common
def list_tokens() -> None:
    """List the tokens that still open something. Their secrets are not known any more."""
    invocation = current()
    access: Access = invocation.ask(lambda number: ListAccess(id=number))
    if invocation.output in ("json", "jsonl"):
        formatting.emit_json(invocation, {"tokens": [_json(one) for one in access.tokens]}, "tokens")
        return
    rows = [
        (one.id, one.role, one.name or "any", str(one.uses), formatting.clock(one.expires), one.creator)
        for one in access.tokens
    ]
    formatting.emit(formatting.table(invocation, ("TOKEN", "ROLE", "FOR", "USES", "UNTIL", "MADE BY"), rows))


@token.command()
@common
@click.argument("token")
def revoke(token: str) -> None:
    """Take a token back, by its id or as a whole. Who has joined with it stays."""
    parts = token.rpartition("/")[2].split(".")
    invocation = current()
    done: Done = invocation.ask(lambda number: Withdraw(id=number, token=parts[2] if len(parts) == 4 else token))
    invocation.say(done.text)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]}, invoke_without_command=True)
@common
@click.pass_context
def access(ctx: click.Context) -> None:
    """List who has access; `access revoke ROLE NAME` takes it back at once."""
    if ctx.invoked_subcommand is not None:
        return
    invocation = current()
    answer: Access = invocation.ask(lambda number: ListAccess(id=number))
    if invocation.output in ("json", "jsonl"):
        formatting.emit_json(invocation, {"members": [_json(one) for one in answer.members]}, "members")
        return
    rows = [
        (one.role, one.name, formatting.clock(one.issued), formatting.clock(one.expires), _what(one))
        for one in answer.members
    ]
    formatting.emit(formatting.table(invocation, ("ROLE", "NAME", "SINCE", "UNTIL", ""), rows))


@access.command(name="revoke")
@common
@click.argument("role", type=click.Choice(ROLES))
@click.argument("name")
def revoke_access(role: str, name: str) -> None:
    """Take back all certificates of a node or a person, and end their connections at once."""
    invocation = current()
    done: Done = invocation.ask(lambda number: Withdraw(id=number, role=Role(role), name=name))
    invocation.say(done.text)


def _what(one: MemberView) -> str:
    return ", ".join([f"bearer token {one.serial}"] * one.bearer + ["taken back"] * bool(one.revoked))


def _pinned(made: TokenMade) -> str:
    """A token as an invitation has it: who gets a bearer token is to know the authority, too."""
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
