#!/bin/sh
# The life of jobs that go well, through the API: submit, list, get, events, metrics, logs, cancel.
. "$(dirname "$0")/lib.sh"

start_daemon

# One job from its submission to its end.
id=$(submit first)
check "the first id" "$id" = 1
check "its state when submitted" "$(jq -r .state "$tmp/answer.json")" = queued
wait_state "$id" succeeded >/dev/null
check "steps done" "$(field "$id" .step)" = 20
check "attempts" "$(field "$id" '.attempts | length')" = 1
check "its outcome" "$(field "$id" '.attempts[0].outcome')" = done
check "its workers" "$(field "$id" '[.attempts[0].workers[].exit_status] | join(" ")')" = "done done"
check "the latest loss" "$(field "$id" .latest.loss.value)" = 0.25
check "the defaults are resolved" "$(field "$id" .spec.optimizer.type)" = adamw

# Its history tells every state once.
events=$(get "/v1/jobs/$id/events" | jq -r '[.events[] | select(.type == "state") | .to] | join(" ")')
check "states" "$events" = "queued preparing starting running succeeded"
check "a page of events" "$(get "/v1/jobs/$id/events?limit=2" | jq -r '.events | length')" = 2
check "its cursor" "$(get "/v1/jobs/$id/events?limit=2" | jq -r .next_cursor)" = 2
check "the rest" "$(get "/v1/jobs/$id/events?cursor=2" | jq -r '.events[0].id')" = 3

# The same as a stream: it ends with the job, and goes on from Last-Event-ID.
sse() {
    curl -sSN --max-time 20 -H 'Accept: text/event-stream' "$@" "$URL/v1/jobs/$id/events"
}
check "streamed ids" "$(sse | grep -c '^id: ')" = 5
check "after event 3" "$(sse -H 'Last-Event-ID: 3' | sed -n 's/^id: //p' | head -n 1)" = 4

check "nothing to come" "$(sse -H 'Last-Event-ID: 5' -o /dev/null -w '%{http_code}')" = 204

# Metrics: all of them, some of them, in ranges, and downsampled; NaN survives.
series() {
    get "/v1/jobs/$id/metrics$1" | jq -r ".series$2"
}
check "all steps" "$(series '?keys=loss' '.loss.steps | length')" = 20
check "a range" "$(series '?keys=loss&from=5&to=7' '.loss.steps | join(" ")')" = "5 6 7"
check "points" "$(series '?keys=loss&points=8' '.loss.sampled')" = true
check "first point" "$(series '?keys=loss&points=8' '.loss.steps[0]')" = 1
check "NaN" "$(series '?keys=grad_norm&from=7&to=7' '.grad_norm.values[0]')" = nan
check "all keys" "$(series '' ' | keys | join(" ")')" = \
    "bound evaluation_tokens grad_norm loss lr step_s time unigram_entropy"
check "no such key" "$(series '?keys=nope' '.nope.steps | length')" = 0

# Logs.
check "log of rank 1" "$(get "/v1/jobs/$id/logs?rank=1" | jq -r '.logs[0].text')" = "rank 1 of 2"
check "logs of both" "$(get "/v1/jobs/$id/logs" | jq -r '.logs | length')" = 2
check "plain" "$(curl -sS -H 'Accept: text/plain' "$URL/v1/jobs/$id/logs?rank=0&tail=1")" = \
    "rank 0 of 2"
check "no such rank" "$(get "/v1/jobs/$id/logs?rank=7" | jq -r .status)" = 404

# A second job of the same data takes the artifact that is there.
second=$(submit second)
wait_state "$second" succeeded >/dev/null
check "tasks" "$(get /v1/tasks | jq '.tasks | length')" = 1
check "the task" "$(get /v1/tasks/1 | jq -r .state)" = succeeded
check "datasets" "$(get /v1/datasets | jq '.datasets | length')" = 1
check "both use it" "$(field "$second" .dataset_id)" = "$(field "$id" .dataset_id)"
check "no second preparation" "$(get "/v1/jobs/$second/events" |
    jq '[.events[] | select(.to == "preparing")] | length')" = 0

