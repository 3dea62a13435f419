"""Machines as instances of Amazon EC2, by boto3.

The name of a machine is the client token of its creation: EC2 makes one instance for it however often it is requested.
Its tags, set at creation, say which grid owns it. The instance terminates when it shuts itself down (startup.py), and
its metadata can be read only with a session token (IMDSv2).
"""

import hashlib
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NoReturn, TypeVar

import boto3
from botocore import exceptions as trouble
from botocore.config import Config
from botocore.parsers import ResponseParserError

from distributed_grid.coordinator.core.scaling.state import Answer, Listed
from distributed_grid.coordinator.providers.base import CloudProviderBase, ProviderRefused, WorkerSpec
from distributed_grid.coordinator.providers.startup import secret, startup_script

T = TypeVar("T")

TAG = "distributed-grid"
"""The tag with the grid's id; those of a machine are below it, such as `distributed-grid:machine`."""
USER_DATA_MOST = 16_384
"""Bytes of user data that EC2 takes."""
TOKEN_MOST = 64
RECENT = 60.0
"""For how long an instance that was created may not be in EC2's lists yet (s)."""
_TAKEN = ("Client.UserInitiatedShutdown", "Server.SpotInstanceTermination", "Server.SpotInstanceShutdown")
"""Why an instance was terminated that has not failed: by an order, or as EC2 took it back. One that shut itself down
before it joined could not be set up."""
TIMEOUTS = Config(connect_timeout=5, read_timeout=30, retries={"total_max_attempts": 1})
"""The ledger asks again itself."""

_KINDS: Mapping[Answer, tuple[str, ...]] = {
    Answer.CAPACITY: ("Insufficient", "SpotMaxPriceTooLow", "MaxSpotFleetRequestCount"),
    Answer.THROTTLED: (
        "RequestLimitExceeded", "Throttl", "RequestThrottled", "EC2Throttled", "TooManyRequests", "BandwidthLimit",
    ),
    Answer.CREDENTIALS: (
        "AuthFailure", "UnauthorizedOperation", "InvalidClientTokenId", "SignatureDoesNotMatch", "ExpiredToken",
        "RequestExpired", "AccessDenied", "OptInRequired", "Blocked", "UnrecognizedClient", "InvalidAccessKeyId",
        "MissingAuthenticationToken", "IncompleteSignature", "InvalidSecurity",
    ),
    Answer.BAD_TYPE: ("InvalidInstanceType", "Unsupported"),
    Answer.LOST: ("Internal", "ServiceUnavailable", "Unavailable", "RequestTimeout"),
}  # fmt: skip
"""Beginnings of EC2's error codes, by what they are to the ledger."""
_QUOTA = re.compile(r"LimitExceeded$|CountExceeded$")


def kind_of(code: str, status: int, text: str = "") -> Answer:
    """Return how the ledger treats an error of EC2, by its code, HTTP status and text."""
    for answer, beginnings in _KINDS.items():
        if code.startswith(beginnings):
            return answer
    if _QUOTA.search(code):
        return Answer.QUOTA
    if code.startswith("InvalidParameter") and re.search(r"instance ?type", text, re.IGNORECASE):
        return Answer.BAD_TYPE
    return Answer.LOST if status >= 500 else Answer.REFUSED


