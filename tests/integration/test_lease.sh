#!/bin/sh
# Workers whose daemon does not come back hold their attempt for as long as their lease lasts; then
# they save themselves and end, and the next daemon goes on from there.
. "$(dirname "$0")/lib.sh"

cat >"$tmp/dllmd.json" <<JSON
{"roots": ["$tmp"], "slots": 4, "lease_s": 2, "backoff_s": 0.05}
JSON
start_daemon
filter='.steps = 100000 | .checkpoint = {every: 0, keep: 2} | .evaluate.every = 0'
id=$(submit orphan "$filter")
wait_step "$id" 5

# With a daemon the lease is renewed: it lasts for longer than its time.
ranks=$(pids "$id")
sleep 3
check "a renewed lease" "$(pids "$id")" = "$ranks"
check "still the first attempt" "$(field "$id" '.attempts | length')" = 1

kill_daemon
for _ in $(seq 200); do
    alive=
    for pid in $ranks; do
        [ -d "/proc/$pid" ] && [ "$(sed 's/.*) //; s/ .*//' "/proc/$pid/stat" 2>/dev/null)" != Z ] && alive=$pid
    done
    [ -z "$alive" ] && break
    sleep 0.05
done
check "they end by themselves" -z "$alive"
saved=$(ls -A "$state/jobs/$id/checkpoints")
case "$saved" in
step-*) ;;
*) fail "they have not saved themselves: $saved" ;;
esac

start_daemon
wait_step "$id" "$(expr "$saved" : 'step-0*\([0-9]*\)')"
for _ in $(seq 200); do
    [ "$(field "$id" '.attempts | length')" = 2 ] && break
    sleep 0.05
done
check "it goes on from there" "$(printf 'step-%09d' "$(field "$id" '.attempts[1].start_step')")" = "$saved"
check "a lease that ended is no failure" "$(field "$id" .restarts)" = 0
case "$(get "/v1/jobs/$id/events" | jq -r '[.events[].message // empty] | join(";")')" in
*lease*) ;;
*) fail "the history does not speak of the lease" ;;
esac
post "/v1/jobs/$id/cancel" >/dev/null
wait_state "$id" cancelled >/dev/null

finish
