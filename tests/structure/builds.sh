#!/bin/sh
# The lines that name the build of a test are spelled as scripts/test and tests/e2e/run.py read them: a test with another line
# would run in the sanitizer build alone. Fails with the lines.
cd "$(dirname "$0")/../.." || exit 2
found=$(
  grep -rniE '^[/* ]*builds?\b *[:=]' tests --include='*_test.c' | grep -vE ':// Build: (plain|both)$'
  grep -nE '^[A-Z_]+_BUILDS?\b' tests/*/test_*.py | grep -vE ':(PLAIN_BUILD|SANITIZER_BUILD|BOTH_BUILDS) = '
)
[ -z "$found" ] || { echo "$found"; exit 1; }
