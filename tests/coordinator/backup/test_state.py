"""A coordinator can be backed up while it runs, begun again from that, and checked; nothing is run twice by it."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sqlite3
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from distributed_grid.coordinator.access.ca import Pki
from distributed_grid.coordinator.backup.archive import backup, restore
from distributed_grid.coordinator.backup.check import check
from distributed_grid.coordinator.backup.state import STORE, blob_path, content, looking_into
from distributed_grid.coordinator.store import open as store_head
from distributed_grid.coordinator.store import rows
from distributed_grid.coordinator.store.errors import StoreFailed
from distributed_grid.coordinator.store.store import Store
from distributed_grid.identity.keys import key_pem, new_key, write_secret
from distributed_grid.protocol.bundle import Entry, Manifest, blob_hash, encode_manifest
from distributed_grid.protocol.codec import decode, encode
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.identity import Role
from distributed_grid.protocol.jobs import Cause, JobView, Outcome, State
from distributed_grid.protocol.link import PROTOCOL
from distributed_grid.protocol.messages import Exited, Hello, JobUpdate, Launch, PutBlob, ShowJobs, Stop, Welcome
from distributed_grid.protocol.nodes import Known, Offer
from tests.coordinator.ends import Coordinator, agent, at_once, client, coordinator, job, node, runs_on

GRID = [sys.executable, "-m", "distributed_grid.cli.main", "coordinator"]
FILE = b"print('shipped')\n"
MANIFEST = encode_manifest(Manifest((Entry("main.py", size=len(FILE), blob=blob_hash(FILE)),)))
BUNDLE = blob_hash(MANIFEST)


class Lost:
    """A coordinator that had, when its backup was taken: `over` ended, `runs` running, `waits` waiting with shipped
    files. Then it went on for a while, and was lost."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.state = place / "state"
        self.backup = place / "backup"
        self.jobs: dict[str, str] = {}
        self.epoch = 0

    async def show(self, url: str) -> dict[str, JobView]:
        ann = await client(url)
        views = (await ann.ask(ShowJobs(1, tuple(self.jobs.values())))).jobs
        await ann.close()
        names = {job: name for name, job in self.jobs.items()}
        return {names[view.id]: view for view in views}


@pytest.fixture
async def lost(tmp_path: Path) -> AsyncIterator[Lost]:
    made = Lost(tmp_path)
    made.state.mkdir()
    async with coordinator(made.state) as running:
        made.epoch = running.store.epoch
        ann = await client(running.url)
        for content in (FILE, MANIFEST):
            await ann.say(PutBlob(0, blob_hash(content), 0, content, end=True))
        worker = await agent(running.url, node(cores=1))
        (over,) = await ann.submit(job("true"))
        await ann.ended(over)
        worker.runs = runs_on
        (runs,) = await ann.submit(job("sleep", "9"))
        await ann.until(
            lambda seen: isinstance(seen, JobUpdate) and (seen.job.id, seen.job.state) == (runs, State.RUNNING)
        )
        (waits,) = await ann.submit(job("python", "main.py", bundle=BUNDLE))
        made.jobs = {"over": over, "runs": runs, "waits": waits}
        await asyncio.to_thread(backup, made.state, made.backup, False)
        # What the backup does not know: `runs` ended, `waits` ran and ended, and `later` runs.
        worker.runs = at_once
        await worker.say(Exited(f"{runs}.1", Outcome(Cause.EXITED, code=5), returned=True))
        await ann.ended(waits)
        worker.runs = runs_on
        await ann.submit(job("sleep", "99", key="later"))
        await worker.until(lambda seen: isinstance(seen, Launch) and seen.job not in made.jobs.values())
        yield made
        with contextlib.suppress(Exception):
            await worker.close()
            await ann.close()


