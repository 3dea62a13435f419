"""Machines as containers of the Docker engine on this machine, or of an engine that has its API, each with an agent.

A machine's name is the name of its container, and what the grid has to know of it is in labels. The machine's
instructions, the invitation included, are copied into the container before it starts, so they are in no environment and
on no command line. A container that has ended is kept for a while, with its log.
"""

import io
import re
import tarfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import docker
import msgspec
import requests
from docker.errors import APIError, DockerException, ImageNotFound, NotFound

from distributed_grid.coordinator.core.scaling.state import Answer, Listed
from distributed_grid.coordinator.providers.base import CloudProviderBase, ProviderRefused, WorkerSpec, machine_json
from distributed_grid.protocol.resources import MILLI

SECONDS = 35
"""Time-out of a request to the engine (s): less than what the coordinator waits for."""
FOLDER = "grid-machine"
"""The directory of the machine, below the root of its container."""
GRACE = 8
"""Time for a machine to end what it has started, before its container is killed (s)."""
KEPT = 3600.0
"""For how long a container that has ended is kept (s)."""
BEGUN_WITHIN = 90.0
"""A container that was created so long ago and never started is left of a call that was cut off, and is removed (s)."""
LINES = 3
"""Number of lines of its log that are told of one that has failed."""
ID, MACHINE, POOL, TYPE, BORN, ENDS_BY = (
    f"distributed-grid.{word}" for word in ("grid", "machine", "pool", "type", "born", "ends-by")
)
LOCAL = ("localhost", "127.0.0.1", "::1")
_CODE = re.compile(r"exited \((-?\d+)\)", re.IGNORECASE)


