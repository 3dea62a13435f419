"""The service on the master: it owns the ledger and is the shell of sockets, disk and clocks around it."""

from distributed_grid.runtime.deferred import WEBSOCKETS, defer

defer(*WEBSOCKETS)
