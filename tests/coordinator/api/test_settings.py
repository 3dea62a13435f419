"""The grid's settings reach the agents: at the connection, when they are read again, and when an operator orders
something; and who asks is told what is in effect."""

import asyncio
import itertools
from pathlib import Path
from typing import Any

from distributed_grid.coordinator.api.settings import NOTHING, Configured
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.jobs import JobSpec, Request
from distributed_grid.protocol.messages import (
    AskWhy,
    Done,
    Failed,
    GetSettings,
    InEffect,
    NewSettings,
    NodeSettings,
    ReloadSettings,
    RequestBoost,
    SetNodes,
    Submission,
    Submitted,
    Welcome,
)
from distributed_grid.protocol.messages import Submit as SubmitJobs
from distributed_grid.protocol.nodes import Layer, Lending, OwnerPolicy
from distributed_grid.protocol.resources import GIB, Resources, ResourceType
from distributed_grid.protocol.scaling.pools import Scaling, ScalingMode
from tests.coordinator.ends import AgentEnd, ClientEnd, Coordinator, agent, client, coordinator, node

numbers = itertools.count(1)


def layer(origin: str, **values: Any) -> Layer:
    return Layer(Lending(**values), dict.fromkeys(values, origin))


FILE = Configured(
    layer("grid: grid.yaml:2", enabled=True, owner_policy=OwnerPolicy.RECALL, offer_expiry=60.0),
    {"n1": layer("grid, nodes[n1]: grid.yaml:9", can_share=False, owner_policy=OwnerPolicy.SUSPEND)},
    {"coordinator.port": "1"},
)


def submission(key: str = "k") -> Submission:
    return Submission(key, JobSpec(("true",)), Request(Resources(1000)))


def welcomed(end: AgentEnd) -> Layer:
    (welcome,) = [one for one in end.seen if isinstance(one, Welcome)]
    return welcome.settings


def sent(end: AgentEnd) -> list[Layer]:
    return [one.settings for one in end.seen if isinstance(one, NewSettings)]


async def reload(grid: Coordinator, person: ClientEnd, configured: Configured) -> Any:
    grid.configured = configured
    return await person.ask(ReloadSettings(next(numbers)))


