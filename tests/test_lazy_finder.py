"""`scripts/lazy_finder.py`: our packages are found, and what finds them is imported then and not before."""

import runpy
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts/lazy_finder.py"
FINDER = """
import sys
from importlib.util import spec_from_file_location
from pathlib import Path

class _EditableFinder:
    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        if fullname == "distributed_grid.ours":
            return spec_from_file_location(fullname, Path(__file__).with_name("somewhere.py"))
        if fullname == "distributed_grid":
            return spec_from_file_location(fullname, Path(__file__).with_name("top.py"), submodule_search_locations=[])

def install():
    sys.meta_path.append(_EditableFinder)
"""
LOOKS = """
import site, sys
site.addsitedir(sys.argv[1])
print("finder" in sys.modules, "pathlib" in sys.modules)
try:
    import nobodys
except ImportError:
    print("finder" in sys.modules)
import distributed_grid.ours
print(distributed_grid.ours.NAME, "finder" in sys.modules)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Site-packages as `pip install --editable` leaves them."""
    (tmp_path / "__editable__.distributed_grid-0.1.0.pth").write_text("import finder; finder.install()")
    (tmp_path / "finder.py").write_text(FINDER)
    (tmp_path / "top.py").write_text("")
    (tmp_path / "somewhere.py").write_text("NAME = 'found'")
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    return tmp_path


def looks(folder: Path) -> list[str]:
    command = [sys.executable, "-I", "-S", "-c", LOOKS, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_what_finds_our_packages_is_imported_only_where_one_is(folder: Path) -> None:
    assert looks(folder) == ["True True", "True", "found True"]
    for _ in range(2):  # again it changes nothing
        runpy.run_path(str(SCRIPT), run_name="__main__")
        assert looks(folder) == ["False False", "False", "found True"]


def test_what_setuptools_does_otherwise_stays_as_it_is(folder: Path) -> None:
    (path := folder / "__editable__.distributed_grid-0.1.0.pth").write_text("/somewhere/src\n")
    runpy.run_path(str(SCRIPT), run_name="__main__")
    assert path.read_text() == "/somewhere/src\n"
