#!/bin/sh
# All threads of the daemon at once: jobs run, pause, go on and are cancelled, while clients submit,
# look at everything, follow events and write backups. For the thread sanitizer, whose findings make
# the daemon end with a status of its own; elsewhere it is a busy minute of its life in a second.
#
#   test_threads.sh DLLMD FAKE_WORKER
. "$(dirname "$0")/lib.sh"

start_daemon
jobs=
for steps in 1000000 1000001 60; do
    id=$(submit "step-ms=10.chatty=3" ".steps = $steps | .parallel.degree = 1")
    jobs="$jobs $id"
done
set -- $jobs
wait_state "$1" running >/dev/null

for id in $jobs; do
    curl -sN --max-time 60 -H 'Accept: text/event-stream' "$URL/v1/jobs/$id/events" \
        >"$tmp/stream-$id" 2>/dev/null &
    streams="${streams-} $!"
done
for reader in 1 2 3 4; do
    (
        for _ in 1 2 3 4 5 6; do
            for path in /metrics /readyz /v1/jobs "/v1/jobs/$1" "/v1/jobs/$1/metrics?points=10" \
                "/v1/jobs/$1/events" "/v1/jobs/$1/logs" "/v1/jobs/$1/checkpoints" /v1/tasks \
                /v1/datasets /v1/nodes /v1/tokens /openapi.json; do
                get "$path" >"$tmp/read-$reader"
            done
        done
    ) &
    readers="${readers-} $!"
done
(
    for i in 1 2 3 4 5; do
        post /v1/backup >/dev/null
        spec "step-ms=1.late=$i" '.steps = 5' >"$tmp/late-$i.json"
        curl -sS --json @"$tmp/late-$i.json" "$URL/v1/jobs" >/dev/null
        spec "dry-$i" >"$tmp/dry-$i.json"
        curl -sS --json @"$tmp/dry-$i.json" "$URL/v1/jobs?dry_run=true" >/dev/null
    done
) &
writer=$!

post "/v1/jobs/$1/pause" >/dev/null
wait_state "$1" paused >/dev/null
post "/v1/jobs/$1/resume" >/dev/null
wait_state "$1" running >/dev/null
post "/v1/jobs/$2/cancel" >/dev/null
wait_state "$2" cancelled >/dev/null
post "/v1/jobs/$3/checkpoint" >/dev/null
kill -HUP "$DAEMON"
# shellcheck disable=SC2086
wait $readers $writer
wait_state "$3" succeeded >/dev/null
stop_daemon # job 1 and its streams outlive it
# shellcheck disable=SC2086
kill $streams 2>/dev/null || true
check "what a stream has seen" -n "$(grep -m 1 '^event: ' "$tmp/stream-$1")"
start_daemon
check "jobs" "$(get /v1/jobs | jq '.jobs | length')" = 8
post "/v1/jobs/$1/cancel" >/dev/null
wait_state "$1" cancelled >/dev/null
finish
