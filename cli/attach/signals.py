"""Signals as something to wait for beside sockets."""

import os
import signal
from collections.abc import Iterable
from types import TracebackType
from typing import Any


class Signals:
    """While entered, these signals do nothing but show up in `taken()`, and make `fd` readable."""

    def __init__(self, numbers: Iterable[signal.Signals]) -> None:
        # Under nohup a hang-up stays ignored. An interrupt does not: shells ignore it for whatever they start with `&`,
        # and who sends one to such a command means it.
        ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        self._numbers = [number for number in numbers if not (ignored and number == signal.SIGHUP)]
        self._seen: list[int] = []
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Signals":
        self.fd, self._in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wakeup = signal.set_wakeup_fd(self._in, warn_on_full_buffer=False)
        for number in self._numbers:
            self._before[number] = signal.signal(number, lambda seen, _: self._seen.append(seen))
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self.fd)
        os.close(self._in)

    def taken(self) -> list[int]:
        """The signals that came since the last call, in order."""
        try:
            while os.read(self.fd, 512):
                pass
        except BlockingIOError:
            pass
        seen, self._seen = self._seen, []
        return seen
