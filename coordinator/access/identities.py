"""The issued tokens and certificates, in a database of their own (`pki/identities.db`), which has only the hash of a
token's secret. `Identities.redeem` checks a token to join with, `Bearers.verify` a bearer token."""

import base64
import fnmatch
import hashlib
import hmac
import json
import secrets
import sqlite3
from collections.abc import Mapping
from pathlib import Path

import msgspec

from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.identity import MOST_USES, PEOPLE, Role, check_name

PKI = "pki"
"""The authority's folder in the coordinator's state directory."""
IDENTITIES = "identities.db"
ID_BYTES, SECRET_BYTES = 4, 32


def has_authority(folder: Path) -> bool:
    """Whether there is an authority in this folder. (Without one a coordinator does not load `cryptography`.)"""
    return (folder / "ca.key").exists()


def new_secret() -> tuple[str, str]:
    """A new random id and secret."""
    return secrets.token_hex(ID_BYTES), secrets.token_urlsafe(SECRET_BYTES)


def derived_secret(seed: bytes) -> tuple[str, str]:
    """The id and secret that belong to a secret seed of 32 bytes or more."""
    secret = base64.urlsafe_b64encode(hashlib.sha256(seed + b"secret").digest()).rstrip(b"=").decode()
    return hashlib.sha256(seed + b"id").hexdigest()[: 4 * ID_BYTES], secret


def digest_of(secret: str) -> bytes:
    """Return the digest of a secret, which is stored in its place."""
    return hashlib.sha256(secret.encode(errors="replace")).digest()


def is_right(kept: bytes | None, secret: str) -> bool:
    """Whether `kept` is the digest of this secret. None (an unknown id) takes as long as a wrong secret."""
    return hmac.compare_digest(kept or b"\0" * 32, digest_of(secret)) and kept is not None


BEARERS = """
CREATE TABLE IF NOT EXISTS bearers (
    id TEXT PRIMARY KEY, digest BLOB NOT NULL, role TEXT NOT NULL, name TEXT NOT NULL, expires REAL NOT NULL,
    creator TEXT NOT NULL, created REAL NOT NULL, revoked REAL
) STRICT;
"""
PREFIX = "gridu1"
LONGEST_BEARER = 365 * 86400.0
RANK = {Role.VIEWER: 0, Role.CLIENT: 1, Role.OPERATOR: 2}
"""Roles of people; each may do what those before it may."""
_BEARER = "id, role, name, expires, created, coalesce(revoked, 0)"


class Bearer(msgspec.Struct, frozen=True):
    """A bearer token as it is stored. Times are seconds since the epoch; `revoked` 0: it was not."""

    id: str
    role: Role
    name: str
    expires: float
    created: float
    revoked: float = 0.0


