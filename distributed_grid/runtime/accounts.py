"""The users that the grid's services run as on this machine, as its systemd units say; only root can change those."""

import contextlib
import pwd
import re
from pathlib import Path

AGENT, COORDINATOR = "grid-agent", "grid-coordinator"
"""The services, and the accounts that `install` makes for them."""
UNITS = (Path("/etc/systemd/system"), Path("/run/systemd/system"), Path("/usr/lib/systemd/system"))
_USER = r"(?m)^User=(\S+)"


def service_users(service: str) -> set[int]:
    """The users that this service may run as: its own account, and those that its unit names."""
    named = {service}
    for folder in UNITS:
        for path in (folder / f"{service}.service", *folder.glob(f"{service}.service.d/*.conf")):
            with contextlib.suppress(OSError):
                named |= set(re.findall(_USER, path.read_text(errors="replace")))
    return {uid for name in named if (uid := uid_of(name)) is not None}


def uid_of(name: str) -> int | None:
    """Return the id of a user, who may also be given as a number; None: there is no such user."""
    try:
        return int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def name_of(uid: int) -> str:
    """Return the user's name, or the number if there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
