"""What a user gets: the wheel is built, installed into an empty environment and used from an empty folder."""

import configparser
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("distributed_grid", "protocol", "coordinator", "agent", "cli", "systemd")
BARE = {"agent", "bench", "cli", "coordinator", "core", "docs", "protocol", "scripts", "systemd", "tests"}


def site_packages(home: Path) -> Path:
    (found,) = (home / "lib").glob("python3.*/site-packages")
    return found


def test_the_installed_grid_says_its_version_from_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    done = subprocess.run([installed / "bin" / "grid", "--version"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "grid 0.1.0\n", "")


def test_a_whole_grid_runs_from_the_wheel_alone(installed: Path, tmp_path: Path) -> None:
    """Services, schema and stand-in GPUs are found without the tree they were built from."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GRID_", "PYTHON"))}
    environment |= {name: str(tmp_path / name) for name in ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME")}
    empty, home = tmp_path / "empty", tmp_path / "dev"
    empty.mkdir()

    def grid(*words: str) -> tuple[int, str, str]:
        command = [str(installed / "bin" / "grid"), *words]
        done = subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout, done.stderr

    try:
        up = ("dev", "up", "--nodes", "1", "--fake-gpus", "1", "--cpu-percent-max", "100")
        code, url, complaints = grid("-o", "quiet", *up, "--dir", str(home))
        assert (code, complaints) == (0, "")
        environment["GRID_COORDINATOR"] = url.strip()
        code, told, complaints = grid(
            "run-shared", "-t", "gpu", "-a", "1", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; exit 7"
        )
        assert (code, complaints) == (7, "")
        assert told.startswith("GPU-5a4d0000-")
    finally:
        code, _, _ = grid("dev", "down", "--dir", str(home))
    assert code == 0
    assert list(empty.iterdir()) == []


def test_an_index_could_show_the_descriptions_of_wheel_and_source_archive(wheel: Path, tmp_path: Path) -> None:
    tree = wheel.parents[1] / "tree"  # what it was built from
    build = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(tmp_path), str(tree)]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (archive,) = tmp_path.iterdir()
    check = [sys.executable, "-m", "twine", "--no-color", "check", "--strict", str(wheel), str(archive)]
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("PASSED") == 2, done.stdout + done.stderr


def test_nothing_but_our_own_name_lands_in_site_packages(installed: Path) -> None:
    names = {entry.name.split(".")[0].split("-")[0] for entry in site_packages(installed).iterdir()}
    assert "distributed_grid" in names
    assert not names & BARE
    assert names <= {"distributed_grid", "dependencies", "__pycache__"}


def test_every_file_of_the_rooms_is_in_the_wheel(installed: Path) -> None:
    there = site_packages(installed) / "distributed_grid"
    missing = []
    for room in ROOMS:
        for file in (ROOT / room).rglob("*"):
            if file.is_dir() or "__pycache__" in file.parts or file.suffix == ".pyc":
                continue
            inside = file.relative_to(ROOT if room != "distributed_grid" else ROOT / room)
            if not (there / inside).is_file():
                missing.append(str(file.relative_to(ROOT)))
    assert not missing, f"not shipped (setup.cfg: packages, package_dir, package_data): {missing}"


def test_every_listed_package_is_mapped_to_a_folder_with_an_init_file() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    packages = config["options"]["packages"].split()
    mapped = dict(line.split(" = ") for line in config["options"]["package_dir"].strip().splitlines())
    assert sorted(packages) == sorted(mapped)
    assert [folder for folder in mapped.values() if not (ROOT / folder / "__init__.py").is_file()] == []


def test_poetry_runs_what_is_installed_as_the_guides_write_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["poetry"] == {"package-mode": False}, "else `poetry run` asks for a name and a version"
    poetry = shutil.which("poetry")
    if poetry is None:
        return
    done = subprocess.run([poetry, "run", "grid", "--version"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "grid 0.1.0\n"), done.stderr
