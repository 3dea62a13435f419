"""The session without I/O: a played coordinator answers bytes with bytes, and time is a number."""

import ast
from pathlib import Path
from typing import Any

import pytest
from websockets.frames import Frame, Opcode
from websockets.http11 import Request as HttpRequest
from websockets.protocol import State as Wire
from websockets.server import ServerProtocol

from distributed_grid.coordinator.client import session as module
from distributed_grid.coordinator.client.session import (
    PING_SECONDS,
    SILENT_SECONDS,
    Answer,
    Away,
    ConnectionLost,
    GridUnavailable,
    Lost,
    Opened,
    Over,
    RequestRefused,
    Session,
    not_let_in,
    unreachable,
)
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.jobs import JobSpec, JobView, Request, State
from distributed_grid.protocol.link import PROTOCOL, Link
from distributed_grid.protocol.messages import (
    Done,
    Failed,
    GetStatus,
    JobUpdate,
    ListJobs,
    PutBlob,
    Refused,
    ShowJobs,
    SignalJob,
    Submission,
    Submit,
    Submitted,
    Watch,
    Welcome,
)
from distributed_grid.protocol.resources import Resources

URL = "ws://127.0.0.1:7433"


def happened(session: Session) -> list[Any]:
    """What has happened since the last look."""
    return list(session.take_events())


class Played:
    """The coordinator's end of one connection: `asked` is what was asked on it."""

    def __init__(self, session: Session, now: float, lets_in: bool = True) -> None:
        self.session = session
        self.wire = ServerProtocol()
        self.link = Link.answer(now)
        self.asked: list[Any] = []
        self.pings = 0
        session.dialled({}, now)
        self.read(now)
        if lets_in:
            self.link.accept(Welcome(PROTOCOL, "0", 1, "feed", "s"))
            self.write(now)

    def read(self, now: float) -> list[Any]:
        """Take what the session writes; the messages in it."""
        messages = []
        for data in self.session.data_to_send():
            self.wire.receive_data(data)
        for event in self.wire.events_received():
            if isinstance(event, Frame):
                self.pings += event.opcode is Opcode.PING
                if event.opcode is Opcode.BINARY:
                    messages += self.link.receive(event.data, now)
            elif isinstance(event, HttpRequest):
                self.wire.send_response(self.wire.accept(event))
                self.write(now)
                return self.read(now)
        self.asked += messages
        return messages

    def write(self, now: float) -> None:
        """Let the session read what is to be said."""
        if self.wire.state is Wire.OPEN:
            for frame in self.link.data_to_send():
                self.wire.send_binary(frame)
        for data in self.wire.data_to_send():
            if data:
                self.session.receive(data, now)

    def say(self, *messages: Any, now: float = 0.0) -> list[Any]:
        """Say these messages; what has happened at the session by that."""
        self.link.send(*messages)
        self.write(now)
        return happened(self.session)


def made(patience: float = 60.0, strict: bool = True) -> Session:
    """A session whose pauses are the longest there are."""
    session = Session(URL, "ann", patience, lambda low, high: high, lambda why, answered: unreachable(URL, why), strict)
    session.start(0.0)
    return session


def opened(patience: float = 60.0) -> tuple[Session, Played]:
    session = made(patience)
    coordinator = Played(session, 0.0)
    assert happened(session) == [Opened(again=False)]
    return session, coordinator


def view(job: str, state: State = State.RUNNING) -> JobView:
    request = Request(resources=Resources(cpu=1000))
    return JobView(id=job, user="ann", spec=JobSpec(argv=("true",)), request=request, state=state, submitted=1.0)


def test_nothing_is_said_before_the_coordinator_has_let_us_in() -> None:
    session = made()
    coordinator = Played(session, 0.0, lets_in=False)
    session.ask(GetStatus(id=0))
    assert [type(message).__name__ for message in coordinator.asked + coordinator.read(0.0)] == ["Hello"]
    assert session.connected and not session.open
    coordinator.link.accept(Welcome(PROTOCOL, "0", 1, "feed", "s"))
    assert coordinator.say() == [Opened(again=False)] and session.open
    assert coordinator.read(0.0) == [GetStatus(id=1)]


def test_an_answer_is_found_by_its_number_and_a_refusal_is_an_error() -> None:
    session, coordinator = opened()
    first, second = session.ask(ShowJobs(id=0, jobs=("a",))), session.ask(GetStatus(id=0))
    (refused, done) = coordinator.say(Failed(second, "busy", "not now"), Done(first), Done(99))
    assert done == Answer(first, Done(first))
    assert refused.number == second and isinstance(refused.content, RequestRefused) and refused.content.code == "busy"


