"""`grid submit`: jobs from a file, YAML or JSON Lines. Its keys are the long options of `grid run-shared`."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import click
from msgspec.structs import replace

from distributed_grid.cli.attach.results import ship, shipping_options
from distributed_grid.cli.context import complete_files, current
from distributed_grid.cli.jobs.run_shared import run_shared, submission_of
from distributed_grid.cli.lazy import Command
from distributed_grid.config.kinds import Problem, did_you_mean
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.messages import Submission, Submit, Submitted

FILE_BYTES = 64 << 20
MOST_JOBS = 100_000
TOLD = 10
"""Maximum number of ids that are told on stderr where stdout is lost."""
NOT_OF_A_JOB = {"help", "config", "coordinator", "output", "color", "quiet", "verbose"} | {
    "auto", "detach", "get", "force", "executable", "on-exit", "dry-run", "no-stdin", "links", "ship-secrets",
}  # fmt: skip
"""Options of `run-shared` that say what our own process does, not what the job is."""


class Described(NamedTuple):
    """One job of the file: the submission, and whether the current directory is to be shipped with it."""

    submission: Submission
    shipped: bool


class JobsFileError(BadValue):
    """A file that cannot be taken, with everything that is wrong in it."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = list(problems)
        super().__init__(f"{self.problems[0].where}: {self.problems[0].what}", hint=self.problems[0].hint)

    def lines(self) -> list[str]:
        """Every problem, as the command line prints it."""
        out = []
        for problem in self.problems:
            out.append(f"error: {problem.where}: {problem.what}")
            if problem.hint:
                out.append(f"  try: {problem.hint}")
        return [*out, "nothing was submitted"]


def read_jobs(raw: bytes, name: str) -> list[Described]:
    """The jobs of a file, called `name` in messages. Raises JobsFileError with all that is wrong."""
    reader = _Reader(name)
    reader.read(raw)
    if reader.problems:
        raise JobsFileError(reader.problems)
    return reader.jobs


def _keys() -> dict[str, click.Option]:
    """Return the keys of a job besides its command: the options by their long names, with `_` for `-`."""
    keys = {}
    for option in run_shared.params:
        if isinstance(option, click.Option):
            for flag in option.opts:
                if flag.startswith("--") and flag[2:] not in NOT_OF_A_JOB:
                    keys[flag[2:].replace("-", "_")] = option
    return keys


