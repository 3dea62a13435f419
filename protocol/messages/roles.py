"""Which role may send which message, and whose jobs it may reach: one table by message and role. What is not in the
table is allowed to nobody. The coordinator checks every request with it; docs/security.md and the tests are made from
it."""

from collections.abc import Mapping
from enum import StrEnum

from distributed_grid.protocol import messages
from distributed_grid.protocol.identity import Role


class Reach(StrEnum):
    """The extent of a message that a role may send."""

    GRID = "yes"
    """It has to do with no job in particular; what others' jobs hold is told without what they are."""
    SELF = "own certificate"
    NODE = "own node"
    RIGHTS = "own rights"
    LOANS = "own loans"
    """What the user has lent or borrowed."""
    OWN = "own jobs"
    """A job of another's is as one that does not exist."""
    OUTLINES = "all jobs, in outline"
    """Where they stand and what they hold; no command, environment, directory, name, output."""
    ALL = "all jobs"


Row = Mapping[Role, Reach]

AGENTS: Row = {Role.AGENT: Reach.NODE}
EVERYBODY: Row = {Role.CLIENT: Reach.GRID, Role.OPERATOR: Reach.GRID, Role.VIEWER: Reach.GRID}
USERS: Row = {Role.CLIENT: Reach.GRID, Role.OPERATOR: Reach.GRID}
OPERATORS: Row = {Role.OPERATOR: Reach.GRID}
MEMBERS: Row = {role: Reach.SELF for role in (Role.AGENT, Role.CLIENT, Role.OPERATOR, Role.VIEWER)}
SEE: Row = {Role.CLIENT: Reach.OWN, Role.OPERATOR: Reach.ALL, Role.VIEWER: Reach.OUTLINES}
RIGHTS: Row = {Role.CLIENT: Reach.RIGHTS, Role.OPERATOR: Reach.GRID}
LOANS: Row = {Role.CLIENT: Reach.LOANS, Role.OPERATOR: Reach.GRID, Role.VIEWER: Reach.GRID}
HAVE: Row = {Role.CLIENT: Reach.OWN, Role.OPERATOR: Reach.ALL}
SUBMITTER: Row = {Role.CLIENT: Reach.OWN, Role.OPERATOR: Reach.OWN}

TABLE: dict[type, Row] = {
    # agents, on their control connection
    messages.Heartbeat: AGENTS,
    messages.Offer: AGENTS,
    messages.Inventory: AGENTS,
    messages.Started: AGENTS,
    messages.Stale: AGENTS,
    messages.Exited: AGENTS,
    messages.InUse: AGENTS,
    messages.Buckets: AGENTS,
    messages.InEffect: AGENTS,
    messages.Suspended: AGENTS,
    messages.AwaitsReader: AGENTS,
    messages.Recalled: AGENTS,
    messages.Noted: AGENTS,
    # agents, on their data connection, and clients
    messages.Output: AGENTS,
    messages.Files: AGENTS,
    messages.FileData: AGENTS,
    messages.InputTaken: AGENTS,
    messages.WantBlob: AGENTS,
    # agents and people
    messages.WantCertificate: MEMBERS,
    # people
    messages.GetStatus: EVERYBODY,
    messages.GetShared: SEE,
    messages.GetShares: EVERYBODY,
    messages.GetLoans: LOANS,
    messages.GetSettings: EVERYBODY,
    messages.GetTrends: EVERYBODY,
    messages.GetForecast: EVERYBODY,
    messages.Predict: USERS,
    messages.RecordUse: USERS,
    messages.ListJobs: SEE,
    messages.ShowJobs: SEE,
    messages.Watch: SEE,
    messages.AskWhy: HAVE,
    messages.GetReceipts: SEE,
    messages.Submit: HAVE,
    messages.RequestBoost: HAVE,
    messages.ExtendBoost: HAVE,
    messages.ListBoosts: SEE,
    messages.GetBalancing: SEE,
    messages.SuggestBoosts: SEE,
    messages.Cancel: HAVE,
    messages.SignalJob: HAVE,
    messages.WantOutput: HAVE,
    messages.WantFiles: HAVE,
    messages.WantFile: HAVE,
    messages.PutInput: SUBMITTER,
    messages.WantBlobs: USERS,
    messages.PutBlob: USERS,
    messages.DrainNodes: OPERATORS,
    messages.UndrainNodes: OPERATORS,
    messages.LabelNodes: OPERATORS,
    messages.SetNodes: OPERATORS,
    messages.DeclareNode: OPERATORS,
    messages.ReloadSettings: OPERATORS,
    messages.ForgetNodes: OPERATORS,
    messages.GetQuota: RIGHTS,
    messages.SetRights: OPERATORS,
    messages.SetBalancing: OPERATORS,
    messages.GetScaling: OPERATORS,
    messages.OrderScaling: OPERATORS,
    messages.MakeToken: OPERATORS,
    messages.ListAccess: OPERATORS,
    messages.Withdraw: OPERATORS,
}


def reach(role: Role, message: type) -> Reach | None:
    """Return the reach of this message from a peer of this role; None: the role may not send it."""
    return TABLE.get(message, {}).get(role)
