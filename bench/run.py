"""`make bench`: every benchmark, one JSON line each. `make bench ARGS="latency startup"` runs those named. Options go
to the name before them: `make bench ARGS="throughput --jobs 2000 latency"`."""

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDERS = {path.stem: path.parent.name for path in Path(__file__).parent.glob("[a-z]*/[a-z]*.py")}
"""Where each benchmark is."""
NAMES = sorted(FOLDERS)
LARGE = ("peers",)
"""Only where it is named: it runs other systems."""


sys.path.insert(0, str(Path(__file__).parents[1]))  # `bench` itself, when this file is run as a script


def parse(words: Sequence[str]) -> tuple[list[tuple[str, list[str]]], list[str]]:
    """The benchmarks that these words name, each with its options; and the words that are neither."""
    wanted: list[tuple[str, list[str]]] = []
    unknown: list[str] = []
    for word in words:
        if word in NAMES:
            wanted.append((word, []))
        elif wanted and (wanted[-1][1] or word.startswith("-") or word.isdigit()):
            wanted[-1][1].append(word)
        else:
            unknown.append(word)
    return wanted, unknown


def load(name: str) -> Any:
    """The module of that benchmark."""
    return importlib.import_module(f"bench.{FOLDERS[name]}.{name}")


def main() -> int:
    """Run the named benchmarks, or all; return 2 for an unknown name."""
    wanted, unknown = parse(sys.argv[1:])
    if unknown:
        print(f"error: no benchmark {', '.join(unknown)}\n  try: {' '.join(NAMES)}", file=sys.stderr)
        return 2
    for name, words in wanted or [(name, []) for name in NAMES if name not in LARGE]:
        sys.argv[:] = [name, *words]
        load(name).main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