class Bearers:
    """All bearer tokens. Times are given by the caller."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        db.executescript(BEARERS)

    def mint(self, role: Role, name: str, ttl: float, creator: str, now: float) -> str:
        """A new bearer token, as text that is not stored. Raises BadValue."""
        if role not in PEOPLE:
            raise BadValue("a bearer token is for people", hint="a node joins with a token: grid token create")
        if not 0 < ttl <= LONGEST_BEARER:
            raise BadValue("a bearer token cannot hold for so long", hint="give at most 365d")
        check_name("a user", name)
        id, secret = new_secret()
        with self._db:
            self._db.execute("DELETE FROM bearers WHERE expires < ?", (now - LONGEST_BEARER,))
            row = (id, digest_of(secret), role.value, name, now + ttl, creator, now)
            self._db.execute("INSERT INTO bearers VALUES (?, ?, ?, ?, ?, ?, ?, NULL)", row)
        return f"{PREFIX}.{id}.{secret}"

    def verify(self, text: str, now: float) -> Bearer:
        """The token with this text; its role is at most the highest of its user's valid certificates, if there are
        any. Raises GridError."""
        prefix, _, rest = text.partition(".")
        id, _, secret = rest.partition(".")
        row = self._db.execute(f"SELECT digest, {_BEARER} FROM bearers WHERE id = ?", (id,)).fetchone()  # noqa: S608
        right = is_right(row and row[0], secret)  # also of a wrong id, which is answered alike
        if prefix != PREFIX or not right:
            raise GridError("this bearer token is not known here", hint="ask for another: grid token create --bearer")
        one = _bearer(*row[1:])
        if one.revoked:
            raise GridError(f"the bearer token {id} was taken back", hint="ask an operator for another")
        if now >= one.expires:
            raise GridError(f"the bearer token {id} has expired", hint="ask an operator for another")
        return msgspec.structs.replace(one, role=self._allowed(one, now))

    def holds(self, id: str) -> bool:
        """Whether a token that was verified before has not been revoked since."""
        row = self._db.execute("SELECT revoked FROM bearers WHERE id = ?", (id,)).fetchone()
        return row is not None and row[0] is None

    def _allowed(self, one: Bearer, now: float) -> Role:
        roles = self._db.execute(
            "SELECT DISTINCT role FROM certificates WHERE name = ? AND role <> 'agent' AND expires > ?"
            " AND revoked IS NULL",
            (one.name, now),
        ).fetchall()
        highest = max((Role(role) for (role,) in roles), key=RANK.__getitem__, default=one.role)
        return min(one.role, highest, key=RANK.__getitem__)

    def listed(self, now: float) -> list[Bearer]:
        """The tokens that have not expired, by name."""
        query = f"SELECT {_BEARER} FROM bearers WHERE expires > ? ORDER BY name, created, id"  # noqa: S608
        return [_bearer(*row) for row in self._db.execute(query, (now,))]

    def withdraw(self, now: float, id: str = "", name: str = "") -> list[str]:
        """Revoke the token with this id, or all of this user; the ids of those that were valid until now."""
        with self._db:
            rows = self._db.execute(
                "UPDATE bearers SET revoked = ? WHERE (id = ? OR name = ?) AND revoked IS NULL AND expires > ?"
                " RETURNING id",
                (now, id, name, now),
            ).fetchall()
        return [id for (id,) in rows]


def _bearer(id: str, role: str, name: str, *times: float) -> Bearer:
    return Bearer(id, Role(role), name, *times)


SCHEMA = """
CREATE TABLE IF NOT EXISTS tokens (
    id TEXT PRIMARY KEY, digest BLOB NOT NULL, role TEXT NOT NULL, name TEXT NOT NULL, labels TEXT NOT NULL,
    uses INTEGER NOT NULL, expires REAL NOT NULL, creator TEXT NOT NULL, created REAL NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS certificates (
    serial TEXT PRIMARY KEY, role TEXT NOT NULL, name TEXT NOT NULL, expires REAL NOT NULL, issued REAL NOT NULL,
    token TEXT NOT NULL, revoked REAL
) STRICT;
CREATE TABLE IF NOT EXISTS members (
    role TEXT NOT NULL, name TEXT NOT NULL, labels TEXT NOT NULL, PRIMARY KEY (role, name)
) STRICT;
CREATE INDEX IF NOT EXISTS certificates_name ON certificates (role, name);
"""
LONGEST = 90 * 86400.0


class Token(msgspec.Struct, frozen=True):
    """A token to join with, as it is stored. `name`: the name of the new member, or a pattern that it has to match;
    `expires`: seconds since the epoch."""

    id: str
    role: Role
    name: str
    labels: dict[str, str]
    uses: int
    expires: float
    creator: str


class Certified(msgspec.Struct, frozen=True):
    """A certificate that was signed here; `revoked`: when, 0: it was not."""

    serial: str
    role: Role
    name: str
    expires: float
    issued: float
    token: str
    revoked: float = 0.0


_JOIN = "id, role, name, labels, uses, expires, creator"
_CERTIFIED = "serial, role, name, expires, issued, token, coalesce(revoked, 0)"


def _token(id: str, role: str, name: str, labels: str, uses: int, expires: float, creator: str) -> Token:
    return Token(id, Role(role), name, json.loads(labels), uses, expires, creator)


def _certified(serial: str, role: str, name: str, expires: float, issued: float, token: str, rev: float) -> Certified:
    return Certified(serial, Role(role), name, expires, issued, token, rev)


class TokenRefused(GridError):
    """A token that is not accepted."""


class Identities:
    """Tokens and certificates. Times are seconds since the epoch, given by the caller."""

    def __init__(self, path: Path) -> None:
        path.touch(mode=0o600)
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.executescript(SCHEMA)
        self.bearers = Bearers(self._db)
        self.revoked = {serial for (serial,) in self._db.execute("SELECT serial FROM certificates WHERE revoked > 0")}
        """Serial numbers of the certificates that were revoked."""

    def close(self) -> None:
        self._db.close()

    # --- tokens ------------------------------------------------------------------------------------------------------

    def mint(
        self,
        pin: str,
        role: Role,
        name: str,
        labels: Mapping[str, str],
        uses: int,
        ttl: float,
        creator: str,
        now: float,
        seed: bytes = b"",
    ) -> str:
        """A new token, as text that is not stored. The same secret `seed` gives the same token: its uses and its expiry
        stay as they are. Raises BadValue."""
        if not 1 <= uses <= MOST_USES:
            raise BadValue(f"a token for {uses} uses cannot be made", hint=f"give 1 to {MOST_USES}")
        if not 0 < ttl <= LONGEST:
            raise BadValue(
                "a token cannot hold for so long", hint="give at most 90d; it is for joining, not for staying"
            )
        if role is not Role.AGENT or (name and not any(char in name for char in "*?[")):
            check_name("a node" if role is Role.AGENT else "a user", name)
        id, secret = derived_secret(seed) if seed else new_secret()
        digest, told = digest_of(secret), json.dumps(dict(labels))
        row = (id, digest, role.value, name, told, uses, now + ttl, creator, now)
        with self._db:
            self._db.execute("DELETE FROM tokens WHERE expires < ?", (now - LONGEST,))
            again = "OR IGNORE " if seed else ""
            self._db.execute(f"INSERT {again}INTO tokens VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)  # noqa: S608
        return f"grid1.{pin}.{id}.{secret}"

    def tokens(self, now: float) -> list[Token]:
        """The tokens that can still be used, the newest first."""
        query = f"SELECT {_JOIN} FROM tokens WHERE uses > 0 AND expires > ? ORDER BY created DESC, id"  # noqa: S608
        return [_token(*row) for row in self._db.execute(query, (now,))]

    def withdraw(self, id: str) -> bool:
        """Revoke this token; False: there is none with this id."""
        with self._db:
            return self._db.execute("UPDATE tokens SET uses = 0 WHERE id = ?", (id,)).rowcount > 0

    def withdraw_of(self, role: Role, name: str, now: float) -> int:
        """Revoke all tokens that are for this name alone; how many could still be used."""
        with self._db:
            rows = self._db.execute(
                "UPDATE tokens SET uses = 0 WHERE role = ? AND name = ? AND uses > 0 RETURNING expires",
                (role.value, name),
            ).fetchall()
        return sum(expires > now for (expires,) in rows)

    def redeem(self, id: str, secret: str, asked: str, now: float, to_be: str = "") -> Token:
        """Use a token once, for a member that asks for the name `asked`; the token, with the name that it gets. `to_be`
        as in messages.handshake.Join. A token that is refused is not used up. Raises TokenRefused."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            token = self._verified(id, secret, asked, now, to_be)
            self._db.execute("UPDATE tokens SET uses = uses - 1 WHERE id = ?", (id,))
            self._db.execute("COMMIT")
            return token
        except BaseException:
            self._db.execute("ROLLBACK")
            raise

    def _verified(self, id: str, secret: str, asked: str, now: float, to_be: str) -> Token:
        row = self._db.execute(f"SELECT digest, {_JOIN} FROM tokens WHERE id = ?", (id,)).fetchone()  # noqa: S608
        if not is_right(row and row[0], secret):  # also of a wrong id, which is answered alike
            raise TokenRefused("this token is not known here", hint="ask for a new one: grid token create")
        token = _token(*row[1:])
        if token.uses < 1:
            raise TokenRefused(f"the token {id} is used up", hint="ask for a new one: grid token create")
        if now >= token.expires:
            raise TokenRefused(f"the token {id} has expired", hint="ask for a new one: grid token create")
        if to_be == "node" and token.role is not Role.AGENT:
            what, hint = f"this token is for a person ({token.role}), not for a node", "grid login, as that person"
            raise TokenRefused(what, "it is not used up", f"{hint}; for a node: grid token create --node NAME")
        if to_be == "person" and token.role is Role.AGENT:
            hint = "grid agent join, on that node; for a person: grid token create --role client --user NAME"
            raise TokenRefused("this token is for a node, not for a person", "it is not used up", hint)
        return msgspec.structs.replace(token, name=self._name(token.role, token.name, asked, now))

    def _name(self, role: Role, name: str, asked: str, now: float) -> str:
        if name and not any(char in name for char in "*?["):
            return name
        check_name("a node" if role is Role.AGENT else "a user", asked)
        if name and not fnmatch.fnmatchcase(asked, name):
            raise TokenRefused(f"this token is for nodes called {name}, not {asked!r}", hint="give another --name")
        if self.holds(role, asked, now):
            raise TokenRefused(
                f"there is a node called {asked!r} already",
                why="its certificate is valid, and two nodes of one name would be taken for one",
                hint=f"give another --name, or a token made for it: grid token create --node {asked}",
            )
        return asked

    # --- members -----------------------------------------------------------------------------------------------------

    def label(self, role: Role, name: str, labels: Mapping[str, str]) -> None:
        """Record the labels that its token gives to this member."""
        with self._db:
            row = (role.value, name, json.dumps(dict(labels)))
            self._db.execute("INSERT OR REPLACE INTO members VALUES (?, ?, ?)", row)

    def labels(self, role: Role, name: str) -> dict[str, str]:
        """The labels that its token gives to this member."""
        row = self._db.execute("SELECT labels FROM members WHERE role = ? AND name = ?", (role.value, name)).fetchone()
        given: dict[str, str] = json.loads(row[0]) if row is not None else {}
        return given

    # --- certificates -------------------------------------------------------------------------------------------------

    def signed(self, serial: int, role: Role, name: str, expires: float, now: float, token: str = "") -> None:
        """Record that this certificate was signed."""
        with self._db:
            self._db.execute("DELETE FROM certificates WHERE expires < ?", (now - LONGEST,))
            self._db.execute(
                "INSERT INTO certificates VALUES (?, ?, ?, ?, ?, ?, NULL)",
                (f"{serial:x}", role.value, name, expires, now, token),
            )

    def holds(self, role: Role, name: str, now: float) -> bool:
        """Whether a member of this role and name has a valid certificate."""
        found = self._db.execute(
            "SELECT 1 FROM certificates WHERE role = ? AND name = ? AND expires > ? AND revoked IS NULL LIMIT 1",
            (role.value, name, now),
        )
        return found.fetchone() is not None

    def certified(self, serial: str) -> Certified | None:
        """The certificate with this serial number, if it is on record."""
        query = f"SELECT {_CERTIFIED} FROM certificates WHERE serial = ?"  # noqa: S608
        row = self._db.execute(query, (serial,)).fetchone()
        return _certified(*row) if row is not None else None

    def joined_since(self, one: Certified) -> bool:
        """Whether a member has joined under that name with another token since this certificate was signed."""
        found = self._db.execute(
            "SELECT 1 FROM certificates WHERE role = ? AND name = ? AND issued > ? AND token <> ? LIMIT 1",
            (one.role.value, one.name, one.issued, one.token),
        )
        return found.fetchone() is not None

    def certificates(self, now: float) -> list[Certified]:
        """The certificates that have not expired, by role and name."""
        query = f"SELECT {_CERTIFIED} FROM certificates WHERE expires > ? ORDER BY role, name, issued"  # noqa: S608
        return [_certified(*row) for row in self._db.execute(query, (now,))]

    def revoke(self, role: Role, name: str, now: float, renewable: float = 0.0) -> int:
        """Revoke all certificates of this role and name, expired ones too, since they may be renewed; how many were of
        use. `renewable`: for how long after its end one of this role may be renewed (s)."""
        with self._db:
            rows = self._db.execute(
                "UPDATE certificates SET revoked = ? WHERE role = ? AND name = ? AND revoked IS NULL"
                " RETURNING serial, expires",
                (now, role.value, name),
            ).fetchall()
        self.revoked |= {serial for serial, _ in rows}
        return sum(expires > now - renewable for _, expires in rows)