# Unless the data has changed, or the artifact is gone.
echo '{"text": "more"}' >>"$tmp/data/train.jsonl"
third=$(submit third)
wait_state "$third" succeeded >/dev/null
check "tasks after a change" "$(get /v1/tasks | jq '.tasks | length')" = 2
rm -r "$state/datasets"/*
fourth=$(submit fourth)
wait_state "$fourth" succeeded >/dev/null
check "tasks after a loss" "$(get /v1/tasks | jq '.tasks | length')" = 3

# Lists: filters and cursors.
check "newest first" "$(get '/v1/jobs?limit=1' | jq -r '.jobs[0].id')" = 4
cursor=$(get '/v1/jobs?limit=2' | jq -r .next_cursor)
check "the next page" "$(get "/v1/jobs?limit=2&cursor=$cursor" | jq -r '[.jobs[].id] | join(" ")')" = "2 1"
check "the last page" "$(get "/v1/jobs?limit=2&cursor=$cursor" | jq -r .next_cursor)" = null
check "by name" "$(get '/v1/jobs?name=second' | jq -r '[.jobs[].id] | join(" ")')" = 2
check "by state" "$(get '/v1/jobs?state=queued,running' | jq '.jobs | length')" = 0

# Cancelled while it runs; while it queues; when it is over.
long=$(submit step-ms=50 '.steps = 10000')
wait_state "$long" running >/dev/null
queued=$(submit step-ms=50 '.steps = 10000 | .parallel.degree = 4')
small=$(submit small)
sleep 0.3
check "it waits for slots" "$(field "$queued" .state)" = queued
check "first come, first served" "$(field "$small" .state)" = queued
post "/v1/jobs/$queued/cancel" | jq -e '.state == "cancelled"' >/dev/null || fail "no cancel"
wait_state "$small" succeeded >/dev/null
post "/v1/jobs/$long/cancel" >/dev/null
wait_state "$long" cancelled >/dev/null
check "outcome of a cancelled attempt" "$(field "$long" '.attempts[0].outcome')" = stopped
check "cancel twice" "$(post "/v1/jobs/$long/cancel" | jq -r .state)" = cancelled
check "cancel what is done" "$(post "/v1/jobs/$id/cancel" | jq -r .status)" = 409

# Cancelled while its data is prepared.
echo '{"text": "SLOW"}' >"$tmp/data/train.jsonl"
slow=$(submit slow)
wait_state "$slow" preparing >/dev/null
post "/v1/jobs/$slow/cancel" >/dev/null
wait_state "$slow" cancelled >/dev/null
for _ in $(seq 100); do
    [ "$(get "/v1/tasks?job_id=$slow" | jq -r '.tasks[0].state')" = cancelled ] && break
    sleep 0.05
done
check "its task" "$(get "/v1/tasks?job_id=$slow" | jq -r '.tasks[0].state')" = cancelled

# One that does not listen is killed.
make_data
deaf=$(submit deaf.step-ms=50 '.steps = 10000')
wait_state "$deaf" running >/dev/null
post "/v1/jobs/$deaf/cancel" >/dev/null
wait_state "$deaf" cancelled >/dev/null

# The same key, the same answer, one job.
spec twice >"$tmp/spec.json"
jobs=$(get '/v1/jobs?limit=500' | jq '.jobs | length')
for i in 1 2; do
    curl -sS --json @"$tmp/spec.json" -H 'Idempotency-Key: k1' -D "$tmp/headers.$i" \
        "$URL/v1/jobs" >"$tmp/answer.$i"
done
check "the same answer" "$(cat "$tmp/answer.1")" = "$(cat "$tmp/answer.2")"
check "the same place" "$(grep -i ^location "$tmp/headers.1")" = "$(grep -i ^location "$tmp/headers.2")"
check "one job more" "$(get '/v1/jobs?limit=500' | jq '.jobs | length')" = $((jobs + 1))
spec other | curl -sS --json @- -H 'Idempotency-Key: k1' "$URL/v1/jobs" >"$tmp/answer.3"
check "another request" "$(jq -r .status "$tmp/answer.3")" = 422
wait_state "$(jq .id "$tmp/answer.1")" succeeded >/dev/null

# A dry run makes no job.
spec dry | curl -sS --json @- "$URL/v1/jobs?dry_run=true" >"$tmp/dry"
check "ranks" "$(jq '.plan.ranks | length' "$tmp/dry")" = 2
check "modes" "$(jq -r '.plan.modes | keys | join(" ")' "$tmp/dry")" = "bp cp csbp none"
check "half of cp's traffic" "$(jq '.plan.modes.csbp.received_bytes_per_step.attention * 2 <=
    .plan.modes.cp.received_bytes_per_step.attention' "$tmp/dry")" = true
check "fits" "$(jq .plan.fits "$tmp/dry")" = true
check "its resolved spec" "$(jq -r .spec.schedule.type "$tmp/dry")" = cosine
check "no job" "$(get '/v1/jobs?name=dry' | jq '.jobs | length')" = 0

# Health and Prometheus.
check "healthz" "$(get /healthz | jq -r .status)" = ok
check "prometheus" "$(get /metrics | sed -n 's/^dllmd_jobs{state="cancelled"} //p')" = 4
check "slots in use" "$(get /metrics | sed -n 's/^dllmd_slots_in_use //p')" = 0
check "a page" "$(curl -sS -o "$tmp/page" -w '%{content_type}' "$URL/")" = "text/html; charset=utf-8"
check "it is the dashboard, or says that there is none" "$(grep -c -e 'id="app"' -e 'has no dashboard' "$tmp/page")" = 1
check "HEAD" "$(curl -sS -I "$URL/v1/jobs" | head -n 1 | cut -c10-12)" = 200
check "the node's load" "$(get /v1/nodes | jq -c '.nodes[0].load | [.cpu_slots_in_use, .gpu_slots_in_use]')" = \
    '[0,0]'
check "the node" "$(get /v1/nodes | jq '.nodes[0].cpu_slots')" = 4

finish
