# What the integration tests share. A test sources this with its arguments: the programs dllmd and
# the worker to use. It gets a directory of its own, a daemon on a free port of loopback, and after
# it neither a process nor a file of it is left.
#
#   . lib.sh DLLMD WORKER
#   start_daemon [FLAG...]     waits until it is ready; sets $URL and $DAEMON (its pid)
#   submit NAME [JQ-FILTER]    a small job; prints its id
#   wait_state ID STATE...     waits until the job is in one of them; prints which
#   check WHAT CONDITION...    fails the test unless `test CONDITION` holds
set -eu

dllmd=$(realpath "$1")
worker=$(realpath "$2")
here=$(cd "$(dirname "$0")" && pwd)
tmp=$(mktemp -d "${TMPDIR:-/tmp}/dllmd-test.XXXXXX")
state=$tmp/state
DAEMON=
failures=0
# Faults are preloaded (tests/support/fault_at.c); the address sanitizer minds.
export ASAN_OPTIONS="verify_asan_link_order=0:${ASAN_OPTIONS-}"
# Proxies of the surroundings have no business with loopback.
unset http_proxy https_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY all_proxy

# Processes of this test: those whose working directory or descriptors lie below $tmp.
processes_here() {
    find /proc/[0-9]*/cwd -maxdepth 0 -lname "$tmp*" 2>/dev/null | cut -d / -f 3
}

cleanup() {
    status=$?
    trap - EXIT INT TERM
    if [ -n "$DAEMON" ]; then
        kill -9 "$DAEMON" 2>/dev/null || true
        wait "$DAEMON" 2>/dev/null || true
    fi
    left=$(processes_here)
    if [ -n "$left" ]; then
        # shellcheck disable=SC2086
        kill -9 $left 2>/dev/null || true
        if [ $status -eq 0 ]; then
            echo "FAIL: processes were left: $left"
            status=1
        fi
    fi
    if [ $status -ne 0 ] && [ -f "$tmp/dllmd.log" ]; then
        echo "---- the daemon's log"
        tail -n 60 "$tmp/dllmd.log"
    fi
    rm -rf "$tmp"
    exit $status
}
trap cleanup EXIT
trap 'exit 130' INT TERM

fail() {
    echo "FAIL: $*"
    exit 1
}

check() {
    what=$1
    shift
    if ! test "$@"; then
        echo "FAIL: $what: test $*"
        failures=$((failures + 1))
    fi
}

# finish: the end of a test
finish() {
    [ -z "$DAEMON" ] || stop_daemon
    check "processes at the end" -z "$(processes_here)"
    if [ $failures -ne 0 ]; then
        echo "$failures checks failed"
        exit 1
    fi
    echo "PASS"
}

start_daemon() {
    mkdir -p "$state"
    [ -f "$tmp/dllmd.json" ] || cat >"$tmp/dllmd.json" <<JSON
{"roots": ["$tmp"], "slots": 4, "stop_timeout_s": 1, "term_timeout_s": 1, "backoff_s": 0.05, "log_level": "debug"}
JSON
    rm -f "$state/run/url"
    (cd / && exec "$dllmd" --config "$tmp/dllmd.json" --state "$state" --listen 127.0.0.1:0 \
        --worker "$worker" "$@") >>"$tmp/dllmd.log" 2>&1 &
    DAEMON=$!
    for _ in $(seq 200); do
        kill -0 "$DAEMON" 2>/dev/null || fail "the daemon ended at its start"
        if [ -s "$state/run/url" ]; then
            URL=$(cat "$state/run/url")
            curl -fsS -o /dev/null "$URL/readyz" 2>/dev/null && return
        fi
        sleep 0.05
    done
    fail "the daemon does not get ready"
}

stop_daemon() {
    kill -TERM "$DAEMON"
    status=0
    wait "$DAEMON" || status=$?
    DAEMON=
    check "the daemon's exit status" "$status" -eq 0
    check "its url file" ! -e "$state/run/url"
    check "its socket" ! -e "$state/run/worker.sock"
}

kill_daemon() {
    kill -9 "$DAEMON"
    wait "$DAEMON" 2>/dev/null || true
    DAEMON=
}

get() {
    curl -sS "$URL$1"
}

# post PATH [CURL-OPTION...]
post() {
    path=$1
    shift
    curl -sS -X POST "$@" "$URL$path"
}

make_data() {
    mkdir -p "$tmp/data"
    printf '{"text": "the quick brown fox"}\n{"text": "jumps over the lazy dog"}\n' \
        >"$tmp/data/train.jsonl"
}

# A text that is long enough to train on.
make_text() {
    mkdir -p "$tmp/data"
    awk 'BEGIN {
        split("the quick brown fox jumps over the lazy dog and runs away", w, " ");
        for (i = 0; i < 100; i++) {
            line = "";
            for (k = 0; k < 24; k++) line = line w[(i * 7 + k) % 12 + 1] " ";
            printf "{\"text\": \"%s\"}\n", line;
        }
    }' >"$tmp/data/train.jsonl"
}

# spec NAME [JQ-FILTER]: a whole spec of a tiny model
spec() {
    jq -n --arg name "$1" --arg path "$tmp/data/train.jsonl" '{
        name: $name, device: "cpu",
        model: {init: "random", config: {model_type: "qwen3", hidden_size: 32,
            intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 4,
            num_key_value_heads: 2, head_dim: 8, vocab_size: 260, rms_norm_eps: 1e-6,
            rope_theta: 10000, tie_word_embeddings: true}},
        objective: {type: "block_diffusion", block_size: 16},
        data: {path: $path, sequence_length: 64},
        parallel: {mode: "csbp", degree: 2},
        batch: {sequences: 2}, steps: 20, restart: {max: 0}
    } | '"${2:-.}"
}

submit() {
    [ -f "$tmp/data/train.jsonl" ] || make_data
    spec "$@" >"$tmp/spec.json"
    curl -sS --json @"$tmp/spec.json" "$URL/v1/jobs" >"$tmp/answer.json"
    jq -e .id "$tmp/answer.json" || fail "the submission was refused: $(cat "$tmp/answer.json")"
}

job() {
    get "/v1/jobs/$1"
}

# field ID JQ-FILTER
field() {
    kill -0 "$DAEMON" 2>/dev/null || fail "the daemon is dead" >&2
    job "$1" | jq -r "$2"
}

wait_state() {
    for_job=$1
    shift
    for _ in $(seq 600); do
        now=$(field "$for_job" .state)
        for wanted in "$@"; do
            if [ "$now" = "$wanted" ]; then
                echo "$now"
                return
            fi
        done
        case "$now" in succeeded | failed | cancelled)
            fail "job $for_job is $now ($(field "$for_job" .reason)) and will not be $*" >&2
            ;;
        esac
        sleep 0.05
    done
    fail "job $for_job stays $now and does not become $*" >&2
}

# wait_step ID N: until N steps are done
wait_step() {
    for _ in $(seq 600); do
        [ "$(field "$1" .step)" -ge "$2" ] && return
        sleep 0.05
    done
    fail "job $1 does not reach step $2"
}

pids() {
    field "$1" '.attempts[-1].workers[].pid'
}

# The functions of a stack, the innermost first.
explain() {
    sed -n 's/^\(.*\)(+*\([^)]*\)) *\[.*/\1 \2/p' "$1" | while read -r file place; do
        case $place in
        0x*) addr2line -sfe "$file" "$place" 2>/dev/null | tr '\n' ' ' || true ;;
        *) echo "$place" | tr '\n' ' ' ;;
        esac
        echo "${file##*/}"
    done
}
