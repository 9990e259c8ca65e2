#!/bin/sh
# The daemon goes and comes back, by SIGTERM and by SIGKILL: the same processes go on, and nothing
# is lost or doubled.
. "$(dirname "$0")/lib.sh"

start_daemon
id=$(submit step-ms=10 '.steps = 400')
wait_state "$id" running >/dev/null
before=$(pids "$id")

# In the middle of a run, several times.
for round in 1 2 3; do
    wait_step "$id" $((round * 20))
    kill_daemon
    sleep 0.3
    start_daemon
done
stop_daemon
check "workers outlive it" "$(processes_here | wc -l)" = 2
start_daemon
wait_state "$id" succeeded >/dev/null
check "the same processes" "$(pids "$id")" = "$before"
check "one attempt" "$(field "$id" '.attempts | length')" = 1
check "no step lost, none doubled" "$(get "/v1/jobs/$id/metrics?keys=loss&points=1000" |
    jq -c '.series.loss.steps == [range(1; 401)]')" = true
check "each state once" "$(get "/v1/jobs/$id/events" |
    jq -r '[.events[] | select(.type == "state") | .to] | join(" ")')" = \
    "queued preparing starting running succeeded"

# It ends while nobody looks.
id=$(submit step-ms=10 '.steps = 50')
wait_state "$id" running >/dev/null
kill_daemon
sleep 1.5
start_daemon
wait_state "$id" succeeded >/dev/null
check "its steps" "$(get "/v1/jobs/$id/metrics?keys=loss" | jq '.series.loss.total')" = 50

# It dies while nobody looks: the journal counts, the job is restarted.
id=$(submit once.step-ms=10.die=0@30 '.steps = 60 | .restart.max = 1')
wait_step "$id" 1
kill_daemon
sleep 1
start_daemon
wait_state "$id" succeeded >/dev/null
check "attempts" "$(field "$id" '.attempts | length')" = 2
check "the journal was read" "$(get "/v1/jobs/$id/events" |
    jq -c '[.events[] | select(.type == "rewind")] | length')" = 1
check "its steps" "$(get "/v1/jobs/$id/metrics?keys=loss" | jq '.series.loss.total')" = 60

# It dies while a daemon looks that did not start it: not our child, so no signal is known.
id=$(submit step-ms=20 '.steps = 10000')
wait_state "$id" running >/dev/null
kill_daemon
start_daemon
kill -9 "$(pids "$id" | head -n 1)"
wait_state "$id" failed >/dev/null
check "the reason" "$(field "$id" .reason | grep -c 'rank 0 ended without saying why')" = 1

# Acknowledged and killed at once: the job is there, and runs.
for i in 1 2 3; do
    id=$(submit "quick-$i")
    kill_daemon
    start_daemon
    check "the submission" "$(field "$id" .name)" = "quick-$i"
    wait_state "$id" succeeded >/dev/null
done

# A cancel that was asked for is carried out by the next daemon.
id=$(submit step-ms=10.deaf '.steps = 100000')
wait_state "$id" running >/dev/null
post "/v1/jobs/$id/cancel" >/dev/null
kill_daemon
start_daemon
wait_state "$id" cancelled >/dev/null

# In the middle of a preparation.
echo '{"text": "SLOW"}' >"$tmp/data/train.jsonl"
id=$(submit slow)
for _ in $(seq 100); do
    [ "$(get '/v1/tasks?limit=1' | jq -r '.tasks[0].pid')" != null ] && break
    sleep 0.05
done
task=$(get '/v1/tasks?limit=1' | jq '.tasks[0].pid')
kill_daemon
kill -9 "$task"
start_daemon
check "it is prepared again" "$(wait_state "$id" preparing)" = preparing
sleep 0.5
check "by another process" "$(get '/v1/tasks?limit=1' | jq ".tasks[0].pid != $task")" = true
post "/v1/jobs/$id/cancel" >/dev/null
wait_state "$id" cancelled >/dev/null
for _ in $(seq 100); do
    [ "$(get '/v1/tasks?limit=1' | jq -r '.tasks[0].state')" = cancelled ] && break
    sleep 0.05
done

# A second daemon on the same state is refused.
if "$dllmd" --config "$tmp/dllmd.json" --state "$state" --listen 127.0.0.1:0 2>"$tmp/second"; then
    fail "a second daemon runs"
fi
check "what it says" "$(grep -c 'another dllmd (process [0-9]*) serves' "$tmp/second")" = 1

