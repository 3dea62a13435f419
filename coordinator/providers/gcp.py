"""Machines as instances of Google Compute Engine, by its REST API (why not by google-cloud-compute:
docs/decisions/0059).

The name of an instance is made of the grid's id and the machine's name, and so is the id of the request that creates
it: a repeated request returns the same instance. Its labels, set at creation, say which grid owns it. The zone deletes
the instance at the end of its maximum lifetime, and when it is taken back; one that has shut itself down is deleted by
the next list.
"""

import re
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import google.auth
import requests
from google.auth import exceptions as trouble
from google.auth.transport.requests import Request
from google.oauth2 import service_account

from distributed_grid.coordinator.core.scaling.state import Answer, Listed
from distributed_grid.coordinator.providers.base import CloudProviderBase, ProviderRefused, WorkerSpec
from distributed_grid.coordinator.providers.startup import startup_script

ENDPOINT = "https://compute.googleapis.com/compute/v1"
SCOPES = ("https://www.googleapis.com/auth/compute",)
LABEL = "distributed-grid"
"""The label with the grid's id; those of a machine are named after it, such as `distributed-grid-machine`."""
SCRIPT_MOST = 262_144
"""Bytes of one value of an instance's metadata."""
NAME_MOST = 63
TIMEOUTS = (5.0, 20.0)
"""Of a connection, and of an answer (s)."""
WAIT = 45.0
"""For how long the operation of a creation is waited for (s); then it is asked for again."""
LOOK = 1.0
LIFE_LEAST, LIFE_MOST = 30, 120 * 86_400
"""What maxRunDuration may be (s)."""
SOONER = 60.0
"""How much shorter than a machine's life it is (s): it counts from when the instance runs. One that has powered itself
off before is not deleted any more; at that time all jobs were told to end."""
PAGES_MOST = 100
_OFF = ("TERMINATED", "STOPPED", "SUSPENDED")
_REQUESTS = uuid.UUID("8f1f9a52-5d0e-4c55-9c53-0f1d0d2c6a7e")

_CODES: Mapping[Answer, tuple[str, ...]] = {
    Answer.CAPACITY: ("ZONE_RESOURCE_POOL_EXHAUSTED", "RESOURCE_POOL_EXHAUSTED", "STOCKOUT", "resourcePoolExhausted"),
    Answer.QUOTA: ("QUOTA_EXCEEDED", "LIMIT_EXCEEDED", "quotaExceeded", "limitExceeded", "QUOTA"),
    Answer.THROTTLED: ("RATE_LIMIT_EXCEEDED", "rateLimitExceeded", "userRateLimitExceeded", "RESOURCE_OPERATION_RATE"),
    Answer.CREDENTIALS: (
        "PERMISSIONS_ERROR", "forbidden", "authError", "required", "accessNotConfigured", "insufficientPermissions",
        "SERVICE_DISABLED", "billingNotEnabled",
    ),
    Answer.LOST: ("INTERNAL_ERROR", "backendError", "internalError", "SERVICE_UNAVAILABLE"),
}  # fmt: skip
"""Beginnings of the codes of errors and of their reasons, by what they are to the ledger."""
_STATUS = {401: Answer.CREDENTIALS, 403: Answer.CREDENTIALS, 429: Answer.THROTTLED}


def kind_of(codes: tuple[str, ...], status: int, text: str = "") -> Answer:
    """Return how the ledger treats an error of Compute Engine, by its codes, HTTP status (0: an operation's) and
    text."""
    for answer, beginnings in _CODES.items():
        if any(code.startswith(beginnings) for code in codes):
            return answer
    if status in _STATUS:
        return _STATUS[status]
    if re.search("machine ?type", text, re.IGNORECASE):
        return Answer.BAD_TYPE
    return Answer.LOST if status >= 500 else Answer.REFUSED


