"""Who may do what to whose jobs, cell by cell of the table in protocol/messages/roles.py, on a founded grid: a job of
another's is to a client as one that does not exist, and a viewer sees where jobs stand and nothing of what they are."""

import itertools
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import pytest_asyncio

from distributed_grid.protocol import messages as m
from distributed_grid.protocol.groups import Array
from distributed_grid.protocol.identity import PEOPLE, Role
from distributed_grid.protocol.jobs import After, Cause, Dependency, JobSpec, Outcome, Priority, Request, State
from distributed_grid.protocol.messages.rights import Rights, Whose
from distributed_grid.protocol.messages.roles import Reach, reach
from distributed_grid.protocol.nodes import Lending
from distributed_grid.protocol.placement import Constraints
from distributed_grid.protocol.resources import Resources, ResourceType
from distributed_grid.protocol.scaling.plans import ScaleOrder
from distributed_grid.protocol.sharing.policies import PolicyName
from tests.coordinator.ends import AgentEnd, ClientEnd, Coordinator, agent, client, coordinator, job, node

SECRET = "sesame"  # noqa: S105
NOBODYS = "j-" + "a" * 12
numbers = itertools.count(1)


def submission(**more: Any) -> m.Submission:
    """A job all of whose words are secret."""
    spec = JobSpec((f"{SECRET}-argv",), env={"TOKEN": f"{SECRET}-env"}, name=f"{SECRET}-name", workdir=f"/{SECRET}-dir")
    return m.Submission(f"{SECRET}-key-{next(numbers)}", spec, Request(Resources(1000)), **more)


def of_request(**asked: Any) -> m.Submission:
    return m.Submission(f"k{next(numbers)}", JobSpec(("true",)), Request(Resources(500), **asked))


# What names a job, by the message that does it; `job` is an id. Those that change something come last.
NAMING: dict[str, tuple[type, Callable[[int, str], Any]]] = {
    "show": (m.ShowJobs, lambda n, job: m.ShowJobs(n, (job,))),
    "show members": (m.ShowJobs, lambda n, job: m.ShowJobs(n, (job,), members=True)),
    "show some members": (m.ShowJobs, lambda n, job: m.ShowJobs(n, (f"{job}_0-1",))),
    "watch": (m.Watch, lambda n, job: m.Watch(n, (job,))),
    "watch whole": (m.Watch, lambda n, job: m.Watch(n, (job,), whole=True)),
    "why": (m.AskWhy, lambda n, job: m.AskWhy(n, job)),
    "receipts": (m.GetReceipts, lambda n, job: m.GetReceipts(n, job)),
    "output": (m.WantOutput, lambda n, job: m.WantOutput(n, f"{job}.1", "stdout", 0, 10)),
    "files": (m.WantFiles, lambda n, job: m.WantFiles(n, f"{job}.9", ("*",))),
    "file": (m.WantFile, lambda n, job: m.WantFile(n, f"{job}.9", "x", 0, 10)),
    "input": (m.PutInput, lambda n, job: m.PutInput(n, f"{job}.9", 0, b"x")),
    "after": (m.Submit, lambda n, job: m.Submit(n, (_after(job),))),
    "near": (m.Submit, lambda n, job: m.Submit(n, (of_request(constraints=Constraints(near=(job,))),))),
    "dry run": (m.AskWhy, lambda n, job: m.AskWhy(n, request=of_request(constraints=Constraints(near=(job,))).request)),
    "extend": (m.ExtendBoost, lambda n, job: m.ExtendBoost(n, job, 60.0)),
    "signal": (m.SignalJob, lambda n, job: m.SignalJob(n, job, 10)),
    "cancel": (m.Cancel, lambda n, job: m.Cancel(n, (job,))),
}
# What names none; it is tried as it stands.
OTHERS: dict[type, Callable[[int], Any]] = {
    m.ListJobs: lambda n: m.ListJobs(n, ended=True),
    m.GetStatus: m.GetStatus,
    m.GetShared: m.GetShared,
    m.GetShares: m.GetShares,
    m.GetLoans: m.GetLoans,
    m.WantBlobs: lambda n: m.WantBlobs(n, ("0" * 64,)),
    m.PutBlob: lambda n: m.PutBlob(n, "x", 0, b"", end=True),
    m.DrainNodes: lambda n: m.DrainNodes(n, ("none",)),
    m.UndrainNodes: lambda n: m.UndrainNodes(n, ("none",)),
    m.LabelNodes: lambda n: m.LabelNodes(n, ("none",), {"a": "b"}),
    m.SetNodes: lambda n: m.SetNodes(n, ("none",), Lending(can_share=False)),
    m.DeclareNode: lambda n: m.DeclareNode(n, "n9", Resources(1000), Resources(1000)),
    m.GetSettings: lambda n: m.GetSettings(n, "n1"),
    m.Predict: lambda n: m.Predict(n, ("train",)),
    m.RecordUse: lambda n: m.RecordUse(n, ("train",)),
    m.GetForecast: lambda n: m.GetForecast(n, "n1"),
    m.GetTrends: lambda n: m.GetTrends(n, "n1"),
    m.ReloadSettings: m.ReloadSettings,
    m.ForgetNodes: lambda n: m.ForgetNodes(n, ("none",)),
    m.GetQuota: m.GetQuota,
    m.GetBalancing: m.GetBalancing,
    m.SuggestBoosts: m.SuggestBoosts,
    m.SetBalancing: lambda n: m.SetBalancing(n, policy=PolicyName.CONSERVATIVE),
    m.GetScaling: m.GetScaling,
    m.OrderScaling: lambda n: m.OrderScaling(n, ScaleOrder.PAUSE),
    m.SetRights: lambda n: m.SetRights(n, Whose.USER, "ann", Rights(cores=8000)),
    m.RequestBoost: lambda n: m.RequestBoost(n, "k", "n1", ResourceType.CPU, 1.0),
    m.ListBoosts: m.ListBoosts,
    m.MakeToken: lambda n: m.MakeToken(n, Role.VIEWER),
    m.ListAccess: m.ListAccess,
    m.Withdraw: lambda n: m.Withdraw(n, token="none"),  # noqa: S106
}
ELSEWHERE = {m.WantCertificate}
"""Of one's own certificate, and without a number: see test_renewing.py."""


