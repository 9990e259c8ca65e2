#!/bin/sh
# Workers that die, fail, or are killed: the attempt goes with them, and the reason is a sentence.
. "$(dirname "$0")/lib.sh"

start_daemon
reason() {
    field "$1" .reason
}
has() {
    case "$1" in *"$2"*) echo yes ;; *) echo "no: $1" ;; esac
}

# Killed from outside.
id=$(submit step-ms=50 '.steps = 10000')
wait_state "$id" running >/dev/null
kill -9 "$(pids "$id" | tail -n 1)"
wait_state "$id" failed >/dev/null
check "the reason" "$(has "$(reason "$id")" 'rank 1 was killed by signal 9')" = yes
check "the other one" "$(field "$id" '.attempts[0].workers[0].exit_status')" = stopped

# By itself, in the first attempt only: restarted from the beginning, with one curve.
id=$(submit once.die=0@10 '.restart.max = 2')
wait_state "$id" succeeded >/dev/null
check "attempts" "$(field "$id" '.attempts | length')" = 2
check "restarts" "$(field "$id" .restarts)" = 1
check "one curve" "$(get "/v1/jobs/$id/metrics?keys=loss" | jq -c .series.loss.steps)" = \
    "$(seq -s, 20 | sed 's/.*/[&]/')"
check "rewind" "$(get "/v1/jobs/$id/events" | jq '[.events[] | select(.type == "rewind")] | length')" = 1
check "why it restarted" "$(has "$(get "/v1/jobs/$id/events" |
    jq -r '.events[] | select(.to == "restarting") | .message')" 'rank 0 was killed by signal 9')" = yes

# Again and again.
id=$(submit die=1@3 '.restart.max = 2')
wait_state "$id" failed >/dev/null
check "attempts" "$(field "$id" '.attempts | length')" = 3
check "the reason" "$(has "$(reason "$id")" 'restart.max is 2')" = yes

# An error with a reason.
id=$(submit error=1@5)
wait_state "$id" failed >/dev/null
check "the reason" "$(reason "$id")" = "rank 1 failed: the fake disk is full"

# One that a restart cannot mend is not restarted.
id=$(submit invalid=0@5 '.restart.max = 5')
wait_state "$id" failed >/dev/null
check "attempts" "$(field "$id" '.attempts | length')" = 1

# An end without an exit file.
id=$(submit exit=0@5)
wait_state "$id" failed >/dev/null
check "the reason" "$(has "$(reason "$id")" 'rank 0 ended without saying why')" = yes

# What the dead one still had in its journal is kept.
id=$(submit chatty=50.die=0@15 '.parallel = {mode: "none"}')
wait_state "$id" failed >/dev/null
check "steps" "$(field "$id" .step)" = 14
check "its talk" "$(get "/v1/jobs/$id/events?limit=1000" |
    jq '[.events[] | select(.rank == 0 and .type == "chat")] | length')" = 700

# Data that cannot be prepared.
echo '{"text": "POISON"}' >"$tmp/data/train.jsonl"
id=$(submit poisoned)
wait_state "$id" failed >/dev/null
check "the reason" "$(reason "$id")" = "its data could not be prepared: line 1 is poisoned"

# Data that is gone when its turn comes.
make_data
long=$(submit step-ms=50 '.steps = 10000 | .parallel.degree = 4')
wait_state "$long" running >/dev/null
cp "$tmp/data/train.jsonl" "$tmp/data/gone.jsonl"
id=$(submit gone ".data.path = \"$tmp/data/gone.jsonl\"")
rm "$tmp/data/gone.jsonl"
post "/v1/jobs/$long/cancel" >/dev/null
wait_state "$id" failed >/dev/null
check "the reason" "$(has "$(reason "$id")" 'gone.jsonl')" = yes

# A preparation that is killed is tried again, as often as restart.max says.
echo '{"text": "SLOW"}' >"$tmp/data/train.jsonl"
id=$(submit killed '.restart.max = 1')
last=null
for round in 1 2; do
    for _ in $(seq 200); do
        pid=$(get "/v1/tasks?job_id=$id" | jq -r '.tasks[0].pid')
        [ "$pid" != null ] && [ "$pid" != "$last" ] && break
        sleep 0.05
    done
    last=$pid
    kill -9 "$pid"
done
wait_state "$id" failed >/dev/null
check "the reason" "$(has "$(reason "$id")" 'killed by signal 9')" = yes
check "restarts" "$(field "$id" .restarts)" = 1
check "one task" "$(get "/v1/tasks?job_id=$id" | jq '.tasks | length')" = 1
make_data

# A journal that cannot be read is given up, and the history says so.
id=$(submit step-ms=20 '.steps = 10000 | .parallel = {mode: "none"}')
wait_step "$id" 5
at=$state/jobs/$id/attempts/1
mv "$at/rank-0.journal" "$at/moved"
mkdir "$at/rank-0.journal"
kill -9 "$(pids "$id")"
wait_state "$id" failed >/dev/null
check "the reason" "$(has "$(reason "$id")" 'rank 0 was killed by signal 9')" = yes
check "the history" "$(has "$(get "/v1/jobs/$id/events" |
    jq -r '.events[] | select(.type == "error") | .message')" "$at/rank-0.journal")" = yes

# Files beside the data change all the time, which is nobody's business.
echo '{"text": "SLOW"}' >"$tmp/data/train.jsonl"
id=$(submit beside ".data.path = \"$tmp/data\"")
wait_state "$id" preparing >/dev/null
for i in 1 2 3 4 5 6; do
    echo "$i" >>"$tmp/data/x.log"
    submit "wake-$i" ".data.path = \"$tmp/data\"" >/dev/null
done
check "one task" "$(get '/v1/tasks' | jq '[.tasks[] | select(.state == "queued" or .state == "running")] | length')" = 1
for job in $(get '/v1/jobs' | jq '.jobs[] | select(.state == "preparing" or .state == "queued") | .id'); do
    post "/v1/jobs/$job/cancel" >/dev/null
    wait_state "$job" cancelled >/dev/null
done
rm "$tmp/data/x.log"

# Data that changes all the time itself: one task at a time, and not for ever.
make_data
(
    while [ ! -e "$tmp/calm" ]; do
        printf '{"text": "more"}\n' >>"$tmp/data/train.jsonl"
        sleep 0.01
    done
) &
id=$(submit restless)
wait_state "$id" failed >/dev/null
touch "$tmp/calm"
wait $!
check "the reason" "$(has "$(reason "$id")" "changes all the time, $tmp/data/train.jsonl last")" = yes
check "its tasks" "$(get "/v1/tasks?job_id=$id" | jq '.tasks | length')" = 3
check "none overlap" "$(get "/v1/tasks?job_id=$id" |
    jq '.tasks | sort_by(.id) | . as $t | [range(1; length) | $t[.].created_at >= $t[. - 1].finished_at] | all')" = true
make_data

# A worker program that is not there.
stop_daemon
worker=$tmp/no-such-worker
start_daemon
id=$(submit nobody)
wait_state "$id" failed >/dev/null
check "the reason" "$(has "$(reason "$id")" "cannot start $tmp/no-such-worker")" = yes

finish
