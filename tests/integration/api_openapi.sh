#!/bin/sh
# openapi.json against the server, in both directions. A client is generated from the document alone
# and drives a whole job; each answer must have a status, a type and a body as described, at the end
# each operation was called with success, and a method that is not described is refused.
. "$(dirname "$0")/lib.sh"

start_daemon
make_data
doc=$tmp/openapi.json
get /openapi.json >"$doc"
check "version" "$(jq -r .openapi "$doc")" = 3.1.0
check "operation ids are unique" "$(jq '[.paths[][].operationId] | length - (unique | length)' "$doc")" = 0
check "references lead somewhere" "$(jq '. as $d | [.. | objects | .["$ref"]? // empty |
    ltrimstr("#/") | split("/") as $p | $d | getpath($p) | select(. == null)] | length' "$doc")" = 0
check "a schema that nobody uses" "$(jq -c '([.. | objects | .["$ref"]? // empty] | unique) as $used |
    [.components.schemas | keys[] | select(("#/components/schemas/" + .) as $n | [$n] | inside($used) | not)]' \
    "$doc")" = '[]'

# The client: a function for each operation, of the id (where the path has one) and curl's options.
jq -r '.paths | to_entries[] | .key as $path | .value | to_entries[] |
    "\(.value.operationId)() { request \(.key | ascii_upcase) \"\($path)\" \(.value.operationId) \"$@\"; }"' \
    "$doc" >"$tmp/client.sh"
. "$tmp/client.sh"

# request METHOD PATH OPERATION [ID] [CURL-OPTION...]: the body is in $tmp/answer, $status says how
# it went. A first option ?… is a query.
request() {
    method=$1 path=$2 operation=$3
    shift 3
    case $path in *'{id}'*)
        path=$(printf '%s' "$path" | sed "s/{id}/$1/")
        shift
        ;;
    esac
    query=
    case ${1:-} in '?'*)
        query=$1
        shift
        ;;
    esac
    : >"$tmp/answer"
    status=$(curl -sS -X "$method" -D "$tmp/head" -o "$tmp/answer" -w '%{http_code}' "$@" \
        "$URL$path$query")
    type=$(sed -n 's/^[Cc]ontent-[Tt]ype: *\([^;[:space:]]*\).*/\1/p' "$tmp/head")
    [ "$status" -ge 300 ] || echo "$operation" >>"$tmp/called"
    described
}

# The last answer is one that the document has for its operation.
described() {
    jq -c --arg id "$operation" --arg status "$status" '[.paths[][] | select(.operationId == $id)][0]
        .responses | if has($status) then .[$status]
        elif ($status | tonumber) >= 400 then .default else null end' "$doc" >"$tmp/response.json"
    check "$operation: $status is described" "$(cat "$tmp/response.json")" != null
    if [ -z "$type" ]; then
        check "$operation: $status has no body" "$(jq -r 'has("content")' "$tmp/response.json")" = false
        check "$operation: $status is empty" ! -s "$tmp/answer"
        return
    fi
    schema=$(jq -c --arg type "$type" '.content[$type].schema' "$tmp/response.json")
    check "$operation: $status as $type is described" "$schema" != null
    case $type in *json)
        wrong=$(jq -r -L "$here" --slurpfile doc "$doc" --argjson schema "$schema" \
            'include "schema"; mistakes($doc[0]; $schema; "")' "$tmp/answer")
        check "$operation: $status is as described: $wrong" -z "$wrong"
        ;;
    esac
}

answer() {
    jq -r "$1" "$tmp/answer"
}

# until_state STATE...: of job $id
until_state() {
    for _ in $(seq 600); do
        get_jobs_id "$id"
        now=$(answer .state)
        for wanted in "$@"; do
            [ "$now" != "$wanted" ] || return 0
        done
        sleep 0.1
    done
    fail "the job is $now, not $*"
}

