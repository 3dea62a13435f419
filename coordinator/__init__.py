"""The service on the master: it owns the ledger and is the shell of sockets, disk and clocks around it."""
