#!/bin/sh
# Wrong requests: each is answered with a 4xx problem document that names the field or the file, and
# leaves nothing behind.
. "$(dirname "$0")/lib.sh"

start_daemon
make_data
count=0

# expect WHAT STATUS NEEDLE: about the answer in $tmp/answer and $tmp/head
expect() {
    count=$((count + 1))
    status=$(sed -n 's/^HTTP[^ ]* \([0-9]*\).*/\1/p' "$tmp/head" | tail -n 1)
    type=$(sed -n 's/^[Cc]ontent-[Tt]ype: *\([^;[:space:]]*\).*/\1/p' "$tmp/head")
    check "$1: status" "$status" = "$2"
    check "$1: type" "$type" = application/problem+json
    check "$1: status in the document" "$(jq -r .status "$tmp/answer")" = "$2"
    check "$1: names \"$3\" in $(cat "$tmp/answer")" \
        "$(jq -r '.detail, (.errors // [] | .[] | (.pointer // .parameter) + " " + .detail)' \
            "$tmp/answer" | grep -cF -- "$3")" -ge 1
}

ask() {
    : >"$tmp/head"
    curl -sS -D "$tmp/head" -o "$tmp/answer" "$@" || true
}

# wrong NEEDLE JQ-FILTER: a spec that is refused, with a field and what is said of it
wrong() {
    spec wrong "$2" >"$tmp/spec.json"
    ask --json @"$tmp/spec.json" "$URL/v1/jobs"
    expect "$2" 422 "$1"
}

# ---- Slow clients ----
# They begin a header and never end it, a byte a second: the first request of a connection, and the
# second. Whether they are hung up on is seen at the end.
slow() {
    hang_up=0
    { printf "$2"; for _ in $(seq 60); do sleep 1; printf x || break; done; } 2>/dev/null |
        timeout 60 curl -sN "telnet://${URL#http://}" >/dev/null 2>&1 || hang_up=$?
    echo $hang_up >"$tmp/$1"
}
slow slow-first 'GET /healthz HTTP/1.1\r\nHost: ' &
slow_first=$!
slow slow-second 'GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /healthz HTTP/1.1\r\nHost: ' &
slow_second=$!

# ---- Fields: missing, of the wrong type, out of range, unknown, impossible together ----
wrong '/model is missing' 'del(.model)'
wrong '/data is missing' 'del(.data)'
wrong '/data/path is missing' 'del(.data.path)'
wrong '/data/sequence_length is missing' 'del(.data.sequence_length)'
wrong '/steps is missing' 'del(.steps)'
wrong '/model' '.model = {}'
wrong '/model/config/hidden_size' 'del(.model.config.hidden_size)'
wrong '/model/config/model_type' '.model.config.model_type = "gpt2"'
wrong 'must divide num_attention_heads 3' '.model.config.num_attention_heads = 3'
wrong '/name' '.name = 7'
wrong '/name' '.name = ""'
wrong '/device' '.device = "tpu"'
wrong '/model/path' '.model = {path: 5}'
wrong '/model' '.model = "gpt"'
wrong '/model/config' '.model.config = []'
wrong '/objective/type' '.objective.type = "guess"'
wrong '/objective/block_size' '.objective.block_size = 0'
wrong '/objective/block_size' '.objective.block_size = 1.5'
wrong '/objective/mask_token_id' '.objective.mask_token_id = 1000'
wrong '/objective/views' '.objective = {type: "fast_dllm_v2", views: 3, block_size: 16}'
wrong '/objective/views' '.objective.views = "two"'
wrong '/objective/t_min' '.objective.t_min = 0.9 | .objective.t_max = 0.1'
wrong '/objective/antithetic' '.objective.antithetic = 1'
wrong '/objective/loss_weighting' '.objective.loss_weighting = "none"'
wrong '/data/sequence_length' '.data.sequence_length = 60'
wrong '/data/sequence_length' '.data.sequence_length = -64'
wrong '/data/format' '.data.format = "csv"'
wrong '/data/tokenizer' '.data.tokenizer = "gpt2"'
wrong '/data/validation/fraction' '.data.validation.fraction = 1.5'
wrong '/parallel' '.parallel = "some"'
wrong '/parallel/mode' '.parallel.mode = "fsdp"'
wrong '/parallel/degree' '.parallel.degree = 0'
wrong '/parallel/degree' '.parallel.mode = "none"'
wrong 'degree 8 x data 1 needs 8 slots, but this node has 4' '.parallel.degree = 8 | .data.sequence_length = 256'
wrong '/data/sequence_length data.sequence_length 134217728' '.data.sequence_length = 134217728'
wrong '/data/sequence_length the job' '.data.sequence_length = 67108864 | .objective.views = 16'
wrong '/parallel the job' '.model.config |= (.vocab_size = 16000000 | .hidden_size = 65536)'
wrong '/batch/sequences' '.parallel.data = 2 | .batch.sequences = 3'
wrong '/batch/sequences' '.batch.sequences = 0'
wrong '/batch/micro_sequences' '.batch.micro_sequences = 5'
wrong '/optimizer/lr' '.optimizer.lr = -1'
wrong '/optimizer/lr' '.optimizer.lr = "small"'
wrong '/optimizer/betas' '.optimizer.betas = [0.9]'
wrong '/optimizer/betas/1' '.optimizer.betas = [0.9, 2]'
wrong '/optimizer/type' '.optimizer.type = "sgd"'
wrong '/schedule/type' '.schedule.type = "step"'
wrong '/steps' '.steps = 0'
wrong '/steps' '.steps = "many"'
wrong '/seed' '.seed = -1'
wrong '/checkpoint/every' '.checkpoint.every = "often"'
wrong '/evaluate/every' '.evaluate.every = -2'
wrong '/restart/max' '.restart.max = 1.5'
wrong '/lerning_rate' '.lerning_rate = 1'
wrong '/optimizer/learning_rate' '.optimizer.learning_rate = 1'
wrong '/device cannot be cuda here' '.device = "cuda"'

