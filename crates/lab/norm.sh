#!/bin/sh
# Builds NORM's normCast from Debian's source package into $1. Needs root (for the library), a network, g++.
# The package lists for sources live in a folder of their own: the system's are left as they are.
set -eu
out=$(realpath -m "$1")
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
mkdir -p "$(dirname "$out")" "$place/lists" "$place/source"
apt-get -qq update </dev/null
DEBIAN_FRONTEND=noninteractive apt-get -qq install -y libnorm-dev g++ dpkg-dev </dev/null >/dev/null
. /etc/os-release
echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $VERSION_CODENAME main" \
  >"$place/sources.list"
options="-o Dir::Etc::sourcelist=$place/sources.list -o Dir::Etc::sourceparts=- -o Dir::State::lists=$place/lists -o APT::Sandbox::User=root"
# shellcheck disable=SC2086
apt-get -qq $options update
cd "$place/source"
# shellcheck disable=SC2086
apt-get -qq $options source --download-only norm
dpkg-source --no-check -x norm_*.dsc norm >/dev/null
libraries=$(dirname "$(find /usr/lib -name libnorm.a)")
g++ -O2 -w -DUNIX -DLINUX -o normCast norm/examples/normCast.cpp -I norm/include -I norm/protolib/include \
  "$libraries/libnorm.a" "$libraries/libprotokit.a" -lpthread
mv normCast "$out"
