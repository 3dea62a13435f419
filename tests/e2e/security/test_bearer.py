"""Bearer tokens: a program of somebody's comes in with one, as that person and with no more rights than both allow."""

import json
import stat
import subprocess
from collections.abc import Iterator

import pytest

from tests.grid_fixture import Grid, contents, founded_grid


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grid]:
    with founded_grid(tmp_path_factory.mktemp("founded")) as grid:
        yield grid


def bearer(grid: Grid, *words: str) -> str:
    made = grid.run("token", "create", "--bearer", *words)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


def elsewhere(grid: Grid, name: str, *words: str, **options: str) -> subprocess.CompletedProcess[str]:
    """Run a command of a person with separate contexts; `token_file` names another file with a token."""
    own = grid.environment
    grid.environment = own | {"XDG_CONFIG_HOME": str(grid.home / name)}
    if "token_file" in options:
        grid.environment["GRID_TOKEN_FILE"] = options["token_file"]
    try:
        return grid.run(*words, input=options.get("input"))
    finally:
        grid.environment = own


def members(grid: Grid) -> list[dict[str, object]]:
    found: list[dict[str, object]] = [one for one in grid.json("access")["members"] if one.get("bearer")]
    return found


def audited(grid: Grid) -> list[dict[str, object]]:
    lines = (grid.home / "coordinator" / "audit.log").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_who_logs_in_by_a_bearer_token_is_its_user_until_it_is_taken_back(grid: Grid) -> None:
    invitation = bearer(grid, "--role", "client", "--user", "ci")
    said = elsewhere(grid, "ci", "login", "-", input=invitation)
    assert said.returncode == 0 and "you are client ci of grid" in said.stderr, said.stderr
    context = grid.home / "ci" / "grid" / "contexts" / "default"
    assert stat.S_IMODE((context / "bearer").stat().st_mode) == 0o600 and not (context / "own.key").exists()
    job = elsewhere(grid, "ci", "run-shared", "-d", "--no-ship", "true")
    assert job.returncode == 0, job.stderr
    assert grid.job(job.stdout.strip())["user"] == "ci"
    (asked,) = [line for line in audited(grid) if line["event"] == "submit"]
    assert (asked["user"], asked["via"]) == ("ci", f"bearer {invitation.split('.')[-2]}")
    refused = elsewhere(grid, "ci", "token", "create")
    assert refused.returncode == 1 and "a client may not do this" in refused.stderr
    # It is listed, without its secret, and taken back.
    (listed,) = members(grid)
    assert (listed["role"], listed["name"]) == ("client", "ci")
    back = grid.run("token", "revoke", str(listed["serial"]))
    assert back.returncode == 0 and "opens nothing any more" in back.stderr
    late = elsewhere(grid, "ci", "status")
    assert late.returncode == 1 and "was taken back" in late.stderr
    secret = invitation.rpartition(".")[2]
    assert secret not in late.stderr + said.stderr + (grid.home / "coordinator.log").read_text()
    for path, content in contents(grid.home / "coordinator"):
        assert secret.encode() not in content, path


def test_a_token_allows_no_more_than_its_user_may(grid: Grid) -> None:
    token = grid.run("token", "create", "--role", "client", "--user", "ann").stdout.strip()
    assert elsewhere(grid, "ann", "login", "-", input=token).returncode == 0
    said = elsewhere(grid, "ann-bot", "login", "-", input=bearer(grid, "--role", "operator", "--user", "ann"))
    assert "you are client ann" in said.stderr, said.stderr
    looks = elsewhere(grid, "ann-eye", "login", "-", input=bearer(grid, "--role", "viewer", "--user", "ann"))
    assert "you are viewer ann" in looks.stderr
    assert elsewhere(grid, "ann-eye", "run-shared", "-d", "--no-ship", "true").returncode == 125
    # Who is put out is put out with all tokens.
    back = grid.run("access", "revoke", "client", "ann")
    assert "1 certificate and 2 bearer tokens of ann taken back" in back.stderr
    for name in ("ann", "ann-bot", "ann-eye"):
        assert elsewhere(grid, name, "status").returncode == 1


def test_a_token_file_takes_the_place_of_what_a_context_has_and_others_may_not_read_it(grid: Grid) -> None:
    made = json.loads(grid.run("token", "create", "--bearer", "--role", "viewer", "--user", "eve", "-o", "json").stdout)
    assert elsewhere(grid, "eve", "login", "-", input=made["invitation"]).returncode == 0
    path = grid.home / "secret"
    path.write_text(
        json.loads(grid.run("token", "create", "--bearer", "--role", "client", "--user", "robot", "-o", "json").stdout)[
            "token"
        ]
    )
    path.chmod(0o644)
    open_to_all = elsewhere(grid, "eve", "status", token_file=str(path))
    assert open_to_all.returncode == 1 and "can be read by others" in open_to_all.stderr
    path.chmod(0o600)
    job = elsewhere(grid, "eve", "run-shared", "-d", "--no-ship", "true", token_file=str(path))
    assert job.returncode == 0, job.stderr
    assert grid.job(job.stdout.strip())["user"] == "robot"
    path.write_text(bearer(grid, "--role", "client", "--user", "robot"))  # the invitation as it was printed
    whole = elsewhere(grid, "eve", "job", "show", job.stdout.strip(), token_file=str(path))
    assert whole.returncode == 0, whole.stderr
    path.write_text("gridu1.0a1b2c3d.wrong")
    wrong = elsewhere(grid, "eve", "status", token_file=str(path))
    assert wrong.returncode == 1 and "is not known here" in wrong.stderr and "grid login" in wrong.stderr
    assert "this bearer token is not known here" in (grid.home / "coordinator.log").read_text()


def test_a_wrong_one_is_not_kept_and_nobody_joins_with_one(grid: Grid) -> None:
    invitation = bearer(grid, "--role", "client", "--user", "bob")
    wrong = elsewhere(grid, "bob", "login", "-", input=invitation[:-3] + "AAA")
    assert wrong.returncode == 1 and "is not known here" in wrong.stderr
    assert not (grid.home / "bob" / "grid" / "contexts" / "default").exists()
    node = grid.run("agent", "join", "-", "--state-dir", str(grid.home / "lab1"), input=invitation)
    assert node.returncode == 2 and "cannot be used to join" in node.stderr and not (grid.home / "lab1").exists()
    assert grid.run("token", "create", "--bearer").returncode == 2


def test_quiet_lists_of_tokens_and_of_access_have_ids_and_names_alone(grid: Grid) -> None:
    made = grid.json("token", "create", "--node", "lab7")["token"]
    assert grid.run("-o", "quiet", "token", "list").stdout.splitlines()[0] == made.split(".")[2]
    bearer(grid, "--role", "client", "--user", "tom")
    bearer(grid, "--role", "client", "--user", "tom")
    names = grid.run("-o", "quiet", "access").stdout.splitlines()
    assert names.count("tom") == 1 and not [one for one in names if " " in one]


def test_a_token_gives_only_labels_that_nodes_can_have(grid: Grid) -> None:
    refused = grid.run("token", "create", "--label", "a b=c")
    assert refused.returncode == 1 and "a label cannot be called 'a b'" in refused.stderr
