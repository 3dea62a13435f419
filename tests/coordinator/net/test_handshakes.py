"""Who is let in next: places go round by address, the line is bounded, and the slow make way for who waits."""

from distributed_grid.coordinator.net.handshakes import (
    LINE,
    LINE_SECONDS,
    PLACE_SECONDS,
    PLACES,
    PLACES_OF_ADDRESS,
    HandshakeQueue,
    site,
)

HERE, THERE = "192.0.2.1", "198.51.100.7"


def crowd(queue: HandshakeQueue[str], address: str, count: int, now: float = 0.0) -> list[str]:
    """So many from one address stand in line; those who were let in at once."""
    for number in range(count):
        assert queue.enqueue(f"{address}#{number}", address, now) is None
    return queue.admit(now)


def test_one_address_gets_half_of_the_places_and_the_rest_of_it_waits() -> None:
    queue: HandshakeQueue[str] = HandshakeQueue()
    assert len(crowd(queue, HERE, 100)) == PLACES_OF_ADDRESS
    assert queue.waiting == 100 - PLACES_OF_ADDRESS
    assert queue.admit(0.1) == []


def test_who_comes_from_elsewhere_does_not_stand_behind_a_crowd() -> None:
    queue: HandshakeQueue[str] = HandshakeQueue()
    crowd(queue, HERE, 1000)
    assert crowd(queue, THERE, 1, now=0.1) == [f"{THERE}#0"]


def test_addresses_take_turns_and_of_each_who_came_last_is_first() -> None:
    queue: HandshakeQueue[str] = HandshakeQueue()
    for number in range(3):
        for address in (HERE, THERE):
            queue.enqueue(f"{address}#{number}", address, 0.0)
    # Who came last has the first turn.
    assert queue.admit(0.0) == [f"{address}#{number}" for number in (2, 1, 0) for address in (THERE, HERE)]


def test_ten_thousand_nodes_behind_one_address_all_come_in_each_as_one_before_is_known() -> None:
    queue: HandshakeQueue[int] = HandshakeQueue()
    now, outside, known = 0.0, list(range(10_000)), 0
    inside: list[int] = []
    while known < 10_000:
        while outside and queue.enqueue(outside[-1], HERE, now) is None:
            outside.pop()
        inside += queue.admit(now)
        assert queue.evict(now) == ([], [])
        for guest in inside[:8]:  # what a handshake of 4 ms allows in 32 ms
            queue.release(guest)
            known += 1
        del inside[:8]
        now += 0.008  # 1,000 a second
        assert len(inside) <= PLACES_OF_ADDRESS
    assert not queue.waiting and not queue._inside


def test_a_full_line_takes_no_more_of_an_address_that_fills_it_and_one_of_another_for_the_oldest() -> None:
    queue: HandshakeQueue[int] = HandshakeQueue()
    for guest in range(LINE):
        assert queue.enqueue(guest, HERE, 0.0) is None
    assert queue.enqueue(LINE, HERE, 0.0) == LINE
    assert queue.enqueue(LINE + 1, THERE, 0.0) == 0
    assert queue.waiting == LINE
    assert queue.admit(0.0)[0] == LINE + 1


def test_who_comes_does_not_stand_behind_thousands_of_addresses_that_came_before() -> None:
    queue: HandshakeQueue[str] = HandshakeQueue()
    for number in range(2 * LINE):
        queue.enqueue(f"idle{number}", f"10.1.{number >> 8}.{number & 255}", 0.0)
    assert len(queue.admit(0.0)) == PLACES
    for number in range(20):
        queue.enqueue(f"new{number}", HERE, 0.5)
    entered: list[str] = []
    now = 0.5
    while len(entered) < 20 and now < 2.0:
        queue.evict(now)
        for guest in queue.admit(now):
            if guest.startswith("new"):
                entered.append(guest)
                queue.identified(guest)
        now += 0.05
    assert len(entered) == 20


def test_an_address_that_stalled_has_its_turn_after_those_that_did_not() -> None:
    queue: HandshakeQueue[str] = HandshakeQueue()
    for number in range(PLACES):
        queue.enqueue(f"idle{number}", f"192.0.2.{number}", 0.0)
    queue.admit(0.0)
    queue.enqueue("new", HERE, 0.5)
    (slow,) = queue.evict(PLACE_SECONDS)[1]
    assert slow == "idle63" and queue.admit(PLACE_SECONDS) == ["new"]
    queue.enqueue("other", THERE, 2.0)
    queue.enqueue("again", "192.0.2.63", 2.0)
    queue.release("idle1")
    assert queue.admit(2.0) == ["other"]
    queue.identified("other")
    assert queue.admit(2.0) == ["again"]
    queue.identified("again")
    assert not queue._stalled


def test_who_holds_a_place_in_silence_makes_way_for_who_waits_and_only_then() -> None:
    queue: HandshakeQueue[str] = HandshakeQueue()
    crowd(queue, HERE, PLACES_OF_ADDRESS)
    crowd(queue, THERE, PLACES - PLACES_OF_ADDRESS)
    assert queue.evict(0.1) == ([], [])
    assert crowd(queue, "203.0.113.9", 1, now=0.1) == []
    assert queue.evict(PLACE_SECONDS / 2) == ([], [])  # they have had no time yet
    late, slow = queue.evict(PLACE_SECONDS)
    assert late == [] and slow == [f"{HERE}#{PLACES_OF_ADDRESS - 1}"]  # the first of them to be let in
    assert queue.admit(PLACE_SECONDS) == ["203.0.113.9#0"]


def test_who_waited_too_long_in_line_is_sent_away() -> None:
    queue: HandshakeQueue[str] = HandshakeQueue()
    crowd(queue, HERE, PLACES_OF_ADDRESS)
    queue.enqueue("late", HERE, 0.0)
    assert queue.evict(0.5) == ([], [])
    for number in range(PLACES_OF_ADDRESS):  # those inside are fresh all the time
        queue.release(f"{HERE}#{number}")
        queue.enqueue(f"fresh{number}", HERE, LINE_SECONDS)
    late, slow = queue.evict(LINE_SECONDS)
    assert late == ["late"] and slow == []


def test_who_is_gone_leaves_no_trace() -> None:
    queue: HandshakeQueue[str] = HandshakeQueue()
    for guest in crowd(queue, HERE, PLACES_OF_ADDRESS):
        queue.release(guest)
        queue.release(guest)
    queue.release("never seen")
    assert not (queue.waiting or queue._inside or queue._places or queue._lines)


def test_a_site_of_ipv6_counts_as_one_address_and_addresses_of_ipv4_by_themselves() -> None:
    assert site("2001:db8:0:1::5") == site("2001:db8:0:1:ffff::9") != site("2001:db8:0:2::5")
    assert site("fe80::1%eth0") == site("fe80::2%eth0")
    assert site("192.0.2.1") != site("192.0.2.2")
    assert site("::ffff:192.0.2.1") == site("192.0.2.1")
    assert site("") == ""  # a Unix socket has none
