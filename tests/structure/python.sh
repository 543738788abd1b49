#!/bin/sh
# Every Python file parses: one that does not would keep all tests of tests/e2e/run.py from running.
cd "$(dirname "$0")/../.." || exit 2
find scripts tests -name '*.py' -exec /usr/bin/python3 -c '
import ast, sys
for path in sys.argv[1:]:
    ast.parse(open(path).read(), path)
' {} +
