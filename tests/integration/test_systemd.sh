#!/bin/sh
# dllmd under a real systemd, booted in a container: installed as Meson installs it, with its
# users, its units and its polkit rule. Its workers are units; nothing that happens to the daemon
# costs them a step.
# usage: test_systemd.sh BUILD-DIRECTORY
set -eu
build=$(realpath "$1")
here=$(cd "$(dirname "$0")" && pwd)

skip() {
    echo "SKIP: $*"
    exit 77
}

[ "$(id -u)" = 0 ] || skip "only root can boot a container"
for program in /lib/systemd/systemd dbus-daemon unshare nsenter pivot_root ip jq curl meson; do
    command -v $program >/dev/null || skip "there is no $program"
done
[ -x /usr/lib/polkit-1/polkitd ] || [ -x /usr/libexec/polkitd ] || skip "there is no polkitd"
cgroups=$(awk '$3 == "cgroup2" {print $2; exit}' /proc/mounts)
[ -n "$cgroups" ] || skip "there are no cgroups of version 2"
unshare -m -p -C -n -i -u --fork true 2>/dev/null || skip "this machine allows no namespaces"

tmp=$(mktemp -d "${TMPDIR:-/tmp}/dllmd-test.XXXXXX")
group=$cgroups/${tmp##*/}
INIT=
failures=0
begun=$(date +%s)
failed_here() {
    [ -z "$INIT" ] || inside journalctl -b --no-pager -o short-monotonic -n 300 \
        -u dllmd -u 'dllm-worker@*' -u polkit || true
}

cleanup() {
    status=$?
    trap - EXIT INT TERM
    [ $status -eq 0 ] || failed_here
    if [ -n "$INIT" ]; then
        kill -9 "$INIT" 2>/dev/null || true # and with it all of the container
        wait 2>/dev/null || true
    fi
    for _ in $(seq 100); do
        find "$group" -depth -type d -exec rmdir {} + 2>/dev/null && break
        sleep 0.1
    done
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

say() {
    echo "-- $(($(date +%s) - begun)) s: $*"
}

# ---- The container

inside() {
    nsenter -t "$INIT" -a -- "$@"
}

# as USER COMMAND...
as() {
    user=$1
    shift
    nsenter -t "$INIT" -a -- setpriv --reuid "$user" --regid "$user" --init-groups -- "$@"
}

boot() {
    meson install -C "$build" --no-rebuild --quiet --destdir "$tmp/installed" >/dev/null
    mkdir "$tmp/container" "$tmp/installed/srv" "$tmp/installed/etc/dllmd"
    for i in $(seq 200); do
        echo "{\"text\": \"the quick brown fox jumps over $i lazy dogs, and $i more of them\"}"
    done >"$tmp/installed/srv/train.jsonl"
    settings '.'
    mkdir "$group" 2>/dev/null || skip "cgroups cannot be made in $cgroups"
    sh -c 'echo $$ >"$0/cgroup.procs" && exec unshare -m -p -C -n -i -u --fork "$@"' "$group" \
        sh "$here/systemd_container.sh" "$tmp/container" "$tmp/installed" >"$tmp/boot.log" 2>&1 </dev/null &
    unshare=$!
    for _ in $(seq 300); do
        kill -0 $unshare 2>/dev/null || fail "the container did not start: $(cat "$tmp/boot.log")"
        INIT=$(cat /proc/$unshare/task/$unshare/children 2>/dev/null | tr -d ' ')
        [ -n "$INIT" ] && [ "$(cat "/proc/$INIT/comm" 2>/dev/null)" = systemd ] &&
            inside systemctl is-active --quiet basic.target 2>/dev/null && return
        sleep 0.1
    done
    fail "systemd does not reach basic.target"
}

# settings JQ-FILTER: those of the project's example, with short times
settings() {
    example=$(find "$tmp/installed" -name dllmd.json -path '*examples*')
    jq '. + {slots: 2, stop_timeout_s: 1, term_timeout_s: 1, backoff_s: 0.05} | '"$1" \
        "$example" >"$tmp/dllmd.json"
    if [ -n "$INIT" ]; then
        inside sh -c 'cat >/etc/dllmd/dllmd.json' <"$tmp/dllmd.json"
    else
        cp "$tmp/dllmd.json" "$tmp/installed/etc/dllmd/dllmd.json"
    fi
}

property() {
    inside systemctl show --value -p "$2" "$1"
}

main_pid() {
    property dllmd MainPID
}

# ---- The API

url=http://127.0.0.1:8470

get() {
    inside curl -sS "$url$1"
}

job() {
    get "/v1/jobs/$1"
}

field() {
    job "$1" | jq -r "$2"
}

# submit NAME [JQ-FILTER]
submit() {
    jq -n --arg name "$1" '{
        name: $name, device: "cpu",
        model: {init: "random", config: {model_type: "qwen3", hidden_size: 32,
            intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 4,
            num_key_value_heads: 2, head_dim: 8, vocab_size: 260, rms_norm_eps: 1e-6,
            rope_theta: 10000, tie_word_embeddings: true}},
        objective: {type: "block_diffusion", block_size: 16},
        data: {path: "train.jsonl", sequence_length: 128},
        parallel: {mode: "csbp", degree: 2},
        batch: {sequences: 2}, steps: 100000, restart: {max: 0}
    } | '"${2:-.}" >"$tmp/spec.json"
    inside curl -sS --json @- "$url/v1/jobs" <"$tmp/spec.json" >"$tmp/answer.json"
    jq -e .id "$tmp/answer.json" || fail "the submission was refused: $(cat "$tmp/answer.json")"
}

wait_ready() {
    for _ in $(seq 200); do
        inside curl -fsS -o /dev/null "$url/readyz" 2>/dev/null && return
        sleep 0.1
    done
    fail "dllmd does not get ready"
}

wait_state() {
    for _ in $(seq 600); do
        now=$(field "$1" .state)
        [ "$now" = "$2" ] && return
        case $now in succeeded | failed | cancelled)
            fail "job $1 is $now ($(field "$1" .reason)) and will not be $2"
            ;;
        esac
        sleep 0.1
    done
    fail "job $1 stays $now and does not become $2"
}

