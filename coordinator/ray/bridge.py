"""The only process of the grid that imports ray: a child of the coordinator, which asks it by JSON lines. The
coordinator could not bear what ray does to its own process: it replaces signal handlers, and aborts when the cluster is
gone.

A question is `{"id": 1, "ask": "nodes", …}`, its answer `{"id": 1, "ok": …}` or `{"id": 1, "error": what, "why": why}`,
in the order in which they are ready. The process ends when its stdin is closed. Run as `python -m
distributed_grid.coordinator.ray.bridge ADDRESS`, with `RAY_AUTH_MODE` set: otherwise ray guesses it, and not everywhere
the same.
"""

import json
import math
import os
import platform
import re
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from distributed_grid import pip
from distributed_grid.coordinator.ray.bridge_client import BEGUN, JOBS, NAMESPACE, OURS

try:
    import ray
    from ray._raylet import GcsClient
    from ray.core.generated import autoscaler_pb2
    from ray.core.generated.gcs_service_pb2 import GetAllNodeInfoRequest
    from ray.exceptions import AuthenticationError
except ImportError as error:
    if __name__ != "__main__":
        raise
    words = {"error": "the coordinator has no Ray to ask the cluster with", "why": f"{type(error).__name__}: {error}"}
    print(json.dumps({"id": BEGUN, **words, "hint": f"on its machine: {pip.install(*pip.EXTRAS['ray'])}"}), flush=True)
    sys.exit(1)

ALIVE = 0
"""The state of a node that is alive, in Ray's list of nodes."""
STATE_SECONDS = 3.0
"""Time-out of questions that the cluster answers from memory."""
WAITING = 32
"""Reservations that may wait for room at once. They have threads of their own, so that they delay neither looks nor
releases."""
MAY_WAIT = ("reserve", "run_probe")
AT_ONCE = 8
"""Other questions that are answered at once."""
OF_CHECKING = 3.0
"""Minimum interval between looks for a node that is to join, as a multiple of what a look takes."""
OF_GROUP = re.compile(r"(CPU|GPU|memory)_group_([0-9a-f]+)")
"""Ray's name for the part of a node's resources that a placement group has reserved, all its bundles together."""
Selector = GetAllNodeInfoRequest.NodeSelector

ANOTHER = "WrongClusterID"
"""The error of a head that was restarted without the memory of the one before."""
STARTED_ANEW = "Ray's head was started anew"


UNTOLD = {"name": "", "host": "", "port": 0, "head": False}
"""For a node that is not in Ray's list of nodes (yet)."""


class Refused(Exception):
    """A question is refused: what, and why."""


