"""The commands that install missing packages, for hints.

No hint names this project on a package index: it is on none, and whoever registered its name there would run code on
the machines of those who follow the hint (docs/releasing.md). Other packages are named as in setup.cfg.
"""

import shlex
import sys

EXTRAS: dict[str, tuple[str, ...]] = {
    "ray": ("ray>=2.57",),
    "gputil": ("GPUtil>=1.4", "setuptools"),
    "ssh": ("asyncssh>=2.21",),
    "aws": ("boto3>=1.40",),
    "gcp": ("google-auth>=2.40", "requests>=2.32"),
    "docker": ("docker>=7.1",),
}
"""What each extra of setup.cfg needs."""


def install(*packages: str) -> str:
    """The command that installs these into the environment of the interpreter that runs here."""
    return shlex.join([sys.executable, "-m", "pip", "install", *packages])
