#!/bin/sh
# At most one operand of a call, an operator or a list of initializers adds to a module. Fails with the operands.
cd "$(dirname "$0")/../.." || exit 2
exec /usr/bin/python3 tests/structure/sequence.py
