"""When the node is measured: every so often, and at a claim. Measuring reads files and drivers and so happens on a
thread; whatever hangs there, heartbeats go on and what cannot be read is not lent."""

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec

from distributed_grid.protocol.nodes import GpuSample, Sample

STUCK_AFTER = 6.0
"""Seconds after which a measurement counts as hanging."""


class Measures(Protocol):
    """What measures: `agent.sampling.probe.Probe`, called on a thread."""

    def sample(self, at: float | None = None, read_gpus: bool = True) -> Sample:
        """Measure now."""


class Meter:
    """Samples of this node. `took` is called with each new one, on the loop; `clock` is the samples' own."""

    def __init__(
        self,
        probe: Measures,
        interval: float,
        clock: Callable[[], float],
        took: Callable[[Sample], None],
        log: Callable[[str], None],
    ) -> None:
        self.newest: Sample | None = None
        self._probe = probe
        self._interval = interval
        self._clock = clock
        self._took = took
        self._log = log
        self._gpus_at = float("-inf")
        self._measuring: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Measure every interval, for ever."""
        while True:
            begun = self._clock()
            measuring = asyncio.create_task(self.since(begun, gpus=True))
            try:
                await asyncio.wait((measuring,), timeout=STUCK_AFTER)
                while not measuring.done():
                    self._stuck(self._clock() - begun)
                    await asyncio.wait((measuring,), timeout=STUCK_AFTER)
            finally:
                measuring.cancel()
            if (error := measuring.exception()) is not None:
                self._log(f"measuring failed: {error!r}")
                self._stuck(self._clock() - begun)
            await asyncio.sleep(max(0.05, self._interval - (self._clock() - begun)))

    async def since(self, moment: float, gpus: bool) -> Sample:
        """A sample begun at this moment or later, of the GPUs too if so wished. Many who ask at once share one."""
        while self.newest is None or self.newest.at < moment or (gpus and self._gpus_at < moment):
            if self._measuring is None:
                self._measuring = asyncio.create_task(self._measure(gpus), name="measure")
            await asyncio.shield(self._measuring)
        return self.newest

    async def _measure(self, gpus: bool) -> None:
        begun = self._clock()
        try:
            sample = await asyncio.to_thread(self._probe.sample, begun, gpus)
        finally:
            self._measuring = None
        if gpus:
            self._gpus_at = begun
        self._take(sample)

    def fresh(self, moment: float) -> Sample | None:
        """The newest sample if it was begun at this moment or later."""
        return self.newest if self.newest is not None and self.newest.at >= moment else None

    def _take(self, sample: Sample) -> None:
        self.newest = sample
        self._took(sample)

    def _stuck(self, seconds: float) -> None:
        """Nothing is known of the GPUs now: whoever asks is told so, instead of what was true a while ago."""
        self._log(f"measuring has taken {seconds:.1f} s so far")
        last = self.newest
        if last is None:
            return
        why = f"measuring this node hangs since {seconds:.0f} s"
        gpus = tuple(GpuSample(gpu.uuid, memory_total=gpu.memory_total, error=why) for gpu in last.gpus)
        self._take(msgspec.structs.replace(last, gpus=gpus, gpu_error=why))
