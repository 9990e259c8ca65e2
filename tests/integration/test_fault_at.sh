#!/bin/sh
# For one n after the other, the daemon's n-th operation is its last (kill), or fails (ENOSPC, EIO,
# EACCES), or its n-th allocation does (memory): tests/support/fault_at.c. It goes on, or it says why
# it ends, and the next one works. What it acknowledged is there, no step is lost or done twice,
# nothing half-made is taken for whole, and no process is left.
#
#   test_fault_at.sh DLLMD WORKER FAULT_AT.SO KIND
#
# DLLMD_TEST_LONG=1: for every n; otherwise for a few of them.
# DLLMD_TEST_FAULT_AT="7 8": for these alone.
. "$(dirname "$0")/at.sh"
kind=$4

# The daemon comes first, however few cores there are.
printf '#!/bin/sh\nexec nice -n 19 "%s" "$@"\n' "$worker" >"$tmp/worker"
chmod +x "$tmp/worker"
worker=$tmp/worker

# ---- A new database, and nothing else

beginning() {
    state=$tmp/begin
    launch_doomed "$kind" "$1"
    for _ in $(seq 500); do
        kill -0 "$DAEMON" 2>/dev/null || break
        [ -s "$state/run/url" ] && break
        sleep 0.01
    done
    if kill -0 "$DAEMON" 2>/dev/null; then
        URL=$(cat "$state/run/url")
        ask /v1/jobs
    else
        mourn
    fi
    [ -z "$DAEMON" ] || end_doomed
    [ -n "$DAEMON" ] || start_daemon
    ask /v1/jobs
    check "$fault at n = $n: no jobs" "$(jq '.jobs | length' "$tmp/asked")" = 0
    stop_daemon
    check_database "$state/dllmd.db"
    rm -rf "$state"
}

# ---- Some weeks of a daemon in a second

# In the template: a job that has ended, with its checkpoints, its data and its worker's log.
small='.parallel.degree = 1 | .batch.sequences = 1 | .steps = 4 | .evaluate.every = 2
    | .restart.max = 2 | .checkpoint = {every: 2, keep: 2}'
# The same on two ranks, which meet and exchange.
pair="$small | .parallel.degree = 2"
make_template() {
    state=$tmp/template
    start_daemon
    submit_once old "$pair"
    old=$id
    until_state "$old" succeeded
    ask "/v1/jobs/$old/metrics?keys=loss"
    curve=$(jq -c '.series.loss' "$tmp/asked")
    stop_daemon
}

# What somebody looks at; each answer is whole. All at once, then again what did not come.
look_around() {
    set -- jobs "jobs/$old" "jobs/$old/metrics?keys=loss" "jobs/$old/events" "jobs/$old/logs" \
        datasets tasks nodes tokens
    i=0
    asked=
    for path; do
        asked="$asked -o $tmp/seen-$i $URL/v1/$path"
        i=$((i + 1))
    done
    # shellcheck disable=SC2086
    curl -sS --max-time 20 -w '%{http_code}\n' $asked >"$tmp/codes" 2>/dev/null || true
    i=0
    for path; do
        i=$((i + 1))
        [ "$(sed -n ${i}p "$tmp/codes")" = 200 ] && continue
        ask "/v1/$path"
        cp "$tmp/asked" "$tmp/seen-$((i - 1))"
    done
    jq -es "length == $i" "$tmp"/seen-* >/dev/null || broken "an answer is no JSON"
    ask /openapi.json
    jq -e .paths "$tmp/asked" >/dev/null || broken "/openapi.json is not whole"
    ask /metrics
    tail -n 1 "$tmp/asked" | grep -q . || broken "/metrics is empty"
}

# The answer to a POST that may come twice: what was asked for is the case.
act() {
    ask "$1" -X POST
    case $code in
    2?? | 409) ;;
    *) broken "$1: $code $(cat "$tmp/asked")" ;;
    esac
}

