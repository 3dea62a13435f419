"""Requests of clients: turned into events for the ledger, or answered from its views and the store.

A request that changes something becomes an event with a token; the ledger's answer comes back with that token once it
is on disk.
"""

import asyncio
import itertools
import math
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Sequence, Set
from typing import Any

import msgspec

from distributed_grid import __version__
from distributed_grid.coordinator.api.blobs.cache import Blobs, Uploads
from distributed_grid.coordinator.api.history import LoanAnswers, TrendAnswers
from distributed_grid.coordinator.api.lookup import (
    ANSWER_BYTES,
    GroupWatches,
    JobWatches,
    Lookup,
    Unanswerable,
    balancing_page,
    boost_page,
    node_page,
    shared_page,
)
from distributed_grid.coordinator.api.operator_requests import AccessRequests, declaration, order, rights
from distributed_grid.coordinator.api.relay import Client, Relay
from distributed_grid.coordinator.api.settings import GridSettings
from distributed_grid.coordinator.api.submissions import (
    LONGEST,
    Submissions,
    check_request,
    in_hold,
    neighbours,
    resolved,
)
from distributed_grid.coordinator.audit.entries import NAMED, AuditedRequest
from distributed_grid.coordinator.audit.log import RequestLog
from distributed_grid.coordinator.core import views
from distributed_grid.coordinator.core.commands import (
    Accepted,
    BalancingRequested,
    CancelRequested,
    ExtensionRequested,
    Granted,
    Rejected,
    SignalRequested,
)
from distributed_grid.coordinator.core.explain import why as explain
from distributed_grid.coordinator.core.lifecycle import holds
from distributed_grid.coordinator.core.queue import rights as core_rights
from distributed_grid.coordinator.core.queue.admission import refusal
from distributed_grid.coordinator.core.scaling.events import ScalingRequested
from distributed_grid.coordinator.core.trends.statistics import Histogram
from distributed_grid.coordinator.core.views import Visibility
from distributed_grid.coordinator.driver import Clock
from distributed_grid.coordinator.net.limits import LogThrottle
from distributed_grid.coordinator.net.memory import Memory
from distributed_grid.coordinator.predictor.service import NeedsService
from distributed_grid.coordinator.ray.balancing import Balancer
from distributed_grid.coordinator.ray.boosts import BoostService, no_boosts, no_other_boost
from distributed_grid.coordinator.ray.reservations import RayReservations
from distributed_grid.protocol import messages
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.jobs import State
from distributed_grid.protocol.messages.rights import check_name
from distributed_grid.protocol.messages.roles import Reach, reach
from distributed_grid.protocol.resources import capped
from distributed_grid.protocol.text import unknown_node
from distributed_grid.runtime.logs import get_logger

RECEIPTS = 1000
"""Maximum number of receipts in one answer."""
REASON_CHARS = 500
"""Maximum length of the reason for a cancel."""

log = get_logger("requests")