def stores(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


# --- backup -----------------------------------------------------------------------------------------------------------


async def test_a_backup_of_a_running_coordinator_shows_one_moment_with_what_its_live_jobs_need(lost: Lost) -> None:
    assert check(lost.backup).findings == []
    with looking_into(lost.backup) as db:
        what = content(db)
        states = dict(db.execute("SELECT id, state FROM jobs").fetchall())
    assert (what.live, what.ended, what.backup, what.epoch) == (2, 1, True, lost.epoch)
    assert states == {lost.jobs["over"]: "ended", lost.jobs["runs"]: "running", lost.jobs["waits"]: "waiting"}
    assert blob_path(lost.backup, BUNDLE).read_bytes() == MANIFEST
    assert blob_path(lost.backup, blob_hash(FILE)).read_bytes() == FILE
    assert stores(lost.place) == {"state", "backup"}


def a_store(folder: Path) -> Path:
    folder.mkdir()
    Store(folder / STORE).close()
    return folder


def test_a_backup_is_not_written_over_unless_that_is_asked_for(tmp_path: Path) -> None:
    state, target = a_store(tmp_path / "state"), tmp_path / "backup"
    first = backup(state, target, force=False)
    with pytest.raises(GridError, match="there already") as caught:
        backup(state, target, force=False)
    assert "--force" in caught.value.hint
    Store(state / STORE).close()
    second = backup(state, target, force=True)
    assert second.content.epoch == first.content.epoch + 1 == content_of(target).epoch
    assert stores(tmp_path) == {"state", "backup"}


def set_epoch(folder: Path, epoch: int) -> None:
    with looking_into(folder) as db:
        head = store_head.read_head(db)
    with sqlite3.connect(folder / STORE) as db:
        db.execute(store_head.SET_HEAD, (store_head.encode_head(msgspec.structs.replace(head, epoch=epoch)),))


def content_of(folder: Path) -> Any:
    with looking_into(folder) as db:
        return content(db)


def test_a_backup_that_cannot_take_the_place_of_the_one_before_leaves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, target = a_store(tmp_path / "state"), tmp_path / "backup"
    backup(state, target, force=False)
    before, real = content_of(target), os.rename

    def fails(*paths: Any) -> None:
        if paths[1] == target and (Path(paths[0]) / STORE).exists() and not target.exists() and not failed:
            failed.append(True)
            raise OSError("no more")
        real(*paths)

    failed: list[bool] = []
    monkeypatch.setattr(os, "rename", fails)
    with pytest.raises(GridError, match="cannot be written"):
        backup(state, target, force=True)
    assert failed and content_of(target) == before
    assert stores(tmp_path) == {"state", "backup"}


def a_folder(path: Path) -> None:
    path.mkdir()
    (path / "thesis").write_text("years of work")


def a_file(path: Path) -> None:
    path.write_text("years of work")


@pytest.mark.parametrize("make", [a_folder, a_file, a_store])
def test_what_is_no_backup_is_never_replaced(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    state, target = a_store(tmp_path / "state"), tmp_path / "mine"
    make(target)
    inode, text = target.stat().st_ino, target.read_text() if target.is_file() else ""
    inside = stores(target) if target.is_dir() else set()
    with pytest.raises(GridError, match="no backup"):
        backup(state, target, force=True)
    assert inode == target.stat().st_ino
    assert inside <= stores(target) if target.is_dir() else text == target.read_text()


def test_an_empty_directory_is_filled(tmp_path: Path) -> None:
    (tmp_path / "backup").mkdir()
    backup(a_store(tmp_path / "state"), tmp_path / "backup", force=False)
    assert check(tmp_path / "backup").findings == []


SHORT_OF_ROOM = """
import resource, signal, sys
from distributed_grid.cli.main import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
main()
"""
"""A process that may write only so much to a file: for SQLite that is a disk that is full."""


def a_large_store(folder: Path) -> Path:
    db = sqlite3.connect(a_store(folder) / STORE)
    db.executemany("INSERT INTO audit VALUES (1, '', ?)", [("x" * 5000,)] * 200)
    db.commit()
    db.close()
    return folder


def short_of_room(place: Path, *words: str) -> str:
    command = [sys.executable, "-c", SHORT_OF_ROOM, "coordinator", *words]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stdout == "" and "Traceback" not in done.stderr
    return done.stderr


def test_of_a_backup_that_the_disk_did_not_take_nothing_is_left(tmp_path: Path) -> None:
    a_large_store(tmp_path / "state")
    (tmp_path / "to").mkdir()
    said = short_of_room(tmp_path, "backup", "to/saved", "--state-dir", "state")
    assert str(tmp_path / "to") in said.splitlines()[0]
    assert stores(tmp_path / "to") == set()


def test_of_a_restore_that_the_disk_did_not_take_nothing_is_left_and_what_was_there_is(tmp_path: Path) -> None:
    backup(a_large_store(tmp_path / "lost"), tmp_path / "saved", force=False)
    before = content_of(a_store(tmp_path / "state"))
    said = short_of_room(tmp_path, "restore", "saved", "--state-dir", "state", "--force")
    assert str(tmp_path / "state") in said.splitlines()[0] or "state/" in said.splitlines()[0]
    assert content_of(tmp_path / "state") == before
    assert stores(tmp_path / "state") - {f"{STORE}-wal", f"{STORE}-shm"} == {STORE, "grid.mark", "lock"}


def test_a_backup_that_is_ended_halfway_leaves_nothing(tmp_path: Path) -> None:
    state, to = a_large_store(tmp_path / "state"), tmp_path / "to"
    with sqlite3.connect(state / STORE) as db:
        db.executemany("INSERT INTO audit VALUES (1, '', ?)", [("x" * 5000,)] * 20_000)
    to.mkdir()
    process = subprocess.Popen([*GRID, "backup", str(to / "saved"), "--state-dir", str(state)], stdout=subprocess.PIPE)
    while not any(path.name.startswith(".saved.") for path in to.iterdir()) and process.poll() is None:
        pass
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    if stores(to):  # on a busy machine it may have been done before it was told, and be on its way out
        assert process.returncode in (0, 130, -signal.SIGTERM) and stores(to) == {"saved"}
        assert check(to / "saved").findings == []
    else:
        assert process.returncode == 130


async def test_backups_taken_while_jobs_rush_through_are_each_of_one_moment(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as running:
        worker, ann = await agent(running.url, node(cores=4), at_once), await client(running.url)
        seen = []
        for number in range(4):
            taking = asyncio.create_task(asyncio.to_thread(backup, tmp_path, tmp_path / f"b{number}", False))
            while not taking.done():
                await ann.submit(*(job("true") for _ in range(50)), watch=False)
            await taking
            checked = check(tmp_path / f"b{number}")
            assert checked.findings == [] and checked.content is not None
            seen.append(checked.content.live + checked.content.ended)
        assert seen == sorted(seen) and seen[-1] > seen[0]
        await worker.close()
        await ann.close()


def test_a_coordinator_cannot_be_started_on_a_backup_by_mistake(tmp_path: Path) -> None:
    backup(a_store(tmp_path / "state"), tmp_path / "backup", force=False)
    with pytest.raises(StoreFailed, match="is a backup") as caught:
        Store(tmp_path / "backup" / STORE)
    assert "grid coordinator restore" in caught.value.hint


# --- restore ----------------------------------------------------------------------------------------------------------


async def test_after_a_restore_nothing_is_run_again_and_each_job_says_what_is_known(lost: Lost) -> None:
    place = lost.place / "new"
    restored = await asyncio.to_thread(restore, lost.backup, place, False, False)
    assert (restored.held_back, restored.on_nodes, restored.before) == (1, 1, None)
    async with coordinator(place) as running:
        stranger = Known("j-later.1", State.RUNNING, started_for=60.0)
        worker = await agent(running.url, node(cores=2, incarnation=2), runs_on, held={"j-later.1": stranger})
        await running.stored()
        shown = await lost.show(running.url)
        assert {name: view.outcome and view.outcome.cause for name, view in shown.items()} == {
            "over": Cause.EXITED,
            "runs": Cause.NODE_LOST,
            "waits": Cause.RESTORED,
        }
        assert "submit it again" in shown["waits"].outcome.text  # type: ignore[union-attr]
        # That there is room and work is done: a new job runs, and it is the only one.
        ann = await client(running.url)
        (fresh,) = await ann.submit(job("sleep", "1"))
        await worker.say(Offer(number=2, expires_in=300, cores=(0,), memory=worker.facts.memory))
        await worker.until(Launch)
        assert [launch.job for launch in worker.launched] == [fresh]
        assert not any(isinstance(seen, Stop) for seen in worker.seen)
        await ann.close()
        await worker.close()


async def test_with_resume_what_waited_runs_with_its_files(lost: Lost) -> None:
    place = lost.place / "new"
    restored = await asyncio.to_thread(restore, lost.backup, place, False, True)
    assert (restored.held_back, restored.on_nodes) == (0, 1)
    async with coordinator(place) as running:
        assert running.blobs.has(BUNDLE) and running.blobs.has(blob_hash(FILE))
        worker = await agent(running.url, node(cores=2, incarnation=2), runs_on)
        launch = await worker.until(Launch)
        assert launch.job == lost.jobs["waits"]
        await worker.close()


async def test_the_restored_epoch_is_above_that_of_the_lost_coordinator(lost: Lost) -> None:
    set_epoch(lost.backup, 4_000_000_000)  # beyond what the clock says
    await asyncio.to_thread(restore, lost.backup, lost.place / "new", False, False)
    async with coordinator(lost.place / "new") as running:
        worker = await agent(running.url, node(incarnation=2))
        assert (await worker.until(Welcome)).epoch > 4_000_000_000
        assert content_of(lost.place / "new").grid == content_of(lost.backup).grid
        await worker.close()


def test_a_restore_leaves_no_epoch_that_was_used_since_to_be_used_again(tmp_path: Path) -> None:
    state = a_store(tmp_path / "state")
    backup(state, tmp_path / "backup", force=False)
    set_epoch(state, 5_000_000_000)
    assert restore(tmp_path / "backup", state, force=True, resume=False).epoch > 5_000_000_000


def test_what_is_there_is_not_replaced_unless_that_is_asked_for_and_then_kept(tmp_path: Path) -> None:
    state = a_store(tmp_path / "state")
    backup(state, tmp_path / "backup", force=False)
    Store(state / STORE).close()
    before = content_of(state)
    with pytest.raises(GridError, match="has a store already") as caught:
        restore(tmp_path / "backup", state, force=False, resume=False)
    assert "--force" in caught.value.hint and content_of(state) == before
    aside = restore(tmp_path / "backup", state, force=True, resume=False).before
    assert aside is not None and content_of(aside) == before
    assert content_of(state).epoch > before.epoch


async def test_a_restore_that_dies_anywhere_leaves_the_store_from_before_or_the_new_one(
    lost: Lost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never none: a coordinator that is started then would begin a new grid, and agents would stop what they run."""
    calls: list[str] = []

    def dies(real: Callable[..., None], at: int) -> Callable[..., None]:
        def move(*paths: Any) -> None:
            calls.append(str(paths[1]))
            if len(calls) == at:
                raise KeyboardInterrupt
            real(*paths)

        return move

    for at in range(1, 10):
        state = lost.place / f"state-{at}"
        await asyncio.to_thread(restore, lost.backup, state, False, True)
        old = content_of(state)
        calls.clear()
        with monkeypatch.context() as patched:
            for name in ("link", "rename", "replace"):
                patched.setattr(os, name, dies(getattr(os, name), at))
            try:
                await asyncio.to_thread(restore, lost.backup, state, True, False)
            except KeyboardInterrupt:
                assert content_of(state) == old
                assert check(state).content == old
            else:
                assert content_of(state).live < old.live and at > 3
                return
    raise AssertionError(f"it never came to its end: {calls}")


def test_a_running_coordinator_is_not_restored_over(tmp_path: Path) -> None:
    state, saved = a_store(tmp_path / "state"), tmp_path / "backup"
    backup(state, saved, force=False)
    told = state / "coordinator.json"
    process = subprocess.Popen([*GRID, "run", "--port", "0", "--state-dir", str(state)], stderr=subprocess.DEVNULL)
    try:
        for _ in range(1000):
            if told.exists() or process.poll() is not None:
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
        with pytest.raises(GridError, match="another coordinator runs") as caught:
            restore(saved, state, force=True, resume=False)
        assert str(process.pid) in caught.value.why
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert check(state).findings == []


def test_from_a_damaged_backup_nothing_is_restored(tmp_path: Path) -> None:
    backup(a_store(tmp_path / "state"), tmp_path / "backup", force=False)
    with sqlite3.connect(tmp_path / "backup" / STORE) as db:
        db.execute("INSERT INTO nodes (name, body, seen, sum) VALUES ('n1', x'00', 0, 0)")
    with pytest.raises(GridError, match="cannot be used") as caught:
        restore(tmp_path / "backup", tmp_path / "new", force=False, resume=False)
    assert "n1" in caught.value.why and "grid coordinator check" in caught.value.hint
    assert not (tmp_path / "new").exists()


def test_a_plain_copy_of_a_state_directory_can_be_restored_from(tmp_path: Path) -> None:
    state = a_store(tmp_path / "state")
    assert restore(state, tmp_path / "new", force=False, resume=False).content.grid == content_of(state).grid
    with pytest.raises(GridError, match="state directory itself"):
        restore(state, state, force=True, resume=False)


# --- check ------------------------------------------------------------------------------------------------------------


async def test_a_store_that_is_being_written_is_found_sound(lost: Lost) -> None:
    checked = await asyncio.to_thread(check, lost.state)
    assert checked.findings == [] and checked.content is not None
    assert (checked.content.live, checked.content.ended) == (1, 3)


HARM = {
    "UPDATE jobs SET state = 'ended' WHERE state = 'waiting'": "its state is 'ended' in the table and",
    "UPDATE jobs SET node = 'n9' WHERE state = 'running'": "its node is 'n9' in the table and 'n1' inside",
    "UPDATE jobs SET body = x'93' WHERE state = 'waiting'": "its record cannot be read",
    "UPDATE jobs SET allocation = NULL WHERE state = 'running'": "what it holds is not kept",
    "DELETE FROM nodes": "is on n1, which is not a node that is known",
    "UPDATE nodes SET name = 'n2'": "its name is 'n2' in the table and 'n1' inside",
    "INSERT INTO past_allocations (id, node, body, sum) VALUES ('j-1.1', 'n1', x'00', 0)": "its record cannot be read",
    "UPDATE meta SET value = 'x' WHERE name = 'head'": "its head is not what was written",
    "DELETE FROM meta WHERE name = 'head'": "its head is not what was written",
}


@pytest.mark.parametrize("harm", HARM)
async def test_each_way_in_which_a_store_can_be_wrong_is_found(lost: Lost, harm: str) -> None:
    with sqlite3.connect(lost.backup / STORE) as db:
        assert db.execute(harm).rowcount == 1
    found = check(lost.backup).findings
    assert any(HARM[harm] in one.what for one in found), found
    assert all(one.hint for one in found)


async def test_what_is_held_beyond_what_a_node_has_is_found(lost: Lost) -> None:
    with sqlite3.connect(lost.backup / STORE) as db:
        (held,) = db.execute("SELECT allocation FROM jobs WHERE state = 'running'").fetchone()
        changed = msgspec.msgpack.decode(held)
        changed["grant"]["cores"] = [0, 77]
        db.execute("UPDATE jobs SET allocation = ? WHERE state = 'running'", (msgspec.msgpack.encode(changed),))
    (found,) = check(lost.backup).findings
    assert "core 77 of n1 is held and does not exist" in found.what


async def test_shipped_files_that_are_gone_or_changed_are_found(lost: Lost) -> None:
    blob_path(lost.backup, blob_hash(FILE)).write_bytes(b"something else")
    (found,) = check(lost.backup).findings
    assert "another content" in found.what
    blob_path(lost.backup, blob_hash(FILE)).unlink()
    (found,) = check(lost.backup).findings
    assert found.where == f"job {lost.jobs['waits']}" and "not there" in found.what


async def test_a_damaged_file_is_said_in_a_few_lines(lost: Lost) -> None:
    path = lost.backup / STORE
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(os.urandom(8192))
    checked = check(lost.backup)
    assert 0 < len(checked.findings) <= 100


def grid(*words: str, place: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRID_")}
    command = [sys.executable, "-m", "distributed_grid.cli.main", *words]
    return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=60)


def test_the_commands_take_places_from_flag_and_configuration_and_say_what_they_did(tmp_path: Path) -> None:
    a_store(tmp_path / "state")
    (tmp_path / "grid.yaml").write_text(f"coordinator: {{state_dir: {tmp_path / 'state'}}}\n")
    done = grid("coordinator", "backup", "saved", place=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{tmp_path / 'saved'}: 0 live and 0 ended jobs, 0 shipped files, ")
    done = grid("-o", "json", "coordinator", "restore", "saved", "--state-dir", "new", place=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["jobs"] == {"held_back": 0, "on_nodes": 0, "ended": 0}
    done = grid("coordinator", "check", "--state-dir", "new", place=tmp_path)
    assert (done.returncode, done.stdout) == (0, "all is well in new: 0 live and 0 ended jobs\n")
    with sqlite3.connect(tmp_path / "new" / STORE) as db:
        values = "n1", b"\0", rows.checksum(b"\0", "n1")
        db.execute("INSERT INTO nodes (name, body, seen, sum) VALUES (?, ?, 0, ?)", values)
    done = grid("coordinator", "check", "--state-dir", "new", place=tmp_path)
    assert done.returncode == 1 and "node n1: its record cannot be read" in done.stdout and "try: " in done.stdout
    done = grid("-o", "json", "coordinator", "check", "--state-dir", "new", place=tmp_path)
    assert done.returncode == 1
    assert [one["where"] for one in json.loads(done.stdout)["findings"]] == ["node n1"]


@pytest.mark.parametrize("words", [("backup", "to"), ("restore", "nowhere"), ("check",)], ids=lambda words: words[0])
def test_where_there_is_no_store_that_is_said(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "state").mkdir()
    done = grid("coordinator", *words, "--state-dir", "state", place=tmp_path)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("error: there is no store of a coordinator in ") and "  try: " in done.stderr
    assert list((tmp_path / "state").iterdir()) == []


# --- the authority ----------------------------------------------------------------------------------------------------


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
    restore(tmp_path / "backup", tmp_path / "state", force=True, resume=False)
    async with coordinator(tmp_path / "state") as grid:
        assert grid.pki is not None and grid.pki.identities.tokens(time.time()) == []
        assert await let_in(grid, ann) and not await let_in(grid, bob)


async def test_on_another_machine_the_restored_coordinator_is_the_one_that_members_know(tmp_path: Path) -> None:
    ann, _, _ = await founded(tmp_path)
    shutil.rmtree(tmp_path / "state")
    restore(tmp_path / "backup", tmp_path / "elsewhere", force=False, resume=False)
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
