#!/bin/bash
# clean.sh: removes the virtual environment, our images and the tests' containers; data and the engine stay.
. "$(dirname "$0")/lib.sh"
cd "$root"

if command -v docker >/dev/null && docker version >/dev/null 2>&1; then
  "$root/scripts/remove-containers.sh" test-
  docker images -q --filter reference=patchyard-sandbox --filter reference=patchyard-base \
    --filter reference=patchyard --filter reference=patchyard-redis | sort -u |
    xargs -r docker rmi -f >/dev/null || say "what is still in use stays"
fi
rm -rf .venv dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
[ ! -d .patchyard ] || find .patchyard -mindepth 1 -maxdepth 1 -not -name data -exec rm -rf {} +
find . -name __pycache__ -type d -prune -exec rm -rf {} +
