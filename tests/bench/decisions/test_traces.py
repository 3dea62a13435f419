"""The made trace is what it is called, and all of it runs."""

import json

import pytest

from bench.decisions import traces


def test_the_made_trace_asks_for_most_of_its_machines_and_is_always_the_same() -> None:
    work = traces.made(2_000, 30)
    asked = sum(job.duration * job.resources.cpu for job in work.jobs)
    cores = 1000 * sum(machine.cores for machine in work.machines)
    assert 0.9 < asked / cores / work.jobs[-1].submit < 1.0
    assert work.jobs == sorted(work.jobs, key=lambda job: job.submit)
    assert all(job.requested >= job.duration for job in work.jobs)
    assert work == traces.made(2_000, 30)


def test_a_run_says_what_a_job_costs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("GRID_TRACES", raising=False)
    monkeypatch.setattr("sys.argv", ["traces", "--jobs", "100", "--machines", "3"])
    traces.main()
    out, err = capsys.readouterr()
    found = json.loads(out)["made"]
    assert (found["jobs"], found["machines"]) == (100, 3) and found["ms_a_job"] > 0
    assert "the real ones are not here" in err
