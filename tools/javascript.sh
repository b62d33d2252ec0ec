#!/bin/sh
# Checks, builds and tests the JavaScript client, in clients/js, and builds its example app. Safe to repeat.
#
#   tools/javascript.sh          everything
#   tools/javascript.sh build    nothing but the client
set -eu
cd "$(dirname "$0")/../clients/js"

if [ -n "${LAKESYNC_WITHOUT_NODE:-}" ]; then
    echo "without Node.js: $LAKESYNC_WITHOUT_NODE"
    exit 0
fi
if ! command -v npm >/dev/null; then
    echo "Node.js is missing: install Node 20.19 or newer, with npm; or set LAKESYNC_WITHOUT_NODE to" >&2
    echo "the reason why it cannot be had, and the JavaScript client is left out" >&2
    exit 1
fi
# Install what a lock file names, with what checks and builds, unless it is there.
install() {
    if [ ! node_modules -nt package-lock.json ] || [ ! -x node_modules/.bin/eslint ]; then
        echo "javascript: installing $1/package-lock.json …"
        npm ci --no-fund --no-audit
        touch node_modules
    fi
}

install clients/js
if [ "${1:-}" = build ]; then
    npm run --silent build
    exit
fi
npm run --silent check
npm run --silent build
npm run --silent test

cd ../../examples/todos-web
install examples/todos-web
npm run --silent check
npm run --silent build
