"""Who may say what."""

from typing import get_args

import pytest

from distributed_grid.protocol import messages
from distributed_grid.protocol.identity import Role
from distributed_grid.protocol.messages.roles import TABLE, reach

SPOKEN = {
    kind for union in (messages.FromAgent, messages.FromAgentData, messages.FromClient) for kind in get_args(union)
}
MEMBERS: set[type] = {messages.WantCertificate}
AGENTS: set[type] = (set(get_args(messages.FromAgent)) | {messages.WantBlob}) - MEMBERS
CHANGES: set[type] = {messages.Submit, messages.Cancel, messages.SignalJob, messages.PutBlob} | {
    messages.RequestBoost,
    messages.ExtendBoost,
}


def test_every_message_that_a_peer_may_send_has_its_row_and_nothing_else_has() -> None:
    assert set(TABLE) == SPOKEN, "give a new message its row in protocol/messages/roles.py"


@pytest.mark.parametrize("message", sorted(AGENTS, key=str))
def test_what_agents_say_nobody_else_may(message: type) -> None:
    assert [role for role in Role if reach(role, message)] == [Role.AGENT]


@pytest.mark.parametrize("message", sorted(CHANGES, key=str))
def test_a_viewer_changes_nothing(message: type) -> None:
    assert reach(Role.VIEWER, message) is None and reach(Role.CLIENT, message) is not None


def test_what_nobody_has_heard_of_is_allowed_to_nobody() -> None:
    assert not any(reach(role, messages.Launch) for role in Role)
    assert not any(reach(Role.COORDINATOR, message) for message in SPOKEN)
