"""The coordinator's store: SQLite with one writer, its checksums, and what is read from it."""
