#!/bin/sh
# Removes what no run needs from an environment: the tests of libraries, and headers for compilers.
set -eu
packages="$(echo "$1"/lib/python*/site-packages)"
rm -rf "$packages/torch/test" "$packages/torch/include" "$packages/pyarrow/include"
for library in matplotlib numpy pandas pyarrow scipy sympy; do
    find "$packages/$library" -type d -name tests -prune -exec rm -rf {} +
done
