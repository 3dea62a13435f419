"""`grid coordinator`: the service on the master, and the backup of its state."""

import os
import shutil
import sys
from pathlib import Path

import click

from distributed_grid.cli import formatting
from distributed_grid.cli.context import complete_files, current, print_error, printable
from distributed_grid.cli.lazy import LazyGroup
from distributed_grid.cli.services import service, systemd
from distributed_grid.cli.services.systemd import Unit, program
from distributed_grid.coordinator.client.session import user_name
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.messages import Done, ReloadSettings
from distributed_grid.protocol.resources import format_bytes
from distributed_grid.protocol.text import counted


@click.group(cls=LazyGroup)
def coordinator() -> None:
    """Install, run, reload, back up, restore or check the coordinator."""


@coordinator.command()
@click.option("--host", metavar="ADDRESS", help="Address to listen on (127.0.0.1).")
@click.option("--port", metavar="PORT", help="Port to listen on (7433); 0 takes a free one.")
@click.option("--state-dir", metavar="DIR", shell_complete=complete_files, help="State directory.")
@click.option("--insecure", is_flag=True, help="Listen on an address that is not loopback, without TLS.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", hidden=True)
def run(host: str | None, port: str | None, state_dir: str | None, insecure: bool, log_level: str) -> None:
    """Run the coordinator in the foreground until SIGTERM. Agents and jobs continue without it."""
    given = {"coordinator.host": host, "coordinator.port": port, "coordinator.state_dir": state_dir}
    invocation = current()
    from distributed_grid.coordinator.main import EX_CONFIG, CoordinatorSettings, main

    try:
        config = invocation.whole_config(given)
    except GridError as error:
        print_error("\n".join(error.lines()))
        raise SystemExit(EX_CONFIG) from None
    raise SystemExit(main(CoordinatorSettings(config, insecure, log_level, lambda: invocation.whole_config(given))))


@coordinator.command()
def reload() -> None:
    """Have the coordinator read its configuration again.

    The sections resource_sharing and nodes take effect on the nodes at once; for all other sections the coordinator has
    to be restarted. A configuration with an error changes nothing."""
    invocation = current()
    answer: Done = invocation.ask(lambda n: ReloadSettings(id=n))
    invocation.say(answer.text)


# --- keeping ----------------------------------------------------------------------------------------------------------


def _clean_up_when_ended() -> None:
    """Handle the signals that end a service as ^C, which cleans up."""
    import signal

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)


def _state_dir(given: str | None) -> Path:
    return service.coordinator_place(current().whole_config({"coordinator.state_dir": given}))


@coordinator.command()
@click.argument("directory", metavar="DIR", shell_complete=complete_files)
@click.option("--state-dir", metavar="DIR", shell_complete=complete_files, help="State directory of the coordinator.")
@click.option("--force", is_flag=True, help="Replace an existing backup.")
def backup(directory: str, state_dir: str | None, force: bool) -> None:
    """Write a backup to DIR, a new directory. The coordinator may run meanwhile.

    It contains a consistent copy of the store, and the shipped files of its live jobs."""
    from distributed_grid.coordinator.backup.archive import backup as make

    _clean_up_when_ended()
    invocation = current()
    made = make(_state_dir(state_dir), Path(directory), force)
    for job in made.lacking:
        invocation.say(f"warning: {job} lacks shipped files, which are gone from the coordinator")
    about = {
        "path": str(made.path),
        "taken": formatting.iso(made.content.at),
        "jobs": {"live": made.content.live, "ended": made.content.ended},
        "blobs": made.blobs,
        "bytes": made.size,
        "lacking": made.lacking,
    }
    jobs = f"{made.content.live} live and {made.content.ended} ended jobs"
    text = f"{made.path}: {jobs}, {counted(made.blobs, 'shipped file')}, {format_bytes(made.size)}"
    formatting.show(invocation, about, formatting.lines([text]), f"{made.path}\n")


