"""The script that a machine of a cloud runs when it boots: it makes the machine a node of the grid, and ensures that it
shuts down by itself whatever happens. Root on a machine with systemd runs it, at every boot.

Until the machine's own program (agent/machine.py) runs, a shutdown is scheduled after `join_within`. systemd shuts the
machine down when that program has ended, however it ended (also after a reboot), and at the end of the machine's
maximum lifetime. The program runs as an ordinary user, and needs no right to shut down.
"""

import base64
import os
import re
import time
from typing import Any

import msgspec

from distributed_grid.coordinator.core.scaling.state import Answer
from distributed_grid.coordinator.providers.base import ProviderRefused, WorkerSpec, machine_json

FOLDER = "/var/lib/grid-machine"
USER = "grid-agent"
_VARIABLE = re.compile(r"^\$\{([A-Za-z_][A-Za-z0-9_]*)\}$")

_SCRIPT = """\
#!/bin/sh
# Distributed Grid: machine {name} of pool {pool}
set -eu
over() {{
    code=$?
    [ "$code" = 0 ] && return
    echo "grid: this machine cannot be set up (code $code), and shuts down" >&2
    systemctl poweroff || poweroff -f
}}
trap over EXIT
left=$(( {ends_by:.0f} - $(date +%s) ))
[ "$left" -gt 0 ] || [ ! -e {folder}/ready ] || exit 75
first=$(( {join_within:.0f} / 60 + 1 ))
systemctl stop grid-machine-setup.timer 2>/dev/null || true
systemd-run --unit=grid-machine-setup --on-active="${{first}}min" /bin/systemctl --no-block poweroff
id -u {user} >/dev/null 2>&1 || useradd --system --user-group --home-dir {folder} --shell /usr/sbin/nologin {user}
install -d -o {user} -g {user} -m 711 {folder}
{install}python=
for one in {pythons}; do
    if [ -x "$one" ] && "$one" -c 'import distributed_grid.agent.machine' 2>/dev/null; then python=$one; break; fi
done
[ -n "$python" ] || {{ echo "grid: no Python here has distributed_grid" >&2; exit 69; }}
umask 077
echo {machine} | base64 -d >{folder}/machine.json
if [ ! -e {folder}/agent/identity ] && [ ! -e {folder}/ended ]; then
    echo {invitation} | base64 -d >{folder}/invitation
    [ -s {folder}/invitation ] || rm {folder}/invitation
fi
chown {user}:{user} {folder}/machine.json
[ ! -e {folder}/invitation ] || chown {user}:{user} {folder}/invitation
umask 022
cat >/etc/systemd/system/grid-machine.service <<EOF
[Unit]
Description=Distributed Grid machine {name}
After=network-online.target
Wants=network-online.target
[Service]
User={user}
ExecStart=$python -m distributed_grid.agent.machine {folder}
ExecStopPost=+/bin/systemctl --no-block poweroff
KillMode=mixed
TimeoutStopSec=30
Delegate=yes
NoNewPrivileges=yes
LimitNOFILE=65536
OOMScoreAdjust=-900
[Install]
WantedBy=multi-user.target
EOF
cat >/etc/systemd/system/grid-machine-over.service <<EOF
[Unit]
Description=The life of Distributed Grid machine {name} is over
[Service]
Type=oneshot
ExecStart=/bin/systemctl --no-block poweroff
EOF
cat >/etc/systemd/system/grid-machine-over.timer <<EOF
[Unit]
Description=The end of the life of Distributed Grid machine {name}
[Timer]
OnCalendar={ends} UTC
{longest}AccuracySec=1s
[Install]
WantedBy=timers.target
EOF
systemctl daemon-reload
systemctl enable --now grid-machine-over.timer
systemctl enable grid-machine.service
systemctl start --no-block grid-machine.service
systemctl stop grid-machine-setup.timer
"""
_PYTHONS = """"$(sed -n '1s/^#!//p' "$(command -v grid || echo /dev/null)")" /usr/local/bin/python3 /usr/bin/python3"""
# The life's end is a minute after what the machine's own program takes for it, so that jobs end as they are used to.
_LATER = 60.0


def startup_script(spec: WorkerSpec, most: int, metadata: str, handle: str = "") -> str:
    """The script of this machine; the same for the same machine. `most`: bytes that its provider takes. `metadata`:
    whose service tells the machine about itself, and of a spot machine that it is taken back. `handle`: what its
    provider will call it, where that is known before. Raises ProviderRefused."""
    python = str(spec.options.get("python", ""))
    install = str(spec.options.get("install", ""))
    # All of it is for the grid.
    told = {**machine_json(spec), "cores": 0, "memory": 0, "handle": handle, "metadata": metadata, "spot": spec.spot}
    if "\n" in python or any(char in python for char in " '\"$`;&|<>\\"):
        raise ProviderRefused(Answer.REFUSED, f"options.python of pool {spec.pool} is not the path of a program")
    script = _SCRIPT.format(
        name=spec.name,
        pool=spec.pool,
        ends_by=spec.ends_by,
        join_within=spec.join_within,
        user=USER,
        folder=FOLDER,
        pythons=python or _PYTHONS,
        install=f"echo {_packed(install.encode())} | base64 -d | sh -eu\n" if install else "",
        machine=_packed(msgspec.json.encode(told)),
        invitation=_packed(f"{spec.invitation}\n".encode() if spec.invitation else b""),
        longest=f"OnActiveSec={spec.ends_by - spec.born + _LATER:.0f}\n" if spec.born else "",
        ends=time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(spec.ends_by + _LATER)),
    )
    if len(script.encode()) > most:
        why = f"what machine {spec.name} is told takes {len(script.encode())} bytes, and its provider takes {most}"
        raise ProviderRefused(
            Answer.REFUSED, f"{why}: give pool {spec.pool} fewer labels, or a shorter options.install"
        )
    return script


def _packed(data: bytes) -> str:
    return base64.b64encode(data).decode() or "''"


def secret(settings: dict[str, Any], name: str, where: str) -> str:
    """A secret that the configuration names as `${NAME}`, a variable of this process; empty: it names none. Raises
    ProviderRefused."""
    text = str(settings.get(name) or "")
    if not text:
        return ""
    found = _VARIABLE.match(text)
    if found is None:
        raise ProviderRefused(Answer.CREDENTIALS, f"{where}.{name} is not ${{NAME}}: secrets stand in no file")
    value = os.environ.get(found[1], "")
    if not value:
        why = f"{where}.{name} is {text}, and the coordinator's environment has no variable {found[1]}"
        raise ProviderRefused(Answer.CREDENTIALS, why)
    return value
