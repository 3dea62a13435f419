"""The shell around the ledger's machines: commands become questions to providers, and their answers become events. The
record of a machine is on disk before its provider is asked, since the driver performs commands only after the commit.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import msgspec

from distributed_grid.coordinator.core.commands import Event
from distributed_grid.coordinator.core.scaling.events import (
    CreateMachine,
    EndMachine,
    ListMachines,
    MachineAnswered,
    MachinesListed,
)
from distributed_grid.coordinator.core.scaling.state import Answer, CallKind, Listed
from distributed_grid.coordinator.providers.base import ProviderRefused, WorkerSpec
from distributed_grid.coordinator.providers.client import ProviderChild
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.identity import Role
from distributed_grid.protocol.scaling.machines import Machine
from distributed_grid.runtime.logs import get_logger

if TYPE_CHECKING:
    from distributed_grid.coordinator.access.ca import Pki

BY = "(grid)"
"""The name under which the tokens of machines are created."""
TOKEN_LEAST = 60.0
"""Minimum validity of a machine's token (s)."""
Handle = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
"""What a provider may call a machine."""
LIST_MOST = 10_000
"""Maximum number of machines of one list."""

log = get_logger("machines")


class MachineService:
    """`providers` are settings by provider, `pools` what each pool says for its provider, with its `labels`. `put`
    takes events; `url` says where the coordinator is; `clock` is grid time."""

    def __init__(
        self,
        grid: str,
        put: Callable[[Event], None],
        pki: "Pki | None",
        url: Callable[[], str],
        providers: Mapping[str, dict[str, Any]],
        pools: Mapping[str, dict[str, Any]],
        clock: Callable[[], float],
    ) -> None:
        self._grid, self._put, self._pki, self._url, self._clock = grid, put, pki, url, clock
        self._providers, self._pools = providers, pools
        self._children: dict[str, ProviderChild] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._creating: dict[str, list[int]] = {}
        """The calls that wait for the creation of a machine, by its name."""

    def configure(self, providers: Mapping[str, dict[str, Any]], pools: Mapping[str, dict[str, Any]]) -> None:
        """Restart the providers with the new configuration."""
        self._providers, self._pools = providers, pools
        for child in self._children.values():
            self._do(child.close())
        self._children = {}

    def perform(self, command: CreateMachine | EndMachine | ListMachines) -> None:
        """Send a request to a provider; the answer comes as an event."""
        match command:
            case CreateMachine(machine):
                self._do(self._create(machine))
            case EndMachine():
                self._do(self._end(command))
            case ListMachines():
                self._do(self._list(command))

    async def close(self) -> None:
        """Send no more requests. Machines go on."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(
            *self._tasks, *(child.close() for child in self._children.values()), return_exceptions=True
        )

    def _do(self, what: Any) -> None:
        task = asyncio.ensure_future(what)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a provider was not asked", why=repr(error))

    def _child(self, provider: str) -> ProviderChild:
        if (found := self._children.get(provider)) is None:
            settings = self._providers.get(provider, {})
            found = self._children[provider] = ProviderChild(provider, self._grid, settings)
        return found

    # --- the three questions ------------------------------------------------------------------------------------------

    async def _create(self, machine: Machine) -> None:
        """Send a request once; the answer is also for calls that come meanwhile."""
        calls = self._creating.setdefault(machine.name, [])
        calls.append(machine.calls)
        if len(calls) > 1:
            return
        try:
            found, handle, text = await self._created(machine)
        finally:
            del self._creating[machine.name]
        for number in calls:
            self._put(MachineAnswered(machine.name, CallKind.CREATE, number, found, handle, text[:1000]))

    async def _created(self, machine: Machine) -> tuple[Answer, str, str]:
        """The answer, what the provider calls the machine, and why it was not created."""
        handle, text = "", ""
        try:
            spec = self._spec(machine)
            handle = await self._child(machine.provider).ask("create", Handle, spec=spec)
            found = Answer.DONE
        except ProviderRefused as error:
            found, text = error.answer, error.text
        except GridError as error:
            found, text = Answer.LOST, f"{error.what}: {error.why}"
        if found is not Answer.DONE:
            log.warning("a machine was not created", machine=machine.name, provider=machine.provider, why=text)
        return found, handle, text

    def _spec(self, machine: Machine) -> WorkerSpec:
        pool = self._pools.get(machine.pool, {})
        labels = {**pool.get("labels", {}), "pool": machine.pool}
        invitation = ""
        if self._pki is not None:
            # For this one machine, used once, and for as long as it may take to be begun and to join. Asked again, a
            # provider is told the same token: with other user data it takes the call for another one, or refuses it.
            # What is left is counted in grid time, which may be far from the wall clock of the certificates.
            left = machine.born + machine.join_within + machine.queue_within - self._clock()
            life, now = max(TOKEN_LEAST, left), time.time()
            seed = self._pki.authority.secret_of(f"token of machine {machine.name} of {machine.wanted!r}")
            token = self._pki.identities.mint(
                self._pki.authority.pin, Role.AGENT, machine.name, labels, 1, life, BY, now, seed
            )
            invitation = f"grid://{urlsplit(self._url()).netloc}/{token}"
        return WorkerSpec(
            name=machine.name,
            pool=machine.pool,
            type=machine.type,
            zone=machine.zone,
            spot=machine.spot,
            born=machine.born,
            age=max(0.0, self._clock() - machine.born),
            ends_by=machine.ends_by,
            join_within=machine.join_within,
            abandoned_after=machine.abandoned_after,
            resources=machine.resources,
            labels=labels,
            url=self._url(),
            invitation=invitation,
            options=pool.get("options", {}),
        )

    async def _end(self, command: EndMachine) -> None:
        text = ""
        try:
            there = await self._child(command.provider).ask("end", bool, name=command.name, handle=command.handle)
            found = Answer.DONE if there else Answer.GONE
        except ProviderRefused as error:
            found, text = error.answer, error.text
            log.warning("a machine was not ended", machine=command.name, provider=command.provider, why=text)
        if command.number:
            self._put(MachineAnswered(command.name, CallKind.END, command.number, found, "", text[:1000]))

    async def _list(self, command: ListMachines) -> None:
        provider, number = command.provider, command.number
        try:
            listed = await self._child(provider).ask("list", list[Listed])
            if len(listed) > LIST_MOST:
                raise ProviderRefused(Answer.LOST, f"it lists {len(listed)} machines, and {LIST_MOST} are the most")
            event = MachinesListed(provider, number, tuple(listed))
        except ProviderRefused as error:
            refused = error.answer is Answer.CREDENTIALS
            event = MachinesListed(provider, number, None, error.text[:500] or error.answer.value, refused)
        self._put(event)
