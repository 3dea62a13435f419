"""What tokens are made of, those to join with and those that people bear: an id, by which one is found, and a secret,
of which only the hash is kept."""

import hashlib
import hmac
import secrets

ID_BYTES, SECRET_BYTES = 4, 32


def new() -> tuple[str, str]:
    """An id and a secret that nobody has."""
    return secrets.token_hex(ID_BYTES), secrets.token_urlsafe(SECRET_BYTES)


def digest(secret: str) -> bytes:
    """What is kept of a secret."""
    return hashlib.sha256(secret.encode(errors="replace")).digest()


def is_right(kept: bytes | None, secret: str) -> bool:
    """Whether this is the secret of which that was kept; None: nothing was, for the id is wrong, which costs as much
    time as a wrong secret."""
    return hmac.compare_digest(kept or b"\0" * 32, digest(secret)) and kept is not None