async def test_a_node_is_welcomed_with_what_is_said_of_it_over_what_is_said_of_all(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        person = await client(grid.url)
        await reload(grid, person, FILE)
        first, second = await agent(grid.url, node("n1")), await agent(grid.url, node("n2"))
        assert welcomed(second) == FILE.general
        assert welcomed(first).values == Lending(
            enabled=True, owner_policy=OwnerPolicy.SUSPEND, offer_expiry=60.0, can_share=False
        )
        assert welcomed(first).origins["owner_policy"] == "grid, nodes[n1]: grid.yaml:9"
        assert not any(one.settings.values.given() for one in person.seen if isinstance(one, Welcome))
        for end in (first, second, person):
            await end.close()


async def test_how_machines_end_is_read_again_also_where_no_pool_is_configured(tmp_path: Path) -> None:
    """As where a pool was removed before the mode was changed: its machines are still there."""
    async with coordinator(tmp_path) as grid:
        person = await client(grid.url)
        said = await reload(grid, person, Configured(scaling=Scaling(mode=ScalingMode.ACT)))
        assert isinstance(said, Done) and said.text.endswith("scaling")
        assert grid.ledger.state.policy.scaling.mode is ScalingMode.ACT
        await person.close()


async def test_what_is_read_again_goes_to_the_nodes_that_it_concerns_and_the_rest_is_named(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        person, first, second = (
            await client(grid.url),
            await agent(grid.url, node("n1")),
            await agent(grid.url, node("n2")),
        )
        now = Configured(grid.configured.general, {**FILE.nodes, "n9": Layer()}, {"coordinator.port": "7"})
        done = await reload(grid, person, now)
        assert isinstance(done, Done)
        assert done.text == (
            "changed: nodes[n1]: can_share, nodes[n1]: owner_policy; from the next start on: coordinator.port; "
            "the grid has no node n9"
        )
        assert (await first.until(NewSettings)).settings == now.of("n1")
        again = await person.ask(ReloadSettings(next(numbers)))
        assert again.text.startswith("nothing has changed")
        assert len(sent(first)) == 1 and not sent(second)
        for end in (first, second, person):
            await end.close()


async def test_a_mistake_in_what_is_read_again_changes_nothing(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        person, worker = await client(grid.url), await agent(grid.url)

        async def bad() -> Configured:
            raise GridError("grid.yaml:3: offer_expiry: 'soon' is not a duration")

        grid.server._settings._read = bad
        failed = await person.ask(ReloadSettings(next(numbers)))
        assert isinstance(failed, Failed) and "grid.yaml:3" in failed.what
        assert not sent(worker)
        assert isinstance(await person.ask(SubmitJobs(next(numbers), (submission(),))), Submitted)
        for end in (worker, person):
            await end.close()


async def test_what_two_operators_have_read_again_at_once_reaches_the_nodes_in_its_order(tmp_path: Path) -> None:
    read, begun, goes_on = [FILE, NOTHING], 0, asyncio.Event()

    async def slowly() -> Configured:
        nonlocal begun
        begun += 1
        found = read[begun - 1]
        await goes_on.wait()
        return found

    async with coordinator(tmp_path) as grid:
        ann, bob, worker = await client(grid.url), await client(grid.url, "bob"), await agent(grid.url)
        await reload(grid, ann, NOTHING)
        grid.server._settings._read = slowly
        async with asyncio.TaskGroup() as both:
            for person in (ann, bob):
                both.create_task(person.ask(ReloadSettings(next(numbers))))
            async with asyncio.timeout(60):
                while begun < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            goes_on.set()
        await worker.until(lambda one: isinstance(one, NewSettings) and one.settings == NOTHING.of("n1"))
        assert sent(worker)[-2:] == [FILE.of("n1"), NOTHING.of("n1")]
        for end in (worker, ann, bob):
            await end.close()


async def test_an_order_stands_over_the_configuration_and_reaches_the_node_at_once(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        person, worker = await client(grid.url), await agent(grid.url)
        await reload(grid, person, FILE)
        values = Lending(can_share=True, max_share_cpu=2.0)
        assert isinstance(await person.ask(SetNodes(next(numbers), ("n1",), values)), Done)
        found = (
            await worker.until(lambda one: isinstance(one, NewSettings) and one.settings.values.can_share is True)
        ).settings
        assert (found.values.max_share_cpu, found.origins["can_share"]) == (2.0, "order of ann")
        await person.ask(SetNodes(next(numbers), ("n1",), Lending(), ("can_share", "max_share_cpu")))
        await worker.until(lambda one: isinstance(one, NewSettings) and one.settings == FILE.of("n1"))
        for end in (worker, person):
            await end.close()


async def test_a_grid_that_lends_nothing_refuses_new_jobs_and_boosts_and_knows_those_it_has(tmp_path: Path) -> None:
    off = Configured(layer("grid: grid.yaml:2", enabled=False))
    async with coordinator(tmp_path) as grid:
        person, worker = await client(grid.url), await agent(grid.url)
        taken = await person.ask(SubmitJobs(next(numbers), (submission("before"),)))
        await reload(grid, person, off)
        again = await person.ask(SubmitJobs(next(numbers), (submission("before"),)))
        assert again.jobs == taken.jobs
        for request in (
            SubmitJobs(next(numbers), (submission("after"),)),
            RequestBoost(next(numbers), "b", "n1", ResourceType.CPU, 1.0),
            AskWhy(next(numbers), request=Request(Resources(1000, GIB))),
        ):
            failed = await person.ask(request)
            assert (failed.code, failed.what) == ("sharing-disabled", "Resource sharing not enabled")
            assert "grid.yaml:2" in failed.why and "grid coordinator reload" in failed.hint
        await reload(grid, person, FILE)
        assert isinstance(await person.ask(SubmitJobs(next(numbers), (submission("after"),))), Submitted)
        for end in (worker, person):
            await end.close()


async def test_what_is_in_effect_is_as_the_agent_tells_it_and_else_as_the_grid_would_have_it(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        person, worker = await client(grid.url), await agent(grid.url)
        await reload(grid, person, FILE)
        before = await person.ask(GetSettings(next(numbers), "n1"))
        assert isinstance(before, NodeSettings) and not before.connected and before.settings == FILE.of("n1")
        mine = layer("node: own.yaml:1", can_share=False, priority=0.5)
        await worker.say(InEffect(settings=mine, lendable=Resources(1000, GIB)))
        await worker.say(InEffect(settings=mine, lendable=Resources(1000, GIB)))
        while not (told := await person.ask(GetSettings(next(numbers), "n1"))).connected:
            pass
        assert told.settings == mine
        facts = grid.ledger.state.nodes["n1"].facts
        assert (facts.lendable, facts.priority) == (Resources(1000, GIB), 0.5)
        unknown = await person.ask(GetSettings(next(numbers), "n2"))
        assert isinstance(unknown, Failed) and "unknown node 'n2'" in unknown.what
        for end in (worker, person):
            await end.close()


async def test_a_node_that_tells_what_no_node_can_lend_is_cut(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        worker = await agent(grid.url)
        before = grid.ledger.state.nodes["n1"].facts
        await worker.say(InEffect(settings=Layer(), lendable=Resources(1000, 1 << 59)))
        await worker.gone()
        assert grid.ledger.state.nodes["n1"].facts == before
        await worker.close()
