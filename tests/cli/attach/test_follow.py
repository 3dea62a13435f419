"""`grid logs` and `grid attach` in this process: what is printed, and the exit code."""

from pathlib import Path
from typing import Any

import pytest

from distributed_grid.cli.context import client
from distributed_grid.cli.main import main
from distributed_grid.coordinator.client.submission import describe_hold
from tests.cli.attach.test_attached import ENDED, grid_aside
from tests.coordinator.client.test_aio import ends_with


def test_logs_prints_what_there_is_and_attach_ends_as_the_job_did(tmp_path: Path, capfdbinary: Any) -> None:
    with grid_aside(tmp_path, runs=ends_with(ENDED)) as url:
        with client(url) as grid:
            grid.wait(grid.submit("make"))
        for words, code, told in ((["logs", "--stdout"], 0, (b"out\n", b"")), (["attach"], 7, (b"out\n", b"err\n"))):
            with pytest.raises(SystemExit) as end:
                main.main(["--coordinator", url, *words, "last"], standalone_mode=False)
            assert end.value.code == code and capfdbinary.readouterr() == told


@pytest.mark.parametrize("words", [["logs"], ["logs", "-f"], ["attach"]])
def test_of_a_hold_it_is_said_that_it_has_no_output(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], words: list[str]
) -> None:
    with grid_aside(tmp_path) as url:
        with client(url) as grid:
            (hold,) = grid.submit_many([describe_hold(cpus=1, duration="5m", name="evening", immediate=False)])
        assert main.main(["--coordinator", url, *words, "evening"], standalone_mode=False) == 2
        assert capfd.readouterr().err.startswith(f"error: {hold} is a hold and has no output\n")
