"""Tokens are asked for sensibly, and an invitation leaves no trace in the list of processes."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from distributed_grid.cli.grid.access import _pinned, label_of
from distributed_grid.cli.main import main
from distributed_grid.identity.member import Member, contexts, read_member, write_member
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.identity import Role
from distributed_grid.protocol.messages import TokenMade


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--role", "client", "--node", "n1"], "--node is for agents"),
        (["--role", "client"], "for whom"),
        (["--user", "ann"], "--user is for people"),
        (["--role", "client", "--user", "ann", "--label", "a=1"], "--label is for nodes"),
        (["--node", ""], "it is empty"),
        (["--uses", "99999999999999999999"], "1<=x<=10000"),
        (["--bearer"], "a bearer token is for a person"),
        (["--role", "client", "--user", "ann", "--bearer", "--uses", "2"], "a bearer token is for a person"),
    ],
)
def test_a_token_that_makes_no_sense_is_refused_before_anybody_is_asked(words: list[str], why: str) -> None:
    done = CliRunner().invoke(main, ["--coordinator", "ws://127.0.0.1:1", "token", "create", *words])
    assert done.exit_code == 2 and why in done.stderr


def test_a_label_has_a_name_and_a_value() -> None:
    assert label_of("a=b=c") == ("a", "b=c")
    for text in ("a", "=b", ""):
        with pytest.raises(BadValue):
            label_of(text)


def test_a_bearer_token_is_given_with_the_pin_of_the_authority() -> None:
    assert _pinned(TokenMade(id=1, token="gridu1.t.s", pin="p")) == "gridu1.p.t.s"
    assert _pinned(TokenMade(id=1, token="grid1.p.t.s")) == "grid1.p.t.s"


def test_an_invitation_is_overwritten_in_the_arguments_of_the_process() -> None:
    code = (
        "import sys; from distributed_grid.cli.grid.access import read_invitation;"
        "assert read_invitation(sys.argv[1]).startswith('grid:');"
        "print(open('/proc/self/cmdline').read())"
    )
    shown = subprocess.run([sys.executable, "-c", code, "grid://h/secret"], capture_output=True, text=True, check=True)
    assert "grid://h/secret" not in shown.stdout and "---------------" in shown.stdout


def test_contexts_are_listed_by_their_names_alone_where_output_is_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert CliRunner().invoke(main, ["-o", "quiet", "context", "list"]).output == ""
    for name in ("home", "lab"):
        (contexts() / name).mkdir(parents=True)
        write_member(contexts() / name, Member("wss://master.example.org:7433", "g", Role.CLIENT, "ann"))
    assert CliRunner().invoke(main, ["-o", "quiet", "context", "list"]).output == "home\nlab\n"


@pytest.mark.parametrize(("words", "port"), [((), 7544), (("--port", "7000"), 7000)])
def test_a_grid_is_founded_at_the_configured_port_unless_another_one_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], port: int
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "grid.yaml").write_text(f"coordinator: {{port: 7544, state_dir: {tmp_path / 'state'}}}\n")
    done = CliRunner().invoke(main, ["-c", str(tmp_path / "grid.yaml"), "init", "--host", "m", *words])
    assert done.exit_code == 0, done.stderr
    member = read_member(contexts() / "default")
    assert member is not None and member.url == f"wss://m:{port}"
    assert (f"--port {port}" in done.stdout) == (port != 7544)


@pytest.mark.parametrize(
    ("hosts", "every"), [(["2001:db8::1"], "::"), (["2001:db8::1", "m"], "0.0.0.0"), ([], "0.0.0.0")]
)
def test_a_grid_at_ipv6_addresses_is_told_to_listen_there(
    hosts: list[str], every: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    words = [word for host in hosts for word in ("--host", host)]
    done = CliRunner().invoke(main, ["init", "--state-dir", str(tmp_path / "state"), *words])
    assert done.exit_code == 0 and done.stdout.count(f"--host {every} ") == 2, done.output


def test_of_a_new_grid_quiet_output_is_its_id_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    done = CliRunner().invoke(main, ["-o", "quiet", "init", "--state-dir", str(tmp_path / "state")])
    member = read_member(contexts() / "default")
    assert member is not None and done.stdout == f"{member.grid}\n"
