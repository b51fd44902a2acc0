#!/usr/bin/env bash
# Installs the packages that the build needs, and nothing when all are there.
# usage: tools/setup.sh [--dev]     --dev adds clang, its tools and redis-server
set -euo pipefail

packages=(build-essential cmake ninja-build pkg-config python3 python3-venv ca-certificates
          libcli11-dev libtomlplusplus-dev libfmt-dev nlohmann-json3-dev libsimdjson-dev
          libpcre2-dev libxxhash-dev libexpected-dev libutf8proc-dev libsqlite3-dev libzstd-dev
          libhiredis-dev libedit-dev libgtest-dev libgmock-dev librapidcheck-dev)
if [[ ${1:-} == --dev ]]; then
  packages+=(clang clang-tidy clang-format redis-server)
fi

[[ $(uname -m) != aarch64 ]] || packages+=(libsimde-dev)

if ! command -v dpkg-query >/dev/null; then
  if command -v cmake ninja pkg-config python3 c++ >/dev/null; then
    exit 0  # not Debian: CMake says what else is missing
  fi
  echo "setup: this is not Debian or Ubuntu; install the equivalents of: ${packages[*]}" >&2
  exit 1
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [[ $status == installed ]] || missing+=("$package")
done
[[ ${#missing[@]} == 0 ]] && exit 0

as_root=()
if [[ $(id -u) != 0 ]]; then
  if ! command -v sudo >/dev/null || { [[ ! -t 0 ]] && ! sudo -n true 2>/dev/null; }; then
    echo "setup: these packages are missing and need root to install; run as root:" >&2
    echo "  apt-get install -y ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi

echo "setup: installing ${missing[*]}"
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -qq --no-install-recommends "${missing[@]}"
