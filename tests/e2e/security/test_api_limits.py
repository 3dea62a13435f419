"""What clients ask at and beyond the limits: each gets an answer, nobody else notices, and nothing leads out of a job's
working directory."""

import asyncio
import contextlib
import math
import os
import secrets
import shlex
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from distributed_grid.config import ClusterConfig
from distributed_grid.coordinator.client import GridClient, describe_job
from distributed_grid.coordinator.client.session import RequestRefused
from distributed_grid.core import GridOrchestrator
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.jobs import JobSpec, Request, State
from distributed_grid.protocol.messages import (
    AskWhy,
    Cancel,
    Failed,
    FileData,
    Files,
    Output,
    PutBlob,
    ShowJobs,
    SignalJob,
    Submission,
    Submit,
    WantBlobs,
    WantFile,
    WantFiles,
    WantOutput,
)
from distributed_grid.protocol.resources import Resources, ResourceType
from tests.coordinator.ends import ClientEnd, answer_to
from tests.coordinator.ends import client as dial
from tests.e2e.scenes import Scene, lasting


@pytest.fixture(scope="module")
def grid() -> Iterator[Scene]:
    """A grid with one node of four virtual cores."""
    with lasting(cores=4) as made:
        yield made


@pytest.fixture
async def end(grid: Scene) -> AsyncIterator[ClientEnd]:
    """A client that says what it likes."""
    made = await dial(grid.url)
    yield made
    await made.close()


@pytest.fixture
async def client(grid: Scene) -> AsyncIterator[GridClient]:
    async with GridClient(grid.url) as made:
        yield made


async def ran(client: GridClient, script: str) -> str:
    """The allocation of a job that is over."""
    job = await client.submit(["sh", "-c", script])
    return (await client.wait(job)).allocation


# --- outputs and files ------------------------------------------------------------------------------------------------

ELSEWHERE = ["j-aaaaaaaaaaaa.1", "", "..", "../../etc", "/etc/passwd", "a\0b", "x" * 100_000, "j-aaaaaaaaaaaa.99999999"]


@pytest.mark.parametrize("allocation", ELSEWHERE, ids=range(len(ELSEWHERE)))
async def test_what_is_not_an_allocation_has_no_output_and_no_files(end: ClientEnd, allocation: str) -> None:
    for number, ask in enumerate(
        (
            WantOutput(id=1, allocation=allocation, stream="stdout", offset=0, size=100, wait=30),
            WantFiles(id=1, allocation=allocation, globs=("**",)),
            WantFile(id=1, allocation=allocation, path="passwd", offset=0, size=100),
        ),
        1,
    ):
        answer = await end.ask(replace(ask, id=number))
        said = answer.what if isinstance(answer, Failed) else answer.error  # longer than such a word may be, or unknown
        assert said and len(said) < 1000


async def test_files_outside_the_working_directory_are_not_read(end: ClientEnd, client: GridClient) -> None:
    script = (
        "echo mine > mine; ln -s /etc/passwd absolute; ln -s ../../../../../../../../../etc/passwd relative; "
        "ln -s / root; ln -s .. up; ln -s mine inside; mkfifo pipe; ln -s loop loop; ln -s ../spec spec"
    )
    allocation = await ran(client, script)
    listed = await end.ask(WantFiles(id=1, allocation=allocation, globs=("**",)))
    assert sorted(file.path for file in listed.files) == ["inside", "mine"]
    wanted = [
        "absolute", "relative", "root/etc/passwd", "up/spec", "up/stdout", "spec", "pipe", "loop", "../spec",
        "/etc/passwd", "./mine", "mine/", "mine/..", "", ".", "..", "a\0b", "x" * 5000, "a/" * 2000 + "b", "no-such",
    ]  # fmt: skip
    for number, path in enumerate(wanted, 2):
        answer = await end.ask(WantFile(id=number, allocation=allocation, path=path, offset=0, size=1000))
        assert isinstance(answer, FileData) and answer.error and not answer.data, path[:50]
    for number, glob in enumerate(
        ["/etc/*", "../*", "up/../../*", "", "a\0*", "root/**", "[", "[!", "x" * 100_000], 100
    ):
        answer = await end.ask(WantFiles(id=number, allocation=allocation, globs=(glob,)))
        assert isinstance(answer, Files) and not answer.files, glob[:50]


ODD_NUMBERS = [(-1, 10), (1 << 62, 10), ((1 << 63) + 5, 10), (0, -1), (0, (1 << 63) + 5), (0, 0)]


