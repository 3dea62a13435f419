"""`grid agent`: the agent of this machine: run it, install it as a service, join it to a grid, and show what it would
offer."""

import os
import platform
import pwd
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from distributed_grid.cli.context import Invocation, complete_files, current
from distributed_grid.cli.lazy import LazyGroup
from distributed_grid.cli.services import agent_control, service, systemd
from distributed_grid.cli.services.agent_control import status_of
from distributed_grid.cli.services.systemd import Unit, program
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.identity import INVITATION_CHARS
from distributed_grid.protocol.text import counted

if TYPE_CHECKING:
    from distributed_grid.protocol.nodes import NodeFacts, Offer, Sample


@click.group(cls=LazyGroup)
def agent() -> None:
    """Run or install the agent of this machine, or show what it would offer."""


def _settings_options(command: Any) -> Any:
    options = [
        click.option("--name", metavar="NODE", help="This node's name (the host name)."),
        click.option("--cores", metavar="LIST", help="Cores it manages, such as 0-3,6 (all it may use)."),
        click.option("--memory", metavar="SIZE", help="Memory it manages, such as 16G (all there is)."),
        click.option("--gpus", metavar="LIST", help="GPUs it manages, by UUID or index; none for none (all)."),
        click.option("--gpu-backend", metavar="NAME", help="How GPUs are read: auto, nvml, gputil, amd, none."),
        click.option("--virtual", is_flag=True, help="Number the cores without pinning to real ones (to try out)."),
        click.option(
            "--siblings",
            metavar="DIR",
            shell_complete=complete_files,
            help="Directory of sibling agents, whose jobs are not foreign.",
        ),
        click.option("--label", "labels", metavar="K=V", multiple=True, help="A label of this node; repeatable."),
        click.option("--walls", metavar="LEVEL", help="Walls for jobs: auto, user, namespace, landlock, none (auto)."),
        click.option(
            "--owner", "owners", metavar="USER", multiple=True, help="A user whose jobs run also behind weak walls."
        ),
        click.option("--trust", metavar="WHOM", help="Whose jobs run behind weak walls: owner or everyone (owner)."),
        click.option("--state-dir", metavar="DIR", shell_complete=complete_files, help="State directory."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@agent.command()
@_settings_options
@click.option("--insecure", is_flag=True, help="Connect to a coordinator that is not on this machine, without TLS.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", hidden=True)
def run(insecure: bool, log_level: str, **options: Any) -> None:
    """Run the agent in the foreground until SIGTERM. Jobs continue without it."""
    invocation = current()
    settings = _settings(invocation, options, log_level)
    _check_url(settings.coordinator, insecure)
    if insecure:
        invocation.say("INSECURE: no TLS, no authentication; whoever controls the coordinator runs commands here")
    from distributed_grid.agent.main import main

    raise SystemExit(main(settings))


@agent.command()
@click.option("--name", metavar="NODE", help="Name of this node, if the token does not set it (the host name).")
@click.option("--state-dir", metavar="DIR", shell_complete=complete_files, help="State directory of its agent.")
@click.argument("invitation", metavar="grid://HOST:PORT/TOKEN")
def join(name: str | None, state_dir: str | None, invitation: str) -> None:
    """Make this machine a node of a grid, with a token from `grid token create` on the master.

    With - the invitation is read from stdin, where other users cannot see it.
    """
    from distributed_grid.cli.grid.access import read_invitation
    from distributed_grid.identity import enrollment
    from distributed_grid.identity.credentials import IDENTITY, has_identity
    from distributed_grid.identity.enrollment import has_expired

    asked = enrollment.parse_invitation(read_invitation(invitation))
    config = current().whole_config({"agent.state_dir": state_dir})
    proposed = config.node_name(name)

    def folder(named: str) -> Path:
        return config.agent_state_dir(named) / IDENTITY

    if has_identity(folder(proposed)) and not has_expired(folder(proposed)):
        where = folder(proposed)
        raise GridError("this node has joined a grid already", why=f"by {where}", hint=f"remove {where} to leave it")
    joined = enrollment.join(asked, proposed, folder, node=True)
    run = "grid agent run" + (f" --name {joined.name}" if joined.name != platform.node().partition(".")[0] else "")
    run += f" --state-dir {state_dir}" if state_dir else ""
    current().say(f"this machine is node {joined.name} of grid {joined.grid}; next: {run}")


@agent.command()
@_settings_options
def detect(**options: Any) -> None:
    """Show the resources of this machine, and what it would offer now. Needs no coordinator."""
    invocation = current()
    settings = _settings(invocation, options, "warning")
    from distributed_grid.agent import main

    _show(invocation, *main.detect(settings))


def _settings(invocation: Invocation, options: dict[str, Any], log_level: str) -> Any:
    """AgentSettings from flags over environment over file over defaults."""
    if options["memory"] is not None and options["memory"].strip() == "0":
        hint = "leave it out for all there is; to lend none: grid node set NODE --memory 0"
        raise BadValue("--memory 0 manages no memory", hint=hint)
    if options["gpus"] == "none":
        options = {**options, "gpus": None, "gpu_backend": "none"}
    plain = ("name", "cores", "memory", "gpus", "gpu_backend", "siblings", "walls", "trust", "state_dir")
    flags = {f"agent.{name}": options[name] for name in plain}
    flags |= {f"agent.{name}": ",".join(options[name] or ()) or None for name in ("owners", "labels")}
    flags |= {
        "agent.virtual": "true" if options["virtual"] else None,
        "coordinator.url": invocation.coordinator or None,
    }
    config = invocation.whole_config(flags)
    from distributed_grid.agent.main import AgentSettings
    from distributed_grid.identity.credentials import IDENTITY
    from distributed_grid.identity.member import read_member
    from distributed_grid.protocol.identity import check_name

    own = config.agent
    name = check_name("a node", config.node_name())
    member = read_member(config.agent_state_dir(name) / IDENTITY)
    labels = (member.labels if member is not None else {}) | own.labels
    return AgentSettings(config, name, config.agent_url(member), labels, log_level)


def _check_url(url: str, insecure: bool) -> None:
    from urllib.parse import urlsplit

    from distributed_grid.protocol.errors import GridError
    from distributed_grid.runtime.local import socket_path

    if socket_path(url) is not None:
        return
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme != "wss" and host not in ("127.0.0.1", "localhost", "::1") and not insecure:
        raise GridError(
            f"the agent does not connect to {url}",
            why="without TLS, whoever answers there could run commands on this machine",
            hint="grid agent join grid://HOST:PORT/TOKEN first; or --insecure, where the network is yours alone",
        )


# --- detect -----------------------------------------------------------------------------------------------------------


def _show(
    invocation: Invocation, facts: "NodeFacts", sample: "Sample", offer: "Offer", missing: dict[str, str]
) -> None:
    import msgspec

    from distributed_grid.cli import formatting
    from distributed_grid.protocol.resources import format_ranges

    virtual = " virtual" if facts.virtual else ""
    lines = [
        f"node      {facts.name} on {facts.hostname}, Python {facts.python}, {os.cpu_count()} cores in the machine",
        f"cores     {len(facts.cores)}{virtual} managed: {format_ranges(facts.cores)}; "
        f"others keep {sample.foreign_cpu:.1f} of them busy, load {sample.load:g}",
        f"memory    {formatting.memory(facts.memory)} managed; others use {formatting.memory(sample.memory_foreign)}",
        f"disk      {formatting.memory(sample.disk_free)} of {formatting.memory(sample.disk_total)} free",
    ]
    for gpu in facts.gpus:
        mark = " (stand-in, no real device)" if gpu.stand_in and "stand-in" not in gpu.model.lower() else ""
        seen = next((one for one in sample.gpus if one.uuid == gpu.uuid), None)
        busy = counted(len(seen.processes), "process", "processes") if seen else ""
        use = f"{seen.utilisation:.0f} % busy, {busy}" if seen and not seen.error else ""
        use = f"cannot be read: {seen.error}" if seen and seen.error else use
        lines.append(f"gpu {gpu.index}     {gpu.model}{mark} {gpu.uuid}, {formatting.memory(gpu.memory)}; {use}")
    if not facts.gpus:
        lines.append(f"gpu       none{f' ({sample.gpu_error})' if sample.gpu_error else ''}")
    lines.append(f"walls     {facts.walls}{f'; no stronger ones: {facts.walls_why}' if facts.walls_why else ''}")
    if facts.nameless:
        lines.append(f"          its jobs have no name, which ssh and whoami need: {facts.nameless}")
    lines.append(f"runs      jobs of {formatting.whose_jobs(facts.walls, facts.owners, facts.trusts)}")
    lines.append(f"ends      of jobs are known by their {facts.ends}")
    lines.append("limits    " + ", ".join(f"{name}: {how}" for name, how in facts.limits.items()))
    for why in dict.fromkeys(missing.values()):
        names = ", ".join(name for name in missing if missing[name] == why)
        lines.append(f"          no cgroup of {names}: {why}")
    lines += ["", f"would lend at most  {facts.lendable}", f"would offer now     {offer.resources}"]
    if offer.cores:
        lines.append(f"                    cores {format_ranges(offer.cores)}")
    lines += [f"                    {gpu.uuid} ({gpu.model})" for gpu in offer.gpus]
    lines += [f"not offered         {one.what}: {one.why}" for one in offer.withheld]
    parts = {"facts": facts, "sample": sample, "offer": offer, "no_cgroup": missing}
    content = {key: msgspec.to_builtins(value, str_keys=True) for key, value in parts.items()}
    formatting.show(invocation, content, formatting.lines(lines), f"{offer.resources}\n")


own_option = click.option("--user", "own", is_flag=True, help="A user service, in your own systemd.")


@agent.command()
@own_option
@click.option(
    "--as", "runs_as", metavar="USER", help="The user it and its jobs run as (grid-agent, created if missing)."
)
@click.option(
    "--join",
    "invitation",
    metavar="FILE",
    shell_complete=complete_files,
    help="Join a grid first, invited by this file; - for stdin.",
)
@_settings_options
@click.option("--insecure", is_flag=True, help="Connect to a coordinator that is not on this machine, without TLS.")
def install(own: bool, runs_as: str | None, invitation: str | None, insecure: bool, **options: Any) -> None:
    """Install the agent as a service of this machine, or change how it runs, and start it.

    The options are those of `grid agent run` and are kept in the unit. Running jobs continue. A second call with the
    same options changes nothing."""
    invocation = current()
    invocation.failure = systemd.UNAVAILABLE
    systemd.require_systemd(own)
    invocation.failure = 1
    if own and runs_as:
        raise click.UsageError("--as names the user of a service of the machine; one of your own runs as you")
    if not own:
        systemd.require_root("agent", "install")
        systemd.make_user(runs_as or "grid-agent", systemd.STATE)
    user = "" if own else runs_as or "grid-agent"
    if not own:
        systemd.check_runs(program(), user)
    if invitation is not None:
        options["name"] = _join(_read(invitation), options["name"], options["state_dir"])
    elif options["name"] is None and not invocation.whole_config().agent.name:
        # The host may have had another name when it became a node.
        options["name"] = systemd.option_of(systemd.Installed("agent", own), "--name") or None
    settings = _settings(invocation, options, "info")
    _check_url(settings.coordinator, insecure)
    state_dir = settings.state_dir.absolute()
    if user and user != "root":
        systemd.give(user, state_dir)
    argv = [*program(), "agent", "run", "--name", settings.name, "--state-dir", str(state_dir)]
    argv += service.common_options(invocation)
    argv += _said(options) + _owned(invocation, own, options)
    unit = Unit("agent", argv + ["--insecure"] * insecure, state_dir, user)
    change = systemd.install(unit)
    service.show_installed(unit, change, {"node": settings.name, "coordinator": settings.coordinator})


def _said(options: dict[str, Any]) -> list[str]:
    """The options that were given, as they are given to `grid agent run`."""
    words = []
    for name in ("cores", "memory", "gpus", "gpu_backend", "siblings", "walls", "trust"):
        if options[name] is not None:
            value = os.path.abspath(options[name]) if name == "siblings" else options[name]
            words += [f"--{name.replace('_', '-')}", value]
    words += ["--virtual"] * options["virtual"]
    for owner in options["owners"]:
        words += ["--owner", owner]
    for label in options["labels"]:
        words += ["--label", label]
    return words


def _owned(invocation: Invocation, own: bool, options: dict[str, Any]) -> list[str]:
    """Return the owners of a machine's service if none are given: root and the user who installs it. The service itself
    runs as a user of its own."""
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
        if source == "-":
            return sys.stdin.read(INVITATION_CHARS).strip()
        with Path(source).open() as opened:
            return opened.read(INVITATION_CHARS).strip()
    except (OSError, ValueError) as error:
        raise GridError("the invitation cannot be read", why=str(error)) from None


def _join(invitation: str, name: str | None, state_dir: str | None) -> str:
    """Make this machine a node of that grid, if it is not one yet. The node's name."""
    from distributed_grid.identity import enrollment
    from distributed_grid.identity.credentials import AUTHORITY, IDENTITY, has_identity
    from distributed_grid.identity.member import read_member

    asked = enrollment.parse_invitation(invitation)
    invocation = current()
    config = invocation.whole_config({"agent.state_dir": state_dir})
    proposed = config.node_name(name)

    def folder(given: str) -> Path:
        return config.agent_state_dir(given) / IDENTITY

    mine = folder(proposed)
    others = sorted(mine.parent.parent.glob(f"agent-*/{IDENTITY}")) if not name and mine != folder("") else []
    for one in [mine, *others]:
        if not has_identity(one) or (member := read_member(one)) is None:
            continue
        if enrollment.pin_in((one / AUTHORITY).read_text()) == asked.pin:
            invocation.say(f"this machine is node {member.name} of grid {member.grid} already; the invitation is kept")
            return member.name
        if one == mine:
            raise GridError(
                "this node has joined another grid already", why=f"by {one}", hint=f"remove {one} to leave it"
            )
    joined = enrollment.join(asked, proposed, folder, node=True)
    invocation.say(f"this machine is node {joined.name} of grid {joined.grid}")
    return joined.name


# --- after ------------------------------------------------------------------------------------------------------------


def _place_options(command: Any) -> Any:
    command = click.option(
        "--state-dir",
        metavar="DIR",
        shell_complete=complete_files,
        help="State directory, if it is not installed as a service.",
    )(command)
    command = click.option(
        "--name", metavar="NODE", help="Name of its node, if it is not installed as a service (the host name)."
    )(command)
    return own_option(command)


def _where(own: bool, name: str | None, state_dir: str | None) -> tuple[systemd.Installed | None, Path]:
    """The agent's service, if it is one, and its state directory."""
    if not name and not state_dir:
        found = systemd.installed("agent", own)
        if found is not None and (place := systemd.state_dir_of(found)) is not None:
            return found, place
    config = current().whole_config({"agent.state_dir": state_dir})
    return None, config.agent_state_dir(config.node_name(name))


@agent.command()
@_place_options
@agent_control.jobs_option
def stop(own: bool, name: str | None, state_dir: str | None, jobs: str | None, deadline: str | None) -> None:
    """Stop the agent. Its jobs run on, unless --jobs says otherwise.

    While it waits (drain), no job is started. Jobs that are stopped get a notice and their grace period, and are
    queued again, or end as `recalled` with --no-requeue."""
    invocation = current()
    most = agent_control.seconds(jobs, deadline)
    at, place = _where(own, name, state_dir)
    if at is not None and not at.own:
        systemd.require_root("agent", "stop")
    left = agent_control.stop(invocation, place, at, agent_control.chosen(jobs, place), most)
    agent_control.show_stopped(invocation, left, at)


@agent.command()
@own_option
@agent_control.jobs_option
@click.option("--purge", is_flag=True, help="Remove its state, too: identity, logs and files of jobs; and its user.")
def uninstall(own: bool, jobs: str | None, deadline: str | None, purge: bool) -> None:
    """Stop the agent and remove its service. Its state is kept and its jobs run on, unless options say otherwise.

    With --purge the user grid-agent, or --as, is removed if `install` made it."""
    invocation = current()
    most = agent_control.seconds(jobs, deadline)
    at = systemd.find("agent", own)
    if not at.own:
        systemd.require_root("agent", "uninstall")
    place = systemd.state_dir_of(at)
    if place is not None:
        jobs = agent_control.chosen(jobs, place)
        if purge and jobs == "keep" and (status_of(place) or {}).get("jobs"):
            raise GridError("jobs run here, and need the agent's state", hint="--jobs drain or --jobs kill")
        agent_control.stop(invocation, place, at, jobs, most)
    service.uninstall(at, purge)


@agent.command()
@_place_options
def status(own: bool, name: str | None, state_dir: str | None) -> None:
    """Show the agent of this machine: its service, its connection, its jobs, and what it offers."""
    at, place = _where(own, name, state_dir)
    agent_control.show(current(), at, place)


@agent.command("accept-loss")
@_place_options
def accept_loss(own: bool, name: str | None, state_dir: str | None) -> None:
    """Confirm that no process is left of jobs from before this node's journal was damaged.

    Until then the node takes no jobs, and the grid keeps the allocations that it had here. Look for processes of
    those jobs first; a reboot confirms the same.
    """
    _, place = _where(own, name, state_dir)
    agent_control.accept_loss(current(), place)


@agent.command()
@own_option
@service.log_options
def logs(own: bool, follow: bool, lines: int) -> None:
    """Print the log of the agent's service."""
    service.logs(systemd.find("agent", own), follow, lines)
