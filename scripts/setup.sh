# setup.sh - sourced by quickstart and test: packages and the build. Quick and quiet when all is there.
# Needs Debian's apt, as root or with sudo; elsewhere install what it names by hand.

BUILD_PACKAGES="gcc g++ cmake ninja-build flex bison libdnnl-dev libjansson-dev libpcre2-dev libzstd-dev"

say() { printf '\033[1m%s\033[0m\n' "$*"; }
[ -t 1 ] || say() { printf '%s\n' "$*"; }

# packages NAME…: installs those that are missing
packages() {
  missing=
  for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
  done
  [ -z "$missing" ] && return 0
  command -v apt-get >/dev/null || { echo "these packages are missing:$missing" >&2; return 2; }
  as_root=
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { echo "to install$missing I need to be root, or sudo" >&2; return 2; }
    as_root=sudo
  fi
  say "installing$missing"
  log=$(mktemp)
  for try in 1 2; do
    # shellcheck disable=SC2086
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing >"$log" 2>&1 && break
    [ $try = 2 ] && { tail -n 20 "$log" >&2; rm -f "$log"; return 2; }
    $as_root apt-get update -q >>"$log" 2>&1 || { tail -n 5 "$log" >&2; rm -f "$log"; return 2; }
  done
  rm -f "$log"
}

# build FOLDER [cmake option…]
build() {
  folder=$1
  shift
  log=$(mktemp)
  [ -x "$folder/lmc" ] || say "building in $folder/"
  if ! { cmake -S . -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo "$@" && cmake --build "$folder"; } >"$log" 2>&1; then
    grep -E -A8 'error|FAILED' "$log" | head -n 40 >&2 || tail -n 40 "$log" >&2
    rm -f "$log"
    return 2
  fi
  rm -f "$log"
}
