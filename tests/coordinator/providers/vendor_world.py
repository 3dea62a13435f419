"""The world of machines of tests/coordinator/core/scaling/cloud.py, with a real provider over the double of a vendor in
the place of its cloud: real ledger, real provider, real HTTP; simulated time, agents and disk.
"""

from typing import ClassVar, Protocol

from distributed_grid.coordinator.core.scaling.events import MachinesListed
from distributed_grid.coordinator.core.scaling.state import Answer
from distributed_grid.coordinator.providers.base import CloudProviderBase, ProviderRefused, WorkerSpec
from distributed_grid.protocol.scaling.machines import Machine
from tests.coordinator.core.scaling.cloud import VM, World

CREATE = ("capacity", "quota", "throttled", "unavailable", "before", "after", "rubbish")
OTHER = ("throttled", "unavailable", "before", "after", "rubbish")


class Double(Protocol):
    """What a vendor's double shows besides its API."""

    def machines(self) -> dict[str, str]:
        """The names of the machines that are there, by handle."""

    def shut_down(self, handle: str) -> None:
        """The machine shuts itself down."""


class VendorWorld(World):
    """`fault` is for the double: it goes wrong as often as the rest of this world. `zones` and `types`: the vendor's,
    by those of this world."""

    zones: ClassVar = {"n": "a", "s": "b"}
    types: ClassVar = {"x": "c5.xlarge", "y": "c5a.xlarge"}

    def __init__(self, seed: int, faults: float, provider: CloudProviderBase, double: Double) -> None:
        self.provider, self.double = provider, double
        self.asked: dict[str, Machine] = {}
        super().__init__(seed, faults)

    def fault(self, action: str) -> str:
        if self.chance.random() >= self.faults / 2:
            return ""
        return self.chance.choice(CREATE if action == "create" else OTHER)

    def sync(self) -> None:
        """What is there, and what is not any more."""
        there = self.double.machines()
        for handle, name in there.items():
            if handle not in self.vms:
                vm = self.vms[handle] = VM(handle, self.asked[name], self.now)
                if self.chance.random() >= self.faults / 2:
                    self.at(self.chance.uniform(5, 60), lambda vm=vm: self.boot(vm))  # type: ignore[misc]
        for vm in self.alive():
            if vm.handle not in there:
                super().end_vm(vm)
        names = [vm.machine.name for vm in self.alive()]
        assert len(names) == len(set(names)), f"two of one name: {names}"
        self.check_budget()

    def end_vm(self, vm: VM) -> None:
        if vm.alive:
            self.double.shut_down(vm.handle)
            super().end_vm(vm)

    def create(self, machine: Machine) -> tuple[Answer, str]:
        assert machine.name in self.machines, "recorded before the call"
        self.asked[machine.name] = machine
        spec = WorkerSpec(
            name=machine.name,
            pool=machine.pool,
            type=self.types[machine.type],
            zone=self.zones[machine.zone],
            born=machine.born,
            ends_by=machine.ends_by,
        )
        try:
            answer = Answer.DONE, self.provider.create_worker(spec)
        except ProviderRefused as refused:
            answer = refused.answer, ""
        self.sync()
        return answer

    def end(self, name: str, handle: str) -> tuple[Answer, str]:
        try:
            found = Answer.DONE if self.provider.terminate_worker(name, handle) else Answer.GONE
        except ProviderRefused as refused:
            found = refused.answer
        self.sync()
        return found, ""

    def answer_list(self, provider: str, number: int) -> None:
        epoch = self.disk.epoch
        try:
            event = MachinesListed(provider, number, tuple(self.provider.list_workers()))
        except ProviderRefused as refused:
            event = MachinesListed(provider, number, None, refused.text)
        self.sync()
        for _ in range(2 if self.chance.random() < self.faults else 1):
            self.at(self.delay(), lambda: self.tell(event) if self.disk.epoch == epoch else None)
