"""The entry point of `grid`. Nothing slow is imported here: `grid --help` answers in well under 150 ms."""

# The module of the interpreter: a ^C while `signal` and what it needs are loaded would be a traceback.
import _signal as signal  # type: ignore[import-not-found]


def _interrupts(before: object, now: object) -> bool:
    """Change the handler of ^C from `before` to `now`, if `before` is in effect and this is the main thread. Returns
    whether it was changed."""
    if signal.getsignal(signal.SIGINT) is not before:
        return False
    try:
        signal.signal(signal.SIGINT, now)
    except ValueError:  # another thread
        return False
    return True


# A ^C while the rest is loaded, which is most of a short command, ends it as it ends any program: without a traceback.
_QUIET = _interrupts(signal.default_int_handler, signal.SIG_DFL)

import errno  # noqa: E402
import gc  # noqa: E402
import sys  # noqa: E402
from io import TextIOWrapper  # noqa: E402
from typing import Any, TextIO  # noqa: E402

COLLECT_AFTER = 50_000
"""New objects after which garbage is collected (700 by default): more than a short command makes."""

_COLLECTED_AFTER = gc.get_threshold()
gc.set_threshold(COLLECT_AFTER)  # what is loaded stays

from distributed_grid.runtime.deferred import SELDOM_USED, defer  # noqa: E402

defer(*SELDOM_USED)

import click  # noqa: E402

from distributed_grid import __version__  # noqa: E402
from distributed_grid.cli.context import Invocation, option, print_error, printable  # noqa: E402
from distributed_grid.cli.lazy import Lazy, LazyGroup  # noqa: E402

gc.set_threshold(*_COLLECTED_AFTER)
if _QUIET:
    _interrupts(signal.SIG_DFL, signal.default_int_handler)

USAGE = 2
INTERNAL = 70
CLOSED_PIPE = 141
INTERRUPTED = 130

# One entry a command: name -> where it lives, and its line in `grid --help`.
_AT = "distributed_grid.cli."
COMMANDS: dict[str, Lazy] = {
    "run-shared": Lazy(_AT + "jobs.run_shared:run_shared", "Run a command on borrowed resources of another node."),
    "submit": Lazy(_AT + "jobs.submit:submit", "Submit the jobs of a file, all or none, and print their ids."),
    "shared-status": Lazy(
        _AT + "grid.shared:shared_status", "Show offers and allocations, and why nothing more is offered."
    ),
    "resource-sharing": Lazy(
        _AT + "boosts.sharing:resource_sharing", "Show how the grid lends idle capacity by itself: status."
    ),
    "policy": Lazy(
        _AT + "boosts.sharing:policy", "Show, set and compare the policies of rebalancing: show, set, diff."
    ),
    "ledger": Lazy(_AT + "grid.ledger:ledger", "Show who lent how much to whom, and each user's balance."),
    "shares": Lazy(_AT + "grid.status:shares", "Show each user's share of the grid, and who is served next."),
    "quota": Lazy(_AT + "grid.quota:quota", "Show what a user may request, hold and use: show [USER], set, unset."),
    "status": Lazy(_AT + "grid.status:status", "Show the state of the grid on one screen."),
    "trends": Lazy(_AT + "grid.trends:trends", "Show the use of nodes over time, and a forecast for one node."),
    "top": Lazy(_AT + "grid.trends:top", "List the nodes by pressure, the busiest first."),
    "scale": Lazy(
        _AT + "grid.scale:scale", "Plan, create and end machines of pools: plan, apply, status, pause, resume, history."
    ),
    "nodes": Lazy(_AT + "grid.nodes:nodes", "List the nodes."),
    "node": Lazy(_AT + "grid.nodes:node", "Add, remove, drain, undrain, label and set nodes, and forecast their use."),
    "jobs": Lazy(_AT + "jobs.jobs:jobs", "List jobs."),
    "logs": Lazy(_AT + "attach.follow:logs", "Print the output of a job."),
    "attach": Lazy(_AT + "attach.follow:attach", "Follow a job to its end and exit with its exit code."),
    "cancel": Lazy(_AT + "jobs.jobs:cancel", "Cancel jobs, running or waiting."),
    "predict": Lazy(_AT + "jobs.predict:predict", "Predict what a command will need, from what runs like it used."),
    "why": Lazy(_AT + "jobs.jobs:why", "Explain why a job waits, or why it runs where it does."),
    "receipts": Lazy(_AT + "grid.history:receipts", "Show who was preempted for whom, and what it cost."),
    "job": Lazy(_AT + "jobs.jobs:job", "Show single jobs, wait for them, list their events: show, wait, events."),
    "boost": Lazy(
        _AT + "boosts.boost:boost",
        "Lend idle capacity of other nodes to a Ray cluster: request, status, release, extend, history, suggest.",
    ),
    "hold": Lazy(_AT + "jobs.hold:hold", "Keep capacity of a node for your jobs: request, list, release."),
    "cluster": Lazy(_AT + "grid.status:cluster", "Show the grid and its Ray cluster: summary, status, check."),
    "init": Lazy(
        _AT + "grid.access:init", "Create a grid: its certificate authority, its keys, and you as its first operator."
    ),
    "token": Lazy(_AT + "grid.access:token", "Create, list and revoke tokens with which nodes and people join."),
    "access": Lazy(_AT + "grid.access:access", "List who has access; `access revoke ROLE NAME` revokes it at once."),
    "audit": Lazy(_AT + "grid.history:audit", "Verify the coordinator's audit log: verify."),
    "login": Lazy(_AT + "grid.access:login", "Join a grid as a person, with a token from one of its operators."),
    "context": Lazy(_AT + "grid.access:context", "List the grids you have joined, and choose one: list, use."),
    "agent": Lazy(
        _AT + "services.agent:agent", "Run or install the agent of this machine, or show what it would offer."
    ),
    "coordinator": Lazy(
        _AT + "services.coordinator:coordinator", "Install, run, reload, back up, restore or check the coordinator."
    ),
    "dev": Lazy(_AT + "dev.dev:dev", "Start and stop a whole grid on this machine, to try it out."),
    "doctor": Lazy(
        _AT + "services.doctor:doctor", "Check this machine's installation, and say how to repair what is wrong."
    ),
    "support-dump": Lazy(
        _AT + "services.support:support_dump", "Collect diagnostics in one file, with secrets removed."
    ),
    "replay": Lazy(_AT + "grid.history:replay", "Replay the decisions of an event log, by the same policy or another."),
    "config": Lazy(_AT + "grid.config:config", "Show, check and write configuration."),
    "simulate": Lazy(
        _AT + "grid.simulate:simulate",
        "Simulate grids with faults and check their guarantees, or run a workload trace by several policies.",
    ),
    "completion": Lazy(_AT + "completion:completion", "Print a shell's completion script."),
}

