"""The coordinator's side of the bridge: a child process that is started for the first question to Ray, and again if it
has ended; and what both sides share."""

import asyncio
import contextlib
import json
import os
import sys
from typing import Any

import msgspec

from distributed_grid.protocol.boosts import GROUP
from distributed_grid.protocol.errors import GridError
from distributed_grid.runtime.logs import get_logger

NAMESPACE = "grid"
"""The Ray namespace of the grid's placement groups."""
OURS = "grid-"
JOBS, BOOSTS = "grid-job-", GROUP
"""Prefixes of the names of placement groups: of all that the grid makes (`OURS`), of those for jobs (before the
allocation's id), and of those for exclusive boosts (before the boost's)."""
BEGUN = 0
"""The answer number under which a bridge says why it cannot start."""


FORM = "it is to be HOST:PORT of the cluster's head, with the port of `ray start --head` (6379 if it was given none)"
"""For what other programs of Ray take as its address, such as `auto` or `ray://HOST:PORT`, and for what is none."""
REACH_SECONDS = 3.0
AGAIN = (0.5, 30.0)
"""Seconds until an ended bridge is started again, doubled from the first to the second."""
LINE = 64 << 20
"""Bytes of one answer: a cluster of 10,000 nodes is told in some 10 MB."""

log = get_logger("ray")


class NoRay(GridError):
    """Ray cannot be asked, or says no."""


def environment(auth: str, token: str = "") -> dict[str, str]:
    """Environment of a process that talks to Ray. `auth` is `disabled` or `token`, `token` the path of a file. Without
    it ray guesses by what was run on this machine before."""
    said = {
        "RAY_AUTH_MODE": auth,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
    }
    return said | ({"RAY_AUTH_TOKEN_PATH": token} if token else {})


class Bridge:
    """Asks the Ray cluster at `address` (HOST:PORT). The process is started by the first question."""

    def __init__(self, address: str, said: dict[str, str]) -> None:
        self.address = address
        # A token that lies in our own environment would go before the file with that of this cluster.
        self._environment = {name: value for name, value in os.environ.items() if name != "RAY_AUTH_TOKEN"} | said
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        """Answers that are awaited from the running process."""
        self._asked = 0
        self._starting = asyncio.Lock()
        self._pause = AGAIN[0]
        self._not_before = 0.0
        self._last = self._gone("it was never started")
        """Why Ray cannot be asked, for questions before the next attempt."""
        self._refused: NoRay | None = None
        """Why the running process says it cannot start."""

    def _gone(self, why: str) -> NoRay:
        return NoRay(f"Ray at {self.address} cannot be asked", why=f"of the process that asks it: {why}")

    def _no_head(self) -> NoRay:
        why = "something listens there, but does not answer as the head of a Ray cluster does"
        return NoRay(f"there is no Ray at {self.address}", why=why, hint="say where it is (ray.address)")

    def another(self) -> "Bridge":
        """Return a bridge like this one, with a process of its own."""
        return Bridge(self.address, self._environment)

    async def ask(self, what: str, *, seconds: float = 10.0, **words: Any) -> Any:
        """The answer. Raises NoRay where Ray says no, does not answer in that time, or is not there."""
        stdin = await self._there()
        self._asked += 1
        number, waiting = self._asked, self._waiting
        answer = waiting[number] = asyncio.get_running_loop().create_future()
        stdin.write(json.dumps({"id": number, "ask": what, **words}).encode() + b"\n")
        try:
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError:
            raise NoRay(f"Ray at {self.address} did not answer within {seconds:g} s", hint="ray status") from None
        finally:
            waiting.pop(number, None)

    async def close(self) -> None:
        """End the bridge, if there is one."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        if self._reader is not None:
            await self._reader

    async def _there(self) -> asyncio.StreamWriter:
        async with self._starting:
            process = self._process
            if process is not None and process.returncode is None and process.stdin is not None:
                if not process.stdin.is_closing():
                    return process.stdin
                with contextlib.suppress(ProcessLookupError):  # it ends, or will never hear a question again
                    process.kill()
            now = asyncio.get_running_loop().time()
            if now < self._not_before:
                raise self._last
            self._pause, self._not_before = min(2 * self._pause, AGAIN[1]), now + self._pause
            try:
                await self._reach()
            except NoRay as error:
                self._last = error
                raise
            self._last, self._refused = self._gone("it ends as soon as it is started"), None
            self._waiting = {}
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                f"{__package__}.bridge",
                self.address,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=self._environment,
                limit=LINE,
            )
            stdin, stdout = self._process.stdin, self._process.stdout
            if stdin is None or stdout is None:  # they were asked for
                raise NoRay("the bridge to Ray has no pipes")
            self._reader = asyncio.create_task(self._read(self._process, stdout, self._waiting), name="ray")
            return stdin

    async def _reach(self) -> None:
        """Raise NoRay if there is no listener at the address: ray itself would try for a minute."""
        host, _, port = self.address.rpartition(":")
        if not host or "/" in host or not (port.isdecimal() and 0 < int(port) < 1 << 16):
            raise NoRay(f"there is no Ray at {self.address}", why=FORM, hint="set ray.address (or RAY_ADDRESS)")
        try:
            async with asyncio.timeout(REACH_SECONDS):
                _, writer = await asyncio.open_connection(host, int(port))
        except (OSError, TimeoutError) as error:
            why = str(error) or f"no answer within {REACH_SECONDS:g} s"
            hint = "start it (ray start --head), or say where it is (ray.address)"
            raise NoRay(f"there is no Ray at {self.address}", why=why, hint=hint) from None
        writer.close()

    async def _read(
        self,
        process: asyncio.subprocess.Process,
        stdout: asyncio.StreamReader,
        asking: dict[int, asyncio.Future[Any]],
    ) -> None:
        answered = False
        try:
            while line := await stdout.readline():
                self._take(msgspec.json.decode(line), asking)
                answered = True
        except ValueError as error:  # more than a line may have, or no answer at all: what follows is none either
            log.error("the bridge to ray is not understood, and ended", address=self.address, why=str(error))
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        except ConnectionError:
            pass
        code = await process.wait()
        # Ray ends the process that cannot connect, by itself and with this code.
        gone = self._gone(f"it ended with code {code}") if answered or code != 1 else self._no_head()
        gone = self._last = self._refused or gone
        for waiting in asking.values():
            if not waiting.done():
                waiting.set_exception(gone)
        if process is self._process:
            log.warning("the bridge to ray ended", address=self.address, code=code)

    def _take(self, answer: dict[str, Any], asking: dict[int, asyncio.Future[Any]]) -> None:
        if answer["id"] == BEGUN:
            self._refused = NoRay(answer["error"], why=answer["why"], hint=answer.get("hint", ""))
            return
        self._pause, self._not_before = AGAIN[0], 0.0
        waiting = asking.get(answer["id"])
        if waiting is None or waiting.done():
            return
        if "error" in answer:
            waiting.set_exception(NoRay(answer["error"], why=answer["why"]))
        else:
            waiting.set_result(answer["ok"])