life() {
    state=$tmp/life
    rm -rf "$state"
    cp -a "$tmp/template" "$state"
    : >"$tmp/listed"
    start_daemon
    submit_once long "$small | .steps = 1000000 | .checkpoint.every = 1000000
        | .evaluate.every = 0 | .batch.sequences = 256"
    long=$id
    until_state "$long" running
    kill_daemon # its worker goes on

    start_doomed "$kind" "$1"
    curl -sN --max-time 60 -H 'Accept: text/event-stream' "$URL/v1/jobs/$long/events" \
        >"$tmp/stream" 2>/dev/null &
    stream=$!
    submit_once kept "$pair"
    kept=$id
    look_around
    until_state "$kept" succeeded
    act "/v1/jobs/$long/checkpoint"
    act "/v1/jobs/$long/pause"
    until_state "$long" paused
    act "/v1/jobs/$long/resume"
    until_state "$long" running
    ask /v1/backup -X POST -H "Idempotency-Key: backup"
    backup=$(jq -er .path "$tmp/asked") || broken "no backup: $(cat "$tmp/asked")"
    ask /v1/tokens --json '{"name": "ci", "role": "read"}'
    act "/v1/jobs/$long/cancel"
    until_state "$long" cancelled
    ask "/v1/jobs/$old/checkpoints"
    first=$(jq '.checkpoints | map(.id) | min' "$tmp/asked")
    ask "/v1/checkpoints/$first" -X DELETE
    [ -z "$DAEMON" ] || end_doomed
    kill $stream 2>/dev/null || true
    wait $stream 2>/dev/null || true

    # Whatever happened to it, the next one has it all.
    [ -n "$DAEMON" ] || start_daemon
    for id in $old $kept; do
        ask "/v1/jobs/$id/metrics?keys=loss"
        check "$fault at n = $n: every step of job $id once" "$(jq -c .series.loss "$tmp/asked")" = \
            "$curve"
    done
    ask "/v1/jobs/$kept/checkpoints"
    check "$fault at n = $n: checkpoints" "$(jq -c '[.checkpoints[].step] | sort' "$tmp/asked")" = \
        '[2,4]'
    jq -c '.checkpoints[] | [.id, .step]' "$tmp/asked" >"$tmp/now"
    ask "/v1/jobs/$long/checkpoints"
    jq -c '.checkpoints[] | [.id, .step]' "$tmp/asked" >>"$tmp/now"
    check "$fault at n = $n: none that was listed is gone" "$(sort -u "$tmp/listed" |
        grep -vxFf "$tmp/now")" = ""
    ask "/v1/jobs/$old/checkpoints"
    check "$fault at n = $n: one is deleted" "$(jq -c '[.checkpoints[].step]' "$tmp/asked")" = '[4]'
    ask "/v1/jobs/$kept"
    check "$fault at n = $n: attempts" "$(jq '.attempts | length' "$tmp/asked")" -le 2
    submit_once kept "$pair"
    check "$fault at n = $n: the key" "$id" = "$kept"
    ask /v1/jobs
    check "$fault at n = $n: jobs" "$(jq -c '[.jobs[].id] | sort' "$tmp/asked")" = \
        "[$old,$long,$kept]"
    check "$fault at n = $n: no process is left" -z "$(processes_here)"
    stop_daemon
    check_database "$state/dllmd.db"
    check_database "$backup"
    check "$fault at n = $n: files" \
        "$(find "$state" ! -name '*.exit.partial' -name '*.partial*' -o -name '.deleting*' \
            -o -name '.aborted*')" = ""
    [ $failures -eq 0 ] || broken "checks failed"
    rm -rf "$state"
}

# all SCENARIO FIRST STEP LEAST: until one runs through, which takes at least LEAST operations.
all() {
    n=$2
    step=$3
    [ -z "${DLLMD_TEST_LONG-}" ] || step=1
    runs=0
    while "$1" "$n" && [ -e "$struck" ]; do
        runs=$((runs + 1))
        n=$((n + step))
    done
    echo "$kind, $1: $runs times, up to n = $n"
    [ "$n" -ge "$4" ] || fail "$1 ran through after $n operations: they are not counted"
}

make_template
if [ -n "${DLLMD_TEST_FAULT_AT-}" ]; then
    [ "$kind" != memory ] || export FAULT_EACH=2
    for n in $DLLMD_TEST_FAULT_AT; do
        life "$n"
        echo "$kind at n = $n: $deaths ends"
    done
elif [ "$kind" = memory ]; then
    all beginning 1 1700 10000
    export FAULT_EACH=2 # otherwise it would be SQLite's for days
    all life 277 499 1000
elif [ "$kind" = kill ]; then
    all beginning 1 13 150
    all life 3 83 400
else
    all beginning 1 37 150
    all life 5 151 400
fi
finish
