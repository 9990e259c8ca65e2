#!/bin/sh
# A job that saves itself goes on from there: after kills of its ranks, pauses, and deaths of the
# daemon in the middle of a checkpoint, with the curve of an undisturbed run.
. "$(dirname "$0")/lib.sh"

start_daemon
mkdir -p "$tmp/data"
awk 'BEGIN {
    split("the quick brown fox jumps over the lazy dog and runs away", w, " ");
    for (i = 0; i < 600; i++) {
        line = "";
        for (k = 0; k < 24; k++) line = line w[(i * 7 + k) % 12 + 1] " ";
        printf "{\"text\": \"%s\"}\n", line;
    }
}' >"$tmp/data/train.jsonl"
# 40 samples a step: the run passes from one epoch into the next several times.
filter='.steps = 120 | .data.sequence_length = 128 | .batch.sequences = 4 | .optimizer.lr = 0.01 |
    .evaluate.every = 0 | .checkpoint = {every: 10, keep: 2} | .restart.max = 5'
losses() {
    get "/v1/jobs/$1/metrics?keys=loss&points=10000" | jq -c .series.loss.values
}
steps() {
    get "/v1/jobs/$1/metrics?keys=loss&points=10000" | jq -c '.series.loss.steps == [range(1; 121)]'
}
# wait_attempt ID N: until attempt N has begun
wait_attempt() {
    for _ in $(seq 600); do
        [ "$(field "$1" '.attempts | length')" -ge "$2" ] && return
        sleep 0.05
    done
    fail "job $1 does not begin attempt $2"
}
# saved ID: what lies in the job's directory
saved() {
    ls -A "$state/jobs/$1/checkpoints" | tr '\n' ' '
}
# An undisturbed curve, bit for bit: it is the same number of ranks.
same_as_calm() {
    check "$2: every step once" "$(steps "$1")" = true
    check "$2: the same losses" "$(losses "$1")" = "$(losses "$calm")"
    check "$2: what is kept" "$(saved "$1")" = "step-000000110 step-000000120 "
}

calm=$(submit calm "$filter")
wait_state "$calm" succeeded >/dev/null
same_as_calm "$calm" undisturbed

# Ranks are killed, now one and now the other.
id=$(submit killed "$filter")
for step in 15 41 77; do
    wait_step "$id" $step
    attempts=$(field "$id" '.attempts | length')
    kill -9 "$(pids "$id" | sed -n "$((step % 2 + 1))p")"
    wait_attempt "$id" $((attempts + 1))
done
wait_state "$id" succeeded >/dev/null
same_as_calm "$id" killed
check "attempts" "$(field "$id" '.attempts | length')" = 4
check "each goes on where one was saved" "$(field "$id" '[.attempts[1:][].start_step |
    . >= 10 and . % 10 == 0] | all')" = true

# Paused and resumed: no work is lost, no restart is counted, the slots are free meanwhile.
id=$(submit paused "$filter")
wait_step "$id" 23
post "/v1/jobs/$id/pause" >/dev/null
wait_state "$id" paused >/dev/null
check "no process is left" "$(field "$id" '[.attempts[-1].workers[].ended_at] | all')" = true
step=$(field "$id" .step)
check "it is saved where it stopped" "$(saved "$id" | tr ' ' '\n' | sort | tail -n 1)" = \
    "$(printf 'step-%09d' "$step")"
post "/v1/jobs/$id/resume" >/dev/null
wait_state "$id" succeeded >/dev/null
same_as_calm "$id" paused
check "it went on there" "$(field "$id" '.attempts[1].start_step')" = "$step"
check "restarts" "$(field "$id" .restarts)" = 0

# The daemon dies again and again, right when a checkpoint is reported.
id=$(submit orphaned "$filter")
wait_step "$id" 5
before=$(pids "$id")
for step in 10 30 50 70 90; do
    wait_step "$id" $step
    kill_daemon
    start_daemon
done
wait_state "$id" succeeded >/dev/null
same_as_calm "$id" orphaned
check "the same processes" "$(pids "$id")" = "$before"

# Daemon and ranks die together.
id=$(submit everybody "$filter")
for step in 25 60; do
    wait_step "$id" $step
    ranks=$(pids "$id")
    kill_daemon
    # shellcheck disable=SC2086
    kill -9 $ranks
    start_daemon
done
wait_state "$id" succeeded >/dev/null
same_as_calm "$id" everybody

# Resumed in other modes and on other numbers of ranks: the same curve within summation order.
id=$(submit moved "$filter")
step=0
for parallel in '{mode: "csbp", degree: 4}' '{mode: "none"}' '{mode: "cp", degree: 2, data: 2}'; do
    step=$((step + 18))
    wait_step "$id" $step
    post "/v1/jobs/$id/pause" >/dev/null
    wait_state "$id" paused >/dev/null
    jq -n "{parallel: $parallel}" | post "/v1/jobs/$id/resume" --json @- >"$tmp/answer.json"
    check "it goes on as $parallel" "$(jq -r .state "$tmp/answer.json")" = queued
done
wait_state "$id" succeeded >/dev/null
check "moved: every step once" "$(steps "$id")" = true
check "moved: its ranks" "$(field "$id" '[.attempts[].workers | length] | map(tostring) | join(" ")')" = \
    "2 4 1 4"
check "moved: the same losses" "$(jq -n --argjson a "$(losses "$id")" --argjson b "$(losses "$calm")" \
    '[$a, $b] | transpose | map((.[0] - .[1]) / .[1] | fabs) | max < 1e-3')" = true
id=$(submit stuck "$filter | .steps = 100000")
wait_step "$id" 3
post "/v1/jobs/$id/pause" >/dev/null
wait_state "$id" paused >/dev/null
for wrong in '{parallel: {degree: 3, data: 3}}' '{parallel: "some"}' '{steps: 3}' \
    '{parallel: {mode: "none", degree: 2}}'; do
    jq -n "$wrong" | post "/v1/jobs/$id/resume" --json @- >"$tmp/answer.json"
    check "$wrong is refused" "$(jq '.status == 422 and (.errors | length > 0)' "$tmp/answer.json")" = \
        true
    check "$wrong changes nothing" "$(field "$id" .state)" = paused
done
post "/v1/jobs/$id/cancel" >/dev/null
wait_state "$id" cancelled >/dev/null

finish
