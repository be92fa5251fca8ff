#!/bin/bash
# engine.sh: makes sure a Docker engine answers; starts Debian's where none does and we may.
#
# A started engine outlives this command and holds none of its descriptors. An engine that answers is never
# touched, and one that was told by DOCKER_HOST is never replaced: a second dockerd beside a running one
# deletes the first one's bridge.
. "$(dirname "$0")/lib.sh"

socket=/var/run/docker.sock
home=/var/lib/patchyard-engine
pidfile=$home/dockerd.pid
log=$home/dockerd.log

answers() { command -v docker >/dev/null && timeout 10 docker version --format '{{.Server.Version}}' 2>/dev/null; }

# Whether the process of a pid file is a living one of that name; after a crash the number may be another's.
alive() {
  local pid
  pid=$(cat "$1" 2>/dev/null) && grep -qE '^[0-9]+ \((dockerd|containerd)\) [^ZX]' "/proc/$pid/stat" 2>/dev/null
}

if version=$(answers); then
  exit 0
fi
if [ -n "${DOCKER_HOST:-}" ] && [ "$DOCKER_HOST" != "unix://$socket" ]; then
  die "no Docker engine answers at DOCKER_HOST=$DOCKER_HOST"
fi
if [ -S "$socket" ] && [ ! -w "$socket" ]; then
  die "you may not use Docker: add yourself to its group with 'sudo usermod -aG docker $(id -un)' and log in again"
fi
[ "$(id -u)" = 0 ] || die "no Docker engine answers: start one with 'sudo systemctl start docker' (Debian: package docker.io)"

mkdir -p "$home"
exec 8>"$home/lock"
flock -w 90 8 || die "another start of the engine hangs; see $log"
if version=$(answers); then
  exit 0
fi
command -v dockerd >/dev/null || apt_install docker.io iptables
command -v docker >/dev/null || apt_install docker-cli # a package of its own since Debian 13
if ! version=$(answers) && ! alive /var/run/docker.pid && ! alive "$pidfile"; then
  if [ -d /run/systemd/system ] && systemctl cat docker.service >/dev/null 2>&1; then
    told="its log: 'journalctl -u docker'"
    say "starting docker.service"
    systemctl start docker.service </dev/null >/dev/null 2>&1 8>&- 9>&- || die "it did not start; $told"
  else
    # dockerd waits 15 s for a containerd whose pid file outlived it
    alive /var/run/docker/containerd/containerd.pid || rm -f /var/run/docker/containerd/containerd.pid
    rm -f "$pidfile"
    say "starting a Docker engine (log: $log)"
    setsid -f dockerd --host "unix://$socket" --exec-root /var/run/docker --pidfile "$pidfile" \
      </dev/null >>"$log" 2>&1 8>&- 9>&-
  fi
fi
for _ in $(seq 300); do
  if version=$(answers); then
    say "Docker engine $version answers"
    exit 0
  fi
  sleep 0.1
done
[ -n "${told:-}" ] || [ ! -f "$log" ] || tail -n 15 "$log" >&2
die "the Docker engine did not answer within 30 s; ${told:-its log is $log}"
