"""The wheel of the running grid, which is copied to hosts. It is taken from a folder of wheels, packed again from the
installed package, or built if the grid runs from its source tree."""

import base64
import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import Distribution, distributions
from pathlib import Path
from urllib.parse import unquote, urlsplit

from distributed_grid import __version__, pip
from distributed_grid.protocol.errors import GridError

NAME = "distributed-grid"
HERE_ONLY = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}
"""Files beside the metadata that say how it was installed, and not what it is."""
LEAVE = shutil.ignore_patterns(
    ".*", "build", "dist", "*.egg-info", "__pycache__", "shared", "tests", "docs", "bench", "scripts"
)
EPOCH = (1980, 1, 1, 0, 0, 0)


def own_wheel(folder: Path, wheels: Path | None) -> Path:
    """A wheel of this very version; one that is not in `wheels` is made in `folder`. Raises GridError."""
    if wheels is not None:
        found = sorted(wheels.glob(f"distributed_grid-{__version__}-*.whl"))
        if found:
            return found[-1]
    # A source tree on the path has metadata of a build, which is no installation.
    own = next((one for one in distributions(name=NAME) if one.read_text("RECORD")), None)
    if own is None:
        what = "the grid that runs here is not installed, so there is nothing to copy"
        raise GridError(what, hint="make wheel in its tree, then install dist/distributed_grid-*.whl with pip or pipx")
    source = _source(own)
    return repack(own, folder) if source is None else _build(source, folder)


def build_of(wheel: Path) -> str:
    """Return the version and contents of a wheel as one name: the same for the same contents, whenever it was
    packed."""
    total = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if not name.endswith((".dist-info/RECORD", ".dist-info/WHEEL", "/")):
                total.update(name.encode() + b"\0" + hashlib.sha256(archive.read(name)).digest())
    return f"{__version__}-{total.hexdigest()[:12]}"


def repack(installed: Distribution, folder: Path) -> Path:
    """Make a wheel of an installed package again, of all that its record names but scripts and compiled Python."""
    metadata = (installed.read_text("WHEEL") or "").splitlines()
    tags = [line.removeprefix("Tag: ") for line in metadata if line.startswith("Tag: ")] or ["py3-none-any"]
    name = installed.metadata["Name"].replace("-", "_").replace(".", "_")
    info = f"{name}-{installed.version}.dist-info"
    path = folder / f"{name}-{installed.version}-{_joint(tags)}.whl"
    record = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(installed.files or (), key=str):
            if ".." in file.parts or "__pycache__" in file.parts or file.suffix == ".pyc":
                continue
            inside = str(file)
            if file.parent.name.endswith(".dist-info") and file.name in HERE_ONLY:
                continue
            if file.parts[0].endswith(".dist-info"):
                inside = "/".join((info, *file.parts[1:]))
            content = file.read_binary()
            archive.writestr(zipfile.ZipInfo(inside, EPOCH), content, zipfile.ZIP_DEFLATED)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
            record.append(f"{inside},sha256={digest},{len(content)}")
        record.append(f"{info}/RECORD,,")
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD", EPOCH), "\n".join(record) + "\n")
    return path


def _joint(tags: list[str]) -> str:
    """Return all tags of a wheel in the form of its file name: `py2.py3-none-any`."""
    parts = [tag.split("-") for tag in tags]
    return "-".join(".".join(dict.fromkeys(column)) for column in zip(*parts, strict=True))


def _source(installed: Distribution) -> Path | None:
    """The tree that the grid runs from, where it is installed so that changes there count at once."""
    metadata = json.loads(installed.read_text("direct_url.json") or "{}")
    if not metadata.get("dir_info", {}).get("editable"):
        return None
    return Path(unquote(urlsplit(metadata["url"]).path))


def _build(source: Path, folder: Path) -> Path:
    """Build a wheel from a copy of the source, and return its path: a build leaves folders behind, and would include
    those that an earlier one left."""
    shutil.copytree(source, folder / "tree", ignore=LEAVE)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run(
        [*command, "--no-build-isolation", "--wheel-dir", folder, folder / "tree"], capture_output=True, text=True
    )
    found = sorted(folder.glob("distributed_grid-*.whl"))
    if done.returncode or not found:
        raise GridError(
            f"the grid runs from {source}, and no wheel can be built there",
            why=(done.stderr.strip().splitlines() or ["pip says nothing"])[-1],
            hint=f"{pip.install('setuptools>=80', 'wheel')}; or give a folder with its wheel: --wheels DIR",
        )
    return found[0]
