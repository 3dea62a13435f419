"""Bulk data between nodes and clients: a client's request goes to the node's data connection, and the answer back to
the client; so does the standard input of jobs.

Only what was requested is sent, and a request counts against its client and its node until it is answered; if too much
is outstanding, each answer is smaller. What the record of an ended job contains is answered from there, so the output
of short jobs is available when their node is not.
"""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from distributed_grid.coordinator.api.blobs.cache import Uploads
from distributed_grid.coordinator.core.model import Job
from distributed_grid.coordinator.core.views import Visibility
from distributed_grid.coordinator.net.connection import Connection
from distributed_grid.coordinator.store.store import Store
from distributed_grid.protocol.bundle import MOST_ENTRIES
from distributed_grid.protocol.codec import PART_BYTES
from distributed_grid.protocol.identity import Role
from distributed_grid.protocol.jobs import Cause, Outcome, OutputFull
from distributed_grid.protocol.messages import (
    FileData,
    Files,
    InputTaken,
    OpenData,
    Output,
    PutInput,
    WantFile,
    WantFiles,
    WantOutput,
)
from distributed_grid.protocol.messages.roles import Reach
from distributed_grid.protocol.nodes import Layer, NodeFacts
from distributed_grid.runtime.logs import get_logger

CLIENT_BYTES = 1 << 20
NODE_BYTES = 8 << 20
"""Limits on bytes that were asked for and not answered yet, by client and by node."""
LEAST_BYTES = 4 << 10
WANTS = 1024
"""Maximum number of unanswered questions of one client."""
MOST_BYTES = 1 << 60
"""The largest offset that can be asked for."""
WAIT_SECONDS = 60.0
"""The longest that a node may wait for output before it answers."""
OPEN_SECONDS = 5.0
"""How long an agent may take to open its data connection."""
ANSWER_SECONDS = 60.0
"""How long a node may take to answer, beyond the wait that was asked for."""
MOST_LATE = 1024
"""Late answers that one node may owe before its data connection is cut."""

log = get_logger("relay")

Want = WantOutput | WantFiles | WantFile | PutInput
Answer = Output | Files | FileData | InputTaken


@dataclass(slots=True, eq=False)
class Client:
    """A connected client, and what it has asked for."""

    connection: Connection
    user: str = ""
    role: Role = Role.VIEWER
    host: str = ""
    who: dict[str, str] = field(default_factory=dict)
    """For the audit log: its role, what proves it, and the peer's address."""
    visibility: Visibility = Visibility("", Reach.OWN)
    """How it sees what it watches."""
    watching: set[str] = field(default_factory=set)
    uploads: Uploads | None = None
    wants: int = 0
    bytes: int = 0
    gone: bool = False
    read_from: set[str] = field(default_factory=set)
    """Allocations whose output or files it has asked for."""
    sent_to: set[str] = field(default_factory=set)
    """Allocations that it has sent standard input to."""


@dataclass(slots=True)
class _Pending:
    client: Client
    want: Want
    size: int
    timer: asyncio.TimerHandle | None = None


@dataclass(slots=True, eq=False)
class Agent:
    """A connected agent: its control connection, its data connection once it was needed, and the settings in effect
    there once it has told them."""

    facts: NodeFacts
    session: str
    control: Connection
    data: Connection | None = None
    opening: "asyncio.Future[None] | None" = None
    pending: dict[int, _Pending] = field(default_factory=dict)
    late: set[int] = field(default_factory=set)
    """Questions on the data connection that timed out; an answer that still comes is dropped."""
    bytes: int = 0
    settings: Layer | None = None

    @property
    def name(self) -> str:
        return self.facts.name


