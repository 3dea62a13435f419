"""Numbers and strings as a peer may send them. The decoder checks these bounds, so no NaN, infinity or number that a
counter cannot hold reaches the ledger, a deadline or the store: a peer that sends one is refused with the field and its
bound. Each bound is far from anything real, and small enough that sums over all nodes of a grid stay within 64 bits
(`CAPPED`) and moments within what calendars have."""

from typing import Annotated

import msgspec

MOST_COUNT = 1 << 60
MOST_NUMBER = (1 << 53) - 1
LATEST = 253_370_764_800.0
"""The first second of the year 9999, in seconds since the epoch: the latest moment that can be asked for."""

MOST_FINITE = 1e15
Finite = Annotated[float, msgspec.Meta(ge=-MOST_FINITE, le=MOST_FINITE)]
"""A measurement or a moment."""
Span = Annotated[float, msgspec.Meta(ge=0, le=1e10)]
"""Seconds, not below zero: at most three hundred years."""
Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_COUNT)]
"""Bytes, or things that are counted."""
Code = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
"""An exit code, the number of a signal, or a number that may be -1 for none."""
Number = Annotated[int, msgspec.Meta(ge=0, le=MOST_NUMBER)]
"""The number of a request, of an offer or of a life."""
Index = Annotated[int, msgspec.Meta(ge=0, le=(1 << 20) - 1)]
"""The number of a core or a device."""
Place = Annotated[int, msgspec.Meta(ge=-1, le=(1 << 20) - 1)]
"""The number of a core or a device; -1: none."""
Thousandths = Annotated[int, msgspec.Meta(ge=0, le=1000)]
"""A part of one core or device."""
Pid = Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)]
"""A process."""
Word = Annotated[str, msgspec.Meta(max_length=1024)]
"""An id, a name, a version, an address."""
Text = Annotated[str, msgspec.Meta(max_length=32_768)]
"""A sentence or a path."""
