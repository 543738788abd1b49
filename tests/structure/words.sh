#!/bin/sh
# Words that the glossary forbids, where they have no other meaning: in code, documents and the library. Fails with the lines.
cd "$(dirname "$0")/../.." || exit 2
words='\b(dear|dearer|dearest|otherwise than|cannot be had|can be had|is told|are told|told apart|goes on from|nobody looks|how-manieth|at the least|turned T|lookahead pass)\b'
found=$(git grep -nEi "$words" -- '*.c' '*.h' '*.def' '*.cuh' '*.cu' '*.lm' '*.md' '*.py' '*.sh' '*.y' '*.l' ':!docs/glossary.md' ':!tests/structure/words.sh' ':!tests/structure/words.py')
[ -z "$found" ] && { echo "words: ok"; exit 0; }
echo "$found" | cut -c1-160
echo "docs/glossary.md has the terms to use instead"
exit 1