class GCPCloudProvider(CloudProviderBase):
    """`settings` as `providers.gcp` of the configuration. Without `credentials_file` Google's library finds those of
    the coordinator's environment and machine."""

    def __init__(self, grid: str, settings: Mapping[str, Any]) -> None:
        super().__init__(grid, settings)
        project = str(settings.get("project") or "")
        file = str(settings.get("credentials_file") or "")
        try:
            if file:
                self._credentials = service_account.Credentials.from_service_account_file(file, scopes=SCOPES)
                own = self._credentials.project_id
            else:
                self._credentials, own = google.auth.default(SCOPES)
        except trouble.GoogleAuthError as error:
            raise ProviderRefused(Answer.CREDENTIALS, f"Google: {_first_line(error)}") from None
        except OSError as error:
            why = f"providers.gcp.credentials_file {file}: {error.strerror or type(error).__name__}"
            raise ProviderRefused(Answer.CREDENTIALS, why) from None
        except (ValueError, KeyError, TypeError, AttributeError):
            why = f"providers.gcp.credentials_file {file} holds no credentials of Google"
            raise ProviderRefused(Answer.CREDENTIALS, why) from None
        self._project = project or str(own or "")
        if not re.fullmatch(r"[a-z][a-z0-9:.-]{4,62}", self._project):
            why = f"providers.gcp.project is {self._project!r}, which is no project" if self._project else "is not set"
            raise ProviderRefused(Answer.CREDENTIALS, why if self._project else f"providers.gcp.project {why}")
        self._base = f"{(settings.get('endpoint') or ENDPOINT).rstrip('/')}/projects/{self._project}"
        self._threads = threading.local()
        self._refreshing = threading.Lock()

    # --- the questions ------------------------------------------------------------------------------------------------

    def create_worker(self, spec: WorkerSpec) -> str:
        """Insert one instance, and wait until that has succeeded."""
        wanted, zone = self._wanted(spec), self._zone(spec)
        handle = f"{zone}/{wanted['name']}"
        request = str(uuid.uuid5(_REQUESTS, f"{self.grid}/{spec.name}"))
        try:
            made = self._ask("POST", f"/zones/{zone}/instances", {"requestId": request}, wanted)
            self._await(zone, made)
        except _Conflict:
            pass  # by an earlier call
        there = self._look(f"/zones/{zone}/instances/{wanted['name']}", missing=True)
        if there is None:
            raise ProviderRefused(Answer.REFUSED, f"{spec.name} was created before, and has ended")
        if not self._is_ours(there):
            why = f"there is another instance called {wanted['name']} in {zone}, which is not a machine of this grid"
            raise ProviderRefused(Answer.REFUSED, why)
        return handle

    def terminate_worker(self, name: str, handle: str = "") -> bool:
        """Delete it, unless it is another grid's."""
        handles = [handle] if handle else [one.handle for one in self._instances() if one.name == name]
        done = False
        for one in handles:
            zone, _, instance = one.partition("/")
            if not instance.startswith(self._prefix) or not re.fullmatch("[a-z0-9-]+", zone):
                raise ProviderRefused(Answer.REFUSED, f"{one[:200]} is not a machine of this grid")
            found = self._ask("DELETE", f"/zones/{zone}/instances/{quote(instance, safe='')}", missing=True)
            done = done or found is not None
        return done

    def list_workers(self) -> list[Listed]:
        """Return all instances with this grid's label. Deletes those that have shut themselves down."""
        found = list(self._instances())
        for one in found:
            if one.ended:
                with suppress(ProviderRefused):  # the next list comes soon
                    self.terminate_worker(one.name, one.handle)
        return found

    def get_available_resources(self) -> dict[str, Any]:
        """Return the resources of instances of the configured types, and what the region's quotas leave; of all types
        of the zone, if none are configured."""
        zone = str(self.settings.get("zone") or "")
        if not zone:
            raise ProviderRefused(Answer.REFUSED, "providers.gcp.zone is not set")
        named = sorted({_parts(one)[0] for one in (self.settings.get("machine_types") or {}).values()})
        path = f"/zones/{zone}/machineTypes"
        if named:
            types = [self._ask("GET", f"{path}/{quote(one, safe='')}") for one in named]
        else:
            types = [one for page in self._pages(path) for one in page.get("items") or ()]
        region = self._ask("GET", f"/regions/{zone.rpartition('-')[0]}")
        try:
            return {
                "zone": zone,
                "types": {
                    one["name"]: {"cpus": one["guestCpus"], "memory": one["memoryMb"] << 20} for one in types if one
                },
                "quotas": {one["metric"]: one["limit"] - one["usage"] for one in (region or {}).get("quotas", ())},
            }
        except (KeyError, TypeError, AttributeError) as error:
            raise _unreadable(error) from None

    # --- what they need -----------------------------------------------------------------------------------------------

    @property
    def _prefix(self) -> str:
        return f"grid-{re.sub('[^a-z0-9-]', '-', self.grid.lower())}-"

    def _name(self, name: str) -> str:
        found = f"{self._prefix}{name}"
        if len(found) > NAME_MOST or not re.fullmatch("[a-z][a-z0-9-]*[a-z0-9]", found):
            raise ProviderRefused(
                Answer.REFUSED, f"an instance cannot be called {found[:100]!r}: give a shorter pool name"
            )
        return found

    def _zone(self, spec: WorkerSpec) -> str:
        zone = spec.zone or str(self.settings.get("zone") or "")
        if not re.fullmatch("[a-z0-9-]+", zone):
            raise ProviderRefused(Answer.REFUSED, f"no zone for pool {spec.pool}: set providers.gcp.zone, or its zones")
        return zone

    def _wanted(self, spec: WorkerSpec) -> dict[str, Any]:
        """The instance. Raises ProviderRefused."""
        said, zone, name = self.settings, self._zone(spec), self._name(spec.name)
        type, gpus = _parts(spec.type)
        life = spec.ends_by - spec.born - SOONER
        accelerators = (
            [{"acceleratorType": f"zones/{zone}/acceleratorTypes/{gpus}", "acceleratorCount": 1}] if gpus else []
        )
        image = str(spec.options.get("image") or said.get("image") or "")
        if not image:
            raise ProviderRefused(Answer.REFUSED, f"no image for pool {spec.pool}: set providers.gcp.image, or its own")
        return {
            "name": name,
            "machineType": f"zones/{zone}/machineTypes/{type}",
            "guestAccelerators": accelerators,
            "labels": {
                LABEL: self.grid,
                f"{LABEL}-machine": spec.name,
                f"{LABEL}-pool": spec.pool,
                f"{LABEL}-born": f"{spec.born:.0f}",
                f"{LABEL}-ends-by": f"{spec.ends_by:.0f}",
            },
            "disks": [{"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": image}}],
            "networkInterfaces": [
                {
                    "network": str(said.get("network") or "global/networks/default"),
                    "accessConfigs": [{"type": "ONE_TO_ONE_NAT"}],
                }
            ],
            "metadata": {
                "items": [
                    {"key": "startup-script", "value": startup_script(spec, SCRIPT_MOST, "gcp", f"{zone}/{name}")}
                ]
            },
            "scheduling": {
                "maxRunDuration": {"seconds": min(LIFE_MOST, max(LIFE_LEAST, round(life)))},
                "instanceTerminationAction": "DELETE",
                "provisioningModel": "SPOT" if spec.spot else "STANDARD",
                "onHostMaintenance": "TERMINATE" if spec.spot or gpus or spec.resources.gpu else "MIGRATE",
                "automaticRestart": False,
            },
        }

    def _await(self, zone: str, operation: Any) -> None:
        """Wait for an operation of this zone. Raises ProviderRefused, with LOST where it takes too long."""
        deadline = time.monotonic() + WAIT
        while True:
            try:
                if (failed := operation.get("error")) is not None:
                    errors = failed["errors"]
                    codes = tuple(str(one.get("code", "")) for one in errors)
                    text = str(errors[0].get("message", "")) or codes[0]
                    if "RESOURCE_ALREADY_EXISTS" in codes:
                        raise _Conflict(Answer.REFUSED, text)
                    raise ProviderRefused(kind_of(codes, 0, text), f"Compute Engine: {text} ({codes[0]})")
                if operation["status"] == "DONE":
                    return
                path = f"/zones/{zone}/operations/{quote(str(operation['name']), safe='')}"
            except (KeyError, IndexError, TypeError, AttributeError) as error:
                raise _unreadable(error) from None
            if time.monotonic() > deadline:
                raise ProviderRefused(Answer.LOST, f"Compute Engine has not created it within {WAIT:g} s")
            time.sleep(LOOK)
            operation = self._look(path)

    def _look(self, path: str, missing: bool = False) -> Any:
        """The answer about what was asked for. Raises ProviderRefused with LOST: a refusal to answer, as by throttling,
        says nothing about that."""
        try:
            return self._ask("GET", path, missing=missing)
        except ProviderRefused as error:
            raise ProviderRefused(Answer.LOST, f"{error.text}; it was asked to create the instance before") from None

    def _instances(self) -> Iterator[Listed]:
        """Yield all instances of this grid, also those that have shut themselves down (`ended`)."""
        for page in self._pages("/aggregated/instances", {"filter": f"labels.{LABEL}={self.grid}"}):
            try:
                for zone, scope in page["items"].items():
                    code = (scope.get("warning") or {}).get("code", "")
                    if code not in ("", "NO_RESULTS_ON_PAGE"):
                        raise ProviderRefused(Answer.LOST, f"Compute Engine does not list {zone}: {code}")
                    yield from (_listed(one) for one in scope.get("instances") or () if self._is_ours(one))
                if page.get("unreachables"):
                    raise ProviderRefused(Answer.LOST, f"Compute Engine does not list {page['unreachables'][0]}")
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                raise _unreadable(error) from None

    def _is_ours(self, one: Any) -> bool:
        return bool((one.get("labels") or {}).get(LABEL) == self.grid)

    def _pages(self, path: str, words: Mapping[str, str] | None = None) -> Iterator[Any]:
        asked = {"maxResults": "500", **(words or {})}
        for _ in range(PAGES_MOST):
            page = self._ask("GET", path, asked)
            yield page
            following = page.get("nextPageToken") if isinstance(page, dict) else None
            if not following:
                return
            asked["pageToken"] = str(following)
        raise ProviderRefused(Answer.LOST, f"Compute Engine lists more than {PAGES_MOST} pages")

    # --- calls --------------------------------------------------------------------------------------------------------

    def _ask(
        self, method: str, path: str, words: Mapping[str, str] | None = None, body: Any = None, missing: bool = False
    ) -> Any:
        """The answer to one call. `missing`: None where there is no such thing. Raises ProviderRefused."""
        try:
            answer = self._send(method, path, words, body, self._token())
            if answer.status_code == 401:  # it was revoked before its time
                answer = self._send(method, path, words, body, self._token(anew=True))
            status, data = answer.status_code, answer.json() if answer.content else {}
        except trouble.GoogleAuthError as error:
            sure = isinstance(error, trouble.RefreshError) and not getattr(error, "retryable", False)
            raise ProviderRefused(
                Answer.CREDENTIALS if sure else Answer.LOST, f"Google: {_first_line(error)}"
            ) from None
        except (requests.RequestException, ValueError) as error:
            why = f"Compute Engine gives no answer that can be read: {type(error).__name__}: {_first_line(error)}"
            raise ProviderRefused(Answer.LOST, why) from None
        if status < 300 and isinstance(data, dict):
            return data
        if missing and status == 404:
            return None
        raise _refused(status, data)

    def _send(
        self, method: str, path: str, words: Mapping[str, str] | None, body: Any, token: str
    ) -> requests.Response:
        """Send a request by this thread's connections; not by Google's session, which also requests the allowed regions
        of the account, at an address that is not configured."""
        session: requests.Session | None = getattr(self._threads, "session", None)
        if session is None:
            session = self._threads.session = requests.Session()
        headers = {"Authorization": f"Bearer {token}"}
        return session.request(method, self._base + path, params=words, json=body, headers=headers, timeout=TIMEOUTS)

    def _token(self, anew: bool = False) -> str:
        """The token of all threads, refreshed by one of them at a time."""
        with self._refreshing:
            if anew or not self._credentials.valid:
                self._credentials.refresh(Request())
            return str(self._credentials.token)


