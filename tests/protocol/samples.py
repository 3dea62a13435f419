"""One example of every message, with every field set to something other than its default where that makes sense."""

from typing import Any

from distributed_grid.protocol import groups, jobs, messages, nodes
from distributed_grid.protocol.identity import Role
from distributed_grid.protocol.messages import operator
from distributed_grid.protocol.messages.operator import Alternative, Receipt, Victim
from distributed_grid.protocol.resources import GpuShare, Grant, Resources, ResourceType

GRANT = Grant(
    cores=(2, 3), shared_core=5, shared_milli=500, memory=1 << 30, gpus=(GpuShare("GPU-1", 250),), virtual=True
)
SPEC = jobs.JobSpec(
    argv=("python", "train.py"),
    env={"A": "1"},
    name="train",
    workdir="/data",
    bundle="ab" * 32,
    time_limit=60.0,
    grace=2.5,
)
REQUEST = jobs.Request(
    resources=Resources(2500, 1 << 30, 250), priority=jobs.Priority.HIGH, nodes=("lab1", "lab2"), immediate=True
)
OUTCOME = jobs.Outcome(
    cause=jobs.Cause.SIGNALLED,
    code=0,
    signal=9,
    text="killed by signal 9 (SIGKILL)",
    seconds=1.5,
    cpu_seconds=0.25,
    peak_memory=4096,
    stdout_size=3,
    stderr_size=2,
    stdout_tail=b"\x00\xffa",
    stderr_tail=b"ab",
)
VIEW = jobs.JobView(
    id="j-a",
    user="ada",
    state=jobs.State.ENDED,
    spec=SPEC,
    request=REQUEST,
    submitted=1.0,
    attempt=1,
    allocation="j-a.1",
    node="lab1",
    grant=GRANT,
    started=2.0,
    ended=3.5,
    reason=jobs.Reason("Resources", "needs 1 gpu"),
    outcome=OUTCOME,
    story=(jobs.Step(1.0, jobs.State.WAITING, "submitted"),),
)
GPU_SAMPLE = nodes.GpuSample("GPU-1", 12.5, 1 << 20, 1 << 30, 40.0, (nodes.GpuProcess(7, 4096, "bob", True),), "")
SAMPLE = nodes.Sample(
    at=12.5,
    cores={0: 3, 1: 100},
    own_cpu=0.5,
    foreign_cpu=1.25,
    memory_total=1 << 34,
    memory_foreign=1 << 30,
    memory_own=1 << 20,
    load=0.75,
    disk_total=1 << 40,
    disk_free=1 << 39,
    disk_read=1.5,
    disk_written=2.5,
    net_received=3.5,
    net_sent=4.5,
    gpus=(GPU_SAMPLE,),
    gpu_error="no driver",
)
FACTS = nodes.NodeFacts(
    name="lab1",
    hostname="lab1.example",
    boot_id="b-1",
    incarnation=4,
    cores=(0, 1),
    memory=1 << 34,
    lendable=Resources(2000, 1 << 33, 1000),
    virtual=True,
    gpus=(nodes.GpuFacts("GPU-1", 0, "H200", 1 << 37, True),),
    labels={"room": "b"},
    software="0.1.0",
    python="3.11.7",
    priority=2.0,
)
GPU_OFFER = nodes.GpuOffer("GPU-1", 0, "H200", 1 << 37, 1 << 36, 750)
WITHHELD = nodes.Withheld("cpu", "cpu 64 % > 30 % (cpu_percent_max)")
OFFER = nodes.Offer(
    number=3,
    expires_in=300.0,
    cores=(1, 0),
    shares={2: 500},
    memory=1 << 33,
    gpus=(GPU_OFFER,),
    counting=("j-a.1",),
    withheld=(WITHHELD,),
    idle_since=9.5,
)
OFFER_VIEW = nodes.OfferView(
    node="lab1",
    state=nodes.NodeState.SUSPECT,
    room=Resources(1000),
    total=Resources(2000),
    cores=(1,),
    virtual=True,
    gpus=(GPU_OFFER,),
    expires_in=10.5,
    idle_for=3.5,
    withheld=(WITHHELD,),
)
ALLOCATION_VIEW = nodes.AllocationView(
    id="j-a.1",
    job="j-a",
    user="ada",
    node="lab1",
    state=jobs.State.RUNNING,
    grant=GRANT,
    priority="high",
    since=1.5,
    ends=61.5,
    name="train",
)
NODE_VIEW = nodes.NodeView(
    facts=FACTS,
    state=nodes.NodeState.UP,
    silent_for=0.5,
    sample=SAMPLE,
    offered=Resources(1000),
    lent=Resources(2000),
    jobs=1,
    withheld=(WITHHELD,),
)
KNOWN = nodes.Known("j-a.1", jobs.State.ENDED, OUTCOME, 2.5)

