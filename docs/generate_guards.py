"""The limits that protect the coordinator, as a table made from the constants in the code."""

from distributed_grid.coordinator.access import joining
from distributed_grid.coordinator.api import relay, server, sessions
from distributed_grid.coordinator.api.blobs import quota as ship_quota
from distributed_grid.coordinator.net import connection, handshakes, limits, listener, memory
from distributed_grid.protocol import codec


def guards() -> str:
    """The limits, their values, and what happens above."""
    rows = [
        (
            "handshakes at once",
            f"{handshakes.PLACES}, {handshakes.PLACES_OF_ADDRESS} of one address",
            "others wait in the queue, unread",
        ),
        ("the handshake queue", f"{handshakes.LINE} connections, {seconds(handshakes.LINE_SECONDS)} each", "closed"),
        (
            "a handshake while others wait",
            seconds(handshakes.PLACE_SECONDS),
            "the oldest of the address with most is evicted",
        ),
        ("TLS handshake", seconds(listener.TLS_SECONDS), "closed"),
        ("HTTP request", seconds(listener.UPGRADE_SECONDS), "closed"),
        ("hello", seconds(connection.HELLO_SECONDS), "refused with the reason"),
        ("joining, with a token", seconds(joining.JOIN_SECONDS), "closed"),
        ("failed tries to join or renew", f"{limits.FAILURES} of one address in {seconds(limits.PER)}", "refused"),
        ("open files", f"all but {listener.FILES_KEPT} of the process's are for connections", "closed"),
        ("connections of one person", str(sessions.CONNECTIONS_OF_ONE), "refused with the reason"),
        ("connections of one node", "one for control, one for data", "the live one stays"),
        ("frame before the hello", size(codec.HELLO_BYTES), "not read, closed (1009)"),
        ("frame of a node's control connection", size(codec.CONTROL_BYTES), "not read, closed (1009)"),
        ("frame of all others", size(codec.BULK_BYTES), "not read, closed (1009)"),
        ("frames read ahead", f"{listener.QUEUE} of a connection", "not read until there is room"),
        ("fragments of a message", str(connection.FRAGMENTS), "cut"),
        ("frames", rate(connection.FRAMES_PER_SECOND, connection.FRAMES_AT_ONCE), "slowed down"),
        (
            "messages of one node, and allocations named in them; of which a certificate asked for is "
            f"{server.CERTIFICATE_WORDS:,}",
            rate(server.WORDS_PER_SECOND, server.WORDS_AT_ONCE),
            "slowed down",
        ),
        (
            "pings and pongs",
            rate(connection.CONTROL_FRAMES_PER_SECOND, connection.CONTROL_FRAMES_AT_ONCE),
            "cut",
        ),
        (
            "requests of one person",
            f"{limits.SHARE:.0%} of the coordinator's time, {seconds(limits.AT_ONCE)} of it at once",
            f"slowed down; {seconds(limits.FAR_OVER)} over: refused (`busy`), with the time to try again",
        ),
        (
            "memory",
            f"{memory.SHED_AT:.0%} of `coordinator.memory_limit`; all of it",
            "viewers and clients that do not read are cut; new jobs are refused",
        ),
        (
            "shipped files of one person",
            f"`coordinator.ship_quota`: {size(ship_quota.QUOTA)}, or 1/{ship_quota.PART_OF_DISK} of the free disk",
            "refused, with what counts and for how long",
        ),
        (
            "an answer of a node",
            f"what was asked for, within {seconds(relay.ANSWER_SECONDS)}",
            "cut; late: the client gets an error",
        ),
        ("unread answers before the hello", size(connection.OUTBOX_STRANGER), "cut"),
        ("unread messages to a node", size(connection.OUTBOX_CONTROL), "cut"),
        ("unread answers to all others", size(connection.OUTBOX_BULK), "cut"),
        (
            "log lines about an address",
            f"each once in {seconds(limits.LOG_SECONDS)}, {limits.LOG_LINES} at most",
            "counted (`unsaid`)",
        ),
    ]
    return "\n".join(["| limit of | at most | above |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)])


def seconds(value: float) -> str:
    return f"{value:g} s"


def size(value: int) -> str:
    return f"{value >> 20} MiB" if value >= 1 << 20 else f"{value >> 10} KiB"


def rate(a_second: float, at_once: float) -> str:
    return f"{a_second:,.0f} a second, {at_once:,.0f} at once"
