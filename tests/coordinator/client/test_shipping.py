"""What of a directory is shipped: what git would see, up to the ceiling, as bytes that are the same every time."""

import os
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.coordinator.client import shipping
from distributed_grid.coordinator.client.shipping import (
    Changed,
    HashCache,
    Links,
    ShippingError,
    ShippingRules,
    asked_for,
    scan,
)
from distributed_grid.protocol.bundle import Kind, blob_hash, decode_manifest, hasher


def lay(root: Path, **files: str) -> Path:
    """Files by path, where `__` stands for a slash and a leading `_` for a dot."""
    for name, content in files.items():
        put(root, name.replace("__", "/"), content)
    return root


def put(root: Path, path: str, content: str = "x") -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    return file


def shipped(directory: Path, **options: Any) -> set[str]:
    return {entry.path for entry in decode_manifest(scan(directory, **options).manifest).entries}


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


IGNORED = {
    "plain name, at any depth": ("*.log\nbuild\n", {"a.log", "x/b.log", "build", "x/build/f"}, {"a.txt", "x/a"}),
    "negation": ("*.log\n!keep.log\n", {"a.log"}, {"keep.log", "x/keep.log"}),
    "anchored": ("/top\nx/y\n", {"top", "x/y"}, {"z/top", "z/x/y"}),
    "directories only": ("out/\n", {"out/f", "z/out/f"}, {"out2", "y/out"}),
    "two stars": ("a/**/z\n**/q\nr/**\n", {"a/z", "a/b/c/z", "d/q", "r/x/y"}, {"z", "b/z"}),
    "nothing is re-included below an ignored directory": ("d/\n!d/keep\n", {"d/keep", "d/x"}, {"e"}),
    "contents ignored, one kept": ("d/*\n!d/keep\n", {"d/x"}, {"d/keep"}),
    "comments, escapes, classes": ("# no\n\\#yes\n[ab].c\n\\!x\n", {"#yes", "a.c", "b.c", "!x"}, {"no", "c.c"}),
    "trailing spaces": ("sp  \nq\\ \n", {"sp", "q "}, {"sp2"}),
}


@pytest.mark.parametrize("name", IGNORED)
def test_ignore_files_mean_what_git_says(tmp_path: Path, name: str) -> None:
    rules, out, kept = IGNORED[name]
    for path in out | kept:
        put(tmp_path, path)
    put(tmp_path, ".gitignore", rules)
    assert shipped(tmp_path) == kept | {".gitignore"}
    subprocess.run(["git", "init", "-q", "."], cwd=tmp_path, check=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert shipped(tmp_path) == {path for path in listed.stdout.split("\0") if path}


def test_rules_of_a_directory_hold_below_it_and_win_over_those_above(tmp_path: Path) -> None:
    put(tmp_path, ".gitignore", "*.bin\n")
    put(tmp_path, "sub/.gitignore", "!*.bin\n/only-here\n")
    for path in ("a.bin", "sub/b.bin", "sub/only-here", "sub/deep/only-here"):
        put(tmp_path, path)
    assert shipped(tmp_path) == {".gitignore", "sub/.gitignore", "sub/b.bin", "sub/deep/only-here"}


def test_gridignore_adds_to_gitignore_and_may_take_back(tmp_path: Path) -> None:
    put(tmp_path, ".gitignore", "data/\n*.tmp\n")
    put(tmp_path, ".gridignore", "!data/\nsecret\n")
    for path in ("data/set", "a.tmp", "secret", "code"):
        put(tmp_path, path)
    assert shipped(tmp_path) == {".gitignore", ".gridignore", "data/set", "code"}


def test_rules_above_the_directory_hold_in_its_repository_only(tmp_path: Path) -> None:
    put(tmp_path, ".gitignore", "*.ckpt\n")
    put(tmp_path, "sub/a.ckpt")
    put(tmp_path, "sub/code")
    assert shipped(tmp_path / "sub") == {"a.ckpt", "code"}
    (tmp_path / ".git").mkdir()
    assert shipped(tmp_path / "sub") == {"code"}
    put(tmp_path, ".gitignore", "sub/\n")
    assert shipped(tmp_path / "sub") == {"a.ckpt", "code"}, "who ships an ignored directory means what is in it"


def test_git_and_virtual_environments_never_travel(tmp_path: Path) -> None:
    lay(tmp_path, code="1")
    for path in (".git/HEAD", "sub/.git", "env/pyvenv.cfg", "env/bin/python"):
        put(tmp_path, path)
    bundle = scan(tmp_path)
    assert shipped(tmp_path) == {"code"}
    assert "env/" in bundle.notes[0]


def test_a_directory_above_the_ceiling_is_refused_with_its_largest_entries_and_the_flags(tmp_path: Path) -> None:
    put(tmp_path, "models/a", "x" * 3000)
    put(tmp_path, "models/b", "x" * 3000)
    put(tmp_path, "small")
    with pytest.raises(ShippingError) as caught:
        scan(tmp_path, ShippingRules(ceiling=5000))
    assert "5.9K" in caught.value.what and "4.9K" in caught.value.what
    assert caught.value.why.startswith("largest: models/ (5.9K)")
    assert "--no-ship" in caught.value.hint and "--workdir PATH" in caught.value.hint
    assert "shipping.ceiling" in caught.value.hint
    assert len(scan(tmp_path, ShippingRules(ceiling=6001)).blobs) == 2


def test_too_many_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipping, "MOST_ENTRIES", 5)
    for number in range(6):
        put(tmp_path, f"many/{number}")
    with pytest.raises(ShippingError, match="too many files") as caught:
        scan(tmp_path)
    assert "many/ (6)" in caught.value.why


