#!/bin/bash
# test.sh [PYTEST ARGUMENTS]: the whole suite; afterwards no container of it is left, also when it failed.
. "$(dirname "$0")/lib.sh"
cd "$root"

# Every container a test makes bears this name in its deployment label, so that two runs leave each other alone.
export PATCHYARD_TEST_RUN="test-$$"
trap '"$root/scripts/remove-containers.sh" "$PATCHYARD_TEST_RUN" || true' EXIT
rc=0
.venv/bin/pytest -q -n 2 --dist loadgroup "$@" || rc=$?
exit "$rc"
