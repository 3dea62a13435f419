"""The options of one call of `grid` that every command accepts, before or after its name."""

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from distributed_grid.config.settings import ClusterConfig
    from distributed_grid.coordinator.client.blocking import GridClient
    from distributed_grid.protocol.errors import GridError
    from distributed_grid.protocol.messages import Jobs

ANSWER_SECONDS = 30.0
AWAY_SECONDS = 60.0
"""How long a coordinator that is away is waited for by a command that rejoins a job."""
FORMS = ("table", "json", "jsonl", "quiet")
COLORS = ("auto", "always", "never")

F = TypeVar("F", bound=Callable[..., Any])


class Invocation:
    """The common options. `failure` is the exit code if the grid, not a job, is at fault; `user` is the user's name in
    the grid, known after the first connection; `done` is what the grid has done so far, reported if the output is
    lost."""

    def __init__(  # no dataclass: making one takes a millisecond
        self,
        config_path: str = "",
        coordinator: str = "",
        output: str = "table",
        color: str = "auto",
        quiet: bool = False,
        verbose: bool = False,
    ) -> None:
        self.config_path = config_path
        self.coordinator = coordinator
        self.output = output
        self.color = color
        self.quiet = quiet
        self.verbose = verbose
        self.failure = 1
        self.user = ""
        self.done = ""
        self.told_config = False

    @cached_property
    def _config(self) -> "ClusterConfig | None":
        if not (self.config_path or os.environ.get("GRID_CONFIG") or _found() or _set_by_environment()):
            return None
        return self.whole_config()

    def config(self) -> "ClusterConfig | None":
        """The configuration, where there is a file or a variable with a setting; it is read once. Raises ConfigError;
        one that is only found is read all the same, since a mistake in it should not stay unseen."""
        return self._config

    def require_sharing(self) -> None:
        """Raise SharingDisabled where the configuration here says that sharing is off."""
        if (config := self.config()) is not None:
            config.require_sharing()

    def whole_config(self, flags: Mapping[str, str | None] | None = None) -> "ClusterConfig":
        """The configuration: defaults, file, environment, these flags (dotted setting to text; None: not given).
        Raises ConfigError."""
        from distributed_grid.config.settings import load

        given = {name: text for name, text in (flags or {}).items() if text is not None}
        config = load(self.config_path or None, flags=given)
        for warning in config.warnings:
            self.say(f"warning: {warning}")
        if self.verbose and config.path is not None and not self.told_config:
            from distributed_grid.config.places import shown

            self.say(f"configuration: {shown(config.path)}")
            self.told_config = True
        return config

    def url(self) -> str:
        """The address of the coordinator: --coordinator, GRID_COORDINATOR, the configuration, the grid that the user is
        a member of, this machine."""
        config = self.config()
        if self.coordinator:
            return self.coordinator
        if config and not os.environ.get("GRID_COORDINATOR"):
            return config.client_url()
        from distributed_grid.config.places import usual_address

        return usual_address()

    def trusts(self) -> str:
        """Another user of this machine, whose coordinator may be used by ws://; empty: none (`coordinator.user`)."""
        config = self.config()
        return config.coordinator.user if config else ""

    def connect(self, patience: float = 0.0) -> "GridClient":
        """Return an open connection to the coordinator. If it is away, perhaps because it restarts, this waits for
        `patience` seconds. Raises GridUnavailable."""
        grid = client(self.url(), trusts=self.trusts()).connect(patience, self._away)
        self.user = grid.user
        return grid

    def _away(self, error: "GridError", seconds: float) -> None:
        self.say(f"{error.what} ({error.why}); waiting for it for up to {seconds:.0f} s")

    def ask(self, make: Callable[[int], Any]) -> Any:
        """The answer to one request, made by `make` from its number; to one for a list, over as many as it takes."""
        from distributed_grid.coordinator.client.requests import pages

        grid = self.connect()
        try:
            return grid.do(pages(make(grid.number())))
        finally:
            grid.close()

    def show(self, ref: str, what: str, listed_by: str, listed: Callable[[], Iterable[str]]) -> "Jobs":
        """Return the jobs that `ref` names, where it is to name a boost or hold (`what`); `listed` returns the ids of
        the live ones. Raises GridError if there is none, and names the command that lists the existing ones."""
        from distributed_grid.coordinator.client.session import RequestRefused
        from distributed_grid.protocol.errors import GridError
        from distributed_grid.protocol.messages import ShowJobs

        try:
            found: Jobs = self.ask(lambda n: ShowJobs(n, (ref,)))
        except RequestRefused as refused:
            if refused.code != "unknown-job":
                raise
            begin = ref.lower().removeprefix("j-")
            fits = [one for one in listed() if one.startswith(f"j-{begin}")] if refused.why else []  # several jobs
            if not fits:
                raise GridError(f"no {what} {ref!r}", hint=f"{listed_by} shows those there are") from None
            if len(fits) > 1:
                names = ", ".join(fits[:5]) + (", …" if len(fits) > 5 else "")
                raise GridError(f"{ref!r} fits several {what}s", why=names, hint="give more of the id") from None
            found = self.ask(lambda n: ShowJobs(n, (fits[0],)))
        return found

    def say(self, text: str) -> None:
        """Print a message of grid itself on stderr, except with --quiet."""
        if not self.quiet:
            print_error(f"grid: {printable(text)}")

    def live(self) -> bool:
        """Whether a line on stderr can be written over: a terminal that takes control sequences reads it."""
        return sys.stderr.isatty() and not self.quiet and os.environ.get("TERM") != "dumb"

    def colored(self, stream: Any = None) -> bool:
        """Whether to colour what goes to this stream (stdout)."""
        if self.color != "auto":
            return self.color == "always"
        stream = stream or sys.stdout
        return bool(stream.isatty()) and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def grid_failed() -> int:
    """The exit code where the grid, not a job, is at fault: 125, or GRID_EXIT_ERROR. Raises BadValue."""
    from distributed_grid.protocol.errors import BadValue
    from distributed_grid.protocol.jobs import GRID_FAILED

    text = os.environ.get("GRID_EXIT_ERROR", "")
    if not text:
        return GRID_FAILED
    if not (re.fullmatch(r"[0-9]{1,3}", text) and 1 <= int(text) <= 255):
        raise BadValue(f"GRID_EXIT_ERROR={text} is no exit code", why="it is a number from 1 to 255")
    return int(text)