def test_what_was_not_answered_is_asked_again_on_the_next_connection_and_a_signal_is_not() -> None:
    session, coordinator = opened()
    again, answered = session.ask(ShowJobs(id=0, jobs=("a",))), session.ask(GetStatus(id=0))
    once = session.ask(SignalJob(id=0, job="a", signal=2), repeatable=False)
    coordinator.read(0.0)
    coordinator.say(Done(answered))
    session.receive(b"", 1.0)
    lost, told = happened(session)
    assert lost.number == once and isinstance(lost.content, ConnectionLost)
    assert isinstance(told, Lost) and not session.connected
    assert Played(session, 2.0).read(2.0) == [ShowJobs(id=again, jobs=("a",))]
    assert happened(session) == [Opened(again=True)]


def test_what_is_not_to_be_repeated_is_not_kept_for_a_connection_to_come() -> None:
    session, _ = opened()
    session.receive(b"", 1.0)
    happened(session)
    number = session.ask(SignalJob(id=0, job="a", signal=2), repeatable=False)
    (answer,) = happened(session)
    assert answer.number == number and isinstance(answer.content, ConnectionLost)
    with pytest.raises(ConnectionLost):
        session.post(PutBlob(id=1, blob="b", offset=0, data=b"x"))
    assert Played(session, 2.0).asked[1:] == []


def test_watched_jobs_are_watched_again_and_a_name_still_means_the_same_job() -> None:
    session, coordinator = opened()
    named = session.watch("last")
    submitted = session.ask(
        Submit(id=0, jobs=(Submission(key="k", spec=view("x").spec, request=view("x").request),), watch=True)
    )
    coordinator.say(JobUpdate(view("j-1")), Done(named), Submitted(submitted, ("j-2",)))
    session.rename(named, "j-1")
    session.receive(b"", 1.0)
    asked = Played(session, 2.0).read(2.0)
    assert asked == [Watch(id=named, jobs=("j-1",)), Watch(id=submitted, jobs=("j-2",))]


def test_who_follows_a_job_has_its_latest_view_and_one_watch_serves_all() -> None:
    session, coordinator = opened()
    first, second = session.follow(view("j-1")), session.follow(view("j-1"))
    assert first is second and coordinator.read(0.0) == [Watch(id=1, jobs=("j-1",))]
    ended = view("j-1", State.ENDED)
    coordinator.say(JobUpdate(ended))
    assert first.view == ended
    session.unfollow(first)
    assert session.followed
    session.unfollow(second)
    assert not session.followed
    session.receive(b"", 1.0)
    assert Played(session, 2.0).read(2.0) == []


def test_a_job_that_the_next_coordinator_does_not_know_is_followed_no_more() -> None:
    session, coordinator = opened()
    followed = session.follow(view("j-1"))
    coordinator.read(0.0)
    coordinator.say(Failed(1, "unknown-job", "no job j-1"))
    assert isinstance(followed.error, RequestRefused)


def test_a_job_that_has_ended_is_not_watched() -> None:
    session, coordinator = opened()
    session.unfollow(session.follow(view("j-1", State.ENDED)))
    assert coordinator.read(0.0) == [] and not session.followed


def test_the_pauses_between_attempts_grow_and_end_with_the_patience() -> None:
    session, _ = opened(patience=3.0)
    number = session.ask(GetStatus(id=0))
    session.receive(b"", 10.0)
    error, pauses, now = unreachable(URL, "refused"), [], 10.0
    while session.dial_at is not None:
        pauses.append(session.dial_at - now)
        now = session.dial_at
        session.not_dialled(error, now)
    assert [round(pause, 3) for pause in pauses] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6]
    assert now >= 13.0 and happened(session)[1:] == [Answer(number, error), Over(error)]
    with pytest.raises(GridUnavailable, match="cannot reach"):
        session.ask(GetStatus(id=0))


def test_without_patience_a_lost_connection_is_the_end() -> None:
    session, _ = opened(patience=0.0)
    number = session.ask(GetStatus(id=0))
    session.receive(b"", 1.0)
    answer, over = happened(session)
    assert answer.number == number and isinstance(over.error, ConnectionLost) and session.dial_at is None


def test_the_first_connection_is_tried_once_unless_somebody_waits_for_it() -> None:
    session = made()
    session.not_dialled(unreachable(URL, "refused"), 0.0)
    assert isinstance(happened(session)[0], Over)
    session.start(1.0, patience=60.0)
    session.not_dialled(unreachable(URL, "refused"), 1.0)
    session.not_dialled(unreachable(URL, "refused"), 2.0)
    assert [type(event) for event in happened(session)] == [Away], "it is said once"
    session.not_dialled(unreachable(URL, "no such host", lasting=True), 3.0)
    assert isinstance(happened(session)[0], Over), "waiting cannot help"


def test_a_coordinator_that_was_there_is_waited_for_also_if_something_else_answers_meanwhile() -> None:
    session, _ = opened()
    session.receive(b"", 1.0)
    session.not_dialled(unreachable(URL, "it answered 502", lasting=True), 2.0)
    assert session.dial_at is not None and session.error is None


