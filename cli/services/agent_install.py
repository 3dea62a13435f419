"""`grid agent install` and what else there is about the agent as a service of this machine."""

import os
import platform
import pwd
import sys
from pathlib import Path
from typing import Any

import click

from distributed_grid.cli.context import Invocation, common, current
from distributed_grid.cli.services import agent_status, agent_stop, systemd
from distributed_grid.cli.services import words as service_words
from distributed_grid.cli.services.agent import _check_url, _settings, _settings_options
from distributed_grid.cli.services.agent_status import status_of
from distributed_grid.cli.services.units import Unit, program
from distributed_grid.protocol.errors import GridError

own_option = click.option("--user", "own", is_flag=True, help="A service of yours, in your own systemd.")


@click.command()
@common
@own_option
@click.option("--as", "runs_as", metavar="USER", help="The user it and its jobs run as (grid-agent, made if missing).")
@click.option("--join", "invitation", metavar="FILE", help="Join a grid first, invited by this file; - for stdin.")
@_settings_options
@click.option("--insecure", is_flag=True, help="Connect to a coordinator that is not on this machine, without TLS.")
def install(own: bool, runs_as: str | None, invitation: str | None, insecure: bool, **options: Any) -> None:
    """Install the agent as a service of this machine, or change how it runs, and start it.

    The options are those of `grid agent run` and are kept in the unit. Jobs that run go on. Run again with the same
    options it changes nothing."""
    invocation = current()
    invocation.failure = systemd.UNAVAILABLE
    systemd.require_systemd(own)
    invocation.failure = 1
    if own and runs_as:
        raise click.UsageError("--as names the user of a service of the machine; one of your own runs as you")
    if not own:
        systemd.require_root("agent", "install")
        systemd.make_user(runs_as or "grid-agent", Path("/var/lib/grid"))
    user = "" if own else runs_as or "grid-agent"
    if not own:
        systemd.check_runs(program(), user)
    if invitation is not None:
        options["name"] = _join(_read(invitation), options["name"], options["state_dir"])
    settings = _settings(invocation, options, "info")
    _check_url(settings.coordinator, insecure)
    state_dir = settings.state_dir.absolute()
    if user and user != "root":
        systemd.give(user, state_dir)
    argv = [*program(), "agent", "run", "--name", settings.name, "--state-dir", str(state_dir)]
    argv += service_words.where_and_how(invocation)
    argv += _said(options) + _owned(invocation, own, options)
    unit = Unit("agent", argv + ["--insecure"] * insecure, state_dir, user)
    change = systemd.install(unit)
    service_words.tell_installed(unit, change, {"node": settings.name, "coordinator": settings.coordinator})


def _said(options: dict[str, Any]) -> list[str]:
    """The options that were given, as they are given to `grid agent run`."""
    words = []
    for name in ("cores", "memory", "gpus", "gpu_backend", "kin", "walls", "trust"):
        if options[name] is not None:
            value = os.path.abspath(options[name]) if name == "kin" else options[name]
            words += [f"--{name.replace('_', '-')}", value]
    words += ["--virtual"] * options["virtual"]
    for owner in options["owners"]:
        words += ["--owner", owner]
    for label in options["labels"]:
        words += ["--label", label]
    return words


def _owned(invocation: Invocation, own: bool, options: dict[str, Any]) -> list[str]:
    """Whom a service of the machine belongs to, where nobody says it: root and who installs it. It runs as a user whom
    nobody works as."""
    config = invocation.whole_config()
    if own or options["owners"] or config.agent.owners:
        return []
    names = dict.fromkeys((os.environ.get("SUDO_USER", ""), pwd.getpwuid(0).pw_name))
    return [word for name in names if name for word in ("--owner", name)]


# --- joining ----------------------------------------------------------------------------------------------------------


def _read(source: str) -> str:
    """The invitation, which is a secret: not repeated in any error. It may be given itself, as to `grid agent join`."""
    if source.startswith("grid://"):
        return source
    try:
        text = sys.stdin.read(4096) if source == "-" else Path(source).read_text()
    except (OSError, ValueError) as error:
        raise GridError("the invitation cannot be read", why=str(error)) from None
    return text.strip()


