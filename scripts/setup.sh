#!/bin/bash
# setup.sh: from a bare machine to a virtual environment, an engine and the sandbox image; quick when all is there.
. "$(dirname "$0")/lib.sh"

venv() {
  local uv
  if ! uv=$(command -v uv); then
    uv=$state/uv/bin/uv
    if [ ! -x "$uv" ]; then
      python3 -c 'import ensurepip, venv' 2>/dev/null || apt_install python3-venv
      say "installing uv into $state/uv"
      rm -rf "$state/uv"
      python3 -m venv "$state/uv"
      "$state/uv/bin/pip" install -q --disable-pip-version-check 'uv>=0.9,<1'
    fi
  fi
  # Debian's own interpreter: a downloaded one would come from a host that may not answer.
  cd "$root"
  "$uv" sync -q --frozen --all-extras --all-groups --no-python-downloads </dev/null 9>&-
}

[ "$(uname -s)" = Linux ] || die "the workers need Linux"
command -v python3 >/dev/null || apt_install python3 python3-venv
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die "needs Python 3.11 or later"
locked
mkdir -p "$state"
venv &
venv_job=$!
trap wait EXIT # also when the engine fails: no half-made environment keeps growing behind the prompt
"$root/scripts/engine.sh"
"$root/scripts/base-image.sh"
"$root/scripts/sandbox-image.sh"
wait "$venv_job" || die "the virtual environment could not be made; see the lines above"
