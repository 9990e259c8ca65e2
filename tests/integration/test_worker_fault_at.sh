#!/bin/sh
# For one n after the other, a worker's n-th operation is its last (kill), or fails (ENOSPC, EIO,
# EACCES), or its n-th allocation does (memory): tests/support/fault_at.c. It prepares data, trains
# from the beginning on two ranks, or trains on from a checkpoint. It says why it ends, and the job is
# done all the same, with each step once and the same losses; no checkpoint is lost and nothing
# half-made is left.
#
#   test_worker_fault_at.sh DLLMD WORKER FAULT_AT.SO KIND
#
# DLLMD_TEST_LONG=1: for every n; otherwise for a few of them.
# DLLMD_TEST_FAULT_AT="preparation 7 8": for these alone; or training, resumption.
. "$(dirname "$0")/lib.sh"
fault_at=$(realpath "$3")
kind=$4
struck=$tmp/struck

# The first worker that is started after $tmp/fault is there takes it.
cat >"$tmp/worker" <<SH
#!/bin/sh
if mv "$tmp/fault" "$tmp/fault.\$\$" 2>/dev/null; then
    fault=\$(cat "$tmp/fault.\$\$")
    rm "$tmp/fault.\$\$"
    eval "\$fault"
fi
exec "$worker" "\$@"
SH
chmod +x "$tmp/worker"
worker=$tmp/worker

# doom KIND N STRUCK
doom() {
    each=0
    [ "$1" != memory ] || each=2 # of what the same calls lead to
    cat >"$tmp/fault.new" <<SH
export FAULT=$1 FAULT_AT=$2 FAULT_EACH=$each FAULT_STRUCK="$3" LD_PRELOAD="$fault_at"
export MALLOC_PERTURB_=165
SH
    rm -f "$3"
    mv "$tmp/fault.new" "$tmp/fault"
}

broken() {
    echo "---- what failed, $kind at n = $n"
    [ ! -s "$struck" ] || explain "$struck"
    tail -n 20 "$state"/jobs/"$id"/attempts/*/*.log 2>/dev/null | tail -n 60
    ls -lAR "$state/jobs/$id"
    job "$id" | jq -c '[.state, .reason, .attempts]'
    fail "$kind at n = $n: $*"
}

until_over() {
    for _ in $(seq 1000); do
        now=$(field "$id" .state)
        case $now in
        succeeded) return ;;
        failed | cancelled | paused) broken "the job is $now" ;;
        esac
        sleep 0.02
    done
    broken "the job stays $now"
}

# Gloo ends the process where one of its own threads gets no memory or loses its connection.
is_gloo() {
    grep -v '/libfault_at\|/libc\.so\|/ld-linux\|/libstdc++\|/libgcc' "$struck" | head -n 1 |
        grep -q /libgloo
}

# check_ends [N]: of the attempts from N on (0) nobody was killed but by the fault of that name, and
# every end has its reason.
check_ends() {
    job "$id" >"$tmp/job"
    reasons=$(jq -r ".attempts[${1-0}:][]"' | select(.outcome != "done") | .reason // "no reason"' "$tmp/job")
    case "$reasons" in
    *"no reason"*) broken "an attempt ended without a reason" ;;
    *"killed by signal"*)
        [ "$kind" = kill ] || is_gloo || broken "it crashed: $reasons"
        ;;
    esac
    ! grep -rq 'Sanitizer\|runtime error' "$state"/jobs/"$id"/attempts "$state"/tasks ||
        broken "a sanitizer reports"
}

small='.parallel.degree = 1 | .batch.sequences = 2 | .steps = 4 | .evaluate.every = 2
    | .restart.max = 3 | .checkpoint = {every: 2, keep: 5}'

losses() {
    get "/v1/jobs/$id/metrics?keys=loss" | jq -c .series.loss
}

check_trained() {
    check "$kind at n = $n: every step once, and the same losses" "$(losses)" = "$1"
    get "/v1/jobs/$id/checkpoints" | jq -r '.checkpoints[].step' | sort >"$tmp/steps"
    check "$kind at n = $n: files of checkpoints" "$(ls -A "$state/jobs/$id/checkpoints")" = \
        "$(sed 's/^/step-00000000/' "$tmp/steps")"
    for saved in 2 4; do
        grep -qx $saved "$tmp/steps" || get "/v1/jobs/$id/events" |
            grep -q "The checkpoint of step $saved could not be written: " ||
            check "$kind at n = $n: the checkpoint of step $step" "" = "there"
    done
    [ $failures -eq 0 ] || broken "checks failed"
}

preparation() {
    n=$1
    printf '{"text": "number %s of %s"}\n' "$n" "$kind" >>"$tmp/data/train.jsonl"
    doom "$kind" "$n" "$struck"
    id=$(submit "prepared-$n" "$small | .steps = 1 | .checkpoint.every = 100")
    until_over
    check_ends
    check "$kind at n = $n: datasets" "$(ls -A "$state/datasets" | wc -l)" = \
        "$(get /v1/datasets | jq '.datasets | length')"
    [ $failures -eq 0 ] || broken "checks failed"
}

training() {
    n=$1
    doom "$kind" "$n" "$struck"
    id=$(submit "trained-$n" "$small | .parallel.degree = 2")
    until_over
    check_ends
    check_trained "$pair_curve"
}

# The first attempt is killed behind its first checkpoint.
resumption() {
    n=$1
    doom kill "$behind" "$tmp/behind"
    id=$(submit "resumed-$n" "$small")
    while [ -e "$tmp/fault" ]; do
        sleep 0.01
    done
    doom "$kind" "$n" "$struck"
    until_over
    check_ends 1
    check_trained "$curve"
}

# all SCENARIO FIRST STEP LEAST: until one runs through, which takes at least LEAST operations.
all() {
    at=$2
    step=$3
    [ -z "${DLLMD_TEST_LONG-}" ] || step=1
    runs=0
    while "$1" "$at" && [ -e "$struck" ]; do
        runs=$((runs + 1))
        at=$((at + step))
    done
    echo "$kind, $1: $runs times, up to n = $at"
    [ "$at" -ge "$4" ] || fail "$1 ran through after $at operations: they are not counted"
}

start_daemon
make_text
id=$(submit first "$small | .parallel.degree = 2")
until_over
pair_curve=$(losses)
id=$(submit second "$small")
until_over
curve=$(losses)
# Between the first checkpoint and the second: which operation that is depends on the threads a little.
kinds=$kind
kind=kill
for behind in $(seq 80 3 200); do
    n=$behind
    doom kill "$behind" "$tmp/behind"
    id=$(submit "behind-$behind" "$small")
    until_over
    [ "$(field "$id" '.attempts[1].start_step')" = 2 ] && break
done
kind=$kinds
echo "$behind operations lead behind the first checkpoint"
[ "$behind" -lt 200 ] || fail "no operation lies between the checkpoints"

if [ -n "${DLLMD_TEST_FAULT_AT-}" ]; then
    # shellcheck disable=SC2086
    set -- $DLLMD_TEST_FAULT_AT
    scenario=$1
    shift
    for n; do
        "$scenario" "$n"
        echo "$kind, $scenario at n = $n: $(jq -c '[.attempts[].reason]' "$tmp/job")"
    done
elif [ "$kind" = memory ]; then
    all preparation 1 43 100
    all training 7 211 500
    all resumption 3 211 500
else
    all preparation 1 11 20
    all training 5 61 150
    all resumption 9 61 100
fi
finish