# Titles of `grid --help`, and the commands below each.
SECTIONS: dict[str, tuple[str, ...]] = {
    "Run jobs": ("run-shared", "submit", "hold", "cancel"),
    "Watch jobs": ("jobs", "job", "logs", "attach", "why", "predict", "receipts"),
    "Watch the grid": (
        "status",
        "nodes",
        "shared-status",
        "trends",
        "top",
        "resource-sharing",
        "shares",
        "ledger",
        "quota",
        "doctor",
        "support-dump",
    ),
    "Ray clusters": ("boost", "cluster"),
    "Nodes and services": ("node", "scale", "agent", "coordinator"),
    "Access": ("init", "token", "login", "context", "access", "audit"),
    "Settings": ("config", "policy", "completion"),
    "Trying out and analysis": ("dev", "simulate", "replay"),
}


class Grid(LazyGroup):
    """The top group: what goes wrong below becomes lines for people and an exit code."""

    _quiet = False
    """^C is left to the system while no command runs."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the whole program. Garbage collection finds little in a short command, and takes a tenth of its time: it
        runs rarely, and at the interpreter's exit the existing objects are left out. Before a command begins and after
        its end there is nothing to clean up, and ^C ends the process."""
        self._quiet = _interrupts(signal.default_int_handler, signal.SIG_DFL)
        gc.set_threshold(COLLECT_AFTER)
        try:
            return super().__call__(*args, **kwargs)
        finally:
            gc.freeze()
            _forget_unwritable()

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help text as one line; as in Option, inspect is not loaded for it."""
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(self.help or "")

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Help and version are printed here, before a command is known; click would exit with 1."""
        try:
            return super().make_context(*args, **kwargs)
        except BrokenPipeError:
            _forget_stdout()
            sys.exit(CLOSED_PIPE)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        _open_standard_files()
        try:
            return super().main(*args, **kwargs)
        except OSError as error:  # where help or the version is printed: no command is known yet
            _tell(error)
            _forget_stdout()
            sys.exit(INTERNAL)

    def invoke(self, ctx: click.Context) -> Any:
        from distributed_grid.protocol.errors import BadValue, GridError

        ctx.obj = ctx.obj or Invocation()
        try:
            if self._quiet:
                _interrupts(signal.SIG_DFL, signal.default_int_handler)
            return super().invoke(ctx)
        except GridError as error:
            print_error("\n".join(error.lines()))
            ctx.exit(USAGE if isinstance(error, BadValue) else ctx.obj.failure)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:
            _forget_stdout()
            _tell_done(ctx.obj)
            ctx.exit(CLOSED_PIPE)
        except click.NoSuchOption as error:
            if error.option_name[1:2].isdigit():
                what = f"{error.option_name} is below zero, and no amount, number or time here can be."
                raise click.UsageError(what, error.ctx) from None
            near = near_options(error.option_name, error.ctx)
            raise click.NoSuchOption(error.option_name, possibilities=near, ctx=error.ctx) from None
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except OSError as error:
            _tell(error)
            _tell_done(ctx.obj)
            if ctx.obj.verbose:
                _trace()
            ctx.exit(ctx.obj.failure if ctx.obj.failure != 1 else INTERNAL)
        except Exception as error:
            print_error(f"error: grid failed: {type(error).__name__}: {printable(str(error))}")
            print_error("  try: the same command with -v, and report what it prints")
            if ctx.obj.verbose:
                _trace()
            ctx.exit(ctx.obj.failure if ctx.obj.failure != 1 else INTERNAL)
        finally:
            if self._quiet:
                _interrupts(signal.default_int_handler, signal.SIG_DFL)


