#!/bin/bash
# compose-check.sh: starts compose.yaml for real with images built here, runs the demo's task through it, takes it down.
#
# Own project name, own secrets, a free port and an own deployment label: it disturbs no installation beside it.
. "$(dirname "$0")/lib.sh"
cd "$root"

work=$(mktemp -d)
export DOCKER_GID BASE_IMAGE=patchyard-base:latest PATCHYARD_PUBLISH=127.0.0.1: PATCHYARD_SECRETS="$work/secrets"
export PATCHYARD_IMAGE=patchyard:check VALKEY_IMAGE=patchyard-redis:check # not the tags an installation runs from
export PATCHYARD_DEPLOYMENT="compose-check-$$" PATCHYARD_WORKER_HOST=check SANDBOX_IMAGE
DOCKER_GID=$(stat -c %g /var/run/docker.sock)
SANDBOX_IMAGE=$("$root/scripts/sandbox-image.sh" --name)
compose() { .venv/bin/docker-compose --env-file /dev/null -p "patchyard-check-$$" -f "$root/compose.yaml" "$@"; }

finish() {
  local rc=$?
  [ "$rc" = 0 ] || compose logs --no-color --tail 60 >&2 || true
  compose down -v --timeout 40 >/dev/null 2>&1 || true
  "$root/scripts/remove-containers.sh" "$PATCHYARD_DEPLOYMENT"
  rm -rf "$work"
  exit "$rc"
}
trap finish EXIT

"$root/scripts/compose-secrets.sh" "$PATCHYARD_SECRETS"
say "building the images"
compose build --quiet redis api >"$work/build.log" 2>&1 || {
  tail -n 30 "$work/build.log" >&2
  exit 1
}
say "starting"
compose up -d --wait --wait-timeout 120
address=http://$(compose port api 8080)
say "healthy at $address; submitting examples/"
.venv/bin/python "$root/scripts/compose_task.py" "$address" "$PATCHYARD_SECRETS/admin_key"
say "stopping"
compose down -v --timeout 40
left=$(docker ps -aq --filter "label=patchyard.deployment=$PATCHYARD_DEPLOYMENT")
[ -z "$left" ] || die "sandboxes were left behind: $left"
say "compose.yaml holds: started, healthy, a task done, nothing left"
