"""Who is let in next: places go round by address, the line is bounded, and the slow make way for who waits."""

from distributed_grid.coordinator.net.handshakes import (
    LINE,
    LINE_SECONDS,
    PLACE_SECONDS,
    PLACES,
    PLACES_OF_ADDRESS,
    Door,
    site,
)

HERE, THERE = "192.0.2.1", "198.51.100.7"


def crowd(door: Door[str], address: str, count: int, now: float = 0.0) -> list[str]:
    """So many from one address stand in line; those who were let in at once."""
    for number in range(count):
        assert door.arrive(f"{address}#{number}", address, now) is None
    return door.let_in(now)


def test_one_address_gets_half_of_the_places_and_the_rest_of_it_waits() -> None:
    door: Door[str] = Door()
    assert len(crowd(door, HERE, 100)) == PLACES_OF_ADDRESS
    assert door.waiting == 100 - PLACES_OF_ADDRESS
    assert door.let_in(0.1) == []


def test_who_comes_from_elsewhere_does_not_stand_behind_a_crowd() -> None:
    door: Door[str] = Door()
    crowd(door, HERE, 1000)
    assert crowd(door, THERE, 1, now=0.1) == [f"{THERE}#0"]


def test_addresses_take_turns_and_of_each_who_came_last_is_first() -> None:
    door: Door[str] = Door()
    for number in range(3):
        for address in (HERE, THERE):
            door.arrive(f"{address}#{number}", address, 0.0)
    # Who came last has the first turn.
    assert door.let_in(0.0) == [f"{address}#{number}" for number in (2, 1, 0) for address in (THERE, HERE)]


def test_ten_thousand_nodes_behind_one_address_all_come_in_each_as_one_before_is_known() -> None:
    door: Door[int] = Door()
    now, outside, known = 0.0, list(range(10_000)), 0
    inside: list[int] = []
    while known < 10_000:
        while outside and door.arrive(outside[-1], HERE, now) is None:
            outside.pop()
        inside += door.let_in(now)
        assert door.turn_out(now) == ([], [])
        for guest in inside[:8]:  # what a handshake of 4 ms allows in 32 ms
            door.left(guest)
            known += 1
        del inside[:8]
        now += 0.008  # 1,000 a second
        assert len(inside) <= PLACES_OF_ADDRESS
    assert not door.waiting and not door._inside


def test_a_full_line_takes_no_more_of_an_address_that_fills_it_and_one_of_another_for_the_oldest() -> None:
    door: Door[int] = Door()
    for guest in range(LINE):
        assert door.arrive(guest, HERE, 0.0) is None
    assert door.arrive(LINE, HERE, 0.0) == LINE
    assert door.arrive(LINE + 1, THERE, 0.0) == 0
    assert door.waiting == LINE
    assert door.let_in(0.0)[0] == LINE + 1


def test_who_comes_does_not_stand_behind_thousands_of_addresses_that_came_before() -> None:
    door: Door[str] = Door()
    for number in range(2 * LINE):
        door.arrive(f"idle{number}", f"10.1.{number >> 8}.{number & 255}", 0.0)
    assert len(door.let_in(0.0)) == PLACES
    for number in range(20):
        door.arrive(f"new{number}", HERE, 0.5)
    entered: list[str] = []
    now = 0.5
    while len(entered) < 20 and now < 2.0:
        door.turn_out(now)
        for guest in door.let_in(now):
            if guest.startswith("new"):
                entered.append(guest)
                door.greeted(guest)
        now += 0.05
    assert len(entered) == 20


def test_an_address_that_stalled_has_its_turn_after_those_that_did_not() -> None:
    door: Door[str] = Door()
    for number in range(PLACES):
        door.arrive(f"idle{number}", f"192.0.2.{number}", 0.0)
    door.let_in(0.0)
    door.arrive("new", HERE, 0.5)
    (slow,) = door.turn_out(PLACE_SECONDS)[1]
    assert slow == "idle63" and door.let_in(PLACE_SECONDS) == ["new"]
    door.arrive("other", THERE, 2.0)
    door.arrive("again", "192.0.2.63", 2.0)
    door.left("idle1")
    assert door.let_in(2.0) == ["other"]
    door.greeted("other")
    assert door.let_in(2.0) == ["again"]
    door.greeted("again")
    assert not door._stalled


def test_who_holds_a_place_in_silence_makes_way_for_who_waits_and_only_then() -> None:
    door: Door[str] = Door()
    crowd(door, HERE, PLACES_OF_ADDRESS)
    crowd(door, THERE, PLACES - PLACES_OF_ADDRESS)
    assert door.turn_out(0.1) == ([], [])
    assert crowd(door, "203.0.113.9", 1, now=0.1) == []
    assert door.turn_out(PLACE_SECONDS / 2) == ([], [])  # they have had no time yet
    late, slow = door.turn_out(PLACE_SECONDS)
    assert late == [] and slow == [f"{HERE}#{PLACES_OF_ADDRESS - 1}"]  # the first of them to be let in
    assert door.let_in(PLACE_SECONDS) == ["203.0.113.9#0"]


def test_who_waited_too_long_in_line_is_sent_away() -> None:
    door: Door[str] = Door()
    crowd(door, HERE, PLACES_OF_ADDRESS)
    door.arrive("late", HERE, 0.0)
    assert door.turn_out(0.5) == ([], [])
    for number in range(PLACES_OF_ADDRESS):  # those inside are fresh all the time
        door.left(f"{HERE}#{number}")
        door.arrive(f"fresh{number}", HERE, LINE_SECONDS)
    late, slow = door.turn_out(LINE_SECONDS)
    assert late == ["late"] and slow == []


def test_who_is_gone_leaves_no_trace() -> None:
    door: Door[str] = Door()
    for guest in crowd(door, HERE, PLACES_OF_ADDRESS):
        door.left(guest)
        door.left(guest)
    door.left("never seen")
    assert not (door.waiting or door._inside or door._places or door._lines)


def test_a_site_of_ipv6_counts_as_one_address_and_addresses_of_ipv4_by_themselves() -> None:
    assert site("2001:db8:0:1::5") == site("2001:db8:0:1:ffff::9") != site("2001:db8:0:2::5")
    assert site("fe80::1%eth0") == site("fe80::2%eth0")
    assert site("192.0.2.1") != site("192.0.2.2")
    assert site("::ffff:192.0.2.1") == site("192.0.2.1")
    assert site("") == ""  # a Unix socket has none
