#!/usr/bin/env bash
# Runs the tests with each Python version that the grid supports and that is here, in an environment of its own.
# Versions that are not here are named. Called by `make test-all`, which hands its ARGS on to `make test`.
set -uo pipefail
cd "$(dirname "$0")/.."

results=()
failed=0
ran=0
for version in 3.11 3.12 3.13; do
    python=python$version
    # pyenv leaves commands on PATH for versions that it does not run, so it is not enough that there is one.
    if ! "$python" -c 'import sys' >/dev/null 2>&1; then
        results+=("Python $version: skipped, there is no $python here")
        continue
    fi
    ran=$((ran + 1))
    echo "Python $version"
    if make --no-print-directory test PYTHON="$python" VENV="build/python$version"; then
        results+=("Python $version: passed")
    else
        results+=("Python $version: FAILED")
        failed=1
    fi
done

printf '%s\n' "${results[@]}"
[ "$ran" -gt 0 ] && [ "$failed" = 0 ]
