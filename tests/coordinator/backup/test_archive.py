"""A coordinator can be backed up while it runs, and begun again from that; nothing is run twice by it."""

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from distributed_grid.coordinator.access.identities import PKI
from distributed_grid.coordinator.access.joining import found
from distributed_grid.coordinator.backup.archive import backup, restore
from distributed_grid.coordinator.backup.check import check
from distributed_grid.coordinator.backup.state import STORE, blob_path, content, open_read_only
from distributed_grid.coordinator.store import open as store_head
from distributed_grid.coordinator.store import rows
from distributed_grid.coordinator.store.errors import StoreFailed
from distributed_grid.coordinator.store.store import Store
from distributed_grid.protocol.bundle import blob_hash
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.jobs import Cause, State
from distributed_grid.protocol.messages import Launch, Stop, Welcome
from distributed_grid.protocol.nodes import Known, Offer
from tests import forked
from tests.coordinator.backup.scene import BUNDLE, FILE, MANIFEST, Lost, a_store
from tests.coordinator.ends import agent, at_once, client, coordinator, job, node, runs_on


def stores(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


async def test_a_backup_of_a_running_coordinator_shows_one_moment_with_what_its_live_jobs_need(lost: Lost) -> None:
    assert check(lost.backup).findings == []
    with open_read_only(lost.backup) as db:
        what = content(db)
        states = dict(db.execute("SELECT id, state FROM whole").fetchall())
    assert (what.live, what.ended, what.backup, what.epoch) == (2, 1, True, lost.epoch)
    assert states == {lost.jobs["over"]: "ended", lost.jobs["runs"]: "running", lost.jobs["waits"]: "waiting"}
    assert blob_path(lost.backup, BUNDLE).read_bytes() == MANIFEST
    assert blob_path(lost.backup, blob_hash(FILE)).read_bytes() == FILE
    assert stores(lost.place) == {"state", "backup"}


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
    with open_read_only(folder) as db:
        head = store_head.read_head(db)
    with sqlite3.connect(folder / STORE) as db:
        db.execute(store_head.SET_HEAD, (store_head.encode_head(msgspec.structs.replace(head, epoch=epoch)),))


def content_of(folder: Path) -> Any:
    with open_read_only(folder) as db:
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


def test_a_backup_into_a_directory_that_is_not_there_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(GridError, match="cannot be written") as caught:
        backup(a_store(tmp_path / "state"), tmp_path / "no such" / "backup", force=False)
    assert caught.value.hint == f"mkdir -p '{tmp_path}/no such', then the same again"


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
        db.executemany("INSERT INTO audit VALUES (1, '', ?)", [("x" * 5000,)] * 8_000)
    to.mkdir()
    words = ["coordinator", "backup", str(to / "saved"), "--state-dir", str(state)]
    with (tmp_path / "log").open("wb") as log:
        process = forked.service(words, os.environ, tmp_path, log)
    while not any(path.name.startswith(".saved.") for path in to.iterdir()) and process.poll() is None:
        time.sleep(0.001)  # and not all of a core, which the backup needs
    process.send_signal(signal.SIGTERM)
    process.wait(60)
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
    words = ["coordinator", "run", "--port", "0", "--state-dir", str(state)]
    with (tmp_path / "log").open("wb") as log:
        process = forked.service(words, os.environ, tmp_path, log)
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


def test_a_backup_without_authority_is_not_restored_into_another_grid(tmp_path: Path) -> None:
    backup(a_store(tmp_path / "old"), tmp_path / "backup", force=False)
    state = tmp_path / "state"
    founded = found(state, ("localhost",), "ann", tmp_path / "context", "wss://localhost:1")
    before = stores(state)
    with pytest.raises(GridError, match="is of another grid") as refused:
        restore(tmp_path / "backup", state, force=True, resume=False)
    assert founded.grid in refused.value.why and "grid init" in refused.value.hint and stores(state) == before
    (state / PKI).rename(tmp_path / "pki")
    restore(tmp_path / "backup", state, force=True, resume=False)
    assert check(state).findings == []


def test_a_backup_of_before_its_grid_was_founded_is_restored_with_the_authority_there_is(tmp_path: Path) -> None:
    state = a_store(tmp_path / "state")
    backup(state, tmp_path / "backup", force=False)
    found(state, ("localhost",), "ann", tmp_path / "context", "wss://localhost:1")
    restore(tmp_path / "backup", state, force=True, resume=False)
    assert check(state).findings == [] and (state / PKI / "ca.key").exists()


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


def grid(*words: str, place: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRID_")}
    return forked.with_text(forked.grid(words, environment, place))


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
