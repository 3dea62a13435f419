"""Blobs appear whole or not at all, whoever sends them at the same time, and the cache keeps what is needed."""

import asyncio
import errno
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.coordinator.api.blobs import cache as module
from distributed_grid.coordinator.api.blobs.cache import Blobs, Uploads
from distributed_grid.protocol.bundle import Entry, Manifest, blob_hash, encode_manifest
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.messages import (
    BlobData,
    Done,
    Failed,
    Launch,
    MissingBlobs,
    PutBlob,
    Submit,
    Submitted,
    WantBlob,
    WantBlobs,
    WantOutput,
)
from tests.coordinator.ends import DataEnd, agent, answer_to, client, coordinator, job, node, runs_on

CONTENT = bytes(range(256)) * 2000
HASH = blob_hash(CONTENT)


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "blobs", lambda: ())


def parts(content: bytes = CONTENT, blob: str = HASH, size: int = 100_000) -> list[PutBlob]:
    cuts = range(0, max(1, len(content)), size)
    return [PutBlob(1, blob, at, content[at : at + size], end=at + size >= len(content)) for at in cuts]


async def send(uploads: Uploads, sent: list[PutBlob]) -> list[bool]:
    return [await uploads.put(part) for part in sent]


def leftovers(blobs: Blobs) -> list[str]:
    return os.listdir(blobs._arriving)


async def test_a_blob_is_there_when_its_last_part_came(blobs: Blobs) -> None:
    assert await send(Uploads(blobs), parts()) == [False] * 5 + [True]
    assert blobs.has(HASH) and await blobs.missing([HASH, "0" * 64, "0" * 64]) == ("0" * 64,)
    read = b""
    while not (part := blobs.read(WantBlob(7, HASH, len(read), 1 << 30), [HASH])).end:
        assert part.id == 7 and not part.error
        read += part.data
    assert read + part.data == CONTENT and leftovers(blobs) == []


async def test_an_empty_blob_is_a_blob(blobs: Blobs) -> None:
    name = blob_hash(b"")
    assert await send(Uploads(blobs), parts(b"", name)) == [True]
    assert blobs.read(WantBlob(1, name, 0, 10), [name]) == BlobData(1, b"", end=True)


async def test_many_may_send_the_same_blob_at_once(blobs: Blobs) -> None:
    answers = await asyncio.gather(*(send(Uploads(blobs), parts()) for _ in range(5)))
    assert all(answer[-1] for answer in answers)
    assert leftovers(blobs) == [] and blobs.has(HASH)


async def test_content_that_is_not_what_was_announced_is_refused(blobs: Blobs) -> None:
    with pytest.raises(BadValue, match="announced"):
        await send(Uploads(blobs), parts(CONTENT + b"!"))
    assert not blobs.has(HASH) and leftovers(blobs) == []


async def test_a_part_out_of_order_fails_once_and_the_rest_is_ignored_until_it_begins_again(blobs: Blobs) -> None:
    uploads, sent = Uploads(blobs), parts()
    await uploads.put(sent[0])
    with pytest.raises(BadValue, match="out of order"):
        await uploads.put(sent[2])
    assert await send(uploads, sent[3:]) == [False] * 3
    assert (await send(uploads, sent))[-1]
    with pytest.raises(BadValue, match="beginning"):
        await uploads.put(sent[1])


