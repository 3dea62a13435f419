"""By TCP without an authority: the kernel says which user of this machine comes, and another user is no operator."""

import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from websockets.asyncio.client import connect

from distributed_grid.coordinator.access import admission
from distributed_grid.protocol.codec import decode, encode
from distributed_grid.protocol.messages import Hello, Refused, ShowJobs, Welcome
from distributed_grid.protocol.placement import UID_RANGE
from tests.coordinator.ends import Coordinator, client, coordinator, job, node

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can come as somebody else")


@pytest_asyncio.fixture
async def master(tmp_path: Path) -> AsyncIterator[Coordinator]:
    async with coordinator(tmp_path) as made:
        yield made


def dialled(master: Coordinator, uid: int) -> socket.socket:
    """A connection that this user opened."""
    own = os.geteuid()
    os.seteuid(uid)
    try:
        return socket.create_connection(("127.0.0.1", int(master.url.rpartition(":")[2])))
    finally:
        os.seteuid(own)


async def said_to_an_agent(master: Coordinator, uid: int) -> Welcome | Refused:
    hello = Hello(protocol=(1, 0), software="test", role="agent", name="n1", facts=node())
    async with connect(master.url, sock=dialled(master, uid)) as wire:
        await wire.send(encode(0, [hello]))
        answer: Welcome | Refused = decode("ToAgent", bytes(await wire.recv()))[1][0]  # type: ignore[arg-type]
        return answer


@as_root
async def test_another_user_is_a_client_under_their_own_name(master: Coordinator) -> None:
    end = await client(master.url, "root", sock=dialled(master, NOBODY))
    welcome = await end.until(Welcome)
    assert (welcome.role, welcome.user) == ("client", "nobody")
    (made,) = await end.submit(job(), watch=False)
    assert (await end.ask(ShowJobs(2, (made,)))).jobs[0].user == "nobody"
    await end.close()


async def test_ones_own_user_is_an_operator_by_the_name_it_says(master: Coordinator) -> None:
    end = await client(master.url, "bob", sock=dialled(master, os.geteuid()))
    welcome = await end.until(Welcome)
    assert (welcome.role, welcome.user) == ("operator", "bob")
    await end.close()


@as_root
async def test_another_user_is_no_node_but_the_machines_agent_is(
    master: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = await said_to_an_agent(master, NOBODY)
    assert isinstance(refused, Refused) and "client nobody, by its uid 65534" in refused.why
    assert not master.ledger.state.nodes
    monkeypatch.setattr(admission, "service_users", lambda service: {NOBODY} if service == "grid-agent" else set())
    assert isinstance(await said_to_an_agent(master, NOBODY), Welcome)
    end = await client(master.url, "root", sock=dialled(master, NOBODY))
    assert isinstance(end.seen[0], Refused) and "service account" in end.seen[0].what
    await end.close()


@as_root
async def test_a_user_of_the_walls_is_refused(master: Coordinator) -> None:
    end = await client(master.url, "root", sock=dialled(master, UID_RANGE[0]))
    assert isinstance(end.seen[0], Refused) and "the range that walls give to jobs" in end.seen[0].why
    await end.close()
