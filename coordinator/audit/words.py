"""What of a request is kept in the audit log: what it concerned, nothing that may be secret."""

from collections.abc import Sequence
from typing import Any

from distributed_grid.protocol.messages import (
    AskWhy,
    Cancel,
    DrainNodes,
    ExtendBoost,
    ForgetNodes,
    GetReceipts,
    GetShared,
    LabelNodes,
    ListJobs,
    MakeToken,
    PutBlob,
    RequestBoost,
    ShowJobs,
    SignalJob,
    Submit,
    UndrainNodes,
    WantBlobs,
    WantFile,
    WantFiles,
    WantOutput,
    Watch,
    Withdraw,
)

NAMED = 20
"""Jobs or nodes of a request that are named in its line."""
CHARS = 100
"""What is kept of a word that somebody chose."""
REASON_CHARS = 200


def about(message: Any) -> dict[str, Any] | None:
    """What is kept; None: it has no line."""
    match message:
        case WantOutput(allocation=allocation) | WantFiles(allocation=allocation) | WantFile(allocation=allocation):
            return {"allocation": allocation[:CHARS]}
        case PutBlob():
            return {"blob": message.blob[:CHARS]} if message.end else None
        case WantBlobs():
            return {"blobs": len(message.blobs)}
        case Submit():
            return {"jobs": len(message.jobs)}
        case Cancel():
            whose = {"user": message.user[:CHARS]} if message.user else {"every": True} if message.every else {}
            return named(message.jobs) | {f"of_{key}": value for key, value in whose.items()}
        case Watch() | ShowJobs():
            return named(message.jobs)
        case RequestBoost():
            return {"target": message.target[:CHARS], "kind": message.kind, "amount": message.amount}
        case ExtendBoost():
            return {"job": message.boost, "seconds": message.seconds}
        case SignalJob():
            return {"job": message.job[:CHARS], "signal": message.signal}
        case AskWhy():
            return {"job": message.job[:CHARS]} if message.job else {"dry_run": True}
        case ListJobs():
            return {"of_user": message.user[:CHARS]} if message.user else {}
        case GetReceipts():
            return {"job": message.job[:CHARS], "node": message.node[:CHARS]}
        case GetShared():
            return {"node": message.node[:CHARS]} if message.node else {}
        case DrainNodes():
            why = {"reason": message.reason[:REASON_CHARS], "deadline": message.deadline}
            return named(message.nodes, "nodes") | why
        case UndrainNodes() | ForgetNodes():
            return named(message.nodes, "nodes")
        case LabelNodes():
            return named(message.nodes, "nodes") | {"labels": message.labels}
        case MakeToken():
            asked = {"for": message.role, "name": message.name[:CHARS], "uses": message.uses, "ttl": message.ttl}
            return asked | ({"bearer": True} if message.bearer else {})
        case Withdraw():
            token = message.token.split(".")[2] if message.token.count(".") >= 3 else message.token[:16]
            return {"token": token[:16]} if message.token else {"from": message.role, "name": message.name[:CHARS]}
    return {}


def named(names: Sequence[str], what: str = "jobs") -> dict[str, Any]:
    """The first of them, and how many there are where that is more."""
    found: dict[str, Any] = {what: [name[:CHARS] for name in names[:NAMED]]}
    return found if len(names) <= NAMED else found | {"count": len(names)}
