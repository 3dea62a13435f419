"""What the audit log records of a request: what it concerned and its result, once, before the answer is sent; nothing
that may be secret."""

from collections.abc import Sequence
from typing import Any

from distributed_grid.coordinator.api.relay import Client
from distributed_grid.coordinator.audit.log import RequestLog
from distributed_grid.protocol import messages

NAMED = 20
"""Maximum number of jobs or nodes named in one entry."""
CHARS = 100
"""Maximum length of a value that a user chose."""
REASON_CHARS = 200


def about(message: Any) -> dict[str, Any] | None:
    """The fields of a request's entry; None: it has no entry."""
    match message:
        case messages.WantOutput() | messages.WantFiles() | messages.WantFile() | messages.PutInput():
            return {"allocation": message.allocation[:CHARS]}
        case messages.PutBlob():
            return {"blob": message.blob[:CHARS]} if message.end else None
        case messages.WantBlobs():
            return {"blobs": len(message.blobs)}
        case messages.Submit():
            return {"jobs": len(message.jobs)}
        case messages.Cancel():
            whose = {"user": message.user[:CHARS]} if message.user else {"every": True} if message.every else {}
            return named(message.jobs) | {f"of_{key}": value for key, value in whose.items()}
        case messages.Watch() | messages.ShowJobs():
            return named(message.jobs)
        case messages.RequestBoost():
            return {"target": message.target[:CHARS], "kind": message.kind, "amount": message.amount}
        case messages.ExtendBoost():
            return {"job": message.boost, "seconds": message.seconds}
        case messages.SignalJob():
            return {"job": message.job[:CHARS], "signal": message.signal}
        case messages.AskWhy():
            return {"job": message.job[:CHARS]} if message.job else {"dry_run": True}
        case messages.ListJobs():
            return {"of_user": message.user[:CHARS]} if message.user else {}
        case messages.GetReceipts():
            return {"job": message.job[:CHARS], "node": message.node[:CHARS]}
        case messages.GetShared():
            return {"node": message.node[:CHARS]} if message.node else {}
        case messages.DrainNodes():
            why = {"reason": message.reason[:REASON_CHARS], "deadline": message.deadline}
            return named(message.nodes, "nodes") | why
        case messages.UndrainNodes() | messages.ForgetNodes():
            return named(message.nodes, "nodes")
        case messages.LabelNodes():
            return named(message.nodes, "nodes") | {"labels": message.labels}
        case messages.GetQuota():
            return {"of_user": message.user[:CHARS]} if message.user else {}
        case messages.SetRights():
            given = message.rights.words() if message.rights is not None else "taken back"
            return {"whose": message.whose.value, "name": message.name[:CHARS], "rights": given}
        case messages.SetBalancing():
            return {"mode": message.mode, "policy": message.policy, "unset": message.unset}
        case messages.OrderScaling():
            return {"order": message.order.value, "pool": message.pool[:CHARS], "reason": message.why[:REASON_CHARS]}
        case messages.MakeToken():
            asked = {"for": message.role, "name": message.name[:CHARS], "uses": message.uses, "ttl": message.ttl}
            return asked | ({"bearer": True} if message.bearer else {})
        case messages.Withdraw():
            token = message.token.split(".")[2] if message.token.count(".") >= 3 else message.token[:16]
            return {"token": token[:16]} if message.token else {"from": message.role, "name": message.name[:CHARS]}
    return {}


def named(names: Sequence[str], what: str = "jobs") -> dict[str, Any]:
    """The first names, and how many there are if that is more."""
    found: dict[str, Any] = {what: [name[:CHARS] for name in names[:NAMED]]}
    return found if len(names) <= NAMED else found | {"count": len(names)}


REMEMBERED = 10_000
"""Maximum number of allocations of one connection that are remembered as read from, and as sent to."""


class AuditedRequest:
    """A request and its entry. `later`: the answer comes from the ledger, and its sender writes the entry."""

    __slots__ = ("_about", "_log", "client", "later", "message")

    def __init__(self, log: RequestLog, client: Client, message: Any) -> None:
        self._log = log
        self._about = about(message)
        self.client = client
        self.message = message
        self.later = False
        log.expect()

    @property
    def tag(self) -> str:
        """The name of the message on the wire."""
        return str(self.message.__struct_config__.tag)

    def done(self, **more: Any) -> None:
        """Note that the request was carried out. Reading output and files gives one entry for each allocation, not for
        each part; so does sending standard input."""
        if isinstance(self.message, messages.WantOutput | messages.WantFiles | messages.WantFile | messages.PutInput):
            seen = self.client.sent_to if isinstance(self.message, messages.PutInput) else self.client.read_from
            if self.message.allocation in seen:
                return
            if len(seen) >= REMEMBERED:
                seen.clear()
            seen.add(self.message.allocation)
        self._note("accepted", more)

    def refused(self, code: str, what: str) -> None:
        """Note that the request was refused; the answer is sent elsewhere."""
        self._note("refused", {"code": code, "why": what[:REASON_CHARS]})

    def fail(self, code: str, what: str, why: str = "", hint: str = "") -> None:
        """Answer with an error, and note it."""
        self.refused(code, what)
        self.client.connection.send(messages.Failed(getattr(self.message, "id", 0), code, what, why, hint))

    def _note(self, result: str, more: dict[str, Any]) -> None:
        if self._about is not None:
            client = self.client
            self._log.request(client.user, self.tag, result, **client.who, **self._about, **more)
