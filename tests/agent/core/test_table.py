"""The agent's table: at most one run of an allocation, nothing held twice, no end lost."""

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from distributed_grid.agent.core import table as tables
from distributed_grid.agent.core.commands import (
    Command,
    Event,
    Forget,
    Kill,
    Prepare,
    Ready,
    Report,
    Run,
    SendSignal,
    SetLimit,
    SetNiceness,
)
from distributed_grid.agent.core.entry import (
    Kept,
    Starting,
    Stopping,
    keep,
)
from distributed_grid.agent.core.table import Table
from distributed_grid.agent.core.usage import Usage
from distributed_grid.protocol.jobs import Cause, JobSpec, Outcome, State
from distributed_grid.protocol.messages import Ack, Exited, Extend, Launch, Renice, Signal, Stale, Started, Stop
from distributed_grid.protocol.nodes import Known, Stamp
from distributed_grid.protocol.placement import Walls
from distributed_grid.protocol.resources import GIB, GpuShare, Grant
from tests.depth import tries
from tests.protocol.samples import FACTS

DONE = Outcome(Cause.EXITED, code=3)
NEVER = Outcome(Cause.CANCELLED, started=False)
CORE_0 = Grant(cores=(0,))


def launch(key: str = "j.1", grant: Grant = CORE_0, epoch: int = 1) -> Launch:
    return Launch(
        allocation=key, job=key.split(".")[0], user="u", epoch=epoch, grant=grant, spec=JobSpec(argv=("true",))
    )


def running(table: Table, key: str = "j.1", grant: Grant = CORE_0, pid: int = 7) -> Table:
    table.handle(launch(key, grant), 10.0)
    table.handle(Ready(key), 10.0)
    table.handle(Started(allocation=key, pid=pid), 10.0)
    return table


def only(commands: list[Command]) -> Command:
    (command,) = commands
    return command


def refused(table: Table, order: Launch) -> Stale:
    report = only(table.handle(order, 20.0))
    assert isinstance(report, Report) and isinstance(report.message, Stale)
    return report.message


# --- the way of a job -------------------------------------------------------------------------------------------------


def test_a_launch_is_prepared_then_run_then_reported_and_its_end_is_kept_until_acknowledged() -> None:
    table = Table()
    order = launch()
    assert table.handle(order, 1.0) == [Prepare(order)]
    assert table.handle(Ready("j.1"), 1.1) == [Run(order)]
    started = Started(allocation="j.1", pid=7)
    assert table.handle(started, 1.2) == [Report(started)]
    ended = Exited(allocation="j.1", outcome=DONE)
    assert table.handle(ended, 2.0) == [Report(ended, freed=CORE_0)]
    assert table.unacknowledged() == [ended]
    assert table.handle(Ack(allocations=("j.1",)), 3.0) == [Forget(("j.1",))]
    assert table.unacknowledged() == [] and table.inventory(3.0) == ()


def behind(walls: str, owners: tuple[str, ...] = (), trusts: str = "owner") -> Table:
    return Table(msgspec.structs.replace(FACTS, walls=walls, owners=owners, trusts=trusts))


def test_a_node_refuses_jobs_of_others_than_its_owners_where_its_walls_are_weak() -> None:
    stale = refused(behind("none", ("ann",)), launch())
    assert stale.reason == "its walls are none, and it runs jobs of its owners only"
    for table in (behind("none", ("u",)), behind("none", trusts="everyone"), behind("user"), behind("")):
        assert table.handle(launch(), 1.0) == [Prepare(launch())]


def test_a_node_refuses_jobs_that_ask_for_stronger_walls_than_it_has() -> None:
    order = msgspec.structs.replace(launch(), walls=Walls.USER)
    assert refused(behind("namespace"), order).reason == "its walls are namespace, and the job asks for user"
    assert behind("user").handle(order, 1.0) == [Prepare(order)]


