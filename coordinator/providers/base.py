"""The interface of providers of machines, and the specification of a machine."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import msgspec

from distributed_grid.coordinator.core.scaling.state import Answer, Listed
from distributed_grid.protocol.resources import MILLI, Resources


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A machine to create. `name` is the token of the call: asked for again, the same machine is given. `url` of the
    coordinator, and an `invitation` to join with, where the grid has an authority. Times are grid time (seconds since
    the epoch, which may be far from this machine's clock), durations seconds. `age`: since it was asked for first.
    `options`: what its pool says for its provider."""

    name: str
    pool: str
    type: str = ""
    zone: str = ""
    spot: bool = False
    born: float = 0.0
    age: float = 0.0
    ends_by: float = 0.0
    join_within: float = 600.0
    abandoned_after: float = 900.0
    resources: Resources = Resources()
    labels: dict[str, str] = {}
    url: str = ""
    invitation: str = ""
    options: dict[str, Any] = {}


def machine_json(spec: WorkerSpec) -> dict[str, Any]:
    """Return the settings of the program on the machine (agent/machine.py), and its description in a list. The
    invitation is not part of them: it is in a file of its own, which is removed when it was used."""
    return {
        "name": spec.name,
        "url": spec.url,
        "ends_by": spec.ends_by,
        "life": max(0.0, spec.ends_by - spec.born) if spec.born else 0.0,
        "join_within": spec.join_within,
        "abandoned_after": spec.abandoned_after,
        "labels": spec.labels,
        "cores": -(-spec.resources.cpu // MILLI),
        "memory": spec.resources.memory,
        "gpus": spec.resources.gpu // MILLI,
        "trust": str(spec.options.get("trust", "owner")),
        "pool": spec.pool,
        "type": spec.type,
        "zone": spec.zone,
        "born": spec.born,
    }


class ProviderRefused(Exception):
    """A provider refuses; `answer`: the kind of refusal, `text`: the reason."""

    def __init__(self, answer: Answer, text: str) -> None:
        super().__init__(text)
        self.answer, self.text = answer, text


class CloudProviderBase(ABC):
    """A provider of machines. Its methods are called from several threads, may take as long as they need (the caller
    gives up after a while, and repeats the call), and raise ProviderRefused. `grid` is the id of the grid, by which its
    machines are told from those of others; `settings` are the provider's in the configuration."""

    def __init__(self, grid: str, settings: Mapping[str, Any]) -> None:
        self.grid, self.settings = grid, settings

    @abstractmethod
    def create_worker(self, spec: WorkerSpec) -> str:
        """Create this machine unless it was created before; what the provider calls it."""

    @abstractmethod
    def terminate_worker(self, name: str, handle: str = "") -> bool:
        """End the machine of this name, or of this handle if that is not empty; False: there is none. One that is still
        being created by an earlier call is ended, too, or is in the next list."""

    @abstractmethod
    def list_workers(self) -> list[Listed]:
        """Return all machines of this grid that exist, or are coming; and, as `ended`, those of which it is known how
        they ended."""

    def get_worker_status(self, name: str) -> str:
        """`running`, `ending`, or `gone`."""
        found = next((one for one in self.list_workers() if one.name == name and not one.ended), None)
        return "gone" if found is None else "ending" if found.ending else "running"

    def get_available_resources(self) -> dict[str, Any]:
        """Return what the provider could still create, as far as it says; empty: it does not say."""
        return {}
