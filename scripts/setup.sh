#!/bin/bash
# Installs the Debian packages that building, testing and the quick start need, and nothing else.
#   scripts/setup.sh           installs what is missing (as root, or through sudo)
#   scripts/setup.sh --check   only says what is missing; exit code 1 when something is
set -euo pipefail

packages=(
  g++ cmake ninja-build git                                # build
  libopenmpi-dev openmpi-bin                               # ranks
  libdnnl-dev                                              # matrix products on the CPU
  libspdlog-dev libfmt-dev libcli11-dev nlohmann-json3-dev # log, flags, JSON
  libtomlplusplus-dev                                      # --config FILE
  libxxhash-dev                                            # hashes of checkpoints
  liburing-dev                                             # optimizer state and weights in files
  libgtest-dev libgmock-dev libbenchmark-dev               # tests and benches
  clang-format python3                                     # scripts/check.sh
  bible-kjv bible-kjv-text                                 # the quick start's text, public domain
)

say() { echo "setup: $*"; }
fail() {
  say "$*" >&2
  exit 1
}

check_only=no
case "${1:-}" in
  "") ;;
  --check) check_only=yes ;;
  *) fail "unknown argument $1; usage: scripts/setup.sh [--check]" ;;
esac

if ! command -v dpkg >/dev/null || ! command -v apt-get >/dev/null; then
  fail "this is no Debian or Ubuntu system; install by hand what these packages hold: ${packages[*]}"
fi

missing=()
for package in "${packages[@]}"; do
  dpkg -s "$package" 2>/dev/null | grep -q '^Status: install ok installed' || missing+=("$package")
done
if ((${#missing[@]} == 0)); then
  say "all ${#packages[@]} packages are there"
  exit 0
fi
say "missing: ${missing[*]}"
[[ $check_only == yes ]] && exit 1

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  command -v sudo >/dev/null || fail "installing needs root: run as root: apt-get install ${missing[*]}"
  as_root=(sudo)
fi
apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o Acquire::http::Timeout=30 -o Acquire::Retries=2 \
    -o Dpkg::Use-Pty=0 "$@"
}

# The package lists are fetched when they are absent, or older than what the server holds.
known=yes
for package in "${missing[@]}"; do
  [[ -n $(apt-cache show --no-all-versions "$package" 2>/dev/null) ]] || known=no
done
installed=no
if [[ $known == yes ]]; then
  say "installing with apt-get"
  apt install --no-install-recommends "${missing[@]}" >/dev/null && installed=yes
fi
if [[ $installed == no ]]; then
  say "fetching the package lists (apt-get update), then installing"
  apt update >/dev/null || fail "apt-get update failed: is there a network, and may this user install packages?"
  apt install --no-install-recommends "${missing[@]}" >/dev/null ||
    fail "apt-get could not install: ${missing[*]} (its own messages stand above)"
fi
say "installed: ${missing[*]}"