# All at once.
spec wrong '.steps = 0 | .device = "tpu" | .what = 1 | del(.data.path)' >"$tmp/spec.json"
ask --json @"$tmp/spec.json" "$URL/v1/jobs"
check "all at once" "$(jq -r '[.errors[].pointer] | sort | join(" ")' "$tmp/answer")" = \
    "/data/path /device /steps /what"

# ---- Files ----
mkdir -p "$tmp/outside.d" "$tmp/models/broken" "$tmp/models/empty" "$tmp/models/tiny" "$tmp/data/none"
wrong '/data/path there is no file or directory' ".data.path = \"$tmp/data/nowhere.jsonl\""
wrong '/data/path there is no file or directory' '.data.path = "nowhere.jsonl"'
wrong '/data/path /etc/passwd lies outside' '.data.path = "/etc/passwd"'
ln -s /etc "$tmp/data/link"
wrong 'lies outside' ".data.path = \"$tmp/data/link/passwd\""
wrong 'lies outside' ".data.path = \"$tmp/data/../../../etc/passwd\""
: >"$tmp/data/empty.jsonl"
wrong 'empty.jsonl is empty' ".data.path = \"$tmp/data/empty.jsonl\""
printf 'a\0b' >"$tmp/data/binary.txt"
wrong 'binary.txt is not text: byte 1' ".data.path = \"$tmp/data/binary.txt\""
printf 'caf\351\n' >"$tmp/data/latin.txt"
wrong 'latin.txt is not text: byte 3' ".data.path = \"$tmp/data/latin.txt\""
cp "$tmp/data/train.jsonl" "$tmp/data/train.csv"
wrong 'must be a .jsonl, .ndjson or .txt file' ".data.path = \"$tmp/data/train.csv\""
wrong 'has no .jsonl, .ndjson or .txt file' ".data.path = \"$tmp/data/none\""
cp "$tmp/data/train.jsonl" "$tmp/data/none/.h.jsonl"
mkdir "$tmp/data/none/directory.txt"
wrong 'has no .jsonl, .ndjson or .txt file' ".data.path = \"$tmp/data/none\""
cp "$tmp/data/train.jsonl" "$tmp/data/.h.jsonl"
wrong 'must be a .jsonl, .ndjson or .txt file' ".data.path = \"$tmp/data/.h.jsonl\""
cp "$tmp/data/train.jsonl" "$tmp/data/none/a.ndjson"
for path in "$tmp/data/none" "$tmp/data/none/a.ndjson"; do
    spec right ".data.path = \"$path\"" >"$tmp/spec.json"
    ask --json @"$tmp/spec.json" "$URL/v1/jobs?dry_run=true"
    check "$path is taken" "$(jq -r .plan.world "$tmp/answer")" = 2
