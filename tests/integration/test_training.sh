#!/bin/sh
# The daemon with the real worker: a job trains, with the daemon killed in the middle of it as
# without, and a killed rank is named.
. "$(dirname "$0")/lib.sh"

start_daemon
mkdir -p "$tmp/data"
# Text that can be learnt: few words, in order.
awk 'BEGIN {
    split("the quick brown fox jumps over the lazy dog and runs away", w, " ");
    for (i = 0; i < 600; i++) {
        line = "";
        for (k = 0; k < 24; k++) line = line w[(i * 7 + k) % 12 + 1] " ";
        printf "{\"text\": \"%s\"}\n", line;
    }
}' >"$tmp/data/train.jsonl"
filter='.steps = 160 | .data.sequence_length = 128 | .batch.sequences = 4 | .optimizer.lr = 0.01 |
    .evaluate.every = 80'
losses() {
    get "/v1/jobs/$1/metrics?keys=loss&points=10000" | jq -c .series.loss.values
}

# Undisturbed.
calm=$(submit calm "$filter")
wait_state "$calm" succeeded >/dev/null
check "it learns" "$(get "/v1/jobs/$calm/metrics?keys=bound" |
    jq '.series.bound.values | .[1] < .[0]')" = true
check "evaluations" "$(get "/v1/jobs/$calm/metrics?keys=bound" | jq -c .series.bound.steps)" = \
    '[80,160]'

# The daemon is killed twice meanwhile.
rough=$(submit rough "$filter")
wait_step "$rough" 20
before=$(pids "$rough")
kill_daemon
sleep 0.3
start_daemon
wait_step "$rough" 60
kill_daemon
start_daemon
wait_state "$rough" succeeded >/dev/null
check "the same processes" "$(pids "$rough")" = "$before"
check "one attempt" "$(field "$rough" '.attempts | length')" = 1
check "the same losses" "$(losses "$rough")" = "$(losses "$calm")"

# Cancelled: the workers end by themselves.
id=$(submit cancelled "$filter | .steps = 100000")
wait_step "$id" 5
post "/v1/jobs/$id/cancel" >/dev/null
wait_state "$id" cancelled >/dev/null
check "how they ended" "$(field "$id" '[.attempts[0].workers[].exit_status] | unique | join(" ")')" = \
    stopped

# A rank is killed: it is the cause, whatever the other one says of it.
id=$(submit killed "$filter | .steps = 100000")
wait_step "$id" 5
kill -9 "$(pids "$id" | tail -n 1)"
wait_state "$id" failed >/dev/null
check "the reason" "$(field "$id" .reason)" = "rank 1 was killed by signal 9 (Killed)"

# Killed once, restarted from the beginning: the same curve again.
id=$(submit restarted "$filter | .restart.max = 1")
wait_step "$id" 20
kill -9 "$(pids "$id" | head -n 1)"
wait_state "$id" succeeded >/dev/null
check "attempts" "$(field "$id" '.attempts | length')" = 2
check "the same losses after a restart" "$(losses "$id")" = "$(losses "$calm")"

# Training that diverges ends with the step, and is not tried again.
id=$(submit diverging "$filter | .optimizer = {lr: 1e30, max_grad_norm: 0} | .restart.max = 3")
wait_state "$id" failed >/dev/null
case "$(field "$id" .reason)" in
*step\ *nan* | *step\ *inf*) ;;
*) fail "the reason names no step: $(field "$id" .reason)" ;;
esac
check "attempts of what diverges" "$(field "$id" '.attempts | length')" = 1

# A path that leads elsewhere by the time that it is read.
cp "$tmp/data/train.jsonl" "$tmp/data/other.jsonl"
hog=$(submit hog "$filter | .parallel.degree = 4 | .steps = 100000")
wait_step "$hog" 1
id=$(submit moved "$filter | .data.path = \"$tmp/data/other.jsonl\"")
mkdir -p "$tmp/elsewhere"
mv "$tmp/data/other.jsonl" "$tmp/elsewhere/other.jsonl"
ln -s "$tmp/elsewhere/other.jsonl" "$tmp/data/other.jsonl"
post "/v1/jobs/$hog/cancel" >/dev/null
wait_state "$id" failed >/dev/null
case "$(field "$id" .reason)" in
*other.jsonl\ leads\ to*) ;;
*) fail "the reason names no path: $(field "$id" .reason)" ;;
esac
rm "$tmp/data/other.jsonl"

# Data that turns out wrong while it is prepared.
printf '{"text": "fine"}\n{"text": 7}\n' >"$tmp/data/train.jsonl"
id=$(submit wrong "$filter")
wait_state "$id" failed >/dev/null
reason=$(field "$id" .reason)
case "$reason" in
*train.jsonl*line\ 2*) ;;
*) fail "the reason names no line: $reason" ;;
esac

finish
