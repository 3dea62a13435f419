"""The queue of connections before their handshake; only a few handshakes are in progress at a time.

A connection that was accepted and has sent its first byte waits for a free place. Places are given to addresses in
turn, and no address has more than half of them: ten thousand nodes behind one address are admitted one after another,
and a peer that is silent in its places delays only its own address. While connections wait, handshakes that take long
are evicted, the oldest of the address that has most places first.

An address that is new, or one of whose connections has just identified itself, has the next turn. An address with an
evicted connection comes after all others for a while, so thousands of addresses that stall do not keep others out.

Of one address the newest connection is admitted first: if the address is flooded, the oldest ones have given up
meanwhile.
"""

import ipaddress
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass
from typing import Generic, TypeVar

PLACES = 64
"""Maximum number of handshakes in progress: connections between their first byte and the end of their hello."""
PLACES_OF_ADDRESS = 32
LINE = 4096
"""Maximum number of connections that wait for a place; more are closed at once."""
LINE_SECONDS = 10.0
PLACE_SECONDS = 1.0
"""A handshake takes milliseconds and a few round trips; after this it is evicted if others wait."""
STALLED_SECONDS = 60.0
"""How long an address with an evicted connection has its turn after others."""
STALLED_MOST = 1 << 16
IPV6_SITE = 64
"""Bits of an IPv6 address that count: a peer with one such address has all that share them."""

Peer = TypeVar("Peer")


def site(address: str) -> str:
    """Return the part of an address that counts as one address."""
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


class HandshakeQueue(Generic[Peer]):
    """Waiting connections, and handshakes in progress. A connection is whatever the caller has for one."""

    def __init__(self) -> None:
        self._inside: OrderedDict[Peer, _Known] = OrderedDict()
        self._places: Counter[str] = Counter()
        self._waiting: OrderedDict[Peer, _Known] = OrderedDict()
        self._lines: OrderedDict[str, deque[Peer]] = OrderedDict()
        """By address, in the order of their turns."""
        self._stalled: OrderedDict[str, float] = OrderedDict()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def enqueue(self, peer: Peer, address: str, now: float) -> Peer | None:
        """Add a connection. Returns the one to turn away if the queue is full: the oldest, or the new one if its own
        address has its share of the queue; None: there is room."""
        where, out = site(address), None
        if len(self._waiting) >= LINE:
            if len(self._lines.get(where, ())) >= max(LINE // 4, LINE // len(self._lines)):
                return peer
            out = next(iter(self._waiting))
            self._dequeue(out)
        self._waiting[peer] = _Known(where, now)
        if where in self._lines:
            self._lines[where].append(peer)
            return out
        self._lines[where] = deque((peer,))
        if self._stalled.get(where, -STALLED_SECONDS) + STALLED_SECONDS <= now:
            self._lines.move_to_end(where, last=False)
        return out

    def admit(self, now: float) -> list[Peer]:
        """The connections whose handshake may begin now."""
        entering = []
        passed_over = 0
        while self._lines and len(self._inside) < PLACES and passed_over < len(self._lines):
            where = next(iter(self._lines))
            self._lines.move_to_end(where)
            if self._places[where] >= PLACES_OF_ADDRESS:
                passed_over += 1
                continue
            passed_over = 0
            peer = self._lines[where][-1]
            self._dequeue(peer)
            self._inside[peer] = _Known(where, now)
            self._places[where] += 1
            entering.append(peer)
        return entering

    def evict(self, now: float) -> tuple[list[Peer], list[Peer]]:
        """Remove and return those that have waited too long, and handshakes that are evicted for others."""
        late: list[Peer] = []
        while self._waiting and self._first(self._waiting).since <= now - LINE_SECONDS:
            peer = next(iter(self._waiting))
            self._dequeue(peer)
            late.append(peer)
        slow: list[Peer] = []
        while len(slow) < len(self._waiting) and self._inside:
            ((most, _),) = self._places.most_common(1)
            peer, known = next(one for one in self._inside.items() if one[1].site == most)
            if known.since > now - PLACE_SECONDS:
                break
            self.release(peer)
            slow.append(peer)
            self._stalled[most] = now
            self._stalled.move_to_end(most)
            if len(self._stalled) > STALLED_MOST:
                self._stalled.popitem(last=False)
        return late, slow

    def identified(self, peer: Peer) -> None:
        """Note that the handshake is over and the peer has identified itself, which puts its address in good
        standing."""
        if (known := self._inside.get(peer)) is not None:
            self._stalled.pop(known.site, None)
            if known.site in self._lines:
                self._lines.move_to_end(known.site, last=False)
        self.release(peer)

    def release(self, peer: Peer) -> None:
        """Free the place of a connection that has completed its handshake, or was closed."""
        if peer in self._waiting:
            self._dequeue(peer)
        elif (known := self._inside.pop(peer, None)) is not None:
            self._places[known.site] -= 1
            if not self._places[known.site]:
                del self._places[known.site]

    def _dequeue(self, peer: Peer) -> None:
        where = self._waiting.pop(peer).site
        line = self._lines[where]
        if line[-1] is peer:
            line.pop()
        else:
            line.remove(peer)  # nearly always its first
        if not line:
            del self._lines[where]

    @staticmethod
    def _first(known: OrderedDict[Peer, _Known]) -> _Known:
        return next(iter(known.values()))