done
ln -s ../train.jsonl "$tmp/data/none/b.txt"
wrong 'b.txt leads out of its directory' ".data.path = \"$tmp/data/none\""
mkdir "$tmp/data/linked" "$tmp/models/linked"
cp "$tmp/data/train.jsonl" "$tmp/data/linked/a.jsonl"
ln -s /etc/passwd "$tmp/data/linked/b.txt"
wrong '/etc/passwd lies outside' ".data.path = \"$tmp/data/linked\""
ln -s /etc/passwd "$tmp/models/linked/config.json"
wrong '/etc/passwd lies outside' ".model = {path: \"$tmp/models/linked\"}"
mkfifo "$tmp/data/fifo.jsonl" "$tmp/models/empty/config.json"
wrong 'fifo.jsonl is not a regular file' ".data.path = \"$tmp/data/fifo.jsonl\""
wrong 'regular file' ".model = {path: \"$tmp/models/empty\"}"
rm "$tmp/models/empty/config.json"
wrong '/model/path there is no file' ".model = {path: \"$tmp/models/nowhere\"}"
wrong 'has no config.json' ".model = {path: \"$tmp/models/empty\"}"
printf '{"model_type": "qwen3",\n  "hidden_size": }' >"$tmp/models/broken/config.json"
wrong 'config.json is not valid JSON: line 2, column' ".model = {path: \"$tmp/models/broken\"}"
printf '{"model_type": "qwen3"}' >"$tmp/models/broken/config.json"
wrong '/model/config/hidden_size' ".model = {path: \"$tmp/models/broken\"}"

# A model of one layer, its weights made by hand: header length, header, zeros.
tiny=$tmp/models/tiny
spec x '.model.config | .hidden_size = 8 | .intermediate_size = 8 | .num_hidden_layers = 1 |
    .num_attention_heads = 1 | .num_key_value_heads = 1 | .head_dim = 8' >"$tiny/config.json"
# weights [JQ-FILTER over {name: shape}] [BYTES-CUT]
weights() {
    jq -cn '{"model.embed_tokens.weight": [260, 8], "model.norm.weight": [8]} + ([
        ("input_layernorm post_attention_layernorm self_attn.q_norm self_attn.k_norm" |
            split(" ")[] | {("model.layers.0." + . + ".weight"): [8]}),
        ("self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj mlp.gate_proj
            mlp.up_proj mlp.down_proj" | gsub("\\s+"; " ") | split(" ")[] |
            {("model.layers.0." + . + ".weight"): [8, 8]})] | add) | '"${1:-.}"' |
        reduce to_entries[] as $t ({at: 0, out: {}};
            ($t.value | reduce .[] as $n (4; . * $n)) as $bytes |
            .out[$t.key] = {dtype: "F32", shape: $t.value, data_offsets: [.at, .at + $bytes]} |
            .at += $bytes)' >"$tmp/weights.json"
    jq -cj .out "$tmp/weights.json" >"$tmp/header.json"
    n=$(wc -c <"$tmp/header.json")
    {
        printf "\\$(printf %o $((n % 256)))\\$(printf %o $((n / 256)))\\0\\0\\0\\0\\0\\0"
        cat "$tmp/header.json"
        head -c $(($(jq .at "$tmp/weights.json") - ${2:-0})) /dev/zero
    } >"$tiny/model.safetensors"
}
wrong 'has no model.safetensors' ".model = {path: \"$tiny\"}"
weights
spec right ".model = {path: \"$tiny\"}" >"$tmp/spec.json"
ask --json @"$tmp/spec.json" "$URL/v1/jobs?dry_run=true"
check "good weights" "$(jq -r .plan.parameters "$tmp/answer")" = 2568
weights . 100
wrong 'model.safetensors' ".model = {path: \"$tiny\"}"
weights 'del(.["model.layers.0.mlp.up_proj.weight"])'
wrong 'lacks the tensor model.layers.0.mlp.up_proj.weight [8, 8]' ".model = {path: \"$tiny\"}"
weights '.["model.layers.0.mlp.up_proj.weight"] = [8, 4]'
wrong 'model.layers.0.mlp.up_proj.weight is [8, 4], but config.json asks for [8, 8]' \
    ".model = {path: \"$tiny\"}"
