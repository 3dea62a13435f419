"""The bare Debians that newcomers start from: made once by mmdebstrap and kept in the user's cache directory.

Each has Python, sudo, systemd and an ordinary user `ann`, and neither make nor a compiler nor anything of the grid.
What a newcomer installs there comes from files that lie in it: packages of Debian and of Python, fetched while it is
made. So a machine that boots it needs no network.
"""

import configparser
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
SUITES = ("bookworm", "trixie")
"""Debian 12 with Python 3.11, Debian 13 with Python 3.13."""
INCLUDED = "python3,sudo,passwd,login,ca-certificates,systemd,systemd-sysv,libpam-systemd,dbus,dbus-user-session,procps"
ON_REQUEST = ("make", "python3-venv", "pipx")
"""Packages of Debian that the pages tell newcomers to install."""
EXTRAS = ("dev", "ssh")
WHEELS = "/var/cache/wheels"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
AUTHORITIES = "/run/authorities.crt"
SECONDS = 1200.0


def lacking() -> str:
    """What this machine lacks to make such a root; empty: nothing."""
    if os.geteuid() != 0:
        return "needs to be root"
    if shutil.which("mmdebstrap") is None:
        return "needs mmdebstrap (Debian: apt-get install mmdebstrap)"
    return ""


def cache() -> Path:
    """Where the roots are kept between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "distributed-grid" / "newcomer"


def requirements() -> list[str]:
    """All packages of Python that somebody needs to install the grid, or to build and test it."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    sections = [config["options"]["install_requires"]]
    sections += [config["options.extras_require"][extra] for extra in EXTRAS]
    found = {line.strip() for section in sections for line in section.splitlines()}
    return sorted(line for line in found if line and not line.startswith("#")) + ["pip", "setuptools>=80", "wheel"]


def recipe() -> str:
    """Changes with whatever goes into a root."""
    said = Path(__file__).read_text() + "\n".join(requirements())
    return hashlib.sha256(said.encode()).hexdigest()


def made(suite: str) -> Path:
    """The root of this suite, which is made if it is not there yet. Raises subprocess.CalledProcessError."""
    home = cache() / suite
    mark = cache() / f"{suite}.recipe"
    if home.is_dir() and mark.exists() and mark.read_text() == recipe():
        return home
    mark.unlink(missing_ok=True)
    _remove(home)
    fresh = home.with_name(f"{suite}.new")
    _remove(fresh)
    fresh.parent.mkdir(parents=True, exist_ok=True)
    try:
        _run("mmdebstrap", "--variant=apt", f"--include={INCLUDED}", suite, str(fresh))
        _furnish(fresh)
        fresh.rename(home)
    except BaseException:
        _remove(fresh)
        raise
    mark.write_text(recipe())
    return home


def _furnish(root: Path) -> None:
    """The user, and the packages that she will ask for."""
    _in(root, "useradd", "--create-home", "--shell", "/bin/bash", "ann")
    (root / "etc/sudoers.d/ann").write_text("ann ALL=(ALL) NOPASSWD: ALL\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost lab1 master.example.org\n")
    (root / "etc/hostname").write_text("lab1\n")
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    _in(root, "apt-get", "-qq", "update")
    _in(root, "apt-get", "-qq", "install", "--yes", "--download-only", *ON_REQUEST)
    wheels = root / WHEELS[1:]
    wheels.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        fetch = [sys.executable, "-m", "pip", "--quiet", "download", "--no-deps", "--dest", scratch, "pip"]
        _run(*fetch)
        (wheel,) = Path(scratch).iterdir()
        shutil.copy(wheel, wheels)
    options = ["--quiet", "--no-cache-dir", "--only-binary=:all:", "--dest", WHEELS]
    trusted = []
    if CERTIFICATES.exists():  # where a proxy signs what comes, this machine knows it and a bare root does not
        shutil.copy(CERTIFICATES, root / AUTHORITIES[1:])
        trusted = [f"--cert={AUTHORITIES}"]
    pip = ["python3", f"{WHEELS}/{wheel.name}/pip", *trusted]
    _in(root, *pip, "download", *options, *requirements())
    (root / AUTHORITIES[1:]).unlink(missing_ok=True)
    (root / "etc/pip.conf").write_text(f"[global]\nno-index = true\nfind-links = {WHEELS}\n")


def _in(root: Path, *argv: str) -> None:
    kept = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "HOME": "/root"}
    enter = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "chroot", str(root)]
    _run(*enter, *argv, environment=kept)


def _run(*argv: str, environment: dict[str, str] | None = None) -> None:
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, env=environment, timeout=SECONDS)


def _remove(root: Path) -> None:
    if root.exists():
        shutil.rmtree(root)


if __name__ == "__main__":
    for name in sys.argv[1:] or SUITES:
        print(made(name))