class Relay:
    """`agents` are the connected ones by name; `job` looks a job up, live or ended."""

    def __init__(self, agents: dict[str, Agent], store: Store, job: Callable[[str], Job | None]) -> None:
        self._agents = agents
        self._store = store
        self._job = job
        self._ids = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()

    def want(self, client: Client, want: Want, visibility: Visibility) -> str:
        """Forward a question to the node, or answer it at once. Returns why it was refused (empty: it was not). A job
        that may not be seen is reported as not found."""
        if why := self._refuse(client, want, visibility):
            client.connection.send(_error(want, why))
        return why

    def _refuse(self, client: Client, want: Want, visibility: Visibility) -> str:
        if client.wants >= WANTS:
            return f"more than {WANTS} questions unanswered at the same time"
        if isinstance(want, WantOutput) and want.stream not in ("stdout", "stderr"):
            return "the stream must be stdout or stderr"
        if isinstance(want, WantOutput | PutInput) and not 0 <= want.wait <= WAIT_SECONDS:
            want = msgspec.structs.replace(want, wait=WAIT_SECONDS)
        if not isinstance(want, WantFiles) and not 0 <= want.offset <= MOST_BYTES:
            return f"an offset is from 0 to {MOST_BYTES}"
        job = self._job_of(want)
        if isinstance(want, WantOutput) and job is not None and job.spec.output_full is OutputFull.DROP:
            want = msgspec.structs.replace(want, reader="")
        if job is not None and not visibility.sees(job.user):
            job = None
        node, outcome = self._attempt(want, job)
        if answer := _recorded(want, outcome):
            client.connection.send(answer)
            return ""
        agent = self._agents.get(node)
        if agent is None:
            return _away(node) if node else f"no allocation {want.allocation[:100]!r}"
        size = 0
        if not isinstance(want, WantFiles):
            room = min(CLIENT_BYTES - client.bytes, NODE_BYTES - agent.bytes, PART_BYTES)
            wanted = len(want.data) if isinstance(want, PutInput) else want.size
            size = max(0, min(wanted, max(room, LEAST_BYTES)))
            if not isinstance(want, PutInput):
                want = msgspec.structs.replace(want, size=size)
            elif size < wanted:  # the node's answer says how far it came
                want = msgspec.structs.replace(want, data=want.data[:size], end=False)
        self._pass_on(agent, _Pending(client, want, size))
        return ""

    def _pass_on(self, agent: Agent, pending: _Pending) -> None:
        number = next(self._ids)
        agent.pending[number] = pending
        agent.bytes += pending.size
        pending.client.bytes += pending.size
        pending.client.wants += 1
        seconds = ANSWER_SECONDS + (pending.want.wait if isinstance(pending.want, WantOutput | PutInput) else 0)
        pending.timer = asyncio.get_running_loop().call_later(seconds, self._expire, agent, number)
        if agent.data is not None:
            self._send(agent.data, number, pending)
        elif agent.opening is None:
            agent.opening = asyncio.get_running_loop().create_future()
            agent.control.send(OpenData())
            task = asyncio.create_task(self._opened(agent, agent.opening))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _send(self, connection: Connection, number: int, pending: _Pending) -> None:
        connection.send(msgspec.structs.replace(pending.want, id=number))
        if isinstance(pending.want, PutInput):
            pending.want = msgspec.structs.replace(pending.want, data=b"")  # the client has it until it is in the pipe

    def _expire(self, agent: Agent, number: int) -> None:
        """The node is connected and has not answered in time."""
        pending = self._settle(agent, number)
        if pending is None:
            return
        if not pending.client.gone:
            pending.client.connection.send(_error(pending.want, f"node {agent.name} does not answer"))
        agent.late.add(number)
        if len(agent.late) > MOST_LATE and agent.data is not None:
            log.warning("cut: a node does not answer", node=agent.name, questions=len(agent.late))
            agent.data.abort()

    async def _opened(self, agent: Agent, opening: "asyncio.Future[None]") -> None:
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                await opening
        except (TimeoutError, asyncio.CancelledError):
            agent.opening = None
            self._fail_all(agent, f"unavailable: node {agent.name} does not open its data connection")

    def data_opened(self, agent: Agent, connection: Connection) -> None:
        """The agent's data connection is open: send the questions that waited for it."""
        agent.data = connection
        agent.late.clear()
        for number, pending in agent.pending.items():
            self._send(connection, number, pending)
        if agent.opening is not None:
            if not agent.opening.done():
                agent.opening.set_result(None)
            agent.opening = None

    def data_closed(self, agent: Agent, connection: Connection) -> None:
        """The data connection is closed: its questions are answered with an error, and may be asked again."""
        if agent.data is connection:
            agent.data = None
            self._fail_all(agent, _away(agent.name))

    def agent_gone(self, agent: Agent) -> None:
        """The control connection is gone, and with it the data connection."""
        if agent.opening is not None and not agent.opening.done():
            agent.opening.cancel()
        if agent.data is not None:
            agent.data.abort()
            agent.data = None
        self._fail_all(agent, _away(agent.name))

    def answered(self, agent: Agent, answer: Answer, connection: Connection) -> str:
        """Forward an agent's answer to the client, under the client's own number. Returns why it does not fit the
        question, if it does not: then the client gets an error, and the connection is to be cut."""
        if agent.data is not connection or answer.id in agent.late:
            agent.late.discard(answer.id)
            return ""  # what it answers was answered with an error, or is asked again
        pending = self._settle(agent, answer.id)
        if pending is None:
            return f"it answers a question {answer.id} that was not asked"
        why = _misfit(pending, answer)
        if not pending.client.gone:
            theirs = pending.want.id
            if why:
                pending.client.connection.send(_error(pending.want, f"node {agent.name} breaks the protocol: {why}"))
            else:
                pending.client.connection.send(msgspec.structs.replace(answer, id=theirs))
        return why

    def forget(self, client: Client) -> None:
        """The client is gone; answers that still come are dropped."""
        client.gone = True

    def _settle(self, agent: Agent, number: int) -> _Pending | None:
        pending = agent.pending.pop(number, None)
        if pending is not None:
            if pending.timer is not None:
                pending.timer.cancel()
            agent.bytes -= pending.size
            pending.client.bytes -= pending.size
            pending.client.wants -= 1
        return pending

    def _fail_all(self, agent: Agent, why: str) -> None:
        for number in list(agent.pending):
            pending = self._settle(agent, number)
            if pending is not None and not pending.client.gone:
                # The job may have ended since it was asked.
                _, outcome = self._attempt(pending.want, self._job_of(pending.want))
                answer = _recorded(pending.want, outcome)
                pending.client.connection.send(answer or _error(pending.want, why))

    def _job_of(self, want: Want) -> Job | None:
        return self._job(want.allocation.rpartition(".")[0])

    def _attempt(self, want: Want, job: Job | None) -> tuple[str, Outcome | None]:
        """The node of an attempt, and how it ended, as far as that is on record."""
        if job is None:
            return "", None
        if job.allocation == want.allocation and job.node:
            return job.node, job.outcome
        past = self._store.past(want.allocation)
        if past is None:
            return "", None
        return past.node, past.outcome or (_NEVER_RAN if not past.started else None)


