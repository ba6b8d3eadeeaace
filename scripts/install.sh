#!/usr/bin/env bash
# Builds the virtual environment $1 from the pinned versions in requirements/.
#
# TensorFlow Federated 0.87 pins a jaxlib that no longer exists, so no resolver can
# install it as published. The lock file therefore lists the whole environment, one
# exact version and hash a package, and pip installs that list without resolving.
set -euo pipefail
venv=$1

fail() { echo "install: $*" >&2; exit 1; }

[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] ||
  fail "found $(uname -s) on $(uname -m); TensorFlow Federated 0.87 has wheels for Linux on x86_64 only"
glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null | cut -d' ' -f2 || true)
[ -n "$glibc" ] && [ "$(printf '2.31\n%s\n' "$glibc" | sort -V | head -n 1)" = 2.31 ] ||
  fail "found glibc '${glibc:-none}'; TensorFlow Federated 0.87 needs glibc 2.31 or newer"

# A name on the path may be a shim that does not run, or a Python without venv.
usable() {
  "$1" -c 'import sys, ensurepip, venv; sys.exit(not (3, 9) <= sys.version_info[:2] <= (3, 11))' \
    >/dev/null 2>&1
}
python=
for candidate in ${PYTHON:-python3.11 python3.10 python3.9 python3 python}; do
  if usable "$candidate"; then python=$candidate; break; fi
done
[ -n "$python" ] ||
  fail "no usable Python among '${PYTHON:-python3.11 python3.10 python3.9 python3 python}'; install Python 3.11, 3.10 or 3.9 with its venv module (Debian: python3-venv), or name one: make PYTHON=/path/to/python3.11"

echo "install: building $venv with $("$python" --version); this takes some minutes"
rm -rf "$venv"
"$python" -m venv "$venv"
install=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps)
"${install[@]}" --require-hashes -r requirements/build.txt
"${install[@]}" --require-hashes --no-build-isolation -r requirements/lock.txt
"${install[@]}" --no-build-isolation -e .
touch "$venv/installed"
