"""The audit log of requests: one JSON line each, in a file that is bounded. Who asked for what; never values of a job's
environment."""

import os
from pathlib import Path
from typing import Any

import structlog

FILE_BYTES = 16 << 20
FILES = 4


class _Bounded:
    """A file that is appended line by line and turned over at a size: audit.log, audit.log.1, … the oldest goes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open()

    def _open(self) -> None:
        # The descriptor is the log's own and is closed with it.
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._file = open(fd, "ab", buffering=0)  # noqa: SIM115
        self._size = os.fstat(fd).st_size

    def msg(self, line: str) -> None:
        data = line.encode(errors="backslashreplace") + b"\n"
        if self._size + len(data) > FILE_BYTES:
            self._turn_over()
        self._file.write(data)
        self._size += len(data)

    info = msg

    def _turn_over(self) -> None:
        self._file.close()
        for number in range(FILES - 1, 0, -1):
            older = self._path if number == 1 else self._path.with_name(f"{self._path.name}.{number - 1}")
            if older.exists():
                os.replace(older, self._path.with_name(f"{self._path.name}.{number}"))
        self._open()

    def close(self) -> None:
        self._file.close()


class RequestLog:
    """What clients asked for."""

    def __init__(self, path: Path) -> None:
        self._file = _Bounded(path)
        self._log = structlog.wrap_logger(
            self._file,
            processors=[structlog.processors.TimeStamper(fmt="iso", utc=True), structlog.processors.JSONRenderer()],
            wrapper_class=structlog.BoundLogger,
            context_class=dict,
        )

    def request(self, user: str, what: str, **about: Any) -> None:
        """One line. A disk that is full does not end the service for the sake of this log."""
        try:
            self._log.info(what, user=user, **about)
        except OSError as error:
            structlog.get_logger("audit").error("the audit log cannot be written", error=str(error))

    def close(self) -> None:
        self._file.close()
