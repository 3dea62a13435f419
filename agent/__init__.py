"""The service on a node: it measures, offers and launches, and never decides who gets what."""

from distributed_grid.runtime.deferred import WEBSOCKETS, defer

defer(*WEBSOCKETS)
