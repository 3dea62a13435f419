"""Which users the grid's services run as here, as their units say."""

import os
import pwd
from pathlib import Path

import pytest

from distributed_grid.runtime import accounts

NUMBER = 2_000_054_321
"""A user that no machine has."""


def test_a_service_runs_as_its_account_and_as_its_units_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "UNITS", (tmp_path,))
    (tmp_path / "grid-agent.service").write_text("[Service]\nUser=nobody\n")
    (tmp_path / "grid-agent.service.d").mkdir()
    (tmp_path / "grid-agent.service.d" / "x.conf").write_text(f"[Service]\nUser={NUMBER}\n")
    (tmp_path / "grid-coordinator.service").write_text("[Service]\nUser=no-such-user\n")
    nobody = pwd.getpwnam("nobody").pw_uid
    assert accounts.service_users(accounts.AGENT) >= {nobody, NUMBER}
    assert not accounts.service_users(accounts.COORDINATOR) & {nobody, NUMBER, 0}


def test_users_are_known_by_name_and_number() -> None:
    own = os.geteuid()
    assert accounts.uid_of(str(own)) == own == accounts.uid_of(accounts.name_of(own))
    assert accounts.uid_of("no-such-user") is None and accounts.uid_of("") is None
    assert accounts.name_of(NUMBER) == str(NUMBER)