def client(url: str, **options: Any) -> "GridClient":
    """The client of a command: one connection, which is not made again, and answers within half a minute."""
    from distributed_grid.coordinator.client.blocking import GridClient

    return GridClient(url, **{"patience": 0.0, "answer_seconds": ANSWER_SECONDS, "strict": False, **options})


def printable(text: str) -> str:
    """The text without characters that would act on a terminal."""
    from distributed_grid.protocol import errors

    return errors.printable(text)


def print_error(text: str) -> None:
    """Print a line on stderr."""
    write_error(text + "\n")


def write_error(text: str) -> None:
    """Write to stderr, ignoring that it is not read any more, or that its disk is full."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        pass


def _found() -> bool:
    from distributed_grid.config.places import is_config, places  # light; the schema is not loaded for it

    return any(map(is_config, places()))


def _set_by_environment() -> bool:
    return any(name.startswith("GRID_") and "__" in name for name in os.environ)


def current() -> Invocation:
    """The invocation that is under way."""
    found: Invocation = click.get_current_context().find_root().obj
    return found


def _keep(field: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def keep(ctx: click.Context, _: click.Parameter, value: Any) -> None:
        root = ctx.find_root()
        if root.obj is None:
            root.obj = Invocation()
        if value is not None and value is not False:
            setattr(root.obj, field, value)

    return keep


def complete_files(ctx: Any, param: Any, incomplete: str) -> list[Any]:
    """Return the files and folders that begin like this, as found by the shell. For `shell_complete`."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


class Option(click.Option):
    """An option whose help is one line, which is taken as it stands: to remove indentation click would load inspect,
    and what that imports takes a twentieth of a short command's time."""

    def __init__(self, *args: Any, help: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.help = help


def option(*names: str, **about: Any) -> Callable[[F], F]:
    """As click.option, for an Option."""
    return click.option(*names, cls=Option, **about)


def _option(names: tuple[str, ...], field: str, about: dict[str, Any]) -> click.Parameter:
    return Option(names, callback=_keep(field), expose_value=False, **about)


COMMON: list[click.Parameter] = [
    _option(
        ("-c", "--config"),
        "config_path",
        {"metavar": "FILE", "shell_complete": complete_files, "help": "Configuration file."},
    ),
    _option(
        ("--coordinator",), "coordinator", {"metavar": "URL", "help": "Address of the coordinator (GRID_COORDINATOR)."}
    ),
    _option(("-o", "--output"), "output", {"type": click.Choice(FORMS), "help": "Output format."}),
    _option(("--color",), "color", {"type": click.Choice(COLORS), "help": "Coloured output."}),
    _option(("-q", "--quiet"), "quiet", {"is_flag": True, "help": "Print no messages."}),
    _option(("-v", "--verbose"), "verbose", {"is_flag": True, "help": "Print more messages."}),
]
"""The options of every command (see lazy.py)."""