class _Conflict(ProviderRefused):
    """There is an instance of this name."""


def _unreadable(error: Exception) -> ProviderRefused:
    return ProviderRefused(Answer.LOST, f"Compute Engine answers what cannot be used: {type(error).__name__}: {error}")


def _refused(status: int, data: Any) -> ProviderRefused:
    said = data.get("error") if isinstance(data, dict) else None
    if not isinstance(said, dict):
        return ProviderRefused(Answer.LOST if status >= 500 else Answer.REFUSED, f"Compute Engine answers {status}")
    found = [one for one in said.get("errors") or () if isinstance(one, dict)]
    codes = tuple(str(one.get("reason", "")) for one in found)
    text = str(said.get("message", ""))[:500] or str(status)
    if status == 409 and "alreadyExists" in codes:
        return _Conflict(Answer.REFUSED, text)
    return ProviderRefused(kind_of(codes, status, text), f"Compute Engine: {text} ({', '.join(codes) or status})")


def _listed(one: Mapping[str, Any]) -> Listed:
    labels, zone = one.get("labels") or {}, str(one["zone"]).rpartition("/")[2]
    return Listed(
        handle=f"{zone}/{one['name']}",
        name=str(labels.get(f"{LABEL}-machine", "")),
        pool=str(labels.get(f"{LABEL}-pool", "")),
        type=str(one.get("machineType", "")).rpartition("/")[2],
        zone=zone,
        born=_seconds(labels.get(f"{LABEL}-born")),
        ends_by=_seconds(labels.get(f"{LABEL}-ends-by")),
        ending=one["status"] in ("STOPPING", "SUSPENDING", "PENDING_STOP"),
        ended=one["status"] in _OFF,
        failed=one["status"] in _OFF,
        why="it was shut down, by itself or by Compute Engine" if one["status"] in _OFF else "",
    )


def _parts(type: str) -> tuple[str, str]:
    """A machine type and the GPU that is added to it, as in `n1-standard-4-nvidia-tesla-t4`."""
    machine, gpu, model = type.partition("-nvidia-")
    return machine, f"nvidia-{model}" if gpu else ""


def _seconds(text: Any) -> float:
    """Parse a time of a label; 0 if it cannot be parsed."""
    with suppress(ValueError, TypeError):
        value = float(text)
        if 0 <= value < 1e12:
            return value
    return 0.0


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
