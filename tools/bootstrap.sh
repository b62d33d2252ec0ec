#!/bin/sh
# Finds a Python that is new enough and lets tools/bootstrap.py make the environments with it.
# Usage: tools/bootstrap.sh [dev] [emulator] [bigquery] [lambda] [sam] [java] [nessie] [spark-4] [chromium]
# (nothing named: all but the last three)
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
# Glue's own Python first: Spark 3.5 was made for none that is newer.
for python in ${PYTHON:-} python3.11 python3.12 python3 python3.13 python3.14; do
    if "$python" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        cd "$root"
        exec "$python" -m tools.bootstrap "$@"
    fi
done
echo "error: install Python 3.11 or newer with its venv module (or name one: make up PYTHON=/path/to/python3.11), then run the same command again." >&2
exit 1
