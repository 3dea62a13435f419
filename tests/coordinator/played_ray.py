"""A Ray cluster that plays its part: it shows the raylets that agents are told to start. With a real one: tests/ray."""

import asyncio
from typing import Any

from distributed_grid.coordinator.ray.bridge_client import Bridge, NoRay
from distributed_grid.protocol.boosts import LABEL, custom_resource, group_name
from distributed_grid.protocol.messages import Launch, Started
from distributed_grid.protocol.resources import ResourceType

HEAD = "192.0.2.1:6379"


class PlayedRay(Bridge):
    """Shows a head named gpu-master and the nodes that joined. `down`: it does not answer; `deaf`: a started raylet
    never joins; `answers` cleared: answers are delayed. `asked` is set by the first request."""

    def __init__(self) -> None:
        super().__init__(HEAD, {})
        self.shown = [_node("gpu-master", "host", {"CPU": 1.0}, {})]
        self.groups: dict[str, str] = {}
        """The placement groups there are, by name."""
        self.down = False
        self.deaf = False
        self.asked, self.answers, self.let_go = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.answers.set()

    async def ask(self, what: str, *, seconds: float = 10.0, **words: Any) -> Any:
        self.asked.set()
        await self.answers.wait()
        if self.down:
            raise NoRay(f"there is no Ray at {HEAD}", why="nobody listens")
        if what == "cluster":
            knows = any(words.get("node") in (one["name"], one["ip"]) for one in self.shown)
            return {"id": "c1", "ray": "2.60.0", "python": "3.11.7", "knows": knows}
        if what == "reserve":
            self.groups[words["name"]] = "CREATED"
        elif what == "release":
            self.let_go.set()
            return self.groups.pop(words["name"], None) is not None
        if what in ("reserve", "reserved", "listed"):
            return self.groups
        if what == "joined" and not any(one["labels"].get(LABEL) in words["names"] for one in self.shown):
            await asyncio.sleep(words["pause"])
            return None
        assert what in ("nodes", "joined")
        return {"nodes": list(map(self._covered, self.shown)), "demand": []}

    def _covered(self, one: dict[str, Any]) -> dict[str, Any]:
        """A node as Ray shows it once a group has all of it."""
        if group_name(one["labels"].get(LABEL, "")) not in self.groups:
            return one
        return one | {"total": one["total"] | {"CPU_group_1": one["total"]["CPU"]}}

    def joins(self, launch: Launch) -> list[Any]:
        """Return the messages of an agent that starts a raylet, which joins with what was granted."""
        boost, job = launch.spec.boost, launch.allocation.rpartition(".")[0]
        if boost is not None and not self.deaf:
            total = {"CPU": float(len(launch.grant.cores)), "GPU": float(len(launch.grant.gpus))}
            total[custom_resource(boost.target)] = total["GPU"] or total["CPU"]
            if boost.kind is ResourceType.MEMORY:
                total["memory"] = float(boost.amount)
            self.shown.append(_node(f"node-of-{job}", "host", total, {LABEL: job}))
        return [Started(launch.allocation, 1)]


def _node(name: str, host: str, total: dict[str, float], labels: dict[str, str]) -> dict[str, Any]:
    known = {"id": name, "ip": "192.0.2.2", "name": name, "host": host, "status": "idle"}
    return {**known, "labels": labels, "total": total, "available": total, "idle": 0.0}
