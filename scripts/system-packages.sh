#!/usr/bin/env bash
# Installs the Debian packages that some tests need, where it may; elsewhere it says what is missing and those tests
# skip. With --bootstrap also what `make` itself needs. Nothing to do is the usual case and costs milliseconds.
set -euo pipefail

missing=()
command -v ip >/dev/null || missing+=(iproute2)
command -v taskset >/dev/null || missing+=(util-linux)
command -v linux.uml >/dev/null || [ "$(dpkg --print-architecture 2>/dev/null)" != amd64 ] || missing+=(user-mode-linux)
[ -e /lib/systemd/systemd ] || [ -e /usr/lib/systemd/systemd ] || missing+=(systemd)
command -v dbus-daemon >/dev/null || missing+=(dbus)
command -v ps >/dev/null || missing+=(procps)
# A Python that every user can run, for the jobs of tests/abuse.
[ -x /usr/bin/python3 ] || missing+=(python3-minimal)
command -v sshd >/dev/null || [ -x /usr/sbin/sshd ] || missing+=(openssh-server)
# Clusters and containers for tests/coordinator/providers; daemons of theirs are started by the tests alone.
for program in munged:munge slurmctld:slurmctld slurmd:slurmd sbatch:slurm-client podman:podman runc:runc; do
    command -v "${program%%:*}" >/dev/null || [ -x "/usr/sbin/${program%%:*}" ] || missing+=("${program#*:}")
done
if [ "${1:-}" = --bootstrap ]; then
    command -v make >/dev/null || missing+=(make)
    python3 -c 'import ensurepip, venv' >/dev/null 2>&1 || missing+=(python3-venv)
fi
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "Installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}"; } >/dev/null
else
    echo "Not installed: ${missing[*]}; tests that need them are skipped. To have them:"
    echo "    sudo apt-get install -y ${missing[*]}"
fi