def test_what_runs_is_told_with_its_walls_also_after_a_restart() -> None:
    table = behind("user")
    table.handle(launch(), 1.0)
    table.handle(Ready("j.1"), 1.0)
    table.handle(Started(allocation="j.1", pid=7, walls="user"), 1.0)
    assert [one.walls for one in table.inventory(2.0)] == ["user"]
    (again,) = table.handle(launch(), 2.0)
    assert again == Report(Started(allocation="j.1", pid=7, walls="user"))


def test_of_a_holder_so_many_physical_cores_are_left_as_nobody_on_its_slack_shares() -> None:
    table = Table(msgspec.structs.replace(FACTS, walls="user", smt=((0, 2), (1, 3))))
    running(table, "j-h.1", Grant(cores=(0, 1, 2, 3)), 7)
    for pid, core in ((8, 2), (9, 0)):
        running(table, f"j-{pid}.1", Grant(slack=(core,), slack_milli=500, holder="j-h.1"), pid)
        assert {(one.holder, one.left, one.pid) for one in table.on_slack()} == {("j-h.1", 1.0, 7)}
    table.handle(Exited("j-h.1", DONE), 20.0)
    assert [(one.allocation, one.left) for one in table.on_slack()] == [("j-8.1", None), ("j-9.1", None)]


def test_a_launch_of_what_is_known_answers_with_its_state_and_runs_nothing() -> None:
    table = Table()
    table.handle(launch(), 1.0)
    assert table.handle(launch(), 1.0) == []  # being prepared: the answer comes
    table.handle(Ready("j.1"), 1.0)
    assert table.handle(launch(), 1.0) == []  # handed to the launcher
    table.handle(Started(allocation="j.1", pid=7), 1.0)
    assert table.handle(launch(), 1.0) == [Report(Started(allocation="j.1", pid=7))]
    table.handle(Exited(allocation="j.1", outcome=DONE), 1.0)
    assert table.handle(launch(), 1.0) == [Report(Exited(allocation="j.1", outcome=DONE))]


def test_ready_said_twice_runs_it_once() -> None:
    table = Table()
    table.handle(launch(), 1.0)
    assert len(table.handle(Ready("j.1"), 1.0)) == 1
    assert table.handle(Ready("j.1"), 1.0) == []


def test_a_launch_of_what_was_acknowledged_is_answered_as_over_and_not_known_any_more() -> None:
    table = running(Table())
    table.handle(Exited(allocation="j.1", outcome=DONE), 1.0)
    table.handle(Ack(allocations=("j.1",)), 1.0)
    report = only(table.handle(launch(), 1.0))
    assert isinstance(report, Report) and isinstance(report.message, Exited)
    assert (report.message.outcome.cause, report.message.outcome.started) == (Cause.NODE_LOST, True)


def test_an_acknowledgement_of_what_still_runs_forgets_nothing() -> None:
    table = running(Table())
    assert table.handle(Ack(allocations=("j.1", "x.1")), 1.0) == []
    assert table.inventory(12.0) == (Known("j.1", State.RUNNING, started_for=2.0),)


def test_what_is_remembered_of_acknowledged_ends_is_bounded() -> None:
    table = Table()
    for number in range(tables.REMEMBERED + 10):
        key = f"j{number}.1"
        table.handle(Stop(allocation=key), 1.0)
        table.handle(Exited(allocation=key, outcome=NEVER), 1.0)
        table.handle(Ack(allocations=(key,)), 1.0)
    assert len(table._over) == tables.REMEMBERED and not table.entries


# --- leases -----------------------------------------------------------------------------------------------------------


def leased(table: Table, key: str, heard: float, now: float) -> float:
    """Since when the lease of a launch that comes now runs."""
    table.handle(msgspec.structs.replace(launch(key, Grant()), lease=10.0, heard=heard), now)
    run = only(table.handle(Ready(key), now))
    assert isinstance(run, Run)
    return run.leased_from


