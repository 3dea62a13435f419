# The commands of this repository. Each creates or repairs .venv first, if needed.
PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.stamp
ARGS   ?=

# Tests and demo start hundreds of processes; without bytecode on disk each compiles all it imports, which takes twice
# the CPU time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-all deep coverage lint format types wheel pipx bench chaos machines abuse fuzz ray slurm newcomer profile docs install clean
.DEFAULT_GOAL := help

help:
	@echo "make demo     the whole grid on this machine, with a job run on borrowed capacity"
	@echo "make test     all tests this machine can run, several at once (pytest's arguments: ARGS='-k name'; one by one: ARGS='-n 0')"
	@echo "make deep     the random tests with forty times as many examples, seeds and states; 20 boosts in turn"
	@echo "make coverage lines and branches that the tests of all rooms reach; less than the floor in pyproject.toml fails"
	@echo "make test-all the tests with each of Python 3.11, 3.12 and 3.13 that is installed"
	@echo "make lint     ruff: rules and format       make format   fix both"
	@echo "make types    mypy --strict, tests too     make wheel    build wheel and sdist into dist/, and install the wheel"
	@echo "make pipx     install the command grid for you, by pipx"
	@echo "make bench    run the benchmarks (ARGS='throughput latency'; ARGS=peers: beside other systems)"
	@echo "make docs     write the generated pages"
	@echo "make profile  CPU by process and function, system calls and syncs a job (ARGS='throughput', 'latency' or 'bulk')"
	@echo "make machines machines of a pool under kill -9, two hundred times (KILLS=200 SEED=1)"
	@echo "make chaos    kill, stop and cut off a real grid under load, and check the result (ARGS='--minutes 20 --seed 1')"
	@echo "make abuse    adversarial load test: attacks by peers and by jobs, under all walls (ARGS='--levels user --no-siege')"
	@echo "make fuzz     a million malformed frames against every reader (ARGS='--frames 1000000 --seed 1')"
	@echo "make ray      all tests of boosts in real Ray clusters, also those that take minutes (ARGS='-k deaths')"
	@echo "make slurm    the lab's EASY backfill beside real Slurm (root, slurmctld, slurmd; ARGS='--trace theta.swf.xz --unit 64')"
	@echo "make newcomer type README and docs as an ordinary user of bare Debians (root, mmdebstrap; ARGS='--suite trixie tour.md')"
	@echo "make clean    remove .venv and everything built"

install: $(STAMP)

$(STAMP): setup.cfg pyproject.toml scripts/venv.sh
	@PYTHON="$(PYTHON)" scripts/venv.sh $(VENV)

demo: $(STAMP)
	@$(PY) scripts/demo.py $(ARGS)

# Ray is large, and nothing but its own tests needs it: where it cannot be had, those are skipped.
$(VENV)/.ray: $(STAMP)
	@$(PY) -m pip install -qq --disable-pip-version-check --editable '.[ray]' && $(PY) scripts/lazy_finder.py && touch $@ || \
	    echo "Ray could not be installed: tests that need it are skipped"

test: $(STAMP) $(VENV)/.ray
	@scripts/system-packages.sh || true
	@scripts/test.sh $(PY) -n auto $(ARGS)

# Only these try more then; all others are what they are in `make test`.
DEEP = $(shell grep -rlE --include='test_*.py' '^from (tests.depth|hypothesis) import' tests)

deep: $(STAMP) $(VENV)/.ray
	@GRID_DEEP=1 $(PY) -m pytest -n logical --timeout 3600 $(DEEP) $(ARGS)

# Whole grids of real processes (tests/e2e, tests/ray, …) would make it several times as long, for a few lines more.
ROOMS := tests/protocol tests/coordinator tests/agent tests/cli tests/config tests/runtime tests/push tests/simulator

# These look at what a bare interpreter loads and does, look often, or fill a disk: being measured is something more.
BARE := tests/cli/test_main.py::test_a_program_loads_nothing_heavy_that_it_may_never_need \
    tests/cli/test_main.py::test_help_imports_nothing_slow_and_no_command \
    tests/agent/walls/test_files.py::test_directories_that_the_job_closed_are_opened_and_removed \
    tests/coordinator/backup/test_archive.py::test_of_a_backup_that_the_disk_did_not_take_nothing_is_left \
    tests/coordinator/backup/test_archive.py::test_of_a_restore_that_the_disk_did_not_take_nothing_is_left_and_what_was_there_is \
    tests/agent/supervisor/test_limits_output.py::test_a_job_that_writes_as_fast_as_it_can_keeps_to_its_share \
    tests/agent/supervisor/test_loop_successors.py::test_of_200_chained_jobs_no_two_are_ever_alive_on_one_core

coverage: $(STAMP)
	@$(PY) -m pytest -n auto --timeout 600 --cov --cov-report term $(BARE:%=--deselect %) $(ROOMS) $(ARGS)

test-all:
	@scripts/test-all.sh

lint: $(STAMP)
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .

format: $(STAMP)
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

types: $(STAMP)
	@scripts/types.sh $(VENV)

wheel: $(STAMP)
	@$(PY) scripts/wheel.py

pipx:
	@scripts/pipx.sh

bench: $(STAMP)
	@$(PY) bench/run.py $(ARGS)

profile: $(STAMP)
	@$(PY) -m bench._profile $(ARGS)

chaos: $(STAMP)
	@GRID_FAULT_MATRIX=all $(PY) -m pytest -q tests/e2e/reliability/test_faults.py \
		tests/agent/supervisor/test_journal_faults.py tests/agent/supervisor/test_loop_successors.py
	@$(PY) -m tests.chaos.campaign $(ARGS)

# Machines of a pool under kill -9, two hundred times: KILLS=N for another number, SEED=N for another course.
machines: $(STAMP)
	@GRID_MACHINE_KILLS=$(or $(KILLS),200) GRID_SEED=$(or $(SEED),1) \
		$(PY) -m pytest -q -s -n 0 --timeout 3600 tests/e2e/machines/test_machines_kills.py

abuse: $(STAMP)
	@$(PY) -m tests.abuse.campaign $(ARGS)

fuzz: $(STAMP)
	@$(PY) -m tests.fuzz.campaign $(ARGS)

# One after another: raylets that start beside other tests take several times as long.
ray: $(STAMP) $(VENV)/.ray
	@GRID_RAY=1 $(PY) -m pytest -q -n 0 -m ray tests/ray tests/systemd/test_boost.py tests/e2e/service/test_tour.py $(ARGS)

# Without ARGS the test: jobs from a seed, and a slice of Theta where GRID_TRACES names the folder with it.
slurm: $(STAMP)
ifeq ($(strip $(ARGS)),)
	@GRID_SLURM=1 $(PY) -m pytest -q -n 0 tests/slurm
else
	@$(PY) -m tests.slurm.campaign $(ARGS)
endif

newcomer: $(STAMP)
	@$(PY) -m tests.newcomer.campaign $(ARGS)

docs: $(STAMP)
	@if [ -f docs/generate.py ]; then $(PY) docs/generate.py; else echo "docs: nothing is generated yet"; fi

clean:
	@rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
