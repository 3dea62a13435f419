"""What a peer connects with: a certificate or a bearer token, over TLS 1.3 only, trusting the grid's own authority
alone.
"""

import os
import ssl
import stat
import time
from pathlib import Path

from distributed_grid.protocol.errors import GridError

AUTHORITY, CERTIFICATE, KEY = "ca.crt", "own.crt", "own.key"
"""What an identity is, as files of one folder: the grid's authority, one's own certificate, and its private key. The
key is followed by the certificate once more: connections are made with that one file, which a renewal replaces at once.
"""
IDENTITY = "identity"
"""The folder of a node's identity, below its agent's state directory."""


def has_identity(folder: Path) -> bool:
    """Whether this folder holds an identity (that is, one was given out to it)."""
    return (folder / CERTIFICATE).is_file()


def server_context(folder: Path) -> ssl.SSLContext:
    """Return the context of a coordinator. Peers may come without a certificate, and are then anonymous; one that is
    not the authority's, or has expired, ends the handshake. There are no session tickets: the certificate of a resumed
    session is not checked again. Raises GridError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET
    context.verify_mode = ssl.CERT_OPTIONAL
    return _ready(context, folder)


def client_context(folder: Path) -> ssl.SSLContext:
    """The TLS context of an agent or a person, with the identity in this folder. Raises GridError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return _ready(context, folder)


def trusting_context(authority: str) -> ssl.SSLContext:
    """Return the context of a client without identity that knows the authority (PEM)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=authority)
    return context


def blind_context() -> ssl.SSLContext:
    """Return a context without trust, only for the request for the authority's certificate. Nothing else may be sent
    over it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _ready(context: ssl.SSLContext, folder: Path) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    own(context, folder)
    return context


def own(context: ssl.SSLContext, folder: Path) -> None:
    """Use the identity in this folder in connections that are made from now on. Raises GridError."""
    check_private(folder / KEY)
    try:
        context.load_verify_locations(folder / AUTHORITY)
        context.load_cert_chain(folder / KEY)
    except (OSError, ssl.SSLError) as error:
        raise GridError(
            f"the identity in {folder} cannot be used", why=str(error), hint="join the grid again with a new token"
        ) from None


def check_private(path: Path) -> None:
    """Raise GridError where a file with a secret is not there, or others can read it, or put another in its place."""
    try:
        mode, around = (stat.S_IMODE(os.stat(one).st_mode) for one in (path, path.parent))
    except OSError as error:
        raise GridError(f"cannot read {path}", why=os.strerror(error.errno or 0)) from None
    if mode & 0o077:
        raise GridError(
            f"{path} can be read by others",
            why=f"it holds a secret, and its mode is {mode:04o}",
            hint=f"chmod 600 {path}, and make new keys if somebody may have read it",
        )
    if around & stat.S_IWOTH and not around & stat.S_ISVTX:
        raise GridError(
            f"others can put another file in the place of {path}",
            why=f"the mode of {path.parent} is {around:04o}",
            hint=f"chmod o-w {path.parent}, and see that what is in it is yours",
        )


def tls_words(error: ssl.SSLError) -> str:
    """Why a handshake failed, for people. A peer that refuses our certificate says so by an alert."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if hint_of(error):
            return f"its {error.verify_message}; {clock_words()}"
        return f"its certificate is not good here: {error.verify_message}"
    reason = (error.reason or str(error)).replace("_", " ").lower()
    return ALERTS.get(reason, f"TLS: {reason}")


def clock_words() -> str:
    """Describe the time of this machine's clock: it may be wrong if a certificate is not valid now."""
    return f"this machine's clock says {time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC"


OUT_OF_TIME = (9, 10)
"""OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID and _HAS_EXPIRED."""


def hint_of(error: ssl.SSLError) -> str:
    """Return what to do about a certificate that is not valid now; empty: the error is another one."""
    wrong = isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in OUT_OF_TIME
    return "compare this machine's clock with the coordinator's: date; timedatectl" if wrong else ""


ALERTS = {
    "tlsv1 alert unknown ca": "it does not know the authority of our certificate",
    "sslv3 alert certificate expired": "our certificate has expired",
    "sslv3 alert certificate revoked": "our certificate was taken back",
    "sslv3 alert bad certificate": "it does not accept our certificate",
    "wrong version number": "what answers there does not speak TLS",
    "tlsv1 alert protocol version": "it does not speak TLS 1.3",
    "unsupported protocol": "it does not speak TLS 1.3",
}


BEARER = "bearer"
"""The file, in the folder of a context."""
VARIABLE = "GRID_TOKEN_FILE"
"""Names another file, for programs that get their secrets so."""


def bearer_in(folder: Path) -> str:
    """The token that is to be shown, if there is one. Raises GridError."""
    named = os.environ.get(VARIABLE, "")
    path = Path(named) if named else folder / BEARER
    if not named and not path.exists():
        return ""
    check_private(path)
    token = path.read_text(errors="replace").strip().rpartition("/")[2]
    if token.count(".") == 3:  # as it stands in an invitation, with the authority's pin
        token = ".".join(part for number, part in enumerate(token.split(".")) if number != 1)
    if not token.startswith("gridu1.") or not token.isascii() or not token.isprintable() or " " in token:
        raise GridError(f"{path} holds no bearer token", hint="grid token create --bearer, by an operator")
    return token


def as_member(folder: Path) -> tuple[ssl.SSLContext, dict[str, str]]:
    """Return how a person connects with the contents of a context's folder: a certificate, or a bearer token in this
    header. Raises GridError."""
    if token := bearer_in(folder):
        try:
            authority = (folder / AUTHORITY).read_text()
        except OSError as error:
            why = error.strerror or str(error)
            raise GridError(f"{folder / AUTHORITY} cannot be read", why, "grid login") from None
        return trusting_context(authority), {"Authorization": f"Bearer {token}"}
    return client_context(folder), {}
