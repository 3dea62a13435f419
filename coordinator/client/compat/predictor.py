"""`ResourcePerformancePredictor`: what tasks will need, which the grid learns from what they used, over one client
connection."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distributed_grid.coordinator.client.compat.connected import Connected
from distributed_grid.coordinator.client.submission import as_argv
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.messages.needs import MOST_FEATURES, TRUSTED, Need, Needs, whole_cores
from distributed_grid.protocol.resources import MIB, MILLI, MOST_CPU, MOST_MEMORY, MOST_SPAN
from distributed_grid.protocol.text import suggestion

DEFAULT_PREDICTION_CONFIDENCE_THRESHOLD = 0.7
"""Minimum confidence of an answer: the share of earlier ones that were enough."""
DEFAULT_PREDICTION_UPDATE_INTERVAL = 3600
"""Interval at which the coordinator removes old runs from its records (s); it learns from new ones at once."""
DEFAULT_MIN_SAMPLES_FOR_ML = 30
DEFAULT_MIN_SAMPLES_FOR_STATS = 5
DEFAULT_REQUIREMENTS: Mapping[str, float] = {"cpu_cores": 1.0, "memory_mb": 1024.0}
"""What is required where nothing is known."""
LEARNING, LOOK = 60.0, 0.05
"""Maximum time that `train_models` waits, and interval between its checks (s)."""
LARGEST_BATCH = 1e100
_TIERS = ("ml", "statistics", "default")
_TIMES = {"execution_time": 1.0, "execution_time_s": 1.0, "seconds": 1.0, "execution_time_ms": 0.001}
_AMOUNTS = {
    "memory_mb": ("memory", MIB),
    "memory_bytes": ("memory", 1),
    "cpu_cores": ("cores", 1),
    "gpu_memory_mb": ("gpu_memory", MIB),
    "held_memory_mb": ("held", MIB),
}
_MOST: Mapping[str, float] = {
    "seconds": MOST_SPAN,
    "cores": MOST_CPU / MILLI,
    "memory": MOST_MEMORY,
    "gpu_memory": MOST_MEMORY,
    "held": MOST_MEMORY,
}
"""What can be recorded at most, in the units of the message."""


@dataclass(frozen=True)
class PredictedResources:
    """The predicted needs of a task. `requirements`: by the names that `DynamicResourceManager` takes; `execution_time`
    and `planned_time`: the median run time, and the one that nine in ten runs stay within (s; None: not known). `tier`
    and `confidence` are the least of those of the requirements; `needs` are the grid's answers one by one (what only
    the user's other jobs suggest is there, and counts for nothing else); `why` says how each requirement was found."""

    requirements: dict[str, float]
    execution_time: float | None
    planned_time: float | None
    tier: str
    confidence: float | None
    needs: tuple[Need, ...]
    why: dict[str, str]


class ResourcePerformancePredictor(Connected):
    """Predicts what tasks need. A task is a mapping: `command` (text or words) or `task_type`, a name; `parameters` by
    name, of which numbers are those that needs may grow with, and all else says which tasks are alike; `batch_size`.

    It connects on first use; `async with` and `shutdown()` disconnect. A given `client` is used as it is: its owner
    connects and closes it. The grid learns, for this user's tasks: jobs of the same command count, too."""

    async def record_task_execution(self, task: Mapping[str, Any], usage: Mapping[str, Any]) -> None:
        """Record what a task used, once the grid has taken it: `execution_time` (s), `memory_mb` at the most,
        `cpu_cores` at the most at once, `gpu_memory_mb`; `success` (True) and `out_of_memory` (False; of
        `held_memory_mb`). Raises BadValue."""
        argv, features = _task(task)
        told = _usage(usage)
        await self.initialize()
        await self.client.record_use(argv, features, **told)

    async def predict_resource_requirements(self, task: Mapping[str, Any]) -> PredictedResources:
        """Predict what a task will need, by its own kind, else its program; `DEFAULT_REQUIREMENTS` for what is not
        known well enough. Raises BadValue."""
        found = await self._ask(task)
        known = {one.of: one for one in found.needs if one.level in TRUSTED}
        wanted, why = dict(DEFAULT_REQUIREMENTS), dict[str, str]()
        tiers, confidences = [], []
        for name, of, unit in (("cpu_cores", "cores", 1), ("memory_mb", "memory", MIB)):
            need = known.get(of)
            if need is None or 0.0 <= need.confidence < DEFAULT_PREDICTION_CONFIDENCE_THRESHOLD:
                unsure = f": only {100 * need.confidence:.0f} % of such answers were enough" if need is not None else ""
                why[name] = f"the default{unsure or ': fewer than 5 runs like it are known'}"
                tiers.append("default")
                continue
            amount = whole_cores(need.value) if of == "cores" else max(1, math.ceil(need.value / unit - 0.05))
            wanted[name] = float(amount)
            why[name] = need.why
            tiers.append(need.tier)
            confidences += [need.confidence] if need.confidence >= 0 else []
        if (gpu := known.get("gpu_memory")) is not None:
            wanted["gpu_memory_mb"], why["gpu_memory_mb"] = float(math.ceil(gpu.value / MIB)), gpu.why
        return PredictedResources(
            wanted,
            known["seconds"].value if "seconds" in known else None,
            known["planned"].value if "planned" in known else None,
            max(tiers, key=_TIERS.index),
            min(confidences, default=None),
            found.needs,
            why,
        )

    async def train_models(self) -> int:
        """Wait until all that was recorded before is learned; how many runs the grid has learned from, of all users.
        There is nothing else to train: each run is learned when it ends. Raises GridError after a minute."""
        deadline = asyncio.get_running_loop().time() + LEARNING
        while (found := await self._ask({"task_type": "none"})).waiting:
            if asyncio.get_running_loop().time() > deadline:
                raise GridError("the grid has not learned all within a minute", hint="ask again later")
            await asyncio.sleep(LOOK)
        return found.samples

    async def calculate_batch_scaling_factor(
        self, task: Mapping[str, Any], batch_size: float, base_batch_size: float = 1.0
    ) -> float:
        """Return how many times as much memory a task needs with `batch_size` as with `base_batch_size`; in proportion
        to them, if fewer than 5 runs of its kind with their `batch_size` are known. Raises BadValue."""
        batch_size, base_batch_size = _size(batch_size), _size(base_batch_size)
        found = await self._ask({**_mapping("task", task), "batch_size": batch_size})
        slope = found.slopes.get("batch_size")
        if slope is None:
            return batch_size / base_batch_size
        return float(((1.0 + batch_size) / (1.0 + base_batch_size)) ** slope)

    async def _ask(self, task: Mapping[str, Any]) -> Needs:
        argv, features = _task(task)
        await self.initialize()
        return await self.client.predict(argv, features)


