"""The house rules, held by reading the source: who may import whom, what stays pure, and what is never written.

A rule is a function from sources to complaints. The tree has to give none, and for each rule an offence is kept here
that has to give one, so that no rule goes blind unnoticed. Where a rule has to change, change it in the tables below
and say why.
"""

import ast
import functools
import gc
import re
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("distributed_grid", "protocol", "coordinator", "agent", "cli", "simulator", "systemd")
WORKSHOPS = ("scripts", "bench", "docs", "examples", "tests")  # not shipped, but ours
CEILING = 600
WIDTH = 14  # modules that lie side by side


# What of the supervisor the simulator runs, too.
SUPERVISORS_PURE = {"agent.supervisor.allocations", "agent.supervisor.endings", "agent.supervisor.job"}

# Who may import what of ours; the longest matching name decides. A name also stands for what is under it:
# coordinator.client covers coordinator.client.jobs. "" is the top package, for __version__.
EDGES: dict[str, set[str]] = {
    "protocol": {"protocol"},
    "coordinator.core": {"protocol", "coordinator.core"},
    "agent.core": {"protocol", "agent.core"},
    "simulator": {"protocol", "coordinator.core", "agent.core", *SUPERVISORS_PURE, "simulator"},
    # What all rooms share.
    "identity": {"protocol", "identity", "runtime.xdg"},
    "runtime": {"protocol", "runtime", "identity"},
    "runtime.beneath": set(),  # these run in the supervisor too
    "runtime.faults": set(),
    "runtime.sparse": set(),  # how clients, agents and the coordinator write contents alike
    "runtime.unix": set(),
    "runtime.xdg": set(),
    "config": {"protocol", "config", "identity.member", "runtime.local", "runtime.xdg"},
    "push": {"", "protocol", "push", "runtime.xdg"},
    "push.remote": set(),  # it is read by the Python of another host, which has nothing of ours
    # What is shipped is opened as what jobs may have touched is: without following links.
    "coordinator.client": {
        "",
        "protocol",
        "coordinator.client",
        "config",
        "identity",
        "runtime.local",
        "runtime.loopback",
        "runtime.beneath",
        "runtime.sparse",
    },
    "coordinator": {"", "protocol", "coordinator", "identity", "runtime"},
    "coordinator.main": {"", "protocol", "coordinator", "identity", "runtime", "config"},  # there is one schema
    "agent": {"", "protocol", "agent", "identity", "runtime"},
    "agent.main": {"", "protocol", "agent", "identity", "runtime", "config"},
    "cli": {
        "",
        "protocol",
        "cli",
        "coordinator.client",
        "config",
        "identity",
        "runtime",
        "push",
        "systemd",
    },
    "systemd": set(),
    "orchestration.hardware_detector": {"agent.sampling.hardware"},  # a name of the guides for what the agent does
    # What programs derive their own providers from.
    "orchestration.cloud_provider_manager": {"coordinator.providers", "coordinator.core.scaling.state"},
    "": {"", "protocol", "coordinator.client", "config"},  # re-exports; `core`, `orchestration`, `sync` are in here
}
SHARED = {"config", "identity", "push", "runtime"}
# These start a service in their own process, and import it inside the function that does.
STARTS: dict[str, set[str]] = {
    "cli.services.agent": {"agent.main"},
    "cli.services.coordinator": {"coordinator.main", "coordinator.backup", "agent.diagnostics"},
    "cli.services.support": {"agent.diagnostics", "coordinator.diagnostics"},
    "cli.services.doctor": {"agent.diagnostics", "coordinator.diagnostics"},
    "cli.grid.access": {"coordinator.access.joining"},
    "cli.grid.cluster_check": {"coordinator.ray"},
    "cli.grid.simulate": {"simulator"},
    "cli.grid.lab": {"simulator", "coordinator.eventlog"},  # an event log is a trace, too
    "cli.grid.history": {"coordinator.audit", "coordinator.eventlog"},
    "cli.dev.dev": {"agent.gpus.backends"},
}

