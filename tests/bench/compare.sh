#!/usr/bin/env bash
# compare.sh - the table of docs/benchmarks.md, measured here: compare.sh [build/lmc] [6m 124m]
#
# Needs PyTorch 2 in a virtual environment, ${LMC_TORCH:-~/.cache/lmc-test/torch2/bin/python}:
#   python3 -m venv ~/.cache/lmc-test/torch2 && ~/.cache/lmc-test/torch2/bin/pip install torch numpy
set -euo pipefail
cd "$(dirname "$0")/../.."
lmc=$(realpath "${1:-build/lmc}")
shift || true
models=${*:-6m 124m}
python=${LMC_TORCH:-$HOME/.cache/lmc-test/torch2/bin/python}
"$python" -c 'import torch' || { sed -n '3,5s/^# \{0,1\}//p' "$0" >&2; exit 2; }
cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT

get() { "$python" -c 'import json, sys; x = json.loads(sys.stdin.readlines()[-1]); print(eval(sys.argv[1], {}, x))' "$1"; }

doctor() { "$lmc" doctor --json | "$python" -c 'import json, sys; x = {r["name"]: r for r in json.load(sys.stdin)}; print(eval(sys.argv[1]))' "$1"; }

echo "machine: $(doctor 'x["processor"]["what"] + " (" + x["instructions"]["what"] + ")"'), load $(cut -d' ' -f1 /proc/loadavg); $(date -u +%F)"
[ "$(doctor 'x["bf16"]["found"]')" = True ] && dtypes="f32 bf16" || dtypes=f32
printf '\n%-5s %-9s %-8s %12s %12s %7s %13s %7s %12s\n' model lmc/torch PyTorch 'lmc tok/s' 'torch tok/s' ratio 'step / GEMMs' MFU 'resident - plan'
for model in $models; do
  for dtype in $dtypes; do
    [ "$model" = 6m ] && rounds=3 || rounds=1
    for mode in compiled eager; do
      [ $mode = eager ] && option=--eager || option=
      "$python" tests/bench/torch_bench.py "$model" --compute "$dtype" --lmc "$lmc" --rounds $rounds $option | tail -1 |
        get '"%-5s %-9s %-8s %12.0f %12.0f %7.2f %13.2f %6.1f%% %10.1f MB" % (model, computed_in["lmc"] + "/" + computed_in["torch"], "compiled" if torch_compile else "eager", lmc_tokens_per_s, torch_tokens_per_s, lmc_over_torch, lmc["step_over_gemms"], 100 * lmc["mfu"], (lmc["resident_bytes"] - lmc["peak_bytes"]) / 1e6)'
    done
  done
done

first() { LMC_CACHE=$cache "$lmc" bench examples/bench-6m.lm --steps 1 --json | get '"%.2f s" % (first_step_s - ms_per_step / 1e3)'; }
echo
echo "time to the end of the first step minus a warm one, 6m: cold $(first), cached $(first)"
compiled() { LMC_CACHE=$cache/$1 "$lmc" compile examples/bench-6m.lm --set "model = Llama(depth = $1, d = 256, ff = 768, heads = 8, kv = 4, e = 32, vocab = 4096)" --json | get seconds; }
six=$(compiled 6) ninety_six=$(compiled 96)
echo "compile time, cold: 6 layers $six s, 96 layers $ninety_six s, ratio $("$python" -c "print(round($ninety_six / $six, 2))")"
echo
echo "where a step of 6m goes:"
"$lmc" explain examples/bench-6m.lm cost --measure | head -${ROWS:-20}