class DockerLocalProvider(CloudProviderBase):
    """`settings` as `providers.docker_local` of the configuration."""

    def __init__(self, grid: str, settings: Mapping[str, Any]) -> None:
        super().__init__(grid, settings)
        self._lock = threading.Lock()
        self._engine: Any = None
        self._ends: dict[str, str] = {}
        """How containers ended that are kept, by id."""

    def create_worker(self, spec: WorkerSpec) -> str:
        """Create and start its container, unless there is one of its name; the container's id."""
        with self._lock:  # an earlier call for it may not be over yet
            try:
                container = self._find(spec.name) or self._create(spec)
                match container.status:
                    case "created" | "configured" | "initialized":
                        self._start(container, spec)
                    case "running" | "restarting" | "paused":
                        pass
                    case over:
                        raise ProviderRefused(Answer.REFUSED, f"{spec.name} has ended: its container is {over}")
                return str(container.id)
            except (DockerException, requests.RequestException) as error:
                raise self._refused(error) from None

    def _create(self, spec: WorkerSpec) -> Any:
        image = str(spec.options.get("image") or self.settings.get("image") or "")
        if not image:
            raise ProviderRefused(Answer.BAD_TYPE, "providers.docker_local.image is not set, nor the pool's image")
        if spec.resources.gpu:
            raise ProviderRefused(Answer.BAD_TYPE, "containers of docker_local get no GPUs")
        network = str(self.settings.get("network") or "host")
        if network != "host" and urlsplit(spec.url).hostname in LOCAL:
            why = f"from the network {network!r} nobody reaches the coordinator at {spec.url}"
            raise ProviderRefused(Answer.REFUSED, f"{why}: set coordinator.url, or network: host")
        given: dict[str, Any] = {
            "image": image,
            "command": [str(self.settings.get("python") or "python3"), *_MODULE, f"/{FOLDER}"],
            "entrypoint": [],
            "name": spec.name,
            "hostname": spec.name if network != "host" else None,
            "user": "0",  # as a machine of its own: the agent gives up what it does not need
            "labels": {
                ID: self.grid, MACHINE: spec.name, POOL: spec.pool, TYPE: spec.type,
                BORN: f"{spec.born:.3f}", ENDS_BY: f"{spec.ends_by:.3f}",
            },
            "network_mode": network,
            "volumes": [str(one) for one in self.settings.get("volumes") or ()],
            "nano_cpus": spec.resources.cpu * (1_000_000_000 // MILLI),
            "mem_limit": spec.resources.memory,
            "restart_policy": {"Name": "no"},
        }  # fmt: skip
        containers = self._client().containers
        try:
            return containers.create(**given)
        except ImageNotFound:
            self._pull(image)
            return containers.create(**given)
        except APIError as error:
            found = self._find(spec.name) if error.status_code == 409 else None
            if found is None:
                raise
            return found

    def _pull(self, image: str) -> None:
        try:
            self._client().images.pull(image)
        except APIError as error:
            why = f"the image {image} is not here, and cannot be pulled: {error.explanation or error}"
            raise ProviderRefused(Answer.BAD_TYPE, why) from None

    def _start(self, container: Any, spec: WorkerSpec) -> None:
        told = {**machine_json(spec), "handle": container.id}
        files = {"machine.json": msgspec.json.encode(told).decode()}
        if spec.invitation:
            files["invitation"] = spec.invitation + "\n"
        if not container.put_archive("/", _archive(files)):
            raise ProviderRefused(Answer.LOST, f"{spec.name} was not told what it is")
        try:
            container.start()
        except APIError as error:
            with suppress(APIError):
                container.remove(force=True)
            raise ProviderRefused(Answer.REFUSED, f"it does not start: {error.explanation or error}") from None

    def terminate_worker(self, name: str, handle: str = "") -> bool:
        """Stop and remove its container."""
        try:
            container = self._find(name)
            if container is None or handle not in ("", container.id):
                return False
            there = container.status in ("running", "restarting", "paused")
            with suppress(NotFound):
                if there:
                    container.stop(timeout=GRACE)
                container.remove(force=True, v=True)
            return there
        except (DockerException, requests.RequestException) as error:
            raise self._refused(error) from None

    def list_workers(self) -> list[Listed]:
        """Return all containers of this grid, with those that have ended lately: one call, and one for each new end."""
        try:
            found = self._client().containers.list(all=True, sparse=True, filters={"label": f"{ID}={self.grid}"})
            return [one for container in found if (one := self._listed(container)) is not None]
        except (DockerException, requests.RequestException) as error:
            raise self._refused(error) from None

    def _listed(self, container: Any) -> Listed | None:
        labels, status = container.attrs.get("Labels") or {}, str(container.attrs.get("State", "")).lower()
        one = Listed(
            handle=container.id,
            name=labels.get(MACHINE, ""),
            pool=labels.get(POOL, ""),
            type=labels.get(TYPE, ""),
            born=_seconds(labels.get(BORN)),
            ends_by=_seconds(labels.get(ENDS_BY)),
        )
        age = time.time() - _seconds(container.attrs.get("Created"))
        match status:
            case "running" | "restarting" | "paused":
                return one
            case "created" | "configured" | "initialized":  # it is not there before it runs: the call is made again
                if age > BEGUN_WITHIN:
                    self._remove(container)
                return None
            case "removing" | "stopping":
                return msgspec.structs.replace(one, ending=True)
        if (why := self._ends.get(container.id)) is None:
            why = self._ends[container.id] = self._end(container)
        if age > KEPT and time.time() > one.ends_by:
            self._remove(container)
        return msgspec.structs.replace(one, ended=True, failed=True, why=why)

    def _end(self, container: Any) -> str:
        """Describe how a container has ended, with its last output."""
        said = str(container.attrs.get("Status", "")) or "it has ended"
        code, last = _CODE.search(said), ""
        with suppress(DockerException, requests.RequestException):
            last = container.logs(tail=LINES).decode(errors="replace").strip()
        shown = " | ".join(line.strip()[:200] for line in last.splitlines()[-LINES:])
        return f"its container has ended{f' with code {code[1]}' if code else ''}{f': {shown}' if shown else ''}"

    def _remove(self, container: Any) -> None:
        self._ends.pop(container.id, None)
        with suppress(DockerException, requests.RequestException):
            container.remove(force=True, v=True)

    def get_available_resources(self) -> dict[str, Any]:
        """Return the resources of the engine's machine."""
        try:
            said = self._client().info()
        except (DockerException, requests.RequestException) as error:
            raise self._refused(error) from None
        return {"cpus": said.get("NCPU", 0), "memory": said.get("MemTotal", 0)}

    # --- the engine ---------------------------------------------------------------------------------------------------

    def _client(self) -> Any:
        """The engine's client; its first request says whether there is one."""
        if self._engine is None:
            socket = str(self.settings.get("socket") or "")
            if socket.startswith("/"):
                socket = f"unix://{socket}"
            self._engine = (
                docker.DockerClient(base_url=socket, timeout=SECONDS) if socket else docker.from_env(timeout=SECONDS)
            )
        return self._engine

    def _find(self, name: str) -> Any:
        """Return the container of a machine of this grid; None: there is none."""
        if not name:
            return None
        try:
            found = self._client().containers.get(name)
        except NotFound:
            return None
        if found.labels.get(ID) != self.grid or found.name != name:
            why = f"a container {name} is there already, and is not of this grid"
            raise ProviderRefused(Answer.REFUSED, why)
        return found

    def _refused(self, error: Exception) -> ProviderRefused:
        """Convert an error of the engine, or of the connection to it."""
        if isinstance(error, APIError):
            text = f"the engine says: {error.explanation or error}"
            match error.status_code:
                case 401 | 403:
                    return ProviderRefused(Answer.CREDENTIALS, text)
                case 404:
                    return ProviderRefused(Answer.BAD_TYPE, text)
            return ProviderRefused(Answer.REFUSED, text)
        self._engine = None
        text = f"the engine does not answer: {error}"
        return ProviderRefused(Answer.CREDENTIALS if "Permission denied" in str(error) else Answer.LOST, text[:500])


_MODULE = ("-m", "distributed_grid.agent.machine")


def _archive(files: Mapping[str, str]) -> bytes:
    """A directory with these files, for root alone."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        folder = tarfile.TarInfo(FOLDER)
        folder.type, folder.mode, folder.mtime = tarfile.DIRTYPE, 0o700, int(time.time())
        tar.addfile(folder)
        for name, text in files.items():
            one = tarfile.TarInfo(f"{FOLDER}/{name}")
            one.size, one.mode, one.mtime = len(text.encode()), 0o600, int(time.time())
            tar.addfile(one, io.BytesIO(text.encode()))
    return out.getvalue()


def _seconds(said: Any) -> float:
    """Seconds since the epoch; 0: not known."""
    try:
        found = float(said)
    except (TypeError, ValueError):
        return 0.0
    return found if 0 < found < 1e11 else 0.0
