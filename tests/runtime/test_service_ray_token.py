"""Where the token of a Ray cluster lies, and what is said where it does not."""

from pathlib import Path

import pytest

from distributed_grid.protocol.errors import GridError
from distributed_grid.runtime.service import find_ray_token
from tests.grid_fixture import Grid


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One in Ray's own place, as Ray makes it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    path = tmp_path / ".ray" / "auth_token"
    path.parent.mkdir()
    path.write_text("abc\n")
    path.chmod(0o644)
    return path


def test_a_named_file_goes_before_the_environment_and_that_before_rays_own(
    token: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_ray_token("", "ray.token") == token
    other, named = tmp_path / "other", tmp_path / "named"
    for path in (other, named):
        path.touch(0o600)
        path.write_text("abc")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(other))
    assert find_ray_token("", "ray.token") == other
    assert find_ray_token("~/named", "ray.token") == named


def test_a_file_that_is_missing_empty_or_open_to_all_is_refused_by_name(token: Path, tmp_path: Path) -> None:
    with pytest.raises(GridError, match=f"no token for the Ray cluster in {tmp_path}/nowhere") as missing:
        find_ray_token(f"{tmp_path}/nowhere", "agent.ray_token")
    assert "No such file" in missing.value.why and "agent.ray_token" in missing.value.hint
    with pytest.raises(GridError, match="is no secret") as open_to_all:
        find_ray_token(str(token), "ray.token")
    assert open_to_all.value.hint == f"chmod 600 {token}"
    token.write_text("\n")
    with pytest.raises(GridError) as empty:
        find_ray_token("", "ray.token")
    assert empty.value.why == "it is empty"


@pytest.mark.parametrize(
    ("config", "words", "said"),
    [
        ("ray: {address: 'x:1', auth: token, token: /nowhere}", ("coordinator", "run"), "with ray.token"),
        ("ray: {address: 'x:1', token: /nowhere}", ("coordinator", "run"), "try: set ray.auth: token"),
        ("agent: {ray_token: /nowhere}", ("agent", "run", "--name", "n1"), "with agent.ray_token"),
    ],
)
def test_a_service_without_the_token_that_it_was_told_of_does_not_start(
    config: str, words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    grid = Grid(tmp_path, config)
    done = grid.run("-c", str(tmp_path / "grid.yaml"), *words, "--state-dir", str(tmp_path / "state"))
    assert done.returncode in (1, 78) and "Traceback" not in done.stderr
    assert "/nowhere" in done.stderr or "ray.auth is disabled" in done.stderr
    assert said in done.stderr, done.stderr
