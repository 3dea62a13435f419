"""Who somebody is, as a certificate names them."""

import pytest

from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.identity import Identity, Role, check_name, parse_uri


@pytest.mark.parametrize(
    "identity, uri",
    [
        (Identity("0a1b", Role.AGENT, "lab-1.x"), "grid://0a1b/agent/lab-1.x"),
        (Identity("0a1b", Role.OPERATOR, "ann"), "grid://0a1b/operator/ann"),
        (Identity("0a1b", Role.COORDINATOR), "grid://0a1b/coordinator"),
    ],
)
def test_an_identity_is_read_back_from_its_uri(identity: Identity, uri: str) -> None:
    assert identity.uri == uri
    assert parse_uri(uri) == identity


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "grid://",
        "https://0a1b/agent/n1",
        "grid://0a1b/agent",
        "grid://0a1b/agent/",
        "grid://0a1b/agent/n1/more",
        "grid://0a1b/agent/../n1",
        "grid://0a1b/agent/n 1",
        "grid://0a1b/agent/" + "n" * 65,
        "grid://0a1b/owner/n1",
        "grid://0a1b/coordinator/n1",
        "grid:///agent/n1",
        "grid://0a1b/AGENT/n1",
    ],
)
def test_what_names_nobody_of_a_grid_is_refused(uri: str) -> None:
    with pytest.raises(BadValue):
        parse_uri(uri)


@pytest.mark.parametrize("name", ["", ".", "-n", "a/b", "a\n", "a\x1b[31m", "ä", "n" * 65])
def test_a_name_that_could_be_taken_for_something_else_is_not_given_out(name: str) -> None:
    with pytest.raises(BadValue, match="a node cannot be called"):
        check_name("a node", name)
