#!/bin/bash
# base-image.sh: makes the image `patchyard-base:latest` that both Dockerfiles start from.
#
# With an image registry it is python:3.13-slim (or $BASE_IMAGE); where none answers, a stand-in made of this
# machine's own distribution. What only this machine needs to reach the package mirrors (its extra CA
# certificates, pip's certificate setting) goes in there, so that the Dockerfiles hold nothing of it.
. "$(dirname "$0")/lib.sh"

name=patchyard-base:latest
wanted=${BASE_IMAGE:-python:3.13-slim}
bundle=/etc/ssl/certs/ca-certificates.crt

registry_answers() {
  python3 - <<'PY' 2>/dev/null
import urllib.error, urllib.request
try:
    urllib.request.urlopen("https://registry-1.docker.io/v2/", timeout=4)
except urllib.error.HTTPError as answer:  # 401 without a token: it is there
    raise SystemExit(answer.code >= 500)
PY
}

from_packages() {
  command -v mmdebstrap >/dev/null || apt_install mmdebstrap
  local suite mirror log="$state/base.log"
  suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
  [ -n "$suite" ] || die "no registry answers and this is no Debian or Ubuntu: load an image and give its name as BASE_IMAGE"
  mirror=$(apt-get indextargets --format "\$(REPO_URI)" "Codename: $suite" "Created-By: Packages" | head -n 1)
  mirror=${mirror:-http://deb.debian.org/debian}
  local -a parts=(main)
  [ "$(. /etc/os-release && echo "$ID")" = ubuntu ] && parts+=(universe)
  say "no image registry answers: making a base image of $suite packages (about 20 s)"
  mkdir -p "$state"
  mmdebstrap -q --mode=root --variant=apt --components="${parts[*]}" \
    --include=ca-certificates,passwd,python3,python3-venv,python3-pip \
    --aptopt='Acquire::Languages "none"' --dpkgopt=force-unsafe-io \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --customize-hook='mkdir -p "$1/usr/local/share/ca-certificates"
      for ca in /usr/local/share/ca-certificates/*.crt; do
        [ ! -f "$ca" ] || install -m 644 "$ca" "$1/usr/local/share/ca-certificates/"
      done
      chroot "$1" update-ca-certificates >/dev/null' \
    --customize-hook="printf '[global]\\ncert = $bundle\\n' >\"\$1/etc/pip.conf\"" \
    --customize-hook='printf "%s\n" "path-exclude /usr/share/man/*" "path-exclude /usr/share/doc/*" \
        "path-exclude /usr/share/locale/*" force-unsafe-io >"$1/etc/dpkg/dpkg.cfg.d/slim"
      printf "%s\n" "APT::Install-Recommends \"false\";" "Acquire::Languages \"none\";" >"$1/etc/apt/apt.conf.d/slim"' \
    --customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*' \
    "$suite" - "$mirror" 2>"$log" 9>&- |
    docker import -c "ENV SSL_CERT_FILE=$bundle" -c 'CMD ["bash"]' - "$name" >/dev/null || {
    tail -n 15 "$log" >&2
    die "could not make a base image; the whole output is in $log"
  }
}

if [ -n "${BASE_IMAGE:-}" ]; then
  docker image inspect "$wanted" >/dev/null 2>&1 || docker pull -q "$wanted" >/dev/null 9>&-
  docker tag "$wanted" "$name"
elif docker image inspect "$name" >/dev/null 2>&1; then
  exit 0
elif docker image inspect "$wanted" >/dev/null 2>&1; then
  docker tag "$wanted" "$name"
elif registry_answers && say "pulling the base image $wanted" && docker pull -q "$wanted" >/dev/null 9>&-; then
  docker tag "$wanted" "$name"
else
  [ "$(id -u)" = 0 ] || die "no image registry answers; as root I could make a base image of Debian packages"
  from_packages
fi
