"""Who has connected, and for how long that holds: by a certificate, a bearer token, or the user of this machine."""

import asyncio

from distributed_grid.coordinator.access.admission import Admission
from distributed_grid.coordinator.net.connection import Connection
from distributed_grid.coordinator.net.unix_socket import identity_of_peer, local_peer, peer_uid
from distributed_grid.protocol.identity import Identity


async def authenticate(connection: Connection, admission: Admission, grid: str) -> Identity | None:
    """The identity of a peer that has sent its hello; None: this grid asks nobody. The connection ends when what it was
    let in by does. Raises NotAdmitted."""
    wire = connection.wire
    if (local := local_peer(wire)) is not None:
        connection.via = f"uid {peer_uid(local)}"
        return await asyncio.to_thread(identity_of_peer, local, wire.accepted, grid)
    if (bearer := wire.bearer) is not None:
        connection.via = f"bearer {bearer.id}"
        connection.holds_until(bearer.expires, "bearer token")
        return Identity(grid, bearer.role, bearer.name)
    if (shown := admission.presented(wire)) is None:
        return None
    connection.presented, connection.via = shown, f"certificate {shown.serial}"
    connection.holds_until(shown.life.end, "certificate")
    return shown.identity