# The database is removed: its jobs are forgotten, and what they left is not taken for that of the
# jobs that come now. A restored backup is the same.
make_data
stop_daemon
rm "$state"/dllmd.db*
start_daemon
old=$(submit step-ms=1 '.steps = 40')
wait_state "$old" succeeded >/dev/null
stop_daemon
cp "$state/dllmd.db" "$tmp/backup.db"
start_daemon
later=$(submit later.step-ms=1 '.steps = 40')
wait_state "$later" succeeded >/dev/null
for life in removed restored; do
    stop_daemon
    rm "$state"/dllmd.db*
    [ $life = removed ] || cp "$tmp/backup.db" "$state/dllmd.db"
    start_daemon
    id=$(submit exit=0@4 '.steps = 5 | .parallel = {mode: "none"}')
    check "the id again" "$id" = "$([ $life = removed ] && echo "$old" || echo "$later")"
    wait_state "$id" failed >/dev/null
    check "its own steps ($life)" "$(field "$id" .step)" = 3
    check "its own curve ($life)" "$(get "/v1/jobs/$id/metrics?keys=loss" |
        jq -c .series.loss.steps)" = "[1,2,3]"
    check "its own log ($life)" "$(grep -c 'rank 0 of' "$state/jobs/$id/attempts/1/rank-0.log")" = 1
    check "the old files ($life)" -n "$(ls "$state/jobs/$id".old-*/attempts/1/rank-0.journal)"
done
# An attempt that the backup does not know of.
id=$(submit step-ms=50.die=0@30 '.steps = 100 | .parallel = {mode: "none"} | .restart.max = 1')
wait_step "$id" 1
mkdir "$state/jobs/$id/attempts/2"
echo '{"status": "done"}' >"$state/jobs/$id/attempts/2/rank-0.exit"
wait_state "$id" failed >/dev/null
check "attempts" "$(field "$id" '.attempts | length')" = 2
check "its own end" "$(field "$id" '.attempts[1].workers[0].exit_status')" = killed
check "the old files" -s "$(echo "$state/jobs/$id/attempts/2".old-*)/rank-0.exit"

# The workers' socket is removed, then all of the runtime directory, under jobs that run.
ready() {
    curl -sS -o "$tmp/ready" -w '%{http_code}' "$URL/readyz"
}
id=$(submit step-ms=10 '.steps = 200')
wait_step "$id" 1
rm "$state/run/worker.sock"
check "ready" "$(ready)" = 200
check "it listens anew" -S "$state/run/worker.sock"
next=$(submit next.step-ms=1)
wait_state "$next" succeeded >/dev/null
rm -r "$state/run"
for _ in $(seq 100); do
    [ -s "$state/run/url" ] && break
    sleep 0.05
done
check "its url" "$(cat "$state/run/url")" = "$URL"
next=$(submit again.step-ms=1)
wait_state "$next" succeeded >/dev/null
wait_state "$id" succeeded >/dev/null
check "nothing was restarted" "$(field "$id" '.attempts | length')" = 1

# Where it cannot listen it says so, starts nothing, and goes on when it can.
rm -r "$state/run"
echo >"$state/run"
check "not ready" "$(ready)" = 503
check "why" "$(grep -c "$state/run" "$tmp/ready")" = 1
rm "$state/run"
check "ready again" "$(ready)" = 200
id=$(submit step-ms=1)
wait_state "$id" succeeded >/dev/null

# Another daemon with the same runtime directory is refused, and leaves what is the first one's.
jq ".runtime_directory = \"$state/run\"" "$tmp/dllmd.json" >"$tmp/other.json"
if "$dllmd" --config "$tmp/other.json" --state "$tmp/other" --listen 127.0.0.1:0 2>"$tmp/second"; then
    fail "two daemons share a runtime directory"
fi
check "what it says" "$(grep -c "another dllmd (process $DAEMON) serves $state/run" "$tmp/second")" = 1
check "the first one's url" "$(cat "$state/run/url")" = "$URL"
check "the first one's socket" -S "$state/run/worker.sock"

# The state directory is moved away under the daemon: nothing is acknowledged that nobody will find.
id=$(submit step-ms=10 '.steps = 600')
wait_step "$id" 1
mv "$state" "$tmp/away"
check "not ready" "$(ready)" = 503
check "why" "$(grep -c "$state/dllmd.db was removed or replaced" "$tmp/ready")" = 1
spec lost | curl -sS --json @- -o "$tmp/answer" -w '%{http_code}' "$URL/v1/jobs" >"$tmp/status"
check "a submission is refused" "$(cat "$tmp/status")" = 503
check "why" "$(grep -c "$state/dllmd.db was removed or replaced" "$tmp/answer")" = 1
check "nothing is made there" ! -e "$state"
mv "$tmp/away" "$state"
check "ready again" "$(ready)" = 200
check "it was not taken" "$(get '/v1/jobs?name=lost' | jq '.jobs | length')" = 0
wait_state "$id" succeeded >/dev/null
check "nothing was lost" "$(get "/v1/jobs/$id/metrics?keys=loss" | jq '.series.loss.total')" = 600
cp "$state/dllmd.db" "$tmp/copy.db"
mv "$state/dllmd.db" "$tmp/original.db"
mv "$tmp/copy.db" "$state/dllmd.db"
check "not ready with another database" "$(ready)" = 503
mv "$tmp/original.db" "$state/dllmd.db"
check "ready with its own" "$(ready)" = 200

finish
