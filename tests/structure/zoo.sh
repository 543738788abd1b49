#!/bin/sh
# A model of examples/zoo is read at one sight: at most 60 lines of code besides `map`, and 120 for
# several towers (an encoder and a decoder, or text and images). The comment in front names the
# authors of its formulas and their year. Fails with the files that have more lines or no source.
cd "$(dirname "$0")/../.." || exit 2
awk '
  FNR == 1 { map = 0; head = 1 }
  !/^#/ { head = 0 }
  head { comment[FILENAME] = comment[FILENAME] $0 }
  /^  map / { map = 1 }
  !map && !/^ *(#|$)/ { lines[FILENAME]++ }
  map && /^  }$/ { map = 0 }
  END {
    for (f in lines) {
      if (comment[f] !~ /\([A-Z][^()]* (19|20)[0-9][0-9]/) {
        print f ": no source of its formulas, such as (Vaswani et al. 2017)"
        bad = 1
      }
      limit = f ~ /\/(bart|clip|t5|whisper)\.lm$/ ? 120 : 60
      if (lines[f] > limit) {
        print f ": " lines[f] " lines besides map, more than " limit
        bad = 1
      }
    }
    exit bad
  }' examples/zoo/*.lm