# The readers of traces: bytes in, jobs out. Unpacking and dates are no I/O either.
PREDICTOR = {f"coordinator.predictor.{name}" for name in ("shape", "statistics", "estimate", "predictor")}
READERS = {"simulator.lab.formats.unpack", "simulator.lab.formats.tables"}
PURE = {
    "protocol",
    "protocol.messages",
    "coordinator.core",
    "agent.core",
    "simulator",
    "push.plan",
    *READERS,
    *PREDICTOR,
    *SUPERVISORS_PURE,
}
PURE_STDLIB = set(
    "__future__ abc bisect collections collections.abc contextlib copy dataclasses decimal difflib enum fnmatch"
    " functools hashlib heapq itertools math operator re statistics string struct textwrap types typing zlib".split()
)
PURE_OTHERS = {
    "protocol": {"msgspec", "msgpack"},
    "protocol.messages": {"msgspec", "importlib.import_module"},  # of a module of its own, at the first use of a name
    "coordinator.core": {"msgspec"},
    "agent.core": {"msgspec"},
    "push.plan": {"msgspec", "urllib.parse"},
    **{name: {"array", "shlex"} for name in PREDICTOR},
    "simulator": {"msgspec", "random"},  # every draw from one seeded Random
    "simulator.lab.formats.unpack": {"bz2", "gzip", "io", "lzma", "tarfile", "zipfile"},
    "simulator.lab.formats.tables": {"csv", "datetime"},
    "agent.supervisor.allocations": set(),
    "agent.supervisor.endings": set(),
    "agent.supervisor.job": {"os.WCOREDUMP", "os.waitstatus_to_exitcode", "signal"},  # what a wait status says
}

# Only these files may import that package.
KEPT_TO: dict[str, set[str]] = {
    "psutil": {"agent.sampling", "agent.gpus"},
    "pynvml": {"agent.sampling", "agent.gpus"},
    "GPUtil": {"agent.sampling", "agent.gpus"},
    "ray": {"coordinator.ray.bridge"},
    "asyncssh": {"push.ssh"},
    "structlog": {"runtime.logs"},  # which keeps it from loading rich
}
KEPT_OUT: dict[str, set[str]] = {
    "structlog": {"cli", "protocol", "coordinator.core", "agent.core", "coordinator.client"}
}

# What runs in the supervisor's process and in spawners, and what those may use of ours.
# Successors wait by the same rules in the agent and there.
SUPERVISING = {"agent.supervisor", "agent.walls", "agent.cgroups", "agent.core.chains", "runtime.beneath"}
# It alone has a thread, which does nothing but sync (docs/decisions/0066).
SYNCS_IN_A_THREAD = {"agent.supervisor.journal"}
LEANS_ON = SUPERVISING | {"runtime.faults", "runtime.unix", "protocol.globs"}

# These files of the agent may open files by path, and each says which: none lies where a job can, or could, write. All
# that does is opened by runtime.beneath; what is in a job's own directory by agent.walls.files, with its rights.
OPENS_BY_PATH: dict[str, str] = {
    "runtime.beneath": "the directories of ours, as a root for all else",
    "agent.walls.spawner": "with a slot's rights: the job's directory",
    "agent.walls.leftovers": "with a slot's rights: the directories where everybody may write, /proc",
    "agent.walls.reserved": "/proc",
    "agent.walls.files": "names in a directory that was opened, which it makes itself (O_EXCL)",
    "agent.walls.files_socket": "the directory of a job, with the job's rights",
    "agent.data.blobs": "the cache of shipped contents",
    "agent.diagnostics": "the journal, of an agent that is down; /proc",
    "agent.data.disk": "a file that shows whether the disk takes anything; the supervisor's log",
    "agent.fencing": "what this node was told of its leases",
    "agent.gpus.amd": "/sys",
    "agent.launch.supervisor": "the supervisor's lock and log",
    "agent.machine": "the machine's own directory, which its provider made; /proc",
    "agent.settings": "the settings that the grid sent last",
    "agent.main": "the incarnation and the instance of this agent",
    "agent.data.job_files": "the cache of shipped contents",
    "agent.sampling": "/proc and /sys",
    "agent.launch.raylet": "the program of Ray, a raylet's folder, which its own user made, and a cluster's token",
    "agent.supervisor.rounds": "/proc",
    "agent.walls.pipes": "the pipe of a job's standard input, which it makes itself, in the folder of an allocation",
    "agent.data.inputs": "the same, and a note beside it, in a directory that was opened",
    "agent.launch.workdir": "the list of slots, in a directory of ours",
    "agent.cgroups.cgroupfs": "/sys",
    "agent.supervisor.journal": "the journal",
    "agent.supervisor.main": "the supervisor's lock and pid",
    "agent.supervisor.procs": "/proc",
    "agent.supervisor.spawners": "the notes of spawners, in a directory of ours; a job's outputs (O_EXCL)",
    "agent.sampling.host": "/sys",
    "agent.launch.isolation": "/proc and /sys",
    "agent.walls.accounts": "/etc/passwd and /etc/group, their copies, and /proc",
    "agent.walls.forkserver": "/sys",
    "agent.walls.enclosure": "/proc/self, and the directories mounted anew, and names beside the state directory",
}
PATH_CALLS = {"open", "io.open", "os.open", "os.truncate"}
PATH_MODULES = {"shutil"}
PATH_METHODS = {"read_text", "read_bytes", "write_text", "write_bytes", "touch"}

