"""How one speaks to a coordinator before one is anybody to it: to join, and to renew what has expired."""

from websockets.asyncio.client import connect

from distributed_grid.identity.tls import trusting_context
from distributed_grid.protocol.codec import HELLO_BYTES


def unknown_to(url: str, authority: str) -> connect:
    """A websocket that shows no certificate and trusts this authority (PEM) only; to be entered by `async with`.

    Not the library's `sync` client: it reads and writes from two threads, and before Python 3.13 nothing keeps two
    threads apart in one TLS connection: one in some hundred connections never sent its request."""
    return connect(
        url,
        ssl=trusting_context(authority),
        compression=None,
        close_timeout=1,
        max_size=HELLO_BYTES,
        ping_interval=None,
        proxy=None,
        user_agent_header=None,
    )