@pytest.mark.parametrize(("final", "ends"), [(True, True), (False, False)])
def test_who_is_refused_for_good_does_not_come_back(final: bool, ends: bool) -> None:
    session, _ = opened()
    session.receive(b"", 1.0)
    coordinator = Played(session, 2.0, lets_in=False)
    coordinator.link.refuse(Refused("you may not", final=final))
    coordinator.say(now=2.0)
    assert (session.error is not None) is ends and (session.dial_at is None) is ends


def test_a_quiet_coordinator_is_pinged_and_counts_as_gone_if_it_does_not_answer() -> None:
    session, coordinator = opened()
    assert session.deadline() == PING_SECONDS
    session.tick(PING_SECONDS)
    coordinator.read(PING_SECONDS)
    coordinator.write(6.0)
    assert coordinator.pings == 1 and session.deadline() == 6.0 + PING_SECONDS, "it has answered"
    session.tick(11.0)
    silent = session.deadline()
    assert silent is not None and silent == pytest.approx(11.0 + SILENT_SECONDS - PING_SECONDS, abs=0.1)
    session.tick(silent - 0.1)
    assert session.connected
    session.tick(silent)
    assert happened(session) == [Lost(f"nothing was heard for {silent - 6.0:.0f} s")]


def test_what_is_still_on_its_way_over_a_slow_line_is_given_time() -> None:
    session, _ = opened()
    session.post(PutBlob(id=1, blob="b", offset=0, data=b"x" * (1 << 20)))
    session.data_to_send()
    session.tick(PING_SECONDS)
    deadline = session.deadline()
    assert deadline is not None and SILENT_SECONDS + 16 <= deadline < SILENT_SECONDS + 17


def test_a_coordinator_that_says_nothing_at_all_is_not_waited_for() -> None:
    session = made(patience=60.0)
    session.start(0.0)
    Played(session, 0.0, lets_in=False)
    deadline = session.deadline()
    assert deadline is not None
    session.tick(deadline)
    (over,) = happened(session)
    assert isinstance(over, Over) and over.error.why == "no answer in time"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "does not speak our protocol: it answered 200"),
        (b"HTTP/1.1 401 No\r\nContent-Length: 3\r\n\r\nwho", "it answered 401: who"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "what listens there does not speak our protocol"),
    ],
)
def test_what_else_may_listen_there_is_said(said: bytes, why: str) -> None:
    session = made()
    session.dialled({}, 0.0)
    session.data_to_send()
    session.receive(said, 0.0)
    (over,) = happened(session)
    assert isinstance(over, Over) and why in over.error.why


def test_what_cannot_be_asked_is_refused_here_and_the_connection_stays() -> None:
    session, coordinator = opened()
    for message, why in (
        (ShowJobs(id=0, jobs=(7,)), "jobs[0]: Expected `str`, got `int`"),  # type: ignore[arg-type]
        (ListJobs(id=0, limit=10**12), "limit is at most 2147483647"),
    ):
        with pytest.raises(BadValue, match="cannot be asked") as refused:
            session.ask(message)
        assert refused.value.why == why
    with pytest.raises(BadValue, match="cannot be sent"):
        session.ask(ShowJobs(id=0, jobs=("\ud800",)))
    assert session.open and coordinator.read(0.0) == []


def test_a_session_that_is_closed_says_so_and_can_begin_anew() -> None:
    session, _ = opened()
    number = session.ask(GetStatus(id=0))
    assert session.close()
    answer, _over = happened(session)
    assert answer.number == number and "closed" in str(answer.content.lines())
    with pytest.raises(GridError, match="closed"):
        session.ask(GetStatus(id=0))
    session.start(5.0)
    Played(session, 5.0)
    assert happened(session) == [Opened(again=False)]


def test_what_is_no_address_is_said_before_anything_is_dialled() -> None:
    for wrong in ("http://x", 5, Path("/run/grid.sock"), "ws://ann:pw@m:1", "ws://a b:1", "ws://a\nb:1", "ws://m:0"):
        with pytest.raises(BadValue, match="is not a coordinator's address"):
            Session(wrong, "ann", 0.0, lambda low, high: high, lambda why, answered: unreachable(URL, why))  # type: ignore[arg-type]


def test_where_a_grid_wants_tls_its_address_is_told() -> None:
    told = not_let_in("ws://m:7433", None, "it answered 400: This grid has an authority: use wss://", True)
    assert told.hint == "its address is wss://m:7433"


def test_it_knows_neither_clock_nor_socket_nor_loop() -> None:
    tree = ast.parse(Path(module.__file__).read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert not {"asyncio", "random", "select", "socket", "threading", "time"} & imported
