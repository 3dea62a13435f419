"""Bulk data: output, files and standard input of jobs, and what is shipped with them. The coordinator requests it, and
the agent answers and fetches what was shipped. Clients use the same messages, which the coordinator forwards."""

import msgspec

from distributed_grid.protocol.messages.handshake import Message
from distributed_grid.protocol.resources import Count, Finite, Number, Pid, Text, Word


class WantOutput(Message, frozen=True, tag="want-output"):
    """Up to `size` bytes of a stream (stdout or stderr) from `offset`; held back up to `wait` seconds until there are
    any or the stream has ended. This is the credit: nothing is sent that was not asked for.

    `reader`: the id that an attached reader chose for itself. It has read all before `offset`; what is behind is kept
    for it, and the job waits where it is too far behind, for a minute from its last question on."""

    id: Number
    allocation: Word
    stream: Word
    offset: Count
    size: Count
    wait: Finite = 0.0
    reader: Word = ""


class Output(Message, frozen=True, tag="output"):
    """Bytes of a stream at `offset`. `gap`: bytes before `offset` that are gone from the disk (the requested offset
    lies in it). `end`: these are the last bytes. `error`: why there are no bytes to send."""

    id: Number
    offset: Count
    data: bytes = b""
    end: bool = False
    gap: Count = 0
    error: Text = ""


class WantFiles(Message, frozen=True, tag="want-files"):
    """The files in the allocation's working directory that match any of these globs."""

    id: Number
    allocation: Word
    globs: tuple[str, ...]


class FileEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file by its path relative to the working directory; `mode` is its permission bits. `raw`: the path's bytes
    where they are not UTF-8; `path` then only shows them."""

    path: str
    size: Count
    mode: Pid = 0o644
    raw: bytes = b""


class Files(Message, frozen=True, tag="files"):
    """The files that matched."""

    id: Number
    files: tuple[FileEntry, ...] = ()
    error: Text = ""


class WantFile(Message, frozen=True, tag="want-file"):
    """Up to `size` bytes of a file in the allocation's working directory. `raw` as in FileEntry. `holes`: a long hole
    may be answered by its length."""

    id: Number
    allocation: Word
    path: Text
    offset: Count
    size: Count
    raw: bytes = b""
    holes: bool = False


class FileData(Message, frozen=True, tag="file-data"):
    """Bytes of a file; `end` when it has no more. `hole`: in place of bytes, this many zeros that take no space
    there."""

    id: Number
    data: bytes = b""
    end: bool = False
    error: Text = ""
    hole: Count = 0


class PutInput(Message, frozen=True, tag="put-input"):
    """Bytes of the allocation's standard input at `offset`; `end`: the input ends behind them. `cut`: it cannot go on,
    for that reason, and the job is ended. Answered by InputTaken: up to `wait` seconds later while the node takes
    nothing beyond `until`, or, with `end`, until all of it is in the job's pipe."""

    id: Number
    allocation: Word
    offset: Count
    data: bytes = b""
    end: bool = False
    cut: Text = ""
    until: Count = 0
    wait: Finite = 0.0


class InputTaken(Message, frozen=True, tag="input-taken"):
    """The allocation's standard input is in its pipe up to `offset`; the node has it up to `next`, and takes bytes
    before `until`, the credit. `over`: it takes no more, since all is in the pipe, or the pipe is not read any more.
    `error`: it was not taken now."""

    id: Number
    offset: Count = 0
    next: Count = 0
    until: Count = 0
    over: bool = False
    error: Text = ""


class WantBlob(Message, frozen=True, tag="want-blob"):
    """The agent asks for up to `size` bytes of a shipped blob (a manifest or a file's content), by its hash."""

    id: Number
    blob: Word
    offset: Count
    size: Count


class BlobData(Message, frozen=True, tag="blob-data"):
    """Bytes of a blob; `end` when it has no more."""

    id: Number
    data: bytes = b""
    end: bool = False
    error: Text = ""


class WantBlobs(Message, frozen=True, tag="want-blobs"):
    """Which of these blobs must the client still send: answered by MissingBlobs."""

    id: Number
    blobs: tuple[str, ...]


class MissingBlobs(Message, frozen=True, tag="missing-blobs"):
    """The blobs the coordinator has not got."""

    id: Number
    blobs: tuple[str, ...]


class PutBlob(Message, frozen=True, tag="put-blob"):
    """Bytes of a blob at `offset`, in order; with `end` the whole is checked against its hash and kept. Answered by
    Done once it is on disk (only the last part is answered)."""

    id: Number
    blob: Word
    offset: Count
    data: bytes
    end: bool = False
