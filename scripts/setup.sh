#!/bin/bash
# setup.sh: from a bare machine to a virtual environment, an engine and the sandbox image; quick when all is there.
. "$(dirname "$0")/lib.sh"

has_uv() { command -v uv >/dev/null || [ -x "$state/uv/bin/uv" ]; }

install_missing() {
  local -a missing=()
  command -v git >/dev/null || missing+=(git) # the demo and `patchyard apply` use it
  if ! command -v python3 >/dev/null; then
    missing+=(python3 python3-venv)
  elif ! has_uv && ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
    missing+=(python3-venv)
  fi
  [ "${#missing[@]}" = 0 ] || apt_install "${missing[@]}"
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    die "needs Python 3.11 or later (Debian 12, Ubuntu 24.04), and python3 here is $(python3 -V)"
}

venv() {
  local uv
  if ! has_uv; then
    say "installing uv into $state/uv"
    rm -rf "$state/uv"
    python3 -m venv "$state/uv"
    "$state/uv/bin/pip" install -q --disable-pip-version-check 'uv>=0.9,<1'
  fi
  uv=$(command -v uv) || uv=$state/uv/bin/uv
  [ -d "$root/.venv" ] || say "installing Python packages into .venv"
  # Debian's own interpreter: a downloaded one would come from a host that may not answer.
  cd "$root"
  "$uv" sync -q --frozen --all-extras --all-groups --no-python-downloads </dev/null 9>&-
}

[ "$(uname -sm)" = "Linux x86_64" ] || die "needs Linux on x86-64: the seccomp profile names its system calls"
locked
[ "$(id -u)" = 0 ] || "$root/scripts/engine.sh" # who may not use or start one shall learn it before any download
install_missing
mkdir -p "$state"
# In a process group of its own: when anything fails, or at Ctrl-C, it is ended as a whole, not waited for.
set -m
venv &
venv_job=$!
set +m
trap 'kill -- "-$venv_job" 2>/dev/null || true; wait' EXIT
"$root/scripts/engine.sh"
"$root/scripts/base-image.sh"
"$root/scripts/sandbox-image.sh"
wait "$venv_job" || die "the virtual environment could not be made; see the lines above"
trap - EXIT