class Cluster:
    """The questions that can be asked, one method each. `address` is that of the cluster's head, HOST:PORT."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._gcs = GcsClient(address=address)
        self._driving = threading.Lock()
        self._driven = False
        self._counting = threading.Lock()
        self._heads: list[str] = []
        self._runs: dict[str, str] = {}
        """The versions that the cluster runs, which change with its head only."""
        self._of_jobs: dict[str, bool] = {}
        """Whether each placement group, by its id in Ray, is for a job of the grid."""

    def cluster(self, node: str = "") -> dict[str, Any]:
        """Id and versions of the cluster; the versions here; and whether a live node has this name or address
        (`knows`)."""
        meant = (Selector(node_name=node), Selector(node_ip_address=node)) if node else ()
        found = self._infos(Selector(is_head_node=True), *meant)
        heads = sorted(key for key, one in found.items() if one["head"])
        if not heads or heads != self._heads:  # what it runs changes with its head only
            self._runs = json.loads(self._gcs.internal_kv_get(b"CLUSTER_METADATA", b"cluster", timeout=STATE_SECONDS))
            self._heads = heads
        return {
            "id": self._gcs.cluster_id.hex(),
            "ray": self._runs["ray_version"],
            "python": self._runs["python_version"],
            "knows": any(node in (one["name"], one["ip"]) for one in found.values()),
            "here": {"ray": ray.__version__, "python": platform.python_version()},
        }

    def nodes(self) -> dict[str, Any]:
        """Live nodes with total and free amounts (cores, GPUs, bytes), and pending demand: how many requests of which
        shapes; with `labels` those that ask for labels of their node, with `together` and `apart` the bundles of a
        group that have to be on one node, or on different ones."""
        state = self._state()
        alive = _nodes(state, self._infos())
        demand = [
            {"count": one.count, "shape": dict(one.request.resources_bundle)} | _wanted(one.request)
            for one in state.pending_resource_requests
        ]
        for group in state.pending_gang_resource_requests:
            bundles = Counter(tuple(sorted(one.resources_bundle.items())) for one in group.requests)
            wanted: dict[str, bool] = {name: True for one in group.requests for name in _wanted(one)}
            demand += [
                {"count": count, "shape": dict(shape), "group": True} | wanted for shape, count in bundles.items()
            ]
        return {"nodes": alive, "demand": demand}

    def joined(self, names: list[str], within: float, pause: float) -> dict[str, Any] | None:
        """As `nodes`, for nodes of these names that are alive, once there is one; None if there is none within `within`
        seconds. Ray is polled every `pause` seconds, as it notifies only its own processes, and for these names only,
        so that the cost hardly grows with the cluster."""
        meant, end = [Selector(node_name=name) for name in names], time.monotonic() + within
        while True:
            began = time.monotonic()
            if (found := self._infos(*meant)) and (there := _nodes(self._state(), found, only=True)):
                return {"nodes": there}
            now = time.monotonic()
            if now >= end:
                return None
            time.sleep(min(end - now, max(pause, OF_CHECKING * (now - began))))

    def usage(self) -> dict[str, Any]:
        """As `nodes`, with what the groups for the grid's jobs have of each node (`ours`), at the same moment: a group
        that was just made or removed counts as long as its node reports it."""
        reply = self.nodes()
        shares = {node["id"]: list(_shares(node["total"])) for node in reply["nodes"]}
        mine = self._which_are_for_jobs({group for found in shares.values() for _, group, _ in found})
        for node in reply["nodes"]:
            ours = node["ours"] = {"CPU": 0.0, "GPU": 0.0, "memory": 0.0}
            for kind, group, amount in shares[node["id"]]:
                ours[kind] += amount if group in mine else 0.0
        return reply

    def _which_are_for_jobs(self, groups: set[str]) -> set[str]:
        """Which of these groups, which are all there are, are for jobs. Ray is asked for the names of new ones only."""
        with self._counting:
            if groups - self._of_jobs.keys():
                names = {group: entry["name"] for group, entry in self._table().items()}
                self._of_jobs |= {group: names[group].startswith(JOBS) for group in groups & names.keys()}
            self._of_jobs = {group: ours for group, ours in self._of_jobs.items() if group in groups}
            return {group for group, ours in self._of_jobs.items() if ours}

    def _infos(self, *meant: Any) -> dict[str, dict[str, Any]]:
        """Live nodes in Ray's list of nodes by id: all, or those that one of these selectors matches."""
        known = self._gcs.get_all_node_info(timeout=STATE_SECONDS, node_selectors=list(meant), state_filter=ALIVE)
        return {
            key.hex(): {
                "ip": one.node_manager_address,
                "name": one.node_name,
                "host": one.node_manager_hostname,
                "port": one.node_manager_port,
                "head": one.is_head_node,
            }
            for key, one in known.items()
        }

    def _state(self) -> Any:
        """The scheduler's state of all nodes, and pending demand."""
        reply = self._gcs.get_cluster_resource_state(timeout_s=STATE_SECONDS)
        return autoscaler_pb2.GetClusterResourceStateReply.FromString(reply).cluster_resource_state

    def run_probe(self, selector: dict[str, str], within: float) -> str:
        """Run a short task on a node with these labels, as `grid cluster check` asks; the id of that node. The task
        needs no core, as others may use them all."""
        self._drive()
        task = ray.remote(_where).options(num_cpus=0, label_selector=selector)
        asked = task.remote()
        try:
            return str(ray.get(asked, timeout=within))
        except ray.exceptions.GetTimeoutError:
            ray.cancel(asked, force=True)
            raise Refused("no task ran there", f"it did not within {within:g} s") from None

    def reserve(self, name: str, bundle: dict[str, float], selector: dict[str, str], within: float) -> str:
        """Make a detached placement group of this name with one bundle, and return its node. An existing one is used as
        it is: it was requested before, and the answer was lost. If there is no room within that time (whole seconds, as
        Ray waits), nothing is left behind."""
        from ray.util.placement_group import get_placement_group, placement_group, placement_group_table

        self._drive()
        try:
            group = get_placement_group(name)
        except ValueError:  # what ray raises for a name that is not there
            how = {"strategy": "STRICT_PACK", "lifetime": "detached", "bundle_label_selector": [selector]}
            group = placement_group([bundle], name=name, **how)
        try:
            there = group.wait(math.ceil(within))
            reply = placement_group_table(group)
        except Exception:
            with suppress(Exception):  # it may have been made: if it cannot be removed now, it is found by its name
                self.release(name)
            raise
        if not there:
            self.release(name)
            never = reply["stats"]["scheduling_state"] == "INFEASIBLE"
            why = "no node that is meant has so much in all" if never else f"it was not free within {within:g} s"
            words = ", ".join(f"{amount:g} {kind}" for kind, amount in bundle.items())
            raise Refused(f"Ray did not reserve {words}", why)
        return str(reply["bundles_to_node_id"][0])

    def release(self, name: str) -> bool:
        """Remove the group of this name. False: there is none."""
        from ray.util.placement_group import get_placement_group, remove_placement_group

        self._drive()
        try:
            remove_placement_group(get_placement_group(name))
        except ValueError:
            return False
        return True

    def reserved(self) -> dict[str, str]:
        """The groups that the grid has made, by name, with their state in Ray's words."""
        return _ours(self._table())

    def listed(self) -> dict[str, str]:
        """As `reserved`, without becoming a driver of the cluster."""
        from ray._private.state import GlobalState
        from ray._raylet import GcsClientOptions

        state = GlobalState()
        state._initialize_global_state(
            GcsClientOptions.create(
                self._address, self._gcs.cluster_id.hex(), allow_cluster_id_nil=False, fetch_cluster_id_if_nil=False
            )
        )
        try:
            return _ours(state.placement_group_table())
        finally:
            state.disconnect()

    def _table(self) -> dict[str, dict[str, Any]]:
        """Return all groups of all users, by their ids in Ray; also some that were removed."""
        from ray.util import placement_group_table

        self._drive()
        return dict(placement_group_table())

    def _drive(self) -> None:
        """Connect as a driver, which placement groups need and looks do not. Not in the main thread, where ray would
        take over the signal handlers."""
        with self._driving:
            if not self._driven:
                self._has_a_node_here()
                ray.init(
                    address=self._address,
                    namespace=NAMESPACE,
                    log_to_driver=False,
                    configure_logging=False,
                    _skip_env_hook=True,
                )
                self._driven = True

    def _has_a_node_here(self) -> None:
        """Raise Refused where this machine is no node of the cluster: ray.init would end this process."""
        known = self._gcs.get_all_node_info(timeout=STATE_SECONDS).values()
        if not any(one.state == ALIVE and _is_mine(one.node_manager_address) for one in known):
            why = "none of Ray's nodes is on the coordinator's machine, through which it has to be asked"
            raise Refused("Ray cannot be asked to reserve anything", f"{why}: start one there (ray start)")


