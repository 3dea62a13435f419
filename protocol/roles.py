"""Who may say what: one table, message by message. What is not in it is allowed to nobody. The coordinator asks it for
every request of a client; whose jobs a client may see and end is not told apart yet (docs/security.md).
"""

from distributed_grid.protocol import messages
from distributed_grid.protocol.identity import Role

AGENTS = frozenset({Role.AGENT})
"""An agent, about its own node and what was granted there."""
ALL = frozenset({Role.CLIENT, Role.OPERATOR, Role.VIEWER})
"""Everybody who is a person."""
USERS = frozenset({Role.CLIENT, Role.OPERATOR})
OPERATORS = frozenset({Role.OPERATOR})
MEMBERS = AGENTS | ALL
"""Whoever has a certificate, about that."""

TABLE: dict[type, frozenset[Role]] = {
    # agents, on their control connection
    messages.Heartbeat: AGENTS,
    messages.Offer: AGENTS,
    messages.Inventory: AGENTS,
    messages.Started: AGENTS,
    messages.Stale: AGENTS,
    messages.Exited: AGENTS,
    messages.InUse: AGENTS,
    messages.Suspended: AGENTS,
    messages.Recalled: AGENTS,
    # agents, on their data connection, and clients
    messages.Output: AGENTS,
    messages.Files: AGENTS,
    messages.FileData: AGENTS,
    messages.WantBlob: AGENTS,
    # agents and people
    messages.WantCertificate: MEMBERS,
    # people
    messages.GetStatus: ALL,
    messages.GetShared: ALL,
    messages.GetShares: ALL,
    messages.ListJobs: ALL,
    messages.ShowJobs: ALL,
    messages.Watch: ALL,
    messages.AskWhy: ALL,
    messages.GetReceipts: ALL,
    messages.Submit: USERS,
    messages.Cancel: USERS,
    messages.SignalJob: USERS,
    messages.WantOutput: USERS,
    messages.WantFiles: USERS,
    messages.WantFile: USERS,
    messages.WantBlobs: USERS,
    messages.PutBlob: USERS,
    messages.DrainNodes: OPERATORS,
    messages.UndrainNodes: OPERATORS,
    messages.LabelNodes: OPERATORS,
    messages.MakeToken: OPERATORS,
    messages.ListAccess: OPERATORS,
    messages.Withdraw: OPERATORS,
}


def may(role: Role, message: type) -> bool:
    """Whether a peer of this role may send this message at all."""
    return role in TABLE.get(message, frozenset())
