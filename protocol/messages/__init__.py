"""Every message of the wire, one typed struct each. Fields are only ever added, at the end, with a default.

The unions at the end say who may send what: FromAgent and ToAgent on the control connection, FromAgentData and
ToAgentData on the one for bulk data, FromClient and ToClient.
"""

from distributed_grid.protocol.messages.agent import (
    Ack,
    BlobData,
    Exited,
    Extend,
    FileData,
    FileEntry,
    Files,
    Heartbeat,
    InUse,
    Inventory,
    Launch,
    Noted,
    OpenData,
    Output,
    Recalled,
    Renewed,
    Signal,
    Stale,
    Started,
    Stop,
    Suspended,
    WantBlob,
    WantFile,
    WantFiles,
    WantOutput,
)
from distributed_grid.protocol.messages.client import (
    Access,
    AskWhy,
    Boosts,
    BoostView,
    Cancel,
    Demand,
    Done,
    ExtendBoost,
    Failed,
    FunnelStep,
    GetShared,
    GetStatus,
    GroupUpdate,
    Jobs,
    JobUpdate,
    ListAccess,
    ListBoosts,
    ListJobs,
    MakeToken,
    MemberView,
    MissingBlobs,
    NodeVerdict,
    PutBlob,
    RayNode,
    RequestBoost,
    Shared,
    ShowJobs,
    SignalJob,
    Status,
    Submission,
    Submit,
    Submitted,
    TokenMade,
    TokenView,
    WantBlobs,
    Watch,
    Why,
    Withdraw,
    joined,
    next_page,
)
from distributed_grid.protocol.messages.handshake import (
    Hello,
    Message,
    NewCertificate,
    Refused,
    WantCertificate,
    Welcome,
)
from distributed_grid.protocol.messages.operator import (
    DrainNodes,
    ForgetNodes,
    GetReceipts,
    GetShares,
    LabelNodes,
    Receipts,
    Shares,
    UndrainNodes,
)
from distributed_grid.protocol.nodes import Offer

FromAgent = (
    Heartbeat | Offer | Inventory | Started | Stale | Exited | Suspended | Recalled | Noted | InUse | WantCertificate
)
ToAgent = Welcome | Refused | Launch | Stop | Signal | Extend | Ack | OpenData | Renewed | NewCertificate
FromAgentData = Output | Files | FileData | WantBlob
ToAgentData = Welcome | Refused | WantOutput | WantFiles | WantFile | BlobData
FromClient = (
    Submit
    | Watch
    | Cancel
    | SignalJob
    | ListJobs
    | ShowJobs
    | GetStatus
    | GetShared
    | GetShares
    | AskWhy
    | WantOutput
    | WantFiles
    | WantFile
    | WantBlobs
    | PutBlob
    | DrainNodes
    | UndrainNodes
    | LabelNodes
    | RequestBoost
    | ExtendBoost
    | ListBoosts
    | GetReceipts
    | MakeToken
    | ListAccess
    | Withdraw
    | WantCertificate
    | ForgetNodes
)
ToClient = (
    Welcome
    | Refused
    | Submitted
    | Failed
    | Done
    | JobUpdate
    | GroupUpdate
    | Jobs
    | Status
    | Shared
    | Shares
    | Why
    | Receipts
    | Boosts
    | Output
    | Files
    | FileData
    | MissingBlobs
    | TokenMade
    | Access
    | NewCertificate
)

__all__ = [
    "Access",
    "Ack",
    "AskWhy",
    "BlobData",
    "BoostView",
    "Boosts",
    "Cancel",
    "Demand",
    "Done",
    "DrainNodes",
    "Exited",
    "Extend",
    "ExtendBoost",
    "Failed",
    "FileData",
    "FileEntry",
    "Files",
    "FromAgent",
    "FromAgentData",
    "FromClient",
    "FunnelStep",
    "GetReceipts",
    "GetShared",
    "GetShares",
    "GetStatus",
    "Heartbeat",
    "Hello",
    "InUse",
    "Inventory",
    "JobUpdate",
    "GroupUpdate",
    "Jobs",
    "ForgetNodes",
    "LabelNodes",
    "Launch",
    "ListAccess",
    "ListBoosts",
    "ListJobs",
    "MakeToken",
    "MemberView",
    "Message",
    "MissingBlobs",
    "NewCertificate",
    "NodeVerdict",
    "Noted",
    "Offer",
    "OpenData",
    "Output",
    "PutBlob",
    "RayNode",
    "RequestBoost",
    "Recalled",
    "Receipts",
    "Refused",
    "Renewed",
    "Shared",
    "Shares",
    "ShowJobs",
    "Signal",
    "SignalJob",
    "Stale",
    "Started",
    "Status",
    "Stop",
    "Submission",
    "Submit",
    "Submitted",
    "Suspended",
    "ToAgent",
    "ToAgentData",
    "ToClient",
    "TokenMade",
    "TokenView",
    "UndrainNodes",
    "WantBlob",
    "WantBlobs",
    "WantCertificate",
    "WantFile",
    "WantFiles",
    "WantOutput",
    "Watch",
    "Welcome",
    "Why",
    "Withdraw",
    "joined",
    "next_page",
]
