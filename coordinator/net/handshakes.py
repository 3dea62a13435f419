"""Who is let in next. Connections that have not said who they are yet are few at a time, however many come.

Who was accepted and has said its first byte waits in line until a place is free. Places go round by address, and no
address has more than half of them. So ten thousand nodes behind one address come in one after another, each at the
speed of a handshake, and who holds its places and says nothing holds up only its own line. While somebody waits, who
has had a place for long makes way, the oldest of the address that has most.

An address that is new in the line, or one of whose connections has just said who it is, has the next turn; one whose
connections had to make way has its turn after all others for a while. So thousands of addresses that come and stall do
not keep out who does not.

Of one address, who came last is let in first: where all get in it makes no difference, and where an address is flooded,
first come first served would let in nobody but who has given up meanwhile.
"""

import ipaddress
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass
from typing import Generic, TypeVar

PLACES = 64
"""Connections that may be between their first byte and the end of their hello at once."""
PLACES_OF_ADDRESS = 32
LINE = 4096
"""Connections that wait for a place; more are closed at once."""
LINE_SECONDS = 10.0
PLACE_SECONDS = 1.0
"""A handshake takes milliseconds and a few round trips: after this, a place is given to who waits."""
STALLED_SECONDS = 60.0
"""For so long an address whose connection had to make way has its turn after others."""
STALLED_MOST = 1 << 16
IPV6_SITE = 64
"""Bits of an IPv6 address that count: whoever has one such address has all that share them."""

Guest = TypeVar("Guest")


def site(address: str) -> str:
    """What counts as one address."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, IPV6_SITE), strict=False))


@dataclass(slots=True)
class _Known:
    site: str
    since: float


class Door(Generic[Guest]):
    """The places and the line. Guests are whatever the shell has for a connection."""

    def __init__(self) -> None:
        self._inside: OrderedDict[Guest, _Known] = OrderedDict()
        self._places: Counter[str] = Counter()
        self._waiting: OrderedDict[Guest, _Known] = OrderedDict()
        self._lines: OrderedDict[str, deque[Guest]] = OrderedDict()
        """In the order of their turns."""
        self._stalled: OrderedDict[str, float] = OrderedDict()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def arrive(self, guest: Guest, address: str, now: float) -> Guest | None:
        """Stand in line. The answer is who is to be turned away where the line is full: who has waited longest, or the
        new one if its address has its share of the line; None: nobody."""
        where, out = site(address), None
        if len(self._waiting) >= LINE:
            if len(self._lines.get(where, ())) >= max(LINE // 4, LINE // len(self._lines)):
                return guest
            out = next(iter(self._waiting))
            self._leave_line(out)
        self._waiting[guest] = _Known(where, now)
        if where in self._lines:
            self._lines[where].append(guest)
            return out
        self._lines[where] = deque((guest,))
        if self._stalled.get(where, -STALLED_SECONDS) + STALLED_SECONDS <= now:
            self._lines.move_to_end(where, last=False)
        return out

    def let_in(self, now: float) -> list[Guest]:
        """Those who get a place now."""
        entering = []
        passed_over = 0
        while self._lines and len(self._inside) < PLACES and passed_over < len(self._lines):
            where = next(iter(self._lines))
            self._lines.move_to_end(where)
            if self._places[where] >= PLACES_OF_ADDRESS:
                passed_over += 1
                continue
            passed_over = 0
            guest = self._lines[where][-1]
            self._leave_line(guest)
            self._inside[guest] = _Known(where, now)
            self._places[where] += 1
            entering.append(guest)
        return entering

    def turn_out(self, now: float) -> tuple[list[Guest], list[Guest]]:
        """Those who have waited in line for too long, and those who are to make way for others. They are gone."""
        late: list[Guest] = []
        while self._waiting and self._first(self._waiting).since <= now - LINE_SECONDS:
            guest = next(iter(self._waiting))
            self._leave_line(guest)
            late.append(guest)
        slow: list[Guest] = []
        while len(slow) < len(self._waiting) and self._inside:
            ((most, _),) = self._places.most_common(1)
            guest, known = next(one for one in self._inside.items() if one[1].site == most)
            if known.since > now - PLACE_SECONDS:
                break
            self.left(guest)
            slow.append(guest)
            self._stalled[most] = now
            self._stalled.move_to_end(most)
            if len(self._stalled) > STALLED_MOST:
                self._stalled.popitem(last=False)
        return late, slow

    def greeted(self, guest: Guest) -> None:
        """A guest has said who it is: others of its address are welcome."""
        if (known := self._inside.get(guest)) is not None:
            self._stalled.pop(known.site, None)
            if known.site in self._lines:
                self._lines.move_to_end(known.site, last=False)
        self.left(guest)

    def left(self, guest: Guest) -> None:
        """A guest needs its place no more, or is gone."""
        if guest in self._waiting:
            self._leave_line(guest)
        elif (known := self._inside.pop(guest, None)) is not None:
            self._places[known.site] -= 1
            if not self._places[known.site]:
                del self._places[known.site]

    def _leave_line(self, guest: Guest) -> None:
        where = self._waiting.pop(guest).site
        line = self._lines[where]
        if line[-1] is guest:
            line.pop()
        else:
            line.remove(guest)  # nearly always its first
        if not line:
            del self._lines[where]

    @staticmethod
    def _first(known: OrderedDict[Guest, _Known]) -> _Known:
        return next(iter(known.values()))
