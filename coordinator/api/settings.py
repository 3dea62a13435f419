"""The grid's settings for its nodes. The configuration for all nodes is overridden by the configuration for one node,
and that by an operator's orders for the node. Agents get them when they connect, and when they change."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from distributed_grid.coordinator.api.relay import Agent
from distributed_grid.coordinator.core.commands import BalancingConfigured, Event
from distributed_grid.coordinator.core.queue.admission import unknown_node
from distributed_grid.coordinator.core.scaling.events import ScalingConfigured
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol import messages
from distributed_grid.protocol.errors import BadFrame, BadValue, GridError
from distributed_grid.protocol.nodes import Layer, Lending, check_facts, over
from distributed_grid.protocol.scaling.pools import NO_SCALING, Scaling
from distributed_grid.protocol.sharing.policies import Balancing
from distributed_grid.protocol.text import listed

CHANGES = 20
"""Maximum number of changed settings named in an answer."""


CALLED = {"excess": "excess_threshold", "interval": "rebalance_interval_seconds", "marks": "pressure thresholds"}
"""What the settings of rebalancing are called in the configuration, where that is something else."""


class SharingDisabled(GridError):
    """The grid's configuration says `resource_sharing.enabled: false`."""

    code = "sharing-disabled"


class Configured(msgspec.Struct, frozen=True):
    """The configuration: for all nodes, and for single ones by name; of rebalancing, and of scaling, with the settings
    of providers, and those of each pool for its provider. `rest`: all other settings as text, which take effect at the
    next start."""

    general: Layer = Layer()
    nodes: Mapping[str, Layer] = {}
    rest: Mapping[str, str] = {}
    balancing: Balancing = Balancing()
    scaling: Scaling = NO_SCALING
    providers: Mapping[str, dict[str, Any]] = {}
    pools: Mapping[str, dict[str, Any]] = {}

    def of(self, node: str) -> Layer:
        """Return the configuration of this node."""
        return over(self.general, self.nodes.get(node, Layer()))


NOTHING = Configured()


class GridSettings:
    """The settings of all nodes. `agents` are the connected ones; `read` reads the configuration again, and `put` tells
    the ledger what it says of rebalancing and scaling; `scaled` is called where there are pools, or machines
    of pools that there were."""

    def __init__(
        self,
        state: GridState,
        agents: Mapping[str, Agent],
        configured: Configured,
        read: Callable[[], Awaitable[Configured]] | None,
        put: Callable[[Event], None],
        scaled: Callable[[Configured], None] = lambda now: None,
    ) -> None:
        self._state, self._agents = state, agents
        self._configured = self._started_with = configured
        self._read = read
        self._put = put
        self._scaled = scaled

    def of(self, name: str) -> Layer:
        """The grid's settings for this node."""
        node = self._state.nodes.get(name)
        order = node.orders.lending if node is not None else None
        if order is None:
            return self._configured.of(name)
        origins = dict.fromkeys(order.values.given(), f"order of {order.by}")
        return over(self._configured.of(name), Layer(order.values, origins))

    def send(self, name: str) -> None:
        """Send the agent of this node its settings, if it is connected."""
        if (agent := self._agents.get(name)) is not None:
            agent.control.send(messages.NewSettings(self.of(name)))

    def reported(self, agent: Agent, message: messages.InEffect) -> None:
        """An agent tells what is in effect there. Raises BadFrame for what no node can lend."""
        facts = msgspec.structs.replace(agent.facts, lendable=message.lendable)
        try:
            check_facts(facts)
        except BadValue as error:
            raise BadFrame(error.what, error.why) from None
        agent.facts, agent.settings = facts, message.settings

    def require_sharing(self) -> None:
        """Raise SharingDisabled where nothing is lent and run in this grid."""
        if self._configured.general.values.enabled is False:
            origin = self._configured.general.origins.get("enabled", "")
            hint = "set resource_sharing.enabled: true on the master, then: grid coordinator reload"
            why = "resource_sharing.enabled is false" + (f" ({origin})" if origin else "")
            raise SharingDisabled("Resource sharing not enabled", why, hint)

    def answer(self, asked: messages.GetSettings) -> messages.NodeSettings:
        """The settings in effect on a node. Raises GridError for one that is not known."""
        node, agent = self._state.nodes.get(asked.node), self._agents.get(asked.node)
        if node is None:
            refused = unknown_node(self._state, 0, asked.node)
            raise BadValue(refused.what, refused.why, refused.hint)
        if agent is None or agent.settings is None:
            return messages.NodeSettings(asked.id, asked.node, self.of(asked.node), connected=False)
        withheld = node.offer.withheld if node.offer is not None else ()
        closed = "; ".join(one.why for one in withheld if one.what == "node")
        return messages.NodeSettings(asked.id, asked.node, agent.settings, closed=closed)

    async def reload(self) -> str:
        """Read the configuration again and send it to the nodes; returns a text about what has changed. Raises
        GridError if it cannot be used: then nothing has changed."""
        if self._read is None:
            raise GridError("this coordinator was not started with a configuration that can be read again")
        now = await self._read()
        before, self._configured = self._configured, now
        for name in self._agents:
            if before.of(name) != now.of(name):
                self.send(name)
        if before.balancing != now.balancing:
            self._put(BalancingConfigured(now.balancing))
        # Machines of pools that are configured no more are still to end as the configuration says.
        there = before.scaling.pools or now.scaling.pools or self._state.scaling.machines
        if there or before.scaling != now.scaling:
            self._scaled(now)
            self._put(ScalingConfigured(now.scaling))
        rest = self._started_with.rest
        later = sorted(name for name in now.rest.keys() | rest.keys() if now.rest.get(name) != rest.get(name))
        said = f"changed: {listed(changed, CHANGES)}" if (changed := _changed(before, now)) else "nothing has changed"
        if later:
            said += f"; from the next start on: {listed(later, CHANGES)}"
        if strangers := sorted(now.nodes.keys() - self._state.nodes.keys()):
            said += f"; the grid has no node {listed(strangers, CHANGES)}"
        return said


def _changed(before: Configured, now: Configured) -> list[str]:
    """The names of the settings that differ."""
    found = [f"resource_sharing: {name}" for name in _differ(before.general.values, now.general.values)]
    for node in sorted(before.nodes.keys() | now.nodes.keys()):
        old, new = before.nodes.get(node, Layer()).values, now.nodes.get(node, Layer()).values
        found += [f"nodes[{node}]: {name}" for name in _differ(old, new)]
    was, is_now = before.balancing, now.balancing
    differ = (name for name in Balancing.__struct_fields__ if getattr(was, name) != getattr(is_now, name))
    found += sorted(f"resource_sharing: {CALLED.get(name, name)}" for name in differ)
    return found + [name for name in ("scaling", "providers", "pools") if getattr(before, name) != getattr(now, name)]


def _differ(before: Lending, now: Lending) -> list[str]:
    old, new = before.given(), now.given()
    return sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
