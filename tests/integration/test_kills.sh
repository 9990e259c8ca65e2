#!/bin/sh
# The daemon is killed twenty times in the middle of one run: the same processes go on, and nothing
# is lost or doubled.
. "$(dirname "$0")/lib.sh"

mkdir -p "$tmp/data"
awk 'BEGIN {
    split("the quick brown fox jumps over the lazy dog and runs away", w, " ");
    for (i = 0; i < 100; i++) {
        line = "";
        for (k = 0; k < 24; k++) line = line w[(i * 7 + k) % 12 + 1] " ";
        printf "{\"text\": \"%s\"}\n", line;
    }
}' >"$tmp/data/train.jsonl"

filter='.steps = 150 | .data.sequence_length = 128 | .batch.sequences = 4 | .optimizer.lr = 0.01 |
    .evaluate.every = 0 | .checkpoint = {every: 5, keep: 3}'
losses() {
    get "/v1/jobs/$1/metrics?keys=loss&points=10000" | jq -c .series.loss.values
}

start_daemon
calm=$(submit calm "$filter")
wait_state "$calm" succeeded >/dev/null

id=$(submit harried "$filter")
wait_state "$id" running >/dev/null
before=$(pids "$id")
for round in $(seq 20); do
    wait_step "$id" $((round * 6))
    sleep "0.0$((round * 7 % 10))" # somewhere in a step, a checkpoint, a commit
    check "round $round: the run goes on" "$(field "$id" .state)" = running
    kill_daemon
    start_daemon
done
wait_state "$id" succeeded >/dev/null
check "the same processes" "$(pids "$id")" = "$before"
check "one attempt" "$(field "$id" '.attempts | length')" = 1
check "every step once" "$(get "/v1/jobs/$id/metrics?keys=loss&points=10000" |
    jq '.series.loss.steps == [range(1; 151)]')" = true
check "the same losses" "$(losses "$id")" = "$(losses "$calm")"
check "each state once" "$(get "/v1/jobs/$id/events" |
    jq -r '[.events[] | select(.type == "state") | .to] | join(" ")')" = \
    "queued starting running succeeded"
check "what is kept" "$(ls -A "$state/jobs/$id/checkpoints" | tr '\n' ' ')" = \
    "step-000000140 step-000000145 step-000000150 "
check "each checkpoint is in the history once" "$(get "/v1/jobs/$id/events?limit=1000" |
    jq -c '[.events[] | select(.type == "checkpoint") | .data.step] |
        . == unique and length > 15 and .[-1] == 150')" = true

finish
