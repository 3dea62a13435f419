#!/usr/bin/env bash
# Builds the wheel and installs it with pipx: the command grid, for the user who calls this.
set -euo pipefail

if ! command -v pipx >/dev/null; then
    sudo="sudo "
    [ "$(id -u)" != 0 ] || sudo=
    echo "pipx is not here. Install it, then run make pipx again:" >&2
    echo "    ${sudo}apt-get install -y pipx" >&2
    echo "or, without pipx, into an environment of your own:" >&2
    echo "    make wheel && python3 -m venv ~/grid && ~/grid/bin/pip install dist/distributed_grid-*.whl" >&2
    exit 1
fi
make --no-print-directory wheel
pipx install --force dist/distributed_grid-*.whl
if ! command -v grid >/dev/null; then
    echo "The command grid is found after the next login, or in this shell after: . ~/.profile"
fi
echo "Next: grid dev up, then docs/tour.md"