def _after(job: str) -> m.Submission:
    return msgspec.structs.replace(of_request(), after=(Dependency(job, After.ENDED),))


def test_every_message_of_a_client_is_tried() -> None:
    tried = {kind for kind, _ in NAMING.values()} | set(OTHERS) | ELSEWHERE
    assert tried == set(get_args(m.FromClient)), "say in NAMING or OTHERS how a new message is tried"


class Scene:
    """A grid with one node of two cores; ann's jobs: one `ended`, an `array` of
    which two run, and two that wait."""

    def __init__(self, grid: Coordinator) -> None:
        self.grid = grid
        self.people: dict[str, ClientEnd] = {}
        self.launched = 0

    async def begin(self) -> None:
        for role, name in ((Role.CLIENT, "ann"), (Role.CLIENT, "bob"), (Role.OPERATOR, "op"), (Role.VIEWER, "eve")):
            self.people[name] = await client(self.grid.url, ssl=self.grid.member(role, name))
        self.ann, self.bob, self.op, self.eve = self.people.values()
        context = self.grid.member(Role.AGENT, "n1")
        self.node: AgentEnd = await agent(
            self.grid.url, node(cores=2), self._run, output=SECRET.encode() * 3, ssl=context
        )
        (self.ended,) = await self.ann.submit(submission())
        await self.ann.ended(self.ended)
        (self.array,) = await self.ann.submit(submission(array=Array(((0, 3, 1),))))
        (self.first,) = await self.ann.submit(submission())
        (self.waiting,) = await self.ann.submit(submission())
        self.granted = (self.ended, f"{self.array}_0")
        self.jobs = (self.ended, self.array, f"{self.array}_0", self.first, self.waiting)

    def _run(self, launch: m.Launch) -> list[Any]:
        begun = [m.Started(launch.allocation, 1)]
        self.launched += 1
        if self.launched > 1:
            return begun
        tail = SECRET.encode()
        outcome = Outcome(Cause.EXITED, text=f"{SECRET}-text", stdout_size=len(tail), stdout_tail=tail)
        return [*begun, m.Exited(launch.allocation, outcome, returned=True)]

    async def close(self) -> None:
        for end in (*self.people.values(), self.node):
            await end.close()

    async def states(self) -> dict[str, State]:
        answer = await self.op.ask(m.ListJobs(next(numbers), ended=True))
        return {view.id: view.state for view in answer.jobs}


@pytest_asyncio.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with coordinator(tmp_path, founded=True) as grid:
        made = Scene(grid)
        await made.begin()
        yield made
        await made.close()


async def told(end: ClientEnd, make: Callable[[int, str], Any], job: str) -> str:
    """The answer to who names this job, without what is not the same twice."""
    answer = await end.ask(make(next(numbers), job))
    end.seen.remove(answer)
    return str(msgspec.structs.replace(answer, id=0)).replace(job, "JOB")


def heard(end: ClientEnd) -> bytes:
    """All that ever came to this one."""
    return msgspec.msgpack.encode(end.seen)