def test_links_that_lead_inside_travel_and_those_that_lead_out_are_named(tmp_path: Path) -> None:
    root = tmp_path / "root"
    put(root, "a/file")
    (root / "a" / "up").symlink_to("../a/file")
    (root / "absolute").symlink_to(root / "a" / "file")
    (root / "dangling").symlink_to("nowhere")
    targets = {e.path: e.target for e in decode_manifest(scan(root).manifest).entries if e.kind is Kind.LINK}
    assert targets == {"a/up": "../a/file", "absolute": "a/file", "dangling": "nowhere"}
    (root / "a" / "out").symlink_to("../../elsewhere")
    (root / "passwd").symlink_to("/etc/passwd")
    with pytest.raises(ShippingError, match="2 links") as caught:
        scan(root)
    assert "a/out -> ../../elsewhere" in caught.value.why and "passwd -> /etc/passwd" in caught.value.why
    assert "--links follow" in caught.value.hint and "keep" in caught.value.hint and "skip" in caught.value.hint
    put(root, ".gridignore", "out\npasswd\n")
    assert "a/file" in shipped(root)


def test_what_is_no_file_is_left_out_and_said(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    put(tmp_path, "code")
    bundle = scan(tmp_path)
    assert bundle.count == 1
    assert bundle.notes == ("pipe is neither a file nor a link and is not shipped",)


@pytest.mark.root
def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    secret = put(tmp_path, "sub/secret")
    secret.chmod(0)
    for part in (tmp_path, *tmp_path.parents[:-2]):
        part.chmod(0o755)
    os.seteuid(65534)
    try:
        with pytest.raises(ShippingError, match="sub/secret") as caught:
            scan(tmp_path)
    finally:
        os.seteuid(0)
    assert "Permission denied" in caught.value.why


def test_a_missing_directory_and_a_name_that_is_no_text_are_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(ShippingError, match="nowhere"):
        scan(tmp_path / "nowhere")
    with open(os.fsencode(tmp_path) + b"/bad\xff", "w"):
        pass
    with pytest.raises(ShippingError) as caught:
        scan(tmp_path)
    assert "UTF-8" in caught.value.why


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


def linked(tmp_path: Path) -> Path:
    """A directory with links to a file and to a directory beside it, and to nothing."""
    root = tmp_path / "root"
    put(root, "code")
    put(tmp_path, "data/one", "1")
    put(tmp_path, "data/deep/two", "2")
    (tmp_path / "data/deep/more").symlink_to(tmp_path / "data/one")
    (root / "file").symlink_to("../data/one")
    (root / "tree").symlink_to(tmp_path / "data")
    (root / "nothing").symlink_to("/no/such/file")
    return root


def test_links_that_lead_outside_are_followed_if_asked_for(tmp_path: Path) -> None:
    bundle = scan(linked(tmp_path), ShippingRules(links=Links.FOLLOW))
    entries = {entry.path: entry for entry in decode_manifest(bundle.manifest).entries}
    assert set(entries) == {"code", "file", "tree/one", "tree/deep/two", "tree/deep/more"}
    assert {entry.kind for entry in entries.values()} == {Kind.FILE}
    assert b"".join(bundle.read(entries["file"].blob)) == b"1"
    assert b"".join(bundle.read(entries["tree/deep/two"].blob)) == b"2"
    assert "nothing -> /no/such/file" in bundle.notes[0]


def test_links_that_lead_outside_are_kept_as_they_are_if_asked_for(tmp_path: Path) -> None:
    bundle = scan(linked(tmp_path), ShippingRules(links=Links.KEEP))
    links = {entry.path: entry for entry in decode_manifest(bundle.manifest).entries if entry.kind is Kind.LINK}
    assert {path: entry.target for path, entry in links.items()} == {
        "file": "../data/one",
        "tree": str(tmp_path / "data"),
        "nothing": "/no/such/file",
    }
    assert all(entry.outside for entry in links.values())


def test_links_that_lead_outside_are_left_out_and_said_if_asked_for(tmp_path: Path) -> None:
    bundle = scan(linked(tmp_path), ShippingRules(links=Links.SKIP))
    assert {entry.path for entry in decode_manifest(bundle.manifest).entries} == {"code"}
    assert len(bundle.notes) == 1 and "file -> ../data/one" in bundle.notes[0]


def test_a_link_to_a_directory_above_is_not_followed_for_ever(tmp_path: Path) -> None:
    root = tmp_path / "root"
    put(root, "code")
    (root / "up").symlink_to("..")
    with pytest.raises(ShippingError, match="the link up cannot be followed"):
        scan(root, ShippingRules(links=Links.FOLLOW))


# --- secrets ----------------------------------------------------------------------------------------------------------

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEA\n"


def test_files_that_commonly_hold_secrets_are_left_out_and_said(tmp_path: Path) -> None:
    secret = {".env", "sub/.env.production", "tls/server.pem", "a.key", "id_ed25519", ".netrc", ".aws/credentials"}
    plain = {".env.example", "env.py", "id_map.csv", "id_ed25519.pub", "credentials", "key.txt", ".aws/config"}
    for path in secret | plain:
        put(tmp_path, path, KEY if "id_" in path and path in secret else "x")
    bundle = scan(tmp_path)
    assert {entry.path for entry in decode_manifest(bundle.manifest).entries} == plain
    (note,) = bundle.notes
    assert ".env" in note and "--ship-secrets" in note and "and 2 more" in note
    whole = scan(tmp_path, ShippingRules(secrets=True))
    assert {entry.path for entry in decode_manifest(whole.manifest).entries} == plain | secret
    assert not whole.notes


def test_a_link_does_not_lead_to_a_secret_under_another_name(tmp_path: Path) -> None:
    put(tmp_path, "home/.ssh/id_rsa", KEY)
    root = tmp_path / "root"
    put(root, "code")
    (root / "harmless").symlink_to(tmp_path / "home/.ssh/id_rsa")
    bundle = scan(root, ShippingRules(links=Links.FOLLOW))
    assert {entry.path for entry in decode_manifest(bundle.manifest).entries} == {"code"}
    assert "harmless" in bundle.notes[0]


# --- what must not be shipped -----------------------------------------------------------------------------------------


def test_what_became_a_link_between_the_walk_and_the_reading_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/key").write_text("private")
    here = tmp_path / "here"
    (here / "sub").mkdir(parents=True)
    (here / "sub/key").write_text("public")
    walk = shipping._Walk.files

    def then_swapped(self: Any) -> list[Any]:
        found = list(walk(self))
        (here / "sub").rename(tmp_path / "moved")
        (here / "sub").symlink_to(tmp_path / "secret")
        return found

    monkeypatch.setattr(shipping._Walk, "files", then_swapped)
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


@pytest.mark.parametrize("name", [".gitignore", ".gridignore"])
def test_an_ignore_file_that_is_a_fifo_a_link_or_endless_harms_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/a").write_text("a")
    os.mkfifo(tmp_path / name)
    (tmp_path / "sub" / name).symlink_to("/dev/zero")
    with pytest.raises(ShippingError, match="leads? out of it"):
        scan(tmp_path)
    (tmp_path / "sub" / name).unlink()
    assert [path.name for path in scan(tmp_path).blobs.values()] == ["a"]
    (tmp_path / name).unlink()
    (tmp_path / name).write_bytes(b"x" * ((1 << 20) + 1))
    with pytest.raises(ShippingError, match="cannot be read"):
        scan(tmp_path)
