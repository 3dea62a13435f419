"""Two hosts of one network, as network namespaces with addresses of their own."""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.grid_fixture import CONFIG, GRID, Grid, until

MASTER, NODE = "192.0.2.1", "192.0.2.2"


@contextmanager
def network() -> Iterator[tuple[int, int]]:
    """Two network namespaces with a cable between them, each known by a process that sleeps in it. They go with it."""
    with ExitStack() as ends:
        pids = []
        for _ in range(2):
            sleeper = subprocess.Popen(["unshare", "--net", "sleep", "3600"])
            ends.callback(sleeper.wait)
            ends.callback(sleeper.kill)
            pids.append(sleeper.pid)
        mine = Path("/proc/self/ns/net").readlink()
        for pid in pids:
            until(lambda: Path(f"/proc/{pid}/ns/net").readlink() != mine, "the namespace is there")  # noqa: B023
        first, second = map(str, pids)
        ip("link", "add", "eth0", "netns", first, "type", "veth", "peer", "name", "eth0", "netns", second)
        for pid, address in zip(pids, (MASTER, NODE), strict=True):
            for words in (["addr", "add", f"{address}/24", "dev", "eth0"], ["link", "set", "eth0", "up"]):
                ip(*words, within=pid)
            ip("link", "set", "lo", "up", within=pid)
        yield pids[0], pids[1]


def ip(*words: str, within: int = 0) -> None:
    subprocess.run([*(enter(within) if within else []), "ip", *words], check=True, capture_output=True)


def enter(pid: int) -> list[str]:
    return ["nsenter", f"--net=/proc/{pid}/ns/net", "--"]


@contextmanager
def two_hosts(
    home: Path,
    config: str = CONFIG,
    node_config: str = CONFIG,
    node_environment: Mapping[str, str] = {},
    node_wrapper: Sequence[str] = (),
) -> Iterator[tuple[Grid, Grid]]:
    """A master with a founded grid, and a host whose agent lab1 has joined it by an invitation, has this in its
    environment, and is started by this wrapper."""
    with network() as (there, here), ExitStack() as ends:
        master = Grid(home / "master", config + f"coordinator: {{host: {MASTER}}}\n")
        node = Grid(home / "node", node_config)
        node.environment |= node_environment
        master.command, node.command = [*enter(there), *GRID], [*enter(here), *GRID]
        master.network, node.network = f"/proc/{there}/ns/net", f"/proc/{here}/ns/net"
        ends.callback(master.close)
        ends.callback(node.close)
        founded = master.run("init", "--host", MASTER, "--state-dir", str(master.home / "coordinator"))
        assert founded.returncode == 0, founded.stderr
        master.url = f"wss://{MASTER}:7433"
        master.start_coordinator()
        made = master.run("token", "create", "--node", "lab1", "--label", "rack=2")
        assert made.returncode == 0, made.stderr
        state = str(node.home / "lab1")
        joined = node.run("agent", "join", "-", "--state-dir", state, input=made.stdout)
        assert joined.returncode == 0, joined.stderr
        if node_wrapper:
            node.command, node.network = [*enter(here), *node_wrapper, *GRID], ""
        node.start_agent("lab1")
        master.await_offers(1)
        yield master, node
