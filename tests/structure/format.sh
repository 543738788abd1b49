#!/bin/sh
# Every C and C++ file is laid out as .clang-format says.
cd "$(dirname "$0")/../.." || exit 2
scripts/format --check