def _size(given: Any) -> float:
    """Raises BadValue."""
    size = _float(given) if _is_number(given) else math.nan
    if not 0 < size <= LARGEST_BATCH:
        said = size if _is_number(given) else given
        raise BadValue(f"{said!r} is no size of a batch", hint=f"give a number above 0, and {LARGEST_BATCH:g} at most")
    return size


def _task(task: Mapping[str, Any]) -> tuple[Sequence[str], dict[str, float]]:
    """The command by which a task is predicted, and its features. Raises BadValue."""
    known = ("command", "task_type", "parameters", "batch_size", "task_id")
    for name in _mapping("task", task):
        if name not in known:
            hint = f"{suggestion(str(name), known)}there are {', '.join(known)}"
            raise BadValue(f"{name!r} is not known of a task", hint=hint)
    if ("command" in task) == ("task_type" in task):
        raise BadValue("which task is it?", hint="give its command, or its task_type")
    argv = list(as_argv(task["command"])) if "command" in task else [str(task["task_type"])]
    batch = task.get("batch_size")
    if batch is not None and not _is_number(batch):
        raise BadValue(f"batch_size is {batch!r}", hint="give a finite number")
    features: dict[str, float] = {}
    parameters = {str(name): value for name, value in _mapping("parameters", task.get("parameters") or {}).items()}
    for name, value in (("batch_size", batch), *sorted(parameters.items())):
        if value is None:
            continue
        if not _is_number(value):
            argv.append(f"--{name}={value}")
        elif not math.isfinite(number := _float(value)):
            raise BadValue(f"{name} is {number}", hint="give a finite number")
        else:
            features[name] = number
    if len(features) > MOST_FEATURES:
        raise BadValue(f"{len(features)} numbers are too many", hint=f"give {MOST_FEATURES} at most")
    return argv, features


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `record_use` for this usage. Raises BadValue."""
    told: dict[str, Any] = {}
    for name, value in _mapping("usage", usage).items():
        if name in ("success", "out_of_memory"):
            if not isinstance(value, bool):
                raise BadValue(f"{name} is {value!r}", hint="give True or False")
            continue
        if name not in _TIMES and name not in _AMOUNTS:
            known = [*_TIMES, *_AMOUNTS, "success", "out_of_memory"]
            hint = f"{suggestion(str(name), known)}there are {', '.join(known)}"
            raise BadValue(f"{name!r} cannot be used by a task", hint=hint)
        what, unit = ("seconds", _TIMES[name]) if name in _TIMES else _AMOUNTS[name]
        value = _float(value) if _is_number(value) else value
        if not _is_number(value) or not 0 <= value * unit <= _MOST[what]:
            raise BadValue(f"{name} is {value!r}", hint=f"give a number from 0 to {_MOST[what] / unit:g}")
        told[what] = float(value * unit) if what in ("seconds", "cores") else int(value * unit)
    if usage.get("out_of_memory"):
        told["ended"] = "out of memory"
    elif not usage.get("success", True):
        told["ended"] = "cut"
    return told


def _mapping(what: str, given: Any) -> Mapping[Any, Any]:
    """Raises BadValue."""
    if not isinstance(given, Mapping):
        raise BadValue(f"{given!r:.80} cannot be read as {what}", hint="give a dict")
    return given


def _float(value: float) -> float:
    """A number as a float; infinity for what is beyond all floats."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
