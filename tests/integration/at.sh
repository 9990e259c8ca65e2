# For tests that let the n-th operation of a daemon fail, or be its last (tests/support/fault_at.c).
# A test sources this with its arguments: the programs dllmd and the worker, and fault_at.so. What
# it asks for it gets from the doomed daemon, or from the next one.
#
#   . at.sh DLLMD WORKER FAULT_AT.SO
#   start_doomed FAULT N       waits until it is ready, or dead and followed by another one
#   ask PATH [CURL-OPTION...]  the answer into $tmp/asked; asked again while the daemon is short of
#                              something, dead, or does not answer
#   submit_once NAME FILTER    a job, under a key; sets $id
#   until_state ID STATE       every checkpoint that is listed meanwhile goes into $tmp/listed
#   end_doomed                 asks it to end, if it lives
. "$(dirname "$0")/lib.sh"
fault_at=$(realpath "$3")
fault=
n=0
deaths=0
struck=$tmp/struck

# libuv ends the process where it gets no memory for its threads or its table of descriptors, which
# the daemon makes it ask for at the start (daemon/control/loop.h) and then never again.
is_libuv() {
    ! grep -q " serves " "$tmp/doomed.log" &&
        grep -v '/libfault_at\|/libc\.so\|/ld-linux' "$struck" | head -n 1 | grep -q /libuv
}

# Its exit status, into $status.
bury() {
    status=0
    wait "$DAEMON" || status=$?
    DAEMON=
    ! grep -q 'Sanitizer\|runtime error' "$tmp/doomed.log" || broken "a sanitizer reports"
}

mourn() {
    bury
    deaths=$((deaths + 1))
    if [ "$fault" = kill ]; then
        [ $status -eq 137 ] || broken "the daemon ended with status $status"
        return
    fi
    [ $status -ne 134 ] || ! is_libuv || return 0
    [ $status -ge 1 ] && [ $status -le 2 ] || broken "the daemon ended with status $status"
    grep -q "[a-z] .*[a-z] .*[a-z]" "$tmp/doomed.log" || broken "the daemon ended without a reason"
}

broken() {
    echo "---- what failed, $fault at n = $n"
    [ ! -s "$struck" ] || explain "$struck"
    echo "---- its log"
    tail -n 30 "$tmp/doomed.log"
    fail "$fault at n = $n: $*"
}

# A daemon that is alive: the doomed one as long as it lives, then one that is not.
ready() {
    if [ -n "$DAEMON" ] && ! kill -0 "$DAEMON" 2>/dev/null; then
        mourn
    fi
    [ -n "$DAEMON" ] || start_daemon
}

launch_doomed() {
    fault=$1
    n=$2
    deaths=0
    mkdir -p "$state"
    rm -f "$struck" "$state/run/url"
    (cd / && export FAULT="$fault" FAULT_AT="$n" FAULT_STRUCK="$struck" FAULT_COUNT="$tmp/count" \
        LD_PRELOAD="$fault_at" MALLOC_PERTURB_=165 &&
        exec "$dllmd" --config "$tmp/dllmd.json" --state "$state" --listen 127.0.0.1:0 \
            --worker "$worker") >"$tmp/doomed.log" 2>&1 &
    DAEMON=$!
}

start_doomed() {
    launch_doomed "$@"
    for _ in $(seq 500); do
        if ! kill -0 "$DAEMON" 2>/dev/null; then
            ready
            return
        fi
        if [ -s "$state/run/url" ]; then
            URL=$(cat "$state/run/url")
            curl -fsS -o /dev/null "$URL/readyz" 2>/dev/null && return
        fi
        sleep 0.02
    done
    broken "the daemon does not get ready"
}

ask() {
    path=$1
    shift
    for _ in $(seq 100); do
        code=$(curl -sS --max-time 20 -o "$tmp/asked" -w '%{http_code}' "$@" "$URL$path" \
            2>/dev/null) || code=000
        case $code in
        503 | 000) ;;
        500) broken "$path: $(cat "$tmp/asked")" ;;
        *) return ;;
        esac
        sleep 0.05
        ready
    done
    broken "no answer to $path: $code $(cat "$tmp/asked")"
}

submit_once() {
    spec "$@" >"$tmp/spec-$1.json"
    ask /v1/jobs --json @"$tmp/spec-$1.json" -H "Idempotency-Key: $1"
    # The data that it names could not be read, which the client is told.
    if [ "$code" = 422 ] && grep -q 'cannot be read: ' "$tmp/asked"; then
        ask /v1/jobs --json @"$tmp/spec-$1.json" -H "Idempotency-Key: $1"
    fi
    id=$(jq -e .id "$tmp/asked") || broken "refused: $(cat "$tmp/asked")"
}

until_state() {
    for _ in $(seq 600); do
        ask "/v1/jobs/$1/checkpoints"
        jq -c '.checkpoints[] | [.id, .step]' "$tmp/asked" >>"$tmp/listed"
        ask "/v1/jobs/$1"
        now=$(jq -r .state "$tmp/asked")
        [ "$now" = "$2" ] && return
        case "$now" in succeeded | failed | cancelled) break ;; esac
        sleep 0.02
    done
    broken "job $1 is $now, not $2: $(jq -c '[.reason, .attempts]' "$tmp/asked")"
}

end_doomed() {
    [ $deaths -eq 0 ] || return 0
    kill -TERM "$DAEMON" 2>/dev/null || true
    for _ in $(seq 500); do
        kill -0 "$DAEMON" 2>/dev/null || break
        sleep 0.02
    done
    kill -0 "$DAEMON" 2>/dev/null && broken "the daemon does not end"
    bury
    case $status in
    0 | 1 | 2) ;;
    137) [ "$fault" = kill ] || broken "the daemon ended with status $status" ;;
    *) broken "the daemon ended with status $status" ;;
    esac
}

check_database() {
    command -v sqlite3 >/dev/null || return 0
    check "$fault at n = $n: $1" \
        "$(sqlite3 "$1" 'PRAGMA integrity_check; PRAGMA foreign_key_check')" = ok
}

make_text
start_daemon # for its settings
stop_daemon
