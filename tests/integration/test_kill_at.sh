#!/bin/sh
# The daemon is killed at its n-th operation (tests/support/fault_at.c) of a small scenario, for one n
# after the other, and started again: no submission that it acknowledged and no checkpoint that it
# listed is lost, no step lost or doubled, and at the end no process is left.
#
#   test_kill_at.sh DLLMD WORKER FAULT_AT.SO
#
# DLLMD_TEST_LONG=1: for every n, which takes a quarter of an hour; otherwise for a few of them.
# DLLMD_TEST_KILL_AT="7 8": for these alone.
. "$(dirname "$0")/lib.sh"
fault_at=$(realpath "$3")

mkdir -p "$tmp/data"
awk 'BEGIN {
    split("the quick brown fox jumps over the lazy dog and runs away", w, " ");
    for (i = 0; i < 100; i++) {
        line = "";
        for (k = 0; k < 24; k++) line = line w[(i * 7 + k) % 12 + 1] " ";
        printf "{\"text\": \"%s\"}\n", line;
    }
}' >"$tmp/data/train.jsonl"

# A daemon that is alive: the doomed one as long as it lives, then one that is not.
ready() {
    if [ -n "$DAEMON" ] && ! kill -0 "$DAEMON" 2>/dev/null; then
        status=0
        wait "$DAEMON" || status=$?
        [ $status -eq 137 ] || fail "the daemon ended with status $status at n = $n"
        DAEMON=
        deaths=$((deaths + 1))
    fi
    [ -n "$DAEMON" ] || start_daemon
}

start_doomed() {
    mkdir -p "$state"
    (cd / && export FAULT=kill FAULT_AT="$n" LD_PRELOAD="$fault_at" &&
        exec "$dllmd" --config "$tmp/dllmd.json" --state "$state" --listen 127.0.0.1:0 \
            --worker "$worker") >>"$tmp/dllmd.log" 2>&1 &
    DAEMON=$!
    for _ in $(seq 400); do
        if ! kill -0 "$DAEMON" 2>/dev/null; then
            ready
            return
        fi
        if [ -s "$state/run/url" ]; then
            URL=$(cat "$state/run/url")
            curl -fsS -o /dev/null "$URL/readyz" 2>/dev/null && return
        fi
        sleep 0.02
    done
    fail "the daemon does not get ready at n = $n"
}

# ask PATH [CURL-OPTION...]: asked again where the daemon died over it; prints the answer
ask() {
    path=$1
    shift
    for _ in 1 2 3; do
        curl -sS --max-time 20 "$@" "$URL$path" >"$tmp/asked" 2>/dev/null && return
        sleep 0.05
        ready
    done
    fail "no answer to $path at n = $n"
}

# submit_once NAME JQ-FILTER: sets $id
submit_once() {
    spec "$@" >"$tmp/spec-$1.json"
    ask /v1/jobs --json @"$tmp/spec-$1.json" -H "Idempotency-Key: $1"
    id=$(jq -e .id "$tmp/asked") || fail "n = $n: refused: $(cat "$tmp/asked")"
}

# until_state ID STATE: every checkpoint that is listed meanwhile goes into $tmp/listed
until_state() {
    for _ in $(seq 600); do
        ask "/v1/jobs/$1/checkpoints"
        jq -c '.checkpoints[] | [.id, .step]' "$tmp/asked" >>"$tmp/listed"
        ask "/v1/jobs/$1"
        now=$(jq -r .state "$tmp/asked")
        [ "$now" = "$2" ] && return
        case "$now" in succeeded | failed | cancelled) break ;; esac
        sleep 0.02
    done
    fail "n = $n: job $1 is $now, not $2: $(jq -c '[.reason, .attempts]' "$tmp/asked")"
}

small='.steps = 4 | .batch.sequences = 2 | .evaluate.every = 0 | .checkpoint = {every: 2, keep: 5}'
scenario() {
    n=$1
    deaths=0
    state=$tmp/n-$n
    : >"$tmp/listed"
    start_doomed
    submit_once kept "$small"
    kept=$id
    submit_once dropped "$small | .steps = 100000 | .checkpoint.every = 1000000"
    dropped=$id
    until_state "$kept" succeeded
    ask "/v1/jobs/$dropped/cancel" -X POST
    until_state "$dropped" cancelled

    check "n = $n: every step once" "$(ask "/v1/jobs/$kept/metrics?keys=loss" &&
        jq '.series.loss.steps == [1, 2, 3, 4]' "$tmp/asked")" = true
    ask "/v1/jobs/$kept/metrics?keys=loss"
    curve=$(jq -c '.series.loss.values' "$tmp/asked")
    : "${first_curve:=$curve}"
    check "n = $n: the same losses" "$curve" = "$first_curve"
    ask "/v1/jobs/$kept/checkpoints"
    check "n = $n: checkpoints" "$(jq -c '[.checkpoints[].step] | sort' "$tmp/asked")" = '[2,4]'
    check "n = $n: none that was listed is gone" "$(jq -cs --slurpfile now "$tmp/asked" \
        '. - [$now[0].checkpoints[] | [.id, .step]]' "$tmp/listed")" = '[]'
    check "n = $n: files of checkpoints" "$(ls -A "$state/jobs/$kept/checkpoints" | tr '\n' ' ')" = \
        "step-000000002 step-000000004 "
    ask "/v1/jobs/$kept"
    check "n = $n: attempts" "$(jq '.attempts | length' "$tmp/asked")" -le 2
    submit_once kept "$small"
    check "n = $n: the key" "$id" = "$kept"
    ask /v1/jobs
    check "n = $n: jobs" "$(jq -c '[.jobs[].id] | sort' "$tmp/asked")" = "[$kept,$dropped]"
    check "n = $n: datasets" "$(find "$state/datasets" -mindepth 1 -maxdepth 1 | wc -l)" = 1
    check "n = $n: no process is left" -z "$(processes_here)"
    if [ $deaths -eq 0 ]; then # it dies at its end, or not at all
        kill -TERM "$DAEMON"
        wait "$DAEMON" 2>/dev/null || true
        kill -0 "$DAEMON" 2>/dev/null && fail "n = $n: the daemon does not end"
        DAEMON=
        start_daemon # and looks through its database
    fi
    stop_daemon
    if command -v sqlite3 >/dev/null; then
        check "n = $n: the database" "$(sqlite3 "$state/dllmd.db" \
            'PRAGMA integrity_check; PRAGMA foreign_key_check')" = ok
    fi
    rm -rf "$state"
}

# A new database, and nothing else.
beginning() {
    n=$1
    deaths=0
    state=$tmp/n-$n
    start_doomed
    ask /v1/jobs
    check "n = $n: no jobs" "$(jq '.jobs | length' "$tmp/asked")" = 0
    kill_daemon
    rm -rf "$state"
}

start_daemon # for its settings
stop_daemon
if [ -n "${DLLMD_TEST_KILL_AT-}" ]; then
    for n in $DLLMD_TEST_KILL_AT; do
        scenario "$n"
        echo "n = $n: $deaths deaths"
    done
    finish
    exit
fi
for n in $(seq 40); do
    beginning "$n"
done
n=1
step=${DLLMD_TEST_LONG:+1}
step=${step:-53}
deaths=1
while [ $deaths -gt 0 ]; do # until it runs through
    scenario "$n"
    n=$((n + step))
done
echo "$n operations"
[ "$n" -ge 300 ] || fail "the scenario ran through after $n operations: they are not counted"
finish
