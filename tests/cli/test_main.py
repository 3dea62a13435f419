"""What `grid` does before it does anything: its version, its help, and how little it imports for them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from distributed_grid.cli.lazy import LazyGroup
from distributed_grid.cli.main import COMMANDS, SECTIONS, main

SLOW = {"asyncio", "structlog", "rich", "yaml", "websockets", "ray", "psutil", "msgspec", "ast", "difflib"}


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_the_version_is_one_line() -> None:
    code = "import sys; sys.argv[1:] = ['--version']; from distributed_grid.cli.main import main; main()"
    assert run(code) == "grid 0.1.0\n"


AWAITED = """
import sys

def interrupted(*_):
    print('here', flush=True)
    sys.stdin.read()

"""
LOADING = """
class Finder:
    def find_spec(self, name, *_):
        if name == 'distributed_grid.cli.main':
            sys.modules.pop('{0}', None)
        elif name == '{0}' and 'distributed_grid.cli.main' in sys.modules:
            interrupted()

sys.meta_path.insert(0, Finder())
"""
RUNS = "import distributed_grid.cli.main as it\nit.main(['nodes', '--help'])"


@pytest.mark.parametrize(
    "code",
    [
        LOADING.format("enum") + RUNS,
        LOADING.format("typing") + RUNS,
        LOADING.format("click") + RUNS,
        RUNS.replace("\n", "\nit._open_standard_files = interrupted\n"),
        "import atexit\natexit.register(interrupted)\n" + RUNS,
    ],
    ids=["first-module", "first-modules", "modules", "before-the-command", "after-the-command"],
)
def test_an_interrupt_outside_a_command_ends_it_without_a_traceback(code: str) -> None:
    words, pipe = [sys.executable, "-c", AWAITED + code], subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe) as it:
        assert it.stdout is not None
        while it.stdout.readline() not in (b"here\n", b""):
            pass
        it.send_signal(signal.SIGINT)
        assert (it.wait(60), it.communicate()) == (-signal.SIGINT, (b"", b""))


def test_a_program_that_loads_it_is_interrupted_as_before() -> None:
    code = "import signal; import distributed_grid.cli.main; print(signal.getsignal(signal.SIGINT).__name__)"
    assert run(code) == "default_int_handler\n"


def test_help_imports_nothing_slow_and_no_command() -> None:
    code = (
        "import sys; from distributed_grid.cli.main import main; main(['--help'], standalone_mode=False);"
        "print('LOADED', *sys.modules)"
    )
    shown, _, loaded = run(code).partition("LOADED")
    assert "Usage: " in shown
    assert not SLOW & set(loaded.split())
    ours = {name for name in loaded.split() if name.startswith("distributed_grid.")}
    deferred = {"distributed_grid.runtime", "distributed_grid.runtime.deferred"}
    assert (
        ours <= {f"distributed_grid.cli{name}" for name in ("", ".main", ".lazy", ".context", ".examples")} | deferred
    )


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--typ", "'--type'"),
        ("--typ=cpu", "'--type'"),
        ("--tiem", "'--time'"),
        ("--resuorce-type", "--resource-type"),
    ],
)
def test_a_mistyped_option_is_told_the_one_that_is_meant(typed: str, meant: str) -> None:
    done = CliRunner().invoke(main, ["run-shared", typed, "cpu", "-a", "1", "true"])
    assert done.exit_code == 2 and meant in done.stderr.splitlines()[-1] and "--get" not in done.stderr


def test_an_option_like_no_other_is_told_no_other() -> None:
    done = CliRunner().invoke(main, ["run-shared", "--xyzzy", "true"])
    assert done.stderr.splitlines()[-1].rstrip(".").endswith(("No such option: --xyzzy", "No such option '--xyzzy'"))


def test_commands_say_of_themselves_what_the_table_says() -> None:
    said = {name: lazy.load().get_short_help_str(limit=200) for name, lazy in COMMANDS.items()}
    assert said == {name: lazy.summary for name, lazy in COMMANDS.items()}


def test_the_help_has_every_command_in_one_section() -> None:
    shown = run("from distributed_grid.cli.main import main; main(['--help'], standalone_mode=False)")
    titles = [line.removesuffix(":") for line in shown.splitlines() if line[:1].isalpha() and line.endswith(":")]
    assert titles == ["Options", *SECTIONS, "Examples"]
    names = [name for names in SECTIONS.values() for name in names]
    assert sorted(names) == sorted(COMMANDS)


def test_the_entry_point_is_a_lazy_group() -> None:
    assert isinstance(main, LazyGroup)
    assert main.table is COMMANDS


def test_a_command_imports_no_event_loop_and_nothing_else_that_is_slow() -> None:
    code = (
        "import sys; from distributed_grid.cli.jobs.run_shared import run_shared;"
        "from distributed_grid.cli.attach.attached import Attached;"
        "from distributed_grid.coordinator.client.blocking import GridClient;"
        "print(*sys.modules)"
    )
    assert not {"asyncio", "structlog", "rich", "yaml", "ray", "psutil", "uvloop"} & set(run(code).split())


@pytest.mark.parametrize(
    "module", ["cli.boosts.boost", "coordinator.main", "coordinator.ray.boosts", "agent.main", "agent.launch.raylet"]
)
def test_nothing_but_the_bridge_ever_imports_ray(module: str) -> None:
    assert "ray" not in run(f"import sys, distributed_grid.{module}; print(*sys.modules)").split()


def test_a_program_that_loads_it_has_its_garbage_collected_as_before() -> None:
    code = (
        "import gc; before = gc.get_threshold(); import distributed_grid.cli.main; print(gc.get_threshold() == before)"
    )
    assert run(code) == "True\n"


OTHERS_MESSAGES = {
    f"distributed_grid.protocol.{name}"
    for name in "history scaling sharing messages.agent messages.automation messages.history messages.needs"
    " messages.operator messages.pages messages.rights messages.why".split()
}
"""Of the protocol, what has to do with neither jobs nor the nodes that lend."""
HEAVY = {"rich", "attr", "pygments", "cryptography", "yaml", "ray", "pynvml", "http.client", "email.message", "zipfile"}
PROGRAMS = {
    "grid run-shared": (
        "cli.main cli.jobs.run_shared cli.attach.attached coordinator.client.blocking",
        {"asyncio", "structlog", "psutil", "ssl", "sqlite3", "tempfile", "pathspec", "subprocess", "multiprocessing"}
        | {"ctypes", "difflib", "json", "locale", "textwrap"}
        | {"distributed_grid.cli.attach.waiting", "distributed_grid.cli.jobs.predict"}
        | {"distributed_grid.protocol.messages.client", *OTHERS_MESSAGES},
    ),
    "grid shared-status": (
        "cli.main cli.grid.shared coordinator.client.blocking",
        {"asyncio", "structlog", "psutil", "ssl", "sqlite3", "tempfile", "pathspec", "subprocess", "multiprocessing"}
        | {"json", *OTHERS_MESSAGES},
    ),
    "grid agent run": (
        "cli.main cli.services.agent agent.main",
        {"distributed_grid.coordinator", "sqlite3", "pathspec", "multiprocessing", "websockets.server"},
    ),
    "grid coordinator run": (
        "cli.main cli.services.coordinator coordinator.main",
        {"distributed_grid.agent", "psutil", "multiprocessing", "websockets.asyncio.client"},
    ),
}
"""What each program imports when it starts, and what beside HEAVY it must not load for that."""


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_loads_nothing_heavy_that_it_may_never_need(program: str) -> None:
    modules, unwanted = PROGRAMS[program]
    ours = ", ".join(f"distributed_grid.{name}" for name in modules.split())
    # A module that is deferred is in sys.modules, but none that it imports.
    assert not (HEAVY | unwanted) & set(run(f"import sys, {ours}; print(*sys.modules)").split())


def test_options_by_their_short_names_are_taken_without_what_looks_for_alike_ones_or_translates() -> None:
    code = (
        "import sys; from distributed_grid.cli.main import main\n"
        "try: main(['run-shared', '-dt', 'cpu', '-a1', '--in', '', 'true'])\n"
        "except SystemExit as end: print(end.code, *sys.modules)"
    )
    code, *loaded = run(code).split()
    assert code == "2" and "distributed_grid.cli.jobs.run_shared" in loaded
    assert not {"difflib", "locale"} & {*loaded}


def test_the_supervisor_and_its_fork_server_load_a_small_part_of_the_standard_library() -> None:
    main = Path(__file__).parents[2] / "agent" / "supervisor" / "main.py"
    code = (
        f"import runpy, sys; runpy.run_path({str(main)!r})['_name_our_files']();"
        "from distributed_grid.agent.supervisor import loop; from distributed_grid.agent.walls import forkserver;"
        "print(*sys.modules)"
    )
    isolated = [sys.executable, "-I", "-S", "-X", "utf8", "-c", code]
    loaded = set(subprocess.run(isolated, capture_output=True, text=True, check=True).stdout.split())
    assert not {"asyncio", "ssl", "logging", "subprocess", "tempfile", "shutil", "msgspec"} & loaded


@pytest.mark.parametrize("path", [["job"], ["agent"], ["coordinator"], ["dev"], ["config"], ["cluster"]])
def test_every_command_has_help_and_takes_the_common_options(path: list[str]) -> None:
    group = COMMANDS[path[0]].load()
    assert isinstance(group, click.Group)
    for command in group.commands.values():
        assert command.get_short_help_str()
        assert {"-c", "-o", "--coordinator"} <= {name for parameter in command.params for name in parameter.opts}


def test_what_stdout_cannot_encode_is_escaped(tmp_path: Path) -> None:
    (tmp_path / "grid.yaml").write_text('name: "☃ Ülm"\n')
    words = [sys.executable, "-m", "distributed_grid.cli.main", "-o", "quiet", "config", "show"]
    env = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(words, capture_output=True, cwd=tmp_path, env=env, timeout=60)
    assert (done.returncode, done.stderr.count(b"error")) == (0, 0)
    assert b"\\u2603 \xdclm" in done.stdout


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["jobs", "--help"], ["config", "schema"]])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_under_the_output_is_told_with_what_to_do(words: list[str], unbuffered: str) -> None:
    with open("/dev/full", "w") as full:
        call = [sys.executable, "-m", "distributed_grid.cli.main", *words]
        env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        done = subprocess.run(call, stdout=full, stderr=subprocess.PIPE, text=True, env=env, timeout=60)
    what, hint = done.stderr.splitlines()
    assert (done.returncode, what) == (70, "error: No space left on device")
    assert hint.startswith("  try: df -h")


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["jobs", "--help"], ["config", "schema"]])
def test_a_reader_who_went_away_is_no_error(words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    call = [sys.executable, "-m", "distributed_grid.cli.main", *words]
    done = subprocess.run(call, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_file_that_another_user_owns_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "/nobodys/grid/config.yaml")

    monkeypatch.setattr("distributed_grid.config.places.find", refused)
    monkeypatch.setattr("distributed_grid.config.settings.find", refused)
    done = CliRunner().invoke(main, ["config", "check"])
    what, hint = done.stderr.splitlines()
    assert what == "error: Permission denied (/nobodys/grid/config.yaml)"
    assert "id shows who you are" in hint


def test_a_current_directory_that_is_gone_is_told(tmp_path: Path) -> None:
    script = 'mkdir gone; cd gone; rmdir ../gone; exec "$@"'
    call = [sys.executable, "-m", "distributed_grid.cli.main", "dev", "down", "--dir", "relative"]
    done = subprocess.run(["sh", "-c", script, "sh", *call], capture_output=True, cwd=tmp_path, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (70, "")
    assert done.stderr.splitlines()[1:] == [
        "  why: the current directory is not there any more",
        "  try: cd to one that is",
    ]


@pytest.mark.parametrize(
    "words",
    [
        ("receipts", ""),
        ("receipts", "--node", ""),
        ("config", "check", ""),
        ("-c", "none.yaml", "dev", "up", "--dir", ""),  # with a file it would start nothing
        ("dev", "down", "--dir", ""),
        ("run-shared", "-n", "", "true"),
        ("run-shared", "--workdir", "", "true"),  # it would ship what is here
        ("run-shared", "--gpus", "1", "--gpu-model", "", "true"),
        ("run-shared", "--retry-on", "", "true"),
    ],
)
def test_what_is_given_and_empty_as_an_unset_variable_is_refused(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(main, ["--coordinator", "ws://127.0.0.1:1", *words])
    assert done.exit_code == 2 and "empty" in done.stderr


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_a_closed_standard_file_leads_nowhere_instead_of_into_a_socket(closed: int, tmp_path: Path) -> None:
    code = (
        f"import os, sys; os.close({closed}); "
        "os.execv(sys.executable, [sys.executable, '-m', 'distributed_grid.cli.main', 'config', 'show'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert (done.returncode, bool(done.stdout), done.stderr) == (0, closed != 1, "")