# ---- A job's whole life ----
get_healthz
get_readyz
get_nodes
get_index
get_openapi_json
spec life '.steps = 4000 | .checkpoint = {every: 1000, keep: 5}' >"$tmp/spec.json"
wrong=$(jq -r -L "$here" --slurpfile doc "$doc" 'include "schema";
    mistakes($doc[0]; $doc[0].components.schemas.JobSpec; "")' "$tmp/spec.json")
check "the spec is as described: $wrong" -z "$wrong"
post_jobs '?dry_run=true' --json "@$tmp/spec.json"
check "a plan" "$status" = 200
check "its ranks" "$(answer '.plan.ranks | length')" = 2
post_jobs --json "@$tmp/spec.json"
check "submitted" "$status" = 201
id=$(answer .id)
until_state running
while get_jobs_id "$id" && [ "$(answer .step)" -lt 20 ]; do sleep 0.1; done
post_jobs_id_checkpoint "$id"
check "a checkpoint is asked for: $(cat "$tmp/answer")" "$status" = 202
for _ in $(seq 100); do
    get_jobs_id_checkpoints "$id"
    [ "$(answer '.checkpoints | length')" -eq 0 ] || break
    sleep 0.1
done
check "a checkpoint is written" "$(answer '.checkpoints | length')" -ge 1
get_metrics
for gauge in step loss learning_rate tokens_per_second; do
    check "$gauge as a gauge" "$(grep -c "^dllmd_job_$gauge{job_id=\"$id\",job_name=\"life\"} [1-9]" \
        "$tmp/answer")" = 1
done
post_jobs_id_pause "$id"
check "pausing" "$status" = 200
until_state paused
post_jobs_id_checkpoint "$id"
check "no checkpoint of a paused job" "$status" = 409
post_nodes_id_drain 1
check "draining" "$(answer .draining)" = true
post_jobs_id_resume "$id"
check "resumed" "$(answer .state)" = queued
sleep 0.5
get_jobs_id "$id"
check "a node that drains starts nothing" "$(answer .state)" = queued
post_nodes_id_drain 1 --json '{"draining": false}'
check "not draining any more" "$(answer .draining)" = false
until_state running
get_jobs_id_metrics "$id" '?keys=loss,nothing&from=3&to=14&points=8'
check "points" "$(answer '.series.loss | [.total, .sampled, (.steps | min >= 3), (.steps | max <= 14)] | tojson')" = \
    '[12,true,true,true]'
check "a key that is none" "$(answer '.series.nothing.total')" = 0
post_jobs_id_cancel "$id"
until_state cancelled
get_jobs_id_events "$id" '?limit=3'
check "a page of three" "$(answer '.events | length')" = 3
get_jobs_id_events "$id" '?limit=1000'
check "the history" "$(answer '[.events[] | select(.type == "state") | .to] | tojson')" = \
    '["queued","preparing","starting","running","paused","queued","starting","running","cancelled"]'
get_jobs_id_events "$id" -H 'Accept: text/event-stream'
check "as a stream" "$type" = text/event-stream
get_jobs_id_logs "$id"
get_jobs_id_logs "$id" -H 'Accept: text/plain'
check "as text" "$type" = text/plain
get_jobs '?state=cancelled,failed'
get_tasks
get_tasks_id 1
get_datasets
get_jobs_id_checkpoints "$id"
checkpoint=$(answer '.checkpoints[-1].id')
directory=$(answer '.checkpoints[-1].directory')
check "the files of a checkpoint" -d "$directory"
delete_checkpoints_id "$checkpoint"
check "a checkpoint is deleted" "$status" = 204
check "its files are gone" ! -e "$directory"
directory=$(get /v1/datasets | jq -r '.datasets[0].path')
delete_datasets_id 1
check "a dataset is deleted: $(cat "$tmp/answer")" "$status" = 204
check "its files are gone, too" ! -e "$directory"
post_tokens --json '{"name": "t", "role": "read", "expires_in_s": 60}'
get_tokens
get_me
delete_tokens_id 1
post_backup
check "a backup" "$(sqlite3 "$(answer .path)" 'SELECT count(*) FROM jobs; PRAGMA integrity_check' 2>/dev/null |
    tr '\n' ' ' || true)" = "1 ok " -o ! -x /usr/bin/sqlite3
check "its size" "$(answer .bytes)" = "$(stat -c %s "$(answer .path)")"

# A task that is cancelled while it is queued: a node that drains leaves it there.
post_nodes_id_drain 1
printf '{"text": "other"}\n' >"$tmp/data/other.jsonl"
spec other ".data.path = \"$tmp/data/other.jsonl\"" >"$tmp/spec.json"
post_jobs --json "@$tmp/spec.json"
other=$(answer .id)
for _ in $(seq 100); do
    get_tasks "?job_id=$other"
    [ "$(answer '.tasks | length')" -eq 0 ] || break
    sleep 0.05
done
task=$(answer '.tasks[0].id')
post_jobs_id_cancel "$other"
post_tasks_id_cancel "$task"
check "the task is cancelled" "$(answer .state)" = cancelled

uncalled=$(jq -r '.paths[][].operationId' "$doc" | sort | comm -23 - "$(sort -u "$tmp/called" >"$tmp/called.sorted"; echo "$tmp/called.sorted")")
check "each operation was called; not: $uncalled" -z "$uncalled"

# ---- What is not there, and what is not described ----
jq -r '.paths | to_entries[] | .key as $path | .value | keys[] | "\(.) \($path)"' "$doc" >"$tmp/operations"
while read -r method path; do
    case $path in *'{id}'*) ;; *) continue ;; esac
    operation=$(jq -r --arg path "$path" --arg method "$method" '.paths[$path][$method].operationId' "$doc")
    request "$(echo "$method" | tr a-z A-Z)" "$path" "$operation" 999999
    check "$operation of nothing" "$status" = 404
done <"$tmp/operations"
jq -r '.paths | to_entries[] | "\(.key) \(.value | keys | map(ascii_upcase) |
    if index("GET") then . + ["HEAD"] else . end | join(","))"' "$doc" >"$tmp/paths"
while read -r path methods; do
    for method in GET HEAD POST PUT PATCH DELETE; do
        case ",$methods," in *",$method,"*) continue ;; esac
        if [ $method = HEAD ]; then option=-I; else option="-X $method"; fi
        # shellcheck disable=SC2086
        status=$(curl -sS $option -D "$tmp/head" -o /dev/null -w '%{http_code}' \
            "$URL$(printf '%s' "$path" | sed 's/{id}/1/')")
        check "$method $path" "$status" = 405
        check "$method $path: Allow" "$(sed -n 's/^Allow: //p' "$tmp/head" | tr -d ' \r' | tr , '\n' | sort)" = \
            "$(echo "$methods" | tr , '\n' | sort)"
    done
done <"$tmp/paths"

finish