# wait_step ID N: until N steps are done
wait_step() {
    for _ in $(seq 600); do
        [ "$(field "$1" .step)" -ge "$2" ] && return
        case $(field "$1" .state) in failed | cancelled)
            fail "job $1 is over: $(field "$1" .reason)" ;;
        esac
        sleep 0.1
    done
    fail "job $1 does not reach step $2"
}

# more_steps ID: it goes on
more_steps() {
    wait_step "$1" $(($(field "$1" .step) + 20))
}

pids() {
    field "$1" '.attempts[-1].workers[].pid' | tr '\n' ' '
}

cancel() {
    inside curl -sS -o /dev/null -X POST "$url/v1/jobs/$1/cancel"
    wait_state "$1" cancelled
}

units() {
    inside systemctl list-units --all --plain --no-legend --state="$1" 'dllm-worker@*' | awk '{print $1}' | tr '\n' ' '
}

# ---- The test

boot
inside systemd-sysusers
inside systemd-tmpfiles --create 2>/dev/null || true # what else this machine has is not our matter
inside systemctl daemon-reload
inside systemctl start dllmd || fail "dllmd does not start"
wait_ready

say "the daemon"
check "its state" "$(property dllmd ActiveState)" = active
check "its user" "$(inside stat -c %U "/proc/$(main_pid)")" = dllmd
check "its way of launching" "$(inside journalctl -u dllmd --no-pager | grep -c 'workers are started as units')" = 1
check "priorities in the journal" "$(inside journalctl -u dllmd -o json --no-pager |
    jq -r 'select(.MESSAGE | strings | test("^dllmd .* serves")) | .PRIORITY')" = 6

