#!/usr/bin/env bash
# Makes the virtual environment that every make target uses, or repairs one that was left half-made.
set -euo pipefail

venv=${1:-.venv}
python=${PYTHON:-python3}

if ! command -v "$python" >/dev/null; then
    echo "There is no '$python' here. The grid needs Python 3.11 or newer: make PYTHON=/path/to/python3" >&2
    exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "The grid needs Python 3.11 or newer; '$python' is $("$python" -V 2>&1). Name another: make PYTHON=python3.11" >&2
    exit 1
fi

works() { "$venv/bin/python" -m pip --version >/dev/null 2>&1; }
say_what_to_install() {
    local sudo="sudo "
    [ "$(id -u)" != 0 ] || sudo=
    echo "    ${sudo}apt-get install -y python3-venv make" >&2
}

# Asked first, so that nothing is made where it cannot be finished.
if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1 && ! works; then
    if [ -e "$venv" ]; then
        echo "$venv is only half made: it is removed." >&2
        rm -rf "$venv"
    fi
    echo "This Python cannot make virtual environments. Install what it lacks, then run make again:" >&2
    say_what_to_install
    exit 1
fi

mkdir -p build
# Two makes at once in one tree take turns; the second finds the work done.
if command -v flock >/dev/null; then
    exec 9>build/venv.lock
    flock 9
fi
if [ -e "$venv/.stamp" ] && [ "$venv/.stamp" -nt setup.cfg ] && [ "$venv/.stamp" -nt pyproject.toml ] \
    && [ "$venv/.stamp" -nt scripts/venv.sh ]; then
    exit 0
fi

# Debian without python3-venv leaves a folder behind that looks like an environment and has no pip.
if [ -e "$venv" ] && ! works; then
    echo "$venv is only half made: it is removed and made again." >&2
    rm -rf "$venv"
fi
if [ ! -e "$venv" ]; then
    echo "Making $venv"
    if ! "$python" -m venv "$venv" >build/venv.log 2>&1; then
        cat build/venv.log >&2
        rm -rf "$venv"
        echo "Install what is missing, then run make again:" >&2
        say_what_to_install
        exit 1
    fi
fi

echo "Installing the grid and its tools into $venv"
"$venv/bin/python" -m pip install -qq --disable-pip-version-check --editable '.[dev]'
"$venv/bin/python" scripts/lazy_finder.py
touch "$venv/.stamp"
