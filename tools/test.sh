#!/bin/sh
# Every check of the project, in stages, quick ones first, on a fresh clone with no step before it.
#
#   tools/test.sh            everything
#   tools/test.sh quick      lint, types, import contracts and the tests that start nothing
#   tools/test.sh spark-4    nothing but the Spark tests, on Glue 6.0's Spark
#
# A stage that fails does not hide the ones after it; the exit code is 1 if any failed.
# PYTEST_ARGS goes to every pytest (PYTEST_ARGS="-k merge -x").
set -u

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cd "$root" || exit 1
scope=${1:-all}
python=.venv/bin/python
stack_folder=.local/test-stack
stack_port=${LAKESYNC_TEST_PORT:-4576}

tools/bootstrap.sh || exit 1
JAVA_HOME=$($python -m tools.local_stack java-home) || exit 1
# Where the tests marked `stack` find the deployed stack.
LAKESYNC_STACK_JSON=$root/$stack_folder/stack.json
export JAVA_HOME LAKESYNC_STACK_JSON
PATH=$root/.venv/bin:$JAVA_HOME/bin:$PATH
# Hundreds of processes import the same modules: each would compile them anew.
unset PYTHONDONTWRITEBYTECODE

number=0
patience=""
failed=""
started=$(date +%s)
summary=""

# stage NAME COMMAND…: runs a command, tells how it went and how long it took.
stage() {
    name=$1
    shift
    number=$((number + 1))
    printf '\n==> %s. %s\n' "$number" "$name"
    begun=$(date +%s)
    if "$@"; then
        outcome=ok
    else
        outcome=FAILED
        failed="$failed $number"
    fi
    summary="$summary$(printf '%3s. %-28s %-7s %4s s' "$number" "$name" "$outcome" "$(($(date +%s) - begun))")
"
}

# marked MARKER: the folders in which some tests have a marker. To collect all tests takes as long as
# many tests.
marked() {
    grep -rl --include='*.py' "pytest\.mark\.$1" tests | cut -d/ -f1,2 | sort -u
}

# tests FOLDERS MARKERS [OPTION…]: the tests with these markers in some folders.
tests() {
    where=$1
    markers=$2
    shift 2
    # shellcheck disable=SC2086 # several words are meant
    $patience $python -m pytest $where -q -m "$markers" --durations 8 --durations-min 10 "$@" ${PYTEST_ARGS:-}
    code=$?
    [ "$code" -eq 5 ] && echo "(no such tests yet)" && return 0
    return "$code"
}

folders() {
    for folder in tools tests benchmarks examples functions glue_jobs layers/lakesync/python; do
        if [ -d "$folder" ]; then echo "$folder"; fi
    done
}

types() {
    # shellcheck disable=SC2046 # several words are meant
    $python -m mypy $(folders | grep -v '^functions$')
}

warm() {
    tools/bootstrap.sh nessie && $python -m tools.local_stack warm
}

stop_stack() {
    $python -m tools.local_stack down --folder "$stack_folder" >/dev/null
}

# beside NAME COMMAND…: begins a command beside the stages that follow, for those that leave a core
# idle; what it prints is shown by `join NAME`.
beside() {
    name=$1
    shift
    printf '\n==> (%s: begun beside the stages that follow)\n' "$name"
    output=$scratch/$name
    {
        begun=$(date +%s)
        "$@"
        echo "$? $(($(date +%s) - begun))" >"$output.end"
    } >"$output" 2>&1 &
    echo $! >"$output.pid"
}

# after NAME COMMAND…: runs a command once what was begun under a name has ended.
after() {
    until [ -e "$scratch/$1.end" ]; do sleep 0.2; done
    shift
    "$@"
}

# join NAME: a stage of what was begun beside the others.
join() {
    name=$1
    output=$scratch/$name
    wait "$(cat "$output.pid")"
    read -r code took <"$output.end" || code=1 took=0
    number=$((number + 1))
    printf '\n==> %s. %s (begun beside others)\n' "$number" "$name"
    cat "$output"
    outcome=ok
    [ "$code" -eq 0 ] || { outcome=FAILED; failed="$failed $number"; }
    summary="$summary$(printf '%3s. %-28s %-7s %4s s' "$number" "$name" "$outcome" "$took")
"
}

# end_tree PID: ends a process and all its descendants. A shell's background commands do not hear
# Ctrl-C, and the JVM of a Spark session is its grandchild's child.
end_tree() {
    for child in $(pgrep -P "$1"); do (end_tree "$child"); done
    kill "$1" 2>/dev/null
}

# stop: leaves nothing running and no file, however the script ends.
stop() {
    for pid in "$scratch"/*.pid; do
        [ ! -e "$pid" ] || [ -e "${pid%.pid}.end" ] || end_tree "$(cat "$pid")"
    done
    [ "$scope" = quick ] || stop_stack
    rm -rf "$scratch"
}

# deployed: a fresh stack, and the tests of it. Most of its time is spent waiting.
deployed() {
    $python -m tools.local_stack up --folder "$stack_folder" --port "$stack_port" \
        --stack lakesync-test && tests "$(marked stack)" stack
}

# in_browser: the tests of the JavaScript client in Chromium, which is installed where that can be done.
in_browser() {
    tools/bootstrap.sh chromium && tests "$(marked browser)" "browser" --timeout 120
}

scratch=$(mktemp -d)
trap stop EXIT
trap 'exit 130' INT TERM

if [ "$scope" = spark-4 ]; then
    tools/bootstrap.sh nessie spark-4 || exit 1
    export PYTHONPATH="$root/.local/spark-4"
    tests "$(marked spark)" "spark and not stack"
    exit
fi

stage "lint (ruff)" $python -m ruff check .
stage "format (ruff)" $python -m ruff format --check .
stage "import contracts" .venv/bin/lint-imports --no-logo
beside "types (mypy)" types

if [ "$scope" != quick ]; then
    stop_stack
    beside "servers, Spark's classes" warm
    beside "deploy, tests of the stack" after "servers, Spark's classes" deployed
    beside "Spark tests" after "servers, Spark's classes" \
        tests "$(marked spark)" "spark and not stack"
fi

# Some unit tests run the JavaScript client, which this builds.
stage "JavaScript client" tools/javascript.sh

# What takes longest on one core goes first; these take what it leaves, and both cores afterwards.
patience="nice -n 3"
stage "unit tests" tests tests "not stack and not spark and not emulator and not browser" -n 2 --dist worksteal

join "types (mypy)"

if [ "$scope" != quick ]; then
    join "servers, Spark's classes"
    beside "tests in Chromium" in_browser
    stage "emulator tests" tests "$(marked emulator)" "emulator and not spark and not stack" \
        -n 2 --dist loadfile
    join "tests in Chromium"
    join "Spark tests"
    join "deploy, tests of the stack"
fi

printf '\n%s' "$summary"
printf 'in all %s s\n' "$(($(date +%s) - started))"
if [ -n "$failed" ]; then
    echo "FAILED: stage$failed"
    exit 1
fi
echo "all passed"
