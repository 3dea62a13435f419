"""What a peer says first, before TLS or HTTP take over: who speaks the other of the two is told so, in plain words that
both can read."""

import asyncio
import socket
import ssl

TLS = b"\x16"
"""How a peer begins that speaks TLS."""
_ANSWER = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n{}\n"


async def first_byte(sock: socket.socket, seconds: float) -> bytes:
    """A peer's first byte, which is still to be read; none where it leaves. Raises TimeoutError."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(sock, ready.set)
    try:
        async with asyncio.timeout(seconds):
            await ready.wait()
    finally:
        loop.remove_reader(sock)
    return sock.recv(1, socket.MSG_PEEK)


def misled(first: bytes, secure: bool) -> str:
    """What is wrong with a peer that begins so, on a port with TLS or without; empty: nothing. What it said is taken
    for garbage then, and it may have the answer of `answer_plainly`."""
    if secure and first != TLS:
        return "what it says is not TLS; a client of ours is to use wss://"
    if not secure and first == TLS:
        return "it speaks TLS, and this grid has no authority"
    return ""


def answer_plainly(sock: socket.socket, secure: bool) -> None:
    """Say which of the two is spoken here."""
    words = "This grid has an authority: use wss://" if secure else "This grid has no authority: use ws://"
    try:
        sock.send(_ANSWER.format(words).encode())
        sock.shutdown(socket.SHUT_WR)
        sock.recv(1 << 16)  # with bytes unread, closing would take the answer back
    except OSError:
        pass


def reason(error: OSError) -> str:
    """Why a handshake with a peer failed, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return WORDS.get(error.verify_message, f"its certificate is not good: {error.verify_message}")
    if isinstance(error, ssl.SSLError):
        plain = (error.reason or str(error)).replace("_", " ").lower()
        return WORDS.get(plain, f"TLS: {plain}")
    if isinstance(error, ConnectionAbortedError):
        return "its TLS handshake did not end in time"
    return "it went away in the middle of the handshake"


WORDS = {
    "certificate has expired": "its certificate has expired",
    "unable to get local issuer certificate": "its certificate is not of this grid's authority",
    "self-signed certificate": "its certificate is not of this grid's authority",
    "self-signed certificate in certificate chain": "its certificate is not of this grid's authority",
    "certificate signature failure": "its certificate is not of this grid's authority",
    "unsupported protocol": "it does not speak TLS 1.3",
    "no shared cipher": "it has no cipher of TLS 1.3",
    "tlsv1 alert unknown ca": "it does not take this grid's authority for one",
    "sslv3 alert bad certificate": "it does not take our certificate",
    "sslv3 alert certificate unknown": "it does not take our certificate",
    "sslv3 alert certificate expired": "by its clock our certificate has expired",
}
