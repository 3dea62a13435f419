"""What is known of who is let in: its labels are those of its token."""

import asyncio
import time
from pathlib import Path

import msgspec

from distributed_grid import __version__
from distributed_grid.agent.session import dial
from distributed_grid.joining import join, parse_invitation
from distributed_grid.protocol.identity import Role
from distributed_grid.protocol.link import PROTOCOL
from distributed_grid.protocol.messages import Hello
from tests.coordinator.core.scene import facts
from tests.coordinator.ends import Coordinator, coordinator


async def comes(grid: Coordinator, folder: Path, name: str, labels: dict[str, str]) -> dict[str, str]:
    """What the coordinator holds for the labels of a node that says these."""
    own = msgspec.structs.replace(facts(name), labels=labels)
    hello = Hello(protocol=PROTOCOL, software=__version__, role="agent", name=name, facts=own)
    session = await dial(grid.url, hello, identity=folder)
    known = grid.ledger.nodes[name].facts.labels
    await session.close()
    return known


async def test_a_tokens_labels_are_the_nodes_whatever_it_says_also_after_it_has_joined_again(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    async with coordinator(tmp_path / "state", founded=True) as grid:
        assert grid.pki is not None
        identities, address = grid.pki.identities, grid.url.partition("//")[2]

        async def joins(token: str, name: str) -> Path:
            folder = tmp_path / token[-4:] / name
            await asyncio.to_thread(join, parse_invitation(f"grid://{address}/{token}"), name, lambda _: folder)
            return folder

        def token(name: str, labels: dict[str, str], uses: int = 1) -> str:
            pin = grid.pki.authority.pin if grid.pki is not None else ""
            return identities.mint(pin, Role.AGENT, name, labels, uses, 3600.0, "ada", time.time())

        pattern = token("lab*", {"zone": "a", "trust": "low"}, uses=2)
        for name in ("lab1", "lab2"):
            folder = await joins(pattern, name)
            said = {"zone": "b", "own": "x"}
            assert await comes(grid, folder, name, said) == {"zone": "a", "trust": "low", "own": "x"}
        again = await joins(token("lab1", {"zone": "c"}), "lab1")
        assert await comes(grid, again, "lab1", {"trust": "high"}) == {"zone": "c", "trust": "high"}
        assert identities.labels(Role.AGENT, "lab2") == {"zone": "a", "trust": "low"}