BARE_NAMES = {"agent", "cli", "coordinator", "protocol", "simulator", "systemd"}
FORBIDDEN_MODULES = {"pickle", "cPickle", "shelve", "marshal"}
FORBIDDEN_CALLS = {"os.system", "os.popen", "yaml.load", "eval", "exec"}
FORBIDDEN_WORDS = re.compile(r"\b(killall|pkill)\b|\bray stop\b")


class Source(NamedTuple):
    """One file of ours: its path from the root, and its name below `distributed_grid`, such as `agent.core.spare`."""

    path: str
    name: str
    text: str
    tree: ast.Module

    def at(self, line: int, complaint: str) -> str:
        return f"{self.path}:{line}: {complaint}"


class Import(NamedTuple):
    """One imported name; `level` counts the dots of a relative import, `lazy` is true inside a function."""

    target: str
    line: int
    level: int
    lazy: bool


def source(path: str, text: str) -> Source:
    parts = list(Path(path).with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    if parts and parts[0] == "distributed_grid":
        parts = parts[1:]
    return Source(path, ".".join(parts), text, ast.parse(text, path))


def read(folders: tuple[str, ...]) -> list[Source]:
    return [one for folder in folders for one in within(folder)]


@functools.cache
def within(folder: str) -> list[Source]:
    gc.disable()
    try:
        files = sorted((ROOT / folder).rglob("*.py"))
        return [source(str(file.relative_to(ROOT)), file.read_text()) for file in files]
    finally:
        gc.freeze()  # half a million nodes come to stay, and looking through them each time takes longer than the rules
        gc.enable()


@functools.cache
def imports(of: Source) -> tuple[Import, ...]:
    found: list[Import] = []

    def walk(node: ast.AST, lazy: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, node.lineno, 0, lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                found.append(Import(f"{node.module or ''}.{alias.name}".strip("."), node.lineno, node.level, lazy))
        elif isinstance(node, ast.stmt | ast.mod | ast.excepthandler | ast.match_case):  # none is in an expression
            inside = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            for child in ast.iter_child_nodes(node):
                walk(child, inside)

    walk(of.tree, False)
    return tuple(found)


@functools.cache
def nodes(tree: ast.Module) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree))


def ours(target: str) -> str | None:
    """The target's name below `distributed_grid`; None where it is somebody else's."""
    top, _, rest = target.partition(".")
    return rest if top == "distributed_grid" else None


def covers(name: str, what: str) -> bool:
    if name == "":  # the top package: its own files and attributes, but none of the rooms
        return what.split(".")[0] not in BARE_NAMES | SHARED
    return what == name or what.startswith(name + ".")


def covered(names: set[str], what: str) -> bool:
    return any(covers(name, what) for name in names)


def room_of(of: Source, rooms: set[str]) -> str | None:
    return max((room for room in rooms if covers(room, of.name)), key=len, default=None)


# --- the rules -------------------------------------------------------------------------------------------------------


def imports_against_the_edges(sources: list[Source]) -> Iterator[str]:
    for one in sources:
        room = room_of(one, set(EDGES))
        if room is None:
            yield one.at(1, "lies in no room; name it in EDGES")
            continue
        for seen in imports(one):
            target = ours(seen.target)
            if target is None or covered(EDGES[room], target):
                continue
            if not (seen.lazy and covered(STARTS.get(one.name, set()), target)):
                yield one.at(seen.line, f"{room or 'distributed_grid'} may not import {target or 'distributed_grid'}")


def impure_imports(sources: list[Source]) -> Iterator[str]:
    for one in sources:
        room = room_of(one, PURE)
        for seen in imports(one) if room else ():
            if ours(seen.target) is not None or seen.level:
                continue
            allowed = PURE_STDLIB | PURE_OTHERS[room or ""]
            if not any(seen.target == name or seen.target.startswith(name + ".") for name in allowed):
                yield one.at(seen.line, f"{room} is pure and may not import {seen.target}")


