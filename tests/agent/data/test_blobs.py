"""The cache of what was shipped: shared, whole, and bounded."""

import asyncio
import os
from pathlib import Path

import pytest

from distributed_grid.agent.data.blobs import BlobCache
from distributed_grid.protocol.bundle import Entry, Manifest, blob_hash, encode_manifest
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.messages import BlobData

CONTENTS = (b"a" * 1000, b"b" * 1000, b"c" * 1000)


class Source:
    """A coordinator that has these blobs and gives them in pieces, once `gate` is open."""

    def __init__(self, *contents: bytes) -> None:
        self.blobs = {blob_hash(content): content for content in contents}
        self.asked: list[str] = []
        self.begun = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    def bundle(self, *contents: bytes, announced: int | None = None) -> str:
        entries = [
            Entry(f"f{number}", size=len(one) if announced is None else announced, blob=blob_hash(one))
            for number, one in enumerate(contents)
        ]
        manifest = encode_manifest(Manifest(tuple(entries)))
        self.blobs[blob_hash(manifest)] = manifest
        return blob_hash(manifest)

    async def part(self, blob: str, offset: int) -> BlobData:
        if offset == 0:
            self.asked.append(blob)
            self.begun.set()
        await self.gate.wait()
        data = self.blobs[blob][offset : offset + 300]
        return BlobData(id=1, data=data, end=offset + len(data) == len(self.blobs[blob]))


async def lay_out(cache: BlobCache, bundle: str) -> None:
    async with cache.bundle(bundle) as manifest:
        for blob in manifest.blobs:
            assert blob_hash((cache.directory / blob).read_bytes()) == blob


async def test_jobs_that_want_the_same_at_once_share_one_fetch(tmp_path: Path) -> None:
    source = Source(*CONTENTS)
    cache = BlobCache(tmp_path / "blobs", source.part)
    bundle = source.bundle(*CONTENTS)
    await asyncio.gather(*[lay_out(cache, bundle) for _ in range(10)])
    assert len(source.asked) == 4 == len(set(source.asked))


async def test_who_gives_up_does_not_take_the_fetch_from_others(tmp_path: Path) -> None:
    source = Source(*CONTENTS)
    cache = BlobCache(tmp_path / "blobs", source.part)
    bundle = source.bundle(*CONTENTS)
    source.gate.clear()
    first, second = asyncio.create_task(lay_out(cache, bundle)), asyncio.create_task(lay_out(cache, bundle))
    await source.begun.wait()
    first.cancel()
    await asyncio.wait([first])
    source.gate.set()
    await second
    assert len(source.asked) == 4


async def test_what_was_not_used_for_longest_goes_when_it_is_too_much(tmp_path: Path) -> None:
    source = Source(*CONTENTS)
    cache = BlobCache(tmp_path / "blobs", source.part, kept=2500)
    bundles = [source.bundle(content) for content in CONTENTS]
    for age, (bundle, content) in enumerate(zip(bundles[:2], CONTENTS, strict=False)):
        await lay_out(cache, bundle)
        for blob in (bundle, blob_hash(content)):
            os.utime(cache.directory / blob, (age + 1, age + 1))
    await lay_out(cache, bundles[0])  # used again
    await lay_out(cache, bundles[2])
    left = {blob_hash(content) for content in CONTENTS} & {*os.listdir(cache.directory)}
    assert left == {blob_hash(CONTENTS[0]), blob_hash(CONTENTS[2])}


async def test_what_a_job_is_laid_out_from_stays_whatever_comes(tmp_path: Path) -> None:
    source = Source(*CONTENTS)
    cache = BlobCache(tmp_path / "blobs", source.part, kept=0)
    first, second = source.bundle(CONTENTS[0]), source.bundle(CONTENTS[1])
    async with cache.bundle(first):
        await lay_out(cache, second)
        assert {*os.listdir(cache.directory)} == {first, blob_hash(CONTENTS[0])}
    assert os.listdir(cache.directory) == []


async def test_more_than_was_announced_is_not_taken(tmp_path: Path) -> None:
    source = Source(*CONTENTS)
    cache = BlobCache(tmp_path / "blobs", source.part)
    with pytest.raises(GridError) as told:
        await lay_out(cache, source.bundle(CONTENTS[0], announced=10))
    assert "larger" in told.value.why
    assert not (cache.directory / blob_hash(CONTENTS[0])).exists()


async def test_a_name_that_is_no_hash_reaches_no_file(tmp_path: Path) -> None:
    source = Source()
    cache = BlobCache(tmp_path / "blobs", source.part)
    with pytest.raises(GridError, match="not the name"):
        await lay_out(cache, "../../etc/passwd")
    assert source.asked == []


async def test_what_a_killed_agent_had_begun_to_fetch_is_removed(tmp_path: Path) -> None:
    source = Source(*CONTENTS)
    (tmp_path / f".{'0' * 64}").write_bytes(b"half")
    async with BlobCache(tmp_path, source.part).bundle(source.bundle(*CONTENTS)):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(source.blobs)