def _join(invitation: str, name: str | None, state_dir: str | None) -> str:
    """Make this machine a node of that grid, if it is not one yet. The node's name."""
    from distributed_grid.identity import joining
    from distributed_grid.identity.member import read_member
    from distributed_grid.identity.tls import AUTHORITY, IDENTITY, has_identity

    asked = joining.parse_invitation(invitation)
    invocation = current()
    config = invocation.whole_config({"agent.state_dir": state_dir} if state_dir else {})
    proposed = name or config.agent.name or platform.node().partition(".")[0] or "node"

    def folder(given: str) -> Path:
        return Path(config.agent_state_dir(given)) / IDENTITY

    mine = folder(proposed)
    others = sorted(mine.parent.parent.glob(f"agent-*/{IDENTITY}")) if not name and mine != folder("") else []
    for one in [mine, *others]:
        if not has_identity(one) or (member := read_member(one)) is None:
            continue
        if joining.pin_in((one / AUTHORITY).read_text()) == asked.pin:
            invocation.say(f"this machine is node {member.name} of grid {member.grid} already; the invitation is kept")
            return member.name
        if one == mine:
            raise GridError(
                "this node has joined another grid already", why=f"by {one}", hint=f"remove {one} to leave it"
            )
    joined = joining.join(asked, proposed, folder, node=True)
    invocation.say(f"this machine is node {joined.name} of grid {joined.grid}")
    return joined.name


# --- after ------------------------------------------------------------------------------------------------------------


def _place_options(command: Any) -> Any:
    command = click.option("--state-dir", metavar="DIR", help="Where it keeps its state, if it is no service.")(command)
    command = click.option("--name", metavar="NODE", help="Its node, if it is no service (the host name).")(command)
    return own_option(command)


def _where(own: bool, name: str | None, state_dir: str | None) -> tuple[systemd.Installed | None, Path]:
    """The agent's service, if it is one, and its state directory."""
    if not name and not state_dir:
        found = systemd.look("agent", own)
        if found is not None and (place := systemd.state_dir_of(found)) is not None:
            return found, place
    config = current().whole_config({"agent.state_dir": state_dir} if state_dir else {})
    return None, Path(config.agent_state_dir(name or config.agent.name or platform.node().partition(".")[0]))


@click.command()
@common
@_place_options
@agent_stop.jobs_option
def stop(own: bool, name: str | None, state_dir: str | None, jobs: str | None, deadline: str | None) -> None:
    """Stop the agent, and say what is to become of its jobs; if nothing is said, they run on.

    While it waits (drain) nothing more is started. Jobs that are taken back end with a notice and their grace, and wait
    again for another node, or end as `recalled` with --no-requeue."""
    invocation = current()
    most = agent_stop.seconds(jobs, deadline)
    at, place = _where(own, name, state_dir)
    if at is not None and not at.own:
        systemd.require_root("agent", "stop")
    left = agent_stop.stop(invocation, place, at, agent_stop.chosen(jobs, place), most)
    agent_stop.tell(invocation, left, at)


@click.command()
@common
@own_option
@agent_stop.jobs_option
@click.option("--purge", is_flag=True, help="Remove its state, too: identity, logs and files of jobs.")
def uninstall(own: bool, jobs: str | None, deadline: str | None, purge: bool) -> None:
    """Stop the agent and remove its service. Its state is kept, and jobs run on, if nothing else is said."""
    invocation = current()
    most = agent_stop.seconds(jobs, deadline)
    at = systemd.find("agent", own)
    if not at.own:
        systemd.require_root("agent", "uninstall")
    place = systemd.state_dir_of(at)
    if place is not None:
        jobs = agent_stop.chosen(jobs, place)
        if purge and jobs == "keep" and (status_of(place) or {}).get("jobs"):
            raise GridError("jobs run here, and need the agent's state", hint="--jobs drain or --jobs kill")
        agent_stop.stop(invocation, place, at, jobs, most)
    service_words.uninstall(at, purge)


@click.command()
@common
@_place_options
def status(own: bool, name: str | None, state_dir: str | None) -> None:
    """Show how the agent of this machine is: its service, its connection, its jobs, and what it offers."""
    at, place = _where(own, name, state_dir)
    agent_status.show(current(), at, place)


@click.command("accept-loss")
@common
@_place_options
def accept_loss(own: bool, name: str | None, state_dir: str | None) -> None:
    """Say that nothing lives of what ran before this node's journal was damaged.

    The node takes no jobs until then, and the grid holds what it had started here: it is neither free nor run again.
    Look for processes of those jobs first; a reboot says the same.
    """
    _, place = _where(own, name, state_dir)
    agent_status.accept_loss(current(), place)


@click.command()
@common
@own_option
@service_words.log_options
def logs(own: bool, follow: bool, lines: int) -> None:
    """Print what the agent's service logged."""
    service_words.logs(systemd.find("agent", own), follow, lines)
