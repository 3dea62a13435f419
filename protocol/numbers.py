"""Numbers as they may come from a peer. The decoder holds these bounds, so that neither a NaN nor an infinity nor a
number that no counter holds ever gets as far as an account or a deadline: it ends the connection of who sent it."""

from typing import Annotated

import msgspec

Finite = Annotated[float, msgspec.Meta(ge=-1e15, le=1e15)]
"""A measurement or a moment."""
Span = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
"""Seconds, not below zero."""
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]
"""Bytes, or things that are counted."""
Code = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
"""An exit code or the number of a signal."""
