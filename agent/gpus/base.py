"""What all GPU backends have in common: the interface, process owners, and timeouts for drivers."""

import os
import pwd
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from distributed_grid.protocol.nodes import GpuFacts, GpuProcess, GpuSample

T = TypeVar("T")


class GpuBackend(Protocol):
    """A way of reading GPUs. `error`: why there are none where there should be (a driver that fails); `note`: why there
    are none where that is fine (no driver at all)."""

    @property
    def name(self) -> str:
        """Its name in the configuration."""

    @property
    def error(self) -> str:
        """Why the driver cannot be read; "" if it can, or if there is none."""

    @property
    def note(self) -> str:
        """Why there are no GPUs, where that is fine."""

    def facts(self) -> tuple[GpuFacts, ...]:
        """The GPUs; read once."""

    def sample(self, own: set[int]) -> tuple[GpuSample, ...]:
        """Measure each GPU of `facts`; processes in `own` are the grid's. Never raises."""

    def environment(self, uuids: Sequence[str]) -> dict[str, str]:
        """The variables by which a program sees these GPUs and no others."""


def cuda(uuids: Sequence[str]) -> dict[str, str]:
    """The variables by which a CUDA program sees these GPUs and no others."""
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(uuids)}


class NoGpus:
    """A backend without GPUs."""

    def __init__(self, name: str = "none", note: str = "GPUs are switched off (gpu_backend: none)") -> None:
        self.name, self.error, self.note = name, "", note

    def facts(self) -> tuple[GpuFacts, ...]:
        """None."""
        return ()

    def sample(self, own: set[int]) -> tuple[GpuSample, ...]:
        """None."""
        return ()

    def environment(self, uuids: Sequence[str]) -> dict[str, str]:
        """Return variables by which a program sees no GPU."""
        return cuda(uuids)


class Processes:
    """Separates the grid's processes on a GPU from others'. A process of the grid that has just ended is in no process
    tree any more while the driver still lists it; it counts as the grid's until it is gone from the list."""

    def __init__(self) -> None:
        self._ours: dict[str, set[int]] = {}

    def classify(
        self, uuid: str, computing: Iterable[tuple[int, int]], drawing: Iterable[tuple[int, int]], own: set[int]
    ) -> tuple[GpuProcess, ...]:
        """The processes on a GPU, from pids and bytes of those that compute and of those that draw there (some do
        both), each listed once and with its owner."""
        memory, computes = dict[int, int](), set[int]()
        for pid, used in computing:
            memory[pid] = max(used, memory.get(pid, 0))
            computes.add(pid)
        for pid, used in drawing:
            memory[pid] = max(used, memory.get(pid, 0))
        before = self._ours.get(uuid, set())
        ours = {pid for pid in memory if pid in own or (pid in before and not os.path.exists(f"/proc/{pid}"))}
        self._ours[uuid] = ours
        return tuple(
            GpuProcess(pid, memory[pid], user_of(pid), pid in ours, graphics=pid not in computes)
            for pid in sorted(memory)
        )


def user_of(pid: int) -> str:
    """The user of a process; "" if unknown (it is gone, or of another pid namespace)."""
    try:
        uid = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


STARTING = 30
"""How many times as long the driver may take for the first answer: initialising several GPUs takes long."""


class TimeoutBackend:
    """A backend with a timeout. A failing NVIDIA driver keeps callers in the kernel for minutes, where no signal
    reaches them: calls run in a thread, one at a time, and while one hangs every GPU is reported as unreadable.
    Thread-safe."""

    def __init__(self, inner: GpuBackend, patience: float = 2.0) -> None:
        self.name = inner.name
        self._inner = inner
        self._patience = patience
        self._lock = threading.Lock()
        self._call: _Call[Any] | None = None
        self._stuck = ""
        self._unknown = ""
        """Why it is not known which GPUs there are; for good, as that is read once."""
        found = self._ask(inner.facts, STARTING * patience)
        if found is None:
            self._unknown = f"at the start, {self._stuck}; restart the agent once it can be read"
        self._facts = found or ()

    @property
    def error(self) -> str:
        """Why the driver cannot be read."""
        return self._unknown or self._stuck or self._inner.error

    @property
    def note(self) -> str:
        """Why there are no GPUs, where that is fine."""
        return self._inner.note

    def facts(self) -> tuple[GpuFacts, ...]:
        """The chosen GPUs, as found at the start."""
        return self._facts

    def choose(self, facts: tuple[GpuFacts, ...]) -> None:
        """Show these only."""
        self._facts = facts

    def sample(self, own: set[int]) -> tuple[GpuSample, ...]:
        """A measurement; after the timeout, GPUs that cannot be read."""
        seen = self._ask(lambda: self._inner.sample(own), self._patience)
        if seen is not None:
            shown = {gpu.uuid for gpu in self._facts}
            return tuple(gpu for gpu in seen if gpu.uuid in shown)
        return tuple(GpuSample(gpu.uuid, memory_total=gpu.memory, error=self._stuck) for gpu in self._facts)

    def environment(self, uuids: Sequence[str]) -> dict[str, str]:
        """The variables by which a program sees these GPUs and no others."""
        return self._inner.environment(uuids)

    def _ask(self, what: Callable[[], tuple[T, ...]], patience: float) -> tuple[T, ...] | None:
        with self._lock:
            if self._call is not None and not self._call.done.is_set():
                waited = time.monotonic() - self._call.since
                self._stuck = f"the driver has not answered for {waited:.0f} s"
                return None
            self._call = call = _Call(what)
            if not call.done.wait(patience):
                self._stuck = f"the driver has not answered for {patience:g} s"
                return None
            self._stuck = call.error
            return call.answer


class _Call(Generic[T]):
    """A call in a daemon thread, so that a hanging one does not keep the process from ending."""

    def __init__(self, what: Callable[[], tuple[T, ...]]) -> None:
        self.since = time.monotonic()
        self.done = threading.Event()
        self.answer: tuple[T, ...] | None = None
        self.error = ""
        self._what = what
        threading.Thread(target=self._run, name="gpu", daemon=True).start()

    def _run(self) -> None:
        try:
            self.answer = self._what()
        except Exception as error:  # whatever a vendor's library raises, the agent continues without GPUs
            self.error = f"reading the GPUs failed: {type(error).__name__}: {error}"
        finally:
            self.done.set()


def select(facts: Sequence[GpuFacts], wanted: Sequence[str]) -> tuple[tuple[GpuFacts, ...], list[str]]:
    """Select GPUs by UUID (or a prefix of one) or index, which all MIG instances of a GPU share; and the names that
    match none."""
    chosen, missing = list[GpuFacts](), []
    for name in wanted:
        match = [gpu for gpu in facts if gpu.uuid == name or str(gpu.index) == name]
        if not match:
            match = [gpu for gpu in facts if len(name) >= 8 and gpu.uuid.startswith(name)]
            match = match if len(match) == 1 else []
        chosen += match
        if not match:
            missing.append(name)
    return tuple(gpu for gpu in facts if gpu in chosen), missing