weights '.["model.layers.7.mlp.up_proj.weight"] = [8, 8]'
wrong 'has a tensor model.layers.7.mlp.up_proj.weight, of which config.json knows nothing' ".model = {path: \"$tiny\"}"
printf 'short' >"$tiny/model.safetensors"
wrong 'model.safetensors' ".model = {path: \"$tiny\"}"

# ---- URIs ----
query=$(seq -f 'a%g=1' 2000 | paste -sd '&')
ask "$URL/v1/jobs?$query"
expect "two thousand parameters" 414 '64 parameters'
ask "$URL/v1/jobs?$(seq -f 'a%g=1' 65 | paste -sd '&')"
expect "65 parameters" 414 '64 parameters'
ask "$URL/v1/jobs?$(seq -f 'a%g=1' 64 | paste -sd '&')"
expect "64 parameters" 400 'a1 is no parameter here'
for uri in /v1/jobs/1%00x /v1/jobs/1%00 "/v1/jobs?state=running%00x" '/%00'; do
    ask "$URL$uri"
    expect "$uri" 400 'NUL'
done
{ printf 'GET /v1/jobs\0x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n'; sleep 1; } |
    curl -sN --max-time 10 "telnet://${URL#http://}" >"$tmp/answer" || true
check "NUL as it is" "$(head -n 1 "$tmp/answer" | tr -d '\r')" = 'HTTP/1.1 400 Bad Request'

# ---- Bodies ----
body() {
    ask --json "$4" "$URL/v1/jobs"
    expect "$1" "$2" "$3"
}
body "no JSON" 400 'line 1, column 1' 'hello'
body "cut off" 400 'line 2, column' '{"name": "x",
 "steps": '
body "two values" 400 'line 1, column' '{} {}'
body "empty" 400 'The body is empty' ''
body "an array" 400 'must be a JSON object' '[]'
body "a key twice" 400 'the key "steps" twice' '{"steps": 1, "steps": 2}'
body "NUL" 400 'line 1, column 10' '{"name":"\u0000"}'
body "NaN" 400 'line 1, column' '{"steps": NaN}'
printf '{"name": "\377"}' >"$tmp/body"
body "not UTF-8" 400 'line 1, column 11' "@$tmp/body"
head -c 100000 /dev/zero | tr '\0' '[' >"$tmp/body"
body "deep" 400 'line 1' "@$tmp/body"
head -c 1100000 /dev/zero | tr '\0' ' ' >"$tmp/body"
body "too large" 413 '1048576 bytes' "@$tmp/body"
ask -H 'Transfer-Encoding: chunked' --json "@$tmp/body" "$URL/v1/jobs"
expect "too large in pieces" 413 '1048576 bytes'
head -c 8000000 /dev/zero | tr '\0' ' ' >"$tmp/body"
ask -H 'Expect:' --json "@$tmp/body" "$URL/v1/jobs"
expect "too large and not asked before" 413 '1048576 bytes'
raw() {
    { printf "$1"; sleep 1; } | curl -sN --max-time 10 "telnet://${URL#http://}" >"$tmp/answer" || true
    head -n 1 "$tmp/answer" | tr -d '\r'
}
post_raw='POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n'
for framing in 'Content-Length: 2\r\nTransfer-Encoding: chunked' \
    'Transfer-Encoding: chunked\r\ncontent-length: 2' 'Content-Length: 2\r\nContent-Length: 2' \
    'Content-Length: 2\r\nContent-Length: 30' 'Transfer-Encoding: gzip, chunked' \
    'Transfer-Encoding: chunked\r\nTransfer-Encoding: identity'; do
    check "$framing" "$(raw "$post_raw$framing\r\n\r\n{}")" = 'HTTP/1.1 400 Bad Request'
done
check "one length" "$(raw "${post_raw}Content-Length: 2\r\n\r\n{}")" = \
    'HTTP/1.1 422 Unprocessable Content'
