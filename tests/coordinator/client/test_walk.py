"""Which files of a directory are shipped: what git would see, without secrets, and links by the rules."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.coordinator.client import walk as walks
from distributed_grid.coordinator.client.shipping import scan
from distributed_grid.coordinator.client.walk import Links, ShippingError, ShippingRules
from distributed_grid.protocol.bundle import Kind, decode_manifest

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEA\n"


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
    monkeypatch.setattr(walks, "MOST_ENTRIES", 5)
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


def test_a_file_that_is_too_large_for_the_grid_is_named_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walks, "BLOB_BYTES", 1000)
    (tmp_path / "small").write_bytes(b"x" * 1000)
    scan(tmp_path)
    (tmp_path / "huge").write_bytes(b"x" * 1001)
    with pytest.raises(ShippingError) as refused:
        scan(tmp_path)
    assert refused.value.why == "huge has 1001B, and 1000B are the most of one file"


def test_a_higher_ceiling_is_advised_where_it_is_enough_and_only_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walks, "BLOB_BYTES", 3 << 30)
    sizes = {"a": 2 << 30, "b": 400 << 20}
    enough = walks.too_large(tmp_path, sizes, sum(sizes.values()), ceiling=1 << 30)
    assert "(GRID_SHIPPING__CEILING=4G)" in enough.hint
    in_vain = walks.too_large(tmp_path, sizes | {"huge": 4 << 30}, 7 << 30, ceiling=1 << 30)
    assert "CEILING" not in in_vain.hint
    assert in_vain.why == "huge has 4G, and 3G are the most of one file"
