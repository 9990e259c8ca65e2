#!/bin/sh
# The disk under the state directory fills up, while data is prepared, while a checkpoint is written
# and while the database is: whoever needs room waits, or fails and says why; what was there before
# stays whole; the daemon answers all the time; and with room again everything goes on.
. "$(dirname "$0")/lib.sh"

mkdir -p "$state"
if ! mount -t tmpfs -o size=24m none "$state" 2>/dev/null; then
    echo "SKIP: no file system can be mounted here"
    exit 77
fi
unmount_and_cleanup() {
    status=$?
    trap - EXIT
    umount -l "$state"
    (exit $status)
    cleanup
}
trap unmount_and_cleanup EXIT

mkdir -p "$tmp/data"
awk 'BEGIN {
    split("the quick brown fox jumps over the lazy dog and runs away", w, " ");
    for (i = 0; i < 600; i++) {
        line = "";
        for (k = 0; k < 24; k++) line = line w[(i * 7 + k) % 12 + 1] " ";
        printf "{\"text\": \"%s\"}\n", line;
    }
}' >"$tmp/data/train.jsonl"
filter='.data.sequence_length = 128 | .evaluate.every = 0'

# fill: takes all room that there is, also what a job that runs gives back meanwhile; free: gives it back
fill() {
    for _ in $(seq 100); do
        cat /dev/zero >>"$state/filler" 2>/dev/null || true
        [ "$(stat -f -c %f "$state")" != 0 ] || return 0
    done
    fail "the disk does not get full"
}
free() {
    rm "$state/filler"
}
# refused WHAT: about the answer in $tmp/answer: a problem document that names the disk
refused() {
    check "$1 is refused: $(cat "$tmp/answer")" "$(jq -r '.status == 503 and
        (.detail | test("full|No space"))' "$tmp/answer")" = true
}
all_answer() {
    for path in /healthz /v1/jobs /v1/tasks /v1/datasets "/v1/jobs/$1" "/v1/jobs/$1/events" \
        "/v1/jobs/$1/metrics?keys=loss" "/v1/jobs/$1/checkpoints" "/v1/jobs/$1/logs" /metrics /; do
        check "$path" "$(curl -s -o /dev/null -w '%{http_code}' --max-time 20 "$URL$path")" = 200
    done
}

start_daemon

# ---- While data is prepared ----
awk '{ for (i = 0; i < 120; i++) print }' "$tmp/data/train.jsonl" >"$tmp/data/large.jsonl"
id=$(submit large "$filter | .steps = 3 | .data.path = \"$tmp/data/large.jsonl\" | .parallel = {mode: \"none\"}")
wait_state "$id" failed >/dev/null
check "the reason: $(field "$id" .reason)" "$(field "$id" '.reason | test("No space left")')" = true
check "no half dataset" "$(get /v1/datasets | jq '.datasets | length')" = 0
all_answer "$id"
check "its files are gone" "$(du -sk "$state/datasets" | cut -f 1)" -lt 1000

# ---- While a checkpoint is written, and with it all else ----
id=$(submit saves "$filter | .steps = 100 | .checkpoint = {every: 10, keep: 2} | .restart.max = 2")
calm=$id
wait_state "$id" succeeded >/dev/null

id=$(submit squeezed "$filter | .steps = 100 | .checkpoint = {every: 10, keep: 2} | .restart.max = 2")
wait_step "$id" 25
stop_daemon # its log of writes, which has room of its own, begins anew
start_daemon
wait_step "$id" 45
fill
before=$(ls -A "$state/jobs/$id/checkpoints" | grep -c '^step-')
spec other "$filter" >"$tmp/spec.json"
accepted=0
for _ in $(seq 600); do
    cat /dev/zero >>"$state/filler" 2>/dev/null || true # what was removed meanwhile gave room
    curl -sS --max-time 30 --json @"$tmp/spec.json" "$URL/v1/jobs" >"$tmp/answer"
    jq -e .id "$tmp/answer" >/dev/null || break
    accepted=$((accepted + 1))
done
refused "a submission"
all_answer "$id"
check "it is not over" "$(field "$id" '.state == "running" or .state == "restarting"')" = true
check "older checkpoints stay" "$(ls -A "$state/jobs/$id/checkpoints" | grep -c '^step-')" -ge "$before"
free
for other in $(get '/v1/jobs?limit=500' | jq '.jobs[] | select(.name == "other") | .id'); do
    post "/v1/jobs/$other/cancel" >/dev/null
    accepted=$((accepted - 1))
done
check "accepted and not there" "$accepted" = 0
wait_state "$id" succeeded >/dev/null
losses() {
    get "/v1/jobs/$1/metrics?keys=loss&points=10000" | jq -c '.series.loss | [.steps, .values]'
}
check "every step once, and the same losses" "$(losses "$id")" = "$(losses "$calm")"
# Those of the steps in which there was no room are not made up for; nothing of them is left.
left=$(ls -A "$state/jobs/$id/checkpoints" | tr '\n' ' ')
check "what is kept: $left" "$(echo "$left" | grep -cx 'step-[0-9]* step-000000100 ')" = 1

# ---- An older checkpoint loads, and a full disk does not outlive the daemon ----
id=$(submit killed "$filter | .steps = 100 | .checkpoint = {every: 10, keep: 2} | .restart.max = 2")
wait_step "$id" 45
fill
kill_daemon
# shellcheck disable=SC2046
kill -9 $(processes_here)
free
start_daemon
wait_state "$id" succeeded >/dev/null
check "it goes on where one was saved" "$(field "$id" '.attempts[1].start_step >= 10')" = true
check "every step once, and the same losses" "$(losses "$id")" = "$(losses "$calm")"
finish