def files_over_the_ceiling(sources: list[Source]) -> Iterator[str]:
    for one in sources:
        if (lines := one.text.count("\n")) > CEILING:
            yield one.at(lines, f"{lines} lines, {CEILING} at most: split it by event family")


def imports_by_another_name(sources: list[Source]) -> Iterator[str]:
    for one in sources:
        for seen in imports(one):
            if seen.level:
                yield one.at(seen.line, "relative import; write distributed_grid.…")
            elif seen.target.split(".")[0] in BARE_NAMES:
                yield one.at(seen.line, f"bare import of {seen.target}; write distributed_grid.{seen.target}")


def packages_outside_their_files(sources: list[Source]) -> Iterator[str]:
    for one in sources:
        for seen in imports(one):
            package = seen.target.split(".")[0]
            if not seen.level and package in KEPT_TO and not covered(KEPT_TO[package], one.name):
                yield one.at(seen.line, f"{package} is imported by {', '.join(sorted(KEPT_TO[package]))} only")


def packages_where_they_are_unwelcome(sources: list[Source]) -> Iterator[str]:
    for one in sources:
        for seen in imports(one):
            package = seen.target.split(".")[0]
            if not seen.level and covered(KEPT_OUT.get(package, set()), one.name):
                yield one.at(seen.line, f"{package} is not for {one.name}")


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def forbidden_calls(sources: list[Source]) -> Iterator[str]:
    for one in sources:
        for seen in imports(one):
            if not seen.level and (seen.target.split(".")[0] in FORBIDDEN_MODULES or seen.target in FORBIDDEN_CALLS):
                yield one.at(seen.line, f"{seen.target} is not used here")
        for node in nodes(one.tree):
            if not isinstance(node, ast.Call):
                continue
            if dotted(node.func) in FORBIDDEN_CALLS:
                yield one.at(node.lineno, f"{dotted(node.func)} is not used here")
            for keyword in node.keywords:
                constant = keyword.value.value if isinstance(keyword.value, ast.Constant) else True
                if keyword.arg == "shell" and constant:
                    yield one.at(node.lineno, "commands are argv lists, never shell=True")


def docstrings(tree: ast.Module) -> set[ast.AST]:
    """Strings that stand alone say something to readers; what they name is not done."""
    lone = (node.value for node in nodes(tree) if isinstance(node, ast.Expr))
    return {value for value in lone if isinstance(value, ast.Constant)}


