"""`grid coordinator`: the service on the master."""

from pathlib import Path

import click

from distributed_grid.cli.invocation import common, current


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@common
def coordinator() -> None:
    """Run the coordinator."""


@coordinator.command()
@common
@click.option("--host", metavar="ADDRESS", help="Address to listen on (127.0.0.1).")
@click.option("--port", metavar="PORT", help="Port to listen on (7433); 0 takes a free one.")
@click.option("--state-dir", metavar="DIR", help="Where it keeps its state.")
@click.option("--insecure", is_flag=True, help="Listen on an address that is not loopback, without TLS.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", hidden=True)
def run(host: str | None, port: str | None, state_dir: str | None, insecure: bool, log_level: str) -> None:
    """Run the coordinator in the foreground until SIGTERM. Agents and jobs go on without it."""
    given = {"coordinator.host": host, "coordinator.port": port, "coordinator.state_dir": state_dir}
    config = current().whole_config({name: value for name, value in given.items() if value is not None})
    from distributed_grid.coordinator.main import CoordinatorSettings, main

    settings = CoordinatorSettings(
        state_dir=Path(config.coordinator_state_dir()),
        host=config.coordinator.host,
        port=config.coordinator.port,
        insecure=insecure,
        log_level=log_level,
    )
    raise SystemExit(main(settings))