say "a job runs as units"
id=$(submit first '.steps = 1500')
wait_state "$id" running
wait_step "$id" 20
before=$(pids "$id")
check "its units" "$(units active)" = "dllm-worker@job-$id-attempt-1-rank-0.service dllm-worker@job-$id-attempt-1-rank-1.service "
for pid in $before; do
    check "a worker's user" "$(inside stat -c %U:%G "/proc/$pid")" = dllm-worker:dllmd
    check "its cgroup" "$(inside sed -n 's|^0::/\([^/]*\)/.*|\1|p' "/proc/$pid/cgroup")" = dllm.slice
    check "its capabilities" "$(inside awk '/^Cap(Eff|Bnd)/ {print $2}' "/proc/$pid/status" | sort -u)" = 0000000000000000
    check "new privileges" "$(inside awk '/^NoNewPrivs/ {print $2}' "/proc/$pid/status")" = 1
    check "secrets in its environment" "$(inside grep -zc -i secret "/proc/$pid/environ")" = 0
    check "its threads" "$(inside grep -zc '^OPENBLAS_NUM_THREADS=1$' "/proc/$pid/environ")" = 1
done
check "what is left of the launch" -z "$(inside ls -A /run/dllmd/launch)"

say "systemctl restart dllmd"
first_pid=$(main_pid)
inside systemctl restart dllmd
wait_ready
check "another daemon" "$(main_pid)" != "$first_pid"
more_steps "$id"
check "the same workers" "$(pids "$id")" = "$before"

say "dllmd killed by SIGKILL"
inside kill -9 "$(main_pid)"
sleep 1.5
wait_ready
check "systemd started it again" "$(property dllmd NRestarts)" = 1
more_steps "$id"
check "the same workers" "$(pids "$id")" = "$before"

say "systemctl stop, then start"
inside systemctl stop dllmd
check "the runtime directory goes" "$(inside test -e /run/dllmd && echo there)" = ""
check "the workers stay" "$(units active | wc -w)" = 2
inside systemctl start dllmd
wait_ready
wait_state "$id" succeeded
check "the same workers" "$(pids "$id")" = "$before"
check "one attempt" "$(field "$id" '.attempts | length')" = 1
check "no step lost, none doubled" "$(get "/v1/jobs/$id/metrics?keys=loss&points=10000" |
    jq -c '.series.loss.steps == [range(1; 1501)]')" = true
check "the logs of its ranks" "$(inside sh -c "stat -c %U:%G /var/lib/dllmd/jobs/$id/attempts/1/rank-*.log" | sort -u)" = dllm-worker:dllmd
check "units left" -z "$(units active,failed,activating,deactivating)"

check "fields in the journal" "$(inside journalctl "DLLMD_JOB=$id" DLLMD_ATTEMPT=1 DLLMD_RANK=1 -o cat --no-pager)" = \
    "attempt 1 of job $id: rank-1 done"

say "a frozen daemon"
inside mkdir -p /run/systemd/system/dllmd.service.d
echo '[Service]
WatchdogSec=3' | inside sh -c 'cat >/run/systemd/system/dllmd.service.d/watchdog.conf'
inside systemctl daemon-reload
inside systemctl restart dllmd
wait_ready
id=$(submit frozen)
wait_step "$id" 20
before=$(pids "$id")
sleep 4
check "the watchdog is petted" "$(property dllmd NRestarts)" = 0
inside kill -STOP "$(main_pid)"
for _ in $(seq 100); do
    [ "$(property dllmd NRestarts)" = 1 ] && break
    sleep 0.1
done
check "the watchdog bites" "$(property dllmd NRestarts)" = 1
wait_ready
more_steps "$id"
check "the same workers" "$(pids "$id")" = "$before"

say "workers that do not listen"
for pid in $(pids "$id"); do
    inside kill -STOP "$pid"
done
cancel "$id"
check "units left" -z "$(units active,failed,activating,deactivating)"

say "a worker killed"
id=$(submit killed '.restart.max = 1')
wait_step "$id" 20
inside kill -9 "$(pids "$id" | cut -d' ' -f2)"
for _ in $(seq 100); do
    [ "$(field "$id" '.attempts | length')" = 2 ] && break
    sleep 0.1
done
check "why" "$(field "$id" '.attempts[0].workers[1].reason' | grep -c 'killed by signal 9')" = 1
wait_state "$id" running
wait_step "$id" 5
check "units that failed" -z "$(units failed)"

