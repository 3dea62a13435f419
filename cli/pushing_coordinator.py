"""The coordinator as `grid node add` and `remove` ask it: by the same connection as every command, one for a question,
in a thread, so that several hosts do not wait for each other."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from distributed_grid.cli.connection import Denied
from distributed_grid.cli.invocation import Invocation
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
    Status,
    TokenMade,
    UndrainNodes,
    Withdraw,
)
from distributed_grid.protocol.nodes import NodeState, NodeView
from distributed_grid.push.coordinating import Invited
from distributed_grid.push.plan import Known

TOKEN_SECONDS = 600.0
"""A token is used within a minute of its making."""


class Asking:
    """It. `address`: where a node reaches it, as HOST:PORT."""

    def __init__(self, invocation: Invocation, address: str) -> None:
        self._invocation = invocation
        self._address = address

    def grid(self) -> str:
        """The id of the grid."""
        status: Status = self._invocation.ask(lambda number: GetStatus(id=number))
        return status.grid

    def me(self) -> str:
        """Who we are to it."""
        return self._invocation.user

    async def known(self, name: str) -> Known:
        """What it knows of a node."""
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
        """Who has certificates; nobody where there is no authority that gives any."""
        try:
            access: Access = await self._ask(lambda number: ListAccess(id=number))
        except Denied as denied:
            if denied.code != "no-authority":
                raise
            return ()
        return access.members

    async def seen(self, name: str) -> NodeView | None:
        """A node as it is now."""
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
        """Take the certificates of a node back, if it has any."""
        if (await self.known(name)).certified:
            await self._ask(lambda number: Withdraw(id=number, role=Role.AGENT, name=name))

    async def drain(self, name: str, now: bool) -> None:
        """No new job there."""
        deadline = 0.0 if now else -1.0
        await self._ask(lambda number: DrainNodes(id=number, nodes=(name,), reason="to be removed", deadline=deadline))

    async def undrain(self, name: str) -> None:
        """Jobs there again."""
        await self._ask(lambda number: UndrainNodes(id=number, nodes=(name,)))

    async def forget(self, name: str) -> None:
        """The node is no more."""
        await self._ask(lambda number: ForgetNodes(id=number, nodes=(name,)))

    async def _ask(self, make: Callable[[int], Any]) -> Any:
        return await asyncio.to_thread(self._invocation.ask, make)


def tls_address(invocation: Invocation) -> str:
    """HOST:PORT at which we reach it by TLS, and so may others; where we use its Unix socket, the one that our context
    names. Raises GridError where there is none: then nobody can join."""
    from distributed_grid.member import contexts, current_context, read_member

    url = invocation.url()
    if not url.startswith("wss://") and (name := current_context()):
        member = read_member(contexts() / name)
        url = member.url if member is not None else url
    parts = urlsplit(url)
    if parts.scheme != "wss" or not parts.hostname:
        raise GridError(
            "nodes cannot be added to this grid from here",
            why=f"we reach its coordinator at {url}, and nodes join by TLS only",
            hint="grid init, where it has no authority yet; else say where nodes reach it: --reached-at HOST:PORT",
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{host}:{parts.port or 443}"


def _named(status: Status, name: str) -> NodeView | None:
    return next((node for node in status.nodes if node.facts.name == name), None)