@coordinator.command()
@click.argument("source", metavar="DIR", shell_complete=complete_files)
@click.option(
    "--state-dir", metavar="DIR", shell_complete=complete_files, help="New state directory of the coordinator."
)
@click.option("--force", is_flag=True, help="Move an existing state directory aside; it is not removed.")
@click.option("--resume", is_flag=True, help="Let waiting jobs run: nothing ran since the backup was taken.")
def restore(source: str, state_dir: str | None, force: bool, resume: bool) -> None:
    """Restore the coordinator from a backup in DIR, and run nothing twice.

    Jobs that waited when it was taken may have run since: they are ended as `restored`, to be submitted again,
    unless --resume says that nothing ran. Jobs that run on nodes continue. Agents obey the restored coordinator,
    and never again the old one. Jobs submitted after the backup are no longer known."""
    from distributed_grid.coordinator.backup.archive import restore as make

    _clean_up_when_ended()
    invocation = current()
    place = _state_dir(state_dir)
    made = make(Path(source), place, force, resume)
    about = {
        "state_dir": str(place),
        "taken": formatting.iso(made.content.at),
        "epoch": made.epoch,
        "jobs": {"held_back": made.held_back, "on_nodes": made.on_nodes, "ended": made.content.ended},
        "before": str(made.before or ""),
        "revocations_unknown": made.unknown,
    }
    if made.unknown:
        invocation.say(
            f"warning: who was revoked, or has joined, since the backup is not known ({made.unknown}): revoke again"
            " whom you have revoked since (grid access revoke); who has joined since has to join again"
        )
    lines = [f"{place}: restored as it was on {formatting.clock(made.content.at)}, epoch {made.epoch}"]
    if made.on_nodes:
        lines.append(f"{made.on_nodes} of its jobs held resources then: their nodes will say what became of them")
    if made.held_back:
        lines.append(
            f"{made.held_back} of its jobs waited then and are ended as `restored`: submit again what should run"
        )
    lines.append("jobs submitted since are not known any more; those that run on nodes are left to run on")
    if made.before:
        lines.append(f"what was there before is in {made.before}")
    formatting.show(invocation, about, formatting.lines(lines), f"{place}\n")


@coordinator.command()
@click.option(
    "--state-dir", metavar="DIR", shell_complete=complete_files, help="State directory of the coordinator, or a backup."
)
@click.option(
    "--agent-state-dir",
    "agent_dirs",
    metavar="DIR",
    shell_complete=complete_files,
    multiple=True,
    help="State directory of an agent to check instead; repeatable.",
)
def check(state_dir: str | None, agent_dirs: tuple[str, ...]) -> None:
    """Check the consistency of the stored state; exit with 1 if it is damaged.

    The services may run meanwhile; nothing is changed. With --agent-state-dir the coordinator's is checked only if
    --state-dir is given, too."""
    checked: list[str] = []
    found: list[tuple[str, str, str]] = []
    more = 0
    if state_dir is not None or not agent_dirs:
        from distributed_grid.coordinator.backup.check import check as check_store

        place = _state_dir(state_dir)
        store = check_store(place)
        found, more = [*store.findings], store.more
        what = store.content
        checked.append(f"{place}: {what.live} live and {what.ended} ended jobs" if what else str(place))
    for name in agent_dirs:
        from distributed_grid.agent.diagnostics import check_state as check_agent

        checked.append(name)
        found += check_agent(Path(name))
    findings = [dict(zip(("where", "what", "hint"), one, strict=True)) for one in found]
    lines = [line for where, what, hint in found for line in (f"{where}: {what}", f"  try: {hint}")]
    lines += [f"and {more} more"] * bool(more)
    lines = lines or [f"all is well in {one}" for one in checked]
    about = {"checked": checked, "findings": findings, "more": more}
    formatting.show(current(), about, formatting.lines(lines), f"{len(found) + more}\n")
    raise SystemExit(1 if found else 0)


ALL = "each may have been started since this store, and be over"


@coordinator.command("accept-loss")
@click.option("--state-dir", metavar="DIR", shell_complete=complete_files, help="State directory of the coordinator.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--resume", is_flag=True, help="Run the jobs that wait, also those that may have run already.")
@click.option("--end-waiting", is_flag=True, help="End the jobs that wait, as `restored`.")
def accept_loss(state_dir: str | None, yes: bool, resume: bool, end_waiting: bool) -> None:
    """Continue although the coordinator's store has lost commits, is gone, or cannot be read.

    Reports the known losses and asks. Ended jobs stay as they are; jobs that run on nodes continue, and their
    results are taken; lost jobs are no longer known.

    Jobs that wait in the store may have run since; this cannot be known. If there are any, you choose: --resume
    runs them, so that some may run a second time; --end-waiting ends them, so that their users have to submit them
    again. Nothing changes before you have chosen.

    With a backup, `grid coordinator restore` may be better. The coordinator may run or not."""
    from distributed_grid.coordinator.backup.accept_loss import accept, known

    invocation = current()
    place = _state_dir(state_dir)
    found = known(place)
    invocation.say(f"what is known to be lost in {place}:")
    for one in found.found:
        invocation.say(f"  {printable(one)}")
    if found.unreadable:
        invocation.say("  the store cannot be read: it is set aside, and a new one begins, without any of its jobs")
    if resume and end_waiting:
        raise click.UsageError("--resume and --end-waiting contradict each other")
    if found.waiting:
        jobs = "1 job that waits" if found.waiting == 1 else f"{found.waiting} jobs that wait"
        if not (resume or end_waiting):
            why = "it may have been started since this store, and be over" if found.waiting == 1 else ALL
            hint = "--resume runs what waits, perhaps a second time; --end-waiting ends it, to be submitted again"
            raise GridError(f"say what becomes of {jobs}", why, hint)
        invocation.say(f"{jobs}: {'run, also where they ran already' if resume else 'ended as `restored`'}")
    if not yes:
        if not sys.stdin.isatty():
            raise GridError("there is no terminal to ask on", hint="grid coordinator accept-loss --yes")
        if not click.confirm("Go on without what is lost?", err=True):
            raise GridError("nothing is accepted, and nothing was changed")
    said = accept(place, f"{user_name()} (uid {os.getuid()})", resume)
    text = formatting.lines([said])
    formatting.show(invocation, {"state_dir": str(place), "found": list(found.found), "done": said}, text, text)


