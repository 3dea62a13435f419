"""`grid quota`: what users and groups may request, hold and use, and how much of it is left; operators grant rights."""

from typing import Any

import click

from distributed_grid.cli import formatting
from distributed_grid.cli.context import current
from distributed_grid.cli.lazy import LazyGroup
from distributed_grid.cli.options import not_empty
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.messages import Done, GetQuota, Quotas, SetRights
from distributed_grid.protocol.messages.rights import LIMITS, UNLIMITED, Quota, Rights, Whose, limit_words, parse_rights
from distributed_grid.protocol.resources import MILLI

HEADER = ("WHO", "RIGHT", "LIMIT", "USED", "LEFT")


class _QuotaGroup(LazyGroup):
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Takes a word that is not a command as a user: `grid quota ann` is `grid quota show ann`."""
        known = args[0] in self.list_commands(ctx) or args[0].startswith("-")
        return super().resolve_command(ctx, args if known else ["show", *args])


@click.group(cls=_QuotaGroup, invoke_without_command=True)
@click.pass_context
def quota(ctx: click.Context) -> None:
    """Show what a user may request, hold and use: show [USER], set, unset.

    Without a command it shows one's own rights, and to operators those of all users and groups.
    """
    if ctx.invoked_subcommand is None:
        _show("")


@quota.command()
@click.argument("user", required=False, type=not_empty)
def show(user: str | None) -> None:
    """Show the rights of a user: limits, what is used, what is left."""
    _show(user or "")


def _whose(command: Any) -> Any:
    """Add the options that name who gets the rights."""
    for option in (
        click.option("--default", "everybody", is_flag=True, help="For all users but operators."),
        click.option("--group", metavar="GROUP", help="For a group of the configuration."),
        click.argument("user", required=False, default=""),
    ):
        command = option(command)
    return command


@quota.command("set")
@_whose
@click.option("--highest-priority", metavar="PRIORITY", help="Highest priority of jobs.")
@click.option("--cores", metavar="N", help="Cores held at once; this and all other limits may be `unlimited`.")
@click.option("--memory", metavar="SIZE", help="Memory held at once, in GB or as 64G.")
@click.option("--gpus", metavar="N", help="GPUs held at once.")
@click.option("--core-hours", metavar="N", help="Core-hours used in a day of UTC.")
@click.option("--gpu-hours", metavar="N", help="GPU-hours used in a day of UTC.")
@click.option("--jobs-waiting", metavar="N", help="Jobs that wait, with the members of arrays and gangs.")
@click.option("--exclusive-boosts/--no-exclusive-boosts", default=None, help="May request exclusive boosts.")
@click.option("--reservations/--no-reservations", default=None, help="Nodes are reserved for jobs that cannot start.")
def set_(user: str, group: str | None, everybody: bool, **rights: Any) -> None:
    """Grant rights to a USER, to a group, or to everybody.

    Granted rights override the configuration, also across restarts, until `unset`. Rights that are not named stay as
    they are. A lower limit never ends a running job.
    """
    given = {name: value for name, value in rights.items() if value is not None}
    if not given:
        raise BadValue("no right is named", hint="such as --cores 8; see: grid quota set --help")
    _send(user, group, everybody, parse_rights(given))


@quota.command()
@_whose
def unset(user: str, group: str | None, everybody: bool) -> None:
    """Revoke granted rights, so that the configuration is in effect again."""
    _send(user, group, everybody, None)


def _send(user: str, group: str | None, everybody: bool, rights: Rights | None) -> None:
    named = [(Whose.USER, user)] * bool(user) + [(Whose.GROUP, group or "")] * (group is not None)
    named += [(Whose.DEFAULT, "")] * everybody
    if len(named) != 1:
        raise BadValue("whose rights?", hint="name one of: USER, --group GROUP, --default")
    invocation = current()
    whose, name = named[0]
    answer: Done = invocation.ask(lambda n: SetRights(id=n, whose=whose, name=name, rights=rights))
    invocation.say(answer.text)


# --- what is shown ----------------------------------------------------------------------------------------------------


def _show(user: str) -> None:
    invocation = current()
    answer: Quotas = invocation.ask(lambda n: GetQuota(id=n, user=user))
    users = [one for one in answer.quotas if one.whose is Whose.USER]
    rows = [row for one in answer.quotas for row in _rows(one, whole=len(users) == 1)]
    turns = f"a day ends at {formatting.clock(answer.turns)} (docs/rights.md)\n"
    content = {"quotas": list(map(_json, answer.quotas)), "turns": formatting.iso(answer.turns)}
    brief = "".join(f"{_who(one)} {one.rights.words()}".rstrip() + "\n" for one in answer.quotas)
    formatting.show(invocation, content, formatting.table(invocation, HEADER, rows) + "\n" + turns, brief, "quotas")


def _who(one: Quota) -> str:
    if one.whose is not Whose.USER:
        return f"{one.whose} {one.name}".rstrip()
    return f"{one.name} (operator)" if one.operator else one.name


def _rows(one: Quota, whole: bool) -> list[tuple[str, ...]]:
    """The rights that are set; `whole`: also the limits that are not."""
    rights, who, used = one.rights, _who(one), _used(one)
    rows: list[tuple[str, ...]] = []
    if rights.highest_priority is not None:
        rows.append((who, "highest priority", rights.highest_priority.word, "-", "-"))
    for name in LIMITS:
        limit = getattr(rights, name)
        if limit not in (None, UNLIMITED):
            left = limit_words(name, max(0, limit - used[name]))
            rows.append((who, _NAMES[name], limit_words(name, limit), limit_words(name, used[name]), left))
        elif whole and name in _ALWAYS_COUNTED:
            rows.append((who, _NAMES[name], "unlimited", limit_words(name, used[name]), "-"))
    for name in ("exclusive_boosts", "reservations"):
        if getattr(rights, name) is False:
            rows.append((who, name.replace("_", " "), "no", "-", "-"))
    return rows


_NAMES = {
    "cores": "cores", "memory": "memory", "gpus": "gpus", "core_hours": "core-hours a day",
    "gpu_hours": "gpu-hours a day", "jobs_waiting": "jobs waiting",
}  # fmt: skip
_ALWAYS_COUNTED = ("cores", "memory", "gpus", "jobs_waiting")


def _used(one: Quota) -> dict[str, int]:
    return {
        "cores": one.holds.cpu, "memory": one.holds.memory, "gpus": one.holds.gpu, "core_hours": one.core_hours,
        "gpu_hours": one.gpu_hours, "jobs_waiting": one.waiting,
    }  # fmt: skip


def _json(one: Quota) -> dict[str, Any]:
    rights, used = one.rights, _used(one)
    limits = {name: None if (limit := getattr(rights, name)) == UNLIMITED else limit for name in LIMITS}
    left = {name: max(0, limit - used[name]) if limit is not None else None for name, limit in limits.items()}
    return {
        "whose": one.whose.value,
        "name": one.name,
        "operator": one.operator,
        "members": list(one.members),
        "highest_priority": rights.highest_priority.word if rights.highest_priority is not None else None,
        "exclusive_boosts": rights.exclusive_boosts,
        "reservations": rights.reservations,
        "limits": {name: _number(name, value) for name, value in limits.items()},
        "used": {name: _number(name, value) for name, value in used.items()},
        "left": {name: _number(name, value) for name, value in left.items()},
    }


def _number(name: str, value: int | None) -> float | int | None:
    """Cores, GPUs and hours as such, memory in bytes; None: unlimited."""
    return value if value is None or name in ("memory", "jobs_waiting") else value / MILLI
