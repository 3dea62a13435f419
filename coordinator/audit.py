"""The audit log of requests: one JSON line each, in a file that is bounded. Who asked for what; never values of a job's
environment."""

import errno
import os
from pathlib import Path
from typing import Any

import structlog

from distributed_grid.protocol.messages import (
    AskWhy,
    Cancel,
    DrainNodes,
    ForgetNodes,
    LabelNodes,
    MakeToken,
    PutBlob,
    ShowJobs,
    SignalJob,
    Submit,
    UndrainNodes,
    WantFile,
    WantFiles,
    WantOutput,
    Watch,
    Withdraw,
)

FILE_BYTES = 16 << 20
FILES = 4
NAMED = 20
"""Jobs of a request that are named in its line."""

log = structlog.get_logger("audit")


class _Bounded:
    """A file that is appended line by line and turned over at a size: audit.log, audit.log.1, … the oldest goes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._missing = 0
        self._open()

    def _open(self) -> None:
        # The descriptor is the log's own and is closed with it.
        fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._file = open(fd, "ab", buffering=0)  # noqa: SIM115
        self._size = os.fstat(fd).st_size
        self._torn = self._size > 0 and os.pread(fd, 1, self._size - 1) != b"\n"

    def msg(self, line: str) -> None:
        """One line; where the disk does not take it, it is left out, and that is logged once."""
        data = line.encode(errors="backslashreplace") + b"\n"
        try:
            if self._file.closed:  # it could not be opened after it was turned over
                self._open()
            if self._size + len(data) > FILE_BYTES:
                self._turn_over()
            self._write(b"\n" + data if self._torn else data)
        except OSError as error:
            if not self._missing:
                log.error("the audit log cannot be written", error=str(error))
            self._missing += 1
            return
        if self._missing:
            log.warning("the audit log is written again", missing=self._missing)
            self._missing = 0

    info = msg

    def _write(self, data: bytes) -> None:
        written = self._file.write(data)
        self._size += written
        if written < len(data):  # there was room only for the beginning of it
            self._torn = True
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._torn = False

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
    """What clients asked for. A disk that is full does not end the service for the sake of this log."""

    def __init__(self, path: Path) -> None:
        self._file = _Bounded(path)
        self._log = structlog.wrap_logger(
            self._file,
            processors=[structlog.processors.TimeStamper(fmt="iso", utc=True), structlog.processors.JSONRenderer()],
            wrapper_class=structlog.BoundLogger,
            context_class=dict,
        )

    def request(self, user: str, what: str, **about: Any) -> None:
        """One line."""
        self._log.info(what, user=user, **about)

    def close(self) -> None:
        self._file.close()


def about(message: Any) -> dict[str, Any] | None:
    """What of a request is kept in its line; None: it has none."""
    match message:
        case WantOutput(allocation=allocation) | WantFiles(allocation=allocation) | WantFile(allocation=allocation):
            return {"allocation": allocation}
        case PutBlob():
            return {"blob": message.blob} if message.end else None
        case Submit(jobs=jobs):
            return {
                "jobs": len(jobs),
                "keys": [one.key for one in jobs[:NAMED]],
                "argv": [one.spec.argv for one in jobs[:1]],
                "env": sorted({name for one in jobs[:NAMED] for name in one.spec.env}),
            }
        case Watch() | Cancel() | ShowJobs():
            return {"jobs": message.jobs[:NAMED]}
        case SignalJob():
            return {"job": message.job, "signal": message.signal}
        case AskWhy():
            return {"job": message.job}
        case DrainNodes():
            return {"nodes": message.nodes, "reason": message.reason, "deadline": message.deadline}
        case UndrainNodes() | ForgetNodes():
            return {"nodes": message.nodes}
        case MakeToken():
            return {"role": message.role, "name": message.name, "uses": message.uses, "ttl": message.ttl}
        case Withdraw():
            return {"token": message.token, "role": message.role, "name": message.name}
        case LabelNodes():
            return {"nodes": message.nodes, "labels": message.labels}
    return {}
