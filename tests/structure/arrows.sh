#!/bin/sh
# Which folder may include which: the arrows of docs/tour.md. Fails with the lines that go against them.
cd "$(dirname "$0")/../.." || exit 2
# folder: regular expression of what it may include beside itself and contract/, which all include;
# compiler/ir and compiler/ops are one library
rules='
contract:^$
target:^$
runtime/base:^$
runtime/plan:^runtime/base/
runtime/hal:^(target|runtime/(base|plan))/
runtime/io:^runtime/base/
runtime/weights:^runtime/(base|io)/
runtime/telemetry:^runtime/(base|io)/
runtime/tokenizer:^runtime/(base|io)/
runtime/data/read:^runtime/(base|io|tokenizer)/
runtime/data/rows:^runtime/(base|tokenizer|data/read)/
runtime/data/feed:^runtime/(base|weights|tokenizer|data/(read|rows))/
runtime/cpu:^(target|runtime/(base|plan|hal))/
runtime/cuda:^(target|runtime/(base|plan|hal))/
runtime/train:^runtime/(base|plan|hal|io|weights|telemetry|data/feed)/
runtime/infer:^runtime/(base|plan|hal|weights|train)/
compiler/ir:^(runtime/base|compiler/ops)/
compiler/ops:^(runtime/base|compiler/ir)/
compiler/eval:^(runtime/base|compiler/ir)/
compiler/analysis:^(runtime/base|compiler/(ir|ops))/
compiler/plan:^(target|runtime/(base|plan)|compiler/(ir|analysis))/
compiler/passes:^(target|runtime/(base|plan)|compiler/(ir|ops|analysis|eval|plan))/
codegen/common:^(target|runtime/(base|plan)|compiler/(ir|ops|plan))/
codegen/cpu:^(target|runtime/(base|plan)|compiler/(ir|ops|plan)|codegen/common)/
codegen/cuda:^(target|runtime/(base|plan)|compiler/(ir|ops|plan)|codegen/common)/
dsl/syntax:^runtime/base/
dsl/recipe:^(runtime/base|dsl/syntax)/
dsl/elab:^(runtime/(base|weights/foreign|plan/plan)|compiler/ir|dsl/(syntax|recipe))
dsl/lower:^(runtime/(base|weights/foreign|plan/plan)|compiler/ir|dsl/(syntax|recipe|elab))
driver/inspect:^(target|runtime/(base|plan|cpu|cuda)|compiler/|codegen/|dsl/syntax|driver/(text|target)[.])
driver/advise:^runtime/
driver:^(target|runtime|compiler|codegen|dsl)/
'
bad=0
for rule in $rules; do
  folder=${rule%%:*} may=${rule#*:}
  [ -d "$folder" ] || continue
  found=$(grep -rnE '^[[:space:]]*#[[:space:]]*include "' "$folder" --include='*.[chly]' --include='*.def' --include='*.cc' |
    sed -E 's/^([^:]+:[0-9]+):.*include "([^"]+)".*/\1 \2/' | grep '/.* .*/' |
    awk -v folder="$folder/" -v may="$may" 'index($2, folder) != 1 && index($2, "contract/") != 1 && !(may != "^$" && $2 ~ may) {print}' | grep -v ' cpu_prelude\|prelude/\| dsl/parser.tab.h\| dsl/lexer.h')
  [ -z "$found" ] && continue
  echo "$folder may not include:"
  echo "$found" | sed 's/^/  /'
  bad=1
done
system=$(grep -rnE '#[[:space:]]*include <(cuda|nvrtc|cublas|nccl)' compiler codegen dsl runtime driver lmc --include='*.[ch]')
[ -n "$system" ] && { echo "NVIDIA headers are loaded at run time, never included:"; echo "$system"; bad=1; }
prints=$(grep -rnwE 'stdout|stderr|lm_args|lm_cli' driver --include='*.[ch]')
[ -n "$prints" ] && { echo "driver/ reads no arguments and prints nothing; it returns results and reports events:"; echo "$prints"; bad=1; }
[ $bad = 0 ] && echo "arrows: ok"
exit $bad
