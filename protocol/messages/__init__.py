"""Every message of the wire, one typed struct each. Fields are only ever added, at the end, with a default.

The unions at the end say who may send what: FromAgent and ToAgent on the control connection, FromAgentData and
ToAgentData on the one for bulk data, FromClient and ToClient.
"""

from distributed_grid.protocol.messages.agent import *
from distributed_grid.protocol.messages.automation import *
from distributed_grid.protocol.messages.client import *
from distributed_grid.protocol.messages.handshake import *
from distributed_grid.protocol.messages.history import *
from distributed_grid.protocol.messages.needs import *
from distributed_grid.protocol.messages.operator import *
from distributed_grid.protocol.messages.rights import *
from distributed_grid.protocol.nodes import Offer as Offer

FromAgent = (
    Heartbeat
    | Offer
    | Inventory
    | Started
    | Stale
    | Exited
    | Suspended
    | AwaitsReader
    | Recalled
    | Noted
    | InUse
    | Buckets
    | InEffect
    | WantCertificate
)
ToAgent = (
    Welcome
    | Refused
    | Launch
    | Stop
    | Signal
    | Extend
    | Renice
    | Ack
    | BucketsKept
    | OpenData
    | Renewed
    | NewCertificate
    | NewSettings
)
FromAgentData = Output | Files | FileData | InputTaken | WantBlob
ToAgentData = Welcome | Refused | WantOutput | WantFiles | WantFile | PutInput | BlobData
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
    | PutInput
    | WantBlobs
    | PutBlob
    | DrainNodes
    | UndrainNodes
    | LabelNodes
    | SetNodes
    | DeclareNode
    | GetSettings
    | ReloadSettings
    | RequestBoost
    | ExtendBoost
    | ListBoosts
    | GetReceipts
    | MakeToken
    | ListAccess
    | Withdraw
    | WantCertificate
    | ForgetNodes
    | GetQuota
    | SetRights
    | GetTrends
    | GetForecast
    | Predict
    | RecordUse
    | GetBalancing
    | SuggestBoosts
    | SetBalancing
    | GetLoans
    | GetScaling
    | OrderScaling
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
    | Quotas
    | Why
    | Receipts
    | Trends
    | NodeForecast
    | Needs
    | NodeSettings
    | Boosts
    | Output
    | Files
    | FileData
    | InputTaken
    | MissingBlobs
    | TokenMade
    | Access
    | NewCertificate
    | BalancingStatus
    | Suggestions
    | Loans
    | ScalingStatus
)