def _ours(table: dict[str, dict[str, Any]]) -> dict[str, str]:
    """The groups in this table that the grid has made, by name, with their state."""
    groups = (one for one in table.values() if one["state"] != "REMOVED")
    return {one["name"]: one["state"] for one in groups if one["name"].startswith(OURS)}


def _nodes(state: Any, infos: dict[str, dict[str, Any]], only: bool = False) -> list[dict[str, Any]]:
    """Live nodes; `only`: those in Ray's list of nodes."""
    reply = ((one, one.node_id.hex()) for one in state.node_states if one.status != autoscaler_pb2.NodeStatus.DEAD)
    return [
        {
            "id": name,
            "ip": one.node_ip_address,
            **infos.get(name, UNTOLD),
            "status": autoscaler_pb2.NodeStatus.Name(one.status).lower(),
            "labels": dict(one.labels),
            "total": dict(one.total_resources),
            "available": dict(one.available_resources),
            "idle": one.idle_duration_ms / 1000,
        }
        for one, name in reply
        if name in infos or not only
    ]


def _wanted(request: Any) -> dict[str, bool]:
    """Return what a request requires of its node beside resources."""
    constraints = request.placement_constraints
    apart = any(one.HasField("anti_affinity") for one in constraints)
    together = any(one.HasField("affinity") for one in constraints)
    labels = any(one.label_constraints for one in request.label_selectors)  # a plain task has an empty one
    found = {"labels": labels, "apart": apart, "together": together}
    return {name: True for name, is_so in found.items() if is_so}


