"""The authority goes with a backup: members stay members, and revocations stay."""

import shutil
import sqlite3
import ssl
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from distributed_grid.coordinator.access.ca import Pki
from distributed_grid.coordinator.backup.archive import backup, restore
from distributed_grid.coordinator.backup.check import check
from distributed_grid.identity.keys import key_pem, new_key, write_secret
from distributed_grid.protocol.codec import decode, encode
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.identity import Role
from distributed_grid.protocol.link import PROTOCOL
from distributed_grid.protocol.messages import Hello, Welcome
from tests.coordinator.ends import Coordinator, coordinator


async def let_in(grid: Coordinator, who: ssl.SSLContext) -> bool:
    try:
        async with connect(grid.url, ssl=who, proxy=None) as wire:
            await wire.send(encode(0, [Hello(protocol=PROTOCOL, software="", role="client", name="x")]))
            return isinstance(decode("ToClient", await wire.recv(decode=False))[1][0], Welcome)
    except (OSError, WebSocketException):
        return False


async def founded(place: Path) -> tuple[ssl.SSLContext, ssl.SSLContext, str]:
    """A grid with its backup: ann, bob, who is to lose his access, and a token that will have been used."""
    (place / "state").mkdir()
    async with coordinator(place / "state", founded=True) as grid:
        assert grid.pki is not None
        ann, bob = grid.member(Role.CLIENT, "ann"), grid.member(Role.CLIENT, "bob")
        assert await let_in(grid, ann) and await let_in(grid, bob)
        grid.pki.identities.mint("pin", Role.AGENT, "lab1", {}, 1, 3600.0, "ann", time.time())
        backup(place / "state", place / "backup", force=False)
        grid.pki.identities.revoke(Role.CLIENT, "bob", time.time())
        return ann, bob, grid.store.grid


async def test_who_was_in_comes_in_again_after_a_restore_and_who_was_put_out_does_not(tmp_path: Path) -> None:
    ann, bob, _ = await founded(tmp_path)
    for path in [tmp_path / "backup", *(tmp_path / "backup" / "pki").iterdir()]:
        assert path.stat().st_mode & 0o077 == 0, path
    assert not check(tmp_path / "backup").findings and not check(tmp_path / "state").findings
    assert not restore(tmp_path / "backup", tmp_path / "state", force=True, resume=False).unknown
    async with coordinator(tmp_path / "state") as grid:
        assert grid.pki is not None and grid.pki.identities.tokens(time.time()) == []
        assert await let_in(grid, ann) and not await let_in(grid, bob)


async def test_a_bearer_token_that_was_taken_back_since_the_backup_stays_so_after_a_restore(tmp_path: Path) -> None:
    state, now = tmp_path / "state", time.time()
    state.mkdir()
    async with coordinator(state, founded=True) as grid:
        assert grid.pki is not None
        bearers = grid.pki.identities.bearers
        gone, kept = (bearers.mint(Role.CLIENT, name, 3600.0, "ada", now) for name in ("ci", "robot"))
        backup(state, tmp_path / "backup", force=False)
        bearers.withdraw(now, name="ci")
        new = bearers.mint(Role.CLIENT, "later", 3600.0, "ada", now)
        grid.pki.identities.label(Role.AGENT, "lab9", {"zone": "a"})
    restore(tmp_path / "backup", state, force=True, resume=False)
    async with coordinator(state) as grid:
        assert grid.pki is not None
        bearers = grid.pki.identities.bearers
        with pytest.raises(GridError, match="was taken back"):
            bearers.verify(gone, now)
        assert [bearers.verify(one, now).name for one in (kept, new)] == ["robot", "later"]
        assert grid.pki.identities.labels(Role.AGENT, "lab9") == {"zone": "a"}