class AWSCloudProvider(CloudProviderBase):
    """`settings` as `providers.aws` of the configuration. Without `credentials` boto3 finds those of the coordinator's
    environment and machine."""

    def __init__(self, grid: str, settings: Mapping[str, Any]) -> None:
        super().__init__(grid, settings)
        given, where = settings.get("credentials") or {}, "providers.aws.credentials"
        key, hidden, session = (
            secret(given, name, where) for name in ("access_key_id", "secret_access_key", "session_token")
        )
        self._secrets = [one for one in (key, hidden, session) if one]
        self._recent: dict[str, tuple[float, Listed]] = {}
        self._lock = threading.Lock()
        made = boto3.Session(
            aws_access_key_id=key or None,
            aws_secret_access_key=hidden or None,
            aws_session_token=session or None,
            region_name=settings.get("region") or None,
        )
        self._known_regions = frozenset(made.get_available_regions("ec2"))
        self._ec2: Any = self._asked(
            lambda: made.client("ec2", endpoint_url=settings.get("endpoint") or None, config=TIMEOUTS)
        )

    # --- the questions ------------------------------------------------------------------------------------------------

    def create_worker(self, spec: WorkerSpec) -> str:
        """Run one instance."""
        wanted = self._wanted(spec)
        try:
            one = self._asked(lambda: self._ec2.run_instances(**wanted)["Instances"][0])
        except _Mismatch as error:
            # It was asked for with other parameters (the configuration was read again), and may be there.
            found = self._found({"client-token": wanted["ClientToken"]})
            if not found:
                raise ProviderRefused(Answer.LOST, error.text) from None
            one = found[0]
        if one["State"]["Name"] in ("shutting-down", "terminated"):
            raise ProviderRefused(Answer.REFUSED, f"{spec.name} was created before, and has ended")
        handle = str(one["InstanceId"])
        with self._lock:
            here = Listed(handle, spec.name, spec.pool, spec.type, spec.zone, spec.born, spec.ends_by)
            self._recent[handle] = (time.monotonic(), here)
        return handle

    def terminate_worker(self, name: str, handle: str = "") -> bool:
        """Terminate it, unless it is another grid's."""
        by = {"instance-id": handle} if handle else {f"tag:{TAG}": self.grid, f"tag:{TAG}:machine": name}
        found = self._found(by) or ([] if handle else self._found({"client-token": self._token(name)}))
        others = [one["InstanceId"] for one in found if _tags(one).get(TAG, self.grid) != self.grid]
        if others:
            raise ProviderRefused(Answer.REFUSED, f"{others[0]} is not a machine of this grid")
        there = [one["InstanceId"] for one in found if one["State"]["Name"] != "terminated"]
        if handle and not found:
            there = [handle]  # EC2's lists may be behind
        with self._lock:
            for one in there:
                self._recent.pop(one, None)
        if not there:
            return False
        try:
            self._asked(lambda: self._ec2.terminate_instances(InstanceIds=there)["TerminatingInstances"])
        except _NotFound:
            return False
        return True

    def list_workers(self) -> list[Listed]:
        """Return all instances with this grid's tag, also those that EC2 has terminated and still remembers."""
        found = [self._listed(one) for one in self._found({f"tag:{TAG}": self.grid})]
        told, now = {one.handle for one in found}, time.monotonic()
        with self._lock:
            self._recent = {
                handle: (at, one)
                for handle, (at, one) in self._recent.items()
                if handle not in told and now < at + RECENT
            }
            return found + [one for _, one in self._recent.values()]

    def get_available_resources(self) -> dict[str, Any]:
        """Return the resources of instances of the configured types; of all current ones, if none are configured."""
        named = sorted(set((self.settings.get("instance_types") or {}).values()))
        wanted: dict[str, Any] = {"InstanceTypes": named} if named else {}
        pages = self._ec2.get_paginator("describe_instance_types")
        types = self._asked(
            lambda: {
                one["InstanceType"]: _resources(one)
                for page in pages.paginate(**wanted)
                for one in page["InstanceTypes"]
            }
        )
        return {"region": self._ec2.meta.region_name, "types": types}

    # --- what they need -----------------------------------------------------------------------------------------------

    def _token(self, name: str) -> str:
        token = f"{self.grid}-{name}"
        return token if len(token) <= TOKEN_MOST else hashlib.sha256(token.encode()).hexdigest()

    def _wanted(self, spec: WorkerSpec) -> dict[str, Any]:
        """The parameters of the instance. Raises ProviderRefused."""
        said = self.settings
        image = str(spec.options.get("image") or said.get("image") or "")
        if not image:
            raise ProviderRefused(Answer.REFUSED, f"no image for pool {spec.pool}: set providers.aws.image, or its own")
        tags = {
            "Name": f"grid {spec.name}",
            TAG: self.grid,
            f"{TAG}:machine": spec.name,
            f"{TAG}:pool": spec.pool,
            f"{TAG}:born": f"{spec.born:.0f}",
            f"{TAG}:ends-by": f"{spec.ends_by:.0f}",
        }
        tagged = [{"Key": key, "Value": value} for key, value in tags.items()]
        wanted: dict[str, Any] = {
            "ImageId": image,
            "InstanceType": spec.type,
            "MinCount": 1,
            "MaxCount": 1,
            "ClientToken": self._token(spec.name),
            "UserData": startup_script(spec, USER_DATA_MOST, "aws"),
            "InstanceInitiatedShutdownBehavior": "terminate",
            "MetadataOptions": {"HttpTokens": "required", "HttpEndpoint": "enabled", "HttpPutResponseHopLimit": 1},
            "TagSpecifications": [{"ResourceType": what, "Tags": tagged} for what in ("instance", "volume")],
        }
        region = self._ec2.meta.region_name
        if spec.zone:
            wanted["Placement"] = {
                "AvailabilityZone": spec.zone if spec.zone.startswith(region) else region + spec.zone
            }
        subnets = said.get("subnets") or {}
        if subnet := subnets.get(spec.zone) or subnets.get(spec.zone.removeprefix(region)):
            wanted["SubnetId"] = subnet
        if groups := list(said.get("security_groups") or ()):
            wanted["SecurityGroupIds"] = groups
        if profile := said.get("instance_profile"):
            wanted["IamInstanceProfile"] = {"Name": profile}
        if spec.spot:
            once = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
            wanted["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": once}
        return wanted

    def _found(self, by: Mapping[str, str]) -> list[dict[str, Any]]:
        """The instances that EC2 lists by these filters, with those that it has terminated lately."""
        filters = [{"Name": name, "Values": [value]} for name, value in by.items()]
        pages = self._ec2.get_paginator("describe_instances")
        return self._asked(
            lambda: [
                {**one, "State": {"Name": one["State"]["Name"]}, "InstanceId": one["InstanceId"]}
                for page in pages.paginate(Filters=filters)
                for each in page["Reservations"]  # an answer without any is none
                for one in each["Instances"]
            ]
        )

    def _listed(self, one: dict[str, Any]) -> Listed:
        tags, over = _tags(one), one["State"]["Name"] == "terminated"
        return Listed(
            handle=str(one["InstanceId"]),
            name=tags.get(f"{TAG}:machine", "")[:200],
            pool=tags.get(f"{TAG}:pool", "")[:200],
            type=str(one.get("InstanceType", "")),
            zone=str((one.get("Placement") or {}).get("AvailabilityZone", "")),
            born=_seconds(tags.get(f"{TAG}:born", "")),
            ends_by=_seconds(tags.get(f"{TAG}:ends-by", "")),
            ending=one["State"]["Name"] == "shutting-down",
            ended=over,
            failed=over and str((one.get("StateReason") or {}).get("Code", "")) not in _TAKEN,
            why=str((one.get("StateReason") or {}).get("Message", ""))[:500] if over else "",
        )

    # --- errors -------------------------------------------------------------------------------------------------------

    def _asked(self, call: Callable[[], T]) -> T:
        """Call EC2 and return its answer. Raises ProviderRefused."""
        try:
            return call()
        except trouble.ClientError as error:
            said, status = error.response.get("Error", {}), error.response.get("ResponseMetadata", {})
            code, text = str(said.get("Code", "")), str(said.get("Message", ""))
            self._refuse(code, self._told(f"EC2: {text or code} ({code})"), int(status.get("HTTPStatusCode", 400)))
        except (
            trouble.NoCredentialsError,
            trouble.PartialCredentialsError,
            trouble.CredentialRetrievalError,
            trouble.NoRegionError,
            trouble.ProfileNotFound,
            trouble.InvalidRegionError,
            trouble.TokenRetrievalError,
        ) as error:
            raise ProviderRefused(Answer.CREDENTIALS, self._told(f"AWS: {error}")) from None
        except trouble.EndpointConnectionError as error:
            region = str(self.settings.get("region") or "")
            if region not in self._known_regions and not self.settings.get("endpoint"):
                why = f"AWS has no region {region!r} (providers.aws.region), as far as this boto3 knows"
                raise ProviderRefused(Answer.CREDENTIALS, why) from None
            raise ProviderRefused(Answer.LOST, self._told(f"EC2 is not reached: {error}")) from None
        except (trouble.BotoCoreError, ResponseParserError, KeyError, IndexError, TypeError, ValueError) as error:
            why = f"EC2 answers what cannot be used: {type(error).__name__}: {error}"
            raise ProviderRefused(Answer.LOST, self._told(why)[:300]) from None

    def _refuse(self, code: str, text: str, status: int) -> NoReturn:
        if code == "IdempotentParameterMismatch":
            raise _Mismatch(Answer.LOST, text) from None
        if code.startswith("InvalidInstanceID"):
            raise _NotFound(Answer.GONE, text) from None
        raise ProviderRefused(kind_of(code, status, text), text) from None

    def _told(self, text: str) -> str:
        """A text without the secrets that it may repeat."""
        for one in self._secrets:
            text = text.replace(one, "***")
        return text


class _Mismatch(ProviderRefused):
    """An instance was asked for with this token before, with other parameters."""


class _NotFound(ProviderRefused):
    """There is no such instance."""


def _tags(one: Mapping[str, Any]) -> dict[str, str]:
    return {str(tag["Key"]): str(tag["Value"]) for tag in one.get("Tags") or ()}


def _seconds(text: str) -> float:
    """Parse a time of a tag; 0 if it cannot be parsed."""
    with suppress(ValueError):
        value = float(text)
        if 0 <= value < 1e12:
            return value
    return 0.0


def _resources(one: Mapping[str, Any]) -> dict[str, Any]:
    gpus = (one.get("GpuInfo") or {}).get("Gpus") or []
    return {
        "cpus": one["VCpuInfo"]["DefaultVCpus"],
        "memory": one["MemoryInfo"]["SizeInMiB"] << 20,
        "gpus": sum(gpu["Count"] for gpu in gpus),
        "gpu_model": " ".join(f"{gpus[0]['Manufacturer']} {gpus[0]['Name']}".split()) if gpus else "",
        "gpu_memory": gpus[0]["MemoryInfo"]["SizeInMiB"] << 20 if gpus else 0,
        "spot": "spot" in one.get("SupportedUsageClasses", ()),
    }
