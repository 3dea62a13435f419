#!/usr/bin/env bash
# Runs pytest (docs/decisions/0027): up to five tests that fail are tried once more, one by one. What passes then is named,
# with what it said at first above: it depends on the machine, and is to be mended.
# Usage: scripts/test.sh PYTHON [ARGUMENT OF PYTEST …]
set -uo pipefail

python=$1
shift
most=5
cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT

"$python" -m pytest -o cache_dir="$cache" "$@"
status=$?
[ "$status" = 1 ] || exit "$status" # 1: tests failed; all else is about the run itself
failed=$("$python" -c 'import json, sys; print(*json.load(open(sys.argv[1])), sep="\n")' "$cache/v/cache/lastfailed") ||
    exit "$status"
count=$(wc -l <<<"$failed")
if [ "$count" -gt "$most" ]; then
    echo "$count tests failed: none is tried again"
    exit 1
fi
echo "$count failed, and will be tried once more, with nothing beside:"
echo "$failed"
"$python" -m pytest -o cache_dir="$cache" "$@" --last-failed --last-failed-no-failures none -n 0 || exit 1
echo "These failed among the others and passed alone (mend them: they depend on how busy the machine is):"
echo "$failed"