def test_a_lease_runs_from_what_the_coordinator_heard_last_and_never_from_what_is_to_come() -> None:
    table = Table()
    assert not table.leases()
    assert leased(table, "j.1", heard=95.0, now=100.0) == 95.0
    assert leased(table, "k.1", heard=200.0, now=100.0) == 0.0, "by the clock of before a reboot"
    table.renew(99.0, now=100.0)
    assert table.leases() and table.renewed == 99.0
    assert leased(table, "l.1", heard=95.0, now=100.0) == 99.0


def test_a_renewal_makes_leases_run_anew_but_for_those_that_are_over() -> None:
    table = Table()
    leased(table, "j.1", heard=100.0, now=100.0)
    leased(table, "k.1", heard=105.0, now=105.0)
    table.renew(111.0, now=112.0)
    assert [one.leased_from for one in table.entries.values()] == [100.0, 111.0]
    for key in ("j.1", "k.1"):
        table.handle(Exited(allocation=key, outcome=DONE), 113.0)
    assert not table.leases(), "what is over is not renewed"


# --- stops and signals ------------------------------------------------------------------------------------------------


def test_a_stop_while_preparing_wins_and_the_launcher_keeps_the_tombstone() -> None:
    table = Table()
    table.handle(launch(), 1.0)
    stop = Stop(allocation="j.1")
    assert table.handle(stop, 1.0) == [Kill(stop)]
    assert table.handle(Ready("j.1"), 1.0) == []
    assert table.handle(Stale(allocation="j.1", reason="busy"), 1.0) == []
    ended = Exited(allocation="j.1", outcome=NEVER)
    assert table.handle(ended, 1.0) == [Report(ended, freed=CORE_0)]


def test_a_stop_of_what_was_never_heard_of_makes_a_late_launch_end_unstarted() -> None:
    table = Table()
    stop = Stop(allocation="j.1")
    assert table.handle(stop, 1.0) == [Kill(stop)]
    assert table.handle(launch(), 1.0) == []
    table.handle(Exited(allocation="j.1", outcome=NEVER), 1.0)
    assert table.handle(launch(), 1.0) == [Report(Exited(allocation="j.1", outcome=NEVER))]


def test_a_stopped_job_that_started_meanwhile_is_still_reported_only_by_its_end() -> None:
    table = Table()
    table.handle(launch(), 1.0)
    table.handle(Ready("j.1"), 1.0)
    table.handle(Stop(allocation="j.1"), 1.0)
    assert table.handle(Started(allocation="j.1", pid=7), 1.0) == []
    assert table.inventory(2.0)[0].state is State.STOPPING


def test_what_is_stopped_before_it_began_is_never_told_as_running_since_the_beginning_of_the_clock() -> None:
    table = Table()
    table.handle(launch(), 1.0)
    table.handle(Ready("j.1"), 1.0)
    table.handle(Stop(allocation="j.1"), 1.0)
    assert table.inventory(1000.0) == (Known("j.1", State.STARTING),)


def test_signals_go_to_what_runs_and_to_nothing_else() -> None:
    table = running(Table())
    assert table.handle(Signal(allocation="j.1", signal=2), 1.0) == [SendSignal("j.1", 2)]
    assert table.handle(Signal(allocation="k.1", signal=2), 1.0) == []
    table.handle(Exited(allocation="j.1", outcome=DONE), 1.0)
    assert table.handle(Signal(allocation="j.1", signal=2), 1.0) == []


# --- who holds what ---------------------------------------------------------------------------------------------------


def test_a_boost_gives_way_and_gets_its_time_limit_as_long_as_it_is_not_over() -> None:
    table = running(Table())
    for _ in range(2):  # the coordinator says it again after a reconnect
        assert only(table.handle(Renice(allocation="j.1"), 11.0)) == SetNiceness("j.1")
        assert only(table.handle(Extend(allocation="j.1", limit=60.0), 11.0)) == SetLimit("j.1", 60.0)
    table.handle(Exited(allocation="j.1", outcome=DONE), 12.0)
    for late in (Renice(allocation="j.1"), Extend(allocation="j.1", limit=60.0), Renice(allocation="j.2")):
        assert table.handle(late, 13.0) == []


