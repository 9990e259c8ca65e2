#!/bin/sh
# Resources over time: ETags and what goes by them, keys of requests that come again, pages that do
# not move, HEAD, streams that go on, series that keep their extremes, and Prometheus.
. "$(dirname "$0")/lib.sh"

# ask CURL-OPTION...: sets $status, $tmp/answer, $tmp/head
ask() {
    : >"$tmp/head"
    : >"$tmp/answer"
    status=$(curl -sS -D "$tmp/head" -o "$tmp/answer" -w '%{http_code}' "$@")
}
header() {
    sed -n "s/^$1: *//Ip" "$tmp/head" | tr -d '\r'
}

start_daemon
make_data
id=$(submit first.step-ms=1 '.steps = 300')
wait_state "$id" succeeded >/dev/null

# ---- ETags ----
ask "$URL/v1/jobs/$id"
etag=$(header etag)
check "an ETag" "$(echo "$etag" | grep -cE '^"[0-9a-f]{32}"$')" = 1
for given in "$etag" "W/$etag" "\"x\", $etag" '*'; do
    ask -H "If-None-Match: $given" "$URL/v1/jobs/$id"
    check "If-None-Match: $given" "$status" = 304
    check "with the ETag" "$(header etag)" = "$etag"
    check "without a body" ! -s "$tmp/answer"
done
ask -H 'If-None-Match: "x"' "$URL/v1/jobs/$id"
check "another ETag" "$status" = 200
ask -H "If-None-Match: $etag" "$URL/v1/jobs/999"
check "not found all the same" "$status" = 404
ask -I "$URL/v1/jobs/$id"
check "HEAD" "$status" = 200
check "HEAD has the ETag" "$(header etag)" = "$etag"
check "HEAD has the length" "$(header content-length)" = "$(get "/v1/jobs/$id" | wc -c)"
for path in "/v1/jobs" "/v1/jobs/$id/metrics" "/v1/jobs/$id/events" "/v1/jobs/$id/logs" /v1/tasks \
    /v1/tasks/1 /v1/datasets /v1/tokens "/v1/jobs/$id/checkpoints" /openapi.json; do
    ask "$URL$path"
    check "$path has an ETag" -n "$(header etag)"
    ask -H "If-None-Match: $(header etag)" "$URL$path"
    check "$path has not changed" "$status" = 304
done

long=$(submit long.step-ms=20 '.steps = 100000')
wait_state "$long" running >/dev/null
wait_step "$long" 3
ask -X POST -H 'If-Match: "x"' "$URL/v1/jobs/$long/cancel"
check "If-Match of something else" "$status" = 412
check "what it is now" -n "$(header etag)"
check "nothing was done" "$(field "$long" .intent)" = run
blocked=$(submit blocked '.parallel.degree = 4 | .batch.sequences = 4')
wait_state "$blocked" queued preparing >/dev/null
for _ in $(seq 20); do # until the scheduler has had its look
    ask "$URL/v1/jobs/$blocked"
    etag=$(header etag)
    sleep 0.1
    ask "$URL/v1/jobs/$blocked"
    [ "$etag" != "$(header etag)" ] || break
done
ask -X POST -H "If-Match: $etag" "$URL/v1/jobs/$blocked/pause"
check "If-Match of what it is: $(cat "$tmp/answer")" "$status" = 200
check "paused at once" "$(jq -r .state "$tmp/answer")" = paused
ask -X POST -H "If-Match: $etag" "$URL/v1/jobs/$blocked/resume"
check "it has changed since" "$status" = 412
ask -X POST -H 'If-Match: *' "$URL/v1/jobs/$blocked/resume"
check "whatever it is" "$status" = 200
ask -X POST -H 'If-Match: "x"' "$URL/v1/nodes/1/drain"
check "what goes by no ETag" "$status" = 412
check "does nothing" "$(get /v1/nodes | jq -r '.nodes[0].draining')" = false

# ---- Keys ----
spec keyed '.steps = 2' >"$tmp/spec.json"
spec keyed '.steps = 3' >"$tmp/other.json"
for _ in 1 2 3 4 5 6 7 8; do # at once
    curl -sS --json "@$tmp/spec.json" -H 'Idempotency-Key: one' "$URL/v1/jobs" >>"$tmp/all" &
    pids="${pids:-} $!"
