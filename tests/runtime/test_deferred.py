"""Modules that are loaded when something first uses them."""

import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

from distributed_grid.runtime.deferred import defer


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package `late_room` with a module `late` that counts in a file how often it is run."""
    room = tmp_path / "late_room"
    room.mkdir()
    (room / "__init__.py").touch()
    (room / "late.py").write_text(
        f"with open({str(tmp_path / 'runs')!r}, 'a') as file:\n    file.write('x')\nvalue = 7\n"
    )
    (tmp_path / "runs").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "late_room.late"
    for name in ("late_room.late", "late_room"):
        sys.modules.pop(name, None)


def test_a_deferred_module_runs_once_at_the_first_use_of_a_name_in_it(package: str, tmp_path: Path) -> None:
    defer(package)
    import late_room.late  # type: ignore[import-not-found]

    assert (tmp_path / "runs").read_text() == ""
    assert late_room.late.value == 7
    from late_room.late import value

    assert (value, (tmp_path / "runs").read_text()) == (7, "x")
    assert late_room.late.__spec__.loader is late_room.late.__loader__
    assert isinstance(late_room.late.__loader__, SourceFileLoader)
    assert late_room.late.__file__ == str(tmp_path / "late_room" / "late.py")


def test_a_name_that_a_deferred_module_lacks_is_an_attribute_error(package: str, tmp_path: Path) -> None:
    defer(package)
    import late_room.late

    for _ in range(2):
        with pytest.raises(AttributeError, match="module 'late_room.late' has no attribute 'nothing'"):
            late_room.late.nothing  # noqa: B018
    assert (tmp_path / "runs").read_text() == "x"


def test_a_module_that_is_loaded_or_does_not_exist_is_left_alone(package: str) -> None:
    import late_room.late

    there = sys.modules[package]
    defer(package, "late_room.nowhere")
    assert sys.modules[package] is there is late_room.late
    with pytest.raises(ModuleNotFoundError, match="No module named 'late_room.nowhere'"):
        import late_room.nowhere  # type: ignore[import-not-found]  # noqa: F401


def test_threads_that_use_it_at_once_run_it_once_and_see_all_of_it(package: str, tmp_path: Path) -> None:
    (tmp_path / "late_room" / "late.py").write_text(
        f"with open({str(tmp_path / 'runs')!r}, 'a') as file:\n    file.write('x')\nready.wait(5)\nvalue = 7\n"
    )
    defer(package)
    import late_room.late

    late_room.late.__dict__["ready"] = ready = threading.Event()
    with ThreadPoolExecutor() as pool:
        seen = [pool.submit(lambda: late_room.late.value) for _ in range(2)]
        while not (tmp_path / "runs").read_text():
            time.sleep(0.001)
        assert not any(one.done() for one in seen)
        ready.set()
        assert [one.result() for one in seen] == [7, 7]
    assert (tmp_path / "runs").read_text() == "x"
