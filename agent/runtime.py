"""The running agent: puts events from the coordinator and the launcher into the table, and performs the table's
commands. Measurement, bulk data and the connection itself are in modules of their own."""

import asyncio
import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from distributed_grid import __version__
from distributed_grid.agent.control import Control, described
from distributed_grid.agent.core import slack
from distributed_grid.agent.core.buckets import Aggregator
from distributed_grid.agent.core.commands import (
    Command,
    Event,
    Forget,
    Kill,
    Prepare,
    Report,
    Run,
    SendSignal,
    SetLimit,
    SetNiceness,
    Withdraw,
)
from distributed_grid.agent.core.spare.lender import Lender
from distributed_grid.agent.core.spare.thresholds import lendable
from distributed_grid.agent.core.table import Table
from distributed_grid.agent.core.usage import EVERY, UsageReporter
from distributed_grid.agent.data.blobs import BlobCache
from distributed_grid.agent.data.disk import Bounds, Disk, Retention
from distributed_grid.agent.data.inputs import Inputs
from distributed_grid.agent.data.job_files import JobFiles
from distributed_grid.agent.data.transfer import DataConnection, Outputs
from distributed_grid.agent.fencing import Fence
from distributed_grid.agent.launch import raylet, workdir
from distributed_grid.agent.launch.isolation import AGENT, RunAs, end_proof
from distributed_grid.agent.launch.launcher import Launcher
from distributed_grid.agent.launch.raylet import RaySettings
from distributed_grid.agent.launch.staging import Staging
from distributed_grid.agent.launch.supervisor import facts_after, facts_while
from distributed_grid.agent.owner_policy import OwnerControl
from distributed_grid.agent.readers import Readers
from distributed_grid.agent.renewal import Renewal
from distributed_grid.agent.sampling.probe import Meter, Probe
from distributed_grid.agent.session import CannotConnect, Disconnected, Session, back_off, dial
from distributed_grid.agent.settings import NodeSettings
from distributed_grid.agent.supervisor.slots import is_private
from distributed_grid.identity.credentials import IDENTITY
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.jobs import PASSED_ON
from distributed_grid.protocol.link import PROTOCOL
from distributed_grid.protocol.messages import (
    Buckets,
    BucketsKept,
    Exited,
    Heartbeat,
    Hello,
    InEffect,
    Inventory,
    Launch,
    NewCertificate,
    NewSettings,
    Noted,
    OpenData,
    Refused,
    Renewed,
    Stale,
    Stop,
    Welcome,
)
from distributed_grid.protocol.nodes import Known, Layer, NodeFacts, Offer, Sample
from distributed_grid.protocol.resources import Grant, Resources
from distributed_grid.runtime.logs import get_logger
from distributed_grid.runtime.unix import boot_clock


@dataclass(frozen=True)
class RuntimeSettings:
    """An agent's coordinator and directory, retention, the user of its jobs, the environment they inherit, how it runs
    Ray, which other user of this machine may run its coordinator, and why its jobs are hidden from it."""

    url: str
    state_dir: Path
    keep: Bounds = Bounds()
    run_as: str = AGENT
    environment: tuple[str, ...] = PASSED_ON
    ray: RaySettings = RaySettings()
    trusts: str = ""
    hidden: str = ""


STEADY = 10.0
"""Seconds of connection after which the back-off is reset."""
OLDER = "the supervisor of this node's jobs is of an older release, which holds no successors"

log = get_logger("agent")