done
# shellcheck disable=SC2086
wait $pids
check "eight at once, one job" "$(jq -s 'map(.id) | unique | length' "$tmp/all")" = 1
check "and one answer" "$(sort -u "$tmp/all" | wc -l)" = 1
keyed=$(jq -s '.[0].id' "$tmp/all")
ask --json "@$tmp/spec.json" -H 'Idempotency-Key: one' "$URL/v1/jobs"
check "later the same" "$(cat "$tmp/answer")" = "$(sort -u "$tmp/all")"
check "its status" "$status" = 201
check "its place" "$(header location)" = "/v1/jobs/$keyed"
ask --json "@$tmp/other.json" -H 'Idempotency-Key: one' "$URL/v1/jobs"
check "another body" "$status" = 422
check "what is wrong" "$(jq -r .type "$tmp/answer")" = urn:dllmd:problem:idempotency-key-reused
jq -c . "$tmp/spec.json" | ask --json @- -H 'Idempotency-Key: one' "$URL/v1/jobs"
check "the same in other bytes is another body" "$status" = 422
spec bad '.steps = 0' >"$tmp/bad.json"
ask --json "@$tmp/bad.json" -H 'Idempotency-Key: two' "$URL/v1/jobs"
check "a wrong spec" "$status" = 422
ask --json "@$tmp/spec.json" -H 'Idempotency-Key: two' "$URL/v1/jobs"
check "put right under its key" "$status" = 201
kill_daemon
start_daemon
ask --json "@$tmp/spec.json" -H 'Idempotency-Key: one' "$URL/v1/jobs"
check "after a death of the daemon" "$(jq .id "$tmp/answer")" = "$keyed"
ask -X POST -H 'Idempotency-Key: three' "$URL/v1/backup"
first=$(jq -r .path "$tmp/answer")
ask -X POST -H 'Idempotency-Key: three' "$URL/v1/backup"
check "one copy" "$(jq -r .path "$tmp/answer")" = "$first"
check "on disk, too" "$(find "$state/backups" -type f | wc -l)" = 1
ask -X POST -H 'Idempotency-Key: one' "$URL/v1/jobs/$long/cancel"
check "the same key of another route is another" "$status" = 200
ask -X POST -H 'Idempotency-Key: one' "$URL/v1/jobs/$blocked/cancel"
check "and of another job" "$(jq .id "$tmp/answer")" = "$blocked"
wait_state "$long" cancelled >/dev/null

# ---- Pages ----
for n in 1 2 3 4 5 6 7; do submit "page-$n" '.steps = 1' >/dev/null; done
ask "$URL/v1/jobs?limit=3"
jq '.jobs[].id' "$tmp/answer" >"$tmp/seen"
submit late '.steps = 1' >/dev/null
while cursor=$(jq -r '.next_cursor // empty' "$tmp/answer") && [ -n "$cursor" ]; do
    ask "$URL/v1/jobs?limit=3&cursor=$cursor"
    jq '.jobs[].id' "$tmp/answer" >>"$tmp/seen"
done
last=$(head -n 1 "$tmp/seen")
check "each once, newest first, whatever comes meanwhile" "$(tr '\n' ' ' <"$tmp/seen")" = \
    "$(seq "$last" -1 1 | tr '\n' ' ')"

# ---- Streams ----
curl -sSN -H 'Accept: text/event-stream' "$URL/v1/jobs/$id/events" >"$tmp/stream"
check "a stream of a job that is over ends" "$(grep -c '^id: ' "$tmp/stream")" -ge 5
middle=$(sed -n 's/^id: //p' "$tmp/stream" | sed -n 3p)
curl -sSN -H 'Accept: text/event-stream' -H "Last-Event-ID: $middle" "$URL/v1/jobs/$id/events" |
    sed -n 's/^id: //p' >"$tmp/rest"
check "it goes on behind an event" "$(tr '\n' ' ' <"$tmp/rest")" = \
    "$(sed -n 's/^id: //p' "$tmp/stream" | tail -n +4 | tr '\n' ' ')"
# Points that are taken back: one rank dies at step 60, in the first attempt.
again=$(submit once.step-ms=10.die=1@60 '.restart.max = 1 | .steps = 100')
curl -sSN -H 'Accept: text/event-stream' "$URL/v1/jobs/$again/events" >"$tmp/live" &
live=$!
wait_state "$again" succeeded >/dev/null
wait $live
check "a rewind is told" "$(sed -n '/^event: rewind/{n;s/^data: //p}' "$tmp/live" |
    jq -c '[.type, (.data.step | type)]')" = '["rewind","number"]'
check "between the attempts" "$(sed -n 's/^event: //p' "$tmp/live" | grep -c rewind)" = 1