USER = "grid-coordinator"
own_option = click.option("--user", "own", is_flag=True, help="A user service, in your own systemd.")


@coordinator.command()
@own_option
@click.option("--host", metavar="ADDRESS", help="Address to listen on (127.0.0.1).")
@click.option("--port", metavar="PORT", help="Port to listen on (7433).")
@click.option("--state-dir", metavar="DIR", shell_complete=complete_files, help="State directory.")
@click.option("--insecure", is_flag=True, help="Listen on an address that is not loopback, without TLS.")
def install(own: bool, host: str | None, port: str | None, state_dir: str | None, insecure: bool) -> None:
    """Install the coordinator as a service of this machine, or change how it runs, and start it.

    The options are those of `grid coordinator run` and are kept in the unit. Run again with the same options it
    changes nothing. A service of the machine runs as the user grid-coordinator, which is made if it is missing."""
    invocation = current()
    invocation.failure = systemd.UNAVAILABLE
    systemd.require_systemd(own)
    invocation.failure = 1
    if not own:
        systemd.require_root("coordinator", "install")
    given = {"host": host, "port": port, "state_dir": state_dir}
    config = invocation.whole_config({f"coordinator.{name}": value for name, value in given.items()})
    place = config.coordinator_state_dir().absolute()
    if not own:
        systemd.make_user(USER, systemd.STATE)
        systemd.check_runs(program(), USER)
        systemd.give(USER, place)
    argv = [*program(), "coordinator", "run", "--state-dir", str(place), *service.config_options(invocation)]
    for name in ("host", "port"):
        if given[name]:
            argv += [f"--{name}", str(given[name])]
    unit = Unit("coordinator", argv + ["--insecure"] * insecure, place, "" if own else USER)
    change = systemd.install(unit)
    service.show_installed(unit, change, {"listens": f"{config.coordinator.host}:{config.coordinator.port}"})


@coordinator.command()
@own_option
@click.option("--purge", is_flag=True, help="Remove its state, too: authority, jobs and audit log; and its user.")
@click.option("--yes", is_flag=True, help="Do not ask, with --purge.")
def uninstall(own: bool, purge: bool, yes: bool) -> None:
    """Stop the coordinator and remove its service. Jobs that run go on, and its state is kept, unless --purge is given.

    With --purge the grid is gone for good: its members cannot come back, and nothing is known of its jobs any more.
    The user grid-coordinator is removed if `install` made it, and so are your own contexts of that grid."""
    at = systemd.find("coordinator", own)
    if not at.own:
        systemd.require_root("coordinator", "uninstall")
    if purge and not yes:
        if not sys.stdin.isatty():
            hint = f"grid coordinator uninstall{' --user' * at.own} --purge --yes"
            raise GridError("--purge removes the grid for good, and there is no terminal to ask on", hint=hint)
        if not click.confirm(f"Remove the grid and all it knows, in {systemd.state_dir_of(at)}?", err=True):
            raise GridError("nothing is removed")
    mine = _contexts_of(systemd.state_dir_of(at)) if purge else []
    service.uninstall(at, purge)
    for folder in mine:
        shutil.rmtree(folder)
        current().say(f"removed: your context {folder.name}, which was of that grid")


def _contexts_of(state_dir: Path | None) -> list[Path]:
    """Return the contexts of this user that are of the grid whose authority is kept in this directory."""
    from distributed_grid.identity.credentials import AUTHORITY
    from distributed_grid.identity.member import all_contexts, contexts

    authority = state_dir / "pki" / AUTHORITY if state_dir is not None else None
    if authority is None or not authority.is_file():
        return []
    kept = [contexts() / name / AUTHORITY for name, _ in all_contexts()]
    return [one.parent for one in kept if one.is_file() and one.read_bytes() == authority.read_bytes()]


@coordinator.command()
@own_option
def status(own: bool) -> None:
    """Show the service of this machine's coordinator."""
    service.show(systemd.find("coordinator", own))


@coordinator.command()
@own_option
@service.log_options
def logs(own: bool, follow: bool, lines: int) -> None:
    """Print the log of the coordinator's service."""
    service.logs(systemd.find("coordinator", own), follow, lines)
