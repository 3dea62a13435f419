"""`make bench`: every benchmark, one JSON line each; `make bench ARGS="latency startup"` runs only those named."""

import importlib
import sys
from pathlib import Path

NAMES = sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py") if path.stem != "run")


sys.path.insert(0, str(Path(__file__).parents[1]))  # `bench` itself, when this file is run as a script


def main() -> int:
    """Run what is named, or all; 2 for a name that is none."""
    wanted = sys.argv[1:] or NAMES
    unknown = [name for name in wanted if name not in NAMES]
    if unknown:
        print(f"error: no benchmark {', '.join(unknown)}\n  try: {' '.join(NAMES)}", file=sys.stderr)
        return 2
    sys.argv[1:] = []
    for name in wanted:
        importlib.import_module(f"bench.{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
