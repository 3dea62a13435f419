"""Chains of allocations that hold the same resources one after another. The first member of a chain holds them; the
others are its successors: they wait in order and hold nothing. Agent and supervisor each keep chains by the same rules,
so this module is stdlib only."""

from collections.abc import Iterator


class Chains:
    """The live allocations of all chains. A chain has the id of the allocation that began it, also once that has ended;
    an allocation that is no successor is a chain of its own."""

    def __init__(self) -> None:
        self._members: dict[str, list[str]] = {}
        self._chain: dict[str, str] = {}

    def __contains__(self, key: object) -> bool:
        return key in self._chain

    def of(self, key: str) -> str:
        """The chain of a member."""
        return self._chain[key]

    def join(self, key: str, chain: str) -> None:
        """Add an allocation as the last one of this chain."""
        assert key not in self._chain, key  # noqa: S101
        self._chain[key] = chain
        self._members.setdefault(chain, []).append(key)

    def leave(self, key: str) -> str:
        """Remove an allocation that has ended, or will never run. Returns the allocation that is now the head in its
        place; empty: there is none, or it was not the head. No effect on an allocation that is in no chain."""
        if (chain := self._chain.pop(key, "")) == "":
            return ""
        members = self._members[chain]
        first = members[0] == key
        members.remove(key)
        if not members:
            del self._members[chain]
        return members[0] if first and members else ""

    def make_head(self, key: str) -> None:
        """Make a member the first of its chain."""
        members = self._members[self._chain[key]]
        members.remove(key)
        members.insert(0, key)

    def head(self, key: str) -> str:
        """The first of its chain; itself if it is in none."""
        return self._members[self._chain[key]][0] if key in self._chain else key

    def waits(self, key: str) -> bool:
        """Whether it is a successor whose turn has not come."""
        return self.head(key) != key

    def is_tail(self, key: str) -> bool:
        """Whether this member has no successor."""
        return self._members[self._chain[key]][-1] == key

    def members(self, chain: str) -> tuple[str, ...]:
        """The allocations of a chain, in order."""
        return tuple(self._members.get(chain, ()))

    def successors(self) -> Iterator[tuple[str, str]]:
        """Yield all waiting successors, each with the head of its chain."""
        for first, *others in self._members.values():
            for key in others:
                yield key, first