def _where() -> str:
    return str(ray.get_runtime_context().get_node_id())


def _is_mine(address: str) -> bool:
    """Whether this machine has this address: only then can something listen there."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as tried:
        try:
            tried.bind((address, 0))
        except OSError:
            return False
    return True


def _shares(resources: dict[str, float]) -> Iterable[tuple[str, str, float]]:
    """Yield what placement groups have of a node with these resources: kind, group and amount."""
    for name, amount in resources.items():
        if (found := OF_GROUP.fullmatch(name)) is not None:
            yield found[1], found[2], amount


ASKED = ("cluster", "nodes", "joined", "usage", "reserve", "release", "reserved", "listed", "run_probe")


def _answer(asked: Callable[..., Any], question: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"ok": asked(**question)}
    except Refused as refused:
        what, why = refused.args
        return {"error": what, "why": why}
    except Exception as error:  # whatever ray raises: it is the coordinator's to say, and this process goes on
        return _trouble(error)


def _trouble(error: Exception) -> dict[str, Any]:
    if ANOTHER in str(error):  # ray takes this for a wrong token
        return {
            "error": STARTED_ANEW,
            "why": "the cluster that was asked is no more; the next question goes to this one",
        }
    if isinstance(error, AuthenticationError):
        mode = os.environ["RAY_AUTH_MODE"]
        why = "ours is another (ray.token)" if mode == "token" else f"ray.auth is {mode}, and not token"
        return {"error": "the Ray cluster wants its token", "why": why}
    lines = str(error).strip().splitlines()
    return {"error": "Ray does not answer as it should", "why": f"{type(error).__name__}: {' '.join(lines[:2])}"}


def main(address: str) -> None:
    """Answer requests until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever ray prints is no answer
    writing = threading.Lock()
    try:
        cluster = Cluster(address)
    except Exception as error:  # whatever ray raises: it is the coordinator's to say
        answers.write(json.dumps({"id": BEGUN, **_trouble(error)}) + "\n")
        sys.exit(1)

    def respond(question: dict[str, Any]) -> None:
        """Answer; exit if the cluster that was connected is gone: another process connects to the next one."""
        number, ask = question.pop("id"), question.pop("ask")
        answer = _answer(getattr(cluster, ask), question) if ask in ASKED else {"error": f"what is {ask!r}?", "why": ""}
        with writing:
            answers.write(json.dumps({"id": number, **answer}) + "\n")
        if answer.get("error") == STARTED_ANEW:
            os._exit(1)

    with ThreadPoolExecutor(AT_ONCE) as threads, ThreadPoolExecutor(WAITING) as waiting:
        for line in sys.stdin:
            question = json.loads(line)
            (waiting if question["ask"] in MAY_WAIT else threads).submit(respond, question)
    os._exit(0)  # a driver takes its time to leave, and has nothing to say that anybody waits for


if __name__ == "__main__":
    main(sys.argv[1])
