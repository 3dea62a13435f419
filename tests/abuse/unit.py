"""Attacks inside a machine of its own, whose systemd boots in namespaces (tests/systemd/booted.py): on an agent and a
coordinator that were installed as services.

    python -m tests.abuse.unit LEVEL [ATTACK…]      there, as root
"""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.abuse.arena import NODE, Arena, awaited
from tests.grid_fixture import CONFIG

PROGRAM = "/usr/local/lib/grid/bin/grid"
AGENT, COORDINATOR = "grid-agent.service", "grid-coordinator.service"
INVITATION = Path("/run/invitation")
SETTINGS = Path("/etc/grid/grid.yaml")


class UnitArena(Arena):
    """The same with services of systemd."""

    def __init__(self, level: str, environment: dict[str, str] | None = None) -> None:
        super().__init__(level, environment)
        self.state = Path(f"/var/lib/grid/agent-{NODE}")
        self.coordinator_state = Path("/var/lib/grid/coordinator")
        self.grid.command = [PROGRAM]
        del self.grid.environment["XDG_STATE_HOME"]  # services have their own places
        self.grid.environment["PATH"] = "/usr/sbin:/usr/bin:/sbin:/bin"
        SETTINGS.parent.mkdir(exist_ok=True)
        lines = [f"  {name.removeprefix('GRID_AGENT__').lower()}: {value}" for name, value in self.environment.items()]
        SETTINGS.write_text("\n".join([CONFIG.rstrip(), *lines, ""]))

    def start(self) -> None:
        for words in (("init",), ("coordinator", "install")):
            self._grid(*words)
        INVITATION.write_text(self._grid("token", "create", "--role", "agent", "--node", NODE))
        self._grid("agent", "install", "--name", NODE, "--join", str(INVITATION))
        (self.state,) = [path.parent.parent for path in Path("/var/lib/grid").glob("agent*/identity/own.key")]
        self.grid.await_offers(1)
        for user in ("ann", "mallory"):
            token = self._grid("token", "create", "--role", "client", "--user", user).strip()
            joined = self.run(user, "login", token)
            assert joined.returncode == 0, joined.stderr
        self.settle()

    def _grid(self, *words: str) -> str:
        done = self.grid.run(*words)
        assert done.returncode == 0, f"{words}: {done.stderr}\n{self.log()[-3000:]}"
        return done.stdout

    def restart_agent(self) -> None:
        old = self.agent
        subprocess.run(["systemctl", "kill", "--kill-whom=main", "--signal=KILL", AGENT], check=True)
        awaited(lambda: self.agent not in (0, old), "systemd starts the agent again", 30)

    @property
    def agent(self) -> int:
        return self._main(AGENT)

    @property
    def coordinator(self) -> int:
        return self._main(COORDINATOR)

    def _main(self, unit: str) -> int:
        shown = ["systemctl", "show", unit, "--property=MainPID", "--value"]
        return int(subprocess.run(shown, capture_output=True, text=True).stdout or 0)

    def log(self) -> str:
        told = ["journalctl", "--no-pager", "--output", "cat", "--unit", AGENT, "--unit", COORDINATOR]
        return subprocess.run(told, capture_output=True, text=True, errors="replace").stdout

    def close(self) -> None:
        self.grid.run("agent", "uninstall", "--jobs", "kill", "--purge")
        self.grid.run("coordinator", "uninstall", "--purge")
        subprocess.run(["systemctl", "kill", "--signal=KILL", AGENT, COORDINATOR], capture_output=True)
        shutil.rmtree("/var/lib/grid", ignore_errors=True)  # the machine is ours
        super().close()


def attacks(level: str, names: list[str]) -> Iterator[dict[str, Any]]:
    """Boot a machine and make the attacks there, under the walls that its service has by default."""
    from tests.systemd.booted import ENVIRONMENT, ROOT, booted, built

    with tempfile.TemporaryDirectory() as base, booted() as machine:
        machine.install(built(Path(base)))
        machine.told("mkdir", "/var/lib/abuse")
        machine.told("cp", "-r", f"{ROOT}/tests", "/var/lib/abuse/tests")
        inside = [f"{ENVIRONMENT}/bin/python", "-m", "tests.abuse.unit", level, *names]
        with machine.begin("env", "--chdir=/var/lib/abuse", *inside) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith('{"attack"'):
                    yield json.loads(line)
                else:
                    print(line.rstrip(), file=sys.stderr)
        if process.returncode != 0:
            yield {"attack": "(the campaign)", "harms": [f"it ended with exit code {process.returncode}"]}


if __name__ == "__main__":
    from tests.abuse.inside import attempts

    attempts(sys.argv[1], sys.argv[2:], kind=UnitArena)
