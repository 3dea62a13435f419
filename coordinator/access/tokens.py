"""Tokens, those to join with and those that people bear: an id, by which one is found, and a secret, of which only the
hash is kept. A bearer token is what a program of somebody's shows with each connection, where a certificate is too
much. What one allows is no more than what its user may, and no more than what it was made for.
"""

import hashlib
import hmac
import secrets
import sqlite3

import msgspec

from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.identity import PEOPLE, Role, check_name

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


SCHEMA = """
CREATE TABLE IF NOT EXISTS bearers (
    id TEXT PRIMARY KEY, digest BLOB NOT NULL, role TEXT NOT NULL, name TEXT NOT NULL, expires REAL NOT NULL,
    creator TEXT NOT NULL, created REAL NOT NULL, revoked REAL
) STRICT;
"""
PREFIX = "gridu1"
LONGEST = 365 * 86400.0
RANK = {Role.VIEWER: 0, Role.CLIENT: 1, Role.OPERATOR: 2}
"""Roles of people, each of which may all that those before it may."""


class Bearer(msgspec.Struct, frozen=True):
    """One, as it is kept. Times are seconds since the epoch; `revoked` 0: it holds."""

    id: str
    role: Role
    name: str
    expires: float
    creator: str
    created: float
    revoked: float = 0.0


class Bearers:
    """All of them. Times are given by the caller."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        db.executescript(SCHEMA)

    def mint(self, role: Role, name: str, ttl: float, creator: str, now: float) -> str:
        """A new one, as text: it is not kept, so this is the only time it is seen. Raises BadValue."""
        if role not in PEOPLE:
            raise BadValue("a bearer token is for people", hint="a node joins with a token: grid token create")
        if not 0 < ttl <= LONGEST:
            raise BadValue("a bearer token cannot hold for so long", hint="give at most 365d")
        check_name("a user", name)
        id, secret = new()
        with self._db:
            self._db.execute("DELETE FROM bearers WHERE expires < ?", (now - LONGEST,))
            row = (id, digest(secret), role.value, name, now + ttl, creator, now)
            self._db.execute("INSERT INTO bearers VALUES (?, ?, ?, ?, ?, ?, ?, NULL)", row)
        return f"{PREFIX}.{id}.{secret}"

    def judge(self, text: str, now: float) -> Bearer:
        """The one that this is; its role is no more than the highest of which its user has a certificate, if there is
        one. Raises GridError."""
        prefix, _, rest = text.partition(".")
        id, _, secret = rest.partition(".")
        row = self._db.execute(
            "SELECT digest, role, name, expires, creator, created, revoked FROM bearers WHERE id = ?", (id,)
        ).fetchone()
        right = is_right(row and row[0], secret)  # also of a wrong id, which is answered alike
        if prefix != PREFIX or not right:
            raise GridError("this bearer token is not known here", hint="ask for another: grid token create --bearer")
        _, role, name, expires, creator, created, revoked = row
        one = Bearer(id, Role(role), name, expires, creator, created, revoked or 0.0)
        if one.revoked:
            raise GridError(f"the bearer token {id} was taken back", hint="ask an operator for another")
        if now >= one.expires:
            raise GridError(f"the bearer token {id} has expired", hint="ask an operator for another")
        return msgspec.structs.replace(one, role=self._allowed(one, now))

    def holds(self, id: str) -> bool:
        """Whether one that was judged before was not taken back since."""
        row = self._db.execute("SELECT revoked FROM bearers WHERE id = ?", (id,)).fetchone()
        return row is not None and row[0] is None

    def _allowed(self, one: Bearer, now: float) -> Role:
        held = self._db.execute(
            "SELECT DISTINCT role FROM certificates WHERE name = ? AND role <> 'agent' AND expires > ?"
            " AND revoked IS NULL",
            (one.name, now),
        ).fetchall()
        highest = max((Role(role) for (role,) in held), key=RANK.__getitem__, default=one.role)
        return min(one.role, highest, key=RANK.__getitem__)

    def listed(self, now: float) -> list[Bearer]:
        """Those that have not expired, by name."""
        rows = self._db.execute(
            "SELECT id, role, name, expires, creator, created, revoked FROM bearers WHERE expires > ?"
            " ORDER BY name, created, id",
            (now,),
        )
        return [
            Bearer(id, Role(role), name, expires, creator, created, revoked or 0.0)
            for id, role, name, expires, creator, created, revoked in rows
        ]

    def withdraw(self, now: float, id: str = "", name: str = "") -> list[str]:
        """Take back the one of this id, or all of this user; the ids of those that held until now."""
        with self._db:
            rows = self._db.execute(
                "UPDATE bearers SET revoked = ? WHERE (id = ? OR name = ?) AND revoked IS NULL AND expires > ?"
                " RETURNING id",
                (now, id, name, now),
            ).fetchall()
        return [id for (id,) in rows]
