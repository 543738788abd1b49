#!/bin/sh
# The figures of the source tree are within their bounds. Needs the build in build/.
cd "$(dirname "$0")/../.." || exit 2
exec /usr/bin/python3 tests/structure/figures.py build
