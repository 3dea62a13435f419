"""Where a job may and should go, as it is asked for: a strategy, and what a node has to be."""

from difflib import get_close_matches
from enum import StrEnum

import msgspec

from distributed_grid.protocol.errors import BadValue


class Strategy(StrEnum):
    """What makes one node better than another of those that could take a job."""

    LOCAL_FIRST = "local-first"
    BEST_FIT = "best-fit"
    LOAD_BALANCED = "load-balanced"
    PACK = "pack"
    SPREAD = "spread"


class Local(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is local to a request that goes local-first: the machine it comes from, by its host name, and the files
    that are shipped with it. The coordinator says this, not the client."""

    host: str = ""
    bundle: str = ""


def parse_strategy(text: str) -> Strategy:
    """A strategy by its name. Raises BadValue."""
    word = str(text).strip().lower().replace("_", "-")
    try:
        return Strategy(word)
    except ValueError:
        near = get_close_matches(word, [*Strategy], 1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise BadValue(f"unknown strategy {text!r}", hint=f"{meant}there are {', '.join(Strategy)}") from None