MESSAGES: dict[str, Any] = {
    "Hello": messages.Hello(protocol=(1, 0), software="0.1.0", role="agent", name="lab1", facts=FACTS, session="s-1"),
    "Welcome": messages.Welcome(protocol=(1, 0), software="0.1.0", epoch=7, grid="g-1", session="s-1", heartbeat=1.5),
    "Refused": messages.Refused(what="no", why="because", hint="try", final=True),
    "Heartbeat": messages.Heartbeat(sample=SAMPLE),
    "Offer": OFFER,
    "Inventory": messages.Inventory(known=(KNOWN,)),
    "Started": messages.Started(allocation="j-a.1", pid=77),
    "Stale": messages.Stale(allocation="j-a.1", reason="busy", device="GPU-1", pid=7, user="bob", memory=4096),
    "Exited": messages.Exited(allocation="j-a.1", outcome=OUTCOME, returned=True),
    "Suspended": messages.Suspended(allocation="j-a.1", why="foreign CPU 87 %", lasted=2.5, in_all=4.5),
    "Recalled": messages.Recalled(allocation="j-a.1", why="memory pressure 40 %", grace=5.0),
    "Noted": messages.Noted(allocation="j-a.1", text="something of it lives 5 s after SIGKILL"),
    "InUse": messages.InUse(
        uses=(
            jobs.Use(
                allocation="j-a.1",
                seconds=15.0,
                cpu=0.5,
                cpu_peak=1.5,
                memory=4096,
                gpus=(jobs.GpuUse("GPU-1", 12.5, 40.0),),
            ),
        )
    ),
    "Launch": messages.Launch(allocation="j-a.1", job="j-a", user="ada", epoch=7, grant=GRANT, spec=SPEC),
    "Stop": messages.Stop(allocation="j-a.1", grace=2.5, cause="time-limit", text="too long"),
    "Signal": messages.Signal(allocation="j-a.1", signal=2),
    "Ack": messages.Ack(allocations=("j-a.1",)),
    "Renewed": messages.Renewed(at=12.5),
    "OpenData": messages.OpenData(session="s-1"),
    "WantOutput": messages.WantOutput(id=1, allocation="j-a.1", stream="stdout", offset=5, size=100, wait=2.5),
    "Output": messages.Output(id=1, offset=5, data=b"\x00\xff", end=True, gap=3, error="gone"),
    "WantFiles": messages.WantFiles(id=2, allocation="j-a.1", globs=("*.txt",)),
    "Files": messages.Files(id=2, files=(messages.FileEntry("a.txt", 3, 0o755),), error="no"),
    "WantFile": messages.WantFile(id=3, allocation="j-a.1", path="a.txt", offset=1, size=2),
    "FileData": messages.FileData(id=3, data=b"ab", end=True, error="no"),
    "WantBlob": messages.WantBlob(id=4, blob="ab" * 32, offset=1, size=2),
    "BlobData": messages.BlobData(id=4, data=b"ab", end=True, error="no"),
    "Submit": messages.Submit(id=5, jobs=(messages.Submission("k", SPEC, REQUEST),), watch=True),
    "Submitted": messages.Submitted(id=5, jobs=("j-a",), fit=2, nodes=3),
    "Failed": messages.Failed(id=5, code="never-fits", what="no", why="because", hint="try"),
    "Done": messages.Done(id=5, text="done"),
    "Watch": messages.Watch(id=6, jobs=("last",)),
    "JobUpdate": messages.JobUpdate(job=VIEW),
    "GroupUpdate": messages.GroupUpdate(
        group=groups.GroupView(
            id="j-g",
            user="ada",
            kind=groups.GroupKind.GANG,
            spec=SPEC,
            request=REQUEST,
            submitted=1.0,
            count=2,
            array=groups.Array(parts=((0, 1, 1),)),
            states={"running": 2},
            failed=1,
            cancelled=1,
            ended=2.0,
            reason=jobs.Reason("Resources", "needs 1 gpu"),
        )
    ),
    "Cancel": messages.Cancel(id=7, jobs=("j-a",), reason="enough", grace=0.5),
    "RequestBoost": messages.RequestBoost(
        id=18, key="k", target="gpu-master", kind=ResourceType.GPU, amount=1.0, duration=1800.0, source="lab1"
    ),
    "ExtendBoost": messages.ExtendBoost(id=19, boost="j-a", seconds=600.0),
    "ListBoosts": messages.ListBoosts(id=20, target="gpu-master"),
    "Boosts": messages.Boosts(
        id=20,
        boosts=(messages.BoostView(VIEW, messages.RayNode("f00d", status="idle", total={"CPU": 2.0}), "no GPU"),),
        address="192.0.2.1:6379",
    ),
    "Extend": messages.Extend(allocation="j-a.1", limit=7200.0),
    "SignalJob": messages.SignalJob(id=8, job="j-a", signal=2),
    "ListJobs": messages.ListJobs(id=9, ended=True, states=(jobs.State.RUNNING,), user="ada", limit=5),
    "Jobs": messages.Jobs(id=9, jobs=(VIEW,), more=True),
    "ShowJobs": messages.ShowJobs(id=10, jobs=("j-a",)),
    "GetStatus": messages.GetStatus(id=11),
    "GetShares": messages.GetShares(id=12),
    "Shares": messages.Shares(
        id=12,
        users=(
            operator.UserShare(
                user="ada",
                holds=Resources(cpu=2000),
                held=0.25,
                past=0.125,
                share=0.1875,
                weight=2.0,
                running=2,
                waiting={"high": 1},
                position=1,
            ),
        ),
        capacity=Resources(cpu=8000),
        half_life=86400.0,
    ),
    "Status": messages.Status(
        id=11,
        grid="g-1",
        software="0.1.0",
        epoch=7,
        up_for=3.5,
        nodes=(NODE_VIEW,),
        counts={"running": 1},
        ended={"exited": 2},
        at=100.5,
    ),
    "GetShared": messages.GetShared(id=12, node="lab1"),
    "Shared": messages.Shared(id=12, offers=(OFFER_VIEW,), allocations=(ALLOCATION_VIEW,)),
    "AskWhy": messages.AskWhy(id=13, job="j-a", request=REQUEST),
    "Why": messages.Why(
        id=13,
        reason=jobs.Reason("Resources", "needs 1 gpu"),
        funnel=(messages.FunnelStep("up", 2, "lab5"),),
        verdicts=(messages.NodeVerdict("lab1", True, "", 0.5, {"fit": 0.5}),),
        chosen="lab1",
        grant=GRANT,
        ahead=3,
        hint="--gpus 1",
        job=VIEW,
    ),
    "DrainNodes": messages.DrainNodes(id=16, nodes=("lab1", "lab2"), reason="a new kernel", deadline=60.0),
    "UndrainNodes": messages.UndrainNodes(id=17, nodes=("lab1",)),
    "ForgetNodes": messages.ForgetNodes(id=19, nodes=("lab1", "lab2")),
    "LabelNodes": messages.LabelNodes(id=18, nodes=("lab1",), labels={"room": "b", "ssd": None}),
    "GetReceipts": messages.GetReceipts(id=50, job="j-a", node="lab1", limit=3),
    "Receipts": messages.Receipts(
        id=50,
        receipts=(
            Receipt(
                id="j-a.p1",
                job="j-a",
                user="ada",
                priority=jobs.Priority.URGENT,
                wanted=REQUEST.resources,
                node="lab1",
                grant=GRANT,
                at=100.0,
                victims=(Victim("j-b.1", "j-b", "bob", jobs.Priority.LOW, GRANT, 60.0, 120.0),),
                lost=120.0,
                why="needs 1 gpu",
                alternatives=(Alternative("lab2", 2, 300.0), Alternative("lab3", why="beyond the badput budget")),
                result="started",
                closed=103.5,
                waited=3.5,
                text="on another part",
            ),
        ),
    ),
    "WantBlobs": messages.WantBlobs(id=14, blobs=("ab" * 32,)),
    "MissingBlobs": messages.MissingBlobs(id=14, blobs=("ab" * 32,)),
    "PutBlob": messages.PutBlob(id=15, blob="ab" * 32, offset=1, data=b"ab", end=True),
    "MakeToken": messages.MakeToken(id=40, role=Role.AGENT, name="lab*", ttl=60.0, uses=2, labels={"zone": "a"}),
    "TokenMade": messages.TokenMade(id=40, token="grid1.pin.id.secret"),
    "ListAccess": messages.ListAccess(id=41),
    "Access": messages.Access(
        id=41,
        tokens=(messages.TokenView("0a1b2c3d", Role.AGENT, "lab*", 2, 100.0, "ada", {"zone": "a"}),),
        members=(messages.MemberView(Role.AGENT, "lab1", "7f", 1.0, 2.0, 1.5),),
    ),
    "WantCertificate": messages.WantCertificate(request="-----BEGIN CERTIFICATE REQUEST-----", id=43),
    "NewCertificate": messages.NewCertificate(certificate="-----BEGIN CERTIFICATE-----", error="no", id=43),
    "Withdraw": messages.Withdraw(id=42, token="0a1b2c3d", role=Role.AGENT, name="lab1"),
}
