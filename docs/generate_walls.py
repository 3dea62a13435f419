"""What attacks a job can make on its node, and under which walls they are refused, as a table."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
WORDS = {"held": "refused", "open": "not promised"}


def attacks() -> str:
    """A row for each attack of `make abuse`, a column for each level of walls."""
    table = _table()
    rows = [f"| attack | {' | '.join(f'`{level}`' for level in table.LEVELS)} | told |"]
    rows.append("|---|" + "---|" * (len(table.LEVELS) + 1))
    for one in table.ATTACKS:
        cells = []
        for level in table.LEVELS:
            grouped, ungrouped = (table.expected(one, level, groups) for groups in (True, False))
            cells.append(WORDS[grouped] if grouped == ungrouped else f"{WORDS[grouped]} with control groups")
        _, levels = one.tells
        told = "yes" if levels == table.LEVELS else f"yes ({', '.join(f'`{level}`' for level in levels)})"
        rows.append(f"| `{one.name}`: {one.what} | {' | '.join(cells)} | {told if levels else 'no'} |")
    return "\n".join(rows)


def _table() -> Any:
    """The module that has them, by its path: tests are no part of what is installed."""
    spec = importlib.util.spec_from_file_location("abuse_attacks", ROOT / "tests/abuse/attacks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for it there
    spec.loader.exec_module(module)
    return module
