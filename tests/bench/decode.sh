#!/usr/bin/env bash
# decode.sh - the table of generation of docs/benchmarks.md, measured in one run: decode.sh [build/decode_bench] [THREADS]
#
# A row is one run of decode_bench (tests/bench/decode_bench.c), for each type and set of instructions: those of this processor, and AVX2
# alone. On one thread, the default, times are processor time.
set -euo pipefail
cd "$(dirname "$0")/../.."
bench=${1:-build/decode_bench} threads=${2:-1}

row() { # TYPE LEVEL: the four lines of decode_bench to a row
  LMC_CPU=$2 "$bench" "$1" "$threads" | awk -v type="$1" -v level="$2" '
    NR == 1 { megabytes = $4 }
    $1 == "token" { ms = $2; rate = $4; share = $6 / 100; loop = $10 }
    $1 == "prompt" { prompt = $2; row = $4 }
    END { printf "| %s, %s MB | %s | %.1f | %.0f | %.1f | %.2f | %.0f | %.2f |\n", type, megabytes, level, ms, rate, loop, share, prompt, row }'
}

echo "$(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2-), $threads thread(s), load $(cut -d' ' -f1 /proc/loadavg), $(date -u +%F)"
echo '| weights | LMC_CPU | ms a token | GB/s | GB/s of the loop | share | prompt, tokens/s | row |'
echo '|---|---|---|---|---|---|---|---|'
for type in f32 bf16; do
  for level in native x86-64-v3; do
    row "$type" "$level"
  done
done
