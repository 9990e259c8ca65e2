#!/bin/sh
# Runs every shell block of the README, in order, against a daemon of its own; only the two set-up
# commands are left out. Each curl must succeed, and job 1 must end as the README lets one expect.
# usage: readme.sh DLLMD README.md
set -eu
dllmd=$1
readme=$2
work=$(mktemp -d)
export HOME="$work"
daemon=

finish() {
    status=$?
    [ -z "$daemon" ] || kill "$daemon" 2>/dev/null || true
    [ $status = 0 ] || tail -n 20 "$work/dllmd.log" >&2
    rm -rf "$work"
    exit $status
}
trap finish EXIT

"$dllmd" --state "$work/state" --listen 127.0.0.1:0 >"$work/dllmd.log" 2>&1 &
daemon=$!
for _ in $(seq 100); do
    [ -s "$work/state/run/url" ] && break
    sleep 0.1
done
url=$(cat "$work/state/run/url")

# The blocks as one script: each curl fails on an HTTP error, and says what it answered.
awk '/^```sh$/ {inside = 1; next} /^```$/ {inside = 0} inside' "$readme" |
    grep -v -e '^deploy/quickstart$' -e '^tests/run$' |
    sed -e "s|http://127.0.0.1:8470|$url|g" -e 's/curl -sS/curl --fail-with-body -sS/' >"$work/script"
curls=$(grep -c 'curl ' "$work/script")
[ "$curls" -ge 10 ] || {
    echo "only $curls curl lines found in $readme" >&2
    exit 1
}
cd "$work"
sh -eux ./script >output 2>trace || {
    cat output trace >&2
    exit 1
}

job=$(curl -fsS "$url/v1/jobs/1")
[ "$(printf '%s' "$job" | jq -r '.state, .attempts[1].start_step > 0')" = "succeeded
true" ] || {
    echo "job 1 was to succeed after a pause: $job" >&2
    exit 1
}
curl -fsS "$url/v1/jobs/1/metrics?keys=loss&points=10000" >metrics
[ "$(jq '.series.loss.steps == [range(1; 301)]' metrics)" = true ] || {
    echo "the curve of job 1 is not whole: $(cat metrics)" >&2
    exit 1
}
for _ in $(seq 100); do
    state=$(curl -fsS "$url/v1/jobs/2" | jq -r .state)
    [ "$state" = cancelled ] && break
    sleep 0.1
done
[ "$state" = cancelled ] || {
    echo "job 2 was cancelled, but is $state" >&2
    exit 1
}
echo "$curls curl lines ran"
