#!/usr/bin/env bash
# wait.sh - what waiting threads cost on an idle and on a loaded machine: wait.sh [-l "0 4 12"] [-r ROUNDS] [-s STEPS] [FILE…]
#
# For each number of busy loops (-l) a table of milliseconds a step of each recipe: threads that spin for a short time and then sleep
# (the default), that sleep at once (OMP_WAIT_POLICY=passive), and of a second program, if BEFORE names one. The variants run in turn,
# ROUNDS times. "best" is the least time of a step over all rounds, which says most on an idle machine; "mean" is the median over
# rounds of the mean step, which says most on a loaded one. Without FILE: examples/bench-6m.lm and a small model of `lmc new`.
# LMC names the program (build/lmc).
set -euo pipefail
cd "$(dirname "$0")/../.."
loads="0 4 12" rounds=5 steps=10
while getopts l:r:s: option; do
  case $option in
    l) loads=$OPTARG ;;
    r) rounds=$OPTARG ;;
    s) steps=$OPTARG ;;
    *) sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
done
shift $((OPTIND - 1))
lmc=$(realpath "${LMC:-build/lmc}")
folder=$(mktemp -d)
loops=()
cleanup() {
  for pid in "${loops[@]}"; do kill "$pid" 2>/dev/null || true; done
  rm -rf "$folder"
}
trap cleanup EXIT
unset OMP_WAIT_POLICY GOMP_SPINCOUNT

small() {                              # a recipe as `lmc new` writes it for a text of 60 kB
  seq 1 3000 | awk '{ print "line " $1 " of " $1 * 7919 % 1000 }' >"$folder/small.txt"
  (cd "$folder" && "$lmc" new small --data small.txt --minutes 0.1 >/dev/null)
}
[ $# -gt 0 ] || { small; set -- examples/bench-6m.lm "$folder/small.lm"; }

loops_begin() {                        # N
  loops=()
  for _ in $(seq 1 "$1"); do
    sh -c 'while :; do :; done' &
    loops+=($!)
  done
}

loops_end() {
  for pid in "${loops[@]}"; do
    kill "$pid"
    wait "$pid" 2>/dev/null || true
  done
  loops=()
}

# once NAME FILE COMMAND…: a line "NAME best mean" for a run of `bench`
once() {
  local name=$1 file=$2
  shift 2
  "$@" bench "$file" --steps "$steps" --json |
    python3 -c 'import json, sys; x = json.load(sys.stdin); print(sys.argv[1], x["ms_per_step"], x.get("ms_per_step_mean", x["ms_per_step"]))' "$name"
}

table() {                              # FILE: reads the lines of `once`
  python3 -c '
import statistics, sys
rows = {}
for line in sys.stdin:
    name, best, mean = line.split()
    rows.setdefault(name, []).append((float(best), float(mean)))
for name, times in rows.items():
    print("%-14s %-9s %10.2f %10.2f" % (sys.argv[1], name, min(t[0] for t in times), statistics.median(t[1] for t in times)))
' "$1"
}

echo "machine: $(sed -n 's/^model name\s*: //p;T;q' /proc/cpuinfo), $(nproc) processors; $(date -u +%F)"
for file; do "$lmc" bench "$file" --steps 1 >/dev/null; done   # compiles the kernels
for load in $loads; do
  echo
  echo "$load busy loops; load average before them $(cut -d' ' -f1 /proc/loadavg)"
  printf '%-14s %-9s %10s %10s\n' recipe threads 'best, ms' 'mean, ms'
  loops_begin "$load"
  for file; do
    for _ in $(seq 1 "$rounds"); do
      [ -z "${BEFORE:-}" ] || once before "$file" "$BEFORE"
      once default "$file" "$lmc"
      once passive "$file" env OMP_WAIT_POLICY=passive "$lmc"
    done | table "$(basename "$file")"
  done
  loops_end
done
