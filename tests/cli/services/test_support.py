"""What goes into a support dump has lost what looks like a secret."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from distributed_grid.cli.main import main
from distributed_grid.cli.services import support
from distributed_grid.cli.services.support import redact, redact_log_line


@pytest.mark.parametrize(
    "text",
    [
        "-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nhunter2",
        "wss://ann:hunter2@host:1/x",
        "grid://host:1/grid1.abc.def.hunter2",
        'Authorization: Bearer hunter2"',
        "AWS_SECRET_ACCESS_KEY=hunter2",
        '{"password": "hunter2"}',
        "--token=hunter2",
        "x MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQhunter2 y",
    ],
)
def test_what_looks_like_a_secret_is_hidden(text: str) -> None:
    assert "hunter2" not in redact(text) and "[hidden]" in redact(text)
    assert "hunter2" not in redact_log_line(json.dumps({"event": text, "odd": {"deep": [text]}, "why": text}))


def test_what_does_not_is_left() -> None:
    line = json.dumps({"event": "not started", "allocation": "j-ka4cwvmy3vqr.1", "why": "core 3 is busy: pid 17 (sh)"})
    assert redact_log_line(line) == line
    assert redact("/var/lib/grid/agent-lab1/allocs is 10 MB") == "/var/lib/grid/agent-lab1/allocs is 10 MB"


def test_a_dump_that_finds_no_room_leaves_nothing_in_the_way_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(support, "_parts", full)
    done = CliRunner().invoke(main, ["support-dump", str(tmp_path / "dump.tar.gz")])
    assert "No space left" in done.stderr
    assert list(tmp_path.iterdir()) == []
