"""Control groups, version 1 and 2: where they can be made, and what the kernel enforces in them. Stdlib only."""