_NEVER_RAN = Outcome(Cause.NOT_PLACED, started=False)


def _recorded(want: Want, outcome: Outcome | None) -> Output | InputTaken | None:
    """The answer from the attempt's record: the output stored there, if it begins at the offset or before; or that
    nothing reads standard input any more."""
    if outcome is None:
        return None
    if isinstance(want, PutInput):
        return InputTaken(id=want.id, over=True)
    if not isinstance(want, WantOutput):
        return None
    size, tail = (
        (outcome.stdout_size, outcome.stdout_tail)
        if want.stream == "stdout"
        else (outcome.stderr_size, outcome.stderr_tail)
    )
    begin = want.offset - (size - len(tail))
    if begin < 0:
        return None
    data = tail[begin : begin + max(0, min(want.size, PART_BYTES))]
    return Output(id=want.id, offset=want.offset, data=data, end=want.offset + len(data) >= size)


def _misfit(pending: _Pending, answer: Answer) -> str:
    """Why this cannot be the answer to that question; empty: it can be."""
    want = pending.want
    match want, answer:
        case (WantOutput(), Output()):
            if answer.offset < want.offset:
                return f"output from offset {answer.offset} where {want.offset} was asked for"
        case (WantFile(), FileData()):
            if answer.hole and (answer.data or not want.holes):
                return "a hole in a file where none was asked for"
            if not (answer.data or answer.end or answer.error or answer.hole) and pending.size:
                return "a part of a file without bytes that is not its end"
        case (PutInput(), InputTaken()):
            return ""
        case (WantFiles(), Files()):
            if len(answer.files) > MOST_ENTRIES:
                return f"a list of {len(answer.files)} files, and {MOST_ENTRIES} are the most"
            return ""
        case _:
            return f"{type(answer).__name__} for {type(want).__name__}"
    if len(answer.data) > pending.size:
        return f"{len(answer.data)} bytes where {pending.size} were asked for"
    return ""


def _away(node: str) -> str:
    return f"unavailable: node {node} is not connected"


def _error(want: Want, text: str) -> Answer:
    match want:
        case WantOutput():
            return Output(id=want.id, offset=want.offset, error=text)
        case WantFiles():
            return Files(id=want.id, error=text)
        case WantFile():
            return FileData(id=want.id, error=text)
        case PutInput():
            return InputTaken(id=want.id, error=text)
