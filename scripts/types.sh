#!/usr/bin/env bash
# Runs mypy over sources, tests and benchmarks. It knows packages by their folders, and ours lie elsewhere than their
# names say: so links show it the tree as it is installed.
set -euo pipefail

venv=${1:-.venv}
root=$PWD
tree=build/types/distributed_grid

mkdir -p "$tree"
find "$tree" -maxdepth 1 -xtype l -delete # links to what was renamed or removed
for entry in "$root"/distributed_grid/*; do
    [ "${entry##*/}" = __pycache__ ] || ln -sfn "$entry" "$tree/${entry##*/}"
done
for room in protocol coordinator agent cli simulator systemd; do
    ln -sfn "$root/$room" "$tree/$room"
done

for room in tests bench examples; do
    ln -sfn "$root/$room" "build/types/$room"
done

mypy=("$root/$venv/bin/python" -m mypy --config-file "$root/pyproject.toml" --cache-dir "$root/.mypy_cache")
(cd build/types && MYPYPATH="$PWD" "${mypy[@]}" -p distributed_grid -p tests -p bench -p examples)
# Programs that run alone, and find each other in the folder where they lie.
(cd tests/abuse/jobs && MYPYPATH="$PWD" "${mypy[@]}" -- *.py)
