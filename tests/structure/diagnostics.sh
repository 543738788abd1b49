#!/bin/sh
# The catalogue of diagnostics (runtime/base/diag*.def) and the code: each code of the catalogue is reported somewhere, and
# nothing spells a code as a string. Fails with the codes or lines.
cd "$(dirname "$0")/../.." || exit 2
folders='dsl compiler codegen driver'
known=$(sed -nE 's/^DIAG\(([EW][0-9A-F]{3}),.*/\1/p' runtime/base/diag*.def | sort)
used=$(grep -rhoE '\b[EW][0-9][0-9A-F]{2}\b *[,)]' $folders --include='*.[chly]' | grep -oE '[EW][0-9A-F]{3}' | sort -u)
bad=0
unused=$(echo "$known" | while read -r code; do echo "$used" | grep -qx "$code" || echo "$code"; done)
[ -z "$unused" ] || { echo "no code reports" $unused; bad=1; }
spelled=$(grep -rnE '"[EW][0-9][0-9A-F]{2}"' $folders lmc runtime --include='*.[chly]' | grep -v 'runtime/base/diag.h:.*//')
[ -z "$spelled" ] || { echo "codes as strings; name the code of runtime/base/diag.def instead:"; echo "$spelled"; bad=1; }
[ $bad = 0 ] && echo "diagnostics: ok"
exit $bad
