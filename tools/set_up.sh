#!/bin/sh
# Brings .venv up to date, and is quick when it is already: every target of the Makefile begins with this.
#
# The stamp is a hash of everything that decides what is installed, and of where; set_up.py writes it last. So a
# changed lock, a moved clone and an interrupted set-up are all seen here, without starting Python.
set -eu
cd "$(dirname "$0")/.."

inputs="requirements.txt requirements-uv.txt pyproject.toml tools/set_up.py agent/build_init.py"
for part in */pyproject.toml adapters/*/pyproject.toml; do
    if [ -f "$part" ]; then inputs="$inputs $part"; fi
done
for part in agent/mooring_agent/sandbox_init/*.[ch]; do inputs="$inputs $part"; done
# shellcheck disable=SC2086 # the names have no spaces; they are meant to be split
stamp=$({ pwd -P; sha256sum $inputs; } | sha256sum | cut -d ' ' -f 1)

# The console has a stamp of its own: a change of its sources does not install Python packages, nor the other way round.
console=$({ find console -type f ! -path '*/node_modules/*' ! -name schema.d.ts ! -name '*.md' -print | LC_ALL=C sort |
    xargs sha256sum; sha256sum tools/console.py requirements-node.txt; } | sha256sum | cut -d ' ' -f 1)
if [ "${1:-}" = --console-stamp ]; then
    echo "$console"
    exit 0
fi
build_console() {
    if [ "$(cat .tools/console-stamp 2>/dev/null)" != "$console" ]; then .venv/bin/python tools/console.py "$console"; fi
}

if [ -x .venv/bin/python ] && [ "$(cat .venv/set-up-stamp 2>/dev/null)" = "$stamp" ]; then
    build_console
    exit 0
fi

for name in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11; do
    if path=$(command -v "$name") && "$path" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        "$path" tools/set_up.py "$stamp"
        build_console
        exit 0
    fi
done
echo "set-up: this needs Python 3.11 or newer as 'python3' (or name one: make PYTHON=/path/to/python3)" >&2
exit 1
