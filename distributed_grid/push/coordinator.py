"""The requests that an operator makes to the coordinator while nodes are added and removed."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.identity import Role
from distributed_grid.protocol.messages import (
    Access,
    DrainNodes,
    ForgetNodes,
    GetStatus,
    ListAccess,
    MakeToken,
    MemberView,
    SetNodes,
    Status,
    TokenMade,
    UndrainNodes,
    Withdraw,
)
from distributed_grid.protocol.nodes import Lending, NodeState, NodeView
from distributed_grid.push.plan import Known

Ask = Callable[[Callable[[int], Any]], Any]
TOKEN_SECONDS = 600.0
"""A token is used within a minute of its making."""


class Invited(NamedTuple):
    """A token for one node: its id, and the invitation that the node joins with. The latter is a secret."""

    token: str
    invitation: str


class Coordinator:
    """The coordinator, from an operator's side. `ask` sends a request with a number and returns its answer, `me` is the
    operator, and `address` where nodes reach it, as HOST:PORT. Requests are made in threads, so that several hosts do
    not wait for each other. All methods raise GridError."""

    def __init__(self, ask: Ask, me: Callable[[], str], address: str = "") -> None:
        self._call = ask
        self.me = me
        self._address = address

    def grid(self) -> str:
        """The id of the grid."""
        status: Status = self._call(lambda number: GetStatus(id=number))
        return status.grid

    async def known(self, name: str) -> Known:
        """Return what the coordinator knows of a node."""
        status: Status = await self._ask(lambda number: GetStatus(id=number))
        view = _named(status, name)
        mine = [one for one in await self._members() if one.role is Role.AGENT and one.name == name]
        return Known(
            grid=status.grid,
            there=view is not None,
            up=view is not None and view.state is NodeState.UP,
            incarnation=view.facts.incarnation if view is not None else 0,
            certified=any(not one.revoked and one.expires > time.time() for one in mine),
        )

    async def _members(self) -> Sequence[MemberView]:
        """Return the members with certificates; none if there is no authority."""
        try:
            access: Access = await self._ask(lambda number: ListAccess(id=number))
        except GridError as error:
            if getattr(error, "code", "") != "no-authority":
                raise
            return ()
        return access.members

    async def seen(self, name: str) -> NodeView | None:
        """Return the present view of a node; None: there is none of this name."""
        return _named(await self._ask(lambda number: GetStatus(id=number)), name)

    async def invite(self, name: str, labels: Mapping[str, str]) -> Invited:
        """A token with which a node of this name can join once, soon."""
        made: TokenMade = await self._ask(
            lambda number: MakeToken(
                id=number, role=Role.AGENT, name=name, ttl=TOKEN_SECONDS, uses=1, labels=dict(labels)
            )
        )
        return Invited(made.token.split(".")[2], f"grid://{self._address}/{made.token}")

    async def withdraw(self, token: str) -> None:
        """Take a token back."""
        await self._ask(lambda number: Withdraw(id=number, token=token))

    async def revoke(self, name: str) -> None:
        """Revoke the certificates of a node, if it has any; that ends its connections."""
        if (await self.known(name)).certified:
            await self._ask(lambda number: Withdraw(id=number, role=Role.AGENT, name=name))

    async def drain(self, name: str, now: bool) -> None:
        """Drain a node; with `now` its running jobs are taken back."""
        deadline = 0.0 if now else -1.0
        await self._ask(lambda number: DrainNodes(id=number, nodes=(name,), reason="to be removed", deadline=deadline))

    async def undrain(self, name: str) -> None:
        """Jobs there again."""
        await self._ask(lambda number: UndrainNodes(id=number, nodes=(name,)))

    async def lend(self, name: str, values: Lending) -> None:
        """Set what a node lends at most."""
        await self._ask(lambda number: SetNodes(id=number, nodes=(name,), values=values))

    async def forget(self, name: str) -> None:
        """Forget a node that is not connected, with all that was ordered for it."""
        await self._ask(lambda number: ForgetNodes(id=number, nodes=(name,)))

    async def _ask(self, make: Callable[[int], Any]) -> Any:
        return await asyncio.to_thread(self._call, make)


def _named(status: Status, name: str) -> NodeView | None:
    return next((node for node in status.nodes if node.facts.name == name), None)
