"""`grid simulate` runs seeds and refuses faults that there are not."""

import json

from click.testing import CliRunner

from distributed_grid.cli.main import main


def test_a_seed_is_simulated_and_summed_up() -> None:
    done = CliRunner().invoke(main, ["simulate", "--seed", "3", "--nodes", "3", "--events", "20", "-o", "json"])
    told = json.loads(done.stdout)
    assert (done.exit_code, told["seeds"], told["violations"]) == (0, 1, []) and told["events"] >= 20


def test_an_unknown_fault_is_refused_with_those_there_are() -> None:
    done = CliRunner().invoke(main, ["simulate", "--without", "earthquake"])
    assert done.exit_code == 2 and "earthquake" in done.stderr and "reboot" in done.stderr
