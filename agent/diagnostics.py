"""What `grid doctor` looks at on a node: what of this machine a node needs, and how its agent is."""

import os
from collections.abc import Iterator
from pathlib import Path

from distributed_grid.agent.cgroups.control import described, survey
from distributed_grid.agent.gpus.backends import open_backend
from distributed_grid.agent.launch.run_as import AGENT
from distributed_grid.agent.wall_facts import Asked, chosen, default_owners, proof, remedy, weak
from distributed_grid.agent.walls import available
from distributed_grid.identity.tls import IDENTITY, has_identity
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.walls import Trust, Walls
from distributed_grid.runtime.health import Finding, Level, certificate, disk, failed, told

__all__ = ["Asked", "is_node", "look", "walls"]

PRESSURE = Path("/proc/pressure/cpu")
CGROUPS = Path("/sys/fs/cgroup")


def is_node(state_dir: Path) -> bool:
    """Whether an agent has ever been here, or has joined."""
    return (state_dir / "instance").exists() or has_identity(state_dir / IDENTITY)


def look(asked: Asked, backend: str, cgroup: str) -> Iterator[Finding]:
    """All of it, one by one, since some take a while."""
    state_dir = asked.state_dir
    here = is_node(state_dir)
    if here:
        yield from _agent(state_dir)
        yield walls(asked)
        if os.geteuid() == state_dir.stat().st_uid:
            yield _ends(asked, cgroup)
        yield disk("agent's disk", state_dir)
    for one in (_gpus(backend), _cgroups(cgroup), _pressure()):
        # What only a node needs is worth a word elsewhere, and nothing to worry about.
        yield one if here else one._replace(level=Level.OK)


def _agent(state_dir: Path) -> Iterator[Finding]:
    if (running := told(state_dir / "agent.pid")) is not None:
        yield Finding("agent", Level.OK, f"it runs as process {running['pid']}, with its state in {state_dir}")
    else:
        start = "systemctl start grid-agent, where it is installed; else: grid agent run"
        yield Finding("agent", Level.ERROR, "it does not run", f"nobody has {state_dir}; jobs there go on", start)
    if has_identity(state_dir / IDENTITY):
        renewal = "start the agent, which renews it; after too long: grid token create --node NAME, grid agent join"
        yield certificate("agent's identity", state_dir / IDENTITY, renewal)


def walls(asked: Asked) -> Finding:
    """Behind which walls jobs run here, and whose."""
    owner = asked.state_dir.stat().st_uid
    if os.geteuid() != owner:
        return Finding(
            "walls", Level.OK, f"only user {owner}, whom the agent is, can see what can be had; see: grid nodes"
        )
    try:
        found, why = chosen(asked)
    except GridError as error:
        return failed("walls", error)
    if found is Walls.USER and asked.run_as == AGENT and (lacks := available.nameless()):
        why, _, remedy_of_names = lacks.partition("; ")
        what = "jobs run behind walls user and have no name, which ssh, whoami and others need"
        return Finding("walls", Level.WARNING, what, why, remedy_of_names)
    if not weak(found):
        return Finding("walls", Level.OK, f"jobs run behind walls {found}")
    owners = ", ".join(asked.owners or default_owners())
    if asked.trust == Trust.EVERYONE:
        what = f"jobs of everyone run behind walls {found} (agent.trust), and can harm each other and the agent"
        return Finding("walls", Level.WARNING, what, why, remedy())
    what = f"jobs run behind walls {found}, so only those of {owners} do (agent.owners)"
    return Finding("walls", Level.WARNING, what, why, f"{remedy()}; or agent.trust: everyone")


def _ends(asked: Asked, cgroup: str) -> Finding:
    """By what this node knows that nothing of a job lives."""
    try:
        found, _ = chosen(asked)
    except GridError as error:
        return failed("ends", error)
    how = proof(found, asked.run_as, survey(cgroup).home is not None)
    what = f"that nothing of a job lives is known by its {how}"
    if how != "descent":
        return Finding("ends", Level.OK, what)
    why = "a job that forks faster than it is looked for is ended in rounds, which may take seconds"
    hint = "run the agent as a service (sudo grid agent install), or name a place in agent.cgroup"
    return Finding("ends", Level.WARNING, what, why, hint)


def _gpus(backend: str) -> Finding:
    try:
        found = open_backend(backend)
    except GridError as error:
        return failed("gpus", error)
    facts = found.facts()
    if found.error:
        hint = "nvidia-smi says more; after an update of the driver the machine has to be restarted"
        return Finding("gpus", Level.ERROR, f"GPUs cannot be read by {found.name}", found.error, hint)
    names = ", ".join(f"{gpu.model}{' (stand-in)' if gpu.stand_in else ''}" for gpu in facts)
    return Finding("gpus", Level.OK, f"{len(facts)} by {found.name}: {names}" if facts else "none", found.note)


def _cgroups(setting: str) -> Finding:
    two, one = (CGROUPS / "cgroup.controllers").exists(), (CGROUPS / "unified").exists()
    mode = "v2" if two else "v1 and v2" if one else "v1" if (CGROUPS / "memory").exists() else "none"
    found = survey(setting)
    kept = ", ".join(f"{name} by {how}" for name, how in described(found).items())
    what = f"cgroups: {mode}; limits are kept: {kept}"
    if not found.missing or setting == "none":
        return Finding("cgroup", Level.OK, what)
    why = "; ".join(dict.fromkeys(found.missing.values()))
    hint = "run the agent as a service (sudo grid agent install), or name a place in agent.cgroup"
    return Finding("cgroup", Level.WARNING, what, why, hint)


def _pressure() -> Finding:
    try:
        PRESSURE.read_text()
    except OSError as error:
        why = f"{PRESSURE}: {error.strerror}; that an owner is back is seen by what he uses alone"
        return Finding("psi", Level.WARNING, "the kernel does not say who has to wait", why, "boot with psi=1")
    return Finding("psi", Level.OK, "the kernel says who has to wait")
