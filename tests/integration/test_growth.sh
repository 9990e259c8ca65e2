#!/bin/sh
# A daemon that ran a hundred jobs is as small as after fifty, and holds no descriptor, process or
# thread of theirs.
. "$(dirname "$0")/lib.sh"

start_daemon

# jobs FROM TO: several at a time, each looked at in all ways
jobs() {
    for i in $(seq "$1" 4 "$2"); do
        ids=
        for k in 0 1 2 3; do
            ids="$ids $(submit "j$((i + k)).step-ms=1.chatty=3" \
                '.steps = 10 | .parallel = {mode: "none"}')"
        done
        for id in $ids; do
            wait_state "$id" succeeded >/dev/null
            for path in events metrics?keys=loss logs checkpoints; do
                get "/v1/jobs/$id/$path" >/dev/null
            done
        done
    done
}
rss_kb() {
    awk '/^VmRSS/ { print $2 }' "/proc/$DAEMON/status"
}
descriptors() {
    ls "/proc/$DAEMON/fd" | wc -l
}
threads() {
    ls "/proc/$DAEMON/task" | wc -l
}
# at_rest: until what the last job had is given back
at_rest() {
    for _ in $(seq 100); do
        [ "$(descriptors)" -le "$1" ] && return
        sleep 0.05
    done
    ls -l "/proc/$DAEMON/fd"
    fail "$(descriptors) descriptors, $1 before"
}

jobs 1 52
sleep 1
fds=$(descriptors)
kb=$(rss_kb)
tasks=$(threads)
jobs 53 104
at_rest "$fds"
grown=$(($(rss_kb) - kb))
echo "$kb kB and $fds descriptors after 52 jobs; $grown kB more after 104"
check "its threads" "$(threads)" -le "$tasks"
check "grown by kB" "$grown" -lt 3000
check "jobs" "$(get '/v1/jobs?limit=500&state=succeeded' | jq '.jobs | length')" = 104
check "no socket is left" "$(ls -A "$state/run" | tr '\n' ' ')" = "url worker.lock worker.sock "
finish
