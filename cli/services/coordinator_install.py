"""`grid coordinator install` and what else there is about the coordinator as a service of this machine."""

from pathlib import Path

import click

from distributed_grid.cli.context import common, current
from distributed_grid.cli.services import systemd, words
from distributed_grid.cli.services.units import Unit, program

USER = "grid-coordinator"
own_option = click.option("--user", "own", is_flag=True, help="A service of yours, in your own systemd.")


@click.command()
@common
@own_option
@click.option("--host", metavar="ADDRESS", help="Address to listen on (127.0.0.1).")
@click.option("--port", metavar="PORT", help="Port to listen on (7433).")
@click.option("--state-dir", metavar="DIR", help="Where it keeps its state.")
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
    config = invocation.whole_config({f"coordinator.{name}": value for name, value in given.items() if value})
    place = Path(config.coordinator_state_dir()).absolute()
    if not own:
        systemd.make_user(USER, Path("/var/lib/grid"))
        systemd.check_runs(program(), USER)
        systemd.give(USER, place)
    argv = [*program(), "coordinator", "run", "--state-dir", str(place), *words.configured(invocation)]
    for name in ("host", "port"):
        if given[name]:
            argv += [f"--{name}", str(given[name])]
    unit = Unit("coordinator", argv + ["--insecure"] * insecure, place, "" if own else USER)
    change = systemd.install(unit)
    words.tell_installed(unit, change, {"listens": f"{config.coordinator.host}:{config.coordinator.port}"})


@click.command()
@common
@own_option
def uninstall(own: bool) -> None:
    """Stop the coordinator and remove its service. Jobs that run go on, and its state is kept."""
    words.uninstall(systemd.find("coordinator", own))


@click.command()
@common
@own_option
def status(own: bool) -> None:
    """Show how the coordinator of this machine is, as its service."""
    words.show(systemd.find("coordinator", own))


@click.command()
@common
@own_option
@words.log_options
def logs(own: bool, follow: bool, lines: int) -> None:
    """Print what the coordinator's service logged."""
    words.logs(systemd.find("coordinator", own), follow, lines)
