#!/bin/sh
# The figures of the source tree whose bounds hold: density, lengths of functions, lines of lmc/ and of its commands.
exec /usr/bin/python3 "$(dirname "$0")/figures.py" --met
