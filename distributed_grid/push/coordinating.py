"""What is asked of the coordinator while a node is added or removed; who asks says how."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from distributed_grid.protocol.nodes import NodeView
from distributed_grid.push.plan import Known


class Invited(NamedTuple):
    """A token for one node: its id, and the invitation that the node joins with. The latter is a secret."""

    token: str
    invitation: str


class Coordinator(Protocol):
    """The coordinator, as an operator speaks to it. All of it raises GridError."""

    async def known(self, name: str) -> Known:
        """What it knows of a node."""

    async def seen(self, name: str) -> NodeView | None:
        """A node as it is now; None: there is none of this name."""

    def me(self) -> str:
        """Who asks it, by the name that the grid has for them."""

    async def invite(self, name: str, labels: Mapping[str, str]) -> Invited:
        """A token with which a node of this name can join once, soon."""

    async def withdraw(self, token: str) -> None:
        """Take a token back."""

    async def revoke(self, name: str) -> None:
        """Take the certificates of a node back, if it has any; that ends its connections."""

    async def drain(self, name: str, now: bool) -> None:
        """No new job there; with `now` those that run there are taken back."""

    async def undrain(self, name: str) -> None:
        """Jobs there again."""

    async def forget(self, name: str) -> None:
        """A node that is not connected is no more, with all that was ordered for it."""
