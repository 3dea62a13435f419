"""The entry point of `grid`. Nothing slow is imported here: `grid --help` answers in well under 150 ms."""

import click

from distributed_grid import __version__
from distributed_grid.cli.lazy import Lazy, LazyGroup

# One entry a command: name -> where it lives, and its line in `grid --help`.
COMMANDS: dict[str, Lazy] = {}


@click.group(cls=LazyGroup, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="grid", message="%(prog)s %(version)s")
def main() -> None:
    """Borrow the idle CPUs, memory and GPUs of other machines."""


if __name__ == "__main__":
    main()