class _Reader:
    def __init__(self, name: str) -> None:
        self.problems: list[Problem] = []
        self.jobs: list[Described] = []
        self._name = name
        self._line = 0
        self._keys = _keys()
        self._context = run_shared.make_context("run-shared", ["COMMAND"])
        self._plain = {name: value for name, value in self._context.params.items() if name != "command"}
        self._defaults: dict[str, Any] = {}

    def _problem(self, node: Any, what: str, hint: str = "") -> None:
        self.problems.append(Problem(self._where(node), what, hint))

    def _where(self, node: Any) -> str:
        return f"{self._name}:{self._line + node.start_mark.line + 1}"

    # --- the form -----------------------------------------------------------------------------------------------------

    def read(self, raw: bytes) -> None:
        if len(raw) > FILE_BYTES:
            self.problems.append(Problem(self._name, f"has more than {FILE_BYTES} bytes"))
            return
        lines = raw.splitlines()
        if (rows := _json_lines(lines)) and (len(rows) > 1 or not _has_jobs(self._compose(lines[rows[0]]))):
            for at in rows:
                self._line = at
                self._job(self._compose(lines[at]))
        else:
            self._document(self._compose(raw))
        if not self.jobs and not self.problems:
            self.problems.append(Problem(self._name, "has no jobs", "list them under `jobs:`, each with a `command`"))

    def _compose(self, raw: bytes) -> Any:
        import yaml

        loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        try:
            return yaml.compose(raw, Loader=loader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            where = f"{self._name}:{self._line + mark.line + 1}:{mark.column + 1}" if mark else self._name
            self.problems.append(Problem(where, f"not YAML: {error.problem or error.context}"))
        except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
            text = str(error).splitlines()[0] if str(error) else "nested too deeply"
            self.problems.append(Problem(self._name, f"not YAML: {text}"))
        return None

    def _document(self, root: Any) -> None:
        if root is None:
            return
        if root.id != "mapping":
            self._problem(root, "must hold `jobs:` and may hold `defaults:`", "write `jobs:` above the list")
            return
        parts = self._pairs(root)
        for name, (key, _) in parts.items():
            if name not in ("defaults", "jobs"):
                self._problem(key, f"unknown key {name!r}", did_you_mean(name, ("defaults", "jobs")))
        if "defaults" in parts and not _empty(parts["defaults"][1]):
            self._defaults = self._settings(parts["defaults"][1], "defaults")
            if "command" in self._defaults:
                self._problem(parts["defaults"][1], "a command belongs to a job, not to the defaults")
        jobs = parts["jobs"][1] if "jobs" in parts else None
        if jobs is None or _empty(jobs):
            return
        if jobs.id != "sequence":
            self._problem(jobs, "jobs must be a list, each item with a command")
        elif len(jobs.value) > MOST_JOBS:
            self._problem(jobs, f"has {len(jobs.value)} jobs, and {MOST_JOBS} are the most")
        else:
            for item in jobs.value:
                self._job(item)

    def _pairs(self, node: Any) -> dict[str, tuple[Any, Any]]:
        found: dict[str, tuple[Any, Any]] = {}
        for key, value in node.value:
            name = str(key.value) if key.id == "scalar" else ""
            if name in found:
                self._problem(key, f"{name} appears twice, first at {self._where(found[name][0])}")
            found[name] = (key, value)
        return found

    # --- a job --------------------------------------------------------------------------------------------------------

    def _job(self, node: Any) -> None:
        if node is None:
            return
        before = len(self.problems)
        said = self._settings(node, "a job")
        env = (*self._defaults.get("env", ()), *(said.get("env") or ()))
        given = self._defaults | said | {"env": env}
        options = self._plain | {name: value for name, value in given.items() if value is not None}
        command = options.pop("command", None)
        if not command and len(self.problems) == before:
            self._problem(node, "the job has no command", "add `command: PROGRAM ARGUMENT…`")
        if len(self.problems) > before:
            return
        try:
            submission = submission_of(tuple(command), options)
        except GridError as error:
            self._problem(node, f"{error.what}: {error.why}" if error.why else error.what, error.hint)
            return
        shipped = not (options["no_ship"] or options["workdir"])
        self.jobs.append(Described(submission, shipped))

    def _settings(self, node: Any, what: str) -> dict[str, Any]:
        """Return the settings of a mapping by the names of the options; a null value counts as missing."""
        if node.id != "mapping":
            self._problem(node, f"{what} must hold settings, as `name: value`")
            return {}
        found: dict[str, Any] = {}
        for name, (key, value) in self._pairs(node).items():
            if name == "command":
                found["command"] = self._command(value)
            elif (option := self._keys.get(name)) is not None and option.name:
                if option.name in found:
                    self._problem(key, f"{name} is another name for what the job says already", "keep one of them")
                found[option.name] = None if _empty(value) else self._value(name, option, value)
            else:
                hint = did_you_mean(name.replace("-", "_"), (*self._keys, "command")) or "see `grid run-shared --help`"
                if name.replace("_", "-") in NOT_OF_A_JOB:
                    hint = "leave it out: it is an option of commands, not of a job in a file"
                self._problem(key, f"unknown key {name!r} in {what}", hint)
        return found

    def _command(self, node: Any) -> list[str] | None:
        """A list is taken as it is; text is split as a shell would split it, but no shell runs it."""
        if node.id == "sequence" and all(item.id == "scalar" for item in node.value):
            return [str(item.value) for item in node.value]
        if node.id != "scalar" or _empty(node):
            self._problem(node, "command must be text or a list of words")
            return None
        from distributed_grid.coordinator.client.submission import as_argv

        try:
            return list(as_argv(str(node.value)))
        except BadValue as error:
            why = f": {error.why}" if error.why else ""
            self._problem(node, f"{error.what}{why}", error.hint or "write it as a list")
            return None

    def _value(self, name: str, option: click.Option, node: Any) -> Any:
        if option.is_flag:
            if node.id == "scalar" and node.tag == "tag:yaml.org,2002:bool":
                return str(node.value).lower() in ("true", "yes", "on")
            self._problem(node, f"{name} must be true or false")
            return None
        if option.multiple:
            texts = _texts(node)
            if texts is None:
                self._problem(node, f"{name} must be text or a list" + (" or a map" if name == "env" else ""))
            return texts
        if node.id != "scalar":
            self._problem(node, f"{name} must be one value")
            return None
        try:
            return option.type_cast_value(self._context, str(node.value))
        except click.BadParameter as error:
            self._problem(node, f"{name}: {error.message.rstrip('.')}")
            return None


def _texts(node: Any) -> tuple[str, ...] | None:
    if node.id == "scalar":
        return (str(node.value),)
    if node.id == "sequence" and all(item.id == "scalar" for item in node.value):
        return tuple(str(item.value) for item in node.value)
    if node.id == "mapping" and all(key.id == value.id == "scalar" for key, value in node.value):
        return tuple(f"{key.value}={value.value}" for key, value in node.value)
    return None


def _json_lines(lines: list[bytes]) -> list[int]:
    """The lines that hold something, if each of them is an object; else none."""
    rows = [at for at, line in enumerate(lines) if line.strip()]
    whole = all(lines[at].strip().startswith(b"{") and lines[at].strip().endswith(b"}") for at in rows)
    return rows if whole else []


def _has_jobs(node: Any) -> bool:
    return node is not None and node.id == "mapping" and any(key.value == "jobs" for key, _ in node.value)


def _empty(node: Any) -> bool:
    """A key without a value, or with `null`, counts as not set."""
    return bool(node.id == "scalar" and node.tag == "tag:yaml.org,2002:null")


@click.command(cls=Command)
@click.option(
    "-f",
    "--file",
    "path",
    required=True,
    metavar="FILE",
    shell_complete=complete_files,
    help="The jobs; - for standard input.",
)
@shipping_options
def submit(path: str, links: str | None, ship_secrets: bool) -> None:
    """Submit the jobs of a file, all or none, and print their ids.

    FILE is YAML with a list `jobs` and a section `defaults`, or JSON Lines with a job a line. A job has a `command`,
    and may have any long option of run-shared as a key, with _ for -. Jobs that ship get the current directory.
    """
    from distributed_grid.cli import formatting

    invocation = current()
    jobs = read_jobs(_raw(path), "standard input" if path == "-" else path)
    invocation.require_sharing()

    from distributed_grid.protocol.codec import BULK_BYTES, encode

    grid = invocation.connect()
    bundle = ship(invocation, grid, links, ship_secrets) if any(job.shipped for job in jobs) else ""
    submissions = [one.submission for one in jobs]
    for number, (one, shipped) in enumerate(jobs):
        if shipped:
            submissions[number] = replace(one, spec=replace(one.spec, bundle=bundle))
    message = Submit(id=0, jobs=tuple(submissions))
    if (size := len(encode(0, [message]))) > BULK_BYTES:
        raise BadValue(
            f"the {len(jobs)} jobs of {path} have {size} bytes",
            why=f"{BULK_BYTES} are the most that are taken or refused as one",
            hint="split the file, or describe equal jobs once",
        )
    reply: Submitted = grid.call(message)
    grid.close()
    more = f" and {len(reply.jobs) - TOLD} more" if len(reply.jobs) > TOLD else ""
    invocation.done = f"these were submitted: {', '.join(reply.jobs[:TOLD])}{more}"
    if invocation.output in ("json", "jsonl"):
        rows = [{"id": job, "name": one.spec.name} for job, one in zip(reply.jobs, submissions, strict=True)]
        formatting.emit_json(invocation, {"jobs": rows}, rows="jobs")
    else:
        formatting.emit("".join(f"{job}\n" for job in reply.jobs))


def _raw(path: str) -> bytes:
    if path == "-":
        return sys.stdin.buffer.read(FILE_BYTES + 1)
    if not path:
        raise BadValue("--file names no file", why="it is empty", hint="name one with jobs, or - for standard input")
    try:
        with Path(path).open("rb") as opened:
            return opened.read(FILE_BYTES + 1)
    except OSError as error:
        raise BadValue(f"{path} cannot be read", why=(error.strerror or str(error)).lower()) from None