for last in 99999999999999999999 -1 1x 0x1; do
    ask -H 'Accept: text/event-stream' -H "Last-Event-ID: $last" "$URL/v1/jobs/99/events"
    expect "Last-Event-ID $last" 400 'Last-Event-ID'
done
ask -d '{}' "$URL/v1/jobs"
expect "a form" 415 'application/json'
spec x | ask --json @- -H 'Idempotency-Key: a b' "$URL/v1/jobs"
expect "a key with a space" 400 'Idempotency-Key'
spec x | ask --json @- "$URL/v1/jobs?dry_run=yes"
expect "dry_run=yes" 400 'dry_run must be true or false'
ask --json '{}' -H 'Origin: https://example.org' "$URL/v1/jobs"
expect "another site" 403 'another site'

# ---- Paths, methods, parameters ----
path() {
    ask "$URL$3"
    expect "$3" "$1" "$2"
}
path 404 'there is no job 99' /v1/jobs/99
path 404 'there is no job 99' /v1/jobs/99/metrics
path 404 'there is no job 99' /v1/jobs/99/events
path 404 'there is no job 99' /v1/jobs/99/logs
path 404 'there is no task 99' /v1/tasks/99
path 404 'nothing at /v1/jobs/x' /v1/jobs/x
path 404 'nothing at /v1/jobs/0' /v1/jobs/0
path 404 'nothing at /v2' /v2
path 400 'limit must be a whole number from 1 to 500' '/v1/jobs?limit=0'
path 400 'state "asleep" is none' '/v1/jobs?state=asleep'
path 400 'colour is no parameter here' '/v1/jobs?colour=red'
path 400 'points must be' '/v1/jobs/1/metrics?points=7'
path 400 'from stands twice' '/v1/jobs/1/metrics?from=1&from=2'
ask -X DELETE "$URL/v1/jobs"
expect "DELETE" 405 'it takes GET, HEAD, POST'
check "Allow" "$(sed -n 's/^Allow: \([A-Z, ]*\).*/\1/p' "$tmp/head")" = "GET, HEAD, POST"
ask -X POST "$URL/v1/jobs/99/cancel"
expect "cancel" 404 'there is no job 99'

wait $slow_first $slow_second
check "a slow header" "$(cat "$tmp/slow-first")" != 124
check "a slow second header" "$(cat "$tmp/slow-second")" != 124

# Nothing of all that is there, and the daemon is well.
check "jobs" "$(get /v1/jobs | jq '.jobs | length')" = 0
check "tasks" "$(get /v1/tasks | jq '.tasks | length')" = 0
check "descriptors" "$(find /proc/"$DAEMON"/fd | wc -l)" -lt 60
[ "$count" -ge 90 ] || fail "only $count requests were made"

# ---- Settings ----
bad_config() {
    printf '%s' "$1" >"$tmp/bad.json"
    "$dllmd" --config "$tmp/bad.json" --check-config >"$tmp/out" 2>&1 && fail "$1 is taken"
    shift
    for needle in "$@"; do
        check "$needle in $(cat "$tmp/out")" "$(grep -cF -- "$needle" "$tmp/out")" -ge 1
    done
}
bad_config '{"slots": 0, "port": 1, "roots": "x", "log_level": "loud", "lease_s": "long"}' \
    '/slots must be a whole number from 1' '/port is no setting' '/roots must be an array' \
    '/log_level must be' '/lease_s must be a number'
bad_config '{"listen_address": "0.0.0.0"}' '/listen_address is 0.0.0.0'
bad_config '{"listen_address": "localhost"}' 'must be an IPv4 or IPv6 address'
bad_config '{"slots": ' 'line 1, column'
printf '{"listen_address": "0.0.0.0", "insecure": true}' >"$tmp/good.json"
"$dllmd" --config "$tmp/good.json" --check-config >/dev/null || fail "insecure is refused"
"$dllmd" --config "$tmp/nowhere.json" --check-config 2>/dev/null && fail "no file, no error"
"$dllmd" --listen localhost --check-config 2>/dev/null && fail "--listen localhost"
check "the width of --help" "$("$dllmd" --help | awk 'length > 80' | wc -l)" = 0

finish
