"""The resource boost guide's `python scripts/validate_ray_cluster.py`: `grid cluster check`, with its options."""

import sys

try:
    from distributed_grid.cli.main import main
except ImportError:  # a bare Python runs this, and beside it is one that has the grid
    sys.exit("FAIL  grid: this Python has no distributed_grid → run it with the one where the grid is installed")

if __name__ == "__main__":
    main(["cluster", "check", *sys.argv[1:]], prog_name="grid")
