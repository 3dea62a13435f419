"""The script that a machine of a cloud runs when it boots, and the secrets that the configuration names."""

import base64
import json
import re
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from distributed_grid.coordinator.core.scaling.state import Answer
from distributed_grid.coordinator.providers.base import ProviderRefused, WorkerSpec
from distributed_grid.coordinator.providers.startup import secret, startup_script
from tests.coordinator.providers.scene import SPEC

CLOUD = replace(SPEC, type="c5.xlarge", invitation="grid://192.0.2.1:7433/grid1.a.b.c", ends_by=1_800_000_000.0)
MOST = 16_384


def packed(script: str, of: str) -> bytes:
    found = re.search(rf"echo (\S+) \| base64 -d >\S+/{of}", script)
    assert found is not None
    return base64.b64decode(found[1].strip("'"))


def test_it_is_a_script_that_a_shell_reads_and_small_enough() -> None:
    script = startup_script(CLOUD, MOST, "aws")
    done = subprocess.run(["sh", "-n"], input=script, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert len(script) < MOST / 2


def test_it_shuts_the_machine_down_whatever_happens() -> None:
    script = startup_script(CLOUD, MOST, "aws")
    lines = script.splitlines()
    first = 'systemd-run --unit=grid-machine-setup --on-active="${first}min" /bin/systemctl --no-block poweroff'
    assert lines.index(first) < lines.index("systemctl stop grid-machine-setup.timer")
    assert lines.index("trap over EXIT") < lines.index("left=$(( 1800000000 - $(date +%s) ))")
    assert "ExecStopPost=+/bin/systemctl --no-block poweroff" in lines
    assert "OnCalendar=2027-01-15 08:01:00 UTC" in lines, "a minute after its life"
    assert script.count("systemctl enable") == 2, "also after it has booted again"


def test_its_life_is_over_after_so_long_also_where_the_coordinators_clock_is_ahead() -> None:
    script = startup_script(replace(CLOUD, born=CLOUD.ends_by - 7200), MOST, "aws")
    assert "OnCalendar=2027-01-15 08:01:00 UTC\nOnActiveSec=7260\n" in script
    assert json.loads(packed(script, "machine.json"))["life"] == 7200


def test_a_script_that_fails_shuts_the_machine_down_at_once(tmp_path: Path) -> None:
    """Run by a real shell, with the programs of the system as scripts that note what they were told."""
    for name in ("systemctl", "systemd-run", "useradd", "install", "id", "date"):
        fails = 'echo 0; [ "$1" = +%s ] && exit 0; ' if name == "date" else ""
        code = 1 if name == "install" else 0
        (tmp_path / name).write_text(f'#!/bin/sh\n{fails}echo "{name} $*" >>{tmp_path}/said\nexit {code}\n')
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["/bin/sh"], input=startup_script(CLOUD, MOST, "aws"), env={"PATH": f"{tmp_path}:/bin"}, text=True,
        capture_output=True,
    )  # fmt: skip
    assert done.returncode == 1 and "cannot be set up (code 1), and shuts down" in done.stderr, done.stderr
    said = (tmp_path / "said").read_text().splitlines()
    assert "--on-active=11min" in said[1] and said[-1] == "systemctl poweroff", said


def test_it_brings_what_the_machines_program_reads_and_the_invitation_apart() -> None:
    script = startup_script(replace(CLOUD, spot=True), MOST, "gcp", "z/n")
    told = json.loads(packed(script, "machine.json"))
    assert (told["name"], told["cores"], told["memory"]) == ("a-1-1", 0, 0), "all of the machine is for the grid"
    assert (told["handle"], told["metadata"], told["spot"]) == ("z/n", "gcp", True)
    assert b"grid1" not in packed(script, "machine.json") and "grid1" not in script
    assert packed(script, "invitation").decode() == f"{CLOUD.invitation}\n"
    assert packed(startup_script(replace(CLOUD, invitation=""), MOST, "aws"), "invitation") == b""


def test_it_is_the_same_each_time() -> None:
    assert startup_script(CLOUD, MOST, "aws") == startup_script(CLOUD, MOST, "aws")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (replace(CLOUD, labels={f"l{number}": "x" * 60 for number in range(200)}), "takes 16384: give pool a fewer"),
        (replace(CLOUD, options={"python": "/bin/python; reboot"}), "is not the path of a program"),
        (replace(CLOUD, options={"python": "/bin/python\nreboot"}), "is not the path of a program"),
    ],
)
def test_what_cannot_be_brought_is_refused(spec: WorkerSpec, said: str) -> None:
    with pytest.raises(ProviderRefused, match=said) as refused:
        startup_script(spec, MOST, "aws")
    assert refused.value.answer is Answer.REFUSED


def test_secrets_are_variables_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "hunter2")
    assert secret({"key": "${MY_KEY}"}, "key", "providers.aws") == "hunter2"
    assert secret({"key": ""}, "key", "providers.aws") == secret({}, "key", "providers.aws") == ""
    with pytest.raises(ProviderRefused, match="environment has no variable MY_OTHER") as missing:
        secret({"key": "${MY_OTHER}"}, "key", "providers.aws")
    assert missing.value.answer is Answer.CREDENTIALS
    with pytest.raises(ProviderRefused, match="secrets stand in no file") as written:
        secret({"key": "hunter2"}, "key", "providers.aws")
    assert "hunter2" not in written.value.text