NEAR = 0.7
"""How alike a mistyped option and one that there is have to be (difflib): below it, another word is meant."""


def near_options(mistyped: str, ctx: click.Context | None) -> list[str]:
    """The options that may be meant: those with a word that begins so, else those that are alike."""
    from difflib import get_close_matches

    params = ctx.command.params if ctx is not None else []
    names = [name for one in params for name in (*one.opts, *one.secondary_opts) if name.startswith("--")]
    begin = mistyped.strip("-")
    whole = [name for name in names if begin and any(word.startswith(begin) for word in name[2:].split("-"))]
    return whole[:3] or get_close_matches(mistyped, names, 3, NEAR)


def _tell(error: OSError) -> None:
    """Print an error of the operating system that no command has handled: what it is about, and what to do."""
    about = f" ({error.filename})" if isinstance(error.filename, str) and error.filename else ""
    print_error(printable(f"error: {error.strerror or type(error).__name__}{about}"))
    if isinstance(error, FileNotFoundError) and not about:
        print_error("  why: the current directory is not there any more\n  try: cd to one that is")
    elif (hint := HINTS.get(error.errno or 0)) is not None:
        print_error(f"  try: {hint}")


def _tell_done(invocation: Invocation) -> None:
    """Print what was done in spite of an error, such as the id of a job, so that the request is not repeated."""
    if invocation.done:
        print_error(f"grid: already done: {printable(invocation.done)}")


HINTS = {
    errno.ENOSPC: "df -h and df -i show the disk that is full: that of the output, or of a file that is written",
    errno.EDQUOT: "quota -s shows whose quota is used up: on the disk of the output, or of a file that is written",
    errno.EROFS: "findmnt shows what is mounted read-only",
    errno.EMFILE: "ulimit -n shows how many files may be open at once, and raises it",
    errno.EACCES: "id shows who you are, and echo $HOME whose files are used",
}
"""What to do, by the number of the error."""


def _trace() -> None:
    import traceback

    traceback.print_exc()


def _open_standard_files() -> None:
    """Open /dev/null in place of a closed one of 0, 1 and 2 (`grid jobs >&-`): otherwise the next opened file or socket
    would get that number, and the output for people. Characters that stdout cannot encode are escaped as on stderr: a
    job's name may be in any script."""
    import os

    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            fd = os.open(os.devnull, os.O_RDWR)
            if fd != number:
                os.dup2(fd, number)
                os.close(fd)
            setattr(sys, name, open(number, "r" if number == 0 else "w"))  # noqa: SIM115
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _forget_stdout() -> None:
    """The reader went away: what is still buffered must not fail again at exit."""
    _forget(sys.stdout)


def _forget_unwritable() -> None:
    """Drop the buffered output for a full disk, which was reported: at exit it would fail again, with Python's own
    message and exit code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            _forget(stream)


def _forget(stream: TextIO) -> None:
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"grid {__version__}", color=ctx.color)
        ctx.exit()


@click.group(cls=Grid, table=COMMANDS, sections=SECTIONS)
@option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    help="Show the version and exit.",
    callback=_show_version,
)
def main() -> None:
    """Borrow the idle CPUs, memory and GPUs of other machines."""


if __name__ == "__main__":
    main(prog_name="grid")