@pytest.mark.parametrize("who", ["ann", "bob", "op", "eve"])
async def test_a_job_can_be_named_by_who_reaches_it_and_to_others_it_does_not_exist(scene: Scene, who: str) -> None:
    end = scene.people[who]
    role = {"op": Role.OPERATOR, "eve": Role.VIEWER}.get(who, Role.CLIENT)
    for what, (kind, make) in NAMING.items():
        reached = reach(role, kind)
        for named in scene.jobs:
            here, nowhere = await told(end, make, named), await told(end, make, NOBODYS)
            cell = f"{what} by {who}: {here}"
            if reached is None:
                assert f"a {role} may not do this" in here and here == nowhere, cell
            elif reached is Reach.OWN and who != "ann":
                assert here == nowhere, cell
                assert "no job" in here or "no allocation" in here, cell
            elif what in ("show some members", "near", "dry run", "files", "file", "input"):
                continue  # there is not one of each
            elif what != "output" or named in scene.granted:
                assert here != nowhere and "no job" not in here and "no allocation" not in here, cell
            assert SECRET not in here or who in ("ann", "op"), cell
    if who in ("bob", "eve"):
        assert SECRET.encode() not in heard(end)
    if who == "bob":
        assert not any(named.encode() in heard(end) for named in scene.jobs)


@pytest.mark.parametrize("role", PEOPLE)
async def test_what_names_no_job_is_answered_to_the_roles_of_its_row(scene: Scene, role: Role) -> None:
    end = {Role.CLIENT: scene.bob, Role.OPERATOR: scene.op, Role.VIEWER: scene.eve}[role]
    for kind, make in OTHERS.items():
        answer = await end.ask(make(next(numbers)))
        refused = isinstance(answer, m.Failed) and answer.code == "not-allowed"
        assert refused == (reach(role, kind) is None), f"{kind.__name__} by {role}: {answer}"
    if role is not Role.OPERATOR:
        assert SECRET.encode() not in heard(end)


async def test_the_audit_log_says_who_asked_by_what_and_what_came_of_it_and_nothing_secret(scene: Scene) -> None:
    (mine,) = await scene.bob.submit(submission())
    await scene.bob.ask(m.Cancel(1, (scene.first,)))
    await scene.bob.ask(m.Cancel(2, (mine,)))
    await scene.bob.ask(m.DrainNodes(3, ("n1",)))
    await scene.bob.ask(m.WantOutput(4, f"{scene.ended}.1", "stdout", 0, 10))
    await scene.ann.ask(m.WantOutput(5, f"{scene.ended}.1", "stdout", 0, 10))
    await scene.ann.ask(m.WantOutput(6, f"{scene.ended}.1", "stdout", 10, 10))
    raw = (scene.grid.state_dir / "audit.log").read_bytes()
    assert SECRET.encode() not in raw
    last = [json.loads(line) for line in raw.splitlines()[-6:]]
    found = [(line["event"], line["user"], line["result"], line.get("code", "")) for line in last]
    assert found == [
        ("submit", "bob", "accepted", ""),
        ("cancel", "bob", "refused", "unknown-job"),
        ("cancel", "bob", "accepted", ""),
        ("drain-nodes", "bob", "refused", "not-allowed"),
        ("want-output", "bob", "refused", "unavailable"),
        ("want-output", "ann", "accepted", ""),
    ]
    assert last[0]["ids"] == [mine] and last[1]["jobs"] == [scene.first] and last[3]["nodes"] == ["n1"]
    assert all(line["role"] == "client" and line["via"].startswith("certificate ") for line in last)
    assert all(line["peer"].startswith("127.0.0.1") for line in last)


async def test_a_client_lists_its_own_jobs_and_of_others_sees_what_they_hold(scene: Scene) -> None:
    (mine,) = await scene.bob.submit(job(name="mine"))
    for asked in (m.ListJobs(1, ended=True), m.ListJobs(2, user="bob", fold=True)):
        assert [view.id for view in (await scene.bob.ask(asked)).jobs] == [mine]
    nothing = await scene.bob.ask(m.ListJobs(3, ended=True, user="ann", fold=True))
    assert not nothing.jobs and not nothing.groups
    held = (await scene.bob.ask(m.GetShared(4))).allocations
    assert [(one.user, one.node, one.id, one.job, one.name) for one in held] == [("ann", "n1", "", "", "")] * 2
    unknown = await scene.bob.ask(m.GetShared(6, node="n3"))
    assert isinstance(unknown, m.Failed) and unknown.what == "unknown node 'n3'"
    assert {one.job for one in (await scene.ann.ask(m.GetShared(5))).allocations} == {
        f"{scene.array}_0",
        f"{scene.array}_1",
    }