say "a worker killed while no daemon looks"
inside systemctl stop dllmd
inside kill -9 $(inside systemctl show --value -p MainPID "dllm-worker@job-$id-attempt-2-rank-0")
sleep 0.5
inside systemctl start dllmd
wait_ready
for _ in $(seq 200); do
    [ "$(field "$id" '.attempts[1].workers[0].reason')" != null ] && break
    sleep 0.1
done
check "why" "$(field "$id" '.attempts[1].workers[0].reason' | grep -c 'killed by signal 9')" = 1
inside curl -sS -o /dev/null -X POST "$url/v1/jobs/$id/cancel"
for _ in $(seq 100); do
    [ -z "$(units active,failed,activating,deactivating)" ] && break
    sleep 0.1
done
check "units left" -z "$(units active,failed,activating,deactivating)"

say "dllmd killed while it starts workers"
for delay in 0 0.03 0.06 0.1 0.15 0.2; do
    id=$(submit "early-$delay" '.steps = 2')
    sleep $delay
    inside kill -9 "$(main_pid)"
    sleep 1.2
    wait_ready
    wait_state "$id" succeeded
done
check "units left" -z "$(units active,failed,activating,deactivating)"
check "what is left of the launches" -z "$(inside ls -A /run/dllmd/launch)"

say "who may do what"
check "dllmd starts another unit" "$(as dllmd systemctl --no-ask-password start e2scrub_all.service 2>&1 | grep -c -i 'authentication\|denied')" -ge 1
check "dllmd starts a transient unit" "$(as dllmd systemd-run --no-ask-password true 2>&1 | grep -c -i 'authentication\|denied')" -ge 1
check "a worker starts a worker" "$(as dllm-worker systemctl --no-ask-password start dllm-worker@x.service 2>&1 | grep -c -i 'authentication\|denied')" -ge 1
for file in dllmd.db secret.key; do
    check "a worker reads $file" "$(nsenter -t "$INIT" -a -- setpriv --reuid dllm-worker --regid dllmd --clear-groups cat /var/lib/dllmd/$file 2>&1 >/dev/null | grep -c 'Permission denied')" = 1
done
check "dllm-worker alone" "$(as dllmd systemctl start dllm-worker@job-0-attempt-0-rank-0.service 2>&1 | grep -c 'failed\|error')" -ge 1
as dllmd systemctl reset-failed dllm-worker@job-0-attempt-0-rank-0.service

say "wrong settings"
settings '.slots = "many"'
inside systemctl restart dllmd 2>/dev/null && fail "it starts with wrong settings"
sleep 2
check "its end" "$(property dllmd ExecMainStatus)" = 2
check "no second try" "$(property dllmd ActiveState)" = failed
check "why" "$(inside journalctl -u dllmd --no-pager | grep -c '/slots must be a whole number')" -ge 1

say "the slice stopped"
settings .
inside systemctl start dllmd
wait_ready
id=$(submit slice)
wait_step "$id" 20
inside systemctl stop dllmd dllm.slice
check "units left" -z "$(units active,failed,activating,deactivating)"

say "as it was: plain, in the service"
settings '.launcher = "plain"'
inside systemctl start dllmd
wait_ready
for _ in $(seq 100); do # it was stopped from outside, and has no restart
    [ "$(field "$id" .state)" = failed ] && break
    sleep 0.1
done
check "its end" "$(field "$id" .reason | grep -c 'stopped from outside')" = 1
id=$(submit plain '.steps = 2000')
wait_step "$id" 20
before=$(pids "$id")
inside systemctl restart dllmd
wait_ready
wait_state "$id" succeeded
check "the same workers" "$(pids "$id")" = "$before"

inside systemctl stop dllmd
check "errors of the daemon" "$(inside journalctl _SYSTEMD_UNIT=dllmd.service -p err --no-pager -o cat | grep -vc '^-- No entries')" = 0
if [ $failures -ne 0 ]; then
    echo "$failures checks failed"
    exit 1
fi
echo "PASS"