def test_a_core_that_is_held_is_refused_by_name_of_its_holder() -> None:
    table = running(Table())
    stale = refused(table, launch("k.1", Grant(cores=(1, 0))))
    assert (stale.reason, stale.device) == ("core 0 is held by j.1", "0")
    assert [holding.allocation for holding in table.holdings()] == ["j.1"]


def test_fractions_share_a_core_with_fractions_only_and_never_more_than_it_has() -> None:
    table = running(Table(), grant=Grant(shared_core=0, shared_milli=600))
    assert refused(table, launch("k.1", CORE_0)).reason == "core 0 is shared by j.1"
    assert refused(table, launch("l.1", Grant(shared_core=0, shared_milli=500))).reason == "core 0 has only 0.4 left"
    assert isinstance(only(table.handle(launch("m.1", Grant(shared_core=0, shared_milli=400)), 1.0)), Prepare)


def test_a_gpu_is_shared_up_to_its_whole() -> None:
    table = running(Table(), grant=Grant(gpus=(GpuShare("GPU-a", 700),)))
    assert refused(table, launch("k.1", Grant(gpus=(GpuShare("GPU-a", 310),)))).device == "GPU-a"
    assert isinstance(only(table.handle(launch("l.1", Grant(gpus=(GpuShare("GPU-a", 300),))), 1.0)), Prepare)


def test_a_grant_that_names_a_core_or_gpu_twice_is_refused() -> None:
    for grant in (
        Grant(cores=(1, 1)),
        Grant(cores=(1,), shared_core=1, shared_milli=1),
        Grant(gpus=(GpuShare("a", 10), GpuShare("a", 10))),
    ):
        assert "twice" in refused(Table(), launch(grant=grant)).reason


def test_what_was_declined_holds_nothing_and_is_not_started_when_its_launch_comes_once_more() -> None:
    table = Table()
    table.handle(launch(), 1.0)
    stale = Stale(allocation="j.1", reason="busy")
    assert table.handle(stale, 1.0) == [Report(stale, freed=CORE_0)]
    assert isinstance(only(table.handle(launch("k.1"), 1.0)), Prepare)
    in_the_way = refused(table, launch("l.1"))
    table.handle(Stale(allocation="k.1", reason="busy"), 1.0)
    assert refused(table, launch()) == stale
    assert refused(table, launch("l.1")) == in_the_way
    assert isinstance(only(table.handle(launch("j.2"), 1.0)), Prepare)


def test_launches_that_were_declined_are_remembered_up_to_a_number() -> None:
    table = Table()
    for number in range(tables.REMEMBERED + 3):
        table.handle(launch(f"j{number}.1"), 1.0)
        table.handle(Stale(allocation=f"j{number}.1", reason="busy"), 1.0)
    assert len(table._declined) == tables.REMEMBERED and not table.entries


def test_an_end_frees_for_the_next() -> None:
    table = running(Table())
    table.handle(Exited(allocation="j.1", outcome=DONE), 1.0)
    assert isinstance(only(table.handle(launch("k.1"), 1.0)), Prepare)


def test_what_is_resident_is_kept_by_the_pid_a_job_began_with() -> None:
    table = running(Table(), pid=7)
    table.measured({7: Usage(GIB, gpus=(("GPU-0", 3),)), 8: Usage(5)})
    assert (table.holdings()[0].rss, table.holdings()[0].on_gpus) == (GIB, (("GPU-0", 3),))
    table.measured({})
    assert (table.holdings()[0].rss, table.holdings()[0].on_gpus) == (0, ())


# --- epochs and restarts ----------------------------------------------------------------------------------------------


def test_of_one_grid_only_the_newest_epoch_is_obeyed() -> None:
    table = Table()
    table.welcome("a", 5)
    table.welcome("a", 3)
    assert "epoch 4" in refused(table, launch(epoch=4)).reason
    assert isinstance(only(table.handle(launch(epoch=5), 1.0)), Prepare)
    table.welcome("b", 1)
    assert isinstance(only(table.handle(launch("k.1", Grant(), epoch=1), 1.0)), Prepare)


