"""The coordinator's side of a provider's process: started for the first question, killed when a question is not
answered in time, and started again."""

import asyncio
import contextlib
import sys
from typing import Any

import msgspec

from distributed_grid.coordinator.core.scaling.state import Answer
from distributed_grid.coordinator.providers.base import ProviderRefused
from distributed_grid.coordinator.providers.child import AT_ONCE
from distributed_grid.runtime.logs import get_logger

LINE = 16 << 20
"""Maximum size of an answer (bytes): some ten thousand machines."""
MEMORY = 2 << 30
"""Bytes of address space of a provider's process."""
SECONDS = {"create": 60.0, "end": 45.0, "list": 45.0, "available": 20.0}
"""Time-out of each question (s), from when the provider can begin with it. A process that misses one is killed."""
AGAIN = (0.5, 30.0)
"""Delays before a process that ended is started again (s): doubled from the first up to the second."""

log = get_logger("providers")


class _Said(msgspec.Struct):
    id: int
    ok: msgspec.Raw = msgspec.Raw(b"null")
    error: str = ""
    text: str = ""


class ProviderChild:
    """Asks the provider of this name. `settings` are JSON."""

    def __init__(self, name: str, grid: str, settings: dict[str, Any], memory: int = MEMORY) -> None:
        self.name = name
        self._begin = {"provider": name, "grid": grid, "settings": settings, "memory": memory}
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._asked = 0
        self._starting = asyncio.Lock()
        self._listing, self._others = asyncio.Semaphore(1), asyncio.Semaphore(AT_ONCE)
        self._pause, self._not_before = AGAIN[0], 0.0
        self._last = "it was never started"
        self._closed = False

    async def ask(self, what: str, answers: Any, seconds: float | None = None, **words: Any) -> Any:
        """Send a request and return its answer, of the type `answers`. Raises ProviderRefused, with LOST if the effect
        is unknown."""
        async with self._listing if what == "list" else self._others:
            return await self._ask(what, answers, seconds, words)

    async def _ask(self, what: str, answers: Any, seconds: float | None, words: dict[str, Any]) -> Any:
        stdin = await self._there()
        self._asked += 1
        number = self._asked
        limit = SECONDS[what] if seconds is None else seconds
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            stdin.write(msgspec.json.encode({"id": number, "ask": what, **words}) + b"\n")
            async with asyncio.timeout(limit):
                return msgspec.json.decode(await future, type=answers)
        except TimeoutError:
            self._kill(f"it did not answer within {limit:g} s ({what})")
            raise ProviderRefused(Answer.LOST, f"provider {self.name} did not answer within {limit:g} s") from None
        except msgspec.DecodeError as error:
            raise ProviderRefused(Answer.LOST, f"provider {self.name} answers what cannot be read: {error}") from None
        finally:
            self._waiting.pop(number, None)

    async def close(self) -> None:
        """End its process, if there is one, and begin no other. Machines go on."""
        self._closed = True
        process = self._process
        self._kill("")
        if process is not None:
            await process.wait()
        if self._reader is not None:
            await self._reader

    def _kill(self, why: str) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            if why:
                log.warning("a provider's process is killed", provider=self.name, why=why)
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    async def _there(self) -> asyncio.StreamWriter:
        async with self._starting:
            if self._process is not None and self._process.returncode is None and self._process.stdin is not None:
                return self._process.stdin
            if self._closed:
                raise ProviderRefused(Answer.LOST, f"provider {self.name} is restarted with its new configuration")
            now = asyncio.get_running_loop().time()
            if now < self._not_before:
                raise ProviderRefused(Answer.LOST, f"provider {self.name} is begun again soon: {self._last}")
            self._pause, self._not_before = min(2 * self._pause, AGAIN[1]), now + self._pause
            process = self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                f"{__package__}.child",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=LINE,
            )
            stdin, stdout = process.stdin, process.stdout
            if stdin is None or stdout is None:  # they were asked for
                raise ProviderRefused(Answer.LOST, f"provider {self.name} has no pipes")
            stdin.write(msgspec.json.encode(self._begin) + b"\n")
            self._waiting = {}
            self._reader = asyncio.create_task(self._read(process, stdout, self._waiting), name=f"provider {self.name}")
            return stdin

    async def _read(
        self,
        process: asyncio.subprocess.Process,
        stdout: asyncio.StreamReader,
        waiting: dict[int, asyncio.Future[msgspec.Raw]],
    ) -> None:
        try:
            while line := await stdout.readline():
                self._take(msgspec.json.decode(line, type=_Said), waiting)
        except (ValueError, msgspec.DecodeError) as error:  # too long a line, or no answer at all
            log.error("a provider's process is not understood, and killed", provider=self.name, why=str(error)[:500])
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        except ConnectionError:
            pass
        code = await process.wait()
        self._last = f"its process ended with code {code}"
        for future in waiting.values():
            if not future.done():
                future.set_exception(ProviderRefused(Answer.LOST, f"provider {self.name}: {self._last}"))

    def _take(self, said: _Said, waiting: dict[int, asyncio.Future[msgspec.Raw]]) -> None:
        self._pause, self._not_before = AGAIN[0], 0.0
        future = waiting.get(said.id)
        if future is None or future.done():
            return
        if said.error:
            try:
                answer = Answer(said.error)
            except ValueError:
                answer = Answer.REFUSED
            future.set_exception(ProviderRefused(answer, said.text[:1000]))
        else:
            future.set_result(said.ok)