def commands_that_hit_strangers(sources: list[Source]) -> Iterator[str]:
    for one in sources:
        prose = docstrings(one.tree)
        for node in nodes(one.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in prose:
                if found := FORBIDDEN_WORDS.search(node.value):
                    yield one.at(node.lineno, f"{found.group()} ends processes that are not ours")
            elif isinstance(node, ast.List | ast.Tuple):
                words = [str(item.value) if isinstance(item, ast.Constant) else "?" for item in node.elts]
                for first, second in zip(words, words[1:], strict=False):
                    if first.rsplit("/", 1)[-1] in ("ray", "?") and second == "stop" and words[0] == first:
                        yield one.at(node.lineno, "ray stop ends processes that are not ours")


def files_opened_by_path(sources: list[Source]) -> Iterator[str]:
    for one in sources:
        if not covers("agent", one.name) or covered(set(OPENS_BY_PATH), one.name):
            continue
        for node in nodes(one.tree):
            if not isinstance(node, ast.Call):
                continue
            name = dotted(node.func)
            method = name.rpartition(".")[2] if isinstance(node.func, ast.Attribute) else ""
            # A method `open` that is given something is that of a path: ours take nothing.
            by_path = method in PATH_METHODS or (method == "open" and (node.args or node.keywords))
            if name in PATH_CALLS or name.split(".")[0] in PATH_MODULES or by_path:
                yield one.at(node.lineno, f"{name}: open it by runtime.beneath, or say in OPENS_BY_PATH what it is")


def supervisors_that_lean_on_others(sources: list[Source]) -> Iterator[str]:
    threads = {"asyncio", "threading", "_thread", "multiprocessing", "concurrent"}
    for one in sources:
        for seen in imports(one) if covered(SUPERVISING, one.name) else ():
            target, top = ours(seen.target), seen.target.split(".")[0]
            if target is not None:
                if not covered(LEANS_ON, target):
                    yield one.at(seen.line, f"the supervisor outlives the agent and may not import {target}")
            elif (top in threads and one.name not in SYNCS_IN_A_THREAD) or top not in sys.stdlib_module_names:
                yield one.at(seen.line, f"the supervisor is one loop and stdlib only, without {top}")


def folders_that_are_too_wide(sources: list[Source]) -> Iterator[str]:
    folders = Counter(str(Path(one.path).parent) for one in sources if Path(one.path).name != "__init__.py")
    for folder, files in folders.items():
        if files > WIDTH:
            yield f"{folder} holds {files} modules, {WIDTH} at most: make a package of those that are one idea"


def modules_in_circles(sources: list[Source]) -> Iterator[str]:
    """Imports under TYPE_CHECKING and within functions included: who needs another's types is not read without it."""
    names = {one.name for one in sources}
    needs: dict[str, dict[str, int]] = {one.name: {} for one in sources}
    for one in sources:
        for seen in imports(one):
            target = ours(seen.target) or ""
            target = target if target in names else target.rpartition(".")[0]
            if target in names and target != one.name:
                needs[one.name].setdefault(target, seen.line)
    for one in sources:
        if back := _way_back(needs, one.name):
            yield one.at(needs[one.name][back[0]], f"is in a circle: {' -> '.join((one.name, *back))}")


def _way_back(needs: dict[str, dict[str, int]], name: str) -> tuple[str, ...]:
    """The shortest way of imports from a module to itself; empty: there is none."""
    seen: set[str] = set()
    ways: deque[tuple[str, ...]] = deque([(name,)])
    while ways:
        way = ways.popleft()
        for target in needs[way[-1]]:
            if target == name:
                return (*way[1:], name)
            if target not in seen:
                seen.add(target)
                ways.append((*way, target))
    return ()


# --- tests mirror the tree --------------------------------------------------------------------------------------------

UNMIRRORED: set[str] = set()
"""Modules without tests of their own name. None is left: a new one brings its tests."""


def mirrors_of(path: str, modules: set[str]) -> list[str]:
    """Where the tests of a module are to lie, as patterns below tests/: test_module.py, test_module_*.py but for those
    of a module with a longer name, or a folder of its name."""
    folder, _, name = path.removeprefix("distributed_grid/").removesuffix(".py").rpartition("/")
    beside = ROOT / "tests" / folder
    longer = [other for other in modules if other.startswith(f"{path.removesuffix('.py')}_")]
    taken = [Path(other).stem for other in longer]
    found = [
        one for one in beside.glob(f"test_{name}_*.py") if not one.stem.startswith(tuple(f"test_{t}" for t in taken))
    ]
    return [str(one) for one in (*beside.glob(f"test_{name}.py"), *found, *(beside / name).glob("test_*.py"))]


def test_each_module_has_tests_of_its_name() -> None:
    paths = {one.path for one in read(ROOMS) if Path(one.path).name != "__init__.py"}
    without = {path for path in paths if not mirrors_of(path, paths)}
    assert sorted(without - UNMIRRORED) == [], "tests/ mirrors the tree: for a/b/c.py there is tests/a/b/test_c.py"
    assert sorted(UNMIRRORED - without) == [], "these have their tests: take them off the list of those that have none"


# --- the tree keeps them ---------------------------------------------------------------------------------------------


def check(rule: Callable[[list[Source]], Iterator[str]], *folders: str) -> None:
    sources = read(folders or ROOMS)
    assert len(sources) >= len(ROOMS)
    complaints = list(rule(sources))
    assert not complaints, "\n" + "\n".join(complaints)


def test_rooms_import_only_along_the_edges() -> None:
    check(imports_against_the_edges)


def test_the_protocol_and_both_cores_are_pure() -> None:
    check(impure_imports)


def test_no_file_outgrows_the_ceiling() -> None:
    check(files_over_the_ceiling)


def test_no_folder_holds_more_than_one_looks_through() -> None:
    check(folders_that_are_too_wide, *ROOMS, "bench")


def test_our_imports_are_absolute_and_by_the_full_name() -> None:
    check(imports_by_another_name, *ROOMS, *WORKSHOPS)


def test_measuring_and_ray_are_kept_to_their_files() -> None:
    check(packages_outside_their_files)


def test_structlog_stays_out_of_the_command_line_and_the_cores() -> None:
    check(packages_where_they_are_unwelcome)


def test_nobody_uses_a_shell_or_runs_data_as_code() -> None:
    check(forbidden_calls, *ROOMS, *WORKSHOPS)


def test_nobody_ends_processes_by_name() -> None:
    check(commands_that_hit_strangers, *ROOMS, "scripts", "bench")


def test_the_supervisor_needs_nothing_but_the_standard_library() -> None:
    check(supervisors_that_lean_on_others)


def test_the_agent_opens_nothing_by_path_that_a_job_could_have_touched() -> None:
    check(files_opened_by_path)


def test_no_module_is_in_a_circle_of_imports() -> None:
    check(modules_in_circles)


# --- the rules can fail ----------------------------------------------------------------------------------------------

OFFENCES = [
    (imports_against_the_edges, "protocol/codec.py", "from distributed_grid.config import settings as config"),
    (imports_against_the_edges, "protocol/codec.py", "from distributed_grid import __version__"),
    (imports_against_the_edges, "coordinator/core/ledger.py", "import distributed_grid.coordinator.driver"),
    (
        imports_against_the_edges,
        "agent/core/spare/lender.py",
        "from distributed_grid.agent.sampling.probe import sample",
    ),
    (
        imports_against_the_edges,
        "coordinator/client/aio.py",
        "from distributed_grid.coordinator.core.model import Node",
    ),
    (imports_against_the_edges, "coordinator/driver.py", "from distributed_grid.agent.runtime import run"),
    (imports_against_the_edges, "agent/runtime.py", "from distributed_grid.config.settings import Settings"),
    (imports_against_the_edges, "agent/main.py", "from distributed_grid.coordinator.driver import Driver"),
    (imports_against_the_edges, "cli/status.py", "def f():\n    from distributed_grid.coordinator.core import model"),
    (imports_against_the_edges, "cli/services/agent.py", "from distributed_grid.agent.main import main"),
    (
        imports_against_the_edges,
        "cli/services/agent.py",
        "def f():\n    from distributed_grid.coordinator.main import main",
    ),
    (imports_against_the_edges, "distributed_grid/core.py", "from distributed_grid.coordinator.core import model"),
    (impure_imports, "protocol/link.py", "import time"),
    (impure_imports, "coordinator/core/ledger.py", "def f():\n    from random import random"),
    (impure_imports, "coordinator/core/ledger.py", "import msgpack"),
    (impure_imports, "agent/core/spare/lender.py", "import os.path"),
    (files_over_the_ceiling, "cli/status.py", "x = 1\n" * (CEILING + 1)),
    (imports_by_another_name, "agent/runtime.py", "from agent.core import spare"),
    (imports_by_another_name, "agent/runtime.py", "from .core import spare"),
    (imports_by_another_name, "tests/test_x.py", "import cli.main"),
    (packages_outside_their_files, "agent/limits.py", "import psutil"),
    (packages_outside_their_files, "coordinator/driver.py", "def f():\n    import ray.util"),
    (packages_outside_their_files, "agent/main.py", "import structlog"),
    (packages_where_they_are_unwelcome, "cli/status.py", "import structlog"),
    (packages_where_they_are_unwelcome, "coordinator/client/aio.py", "from structlog import get_logger"),
    (forbidden_calls, "agent/launch/launcher.py", "run('ls', shell=True)"),
    (forbidden_calls, "agent/launch/launcher.py", "run('ls', shell=flag)"),
    (forbidden_calls, "agent/launch/launcher.py", "import os\nos.system('ls')"),
    (forbidden_calls, "agent/launch/launcher.py", "from os import system"),
    (forbidden_calls, "coordinator/store/store.py", "import pickle"),
    (forbidden_calls, "distributed_grid/config/settings.py", "yaml.load(text)"),
    (forbidden_calls, "cli/run.py", "eval(text)"),
    (commands_that_hit_strangers, "agent/launch/raylet.py", "run(['pkill', 'raylet'])"),
    (commands_that_hit_strangers, "agent/launch/raylet.py", "run(['ray', 'stop', '--force'])"),
    (commands_that_hit_strangers, "agent/launch/raylet.py", "run([program, 'stop'])"),
    (commands_that_hit_strangers, "agent/launch/raylet.py", "run(f'ray stop {flag}')"),
    (files_opened_by_path, "agent/data/transfer.py", "open(path)"),
    (files_opened_by_path, "agent/data/transfer.py", "import os\nos.open(path, os.O_RDONLY)"),
    (files_opened_by_path, "agent/data/transfer.py", "Path(path).read_bytes()"),
    (files_opened_by_path, "agent/launch/staging.py", "(folder / 'recall').open('wb')"),
    (files_opened_by_path, "agent/walls/wire.py", "path.write_text('x')"),
    (files_opened_by_path, "agent/data/transfer.py", "shutil.rmtree(path)"),
    (supervisors_that_lean_on_others, "agent/supervisor/loop.py", "import psutil"),
    (supervisors_that_lean_on_others, "agent/supervisor/allocations.py", "import threading"),
    (supervisors_that_lean_on_others, "agent/walls/spawner.py", "import _thread"),
    (supervisors_that_lean_on_others, "agent/supervisor/loop.py", "from distributed_grid.protocol import errors"),
    (supervisors_that_lean_on_others, "distributed_grid/runtime/beneath.py", "import msgspec"),
]


def test_a_circle_of_imports_is_found_wherever_they_are_written() -> None:
    state, outcomes, ledger = (
        "coordinator/core/state.py",
        "coordinator/core/lifecycle/outcomes.py",
        "coordinator/core/ledger.py",
    )
    core = "from distributed_grid.coordinator.core"
    for back in ("{}", "if TYPE_CHECKING:\n    {}", "def f():\n    {}"):
        sources = [
            source(ledger, f"{core}.lifecycle import outcomes"),
            source(outcomes, f"{core}.state import GridState"),
            source(state, back.format(f"{core}.lifecycle.outcomes import gang_meeting")),
        ]
        found = list(modules_in_circles(sources))
        assert len(found) == 2 and not any(ledger in one for one in found), "only these two import each other"
        assert "coordinator.core.state -> coordinator.core.lifecycle.outcomes -> coordinator.core.state" in found[1]


@pytest.mark.parametrize(
    ("rule", "path", "text"), OFFENCES, ids=[f"{o[0].__name__}-{i}" for i, o in enumerate(OFFENCES)]
)
def test_each_rule_catches_its_offences(rule: Callable[[list[Source]], Iterator[str]], path: str, text: str) -> None:
    assert len(list(rule([source(path, text)]))) == 1


def test_a_folder_that_is_too_wide_is_found() -> None:
    sources = [source(f"cli/attach/at_{number}.py", "") for number in range(WIDTH + 1)]
    assert list(folders_that_are_too_wide(sources[1:])) == []
    assert len(list(folders_that_are_too_wide(sources))) == 1


INNOCENT = [
    (
        imports_against_the_edges,
        "coordinator/client/jobs.py",
        "from distributed_grid.coordinator.client.aio import Client",
    ),
    (imports_against_the_edges, "cli/main.py", "from distributed_grid import __version__"),
    (imports_against_the_edges, "cli/dev/dev.py", "def f():\n    from distributed_grid.agent.gpus import backends"),
    (imports_against_the_edges, "agent/main.py", "from distributed_grid.config.settings import Settings"),
    (imports_against_the_edges, "distributed_grid/orchestration/x.py", "from distributed_grid.core import y"),
    (impure_imports, "protocol/codec.py", "import msgpack\nfrom collections.abc import Iterator"),
    (packages_outside_their_files, "agent/gpus/backends.py", "import pynvml"),
    (forbidden_calls, "agent/launch/launcher.py", "run(['ls'], shell=False)"),
    (
        commands_that_hit_strangers,
        "agent/launch/raylet.py",
        '"""Never by `ray stop`."""\nrun(["ray", "start", "--block"])',
    ),
    (files_opened_by_path, "agent/data/transfer.py", "beneath.open_regular(folder, 'stdout')\nself._data.open()"),
    (files_opened_by_path, "coordinator/store/store.py", "open(path)"),
    (supervisors_that_lean_on_others, "agent/supervisor/loop.py", "import os, select, signal"),
]


@pytest.mark.parametrize(
    ("rule", "path", "text"), INNOCENT, ids=[f"{o[0].__name__}-{i}" for i, o in enumerate(INNOCENT)]
)
def test_each_rule_lets_the_innocent_pass(rule: Callable[[list[Source]], Iterator[str]], path: str, text: str) -> None:
    assert list(rule([source(path, text)])) == []