# ---- Series ----
ask "$URL/v1/jobs/$id/metrics?keys=loss&points=10000"
jq '.series.loss' "$tmp/answer" >"$tmp/whole"
check "all of them" "$(jq -c '[.total, .sampled, (.steps | length)]' "$tmp/whole")" = '[300,false,300]'
ask "$URL/v1/jobs/$id/metrics?keys=loss&points=20"
jq '.series.loss' "$tmp/answer" >"$tmp/few"
check "few of them" "$(jq -c '[.total, .sampled, (.steps | length <= 20)]' "$tmp/few")" = '[300,true,true]'
check "real points" "$(jq -s '[.[0], .[1] | [.steps, .values] | transpose] | .[1] - .[0]' -c \
    "$tmp/whole" "$tmp/few")" = '[]'
check "with the extremes and the ends" "$(jq -s -c '[.[] | [(.values | min), (.values | max),
    .steps[0], .steps[-1]]] | unique | length' "$tmp/whole" "$tmp/few")" = 1
ask "$URL/v1/jobs/$id/metrics?keys=loss&from=100&to=109"
check "a range" "$(jq -c '.series.loss.steps' "$tmp/answer")" = "[$(seq -s , 100 109)]"
ask "$URL/v1/jobs/$id/metrics?keys=loss&from=9&to=3"
check "an empty range" "$(jq -c '.series.loss.steps' "$tmp/answer")" = '[]'

# ---- Prometheus ----
# A strict reader of the text format: each family announced once, by HELP and then TYPE, its samples
# behind it and nothing between; names, labels, escapes and numbers as they may be; no sample twice;
# counters end in _total, nothing else does; units are base units.
strict() {
    awk '
    function wrong(what) { print "line " NR ": " what ": " $0; bad = 1 }
    function name_of(text) { match(text, /^[a-zA-Z_:][a-zA-Z0-9_:]*/); return substr(text, 1, RLENGTH) }
    /^# HELP / {
        if ($3 in seen) wrong("a family twice")
        if (NF < 4) wrong("says nothing")
        family = $3; seen[family] = 1; typed = 0; next
    }
    /^# TYPE / {
        if ($3 != family || typed || NF != 4) wrong("TYPE without its HELP")
        if ($4 != "gauge" && $4 != "counter") wrong("no type")
        if (($4 == "counter") != (family ~ /_total$/)) wrong("_total is for counters")
        if (family ~ /_(ms|milliseconds|minutes|hours|kb|mb|kilobytes|megabytes|percent)(_|$)/) wrong("no base unit")
        if (family !~ /^(dllmd|process)_[a-z0-9_]+$/) wrong("no name of ours")
        typed = 1; next
    }
    /^#/ || /^$/ { wrong("neither HELP, TYPE nor a sample"); next }
    {
        if (name_of($0) != family || !typed) wrong("a sample without its family")
        rest = substr($0, length(name_of($0)) + 1)
        labels = ""
        if (substr(rest, 1, 1) == "{") {
            if (!match(rest, /^\{([a-z_]+="([^"\\\n]|\\\\|\\"|\\n)*"(,[a-z_]+="([^"\\\n]|\\\\|\\"|\\n)*")*)?\}/)) wrong("labels")
            labels = substr(rest, 1, RLENGTH); rest = substr(rest, RLENGTH + 1)
        }
        if (rest !~ /^ ([-+]?[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?|NaN|[-+]Inf)$/) wrong("value")
        if ((family labels) in samples) wrong("a sample twice")
        samples[family labels] = 1
    }
    END { exit bad }' "$1"
}
run=$(submit 'step-ms=20."quoted\name"' '.steps = 100000')
wait_state "$run" running >/dev/null
wait_step "$run" 5
ask "$URL/metrics"
check "its type" "$(header content-type)" = 'text/plain; version=0.0.4; charset=utf-8'
wrong=$(strict "$tmp/answer" || true)
check "Prometheus can read it: $wrong" -z "$wrong"
for name in step steps loss; do
    check "dllmd_job_$name" "$(grep -cF "dllmd_job_$name{job_id=\"$run\",job_name=\"step-ms=20.\\\"quoted\\\\name\\\"\"}" "$tmp/answer")" = 1
done
check "only jobs that are not over" "$(grep -c '^dllmd_job_step{' "$tmp/answer")" = 1
printf 'x 1\n' | strict - >/dev/null && fail "the strict reader is not"
printf '# HELP dllmd_x X.\n# TYPE dllmd_x counter\ndllmd_x 1\n' | strict - >/dev/null && fail "nor of counters"
printf '# HELP dllmd_x X.\n# TYPE dllmd_x gauge\ndllmd_x{a="b"c"} 1\n' | strict - >/dev/null && fail "nor of labels"
post "/v1/jobs/$run/cancel" >/dev/null
wait_state "$run" cancelled >/dev/null

finish
