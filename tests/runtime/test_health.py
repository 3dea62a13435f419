"""The findings that both ends of `grid doctor` share."""

import json
import os
from pathlib import Path

from distributed_grid.protocol.errors import GridError
from distributed_grid.runtime import health
from distributed_grid.runtime.health import Level
from distributed_grid.runtime.service import announce


def test_an_error_is_a_finding_with_its_reason_and_remedy() -> None:
    found = health.failed("x", GridError("it broke", "because", "mend it"))
    assert found == health.Finding("x", Level.ERROR, "it broke", "because", "mend it")


def test_the_disk_is_judged_where_the_path_will_be(tmp_path: Path) -> None:
    seen = os.statvfs(tmp_path)
    found = health.disk("disk", tmp_path / "not" / "yet")
    assert str(tmp_path) in found.what and "not/yet" not in found.what
    assert (found.level is Level.OK) == (seen.f_bavail * seen.f_frsize >= health.LOW_DISK)


def test_a_filesystem_of_unknown_size_is_not_taken_for_full() -> None:
    assert os.statvfs("/proc").f_blocks == 0
    found = health.disk("disk", Path("/proc"))
    assert found.level is Level.OK and "does not say" in found.what


def test_a_folder_without_identity_and_without_authority_is_an_error(tmp_path: Path) -> None:
    assert health.certificate("mine", tmp_path, "join").level is Level.ERROR
    assert [one.level for one in health.authority(tmp_path)] == [Level.ERROR]


def test_a_service_is_known_by_its_pid_and_start_time(tmp_path: Path) -> None:
    path = tmp_path / "agent.pid"
    assert health.running_service(path) is None
    announce(path, software="1")
    said = health.running_service(path)
    assert said is not None and (said["pid"], said["software"]) == (os.getpid(), "1")
    path.write_text(json.dumps({**said, "start": 1}))
    assert health.running_service(path) is None
