"""Where nodes reach the coordinator: as it is said, or as we reach it by TLS."""

import pytest

from distributed_grid.cli.context import Invocation
from distributed_grid.cli.grid.push import _address, _show, _why
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.nodes import NodeState, NodeView, Withheld
from distributed_grid.push.plan import Target
from distributed_grid.push.provisioning import Added
from tests.coordinator.core.scene import facts


def test_the_address_that_is_given_wins_and_has_a_port() -> None:
    assert _address(Invocation(coordinator="ws://here:1"), "there:7433") == "there:7433"
    for text in ("there", "there:x", ":1"):
        with pytest.raises(BadValue):
            _address(Invocation(coordinator="wss://here:1"), text)


def test_else_it_is_where_we_reach_it_by_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRID_CONTEXT", "")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nonexistent")
    assert _address(Invocation(coordinator="wss://[::1]:7000"), "") == "[::1]:7000"
    assert _address(Invocation(coordinator="wss://m"), "") == "m:443"
    with pytest.raises(GridError, match="cannot be added"):
        _address(Invocation(coordinator="ws://m:1"), "")


@pytest.mark.parametrize(("failed", "code"), [(False, 3), (True, 1)])
def test_a_node_that_will_go_ends_the_command_with_a_warning(
    failed: bool, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    view = NodeView(facts=facts("lab1"), state=NodeState.UP)
    going = Added("lab1", "added", view, GridError("lab1 will be disconnected", "a session ends", "sudo it"))
    results: dict[Target, Added | BaseException] = {Target("lab1"): going}
    if failed:
        results[Target("lab2")] = GridError("it broke")
    with pytest.raises(SystemExit) as ended:
        _show(Invocation(), results)
    said = capsys.readouterr()
    assert ended.value.code == code and said.out.startswith("lab1 is added: ")
    assert said.err.endswith("warning: lab1 will be disconnected\n  why: a session ends\n  try: sudo it\n")
    _show(Invocation(), {Target("lab1"): going._replace(warning=None)})
    assert capsys.readouterr().err == ""


def test_what_is_withheld_is_the_reason_for_no_offer() -> None:
    assert _why([]) == "" and _why([Withheld("cpu", "busy"), Withheld("gpu", "hot")]) == " (cpu: busy; gpu: hot)"
