#!/bin/sh
# Every include goes along an arrow of the table 'may include' in docs/tour.md, and the table has no circle. Fails with
# the lines that go against it. The generated headers and the preludes, which are text, are left out.
cd "$(dirname "$0")/../.." || exit 2
rows=$(sed -n '/^| folder | may include |$/,/^$/p' docs/tour.md | sed '1,2d; s/`//g; s/nothing else//; s/ //g')
[ -n "$rows" ] || { echo "docs/tour.md has no table 'may include'"; exit 1; }
bad=0
above=' '
for row in $rows; do
  folder=$(echo "$row" | cut -d'|' -f2) entries=$(echo "$row" | cut -d'|' -f3 | tr ',' ' ')
  [ -d "$folder" ] || { echo "docs/tour.md: there is no folder $folder"; bad=1; continue; }
  may=^contract/
  for entry in $entries; do
    case $entry in
      *.h) may="$may|^$entry\$"; continue ;;
      compiler/ops) ;;
      *) case $above in *" $entry"[\ /]*) ;; *) echo "docs/tour.md: $folder includes $entry, which is not above it"; bad=1 ;; esac ;;
    esac
    may="$may|^$entry/"
  done
  above="$above$folder "
  found=$(grep -rnE '^[[:space:]]*#[[:space:]]*include "' "$folder" --include='*.[chly]' --include='*.def' --include='*.cc' |
    sed -E 's/^([^:]+:[0-9]+):.*include "([^"]+)".*/\1 \2/' | grep '/.* .*/' |
    awk -v folder="$folder/" -v may="$may" 'index($2, folder) != 1 && $2 !~ may' |
    grep -v ' cpu_prelude\|prelude/\| dsl/parser.tab.h\| dsl/lexer.h')
  [ -z "$found" ] && continue
  echo "$folder may not include:"
  echo "$found" | sed 's/^/  /'
  bad=1
done
sources=$(git ls-files '*.c') || exit 2
for folder in $(echo "$sources" | grep -Ev '^(tests|scripts)/' | xargs -n1 dirname | sort -u); do
  case $above in *" $folder "*) continue ;; esac
  case $above in *" ${folder%/*} "*) ;; *) echo "docs/tour.md has no row for $folder"; bad=1 ;; esac
done
system=$(grep -rnE '#[[:space:]]*include <(cuda|nvrtc|cublas|nccl)' compiler codegen dsl runtime driver lmc --include='*.[ch]')
[ -n "$system" ] && { echo "NVIDIA headers are loaded at run time, never included:"; echo "$system"; bad=1; }
prints=$(grep -rnwE 'stdout|stderr|lm_args|lm_cli' driver --include='*.[ch]')
[ -n "$prints" ] && { echo "driver/ reads no arguments and prints nothing; it returns results and reports events:"; echo "$prints"; bad=1; }
[ $bad = 0 ] && echo "arrows: ok"
exit $bad
