#!/bin/bash
# compose-secrets.sh [DIRECTORY]: writes the secrets compose.yaml wants, each once; what is there is kept.
#
# The directory is closed to others (0700) and the files are not (0644): outside Swarm compose mounts them with
# the owner and mode they have here, and the containers run as users that do not exist on this host.
. "$(dirname "$0")/lib.sh"

dir=${1:-$root/secrets}
install -d -m 0700 "$dir"
random() { head -c "$1" /dev/urandom; }
put() {
  [ -e "$dir/$1" ] && return
  printf '%s' "$2" >"$dir/$1"
  chmod 0644 "$dir/$1"
}
put redis_password "$(random 32 | sha256sum | cut -c1-64)"
put redis_url "redis://:$(cat "$dir/redis_password")@redis:6379/0"
put seal_key "$(random 32 | base64 -w0)"
put admin_key "pyd_$(random 32 | base64 -w0 | tr -d '=' | tr '+/' '-_')"
put openai_api_key "${OPENAI_API_KEY:-}"
say "secrets are in $dir; the admin key is in admin_key, a model key goes into openai_api_key"
