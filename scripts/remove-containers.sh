#!/bin/bash
# remove-containers.sh PREFIX: removes the containers whose deployment label begins with PREFIX.
. "$(dirname "$0")/lib.sh"

prefix=${1:?a prefix of the deployment label}
docker ps -a --filter label=patchyard.deployment --format '{{.ID}} {{.Label "patchyard.deployment"}}' 2>/dev/null |
  while read -r id deployment; do
    if [[ $deployment == "$prefix"* ]]; then echo "$id"; fi
  done | xargs -r timeout 60 docker rm -f -v >/dev/null