async def test_a_blob_may_not_outgrow_the_ceiling(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOB_BYTES", 250_000)
    with pytest.raises(BadValue, match="too large"):
        await send(Uploads(blobs), parts())
    assert leftovers(blobs) == []


async def test_a_connection_may_not_open_uploads_without_end(blobs: Blobs) -> None:
    uploads = Uploads(blobs)
    with pytest.raises(GridError, match="at the same time"):
        for number in range(100):
            await uploads.put(PutBlob(1, f"{number:064x}", 0, b"x"))
    uploads.close()
    assert leftovers(blobs) == []


async def test_what_the_disk_refuses_is_said_once_and_nothing_of_it_stays(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(module, "_sync", full)
    with pytest.raises(GridError, match="cannot store") as caught:
        await send(Uploads(blobs), parts())
    assert caught.value.why == "No space left on device" and caught.value.hint
    assert not blobs.has(HASH) and leftovers(blobs) == []
    monkeypatch.undo()
    monkeypatch.setattr(blobs, "_arriving", blobs._root / "not-there")
    uploads, sent = Uploads(blobs), parts()
    with pytest.raises(GridError, match="cannot store"):
        await uploads.put(sent[0])
    assert await send(uploads, sent[1:]) == [False] * 5
    monkeypatch.undo()
    assert (await send(uploads, sent))[-1]


async def test_while_the_disk_is_in_trouble_blobs_are_refused_once_each_also_those_half_here(blobs: Blobs) -> None:
    trouble: list[GridError] = []

    def refuse() -> None:
        if trouble:
            raise trouble[0]

    uploads, sent = Uploads(blobs, refuse), parts()
    await uploads.put(sent[0])
    trouble.append(GridError("no new jobs now"))
    with pytest.raises(GridError, match="no new jobs"):
        await uploads.put(sent[1])
    assert leftovers(blobs) == [] and await send(uploads, sent[2:]) == [False] * 4
    trouble.clear()
    assert (await send(uploads, sent))[-1] and blobs.has(HASH)


async def test_a_disk_that_takes_no_writing_still_has_its_blobs(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    await send(Uploads(blobs), parts())

    def read_only(path: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system") if path.exists() else FileNotFoundError(path)

    monkeypatch.setattr(os, "utime", read_only)
    assert blobs.has(HASH) and not blobs.has("0" * 64)
    assert blobs.read(WantBlob(1, HASH, 0, 10), [HASH]).data == CONTENT[:10]


async def test_what_a_killed_coordinator_left_half_is_cleared(blobs: Blobs, tmp_path: Path) -> None:
    await Uploads(blobs).put(parts()[0])
    assert len(leftovers(blobs)) == 1
    Blobs(tmp_path / "blobs", lambda: ())
    assert leftovers(blobs) == []


@pytest.mark.parametrize("name", ["../../etc/passwd", "", "A" * 64, "0" * 63, "0" * 65, "/" * 64])
async def test_names_that_are_no_hashes_never_reach_the_disk(blobs: Blobs, name: str) -> None:
    assert not blobs.has(name)
    assert blobs.read(WantBlob(1, name, 0, 10), [name]).error
    with pytest.raises(BadValue, match="not a blob"):
        await blobs.missing([name])
    with pytest.raises(BadValue, match="not a blob"):
        await Uploads(blobs).put(PutBlob(1, name, 0, b"x"))


async def test_the_cache_drops_what_was_used_longest_ago_but_nothing_a_live_job_needs(tmp_path: Path) -> None:
    contents = [bytes([n]) * 10_000 for n in range(6)]
    names = [blob_hash(content) for content in contents]
    manifest = encode_manifest(Manifest((Entry("f", size=10_000, blob=names[0]),)))
    live = blob_hash(manifest)
    blobs = Blobs(tmp_path / "blobs", lambda: [live], most=35_000)
    for age, (name, content) in enumerate([(live, manifest), *zip(names, contents, strict=True)]):
        await send(Uploads(blobs), parts(content, name))
        used = 1_000_000 + age
        os.utime(blobs._path(name), (used, used))
    await send(Uploads(blobs), parts(b"last", blob_hash(b"last")))
    kept = {path.name for path in (tmp_path / "blobs").glob("??/*")}
    assert kept == {live, names[0], names[4], names[5], blob_hash(b"last")}


async def test_what_was_used_lately_stays_even_above_the_bound(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path / "blobs", lambda: (), most=10)
    await send(Uploads(blobs), parts())
    assert blobs.has(HASH)


async def test_what_is_used_and_needed_may_be_twice_the_bound_and_not_more(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path / "blobs", lambda: (), most=15_000)
    contents = [bytes([n]) * 10_000 for n in range(5)]
    names = [blob_hash(content) for content in contents]
    for name, content in zip(names[:4], contents[:4], strict=True):
        await send(Uploads(blobs), parts(content, name))
    with pytest.raises(GridError, match="no room for shipped files"):
        await send(Uploads(blobs), parts(contents[4], names[4]))
    assert [blobs.has(name) for name in names] == [True] * 4 + [False]
    assert leftovers(blobs) == []
    os.utime(blobs._path(names[0]), (1_000_000, 1_000_000))  # used long ago
    await send(Uploads(blobs), parts(contents[4], names[4]))
    assert [blobs.has(name) for name in names] == [False] + [True] * 4


async def test_a_use_that_a_wall_clock_put_into_the_future_keeps_nothing(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path / "blobs", lambda: (), most=10)
    await send(Uploads(blobs), parts())
    ahead = time.time() + 86400
    os.utime(blobs._path(HASH), (ahead, ahead))
    await send(Uploads(blobs), parts(b"new", blob_hash(b"new")))
    assert {path.name for path in (tmp_path / "blobs").glob("??/*")} == {blob_hash(b"new")}


async def test_a_node_with_many_manifests_has_each_read_once_while_it_fetches_what_one_names(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [bytes([number]) for number in range(module.MANIFESTS + 5)]
    manifests = [encode_manifest(Manifest((Entry("x", size=1, blob=blob_hash(one)),))) for one in files]
    for content in (*files, *manifests):
        await send(Uploads(blobs), parts(content, blob_hash(content)))
    reads: list[str] = []
    contents = blobs.contents

    def reading(bundle: str) -> frozenset[str]:
        reads.append(bundle)
        return contents(bundle)

    monkeypatch.setattr(blobs, "contents", reading)
    bundles = [*map(blob_hash, manifests)]
    for content in (files[0], files[-1]):
        assert blobs.read(WantBlob(1, blob_hash(content), 0, 1), bundles).data == content
        reads.clear()
        for _ in range(3):
            assert blobs.read(WantBlob(1, blob_hash(content), 0, 1), bundles).data == content
        assert not reads
    assert blobs.read(WantBlob(1, bundles[0], 0, 1), bundles).data and not reads, "a manifest is its own name"


async def test_a_client_ships_and_an_agent_fetches(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        ann, worker = await client(grid.url), await agent(grid.url, runs=runs_on)
        assert await ann.ask(WantBlobs(11, (HASH,))) == MissingBlobs(11, (HASH,))
        for part in parts()[:-1]:
            await ann.say(PutBlob(12, part.blob, part.offset, part.data))
        assert isinstance(await ann.ask(PutBlob(12, HASH, parts()[-1].offset, parts()[-1].data, end=True)), Done)
        assert await ann.ask(WantBlobs(13, (HASH,))) == MissingBlobs(13, ())
        wrong = await ann.ask(PutBlob(14, "0" * 64, 0, b"x", end=True))
        assert isinstance(wrong, Failed) and wrong.code == "bad-value"
        (name,) = await ann.submit(job("true", bundle=HASH))
        launch = await worker.until(Launch)
        await ann.say(WantOutput(15, f"{name}.1", "stdout", 0, 1))  # makes the agent open its data connection
        await ann.until(lambda seen: getattr(seen, "id", 0) == 15)
        data = worker.data
        assert isinstance(data, DataEnd)
        await data.say(WantBlob(1, launch.spec.bundle, 0, 100), WantBlob(2, "1" * 64, 0, 100))
        got = await data.until(lambda seen: isinstance(seen, BlobData) and seen.id == 1)
        assert got.data == CONTENT[:100] and not got.end
        none = await data.until(lambda seen: isinstance(seen, BlobData) and seen.id == 2)
        assert "no job on this node needs the blob" in none.error
        await ann.close()
        await worker.close()


# --- whose they are ---------------------------------------------------------------------------------------------------

SECRET = b"ann's key\n"
THEIRS = blob_hash(SECRET)
MANIFEST = encode_manifest(Manifest((Entry("key", size=len(SECRET), blob=THEIRS),)))


async def ship(end: Any, *contents: bytes) -> None:
    for number, content in enumerate(contents, 500):
        assert isinstance(await end.ask(PutBlob(number, blob_hash(content), 0, content, end=True)), Done)


async def submitted(end: Any, number: int, bundle: str, key: str = "k") -> Any:
    return await end.ask(Submit(number, (job("cat", "key", key=key, bundle=bundle),), True))


async def test_who_knows_a_hash_of_anothers_file_neither_learns_nor_gets_anything(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        ann, eve = await client(grid.url, "ann"), await client(grid.url, "eve")
        await ship(ann, SECRET, MANIFEST)
        assert (await ann.ask(WantBlobs(1, (THEIRS,)))).blobs == ()
        assert (await eve.ask(WantBlobs(1, (THEIRS, "0" * 64)))).blobs == (THEIRS, "0" * 64), "as one that nobody has"
        refused = [await submitted(eve, 2, blob_hash(MANIFEST))]
        crafted = encode_manifest(Manifest((Entry("mine", size=len(SECRET), blob=THEIRS),)))
        await ship(eve, crafted)
        refused.append(await submitted(eve, 3, blob_hash(crafted)))
        assert [(one.code, one.why) for one in refused] == [("unavailable", "")] * 2 and not grid.ledger.state.jobs
        await ship(eve, SECRET)  # who has it may use it
        assert (await eve.ask(WantBlobs(4, (THEIRS,)))).blobs == ()
        assert isinstance(await submitted(eve, 5, blob_hash(crafted)), Submitted)
        await ann.close()
        await eve.close()


async def test_a_job_that_was_submitted_is_answered_also_when_nobody_remembers_who_sent_its_files(
    tmp_path: Path,
) -> None:
    async with coordinator(tmp_path) as grid:
        ann, worker = await client(grid.url), await agent(grid.url)
        await ship(ann, SECRET, MANIFEST)
        first = await submitted(ann, 1, blob_hash(MANIFEST))
        await ann.ended(first.jobs[0])
        await grid.stored()
        for one in (ann, worker):
            await one.close()
    (senders,) = tmp_path.rglob("senders")
    shutil.rmtree(senders)  # as after a power cut
    async with coordinator(tmp_path) as grid:
        ann = await client(grid.url)
        assert (await submitted(ann, 1, blob_hash(MANIFEST))).jobs == first.jobs
        assert (await submitted(ann, 2, blob_hash(MANIFEST), "another")).code == "unavailable", "send them again"
        await ann.close()


async def test_the_next_coordinator_knows_who_has_sent_what(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        ann = await client(grid.url, "ann/../é")
        await ship(ann, SECRET, MANIFEST)
        await ann.close()
    async with coordinator(tmp_path) as grid:
        ann, eve = await client(grid.url, "ann/../é"), await client(grid.url, "eve")
        assert (await submitted(eve, 1, blob_hash(MANIFEST))).code == "unavailable"
        assert isinstance(await submitted(ann, 2, blob_hash(MANIFEST)), Submitted)
        for one in (ann, eve):
            await one.close()


async def test_of_what_is_dropped_nobody_is_remembered_as_the_sender(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path / "blobs", lambda: (), most=10)
    await send(Uploads(blobs, user="ann"), parts())
    os.utime(blobs._path(HASH), (1_000_000, 1_000_000))
    await send(Uploads(blobs, user="ann"), parts(b"last", blob_hash(b"last")))
    assert blobs.sent_by("ann") == [blob_hash(b"last")] and blobs.sent_by("eve") == []


async def test_a_node_gets_the_files_of_the_jobs_that_it_was_granted_and_of_no_other(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        ann, bob = await client(grid.url, "ann"), await client(grid.url, "bob")
        honest = await agent(grid.url, node("honest"), runs=runs_on)
        await ship(ann, SECRET, MANIFEST)
        await submitted(ann, 1, blob_hash(MANIFEST))
        await honest.until(Launch)
        evil = await agent(grid.url, node("evil"), runs=runs_on)
        other = encode_manifest(Manifest((Entry("empty", size=0, blob=blob_hash(b"")),)))
        await ship(bob, b"", other)
        (theirs,) = (await bob.ask(Submit(2, (job("true", cpu=4000, bundle=blob_hash(other)),), True))).jobs
        await evil.until(Launch)
        await bob.say(WantOutput(15, f"{theirs}.1", "stdout", 0, 1))
        await bob.until(lambda seen: getattr(seen, "id", 0) == 15)
        assert isinstance(evil.data, DataEnd)
        wanted = (THEIRS, blob_hash(MANIFEST), blob_hash(b""), blob_hash(other))
        await evil.data.say(*(WantBlob(number, blob, 0, 100) for number, blob in enumerate(wanted, 1)))
        await evil.data.until(lambda seen: getattr(seen, "id", 0) == len(wanted))
        got = [seen for seen in evil.data.seen if isinstance(seen, BlobData)]
        assert [(one.data, bool(one.error)) for one in got] == [(b"", True), (b"", True), (b"", False), (other, False)]
        for one in (ann, bob, honest, evil):
            await one.close()


# --- many together ----------------------------------------------------------------------------------------------------


def whole(*contents: bytes) -> list[PutBlob]:
    return [PutBlob(number, blob_hash(one), 0, one, end=True) for number, one in enumerate(contents, 100)]


@pytest.mark.parametrize("together", [True, False])
async def test_many_files_that_come_together_are_on_disk_by_the_same_syncs(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    synced: list[int] = []
    sync_together = module._sync_together

    def counting(folder: int, paths: list[Path]) -> None:
        assert all(path.exists() for path in paths)
        synced.append(len(paths))
        sync_together(folder, paths)

    monkeypatch.setattr(module, "_sync_together", counting)
    if not together:  # an older kernel
        monkeypatch.setattr(module, "_LIBC", None)
    contents = [b"%d" % number for number in range(100)]
    assert await Uploads(blobs, user="ann").put_whole(whole(*contents)) == [None] * 100
    assert all(blobs.has(blob_hash(one)) and blobs.size(blob_hash(one)) == len(one) for one in contents)
    assert synced[0] == 100 and len(synced) == 2 and leftovers(blobs) == []
    assert len(blobs.sent_by("ann")) == 100


def test_only_kernels_that_tell_of_failed_writes_sync_everything() -> None:
    assert [module._tells_errors(one) for one in ("5.7.0", "5.8.0-12-generic", "6.1", "4.19.0-26", "strange")] == [
        False,
        True,
        True,
        False,
        False,
    ]


async def test_one_of_many_that_is_not_what_was_announced_spoils_no_other(blobs: Blobs) -> None:
    sent = [*whole(b"a", b"b"), PutBlob(9, blob_hash(b"c"), 0, b"d", end=True), PutBlob(10, "../x", 0, b"", end=True)]
    first, second, other, name = await Uploads(blobs).put_whole(sent)
    assert first is None and second is None and isinstance(other, BadValue) and isinstance(name, BadValue)
    assert blobs.has(blob_hash(b"a")) and blobs.has(blob_hash(b"b")) and not blobs.has(blob_hash(b"c"))


@pytest.mark.parametrize("sync", [0, 1])
async def test_of_many_that_cannot_be_synced_none_stays_or_counts(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch, sync: int
) -> None:
    passes = iter(range(9))

    def failing(folder: int, paths: list[Path]) -> None:
        if next(passes) == sync:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(module, "_sync_together", failing)
    answers = await Uploads(blobs, user="ann").put_whole(whole(b"a", b"b"))
    assert [one.what for one in answers if one] == ["the coordinator cannot store the shipped files"] * 2
    assert leftovers(blobs) == [] and not blobs.has(blob_hash(b"a")) and not blobs.sent_by("ann")
    assert (await blobs.quota._account("ann")).counted == 0


async def test_a_coordinator_keeps_the_blobs_of_one_frame_together_and_answers_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(module, "_sync_together", lambda folder, paths: synced.append(len(paths)))
    async with coordinator(tmp_path) as grid:
        ann = await client(grid.url)
        sent = [*whole(*(b"%d" % number for number in range(300))), PutBlob(400, "0" * 64, 0, b"no", end=True)]
        await ann.say(*sent)
        answers = [await ann.until(answer_to(one.id)) for one in sent]
        assert all(isinstance(one, Done) for one in answers[:300]) and isinstance(answers[300], Failed)
        assert synced[::2] == [256, 44] and len(synced) == 4
        await ann.close()
