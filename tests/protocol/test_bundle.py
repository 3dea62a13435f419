"""A manifest that gets through can be unpacked without ever leaving its directory."""

import contextlib
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from distributed_grid.protocol.bundle import (
    MANIFEST_BYTES,
    MOST_ENTRIES,
    Entry,
    Kind,
    Manifest,
    blob_hash,
    decode_manifest,
    encode_manifest,
    hasher,
    is_blob_hash,
    names_in,
)
from distributed_grid.protocol.errors import BadValue

BLOB = blob_hash(b"content")


def raw(*entries: Entry, version: int = 1) -> bytes:
    """Bytes as a stranger would send them, without our checks."""
    return msgspec.msgpack.encode(Manifest(entries, version))


def link(path: str, target: str) -> Entry:
    return Entry(path, Kind.LINK, target=target)


def test_what_is_encoded_comes_back_ordered_by_path() -> None:
    entries = (
        Entry("z.py", mode=0o755, size=7, blob=BLOB),
        link("a/link", "../z.py"),
        Entry("empty", Kind.DIRECTORY, mode=0o755),
    )
    manifest = decode_manifest(encode_manifest(Manifest(entries)))
    assert manifest.entries == tuple(sorted(entries, key=lambda e: e.path))
    assert manifest.blobs == {BLOB}


def test_the_same_files_have_the_same_bytes_in_any_order() -> None:
    one, two = Entry("a", blob=BLOB), Entry("b", blob=BLOB)
    assert encode_manifest(Manifest((one, two))) == encode_manifest(Manifest((two, one)))


def test_a_blobs_name_is_its_blake2b_256() -> None:
    assert blob_hash(b"") == "0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8"
    stream = hasher()
    stream.update(b"con")
    stream.update(b"tent")
    assert stream.hexdigest() == BLOB
    assert is_blob_hash(BLOB)
    for wrong in ("", BLOB[1:], BLOB.upper(), "../" + BLOB[3:], BLOB + "\n"):
        assert not is_blob_hash(wrong)


@pytest.mark.parametrize(
    "path",
    ["", "/etc/passwd", "../up", "a/../b", "a/..", "./a", "a//b", "a/", "a\0b", "x" * 256, "/".join(["abcd"] * 1000)],
)
def test_a_path_that_is_not_plain_is_refused(path: str) -> None:
    with pytest.raises(BadValue):
        decode_manifest(raw(Entry(path, blob=BLOB)))


@pytest.mark.parametrize("target", ["", "/etc", "..", "../x", "a/../..", "a/../b", "a//b", "./a", "a\0"])
def test_a_link_at_the_top_that_leads_out_or_is_not_plain_is_refused(target: str) -> None:
    with pytest.raises(BadValue):
        decode_manifest(raw(link("link", target)))


@pytest.mark.parametrize("target", ["/etc/passwd", "../../beside", "/etc/./x"])
def test_a_link_that_is_kept_may_lead_anywhere_and_nothing_lies_below_it(target: str) -> None:
    kept = Entry("link", Kind.LINK, target=target, outside=True)
    assert decode_manifest(encode_manifest(Manifest((kept,)))).entries == (kept,)
    with pytest.raises(BadValue):
        encode_manifest(Manifest((kept, Entry("link/below", blob=blob_hash(b"")))))


@pytest.mark.parametrize(
    "entry",
    [
        Entry("link", Kind.LINK, outside=True),
        Entry("link", Kind.LINK, target="/a\0b", outside=True),
        Entry("link", Kind.LINK, target="/" + 5000 * "x", outside=True),
        Entry("file", blob=blob_hash(b""), outside=True),
    ],
)
def test_what_is_no_link_to_be_kept_is_refused(entry: Entry) -> None:
    with pytest.raises(BadValue):
        encode_manifest(Manifest((entry,)))