@pytest.mark.parametrize(("offset", "size"), ODD_NUMBERS)
async def test_odd_offsets_and_sizes_are_answered(end: ClientEnd, client: GridClient, offset: int, size: int) -> None:
    job = await client.submit(["sh", "-c", "echo content > file; head -c 40000 /dev/zero; sleep 600"])
    while not (found := (await client.show(job))).started:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    allocation = found.allocation
    async with asyncio.timeout(60):
        read = await end.ask(WantFile(id=1, allocation=allocation, path="file", offset=offset, size=size))
        assert isinstance(read, FileData | Failed)
        told = await end.ask(WantOutput(id=2, allocation=allocation, stream="stdout", offset=offset, size=size))
        assert isinstance(told, Failed) or (isinstance(told, Output) and len(told.data) <= 40_000)
    await client.cancel(job, grace=0)


async def test_globs_that_fit_in_many_ways_are_answered_in_time(end: ClientEnd, client: GridClient) -> None:
    allocation = await ran(
        client, "d=.; for n in $(seq 30); do d=$d/aaaaaaaaaaaaaaaaaaaa; done; mkdir -p $d; echo > $d/f"
    )
    globs = ["/".join(["**"] * 30) + "/x", "/".join(["**", "a*"] * 10) + "/x", "*a" * 100 + "x"]
    async with asyncio.timeout(60):
        for number, glob in enumerate(globs, 1):
            answer = await end.ask(WantFiles(id=number, allocation=allocation, globs=(glob,)))
            assert isinstance(answer, Files) and not answer.files


async def test_a_thousand_long_polls_at_once_are_all_answered_and_hold_up_nobody(
    grid: Scene, end: ClientEnd, client: GridClient
) -> None:
    job = await client.submit(["sh", "-c", "until [ -e go ]; do sleep 0.05; done; echo went"])
    await grid.until(lambda: _runs(client, job), "it runs")
    allocation = (await client.show(job)).allocation
    polls = [
        WantOutput(id=number, allocation=allocation, stream="stdout", offset=0, size=100, wait=wait)
        for number, wait in zip(range(1, 1001), [30.0, 1e6, 1e12, 1e15] * 250, strict=True)
    ]
    await end.say(*polls)
    assert (await client.run(["echo", "meanwhile"])).stdout == "meanwhile\n"
    (folder,) = grid.place.glob(f"n1/jobs/*/{allocation}")
    (folder / "go").touch()
    async with asyncio.timeout(60):
        for poll in polls:
            await end.until(answer_to(poll.id))
    answers = [seen for seen in end.seen if isinstance(seen, Output)]
    assert len(answers) == 1000
    assert sum(answer.data == b"went\n" for answer in answers) >= 500


async def _runs(client: GridClient, job: str) -> bool:
    return (await client.show(job)).state is State.RUNNING


# --- blobs ------------------------------------------------------------------------------------------------------------


async def test_blobs_that_are_unknown_wrong_or_no_blobs(end: ClientEnd) -> None:
    nothing = "0" * 64
    assert (await end.ask(WantBlobs(id=1, blobs=(nothing,)))).blobs == (nothing,)
    for number, name in enumerate(["", "..", "../../etc/passwd", "0" * 63, "A" * 64, "x" * 100_000, "0" * 63 + "/"], 2):
        assert isinstance(await end.ask(WantBlobs(id=number, blobs=(name,))), Failed)
        assert isinstance(await end.ask(PutBlob(id=number + 50, blob=name, offset=0, data=b"x", end=True)), Failed)
    wrong = await end.ask(PutBlob(id=200, blob=nothing, offset=0, data=b"not what it says", end=True))
    assert isinstance(wrong, Failed)
    assert (await end.ask(WantBlobs(id=201, blobs=(nothing,)))).blobs == (nothing,)
    middle = await end.ask(PutBlob(id=202, blob="1" * 64, offset=5, data=b"x", end=True))
    assert isinstance(middle, Failed)
    answer = await end.ask(Submit(id=203, jobs=(_job(bundle=nothing),)))
    assert isinstance(answer, Failed) and "shipped" in answer.what


# --- submissions ------------------------------------------------------------------------------------------------------


def _job(*argv: str, **spec: Any) -> Submission:
    return Submission(secrets.token_hex(8), JobSpec(argv or ("true",), **spec), Request(Resources(cpu=1000)))


