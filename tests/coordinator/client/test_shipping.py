"""What of a directory is shipped: what git would see, up to the ceiling, as bytes that are the same every time."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.coordinator.client import shipping
from distributed_grid.coordinator.client import walk as walks
from distributed_grid.coordinator.client.shipping import Changed, HashCache, asked_for, scan
from distributed_grid.coordinator.client.walk import ShippingError
from distributed_grid.protocol.bundle import Kind, blob_hash, decode_manifest, hasher
from tests.coordinator.client.test_walk import lay, put


def test_files_links_and_empty_directories_travel_with_mode_and_content(tmp_path: Path) -> None:
    run = put(tmp_path, "bin/run.sh", "echo hi")
    run.chmod(0o755)
    put(tmp_path, "data/ünïcode name", "")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("bin/run.sh")
    bundle = scan(tmp_path)
    entries = {entry.path: entry for entry in decode_manifest(bundle.manifest).entries}
    assert set(entries) == {"bin/run.sh", "data/ünïcode name", "empty", "link"}
    assert (entries["bin/run.sh"].mode, entries["bin/run.sh"].size) == (0o755, 7)
    assert bundle.blobs[blob_hash(b"echo hi")] == run
    assert (entries["link"].kind, entries["link"].target) == (Kind.LINK, "bin/run.sh")
    assert entries["empty"].kind is Kind.DIRECTORY
    assert (bundle.hash, bundle.size, bundle.count) == (blob_hash(bundle.manifest), 7, 4)


def test_the_same_content_has_the_same_hash_wherever_it_lies(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for root in (one, two):
        lay(root, a="1", b__c="2")
    assert scan(one).hash == scan(two).hash
    put(two, "a", "changed")
    assert scan(one).hash != scan(two).hash


def test_an_unchanged_file_is_not_read_again_and_a_changed_one_is(tmp_path: Path) -> None:
    file = put(tmp_path, "a", "one")
    os.utime(file, (1, 1))
    cache = HashCache()
    first = scan(tmp_path, cache=cache)
    assert list(cache.known.values()) == []  # changed a moment ago (ctime): not trusted yet
    cache.known[shipping._identity(file.stat())] = blob_hash(b"told by the cache")
    assert blob_hash(b"told by the cache") in scan(tmp_path, cache=cache).blobs
    put(tmp_path, "a", "two!")
    assert set(scan(tmp_path, cache=cache).blobs) == {blob_hash(b"two!")}
    assert first.hash != scan(tmp_path, cache=cache).hash


class Meddling:
    """A hash at whose updates somebody else writes the file: each of `writes` at one of them."""

    writes: list[Callable[[], object]]

    def __init__(self) -> None:
        self.inner = hasher()

    def update(self, data: bytes) -> None:
        self.inner.update(data)
        if data and self.writes:
            self.writes.pop(0)()

    def hexdigest(self) -> str:
        return str(self.inner.hexdigest())


@pytest.fixture
def meddling(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """What is done to files while they are read."""
    writes: list[Callable[[], object]] = []
    monkeypatch.setattr(Meddling, "writes", writes, raising=False)
    monkeypatch.setattr(shipping, "hasher", Meddling)
    return writes


def test_a_file_that_grows_while_it_is_read_is_taken_with_the_size_that_it_had(
    tmp_path: Path, meddling: list[Callable[[], object]]
) -> None:
    file = put(tmp_path, "log", "one\n")

    def grow() -> None:
        with file.open("a") as log:
            log.write("two\n")

    meddling += [grow] * 20
    bundle = scan(tmp_path)
    assert set(bundle.blobs) == {blob_hash(b"one\n")}
    assert bundle.size == 4
    assert b"".join(bundle.read(blob_hash(b"one\n"))) == b"one\n"  # and is sent so, though it has grown on


def test_a_file_that_is_rewritten_while_it_is_read_is_read_once_more(
    tmp_path: Path, meddling: list[Callable[[], object]]
) -> None:
    file = put(tmp_path, "a", "old")
    os.utime(file, (1, 1))
    meddling.append(lambda: file.write_text("new"))
    assert set(scan(tmp_path).blobs) == {blob_hash(b"new")}


def test_a_file_that_is_rewritten_all_the_time_is_named(tmp_path: Path, meddling: list[Callable[[], object]]) -> None:
    put(tmp_path, "other")
    file = put(tmp_path, "sub/base.db", "0")

    def rewrite(number: int) -> None:
        file.write_text(str(number % 10))
        os.utime(file, (number, number))

    meddling += [partial(rewrite, number) for number in range(1, 50)]
    with pytest.raises(ShippingError, match=r"sub/base\.db cannot be shipped") as caught:
        scan(tmp_path)
    assert "changed each of 3 times" in caught.value.why


def test_a_file_that_was_changed_before_it_is_sent_is_not_sent_under_the_old_hash(tmp_path: Path) -> None:
    file = put(tmp_path, "a", "before")
    bundle = scan(tmp_path)
    for now in ("after!", "gone"):
        file.write_text(now)
        with pytest.raises(Changed):
            list(bundle.read(blob_hash(b"before")))


# --- links that lead outside ------------------------------------------------------------------------------------------


# --- secrets ----------------------------------------------------------------------------------------------------------

# --- what must not be shipped -----------------------------------------------------------------------------------------


def test_what_became_a_link_between_the_walk_and_the_reading_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/key").write_text("private")
    here = tmp_path / "here"
    (here / "sub").mkdir(parents=True)
    (here / "sub/key").write_text("public")
    walk = walks.Walk.files

    def then_swapped(self: Any) -> list[Any]:
        found = list(walk(self))
        (here / "sub").rename(tmp_path / "moved")
        (here / "sub").symlink_to(tmp_path / "secret")
        return found

    monkeypatch.setattr(walks.Walk, "files", then_swapped)
    with pytest.raises(ShippingError, match="cannot be shipped"):
        scan(here)


@pytest.mark.parametrize("path", ["key", "sub/key"])
def test_what_became_a_link_between_the_reading_and_the_sending_is_not_sent(tmp_path: Path, path: str) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/key").write_text("private")
    here = tmp_path / "here"
    (here / "sub").mkdir(parents=True)
    (here / "key").write_text("public 1")
    (here / "sub/key").write_text("public 2")
    bundle = scan(here)
    blob = next(blob for blob, there in bundle.blobs.items() if there == here / path)
    with bundle.open(blob) as file:
        assert file.read().startswith(b"public")
    top = here / path.split("/")[0]
    top.rename(tmp_path / "moved")
    top.symlink_to(tmp_path / "secret" / ("" if "/" in path else "key"))
    with pytest.raises(OSError, match="link|symbolic"):
        bundle.open(blob)


def test_a_coordinator_that_asks_for_what_was_not_offered_gets_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    bundle = scan(tmp_path)
    (mine,) = bundle.blobs
    assert asked_for(bundle, [mine, mine]) == [mine]
    with pytest.raises(ShippingError, match="is not shipped"):
        asked_for(bundle, [mine, blob_hash(b"/etc/passwd")])