async def test_a_viewer_sees_of_all_jobs_where_they_stand(scene: Scene) -> None:
    listed = await scene.eve.ask(m.ListJobs(1, ended=True, fold=True))
    assert {view.id for view in (*listed.jobs, *listed.groups)} == {*scene.jobs} - {f"{scene.array}_0"}
    (shown,) = (await scene.eve.ask(m.ShowJobs(2, (scene.ended,)))).jobs
    assert (shown.user, shown.state, shown.outcome.cause) == ("ann", State.ENDED, Cause.EXITED)
    assert shown.spec.argv == () and not shown.spec.env and shown.outcome.stdout_tail == b""
    by_name = await scene.eve.ask(m.ShowJobs(3, (f"{SECRET}-name",)))
    assert isinstance(by_name, m.Failed) and by_name.code == "unknown-job"
    scene.eve.seen.remove(by_name)  # it repeats the word that was asked for
    await scene.eve.ask(m.Watch(4, (scene.array, scene.waiting)))
    await scene.op.ask(m.Cancel(5, (scene.waiting,), reason=f"{SECRET}-reason"))
    await scene.eve.ended(scene.waiting)
    assert SECRET.encode() not in heard(scene.eve)


async def test_a_client_ends_no_jobs_of_others_whatever_it_asks(scene: Scene) -> None:
    before = await scene.states()
    for asked in (m.Cancel(1, (), every=True), m.Cancel(2, (), user="ann"), m.Cancel(3, (), user="")):
        answer = await scene.bob.ask(asked)
        assert isinstance(answer, m.Failed) and answer.code == "not-allowed", answer
    assert (await scene.bob.ask(m.Cancel(4, (), user="bob"))).text == "there are none such"
    assert await scene.states() == before
    assert not any(isinstance(one, m.Stop) for one in scene.node.seen)


async def test_the_key_of_anothers_submission_and_the_beginning_of_its_id_lead_nowhere(scene: Scene) -> None:
    (theirs,) = await scene.ann.submit(job(key="one"))
    (mine,) = await scene.bob.submit(job(key="one"))
    assert mine != theirs
    for ref in (theirs[:-1], theirs[2:-1], "last-one"):
        answer = await scene.bob.ask(m.ShowJobs(next(numbers), (ref,)))
        assert isinstance(answer, m.Failed) and theirs not in str(answer)
    (last,) = (await scene.bob.ask(m.ShowJobs(next(numbers), ("last",)))).jobs
    assert last.id == mine


async def test_a_client_sees_its_own_rights_and_an_operator_those_of_all(scene: Scene) -> None:
    given = await scene.op.ask(m.SetRights(1, Whose.USER, "ann", Rights(cores=8000, jobs_waiting=5)))
    assert isinstance(given, m.Done) and given.text == "ann has: --cores 8 --jobs-waiting 5"
    (mine,) = (await scene.ann.ask(m.GetQuota(2))).quotas
    assert (mine.name, mine.rights.cores, mine.holds.cpu, mine.waiting) == ("ann", 8000, 2000, 4)
    theirs = await scene.bob.ask(m.GetQuota(3, "ann"))
    assert isinstance(theirs, m.Failed) and theirs.code == "not-allowed" and "ann" not in theirs.what
    assert [one.name for one in (await scene.bob.ask(m.GetQuota(4))).quotas] == ["bob"]
    nobody = await scene.op.ask(m.GetQuota(7, "x\ny"))
    assert isinstance(nobody, m.Failed) and "is no user's name" in nobody.what
    assert [one.name for one in (await scene.op.ask(m.GetQuota(5))).quotas] == ["", "ann", "op"]
    assert [one.name for one in (await scene.op.ask(m.GetQuota(6, "bob"))).quotas] == ["bob"]
    raw = (scene.grid.state_dir / "audit.log").read_text()
    assert '"rights":"--cores 8 --jobs-waiting 5"' in raw.replace('": "', '":"')


async def test_a_client_is_refused_what_its_rights_do_not_allow_and_told_whom_to_ask(scene: Scene) -> None:
    await scene.op.ask(m.SetRights(1, Whose.DEFAULT, "", Rights(highest_priority=Priority.HIGH)))
    urgent = of_request(priority=Priority.URGENT)
    for asked in (m.Submit(2, (urgent,)), m.AskWhy(3, request=urgent.request)):
        told = await scene.ann.ask(asked)
        assert isinstance(told, m.Failed) and told.code == "not-allowed", told
        assert told.why == "the highest priority of ann is high"
        assert told.hint.endswith("have an operator run: grid quota set ann --highest-priority urgent")
    assert isinstance(await scene.op.ask(m.Submit(4, (of_request(priority=Priority.URGENT),))), m.Submitted)
