"""The only process of the grid that imports ray: a child of the coordinator, which asks it by JSON lines and could not
bear what ray does to the process it is in (signal handlers taken, an abort when the cluster is gone).

A question is `{"id": 1, "ask": "nodes", …}`, its answer `{"id": 1, "ok": …}` or `{"id": 1, "error": what, "why": why}`,
in the order in which they are ready. It ends when its stdin does. Run as `python -m
distributed_grid.coordinator.ray.bridge ADDRESS`, with `RAY_AUTH_MODE` set: ray guesses otherwise, and not the same
everywhere.
"""

import json
import os
import platform
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray
from ray._raylet import GcsClient
from ray.core.generated import autoscaler_pb2

STATE_SECONDS = 3.0
"""How long the cluster may take to answer what it knows by heart."""
NAMESPACE = "grid"
AT_ONCE = 8
SPREAD = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


class Refused(Exception):
    """It cannot be done: what, and why."""


class Cluster:
    """The questions that can be asked, one method each. `address` is that of the cluster's head, HOST:PORT."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._gcs = GcsClient(address=address)
        self._driving = threading.Lock()
        self._driven = False

    def cluster(self) -> dict[str, Any]:
        """Which cluster it is, and what it runs; beside that what runs here."""
        told = json.loads(self._gcs.internal_kv_get(b"CLUSTER_METADATA", b"cluster", timeout=STATE_SECONDS))
        return {
            "id": self._gcs.cluster_id.hex(),
            "ray": told["ray_version"],
            "python": told["python_version"],
            "here": {"ray": ray.__version__, "python": platform.python_version()},
        }

    def nodes(self) -> dict[str, Any]:
        """All nodes that are alive, with what they have and what of it is free (cores, GPUs, bytes), and how many
        requests wait for room."""
        reply = autoscaler_pb2.GetClusterResourceStateReply.FromString(
            self._gcs.get_cluster_resource_state(timeout_s=STATE_SECONDS)
        )
        state, infos = reply.cluster_resource_state, self._infos()
        nodes = [
            {
                "id": node.node_id.hex(),
                "ip": node.node_ip_address,
                **infos.get(node.node_id.hex(), {"name": "", "host": ""}),
                "status": autoscaler_pb2.NodeStatus.Name(node.status).lower(),
                "labels": dict(node.labels),
                "total": dict(node.total_resources),
                "available": dict(node.available_resources),
                "idle": node.idle_duration_ms / 1000,
            }
            for node in state.node_states
        ]
        alive = [node for node in nodes if node["status"] != "dead"]
        return {"nodes": alive, "pending": sum(one.count for one in state.pending_resource_requests)}

    def _infos(self) -> dict[str, dict[str, str]]:
        known = self._gcs.get_all_node_info(timeout=STATE_SECONDS)
        return {key.hex(): {"name": one.node_name, "host": one.node_manager_hostname} for key, one in known.items()}

    def drain(self, node: str, message: str, within: float) -> bool:
        """Have a node take nothing more, as it will be taken away in so many seconds. Ray does not enforce that."""
        accepted, why = self._gcs.drain_node(
            node, autoscaler_pb2.DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION, message, _deadline(within)
        )
        if not accepted:
            raise Refused("Ray does not drain that node", why)
        return True

    def reserve(
        self, name: str, bundles: list[dict[str, float]], strategy: str, selectors: list[dict[str, str]], within: float
    ) -> list[str]:
        """Have a placement group of this name, one that stays when we go, and the nodes its bundles are on. What cannot
        be had within that time leaves nothing behind."""
        from ray.util.placement_group import placement_group

        self._drive()
        if strategy not in SPREAD:
            raise Refused(f"there is no strategy {strategy!r}", f"Ray has {', '.join(SPREAD)}")
        group = placement_group(
            bundles, strategy=strategy, name=name, lifetime="detached", bundle_label_selector=selectors or None
        )
        if not group.wait(within):
            self.release(name)
            raise Refused("Ray has no room", f"it could not reserve {_words(bundles)} within {within:g} s")
        table = self._table(group)
        return [table["bundles_to_node_id"][index] for index in range(len(bundles))]

    def release(self, name: str) -> bool:
        """Let go of the group of this name. False: there is none."""
        from ray.util.placement_group import get_placement_group, remove_placement_group

        self._drive()
        try:
            remove_placement_group(get_placement_group(name))
        except ValueError:  # what ray raises for a name that is not there
            return False
        return True

    def reserved(self) -> dict[str, str]:
        """The groups that have a name and are there, by name: their state in Ray's words."""
        from ray.util import placement_group_table

        self._drive()
        groups = placement_group_table().values()
        return {group["name"]: group["state"] for group in groups if group["name"] and group["state"] != "REMOVED"}

    def _table(self, group: Any) -> dict[str, Any]:
        from ray.util import placement_group_table

        return dict(placement_group_table(group))

    def _drive(self) -> None:
        """Be a driver of the cluster, which groups need and a look does not. Not in the main thread, where ray would
        take the signal handlers."""
        with self._driving:
            if not self._driven:
                ray.init(
                    address=self._address,
                    namespace=NAMESPACE,
                    log_to_driver=False,
                    configure_logging=False,
                    _skip_env_hook=True,
                )
                self._driven = True


def _deadline(seconds: float) -> int:
    """The wall clock then, in milliseconds since 1970, as Ray counts."""
    return int((time.time() + seconds) * 1000)


def _words(bundles: list[dict[str, float]]) -> str:
    return " + ".join(", ".join(f"{amount:g} {name}" for name, amount in bundle.items()) for bundle in bundles)


ASKED = ("cluster", "nodes", "drain", "reserve", "release", "reserved")


def _answer(asked: Callable[..., Any], question: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"ok": asked(**question)}
    except Refused as refused:
        what, why = refused.args
        return {"error": what, "why": why}
    except Exception as error:  # whatever ray raises: it is the coordinator's to say, and this process goes on
        lines = str(error).strip().splitlines()
        return {"error": "Ray does not answer as it should", "why": f"{type(error).__name__}: {' '.join(lines[:2])}"}


def main(address: str) -> None:
    """Answer until nobody asks."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever ray prints is no answer
    writing = threading.Lock()
    cluster = Cluster(address)

    def respond(question: dict[str, Any]) -> None:
        number, ask = question.pop("id"), question.pop("ask")
        answer = _answer(getattr(cluster, ask), question) if ask in ASKED else {"error": f"what is {ask!r}?", "why": ""}
        with writing:
            answers.write(json.dumps({"id": number, **answer}) + "\n")

    with ThreadPoolExecutor(AT_ONCE) as threads:
        for line in sys.stdin:
            threads.submit(respond, json.loads(line))
    os._exit(0)  # a driver takes its time to leave, and has nothing to say that anybody waits for


if __name__ == "__main__":
    main(sys.argv[1])