class Runtime:
    """One agent. `run` until it is cancelled, or CannotConnect says that the coordinator will never accept it."""

    def __init__(
        self, place: RuntimeSettings, facts: NodeFacts, settings: NodeSettings, probe: Probe, launcher: Launcher
    ) -> None:
        self._place = place
        self._settings = settings
        self._facts = self._own_facts = facts
        self._dir = place.state_dir.absolute()  # jobs run elsewhere
        self.launcher = launcher
        self.table = Table(facts)
        self._lender = Lender(settings.limits, facts)
        self._usage = UsageReporter(min(EVERY, 5 * settings.interval))
        self._buckets = Aggregator()
        self._slack_taken = asyncio.Event()
        """Something that runs on cores of others was launched."""
        self._probe = probe
        self._meter = Meter(probe, settings.interval, boot_clock, self._measured, log.warning)
        self._readers = Readers(launcher, self.table, self._say)
        self._outputs = Outputs(self._dir, self.table.runs, self._readers.asked)
        self._inputs = Inputs(self._dir, self.feed, launcher.end_input)
        self._files = JobFiles(self._dir)
        hello = partial(self._hello, "agent-data")
        self._data = DataConnection(
            place.url,
            self._dir,
            self._outputs,
            self._inputs,
            launcher.slots,
            self._files,
            hello,
            log.warning,
            place.trusts,
        )
        self._disk = Disk(self._dir, self._openness_changed)
        self._owner = OwnerControl(
            settings.interval,
            settings.limits,
            facts,
            launcher,
            self.table,
            self.feed,
            self._say,
            self._openness_changed,
        )
        about = lambda: described(self._facts, place.url, self._session, launcher, self.table, self._lender.offered())  # noqa: E731
        self._control = Control(self._dir, launcher, self.table, about, self._owner.take_back, self._openness_changed)
        blobs = BlobCache(self._dir / "blobs", self._data.part)
        self._staging = Staging(
            self._dir,
            facts.name,
            self._meter,
            blobs,
            self._disk,
            self._verify,
            self.feed,
            RunAs(place.run_as),
            workdir.inherited(os.environ, place.environment),
            place.ray,
            launcher,
            self._files,
            probe.gpus.environment,
        )
        self._renewal = Renewal(self._dir / IDENTITY, place.url, lambda: self._session)
        self._session: Session | None = None
        self._fence = Fence(self._dir, self.table)
        self._asked = 0.0
        """When the newest heartbeat that asks for renewal was sent."""
        self._offer_due = False
        self._clearing: set[asyncio.Task[None]] = set()

    # --- life ---------------------------------------------------------------------------------------------------------

    async def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Adopt what runs on this node, measure, then serve the coordinator. `ready` is called when the agent is in
        charge of the node. Raises CannotConnect if retrying is pointless."""
        self._adopt(await self.launcher.start())
        nameless = self._facts.nameless or self.launcher.nameless
        ends = end_proof(self._facts.walls, self._place.run_as, self.launcher.grouped)
        self._facts = msgspec.structs.replace(self._facts, limits=self.launcher.limits, nameless=nameless, ends=ends)
        self._own_facts = self._facts
        self.launcher.loss_changed, self.launcher.noted = self._loss_changed, self._noted
        self.launcher.walls_changed, self.launcher.reported = self._openness_changed, self._flush_now
        self._loss_changed(None)
        self._openness_changed()
        await self._meter.since(boot_clock(), gpus=True)
        ready()
        private = partial(is_private, walls=self._facts.walls)
        retention = Retention(self._dir, self._place.keep, self.launcher.slots, self._files, private=private)
        tasks = [
            asyncio.create_task(self._meter.run(), name="meter"),
            asyncio.create_task(self._watch_holders(), name="slack"),
            asyncio.create_task(retention.run(self.table.entries.keys()), name="sweep"),
            asyncio.create_task(self._control.run(), name="control"),
            asyncio.create_task(self._disk.run(), name="disk"),
            asyncio.create_task(self._stay_connected(), name="connection"),
            asyncio.create_task(self._renewal.run(), name="renewal"),
            asyncio.create_task(self.launcher.watch(), name="supervisor"),
            asyncio.create_task(self._inputs.run(lambda: self._session is not None), name="inputs"),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self._staging.close()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await self._data.begin("")
            self._outputs.close()
            self._inputs.close()
            self._files.close()
            await self.launcher.close(leave=bool(self._control.closed) and not self.table.live())

    def _adopt(self, known: Iterable[Known]) -> None:
        """Adopt what an earlier agent left to the supervisor."""
        found = []
        for one in known:
            kept = self.launcher.kept.get(one.allocation)
            found.append((one, kept, self.launcher.pids.get(one.allocation, 0)))
            if one.outcome is None:
                log.info("adopted", allocation=one.allocation, running_for=round(one.started_for, 1))
                if kept is None:
                    log.warning("it is not known what it holds", allocation=one.allocation)
        self.table.restore(found, boot_clock())
        for one, kept, _ in found:
            if one.outcome is not None:
                self._clear_after_raylet(one.allocation)
            elif kept is not None and kept.stdin:
                self._inputs.resume(one.allocation)
        self.launcher.report_frozen()
        self._fence.load()

    # --- the coordinator ----------------------------------------------------------------------------------------------

    async def _stay_connected(self) -> None:
        tries, said, failed = 0, "", False
        while True:
            begun = boot_clock()
            try:
                await self._connection(failed)
                said, failed = "", False
            except CannotConnect as error:
                failed = True
                if error.final:
                    raise
                if error.what != said:  # not repeated every few seconds
                    log.warning(error.what, why=error.why, **({"hint": error.hint} if error.hint else {}))
                    said = error.what
            tries = 1 if boot_clock() - begun > STEADY else tries + 1
            await asyncio.sleep(back_off(tries))

    async def _connection(self, failed: bool) -> None:
        """Run one connection, from its hello to its end. `failed`: the last attempt to connect failed."""
        await self._renewal.revive(failed)
        place, hello = self._place, self._hello("agent")
        session = await dial(place.url, hello, boot_clock, self._dir / IDENTITY, place.trusts)
        if why := self._fence.accept(session.welcome):
            await session.close()
            what = f"the coordinator at {self._place.url} is not the one this node obeys"
            raise CannotConnect(what, why, "stop the one left over; `grid coordinator restore` makes a backup new")
        beating = asyncio.create_task(self._beat(session))
        try:
            log.info("connected", coordinator=self._place.url, grid=session.welcome.grid, epoch=session.welcome.epoch)
            await self._data.begin(session.welcome.session)
            self._follow(session.welcome.settings)
            self._introduce(session)
            while True:
                for message in await session.receive():
                    self._handle(message)
                self.launcher.flush()
        except Disconnected as error:
            log.warning("the coordinator is gone", why=str(error))
        except GridError as error:
            log.error("the coordinator cannot be understood", what=error.what, why=error.why)
        finally:
            self._session = None
            beating.cancel()
            await self._data.begin("")
            await session.close()

    def _introduce(self, session: Session) -> None:
        """Send the whole state of this node: facts, offer, unacknowledged ends."""
        self._offer_due = False
        self._asked = session.began
        self._renew(session.began)  # the coordinator has heard the hello
        session.before_flush = self._offer_if_due
        session.send(Inventory(known=self._readers.inventory(self.table.inventory(boot_clock()))))
        session.send(self._whole_offer())
        session.send(*self._owner.introduction(), *self.table.unacknowledged())
        session.send(self._in_effect(), *self._buckets.unacknowledged(boot_clock()))
        self._session = session

    async def _beat(self, session: Session) -> None:
        while True:
            await asyncio.sleep(session.welcome.heartbeat)
            if self._meter.newest is not None and not session.congested:
                at = self._asked = boot_clock() if self.table.leases() else 0.0
                session.send(Heartbeat(sample=self._meter.newest, at=at))

    def _renewed(self, at: float) -> None:
        """The coordinator heard the heartbeat sent then; answers to others are ignored."""
        if self.table.renewed < at <= self._asked:
            self._renew(at)

    def _renew(self, at: float) -> None:
        self.table.renew(at, boot_clock())
        self.launcher.renew(at)

    def _handle(self, message: Any) -> None:
        if isinstance(message, OpenData):
            self._data.open()
        elif isinstance(message, Renewed):
            self._renewed(message.at)
        elif isinstance(message, BucketsKept):
            self._buckets.acknowledge(message.through)
        elif isinstance(message, NewCertificate):
            self._renewal.answered(message)
        elif isinstance(message, NewSettings):
            self._follow(message.settings)
        elif isinstance(message, Refused):
            log.error("the coordinator ends the connection", what=message.what, why=message.why)
        elif not isinstance(message, Welcome):
            self.feed(message)

    def _hello(self, role: str, session: str = "") -> Hello:
        facts = self._facts if role == "agent" else None
        return Hello(
            protocol=PROTOCOL,
            software=__version__,
            role=role,
            name=self._facts.name,
            facts=facts,
            session=session,
            obeyed=self.table.epoch if role == "agent" and self.table.epoch[0] else None,
            stamp=self._fence.stamp if role == "agent" else None,
        )

    def _say(self, *messages: Any) -> None:
        """Send if the coordinator is connected; otherwise it is told everything on reconnection."""
        if self._session is not None:
            self._session.send(*messages)

    def _flush_now(self) -> None:
        if self._session is not None:
            self._session.flush_now()

    # --- settings -----------------------------------------------------------------------------------------------------

    def _follow(self, grid: Layer) -> None:
        """Follow the grid's settings for this node from now on."""
        settings = self._settings
        if not settings.take(grid):
            return
        limits = settings.limits
        log.info("other settings", **settings.effective.values.given())
        self._lender.limits = limits
        self._owner.follow(limits, settings.interval)
        self._usage.every = min(EVERY, 5 * settings.interval)
        self._probe.watch(limits)
        self._meter.follow(settings.interval)
        now = {"lendable": self._lendable(), "priority": settings.priority}
        self._own_facts = msgspec.structs.replace(self._own_facts, **now)
        self._facts = self.table.facts = msgspec.structs.replace(self._facts, **now)
        self._say(self._in_effect())
        self._offer_soon()
        self._owner.withdraw(self._verify_next)

    def _lendable(self) -> Resources:
        facts = self._facts
        return lendable(self._settings.limits, facts.cores, facts.memory, facts.gpus)

    def _in_effect(self) -> InEffect:
        return InEffect(settings=self._settings.effective, lendable=self._lendable())

    # --- offers -------------------------------------------------------------------------------------------------------

    def _measured(self, sample: Sample) -> None:
        trees = self._probe.usage()
        self.table.measured(trees)
        usage = {key: trees[pid] for key, pid in self.table.pids().items() if pid in trees}
        grants = {holding.allocation: holding.grant for holding in self.table.holdings()}
        used = self._usage.observe(sample.at, usage, grants, sample.gpus)
        if used is not None:
            self._say(used)
        offer = self._lender.observe(sample, self.table.holdings(), boot_clock())
        if (bucket := self._buckets.observe(sample, self._lender.lends)) is not None:
            self._say(Buckets(at=boot_clock(), buckets=(bucket,)))
        if offer is not None:
            self._say(offer)
        self._owner.measured(sample)
        self._owner.withdraw(self._verify_next)

    async def _watch_holders(self) -> None:
        """Measure holders while something is here that runs on their cores; else sleep until there is."""
        while True:
            while self.table.has_on_slack():
                await asyncio.sleep(slack.EVERY)
                self._owner.look_at_holders()
            self._slack_taken.clear()
            await self._slack_taken.wait()

    def _whole_offer(self) -> Offer:
        now, sample = boot_clock(), self._meter.newest
        offer = self._lender.observe(sample, self.table.holdings(), now) if sample is not None else None
        return offer or self._lender.current(now)

    def _offer_soon(self) -> None:
        """Send the offer again, once per turn of the loop, and last in its frame."""
        self._offer_due = True
        self._say()

    def _offer_if_due(self) -> None:
        if self._offer_due:
            self._offer_due = False
            self._say(self._whole_offer())

    def _openness_changed(self) -> None:
        """A reason to lend nothing more (operator, disk, owner, supervisor, a running job) came or went."""
        closed = self._facts.unknown or self._control.closed or self._disk.trouble or self._owner.closed
        self._lender.closed = closed or self.launcher.gone or self.launcher.other_walls or self._place.hidden
        self._owner.withdraw(self._verify_next)
        self._offer_soon()

    def _noted(self, allocation: str, text: str) -> None:
        """Pass on the supervisor's remark about an allocation, if connected."""
        if text:
            log.warning("noted", allocation=allocation, what=text)
            self._say(Noted(allocation=allocation, text=text))
        self._facts_changed()

    def _loss_changed(self, known: Collection[str] | None) -> None:
        """The journal is damaged, and these are `known`; or (None) nothing of the loss is alive any more."""
        self.table.lose(known)
        before = self._facts
        self._facts_changed()
        if self._facts.unknown != before.unknown or self._facts.instance != before.instance:
            if why := self._facts.unknown:
                log.error("the journal was damaged: no jobs are taken", why=why)
            else:
                log.warning("the journal was damaged, and nothing lives of what it does not name: jobs are taken")
            self._openness_changed()

    def _facts_changed(self) -> None:
        """Update our facts while records are lost, or something cannot be ended."""
        facts = facts_while(facts_after(self._own_facts, self.launcher.loss), self.launcher.unended)
        if facts != self._facts:
            self._facts = facts
            self.table.facts = facts
            if self._session is not None:  # the facts are told with the hello
                self._leaving = asyncio.create_task(self._session.close())

    # --- the table ----------------------------------------------------------------------------------------------------

    def feed(self, event: Event) -> None:
        """Handle an event: an order of the coordinator, a report of the launcher, or a prepared launch."""
        for command in self.table.handle(event, boot_clock()):
            self._perform(command)

    def _perform(self, command: Command) -> None:
        match command:  # the most frequent first
            case Report():
                self._report(command)
            case Prepare(launch):
                self._prepare(launch)
            case Run(launch, leased_from, chain):
                self._run(launch, leased_from, chain)
            case Forget(allocations):
                self.launcher.forget(allocations)
            case Kill(stop):
                self._staging.stop(stop.allocation)
                self._notify(stop)
                self.launcher.stop(stop)
            case Withdraw(stop):
                self.launcher.withdraw(stop)
            case SendSignal(allocation, number):
                self.launcher.signal(allocation, number)
            case SetLimit(allocation, limit):
                self.launcher.limit(allocation, limit)
            case SetNiceness(allocation):
                self.launcher.renice(allocation)

    def _notify(self, stop: Stop) -> None:
        try:
            workdir.write_recall(self._dir, stop, self.table.grace(stop))
        except (OSError, GridError) as error:
            log.warning("no notice could be written", allocation=stop.allocation, why=str(error))

    def _report(self, report: Report) -> None:
        message = report.message
        if isinstance(message, Exited):
            self._outputs.ended(message.allocation)
            self._inputs.ended(message.allocation)
            self._clear_after_raylet(message.allocation)
            if report.freed is not None:
                returned = self._lender.would_return(report.freed, self.table.held)
                if returned:
                    message = msgspec.structs.replace(message, returned=True)
                else:
                    self._offer_soon()
        elif isinstance(message, Stale):
            log.info("not started", allocation=message.allocation, why=message.reason)
            self._offer_soon()
        self._say(message)

    def _clear_after_raylet(self, allocation: str) -> None:
        """Release what an ended boost had beside its directory."""
        if not self.table.may_be_raylet(allocation):
            return
        raylet.ended(allocation)
        slot = self.launcher.slots.slot(allocation)
        if slot and raylet.has_walled_folder(allocation):
            folder = raylet.WalledFolder(self._files, self._dir, slot, private=False)
            clearing = asyncio.create_task(asyncio.to_thread(folder.remove, allocation), name="raylet's folder")
            self._clearing.add(clearing)
            clearing.add_done_callback(self._clearing.discard)

    # --- a launch -----------------------------------------------------------------------------------------------------

    def _prepare(self, launch: Launch) -> None:
        if why := self._control.closed or self._fence.save() or self._facts.unknown:
            self.feed(Stale(allocation=launch.allocation, reason=why))
        else:
            self._staging.begin(launch)

    def _verify(self, launch: Launch, sample: Sample) -> Stale | None:
        key, grant, held = launch.allocation, launch.grant, self.table.held
        head = self.table.chains.head(key)
        if head == key:
            return self._lender.verify(grant, sample, held, key)
        if not self.launcher.queues:
            return Stale(allocation=key, reason=OLDER)
        return self._lender.verify_next(grant, sample, held, key, head)

    def _verify_next(self, key: str, grant: Grant, first: str) -> str:
        """Why this successor, which waits for what `first` holds, would be refused now."""
        sample = self._meter.newest
        stale = sample and self._lender.verify_next(grant, sample, self.table.held, key, first)
        return stale.reason if stale else ""

    def _run(self, launch: Launch, leased_from: float, chain: str) -> None:
        if launch.grant.slack:
            self._slack_taken.set()
        if launch.spec.stdin:
            self._inputs.expect(launch.allocation)
        ordered, directory, environment, account = self._staging.order(launch)
        self.launcher.launch(ordered, directory, environment, leased_from, account, chain)