def test_links_that_stay_inside_pass() -> None:
    manifest = Manifest((link("a/b/l", "../../x"), link("top", "."), link("y", "a/b"), link("a/up", "..")))
    assert len(decode_manifest(encode_manifest(manifest)).entries) == 4


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param(
            (link("c/b", ".."), link("c/d/l", "../b/..")), id="a link that steps out of what another leads to"
        ),
        pytest.param((Entry("a", blob=BLOB), Entry("a", blob=BLOB)), id="the same path twice"),
        pytest.param((link("a", "b"), Entry("a/x", blob=BLOB)), id="below a link"),
        pytest.param((Entry("a/x/y/z", blob=BLOB), link("a", "b")), id="deep below a link, listed later"),
        pytest.param((Entry("a", blob=BLOB), Entry("a/x", blob=BLOB)), id="below a file"),
        pytest.param((Entry("a"),), id="a file without a hash"),
        pytest.param((Entry("a", blob="../" + BLOB[3:]),), id="a hash that is a path"),
        pytest.param((Entry("a", blob=BLOB, mode=0o4755),), id="setuid"),
        pytest.param((Entry("a", blob=BLOB, size=-1),), id="negative size"),
        pytest.param((Entry("a", blob=BLOB, target="b"),), id="a file with a target"),
        pytest.param((Entry("a", Kind.DIRECTORY, blob=BLOB),), id="a directory with content"),
    ],
)
def test_entries_that_contradict_each_other_are_refused(entries: tuple[Entry, ...]) -> None:
    with pytest.raises(BadValue):
        decode_manifest(raw(*entries))
    with pytest.raises(BadValue):
        encode_manifest(Manifest(entries))


def test_more_than_is_allowed_is_refused_before_it_costs_anything() -> None:
    with pytest.raises(BadValue, match="cannot be used") as many:
        decode_manifest(raw(*(Entry(f"f{i}", blob=BLOB) for i in range(MOST_ENTRIES + 1))))
    assert "entries" in many.value.why
    # Millions of empty entries fit the bytes: how many there are is judged before one is looked at.
    for read in (decode_manifest, names_in):
        with pytest.raises(BadValue) as announced:
            read(b"\x81\xa7entries\xdd" + (4_700_000).to_bytes(4, "big") + b"\x80" * 10)
        assert str(MOST_ENTRIES) in announced.value.why
    with pytest.raises(BadValue) as large:
        decode_manifest(b"\0" * (MANIFEST_BYTES + 1))
    assert "bytes" in large.value.why
    with pytest.raises(BadValue) as newer:
        decode_manifest(raw(version=2))
    assert "version" in newer.value.why


@given(st.binary(max_size=200))
def test_no_bytes_make_it_raise_anything_else(frame: bytes) -> None:
    for read in (decode_manifest, names_in):
        with contextlib.suppress(BadValue):
            read(frame)


def test_the_names_alone_are_those_of_the_whole_manifest() -> None:
    other = blob_hash(b"other")
    entries = (Entry("a", blob=BLOB), Entry("b", blob=other), Entry("c", blob=BLOB), link("d", "a"))
    frame = encode_manifest(Manifest((*entries, Entry("e", Kind.DIRECTORY))))
    assert names_in(frame) == decode_manifest(frame).blobs == {BLOB, other}
    assert names_in(raw()) == frozenset()


@pytest.mark.parametrize("blob", ["", "../" + BLOB[3:], BLOB.upper(), BLOB[1:], BLOB + "0", "é" * 64, BLOB[:63] + "\n"])
def test_names_that_are_no_hashes_are_none(blob: str) -> None:
    for entries in ((Entry("a", blob=blob),), (Entry("a", blob=BLOB), Entry("b", blob=blob))):
        with pytest.raises(BadValue):
            names_in(raw(*entries))
    with pytest.raises(BadValue):
        names_in(raw(version=2))
    with pytest.raises(BadValue):
        names_in(b"\0" * (MANIFEST_BYTES + 1))


names = st.sampled_from(["a", "b", "c"])
paths = st.lists(names, min_size=1, max_size=3).map("/".join)
targets = st.lists(st.sampled_from(["a", "b", "c", "..", "."]), min_size=1, max_size=4).map("/".join)


@example([("c/b", ".."), ("c/d/l", "../b/..")], 0)
@given(st.lists(st.tuples(paths, targets), max_size=5), st.integers(0, 10**9))
def test_no_set_of_links_that_passes_leads_out(links: list[tuple[str, str]], number: int) -> None:
    try:
        manifest = decode_manifest(raw(*(link(path, target) for path, target in links)))
    except BadValue:
        return
    root = Path(f"/nowhere{number}/root")
    where = {str(root / entry.path): entry.target for entry in manifest.entries}
    for path in where:
        assert _follow(path, where, str(root)) != "out"


def _follow(path: str, links: dict[str, str], root: str) -> str:
    """Resolve a path as a kernel does, one part at a time, through the given links only."""
    done, left, hops = "/", path.strip("/").split("/"), 0
    while left:
        part = left.pop(0)
        if part == "..":
            done = os.path.dirname(done)
        elif part != ".":
            done = os.path.join(done, part)
        if done in links:
            hops += 1
            if hops > 40:
                return "loop"
            left = links[done].split("/") + left
            done = os.path.dirname(done)
        if not left or hops:
            inside = done == root or done.startswith(root + "/")
            if hops and not inside:
                return "out"
    return done