def test_what_the_launcher_knew_at_the_start_holds_what_it_was_granted() -> None:
    table = Table()
    table.restore(
        [
            (Known("j.1", State.RUNNING, started_for=3.0), keep(launch("j.1")), 7),
            (Known("k.1", State.ENDED, DONE), None, 0),
            (Known("l.1", State.RUNNING), None, 0),
        ],
        now=100.0,
    )
    assert refused(table, launch("m.1")).reason == "core 0 is held by j.1"
    assert table.unacknowledged() == [Exited(allocation="k.1", outcome=DONE)]
    assert table.inventory(101.0)[0] == Known("j.1", State.RUNNING, started_for=4.0)
    assert [known.allocation for known in table.inventory(101.0)] == ["j.1", "k.1", "l.1"]
    assert table.handle(launch("j.1"), 1.0) == [Report(Started(allocation="j.1", pid=7))]


def test_a_grant_is_proven_to_a_later_coordinator_and_not_to_the_one_that_made_it() -> None:
    table, stamp = Table(), Stamp(5, 12, "seal")
    table.welcome("a", 5)
    order = msgspec.structs.replace(launch(epoch=5), stamp=stamp)
    table.handle(order, 1.0)
    table.restore([(Known("k.1", State.ENDED, DONE), keep(order), 0)], now=1.0)
    for epoch, shown in ((5, None), (6, stamp)):
        table.welcome("a", epoch)
        assert [one.stamp for one in table.inventory(2.0)] == [shown] * 2
        assert [one.stamp for one in table.unacknowledged()] == [shown]
    report = only(table.handle(Exited(allocation="j.1", outcome=DONE), 3.0))
    assert isinstance(report, Report) and report.message == Exited(allocation="j.1", outcome=DONE, stamp=stamp)


def test_an_inventory_carries_no_outcomes_so_that_it_fits_a_frame() -> None:
    table = running(Table())
    table.handle(Exited(allocation="j.1", outcome=Outcome(Cause.EXITED, stdout_tail=b"x" * 16384)), 1.0)
    assert table.inventory(2.0) == (Known("j.1", State.ENDED),)


# --- any order of events ----------------------------------------------------------------------------------------------

KEYS = st.sampled_from([f"j{number}.1" for number in range(6)])
GRANTS = st.builds(
    Grant,
    cores=st.lists(st.integers(0, 3), max_size=2, unique=True).map(tuple),
    shared_core=st.integers(-1, 3),
    shared_milli=st.integers(0, 1000),
    gpus=st.lists(st.builds(GpuShare, st.sampled_from("ab"), st.integers(1, 1000)), max_size=2).map(tuple),
)


