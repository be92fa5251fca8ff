# Shared by the scripts of this folder: where the checkout is, how a script speaks, one lock for shared state.
set -euo pipefail
trap 'exit 130' INT TERM # also where the program that ran at that moment did not care

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
state="$root/.patchyard" # everything the scripts remember; `make clean` removes it

say() { printf '%s\n' "patchyard: $*" >&2; }
die() {
  say "$*"
  exit 1
}

# Two checkouts of one user share the engine and its images, so the lock belongs to the user, not to the
# checkout; the uid is in its name because the kernel refuses to open another user's file in a sticky /tmp.
locked() {
  [ -z "${PATCHYARD_LOCKED:-}" ] || return 0 # by the script that called this one
  local path
  path="${TMPDIR:-/tmp}/patchyard-setup-$(id -u).lock"
  exec 9>"$path"
  flock -w 900 9 || die "another setup has held $path for 15 minutes; end it and try again"
  export PATCHYARD_LOCKED=1
}

# A fresh machine updates itself after its first boot: its own apt is waited for, not run into.
apt_get() { apt-get -q -o DPkg::Lock::Timeout=300 "$@" </dev/null 8>&- 9>&-; }
apt_update() { # any other failure may be of a list we do not need: the installation will tell
  local said
  for _ in $(seq 12); do
    said=$(LC_ALL=C apt_get update 2>&1) && break
    printf '%s\n' "$said"
    [[ $said == *"Could not get lock"* ]] || break
    sleep 5
  done
}

# Installs Debian packages, quietly; says what to do where it may not.
apt_install() {
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null ||
    die "needs the package(s) $*: run 'sudo apt-get install $*' and try again"
  say "installing $*"
  export DEBIAN_FRONTEND=noninteractive
  local log="$state/apt.log"
  mkdir -p "$state"
  { apt_get install -y --no-install-recommends "$@" ||
    { apt_update; apt_get install -y --no-install-recommends "$@"; }; } >"$log" 2>&1 || {
    tail -n 15 "$log" >&2
    die "apt-get could not install $*; its whole output is in $log"
  }
}
