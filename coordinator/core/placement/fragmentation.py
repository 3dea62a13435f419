"""The score `fragmentation`: how much GPU capacity a placement makes unusable for the requests that are usual here.

The measure is that of FGD (Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation
Gradient Descent", USENIX ATC'23). A free GPU, or a free part of one, is usable for a request if the node has what the
request needs and the device has as much as it needs of one device. The usable capacity of a node is the mean over the
requests of the mix. A placement that leaves a GPU without cores, or a part that is too small, lowers it by more than
the placement itself needs: that is fragmentation.

FGD's measure looks one request ahead: cores for a single one make all GPUs of a node usable. So the GPUs for which the
cores or the memory of the node do not suffice, at what the mix asks for beside a GPU in the mean, count as lost too.

All sums are of integers, so a replay comes to the same scores on any machine.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import compress

import msgspec

from distributed_grid.coordinator.core.model import Node
from distributed_grid.coordinator.core.placement.capacity import Capacity
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.placement import NO_CONSTRAINTS, same_model
from distributed_grid.protocol.resources import MILLI, Resources

HALVED_AFTER = 256
"""Requests after which the counts of all earlier ones are halved."""
UNIT = 16
"""The count of one request: it is forgotten when it was halved five times."""
KINDS = 64
"""Maximum number of kinds in the mix, the most frequent ones."""
COUNTED_AT_ONCE = 64
"""The first requests, each of which updates the mix. Later it is updated whenever the counts are halved."""

BITS = bytes.maketrans(b"01", b"\0\1")


class RequestKind(msgspec.Struct, frozen=True, order=True):
    """The needs of a request with GPUs: milli-cores, bytes, milli-GPUs, and the model and free bytes of each GPU."""

    cpu: int
    memory: int
    gpu: int
    gpu_model: str = ""
    gpu_memory: int = 0


def kind_of(request: Request) -> RequestKind:
    """The kind of a request. Labels, walls, owners and affinity are not part of it."""
    wanted, asked = request.resources, request.constraints or NO_CONSTRAINTS
    return RequestKind(wanted.cpu, wanted.memory, wanted.gpu, asked.gpu_model, asked.gpu_memory)


class MixState(msgspec.Struct, frozen=True):
    """The state of a request mix: the count of each kind, the number of requests, the kinds in use, and the requests
    that are not counted yet."""

    counts: list[tuple[RequestKind, int]] = []
    requests: int = 0
    typical: list[tuple[RequestKind, int]] = []
    new: list[RequestKind] = []


NO_REQUESTS = MixState()


class RequestMix:
    """The kinds of the latest requests with GPUs, and how frequent each is. Older requests count less. A new one counts
    after it was served or had to wait, so that a dry run before comes to the same placement."""

    def __init__(self, at: MixState = NO_REQUESTS) -> None:
        self._counts = dict(at.counts)
        self._requests = at.requests
        self._typical = list(at.typical)
        self._new = list(at.new)
        self._usable = Usable(self._typical)
        self._losses: dict[str, tuple[Now, dict[Resources, float]]] = {}
        """Cache: by node, what it has and what it loses to requests without constraints. Valid until its capacity or
        the mix changes."""

    @property
    def state(self) -> MixState:
        """The state, for a checkpoint."""
        return MixState([*self._counts.items()], self._requests, [*self._typical], [*self._new])

    def add(self, request: Request) -> None:
        """Take in a new request, which is counted later."""
        if request.resources.gpu:
            self._new.append(kind_of(request))

    def count(self) -> None:
        """Count the new requests."""
        if not self._new:
            return
        updated = False
        for kind in self._new:
            self._counts[kind] = self._counts.get(kind, 0) + UNIT
            self._requests += 1
            if self._requests % HALVED_AFTER == 0:
                self._counts = {kind: count // 2 for kind, count in self._counts.items() if count > 1}
            updated |= self._requests % HALVED_AFTER == 0 or self._requests <= COUNTED_AT_ONCE
        self._new = []
        if updated:
            ordered = sorted(self._counts.items(), key=lambda one: (-one[1], one[0]))
            self._typical = ordered[:KINDS]
            self._usable = Usable(self._typical)
            self._losses = {}

    def changed(self, node: str) -> None:
        """Note that the capacity of a node has changed, or that it is gone."""
        self._losses.pop(node, None)

    def losses(self, nodes: Iterable[tuple[Node, Capacity]], request: Request) -> list[float]:
        """`loss` of each of these nodes with a capacity: its own, for which the cache is used, or a hypothetical
        one."""
        wanted, usable, kept = request.resources, self._usable, self._losses
        plain, found = request.constraints is None, list[float]()
        for node, capacity in nodes:
            if not plain or capacity is not node.capacity:
                found.append(usable.loss(capacity, usable.now(capacity), request))
                continue
            known = kept.get(name := node.facts.name)
            if known is None:
                known = kept[name] = usable.now(capacity), {}
            now, losses = known
            lost = losses.get(wanted)
            if lost is None:
                if len(losses) >= KINDS:
                    losses.clear()
                lost = losses[wanted] = usable.loss(capacity, now, request)
            found.append(lost)
        return found

    def known(self, node: str) -> dict[Resources, float]:
        """The cached losses of a node, by needs."""
        return self._losses[node][1] if node in self._losses else {}

    def loss(self, capacity: Capacity, request: Request) -> float:
        """Return how many usable GPUs a node with this capacity loses to a request that fits there; below 0: fewer are
        stranded."""
        return self._usable.loss(capacity, self._usable.now(capacity), request)


Now = tuple[int, int, int, int, int, int]
"""What a node has before a placement: milli-cores, bytes, milli-GPUs, how many of these are stranded, the kinds for
which cores and bytes are enough, and what these can use of its GPUs, in milli-GPUs times counts (0 where devices
differ)."""


class Usable:
    """The usable capacity of nodes, for these kinds of request and their counts. Sets of kinds are bit masks: those
    for which a node has the cores, those for which it has the memory, those for which a device has enough."""

    def __init__(self, kinds: Sequence[tuple[RequestKind, int]]) -> None:
        self._kinds = kinds
        self._total = sum(count for _, count in kinds)
        self._gpus = sum(kind.gpu * count for kind, count in kinds)
        self._cores = sum(kind.cpu * count for kind, count in kinds)
        self._bytes = sum(kind.memory * count for kind, count in kinds)
        self._cpu = _steps((kind.cpu, at) for at, (kind, _) in enumerate(kinds))
        self._memory = _steps((kind.memory, at) for at, (kind, _) in enumerate(kinds))
        self._part = _steps((kind.gpu, at) for at, (kind, _) in enumerate(kinds) if kind.gpu < MILLI)
        self._whole = _steps((kind.gpu, at) for at, (kind, _) in enumerate(kinds) if kind.gpu >= MILLI)
        self._gpu_memory = _steps((kind.gpu_memory, at) for at, (kind, _) in enumerate(kinds))
        self._models: dict[str, int] = {}
        self._amounts = [count for _, count in reversed(kinds)]
        """The counts as the digits of a mask, highest first."""
        self._counts: dict[int, int] = {0: 0}
        """By sets of kinds."""
        self._parts: dict[tuple[int, int], int] = {}
        """Usable capacity of a shared device, by the part that is free and the set of kinds, in milli-GPUs times
        counts."""
        self._wholes: dict[tuple[int, int], int] = {}
        """The same of free devices, by their number."""
        self._by_device = any(kind.gpu_model or kind.gpu_memory for kind, _ in kinds)
        """Whether kinds differ by more than amounts, so that it matters which device is free."""

    def now(self, capacity: Capacity) -> Now:
        """Return the present figures of a node."""
        cpu, memory, gpu = capacity.cpu_left, capacity.free_memory, capacity.gpu_left
        kinds, stranded = self._enough(cpu, memory), self._stranded(cpu, memory, gpu)
        usable = 0 if self._by_device else self._of_devices(kinds, capacity)
        return cpu, memory, gpu, stranded, kinds, usable

    def loss(self, capacity: Capacity, now: Now, request: Request) -> float:
        """See `RequestMix.loss`."""
        if not self._total:
            return 0.0
        wanted, (cpu, memory, gpu, stranded, before, _) = request.resources, now
        cpu, memory, gpu = cpu - wanted.cpu, memory - wanted.memory, gpu - wanted.gpu
        after = self._enough(cpu, memory)
        if self._by_device:
            lost = self._loss_by_device(capacity, request, before, after)
        else:
            lost = self._loss_by_amount(capacity, now, wanted.gpu, after)
        lost += (self._stranded(cpu, memory, gpu) - stranded) * self._total
        return lost / self._total / MILLI

    def _stranded(self, cpu: int, memory: int, gpu: int) -> int:
        """The milli-GPUs for which cores or bytes do not suffice, at the mix's means for a GPU."""
        served = gpu
        if self._cores:
            served = min(served, cpu * self._gpus // self._cores)
        if self._bytes:
            served = min(served, memory * self._gpus // self._bytes)
        return gpu - max(0, served)

    def _enough(self, cpu: int, memory: int) -> int:
        """The kinds that need no more cores and memory than this."""
        (steps, masks), (bytes_steps, bytes_masks) = self._cpu, self._memory
        return masks[bisect_right(steps, cpu)] & bytes_masks[bisect_right(bytes_steps, memory)]

    def _loss_by_amount(self, capacity: Capacity, now: Now, gpu: int, after: int) -> int:
        """The loss where it does not matter which device is free, as milli-GPUs times counts: what is usable now, less
        what is left of it by the kinds `after`. A part is taken as a node does: from the shared device that fits best,
        else from a whole one."""
        whole, parts = capacity.whole_gpus, capacity.gpu_parts
        # Devices of which nothing is taken lose the kinds that have no cores or memory any more.
        lost = now[5] - self._of_devices(after, capacity) if after != now[4] else 0
        if gpu >= MILLI:
            return lost + self._of_whole(after, whole) - self._of_whole(after, whole - gpu // MILLI)
        least = min([left for left in parts.values() if left >= gpu], default=0) if parts else 0
        if least:
            return lost + self._of_part(after, least) - self._of_part(after, least - gpu)
        lost += self._of_whole(after, whole) - self._of_whole(after, whole - 1)
        return lost - self._of_part(after, MILLI - gpu)

    def _of_devices(self, kinds: int, capacity: Capacity) -> int:
        """Return how much of the free devices and parts these kinds can use, in milli-GPUs times counts."""
        found = self._of_whole(kinds, capacity.whole_gpus)
        for left in capacity.gpu_parts.values():
            found += self._of_part(kinds, left)
        return found

    def _of_part(self, kinds: int, left: int) -> int:
        """Return how much these kinds can use of a shared device of which `left` is spare (milli)."""
        try:
            return self._parts[kinds, left]
        except KeyError:
            steps, masks = self._part
            found = self._parts[kinds, left] = left * self._count(kinds & masks[bisect_right(steps, left)])
            return found

    def _of_whole(self, kinds: int, whole: int) -> int:
        """Return how much these kinds can use of `whole` free devices."""
        try:
            return self._wholes[kinds, whole]
        except KeyError:
            found = self._wholes[kinds, whole] = whole * MILLI * self._count(kinds & self._for_whole(whole))
            return found

    def _for_whole(self, whole: int) -> int:
        """Return the kinds that can use a free device on a node with `whole` free devices."""
        steps, masks = self._whole
        return self._part[1][-1] | masks[bisect_right(steps, whole * MILLI)]

    def _count(self, kinds: int) -> int:
        """The count of these kinds together."""
        known = self._counts.get(kinds)
        if known is None:
            bits = f"{kinds:0{len(self._kinds)}b}".encode().translate(BITS)
            known = self._counts[kinds] = sum(compress(self._amounts, bits))
        return known

    def _loss_by_device(self, capacity: Capacity, request: Request, before: int, after: int) -> int:
        taken = {share.uuid: share.milli for share in capacity.choose(request.resources, request.constraints).gpus}
        whole = capacity.whole_gpus
        left_whole = whole - sum(capacity.gpus[uuid] == MILLI for uuid in taken)
        steps, masks = self._part
        bytes_steps, bytes_masks = self._gpu_memory
        lost = 0
        for uuid, left in capacity.gpus.items():
            if left <= 0 or uuid in capacity.closed:
                continue
            able = bytes_masks[bisect_right(bytes_steps, max(0, capacity.gpu_memory.get(uuid, 0)))]
            able &= self._for_model(capacity.offers[uuid].model)
            fitting = self._for_whole(whole) if left == MILLI else masks[bisect_right(steps, left)]
            lost += left * self._count(before & able & fitting)
            left -= taken.get(uuid, 0)
            if left:
                fitting = self._for_whole(left_whole) if left == MILLI else masks[bisect_right(steps, left)]
                lost -= left * self._count(after & able & fitting)
        return lost

    def _for_model(self, model: str) -> int:
        """The kinds that can use a GPU of this model."""
        known = self._models.get(model)
        if known is None:
            known = sum(1 << at for at, (kind, _) in enumerate(self._kinds) if same_model(kind.gpu_model, model))
            self._models[model] = known
        return known


Steps = tuple[list[int], list[int]]
"""Amounts, ascending, and the mask of the kinds that need no more than the first of them, the first two, …; the first
mask is of none."""


def _steps(needs: Iterable[tuple[int, int]]) -> Steps:
    masks: dict[int, int] = {}
    for amount, at in needs:
        masks[amount] = masks.get(amount, 0) | 1 << at
    steps, found = sorted(masks), [0]
    for amount in steps:
        found.append(found[-1] | masks[amount])
    return steps, found
