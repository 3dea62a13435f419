"""The `grid` command, one file per family of commands, each loaded only when it is called."""
