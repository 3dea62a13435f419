"""How much GPU capacity a placement takes from the requests that the grid usually gets.

The measure is that of FGD (Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation
Gradient Descent", USENIX ATC'23). A free GPU, or a free part of one, is usable for a request if the node has what the
request needs and the device has as much as it needs of one device. The usable capacity of a node is the mean over the
requests of the mix. A placement that leaves a GPU without cores, or a part that is too small, lowers it by more than
the placement itself needs: that is fragmentation.

All sums are of integers, so a replay comes to the same scores on any machine.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence

import msgspec

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
UPDATED_AFTER = 64
"""Requests after which the mix is updated. The first ones count at once."""

LOSSES_KEPT = 10_000
"""Maximum size of the cache of losses."""


class RequestKind(msgspec.Struct, frozen=True, order=True):
    """What a request with GPUs asks of a node: milli-cores, bytes, milli-GPUs, and of each GPU its model and bytes."""

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
    """What a request mix consists of: the count of each kind, the number of requests, the kinds in use, and the
    requests that are not counted yet."""

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

    @property
    def state(self) -> MixState:
        """All of it, for a checkpoint."""
        return MixState([*self._counts.items()], self._requests, [*self._typical], [*self._new])

    def add(self, request: Request) -> None:
        """A new request, which is counted later."""
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
            updated |= self._requests % UPDATED_AFTER == 0 or self._requests < UPDATED_AFTER
        self._new = []
        if updated:
            ordered = sorted(self._counts.items(), key=lambda one: (-one[1], one[0]))
            self._typical = ordered[:KINDS]
            self._usable = Usable(self._typical)

    def loss(self, capacity: Capacity, request: Request) -> float:
        """How many usable GPUs such a node loses to this request, which fits there."""
        return self._usable.loss(capacity, request)


class Usable:
    """The usable capacity of nodes, for these kinds of request and their counts. Sets of kinds are bit masks: those
    for which a node has the cores, those for which it has the memory, those for which a device has enough."""

    def __init__(self, kinds: Sequence[tuple[RequestKind, int]]) -> None:
        self._kinds = kinds
        self._total = sum(count for _, count in kinds)
        self._cpu = _steps((kind.cpu, at) for at, (kind, _) in enumerate(kinds))
        self._memory = _steps((kind.memory, at) for at, (kind, _) in enumerate(kinds))
        self._part = _steps((kind.gpu, at) for at, (kind, _) in enumerate(kinds) if kind.gpu < MILLI)
        self._whole = _steps((kind.gpu, at) for at, (kind, _) in enumerate(kinds) if kind.gpu >= MILLI)
        self._gpu_memory = _steps((kind.gpu_memory, at) for at, (kind, _) in enumerate(kinds))
        self._models: dict[str, int] = {}
        self._counts: dict[int, int] = {0: 0}
        self._losses: dict[tuple[int, ...], float] = {}
        """Cache: by what decides it."""
        self._by_device = any(kind.gpu_model or kind.gpu_memory for kind, _ in kinds)
        """Whether it matters which device is free."""

    def loss(self, capacity: Capacity, request: Request) -> float:
        """See `RequestMix.loss`."""
        if not self._total:
            return 0.0
        wanted, memory = request.resources, capacity.free_memory
        cpu = len(capacity.free) * MILLI
        if capacity.parts:
            cpu += sum(capacity.parts.values())
        steps, masks = self._cpu
        before, after = masks[bisect_right(steps, cpu)], masks[bisect_right(steps, cpu - wanted.cpu)]
        steps, masks = self._memory
        before &= masks[bisect_right(steps, memory)]
        after &= masks[bisect_right(steps, memory - wanted.memory)]
        if self._by_device:
            return self._loss_by_device(capacity, request, before, after) / self._total / MILLI
        key = before, after, wanted.gpu, capacity.whole_gpus, *capacity.gpu_parts.values()
        known = self._losses.get(key)
        if known is None:
            if len(self._losses) >= LOSSES_KEPT:
                self._losses.clear()
            whole, parts = capacity.whole_gpus, [*capacity.gpu_parts.values()]
            lost = self._capacity(before, whole, parts)
            lost -= self._capacity(after, _take(wanted, whole, parts), parts)
            known = self._losses[key] = lost / self._total / MILLI
        return known

    def _capacity(self, kinds: int, whole: int, parts: Iterable[int]) -> int:
        """Usable milli-GPUs times the count of those that can use them."""
        steps, masks = self._part
        total = sum(left * self._count(kinds & masks[bisect_right(steps, left)]) for left in parts)
        return total + whole * MILLI * self._count(kinds & self._for_whole(whole))

    def _for_whole(self, whole: int) -> int:
        """The kinds that can use a device that is free, on a node where so many are."""
        steps, masks = self._whole
        return self._part[1][-1] | masks[bisect_right(steps, whole * MILLI)]

    def _count(self, kinds: int) -> int:
        """The count of these kinds together."""
        known = self._counts.get(kinds)
        if known is None:
            known, left = 0, kinds
            while left:
                one = left & -left
                known += self._kinds[one.bit_length() - 1][1]
                left ^= one
            self._counts[kinds] = known
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
            able = bytes_masks[bisect_right(bytes_steps, capacity.gpu_memory.get(uuid, 0))]
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


def _take(wanted: Resources, whole: int, parts: list[int]) -> int:
    """Take GPUs off as `Capacity` does: a part from the shared device that fits best, else from a whole one. Changes
    `parts`; returns how many whole devices are left."""
    if wanted.gpu >= MILLI:
        return whole - wanted.gpu // MILLI
    if fitting := [left for left in parts if left >= wanted.gpu]:
        parts[parts.index(min(fitting))] -= wanted.gpu
        return whole
    parts.append(MILLI - wanted.gpu)
    return whole - 1


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
