"""What a renewal signs binds the request to the coordinator's question."""

from distributed_grid.protocol.messages import Hello
from distributed_grid.protocol.messages.handshake import Join, signed_to_renew


def test_a_signature_is_for_one_question_and_one_request() -> None:
    one = signed_to_renew("n1", "request")
    assert one != signed_to_renew("n2", "request") and one != signed_to_renew("n1", "other")


def test_a_hello_and_a_join_leave_open_what_nobody_said() -> None:
    hello = Hello(protocol=(1, 0), software="1", role="client", name="ann")
    assert (hello.facts, hello.obeyed, hello.session) == (None, None, "")
    assert Join(token="t", secret="s", request="r").to_be == ""