class AnyOrder(RuleBasedStateMachine):
    """A coordinator and a launcher that say anything at any time; restarts of the agent among it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Table()
        self.now = 0.0
        self.runs: dict[str, int] = {}
        self.ended: set[str] = set()
        self.acked: set[str] = set()
        self.waits: set[str] = set()
        self.grants: dict[str, Grant] = {}
        self.told: dict[str, int] = {}

    def feed(self, event: Event) -> None:
        self.now += 1.0
        for command in self.table.handle(event, self.now):
            match command:
                case Run(order, chain=chain):
                    if chain:
                        self.waits.add(order.allocation)
                    self.runs[order.allocation] = self.runs.get(order.allocation, 0) + 1
                    self.grants[order.allocation] = order.grant
                    assert order.allocation not in self.ended
                case Report(Exited() as message):
                    self.told[message.allocation] = self.told.get(message.allocation, 0) + 1
                case Forget(keys):
                    assert {*keys} <= self.ended

    @rule(key=KEYS, grant=GRANTS)
    def launch(self, key: str, grant: Grant) -> None:
        self.feed(launch(key, grant))

    @rule(key=KEYS, after=KEYS, grant=st.none() | GRANTS)
    def launch_after(self, key: str, after: str, grant: Grant | None) -> None:
        before = self.table.entries.get(after)
        grant = grant or (before.kept.grant if before is not None else Grant())
        self.feed(msgspec.structs.replace(launch(key, grant), predecessor=after))

    @rule(key=KEYS)
    def withdraw(self, key: str) -> None:
        self.feed(Stop(allocation=key, unless_started=True))

    @rule(key=KEYS)
    def ready(self, key: str) -> None:
        self.feed(Ready(key))

    @rule(key=KEYS)
    def stale(self, key: str) -> None:
        self.feed(Stale(allocation=key, reason="busy"))

    @rule(key=KEYS)
    def stop(self, key: str) -> None:
        self.feed(Stop(allocation=key))

    @rule(key=KEYS)
    def started(self, key: str) -> None:
        if key in self.runs:
            self.waits.discard(key)
            self.feed(Started(allocation=key, pid=7))

    @rule(key=KEYS)
    def exited(self, key: str) -> None:
        entry = self.table.entries.get(key)
        if key in self.runs or (entry is not None and isinstance(entry.stage, Stopping | Starting)):
            self.ended.add(key)
            self.feed(Exited(allocation=key, outcome=DONE))

    @rule(key=KEYS)
    def ack(self, key: str) -> None:
        if any(end.allocation == key for end in self.table.unacknowledged()):
            self.acked.add(key)
        self.feed(Ack(allocations=(key,)))

    @rule()
    def restart(self) -> None:
        """The launcher knows what was run and is not forgotten, and what was stopped and is over."""
        known = []
        for key in [key for key in self.waits if key not in self.ended]:  # nothing of it was started, or ever is
            del self.runs[key]
        self.waits.clear()
        for key in (*self.runs, *(self.ended - {*self.runs})):
            if key not in self.acked:
                over = key in self.ended
                one = Known(key, State.ENDED if over else State.RUNNING, DONE if over else None)
                known.append((one, None if over else keep(launch(key, self.grants[key])), 7))
        already_over = self.table._over
        self.table = Table()
        self.table.restore(known, self.now)
        self.table._over = already_over  # the supervisor's part of the promise

    @invariant()
    def nothing_runs_twice(self) -> None:
        assert all(count == 1 for count in self.runs.values()), self.runs

    @invariant()
    def nothing_is_held_by_two(self) -> None:
        cores: set[int] = set()
        shared: dict[int, int] = {}
        gpus: dict[str, int] = {}
        for holding in self.table.holdings():
            assert not cores & {*holding.grant.cores}
            cores |= {*holding.grant.cores}
            if holding.grant.shared_core >= 0:
                shared[holding.grant.shared_core] = shared.get(holding.grant.shared_core, 0) + (
                    holding.grant.shared_milli
                )
            for share in holding.grant.gpus:
                gpus[share.uuid] = gpus.get(share.uuid, 0) + share.milli
        assert not cores & {*shared}
        assert all(milli <= 1000 for milli in (*shared.values(), *gpus.values()))

    @invariant()
    def what_runs_and_is_not_over_holds_what_it_was_granted(self) -> None:
        held = {holding.allocation: holding.grant for holding in self.table.holdings()}
        for key in {*self.runs} - self.ended:
            assert held.get(key, Grant()) == (Grant() if self.table.chains.waits(key) else self.grants[key])
            assert key in self.waits or key in held, "what runs holds what it was granted"

    @invariant()
    def an_end_is_told_and_kept_until_it_is_acknowledged(self) -> None:
        kept = {end.allocation for end in self.table.unacknowledged()}
        assert self.ended - self.acked == kept
        assert self.ended <= {*self.told}


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=tries(40, 15), stateful_step_count=40, deadline=None)


def test_only_a_boost_and_what_is_not_known_may_be_a_raylet() -> None:
    table = running(Table())
    assert not table.may_be_raylet("j.1")
    table.restore([(Known("j.2", State.RUNNING), None, 0), (Known("j.3", State.RUNNING), Kept(raylet=True), 0)], 10.0)
    assert table.may_be_raylet("j.2") and table.may_be_raylet("j.3") and table.may_be_raylet("j.4")
