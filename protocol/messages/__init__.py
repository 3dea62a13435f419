"""Every message on the wire, one typed struct each. Fields are only ever added, at the end, with a default.

UNIONS says who may send which messages: FromAgent and ToAgent on the control connection, FromAgentData and ToAgentData
on the one for bulk data, FromClient and ToClient. A module of this package is loaded when one of its names is first
used: to make all structs takes a tenth of a short command's time, and it needs only a few.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Union

if TYPE_CHECKING:
    from distributed_grid.protocol.messages.agent import *
    from distributed_grid.protocol.messages.automation import *
    from distributed_grid.protocol.messages.client import *
    from distributed_grid.protocol.messages.data import *
    from distributed_grid.protocol.messages.handshake import *
    from distributed_grid.protocol.messages.history import *
    from distributed_grid.protocol.messages.jobs import *
    from distributed_grid.protocol.messages.needs import *
    from distributed_grid.protocol.messages.operator import *
    from distributed_grid.protocol.messages.pages import *
    from distributed_grid.protocol.messages.rights import *
    from distributed_grid.protocol.messages.why import *
    from distributed_grid.protocol.nodes import Offer as Offer

    FromAgent: Any
    ToAgent: Any
    FromAgentData: Any
    ToAgentData: Any
    FromClient: Any
    ToClient: Any

MODULES: dict[str, str] = {
    "messages.agent": (
        "Heartbeat Inventory Started Stale Exited Suspended AwaitsReader Recalled Noted InUse Buckets InEffect"
        " Launch Stop Signal Extend Renice Ack BucketsKept Renewed NewSettings OpenData"
    ),
    "messages.automation": (
        "PoolView GetScaling ScalingStatus OrderScaling GetBalancing BalancingStatus SuggestBoosts Suggestions"
        " SetBalancing"
    ),
    "messages.client": (
        "RequestBoost ExtendBoost ListBoosts RayNode Demand BoostView Boosts GetStatus Durations Status GetShared"
        " Shared MakeToken TokenMade ListAccess TokenView MemberView Access Withdraw"
    ),
    "messages.data": (
        "WantOutput Output WantFiles FileEntry Files WantFile FileData PutInput InputTaken WantBlob BlobData"
        " WantBlobs MissingBlobs PutBlob"
    ),
    "messages.handshake": (
        "Message Hello Welcome Refused Join Joined WantCertificate NewCertificate Challenge Renew signed_to_renew"
    ),
    "messages.history": "GetTrends Trends GetForecast NodeForecast GetLoans UserBalance UserLoans DayOfLoans Loans",
    "messages.jobs": (
        "Submission Submit Submitted Failed Done Watch JobUpdate GroupUpdate Cancel SignalJob ListJobs Jobs ShowJobs"
    ),
    "messages.needs": "excerpt whole_cores Predict Need Needs RecordUse",
    "messages.operator": (
        "Victim Place Alternative Preemption Receipt DrainNodes UndrainNodes LabelNodes SetNodes DeclareNode"
        " ReloadSettings GetSettings NodeSettings ForgetNodes GetReceipts Receipts GetShares UserShare Shares"
    ),
    "messages.pages": "next_page joined",
    "messages.rights": (
        "Rights Whose GroupRights Rules key_of GetQuota Quota Quotas SetRights parse_limit parse_rights"
        " limit_words amount_words option check_name"
    ),
    "messages.why": "AskWhy NodeVerdict FunnelStep Why",
    "nodes": "Offer",
}
"""What can be imported from here, by the module of `protocol` that defines it."""

UNIONS: dict[str, str] = {
    "FromAgent": (
        "Heartbeat Offer Inventory Started Stale Exited Suspended AwaitsReader Recalled Noted InUse Buckets"
        " InEffect WantCertificate"
    ),
    "ToAgent": (
        "Welcome Refused Launch Stop Signal Extend Renice Ack BucketsKept OpenData Renewed NewCertificate NewSettings"
    ),
    "FromAgentData": "Output Files FileData InputTaken WantBlob",
    "ToAgentData": "Welcome Refused WantOutput WantFiles WantFile PutInput BlobData",
    "FromClient": (
        "Submit Watch Cancel SignalJob ListJobs ShowJobs GetStatus GetShared GetShares AskWhy WantOutput WantFiles"
        " WantFile PutInput WantBlobs PutBlob DrainNodes UndrainNodes LabelNodes SetNodes DeclareNode GetSettings"
        " ReloadSettings RequestBoost ExtendBoost ListBoosts GetReceipts MakeToken ListAccess Withdraw"
        " WantCertificate ForgetNodes GetQuota SetRights GetTrends GetForecast Predict RecordUse GetBalancing"
        " SuggestBoosts SetBalancing GetLoans GetScaling OrderScaling"
    ),
    "ToClient": (
        "Welcome Refused Submitted Failed Done JobUpdate GroupUpdate Jobs Status Shared Shares Quotas Why Receipts"
        " Trends NodeForecast Needs NodeSettings Boosts Output Files FileData InputTaken MissingBlobs TokenMade"
        " Access NewCertificate BalancingStatus Suggestions Loans ScalingStatus"
    ),
}
"""The messages of each direction."""

_MODULE_OF = {name: module for module, names in MODULES.items() for name in names.split()}

if not TYPE_CHECKING:  # or a misspelled name would pass

    def __getattr__(name: str) -> object:
        if name in UNIONS:
            found = Union[tuple(__getattr__(one) for one in UNIONS[name].split())]  # noqa: UP007
        elif name in _MODULE_OF:
            found = getattr(import_module(f"distributed_grid.protocol.{_MODULE_OF[name]}"), name)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found
        return found