async def test_who_is_revoked_in_the_backup_stays_so_where_the_state_in_its_place_is_older(tmp_path: Path) -> None:
    state, now = tmp_path / "state", time.time()
    state.mkdir()
    async with coordinator(state, founded=True) as grid:
        assert grid.pki is not None
        bob = grid.member(Role.CLIENT, "bob")
        token = grid.pki.identities.bearers.mint(Role.CLIENT, "bob", 3600.0, "ada", now)
        backup(state, tmp_path / "monday", force=False)
        grid.pki.identities.revoke(Role.CLIENT, "bob", now)
        grid.pki.identities.bearers.withdraw(now, name="bob")
        backup(state, tmp_path / "tuesday", force=False)
    restore(tmp_path / "monday", tmp_path / "elsewhere", force=False, resume=False)
    restore(tmp_path / "tuesday", tmp_path / "elsewhere", force=True, resume=False)
    async with coordinator(tmp_path / "elsewhere") as grid:
        assert grid.pki is not None and not await let_in(grid, bob)
        with pytest.raises(GridError, match="was taken back"):
            grid.pki.identities.bearers.verify(token, now)


def _make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


HARMS: dict[str, Callable[[Path], Any]] = {
    "garbage": lambda path: path.write_bytes(b"no database" * 500),
    "half of it": lambda path: path.write_bytes(path.read_bytes()[:4096] + b"U" * (path.stat().st_size - 4096)),
    "nothing": lambda path: path.unlink(),
    "a directory": _make_directory,
}


@pytest.mark.parametrize("harm", HARMS)
async def test_a_restore_says_that_revocations_since_the_backup_cannot_be_read(tmp_path: Path, harm: str) -> None:
    await founded(tmp_path)
    path = tmp_path / "state" / "pki" / "identities.db"
    HARMS[harm](path)
    with pytest.raises(GridError) as refused:
        backup(tmp_path / "state", tmp_path / "another", force=False)
    assert str(path) in refused.value.what and "revoke again" in refused.value.hint
    assert not (tmp_path / "another").exists()
    made = restore(tmp_path / "backup", tmp_path / "state", force=True, resume=False)
    assert str(path) in made.unknown


async def test_what_is_left_of_a_damaged_record_of_members_is_carried_over(tmp_path: Path) -> None:
    _, bob, _ = await founded(tmp_path)
    with closing(sqlite3.connect(tmp_path / "state" / "pki" / "identities.db")) as db:
        db.execute("DROP TABLE members")
    made = restore(tmp_path / "backup", tmp_path / "state", force=True, resume=False)
    assert "members" in made.unknown
    async with coordinator(tmp_path / "state") as grid:
        assert not await let_in(grid, bob)


async def test_on_another_machine_the_restored_coordinator_is_the_one_that_members_know(tmp_path: Path) -> None:
    ann, _, _ = await founded(tmp_path)
    shutil.rmtree(tmp_path / "state")
    made = restore(tmp_path / "backup", tmp_path / "elsewhere", force=False, resume=False)
    assert "there is no" in made.unknown
    async with coordinator(tmp_path / "elsewhere") as grid:
        assert await let_in(grid, ann)


KEYS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "the key can be read by others": (lambda pki: (pki / "ca.key").chmod(0o644), "can be read by others"),
    "the key is another's": (lambda pki: write_secret(pki / "ca.key", key_pem(new_key())), "is not the key of"),
    "the certificate is of another authority": (
        lambda pki: Pki.create(pki.parent / "other", "feed", ["x"]) and shutil.copy(pki.parent / "other/own.key", pki),
        "do not belong together",
    ),
    "what is known of identities is damaged": (
        lambda pki: (pki / "identities.db").write_bytes(b"no database" * 500),
        "cannot be read",
    ),
    "a file is gone": (lambda pki: (pki / "own.key").unlink(), "cannot read"),
}


@pytest.mark.parametrize("harm", KEYS)
async def test_an_authority_that_cannot_be_used_is_found_and_not_restored(tmp_path: Path, harm: str) -> None:
    await founded(tmp_path)
    harm_it, said = KEYS[harm]
    harm_it(tmp_path / "backup" / "pki")
    found = check(tmp_path / "backup").findings
    assert found and all(one.where.startswith("pki") for one in found) and said in found[0].what, found
    with pytest.raises(GridError, match="cannot be used"):
        restore(tmp_path / "backup", tmp_path / "new", force=False, resume=False)
    assert not (tmp_path / "new" / "pki").exists()
