#!/bin/sh
# Words for which docs/glossary.md has the field's term, in all text files of the tree. Fails with the lines.
cd "$(dirname "$0")/../.." || exit 2
exec /usr/bin/python3 tests/structure/words.py