REFUSED = {
    "no command": _job(""),
    "a zero byte in an argument": _job("echo", "a\0b"),
    "a zero byte in a variable": _job(env={"A": "\0"}),
    "a variable without a name": _job(env={"": "x"}),
    "a variable with =": _job(env={"A=B": "x"}),
    "a name with an escape": _job(name="\x1b[31mred"),
    "a name with a line break": _job(name="two\nlines"),
    "a long name": _job(name="x" * 129),
    "the name last": _job(name="last"),
    "two mebibytes of arguments": _job("echo", *["x" * 1024] * 2048),
    "a relative workdir": _job(workdir="here"),
    "a time limit of nan": _job(time_limit=math.nan),
    "a grace of inf": _job(grace=math.inf),
    "no key": replace(_job(), key=""),
    "nothing asked for": replace(_job(), request=Request(Resources())),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_submissions_that_cannot_be_are_refused_whole(end: ClientEnd, name: str) -> None:
    answer = await end.ask(Submit(id=1, jobs=(_job(name="sound"), REFUSED[name])))
    assert isinstance(answer, Failed) and answer.code in ("bad-value", "never-fits") and len(answer.what) < 500
    assert isinstance(await end.ask(ShowJobs(id=2, jobs=("sound",))), Failed)


async def test_no_arguments_at_all_are_refused(end: ClientEnd) -> None:
    assert isinstance(await end.ask(Submit(id=1, jobs=(replace(_job(), spec=JobSpec(())),))), Failed)


async def test_arguments_reach_the_job_as_they_are(client: GridClient) -> None:
    odd = ["", " ", "a b", "$HOME", "\x1b[31m", "\n", "*", "ü€😀", "-", "--"]
    result = await client.run(["printf", "%s|", *odd])
    assert result.stdout_bytes == "".join(f"{one}|" for one in odd).encode()


async def test_an_argument_longer_than_the_kernel_takes_is_refused_and_the_longest_reaches_the_job(
    client: GridClient,
) -> None:
    most = (128 << 10) - 1
    with pytest.raises(RequestRefused, match=f"argument 1 of the command has {most + 1} bytes"):
        await client.submit(["echo", "x" * (most + 1)])
    result = await client.run(["sh", "-c", "echo ${#1} ${#LONG}", "sh", "x" * most], env={"LONG": "y" * (most - 5)})
    assert result.stdout == f"{most} {most - 5}\n"


async def test_ten_thousand_jobs_are_taken_and_cancelled(grid: Scene, client: GridClient) -> None:
    async with asyncio.timeout(60):
        jobs = await client.submit_many([describe_job("sleep 600") for _ in range(10_000)])
        assert len(set(jobs)) == 10_000
        for at in range(0, len(jobs), 1000):
            await client.cancel(*jobs[at : at + 1000], grace=0)
        await asyncio.gather(*(client.wait(job) for job in jobs[:4]))
    assert (await client.run(["echo", "next"])).stdout == "next\n"


# --- requests about jobs ----------------------------------------------------------------------------------------------


async def test_a_cancel_with_an_impossible_grace_is_refused_and_one_with_an_endless_reason_is_shortened(
    end: ClientEnd, client: GridClient
) -> None:
    job = await client.submit(["sleep", "600"])
    for number, grace in enumerate([math.nan, math.inf, 1e308], 1):
        assert isinstance(await end.ask(Cancel(id=number, jobs=(job,), grace=grace)), Failed)
    await end.ask(Cancel(id=9, jobs=(job,), grace=0, reason="because " * 100_000))
    view = await asyncio.wait_for(client.wait(job), 60)
    assert max(len(step.text) for step in view.story) < 2000


async def test_endless_references_are_answered_at_once(end: ClientEnd) -> None:
    long = "ab" * 1_000_000
    async with asyncio.timeout(60):
        for number, ask in enumerate(
            (ShowJobs(id=0, jobs=(long,)), AskWhy(id=0, job=long), Cancel(id=0, jobs=(long,))), 1
        ):
            answer = await end.ask(replace(ask, id=number))
            assert isinstance(answer, Failed) and len(answer.what) < 500
        named = replace(_job(), request=Request(Resources(cpu=1000), nodes=(long,)))
        answer = await end.ask(Submit(id=7, jobs=(named,)))
        assert isinstance(answer, Failed) and len(answer.what) < 500
    for number, signal in enumerate((0, -1, 65, 1 << 62), 10):
        assert isinstance(await end.ask(SignalJob(id=number, job="x", signal=signal)), Failed)


async def test_text_that_is_not_utf8_is_refused_and_the_connection_stays(client: GridClient) -> None:
    job = await client.submit(["true"])
    for refused in (
        client.submit(["echo", "\udcff"]),
        client.submit(["true"], env={"A": "\udcff"}),
        client.submit(["true"], name="\udcff"),
        client.show("\udcff"),
        client.cancel(job, reason="\udcff"),
        client.files(job, "\udcff"),
    ):
        with pytest.raises(BadValue, match="cannot be sent"):
            await asyncio.wait_for(refused, 60)
    assert (await asyncio.wait_for(client.run(["echo", "fine"]), 60)).stdout == "fine\n"


# --- GridOrchestrator -------------------------------------------------------------------------------------------------


def config(grid: Scene, place: Path, more: str = "") -> ClusterConfig:
    path = place / "grid.yaml"
    path.write_text(f"coordinator: {{url: {grid.url}}}\n{more}")
    return ClusterConfig.from_yaml(path)


@pytest.fixture
async def orchestrator(grid: Scene, tmp_path: Path) -> AsyncIterator[GridOrchestrator]:
    async with GridOrchestrator(config(grid, tmp_path)) as made:
        yield made


AMOUNTS = [math.nan, math.inf, -math.inf, 0, -1, 1e308, True, None, "", "two", "nan", [1], 1e-9, 10**400, 0.0004]


@pytest.mark.parametrize("amount", AMOUNTS, ids=range(len(AMOUNTS)))
@pytest.mark.parametrize("kind", list(ResourceType))
async def test_amounts_that_are_none_are_refused(
    orchestrator: GridOrchestrator, kind: ResourceType, amount: Any
) -> None:
    if kind is ResourceType.MEMORY and amount in (1e-9, 0.0004):
        return  # a byte, and 400 KiB
    with pytest.raises(BadValue):
        await orchestrator.run_with_shared_resources("true", kind, amount, ship=False)


async def test_amounts_in_words_and_with_fractions_are_taken(orchestrator: GridOrchestrator) -> None:
    for kind, amount in ((ResourceType.CPU, "2"), ("cpu", 0.1 + 0.2), ("memory", "512M"), (ResourceType.MEMORY, 0.5)):
        result = await orchestrator.run_with_shared_resources("echo fine", kind, amount, ship=False)
        assert result.success and result.stdout == "fine\n"


COMMANDS: list[Any] = [
    "",
    "   ",
    [],
    [""],
    "echo 'unbalanced",
    'echo "',
    "echo \\",
    None,
    5,
    [1, 2],
    ["echo", None],
    ["echo", b"x"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=range(len(COMMANDS)))
async def test_commands_that_are_none_are_refused(orchestrator: GridOrchestrator, command: Any) -> None:
    with pytest.raises(BadValue):
        await orchestrator.run_with_shared_resources(command, "cpu", 1, ship=False)


ODD: list[dict[str, Any]] = [
    *({"resource_type": one} for one in ("tpu", "", None)),
    *({"priority": one} for one in ("soon", "", None, 7)),
    *({"env": one} for one in ({"A": 5}, {"A=": "x"}, {5: "x"}, {"": "x"}, {"A": "\0"})),
    *({"time_limit": one} for one in (math.nan, -1, 0, "soon")),
    *({"job_id": one} for one in ("a\nb", 5, "x" * 1000)),
    {"nodes": ["nowhere"]},
    {"workdir": "here"},
]


@pytest.mark.parametrize("odd", ODD, ids=range(len(ODD)))
async def test_options_that_are_none_are_refused(orchestrator: GridOrchestrator, odd: dict[str, Any]) -> None:
    usual: dict[str, Any] = {"resource_type": "cpu", "amount": 1, "ship": False}
    with pytest.raises(GridError):
        await orchestrator.run_with_shared_resources("true", **(usual | odd))
    assert (await orchestrator.run_with_shared_resources("true", "cpu", 1, ship=False)).success


async def test_what_no_node_could_ever_meet_is_refused_with_the_numbers(orchestrator: GridOrchestrator) -> None:
    with pytest.raises(GridError, match="64 cpu.*4 cpu"):
        await orchestrator.run_with_shared_resources("true", "cpu", 64, ship=False)


async def test_without_a_configuration_file_or_with_sharing_off_it_says_so(grid: Scene, tmp_path: Path) -> None:
    with pytest.raises(GridError, match="nowhere.yaml"):
        ClusterConfig.from_yaml(tmp_path / "nowhere.yaml")
    async with GridOrchestrator(config(grid, tmp_path, "resource_sharing: {enabled: false}\n")) as off:
        with pytest.raises(GridError, match="not enabled"):
            await off.run_with_shared_resources("true", "cpu", 1, ship=False)


async def test_it_is_opened_and_closed_in_any_order(grid: Scene, tmp_path: Path) -> None:
    early = GridOrchestrator(config(grid, tmp_path))
    with pytest.raises(GridError):
        await early.run_with_shared_resources("true", "cpu", 1, ship=False)
    await early.shutdown()
    await early.initialize()
    await early.initialize()
    assert (await early.run_with_shared_resources("true", "cpu", 1, ship=False)).success
    await early.shutdown()
    await early.shutdown()
    with pytest.raises(GridError):
        await early.get_shared_resource_status()


async def test_two_hundred_at_once(orchestrator: GridOrchestrator) -> None:
    async with asyncio.timeout(60):
        results = await asyncio.gather(
            *(orchestrator.run_with_shared_resources(["echo", str(n)], "cpu", 1, ship=False) for n in range(200))
        )
    assert [result.stdout for result in results] == [f"{n}\n" for n in range(200)]


async def test_a_caller_who_is_cancelled_cancels_its_job(grid: Scene, orchestrator: GridOrchestrator) -> None:
    call = orchestrator.run_with_shared_resources("sleep 600", "cpu", 1, ship=False, job_id="to-be-cancelled")
    task = asyncio.create_task(call)
    client = orchestrator.client
    await grid.until(lambda: _named_runs(client, "to-be-cancelled"), "it runs")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 60)
    view = await asyncio.wait_for(client.wait("to-be-cancelled"), 60)
    assert view.outcome is not None and view.outcome.cause == "cancelled"


async def _named_runs(client: GridClient, name: str) -> bool:
    with contextlib.suppress(RequestRefused):
        return await _runs(client, name)
    return False


async def test_the_coordinator_is_restarted_in_the_middle(
    grid: Scene, tmp_path: Path, orchestrator: GridOrchestrator
) -> None:
    script = f"until [ -e {tmp_path}/go ]; do sleep 0.05; done; echo done"
    call = orchestrator.run_with_shared_resources(["sh", "-c", script], "cpu", 1, ship=False, job_id="long")
    task = asyncio.create_task(call)
    await grid.until(lambda: _named_runs(orchestrator.client, "long"), "it runs")
    grid.kill("coordinator")
    fresh = asyncio.create_task(orchestrator.run_with_shared_resources("echo fresh", "cpu", 1, ship=False))
    await grid.coordinator()
    (tmp_path / "go").touch()
    assert [(await asyncio.wait_for(one, 60)).stdout for one in (task, fresh)] == ["done\n", "fresh\n"]


# --- the command line -------------------------------------------------------------------------------------------------

CLI = f"{shlex.quote(sys.executable)} -m distributed_grid.cli.main"
RUN = f"{CLI} run-shared -t cpu -a 1"
BYTES = "\"$(printf '\\377')\""
ODD_LINES = {
    "an argument that is not UTF-8": (f"{RUN} --no-ship echo {BYTES}", 2, "UTF-8"),
    "a variable that is not UTF-8": (f"{RUN} --no-ship -e A={BYTES} true", 2, "UTF-8"),
    "a job that is not UTF-8": (f"{CLI} cancel {BYTES}", 2, "UTF-8"),
    "a directory that is gone": (f"mkdir gone && cd gone && rmdir ../gone && {RUN} true", 125, "directory"),
    "a disk that is full": (f"{RUN} --no-ship seq 100000 > /dev/full", 125, "No space left"),
}


@pytest.mark.parametrize("name", ODD_LINES)
async def test_the_command_line_says_what_is_wrong_in_words(grid: Scene, tmp_path: Path, name: str) -> None:
    line, code, words = ODD_LINES[name]
    environment = os.environ | {"GRID_COORDINATOR": grid.url}
    pipe = asyncio.subprocess.PIPE
    shell = await asyncio.create_subprocess_exec(
        "sh", "-c", line, env=environment, cwd=tmp_path, stdout=pipe, stderr=pipe
    )
    _, said = await asyncio.wait_for(shell.communicate(), 60)
    assert (shell.returncode, said.decode().count("\n") <= 3) == (code, True), said
    assert said.startswith(b"error: ") and words in said.decode() and "grid failed" not in said.decode()
