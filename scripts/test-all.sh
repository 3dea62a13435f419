#!/usr/bin/env bash
# Runs the tests with each Python version that the grid supports and that is here, in an environment of its own.
# Versions that are not here are named. Called by `make test-all`, which hands its ARGS on to `make test`.
set -uo pipefail
cd "$(dirname "$0")/.."

runs() { "$1" -c 'import sys' >/dev/null 2>&1; }

# The command for a version, on PATH or among pyenv's; fails where there is none. pyenv leaves commands on PATH for
# versions that it does not run now, so it is not enough that there is one.
python_of() {
    local installed
    if runs "python$1"; then
        echo "python$1"
    elif installed=$(pyenv prefix "$1" 2>/dev/null) && runs "$installed/bin/python"; then
        echo "$installed/bin/python"
    else
        return 1
    fi
}

results=()
failed=0
ran=0
for version in 3.11 3.12 3.13; do
    if ! python=$(python_of "$version"); then
        results+=("Python $version: skipped, there is none here")
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
