"""What goes into a support dump has lost what looks like a secret."""

import json
import tarfile
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


def test_a_journal_that_cannot_be_read_is_said_so_and_all_else_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = tmp_path / "systemd" / "user" / "grid-agent.service"
    unit.parent.mkdir(parents=True)
    unit.touch()
    program = tmp_path / "journalctl"
    program.write_text("#!/nowhere/interpreter\n")
    program.chmod(0o755)
    for name, value in {"XDG_CONFIG_HOME": tmp_path, "XDG_STATE_HOME": tmp_path, "PATH": tmp_path}.items():
        monkeypatch.setenv(name, str(value))
    done = CliRunner().invoke(main, ["support-dump", str(tmp_path / "dump.tar.gz")])
    assert done.exit_code == 0, done.output
    with tarfile.open(tmp_path / "dump.tar.gz") as archive:
        parts = {one.name.partition("/")[2]: one for one in archive.getmembers()}
        said = archive.extractfile(parts["agent/service.log"])
        assert said is not None and b"the journal of grid-agent.service cannot be read" in said.read()
    assert len(parts) > 3


def test_a_dump_that_finds_no_room_leaves_nothing_in_the_way_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(support, "_parts", full)
    done = CliRunner().invoke(main, ["support-dump", str(tmp_path / "dump.tar.gz")])
    assert "No space left" in done.stderr
    assert list(tmp_path.iterdir()) == []
