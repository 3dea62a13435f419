"""TLS between the transport of a socket and a protocol, with one read buffer for all connections.

asyncio's own TLS has a read buffer of 256 KiB for each connection, and keeps its peer's certificate as text. Thousands
of agents that send little need neither.
"""

import asyncio
import ssl
from contextlib import suppress
from typing import Any, cast

PIECE = 16 << 10
"""Maximum number of bytes handed to OpenSSL at a time, one record: its buffers never shrink again."""
_sealed, _plain = memoryview(bytearray(PIECE)), memoryview(bytearray(PIECE))
"""Read buffers for ciphertext and plaintext, shared by all connections: both are emptied before the next read."""


class TlsTransport(asyncio.Transport, asyncio.BufferedProtocol):
    """The server's end of TLS on one connection: the protocol of its socket's transport, and the transport of `upper`,
    which is connected when the handshake is done."""

    __slots__ = ("_closing", "_incoming", "_outgoing", "_paused", "_raw", "_shaken", "_tls", "_upper")

    def __init__(self, context: ssl.SSLContext, upper: asyncio.Protocol) -> None:
        super().__init__()
        self._upper = upper
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._raw: asyncio.Transport
        self._shaken: asyncio.Future[None] | None = asyncio.get_running_loop().create_future()
        """The end of the handshake; None once it was good."""
        self._paused = False
        self._closing = False

    async def handshake(self, seconds: float) -> None:
        """Wait for the end of the handshake; if it fails the connection ends. Raises OSError: ssl.SSLError for what the
        peer does or shows, ConnectionAbortedError after `seconds`, ConnectionResetError when it leaves."""
        if self._shaken is None:
            return
        try:
            async with asyncio.timeout(seconds):
                await self._shaken
        except (TimeoutError, asyncio.CancelledError) as error:
            self.abort()
            if isinstance(error, TimeoutError):
                raise ConnectionAbortedError("the handshake did not end in time") from None
            raise

    # --- what its socket has ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _sealed

    def buffer_updated(self, nbytes: int) -> None:
        self._incoming.write(_sealed[:nbytes])
        try:
            if self._shaken is not None:
                self._shake(self._shaken)
            self._read()
        except ssl.SSLWantReadError:
            self._flush()
        except ssl.SSLError as error:
            self._closing = True
            self._flush()  # the alert
            self._raw.close()
            self._lost(error)

    def _shake(self, shaken: asyncio.Future[None]) -> None:
        self._tls.do_handshake()
        self._flush()
        self._shaken = None
        self._upper.connection_made(self)
        if not shaken.done():
            shaken.set_result(None)

    def _read(self) -> None:
        """Hand on what can be read. Raises ssl.SSLWantReadError at its end, and other ssl.SSLError."""
        while not self._paused and not self.is_closing():
            size = cast(int, self._tls.read(PIECE, _plain))
            if not size:  # the peer has ended TLS
                self._upper.eof_received()
                self.close()
                return
            self._upper.data_received(bytes(_plain[:size]))

    def _lost(self, error: Exception) -> None:
        if self._shaken is not None and not self._shaken.done():
            self._shaken.set_exception(error)

    def eof_received(self) -> bool:
        if self._shaken is None:
            self._upper.eof_received()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._shaken is None:
            self._upper.connection_lost(exc)
        else:
            self._lost(exc or ConnectionResetError("it left in the middle of the handshake"))

    def pause_writing(self) -> None:
        if self._shaken is None:
            self._upper.pause_writing()

    def resume_writing(self) -> None:
        if self._shaken is None:
            self._upper.resume_writing()

    # --- what its protocol asks ---------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.is_closing():
            return
        whole = memoryview(data)
        try:
            for first in range(0, len(whole), PIECE):
                self._tls.write(whole[first : first + PIECE])
                self._flush()
        except ssl.SSLError:  # the peer has broken TLS
            self.abort()

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._raw.write(self._outgoing.read())

    def pause_reading(self) -> None:
        self._paused = True
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        self._paused = False
        self._raw.resume_reading()
        asyncio.get_running_loop().call_soon(self.buffer_updated, 0)  # what was read of the socket before

    def close(self) -> None:
        """End TLS, and the connection when what was written has left."""
        if self.is_closing():
            return
        self._closing = True
        with suppress(ssl.SSLError):  # the peer has not ended it yet
            self._tls.unwrap()
        self._flush()
        self._raw.close()

    def abort(self) -> None:
        self._closing = True
        self._raw.abort()

    def is_closing(self) -> bool:
        return self._closing or self._raw.is_closing()

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._raw.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As the base class, with `ssl_object`."""
        return self._tls if name == "ssl_object" else self._raw.get_extra_info(name, default)
