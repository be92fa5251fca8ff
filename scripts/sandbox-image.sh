#!/bin/bash
# sandbox-image.sh [--name]: builds the image of every sandbox, or says which one belongs to this checkout.
#
# Its tag is a hash of all it is made of (sandbox_image/, the base image, SANDBOX_PACKAGES), so that it is built
# once per content, and two checkouts on one engine never test each other's; `latest` is the one built last.
. "$(dirname "$0")/lib.sh"

packages=${SANDBOX_PACKAGES:-} # more Debian packages, e.g. "nodejs npm build-essential"
base=$(docker image inspect --format '{{.Id}}' patchyard-base:latest 2>/dev/null) ||
  die "there is no base image yet: run 'make setup'"
content=$(
  cd "$root/sandbox_image"
  {
    find . -type f -not -path '*/__pycache__/*' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum
    printf '%s\n' "$base" "$packages"
  } | sha256sum
)
name=patchyard-sandbox:${content:0:12}

if [ "${1:-}" = --name ]; then
  echo "$name"
  exit 0
fi
locked
if ! docker image inspect "$name" >/dev/null 2>&1; then
  say "building the sandbox image $name"
  mkdir -p "$state"
  docker build -q --build-arg BASE_IMAGE=patchyard-base:latest \
    --build-arg EXTRA_PACKAGES="$packages" -t "$name" "$root/sandbox_image" \
    </dev/null >"$state/sandbox-image.log" 2>&1 9>&- || {
    tail -n 20 "$state/sandbox-image.log" >&2
    die "the sandbox image did not build; its output is in $state/sandbox-image.log"
  }
fi
docker tag "$name" patchyard-sandbox:latest
