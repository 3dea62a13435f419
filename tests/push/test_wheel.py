"""The wheel that is copied to hosts is what runs here, whichever way it came about."""

import os
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

from distributed_grid import __version__
from distributed_grid.push.wheel import build_of, own_wheel, repack


@pytest.mark.parametrize("name", ["click", "msgspec", "nvidia-ml-py"])
def test_an_installed_package_is_packed_again_as_it_was(name: str, tmp_path: Path) -> None:
    installed = distribution(name)
    path = repack(installed, tmp_path)
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        for file in installed.files or ():
            if file.suffix == ".py":
                assert archive.read(str(file)) == file.read_binary()
        listed = {
            line.split(",")[0]
            for line in archive.read(f"{path.name.split('-')[0]}-{installed.version}.dist-info/RECORD").decode().split()
        }
    assert listed == names
    assert not [one for one in names if one.endswith((".pyc", "INSTALLER", "direct_url.json")) or ".." in one]


def test_a_wheel_that_is_at_hand_is_taken_and_another_version_is_not(tmp_path: Path) -> None:
    for version in ("0.0.1", __version__):
        with zipfile.ZipFile(tmp_path / f"distributed_grid-{version}-py3-none-any.whl", "w") as archive:
            archive.writestr("distributed_grid/x.py", version)
    assert own_wheel(tmp_path / "made", tmp_path).name == f"distributed_grid-{__version__}-py3-none-any.whl"


def test_a_build_is_named_after_what_is_in_it_and_not_after_when_it_was_packed(tmp_path: Path) -> None:
    def wheel(name: str, content: str, year: int) -> Path:
        (folder := tmp_path / name).mkdir()
        with zipfile.ZipFile(path := folder / "x.whl", "w") as archive:
            archive.writestr(zipfile.ZipInfo("distributed_grid/x.py", (year, 1, 1, 0, 0, 0)), content)
            archive.writestr("x.dist-info/RECORD", os.urandom(4).hex())
        return path

    one = build_of(wheel("a", "x = 1", 1990))
    assert one == build_of(wheel("b", "x = 1", 2020))
    assert one != build_of(wheel("c", "x = 2", 1990))
    assert one.startswith(f"{__version__}-")