class Requests:
    """Answers clients; the server feeds it messages and the ledger's answers."""

    def __init__(
        self,
        lookup: Lookup,
        blobs: Blobs,
        relay: Relay,
        audit: RequestLog,
        clock: Clock,
        access: AccessRequests,
        memory: Memory,
        boosts: BoostService,
        placing: RayReservations,
        settings: GridSettings,
        trends: TrendAnswers,
        loans: LoanAnswers,
        balancer: Balancer,
        needs: NeedsService,
    ) -> None:
        self._needs = needs
        self._trends = trends
        self._loans = loans
        self._balancer = balancer
        self._settings = settings
        self._placing = placing
        self._memory = memory
        self._boosts = boosts
        self._access = access
        self._lookup = lookup
        self._state, self._store, self._driver = lookup.state, lookup.store, lookup.driver
        self._blobs = blobs
        self._submissions = Submissions(lookup, blobs, clock, memory)
        self.watches = JobWatches(lookup.views)
        self._groups = GroupWatches(lookup.group_view)
        self._relay = relay
        self._audit = audit
        self._clock = clock
        self._began = time.monotonic()
        self._tokens = itertools.count(1)
        self._throttle = LogThrottle()
        self._waiting: dict[int, Callable[[Accepted | Rejected | Granted], None]] = {}

    # --- from the server ----------------------------------------------------------------------------------------------

    async def handle(self, client: Client, message: Any, before: "asyncio.Task[None] | None" = None) -> None:
        """Handle one request of a client; any error becomes the answer. `before`: an order that is to be carried out
        before a boost is submitted, while Ray is asked already."""
        asked = AuditedRequest(self._audit, client, message)
        reached = reach(client.role, type(message))
        if reached is None:
            self._throttle.warning("refused", client.user, role=client.role.value, request=asked.tag)
            asked.fail("not-allowed", f"a {client.role} may not do this", f"{client.user} is one", "ask an operator")
            return
        try:
            await self._dispatch(asked, client, Visibility(client.user, reached, self._lookup.owner), message, before)
            if not asked.later:
                asked.done()
        except GridError as error:
            asked.fail(_code(error), error.what, error.why, error.hint)
        except sqlite3.Error as error:
            what, hint = "the coordinator's store cannot be read now", "look at the disk it is on"
            asked.fail("unavailable", what, str(error), hint)
        except Exception as error:
            log.exception("a request failed", user=client.user, request=type(message).__name__)
            what = f"the coordinator could not do this: {type(error).__name__}"
            asked.fail("internal", what, hint="see the coordinator's log")

    async def keep_blobs(self, client: Client, sent: Sequence[messages.PutBlob]) -> None:
        """Handle blobs that came whole and together: the same syncs have them on disk, and each is answered."""
        if reach(client.role, messages.PutBlob) is None:
            for one in sent:
                await self.handle(client, one)
            return
        asked = [AuditedRequest(self._audit, client, one) for one in sent]
        try:
            answers = await self._uploads(client).put_whole(sent)
        except Exception as error:
            log.exception("a request failed", user=client.user, request="PutBlob")
            what = f"the coordinator could not do this: {type(error).__name__}"
            answers = [Unanswerable("internal", what, hint="see the coordinator's log")] * len(sent)
        for request, failed in zip(asked, answers, strict=True):
            if failed is None:
                client.connection.send(messages.Done(request.message.id))
                request.done()
            else:
                request.fail(_code(failed), failed.what, failed.why, failed.hint)

    def _uploads(self, client: Client) -> Uploads:
        client.uploads = client.uploads or Uploads(self._blobs, self._driver.trouble.refuse, client.user)
        return client.uploads

    def answer(self, command: Accepted | Rejected | Granted) -> None:
        """The ledger's answer to a token."""
        if waiting := self._waiting.pop(command.token, None):
            waiting(command)

    def gone(self, client: Client) -> None:
        """The client's connection is closed."""
        self._relay.forget(client)
        self.watches.gone(client)
        if client.uploads:
            client.uploads.close()

    # --- which request ------------------------------------------------------------------------------------------------

    async def _dispatch(
        self,
        asked: AuditedRequest,
        client: Client,
        visibility: Visibility,
        message: Any,
        before: "asyncio.Task[None] | None",
    ) -> None:
        match message:
            case messages.WantOutput() | messages.WantFiles() | messages.WantFile() | messages.PutInput():
                if why := self._relay.want(client, message, visibility):
                    asked.later = True
                    asked.refused("unavailable", why)
            case messages.Submit():
                no_boosts(message)
                if any(one.request.immediate for one in message.jobs):
                    await self._placing.refresh_now()
                claimed = await self._submissions.claim(client.user, message)
                self._submit(asked, client, visibility, message, claimed)
            case messages.RequestBoost() | messages.ExtendBoost() | messages.ListBoosts():
                await self._boost(asked, client, visibility, message, before)
            case messages.Watch():
                self._watch(client, visibility, message)
            case messages.Cancel():
                self._cancel(asked, client, visibility, message)
            case messages.SignalJob():
                self._signal(asked, client, visibility, message)
            case messages.ListJobs():
                client.connection.send(self._lookup.newest(visibility, message))
            case messages.ShowJobs():
                self._reply(client, self._lookup.show(visibility, message))
            case messages.GetStatus():
                self._reply(client, self._status(message))
            case messages.GetShared():
                if message.node and message.node not in self._state.nodes:
                    raise unknown_node(message.node, list(self._state.nodes))
                shared = shared_page(self._state, visibility, self._clock(), message.id, message.node, message.past)
                lasting = self._trends.lasting(offer.node for offer in shared.offers)
                self._reply(client, msgspec.structs.replace(shared, lasting=lasting))
            case messages.GetShares():
                users, state = views.shares(self._state, self._clock()), self._state
                half_life = state.policy.sharing.half_life
                self._reply(client, messages.Shares(message.id, users, capped(state.shares.capacity), half_life))
            case messages.GetLoans():
                own = reach(client.role, type(message)) is Reach.LOANS
                self._reply(client, await self._loans.answer(message, client.user if own else ""))
            case messages.AskWhy():
                await self._placing.refresh_now()
                await self._why(client, visibility, message)
            case messages.GetReceipts():
                job = self._lookup.resolve_one(visibility, message.job) if message.job else ""
                found = self._store.receipts(max(0, min(message.limit, RECEIPTS)), job, message.node, visibility.only)
                self._reply(client, messages.Receipts(message.id, tuple(filter(None, map(visibility.receipt, found)))))
            case messages.WantBlobs():
                missing = await self._blobs.missing(message.blobs, client.user)
                client.connection.send(messages.MissingBlobs(message.id, missing))
            case messages.PutBlob():
                if await self._uploads(client).put(message):
                    client.connection.send(messages.Done(message.id))
            case messages.MakeToken() | messages.ListAccess() | messages.Withdraw():
                self._reply(client, self._access.answer(client.user, message, client.connection))
            case messages.WantCertificate():
                client.connection.send(self._access.renew(client.connection, message))
            case messages.GetSettings():
                self._reply(client, self._settings.answer(message))
            case messages.GetForecast():
                client.connection.send(self._trends.forecast(message))
            case messages.Predict():
                client.connection.send(await self._needs.answer(client.user, message))
            case messages.RecordUse():
                self._needs.record(client.user, message)
                client.connection.send(messages.Done(message.id))
            case messages.GetTrends():
                self._reply(client, await self._trends.answer(message))
            case messages.ReloadSettings():
                client.connection.send(messages.Done(message.id, await self._settings.reload()))
            case (
                messages.DrainNodes()
                | messages.UndrainNodes()
                | messages.LabelNodes()
                | messages.SetNodes()
                | messages.ForgetNodes()
            ):
                self._driver.trouble.refuse()
                self._driver.put(order(message, client.user, lambda: self._answer_plainly(asked)))
            case messages.DeclareNode():
                self._driver.trouble.refuse()
                self._driver.put(declaration(message, client.user, lambda: self._answer_plainly(asked)))
            case messages.SetRights():
                self._driver.trouble.refuse()
                self._driver.put(rights(message, client.user, lambda: self._answer_plainly(asked)))
            case messages.SetBalancing(mode=mode, policy=policy, unset=unset):
                self._driver.trouble.refuse()
                token = self._answer_plainly(asked)
                self._driver.put(BalancingRequested(token, mode, policy, unset, client.user))
            case messages.GetBalancing():
                status = balancing_page(self._state, visibility, self._clock(), message, self._balancer.address)
                self._reply(client, status)
            case messages.SuggestBoosts():
                would = views.visible_pass(visibility, await self._balancer.proposed(self._clock))
                self._reply(client, messages.Suggestions(message.id, self._state.policy.balancing, would))
            case messages.GetScaling():
                # Only where there are pools.
                from distributed_grid.coordinator.core.scaling.passes import scaling_status

                self._reply(client, scaling_status(self._state, message, self._clock()))
            case messages.OrderScaling(order=what, pool=pool, why=why, machine_type=kind, machine=machine):
                self._driver.trouble.refuse()
                token = self._answer_plainly(asked)
                self._driver.put(ScalingRequested(token, what, pool, client.user, why, kind, machine))
            case messages.GetQuota():
                self._reply(client, self._quotas(client, visibility, message))

    def _reply(self, client: Client, reply: Any) -> None:
        """Send an answer that may be large. Raises Unanswerable if it does not fit a frame."""
        size = len(msgspec.msgpack.encode(reply))
        if size > ANSWER_BYTES:
            raise Unanswerable(
                "unavailable", f"the answer is too large ({size >> 20} MiB)", hint="ask for less at a time"
            )
        client.connection.send(reply)

    def _token(self, waiting: Callable[[Accepted | Rejected | Granted], None]) -> int:
        token = next(self._tokens)
        self._waiting[token] = waiting
        return token

    def _answer_plainly(self, asked: AuditedRequest) -> int:
        asked.later = True

        def waiting(command: Accepted | Rejected | Granted) -> None:
            match command:
                case Rejected():
                    asked.fail(command.code, command.what, command.why, command.hint)
                case Granted():
                    asked.done()
                    asked.client.connection.send(messages.Done(asked.message.id, command.text))

        return self._token(waiting)

    # --- submit -------------------------------------------------------------------------------------------------------

    def _submit(
        self,
        asked: AuditedRequest,
        client: Client,
        visibility: Visibility,
        message: messages.Submit,
        claimed: Set[str] = frozenset(),
    ) -> None:
        client.visibility, asked.later = visibility, True
        found = self._submissions.prepare(visibility, client.host, message, claimed)
        watched = found.names() if message.watch else []
        for name in watched:
            self.watches.add(client, name)
        if not found.jobs:
            self._submitted(asked, client, message, found.known, 0, 0)
            return
        self._settings.require_sharing()

        def waiting(command: Accepted | Rejected | Granted) -> None:
            if isinstance(command, Accepted):
                ids = found.known | dict(zip(found.jobs, command.jobs, strict=True))
                self._placing.stir()
                self._boosts.stir(*(ids[key] for key, job in found.jobs.items() if job.spec.boost is not None))
                self._submitted(asked, client, message, ids, command.fit, command.nodes)
            elif isinstance(command, Rejected):
                for name in watched:
                    self.watches.drop(client, name)
                asked.fail(command.code, command.what, command.why, command.hint)

        self._driver.put(found.event(self._token(waiting)))

    def _submitted(
        self, asked: AuditedRequest, client: Client, message: messages.Submit, ids: dict[str, str], fit: int, nodes: int
    ) -> None:
        """Answer a submit; a client that watches also gets the jobs that existed already as they stand."""
        jobs = tuple(ids[submission.key] for submission in message.jobs)
        asked.done(ids=jobs[:NAMED])
        client.connection.send(messages.Submitted(message.id, jobs, fit, nodes))
        if message.watch:
            names = self._lookup.members(jobs)
            self.watches.show(client, [name for name in names if name not in client.watching])

    # --- watch, cancel, signal ----------------------------------------------------------------------------------------

    def _watch(self, client: Client, visibility: Visibility, message: messages.Watch) -> None:
        client.visibility = visibility
        names = self._lookup.resolve(visibility, message.jobs)
        if message.whole:
            for name in names:
                self._groups.watch(client, name)
        else:
            names = self._lookup.members(names)
        self.watches.show(client, names)
        client.connection.send(messages.Done(message.id))

    def _cancel(self, asked: AuditedRequest, client: Client, visibility: Visibility, message: messages.Cancel) -> None:
        if message.grace > LONGEST or not math.isfinite(message.grace):
            raise BadValue(f"the grace of {message.grace:g} s cannot be used", hint="give seconds")
        live = self._lookup.to_cancel(visibility, message)
        if not live:
            client.connection.send(
                messages.Done(message.id, "ended already" if message.jobs else "there are none such")
            )
            return
        self._driver.trouble.refuse()  # a cancel is on disk before it takes effect
        token = self._answer_plainly(asked)
        self._driver.put(CancelRequested(token, tuple(live), message.reason[:REASON_CHARS], message.grace))

    def _signal(
        self, asked: AuditedRequest, client: Client, visibility: Visibility, message: messages.SignalJob
    ) -> None:
        if not 1 <= message.signal <= 64:
            raise BadValue(f"there is no signal {message.signal}", hint="1 to 64")
        job = self._lookup.single(visibility, message.job)
        self._driver.trouble.refuse()
        self._driver.put(SignalRequested(self._answer_plainly(asked), job, message.signal))

    async def _boost(
        self,
        asked: AuditedRequest,
        client: Client,
        visibility: Visibility,
        message: messages.RequestBoost | messages.ExtendBoost | messages.ListBoosts,
        before: "asyncio.Task[None] | None",
    ) -> None:
        match message:
            case messages.RequestBoost():
                if (one := self._submissions.again(visibility, message.key)) is None:
                    self._settings.require_sharing()
                    if (refused := core_rights.boost_refusal(self._state, 0)) is not None:  # before Ray is asked
                        raise Unanswerable(refused.code, refused.what, refused.why, refused.hint)
                    one = await self._boosts.submission(message)
                if before is not None:
                    await asyncio.wait([before])
                no_other_boost(message, one)
                self._submit(asked, client, visibility, messages.Submit(message.id, (one,), message.watch))
            case messages.ExtendBoost():
                job = self._lookup.single(visibility, message.boost)
                self._driver.trouble.refuse()
                self._driver.put(ExtensionRequested(self._answer_plainly(asked), job, message.seconds))
            case messages.ListBoosts():
                shown = await self._boosts.shown(message, visibility, self._lookup.views)
                self._reply(client, boost_page(shown, message.past))

    # --- the grid -----------------------------------------------------------------------------------------------------

    def _status(self, message: messages.GetStatus) -> messages.Status:
        # A job that does not wait has its allocation's state; those are few, however long the queue is.
        counts = Counter(held.state.value for held in self._state.allocations.values())
        if waiting := len(self._state.jobs) - len(self._state.allocations):
            counts[State.WAITING.value] = waiting
        nodes, past = node_page(self._state, self._clock(), message.past)
        return messages.Status(
            id=message.id,
            grid=self._store.grid,
            software=__version__,
            epoch=self._store.epoch,
            up_for=time.monotonic() - self._began,
            nodes=nodes,
            counts=dict(counts),
            ended={cause.value: count for cause, count in self.watches.ended.items()},
            trouble="; ".join(filter(None, (self._driver.trouble.words(), self._memory.words()))),
            past=past,
            at=time.time(),
            waits=_spread(self.watches.waits),
            runs=_spread(self.watches.runs),
            placed=self.watches.placed,
            core_seconds_used=self.watches.used,
            core_seconds_held=self.watches.held,
            moves=self.watches.moves,
        )

    def _quotas(self, client: Client, visibility: Visibility, message: messages.GetQuota) -> messages.Quotas:
        operator = visibility.reach is not Reach.RIGHTS
        if message.user:
            check_name(messages.Whose.USER, message.user)
        if message.user not in ("", client.user) and not operator:
            raise Unanswerable(
                "not-allowed", "only operators may see the rights of others", f"{client.user} is a client"
            )
        user, everybody = message.user or client.user, operator and not message.user
        found = core_rights.quotas(self._state, user, operator, everybody)
        return messages.Quotas(message.id, found, core_rights.day_ends(self._clock()))

    async def _why(self, client: Client, visibility: Visibility, message: messages.AskWhy) -> None:
        job = self._lookup.first_waiting(visibility, message.job) if message.job else None
        if job is None and message.request is None:
            raise BadValue("neither a job nor a request to explain", hint="name a job (id, prefix or name)")
        request, operator = message.request, visibility.reach is Reach.ALL
        if request is not None:
            self._settings.require_sharing()
            check_request(request)
            request = resolved(request, client.host, "", self._state.policy)
            request = neighbours(request, visibility, "", self._state.index.affinity, {})
            request = in_hold(request, visibility, self._lookup)
            refused = refusal(self._state, 0, request)
            if refused is not None and refused.code == "bad-value":  # of what could never be done, more can be said
                raise BadValue(refused.what, refused.why, refused.hint)
            refused = core_rights.priority_refusal(self._state, 0, client.user, operator, request)
            refused = refused or holds.refusal_inside(self._state, 0, request, client.user)
            if refused is not None:
                raise Unanswerable(refused.code, refused.what, refused.why, refused.hint)
        why = explain.why(self._state, job, request, self._clock(), client.user, operator, message.lasts)
        if job is not None and why.job is None:
            why = msgspec.structs.replace(why, job=next(iter(self._lookup.views([job])), None))
        known = self._state.jobs.get(job) if job is not None else None
        prospects = await self._needs.prospects(self._state, known) if known is not None else ""
        self._reply(client, visibility.why(msgspec.structs.replace(why, id=message.id, prospects=prospects)))


def _spread(found: Histogram) -> messages.Durations | None:
    """Convert a histogram for clients; None: it is empty."""
    if not found.count:
        return None
    return messages.Durations(found.count, found.quantile(0.5), found.quantile(0.95), found.quantile(0.99))


def _code(error: GridError) -> str:
    return "bad-value" if isinstance(error, BadValue) else getattr(error, "code", "unavailable")
