"""An agent with real jobs under a real supervisor, and a coordinator that is played by the test over a real socket."""

import asyncio
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from distributed_grid.agent.launch import raylet
from distributed_grid.protocol.boosts import Boost
from distributed_grid.protocol.jobs import Cause, State
from distributed_grid.protocol.messages import (
    Ack,
    Buckets,
    BucketsKept,
    Exited,
    Heartbeat,
    InEffect,
    Inventory,
    Launch,
    NewSettings,
    Output,
    Renewed,
    Signal,
    Stale,
    Started,
    Stop,
    WantOutput,
)
from distributed_grid.protocol.nodes import GpuSample, Layer, Lending, Offer, OwnerPolicy, Sample, Withheld
from distributed_grid.protocol.resources import Grant, Resources, ResourceType
from tests.agent.scene import (
    CORES,
    LONG,
    Coordinator,
    Node,
    _kill,
    clean,
    launch,
    open_gate,
)
from tests.agent.scene import coordinator as coordinator
from tests.agent.scene import node as node

# --- the connection ---------------------------------------------------------------------------------------------------


async def test_a_node_whose_jobs_are_hidden_from_its_agent_lends_nothing(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    node = Node(tmp_path, f"ws://127.0.0.1:{coordinator.port}", hidden="/proc hides processes")
    try:
        offer = await coordinator.hears(Offer)
        assert (offer.resources, offer.withheld) == (Resources(), (Withheld("node", "/proc hides processes"),))
    finally:
        await node.stop()
        await clean(tmp_path)


async def test_an_agent_tells_its_inventory_then_its_offer_then_heartbeats(
    coordinator: Coordinator, node: Node
) -> None:
    assert (coordinator.hellos[0].role, coordinator.hellos[0].name) == ("agent", "node1")
    assert coordinator.frames[0][0] == Inventory(known=())
    offer = coordinator.frames[0][1]
    assert isinstance(offer, Offer) and set(offer.cores) == {*CORES} and offer.counting == ()
    beat = await coordinator.hears(Heartbeat, count=2)
    assert beat.sample.memory_total > 0


async def test_an_end_that_was_not_acknowledged_is_told_again_after_the_inventory_and_the_offer(
    coordinator: Coordinator, node: Node
) -> None:
    await coordinator.say(launch("j0.1", "sh", "-c", "exit 7"), launch("j1.1", *LONG))
    first = await coordinator.hears(Exited, "j0.1")
    await coordinator.hears(Started, "j1.1")
    assert first.outcome.code == 7
    await coordinator.leave()
    coordinator.frames.clear()
    coordinator.sessions = 0
    await coordinator.listen()
    await coordinator.connected()
    again = await coordinator.hears(Exited, "j0.1")
    said = [message for frame in coordinator.frames for message in frame if not isinstance(message, Heartbeat)]
    assert [type(one) for one in said[:3]] == [Inventory, Offer, Exited]
    assert {(one.allocation, one.state) for one in said[0].known} == {("j0.1", State.ENDED), ("j1.1", State.RUNNING)}
    assert said[1].counting == ("j1.1",) and 1 not in said[1].cores
    assert again.outcome == first.outcome
    await coordinator.say(Ack(allocations=("j0.1",)))
    await coordinator.cut("agent")
    await coordinator.connected(2)
    assert [one.allocation for one in coordinator.all(Inventory)[-1].known] == ["j1.1"]


async def test_what_was_measured_while_the_coordinator_was_away_is_told_until_it_is_acknowledged(
    coordinator: Coordinator, node: Node
) -> None:
    newest = (await coordinator.hears(Heartbeat)).sample
    await coordinator.cut("agent")
    later = [msgspec.structs.replace(newest, at=newest.at + seconds, own_cpu=7.0) for seconds in (1000, 1010, 1020)]
    for sample in later:
        node.runtime._measured(sample)
    await coordinator.connected(2)
    numbers = [int(one.at // 10) for one in later]
    told = [bucket.number for message in coordinator.all(Buckets) for bucket in message.buckets]
    assert told[-2:] == numbers[:2]
    await coordinator.say(BucketsKept(through=numbers[0]))
    await coordinator.say(launch("j0.1", "true"))
    await coordinator.hears(Exited, "j0.1")
    before = len(coordinator.all(Buckets))
    await coordinator.cut("agent")
    await coordinator.connected(3)
    (again,) = coordinator.all(Buckets)[before:]
    assert [bucket.number for bucket in again.buckets] == [numbers[1]]


async def test_what_ends_while_the_coordinator_is_away_is_told_when_it_is_back(
    coordinator: Coordinator, node: Node, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    await coordinator.say(launch("j0.1", "sh", "-c", f"read x < {gate}; exit 5"))
    await coordinator.hears(Started, "j0.1")
    await coordinator.leave()
    await open_gate(gate)
    await coordinator.until(lambda: not node.runtime.table.runs("j0.1"))
    assert not coordinator.all(Exited)
    await coordinator.listen()
    assert (await coordinator.hears(Exited, "j0.1")).outcome.code == 5


# --- jobs -------------------------------------------------------------------------------------------------------------


async def test_a_job_runs_and_its_end_returns_what_it_held(coordinator: Coordinator, node: Node) -> None:
    await coordinator.say(launch("j0.1", "sh", "-c", "echo out; echo err >&2; exit 7"))
    started = await coordinator.hears(Started, "j0.1")
    ended = await coordinator.hears(Exited, "j0.1")
    assert started.pid > 0 and ended.returned
    outcome = ended.outcome
    assert (outcome.cause, outcome.code, outcome.stdout_tail, outcome.stderr_tail) == (
        Cause.EXITED, 7, b"out\n", b"err\n",
    )  # fmt: skip


async def test_a_job_gets_the_grids_environment_and_a_fresh_directory(coordinator: Coordinator, node: Node) -> None:
    script = "pwd; echo $GRID_NODE $GRID_JOB_ID $GRID_ALLOCATION_ID $OWN; ls -A | wc -l"
    await coordinator.say(launch("j0.1", "sh", "-c", script, env={"OWN": "x"}))
    tail = (await coordinator.hears(Exited, "j0.1")).outcome.stdout_tail.decode()
    folder, *rest = tail.splitlines()
    assert rest == ["node1 j0 j0.1 x", "0"]
    assert Path(folder).parents[1] == node.dir / "jobs" and folder.endswith("/j0.1")


async def test_a_launch_sent_twice_runs_once(coordinator: Coordinator, node: Node, tmp_path: Path) -> None:
    order = launch("j0.1", "sh", "-c", f"echo ran >> {tmp_path}/ran")
    await coordinator.say(order, order)
    await coordinator.hears(Exited, "j0.1")
    await coordinator.say(order)
    await coordinator.hears(Exited, "j0.1", count=2)
    assert (tmp_path / "ran").read_text() == "ran\n"


async def test_what_was_acknowledged_is_not_run_by_the_next_agent_and_supervisor_either(
    coordinator: Coordinator, node: Node, tmp_path: Path
) -> None:
    key = f"j-{os.getpid()}-0.1"  # the next supervisor looks for what is left of its jobs by their ids
    order = launch(key, "sh", "-c", f"echo once >> {tmp_path / 'ran'}")
    await coordinator.say(order)
    await coordinator.hears(Exited, key)
    await coordinator.say(Ack(allocations=(key,)))
    await coordinator.until(lambda: not node.runtime.table.entries)
    await coordinator.until(lambda: f'["forget","{key}"' in (node.dir / "journal").read_text())
    await node.stop()
    _kill(json.loads((node.dir / "supervisor.pid").read_text())["pid"])
    again = Node(node.dir, f"ws://127.0.0.1:{coordinator.port}")
    await coordinator.connected(2)
    await coordinator.say(order)
    await coordinator.until(lambda: len(coordinator.all(Exited, key)) == 2)
    outcome = coordinator.all(Exited, key)[-1].outcome
    assert (outcome.cause, outcome.started) == (Cause.NODE_LOST, True)
    assert (tmp_path / "ran").read_text() == "once\n"
    await again.stop()


async def test_while_no_supervisor_can_be_started_nothing_is_offered_and_jobs_are_declined(
    coordinator: Coordinator, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    await coordinator.say(launch("j0.1", "sh", "-c", f"read x < {gate}; exit 6"))
    await coordinator.hears(Started, "j0.1")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(tmp_path / "moved" / "python"))
        _kill(json.loads((node.dir / "supervisor.pid").read_text())["pid"])

        def withheld() -> str:
            offer = coordinator.all(Offer)[-1]
            return offer.withheld[0].why if offer.withheld and not offer.resources else ""

        why = await coordinator.until(withheld)
        assert why == f"no supervisor: [Errno 2] No such file or directory: '{tmp_path}/moved/python'"
        await coordinator.say(launch("j1.1"))
        assert (await coordinator.hears(Stale, "j1.1")).reason == why
    await coordinator.until(lambda: bool(coordinator.all(Offer)[-1].resources))
    await coordinator.say(launch("j2.1"))
    assert (await coordinator.hears(Exited, "j2.1")).outcome.code == 0
    await open_gate(gate)
    assert (await coordinator.hears(Exited, "j0.1")).outcome.code == 6


async def test_the_folder_of_a_boost_that_ended_without_an_agent_is_removed_by_the_next_one(
    coordinator: Coordinator, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With Ray's sockets and logs, and the copy of the cluster's token."""
    gate, key = tmp_path / "gate", f"j-{os.getpid()}-0.1"
    os.mkfifo(gate)

    def prepare(order: Launch, *_: object) -> raylet.Lease:
        (raylet.make_folder(order.allocation) / raylet.COPY_NAME).touch()
        return raylet.Lease(("sh", "-c", f"read x < {gate}"), {})

    monkeypatch.setattr(raylet, "prepare", prepare)
    boost = Boost("gpu-master", "192.0.2.1:6379", ResourceType.CPU, 1000)
    await coordinator.say(launch(key, "ray", boost=boost))
    await coordinator.hears(Started, key)
    assert raylet.folder(key).exists()
    await node.stop()
    await open_gate(gate)
    await coordinator.until(lambda: f'["exit","{key}"' in (node.dir / "journal").read_text())
    again = Node(node.dir, f"ws://127.0.0.1:{coordinator.port}")
    await coordinator.hears(Exited, key)
    assert not raylet.folder(key).exists()
    await again.stop()


async def test_a_core_held_by_another_job_is_refused(coordinator: Coordinator, node: Node) -> None:
    await coordinator.say(launch("j0.1", *LONG), launch("j1.1", grant=Grant(cores=(0,), virtual=True)))
    stale = await coordinator.hears(Stale, "j1.1")
    assert (stale.reason, stale.device) == ("core 0 is held by j0.1", "0")
    assert not coordinator.all(Started, "j1.1")


async def test_only_while_something_is_leased_heartbeats_ask_for_renewal_and_what_is_answered_reaches_the_supervisor(
    coordinator: Coordinator, node: Node
) -> None:
    await coordinator.until(lambda: len(coordinator.all(Heartbeat)) > 2)
    assert not any(beat.at for beat in coordinator.all(Heartbeat))
    leased = msgspec.structs.replace(launch("j0.1", *LONG), lease=4.0)
    await coordinator.say(leased, msgspec.structs.replace(launch("j1.1", *LONG), lease=4.0), launch("j2.1", *LONG))
    await coordinator.hears(Started, "j2.1")

    def renew() -> bool:
        """Until nobody could live on the first lease."""
        newest = coordinator.all(Heartbeat)[-1].at
        if newest:
            renewed.append(newest)
        return bool(renewed) and newest - renewed[0] > 5.0

    renewed: list[float] = []
    while not renew():
        await coordinator.say(Renewed(at=renewed[-1] if renewed else 0.0))
        await asyncio.sleep(0.1)
    assert not coordinator.all(Exited)
    outcome = (await coordinator.hears(Exited, "j0.1")).outcome  # from now on nobody answers
    assert outcome.cause is Cause.LEASE_EXPIRED
    assert (await coordinator.hears(Exited, "j1.1")).outcome.cause is Cause.LEASE_EXPIRED
    await coordinator.until(lambda: not coordinator.all(Heartbeat)[-1].at)
    assert not coordinator.all(Exited, "j2.1")


async def test_a_stop_ends_a_job_and_a_signal_reaches_it(coordinator: Coordinator, node: Node) -> None:
    await coordinator.say(launch("j0.1", "sh", "-c", "trap 'exit 9' INT; echo up; while :; do sleep 0.01; done"))
    await coordinator.say(launch("j1.1", *LONG))
    await coordinator.hears(Started, "j0.1")
    await coordinator.hears(Started, "j1.1")
    stdout = node.dir / "allocs/j0.1/stdout"
    await coordinator.until(lambda: stdout.exists() and stdout.read_bytes())
    await coordinator.say(Signal(allocation="j0.1", signal=signal.SIGINT), Stop(allocation="j1.1"))
    assert (await coordinator.hears(Exited, "j0.1")).outcome.code == 9
    outcome = (await coordinator.hears(Exited, "j1.1")).outcome
    assert (outcome.cause, outcome.signal) == (Cause.CANCELLED, signal.SIGTERM)


async def test_a_stop_that_comes_before_its_launch_keeps_it_from_running(coordinator: Coordinator, node: Node) -> None:
    await coordinator.say(Stop(allocation="j0.1"), launch("j0.1"))
    outcome = (await coordinator.hears(Exited, "j0.1")).outcome
    assert (outcome.cause, outcome.started) == (Cause.CANCELLED, False)
    await coordinator.say(launch("j0.1"))
    await coordinator.hears(Exited, "j0.1", count=2)
    assert not coordinator.all(Started)


async def test_an_id_that_would_lead_out_of_the_state_directory_fails_alone(
    coordinator: Coordinator, node: Node
) -> None:
    await coordinator.say(launch("../0.1"), launch("j1.1"))
    assert (await coordinator.hears(Exited, "../0.1")).outcome.cause is Cause.WORKDIR_FAILED
    assert (await coordinator.hears(Exited, "j1.1")).outcome.code == 0


async def test_a_job_that_does_not_free_what_is_offered_again_brings_a_new_offer_in_the_same_frame(
    coordinator: Coordinator, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node.runtime._lender, "would_return", lambda grant, holdings: False)
    await coordinator.say(launch("j0.1"))
    ended = await coordinator.hears(Exited, "j0.1")
    assert not ended.returned
    (frame,) = [frame for frame in coordinator.frames if ended in frame]
    offers = [one for one in frame if isinstance(one, Offer)]
    assert offers and "j0.1" not in offers[-1].counting and frame.index(offers[-1]) > frame.index(ended)


async def test_a_measurement_that_hangs_stops_no_heartbeat_and_gpus_are_told_as_unreadable(
    coordinator: Coordinator, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distributed_grid.agent.sampling.probe.STUCK_AFTER", 0.1)
    sample = node.probe.sample
    release = threading.Event()

    def hanging(at: float | None = None, read_gpus: bool = True) -> Sample:
        release.wait(20)
        return sample(at, read_gpus)

    newest = node.runtime._meter.newest
    assert newest is not None
    node.runtime._meter.newest = msgspec.structs.replace(newest, gpus=(GpuSample("GPU-a", memory_total=1),))
    monkeypatch.setattr(node.probe, "sample", hanging)
    stuck = await coordinator.until(
        lambda: [one for one in coordinator.all(Heartbeat) if "hangs" in one.sample.gpu_error]
    )
    before = len(coordinator.all(Heartbeat))
    await coordinator.hears(Heartbeat, count=before + 3)
    assert all("hangs" in gpu.error for gpu in stuck[-1].sample.gpus)
    release.set()


# --- bulk data --------------------------------------------------------------------------------------------------------


async def test_output_is_told_as_it_comes_to_many_who_wait(
    coordinator: Coordinator, node: Node, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    await coordinator.say(launch("j0.1", "sh", "-c", f"read x < {gate}; printf 'a\\rb'; printf c >&2"))
    await coordinator.hears(Started, "j0.1")
    await coordinator.open_data()
    want = WantOutput(id=0, allocation="j0.1", stream="stdout", offset=0, size=100, wait=20)
    await coordinator.say_data(*[msgspec.structs.replace(want, id=number) for number in range(50)])
    await open_gate(gate)
    for number in range(50):
        answer = await coordinator.answers(number)
        assert isinstance(answer, Output) and answer.data == b"a\rb"
    await coordinator.say_data(WantOutput(id=100, allocation="j0.1", stream="stdout", offset=3, size=9, wait=20))
    last = await coordinator.answers(100)
    assert (last.data, last.end) == (b"", True)


async def test_the_data_connection_is_opened_again_after_it_broke(coordinator: Coordinator, node: Node) -> None:
    await coordinator.say(launch("j0.1", "printf", "x"))
    await coordinator.hears(Exited, "j0.1")
    await coordinator.open_data()
    await coordinator.cut("agent-data")
    await coordinator.open_data()
    await coordinator.say_data(WantOutput(id=1, allocation="j0.1", stream="stdout", offset=0, size=9))
    assert (await coordinator.answers(1)).data == b"x"
    hellos = [hello for hello in coordinator.hellos if hello.role == "agent-data"]
    assert [(hello.session, hello.facts) for hello in hellos] == [("s1", None)] * 2


# --- the grid's settings ----------------------------------------------------------------------------------------------


def layer(**values: Any) -> Layer:
    return Layer(Lending(**values), dict.fromkeys(values, "grid"))


async def test_an_agent_follows_the_settings_it_is_welcomed_with_before_it_offers_anything(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    coordinator.settings = layer(max_share_cpu=2.0, priority=0.5)
    (tmp_path / "agent").mkdir()
    node = Node(tmp_path / "agent", f"ws://127.0.0.1:{coordinator.port}")
    await coordinator.connected()
    offers, told = coordinator.all(Offer), await coordinator.hears(InEffect)
    assert {len(one.cores) for one in offers} == {2}
    assert (told.lendable.cpu, told.settings.values.priority) == (2000, 0.5)
    assert told.settings.origins["max_share_cpu"] == "grid"
    await coordinator.cut("agent")
    await coordinator.connected(2)
    facts = coordinator.hellos[-1].facts
    assert facts is not None and (facts.lendable.cpu, facts.priority) == (2000, 0.5)
    await node.stop()
    await clean(node.dir)


async def test_new_settings_count_at_once_and_running_jobs_go_on(coordinator: Coordinator, node: Node) -> None:
    await coordinator.say(launch("j0.1", *LONG))
    await coordinator.hears(Started, "j0.1")
    node.runtime._meter.follow(600.0)
    await coordinator.say(NewSettings(settings=layer(enabled=False, monitoring_interval_seconds=0.1)))
    await coordinator.until(lambda: not coordinator.all(Offer)[-1].resources)
    (withheld,) = coordinator.all(Offer)[-1].withheld
    assert withheld.why == "shares nothing (resource_sharing.enabled is false: grid)"
    assert coordinator.all(InEffect)[-1].lendable == Resources()
    measured = {sample.at for sample in (node.runtime._meter.newest,) if sample is not None}

    def went_on() -> bool:
        if (sample := node.runtime._meter.newest) is not None:
            measured.add(sample.at)
        return len(measured) > 3

    await coordinator.until(went_on)
    await coordinator.say(launch("j1.1"))
    assert "shares nothing" in (await coordinator.hears(Stale, "j1.1")).reason
    await coordinator.say(NewSettings(settings=layer(owner_policy=OwnerPolicy.RECALL, owner_input=True)))
    await coordinator.until(lambda: len(coordinator.all(Offer)[-1].cores) == len(CORES) - 1)
    assert node.runtime._owner._owner.limits.owner_policy is OwnerPolicy.RECALL
    assert node.probe._input is not None
    assert not coordinator.all(Exited), "what runs goes on"


async def test_settings_out_of_bounds_end_neither_the_agent_nor_what_was_in_effect(
    coordinator: Coordinator, node: Node
) -> None:
    coordinator.settings = layer(max_share_cpu=3.0)
    await coordinator.say(NewSettings(settings=coordinator.settings))
    await coordinator.until(lambda: len(coordinator.all(Offer)[-1].cores) == 3)
    for wild in (-1.0, 1e300, float("nan")):
        sessions = coordinator.sessions
        await coordinator.say(NewSettings(settings=layer(max_share_cpu=wild)))
        await coordinator.connected(sessions + 1)
    assert not node.task.done()
    assert {len(one.cores) for one in coordinator.all(Offer)[-3:]} == {3}
