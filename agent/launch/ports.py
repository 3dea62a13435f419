"""Whether a port of this machine is free for a gang to meet at, or a raylet to listen at."""

import errno
import socket

_NONE_SUCH = errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL


def is_free(port: int) -> bool:
    """Whether a job could listen there now, on all addresses. (Connections of the past that are fading away are in
    nobody's way.)"""
    trouble = _bind(socket.AF_INET6, "::", port)  # both families in one go: a raylet asks for some forty ports
    if trouble in _NONE_SUCH:
        trouble = _bind(socket.AF_INET, "0.0.0.0", port)  # noqa: S104
    return trouble == 0


def _bind(family: socket.AddressFamily, address: str, port: int) -> int:
    """Listen there for a moment; the number of what is in the way, or 0."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family is socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            probe.bind((address, port))
            probe.listen(1)
    except OSError as error:
        return error.errno or errno.EIO
    return 0
