#!/bin/sh
# Model directories as Hugging Face lays them out: jobs begin from their weights, and what is wrong
# with one is said by name, when it is submitted and when it is read.
. "$(dirname "$0")/lib.sh"
write_model=$(realpath "$3")

start_daemon
make_data
sizes='hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 4,
    num_key_value_heads: 2, head_dim: 8, vocab_size: 260, max_position_embeddings: 32'

# model NAME CONFIG-FIELDS [SHARDS [DTYPE]]: $tmp/models/NAME
model() {
    mkdir -p "$tmp/models/$1"
    jq -n "{$sizes, $2}" >"$tmp/config.json"
    "$write_model" "$tmp/config.json" "$tmp/models/$1" 1 "${3:-1}" "${4:-F32}"
}

losses() {
    get "/v1/jobs/$1/metrics?keys=loss&points=1000" | jq -c .series.loss.values
}

# The same weights, from files or drawn from the seed: the same curve to the bit.
llama3='rope_scaling: {rope_type: "llama3", factor: 8, low_freq_factor: 1, high_freq_factor: 4,
    original_max_position_embeddings: 16}'
mistral='model_type: "mistral", sliding_window: 24'
yarn='model_type: "qwen2", tie_word_embeddings: true, use_sliding_window: true, sliding_window: 20,
    layer_types: ["sliding_attention", "full_attention"],
    rope_parameters: {rope_type: "yarn", factor: 2, original_max_position_embeddings: 16}'
model llama "model_type: \"llama\", attention_bias: true, $llama3" 3
model mistral "$mistral"
model qwen "$yarn" 2
for name in llama mistral qwen; do
    path=$tmp/models/$name
    read=$(submit "$name" ".model = {path: \"$path\"} | .steps = 3")
    drawn=$(submit "$name-drawn" ".model = {path: \"$path\", init: \"random\"} | .steps = 3")
    wait_state "$read" succeeded >/dev/null
    wait_state "$drawn" succeeded >/dev/null
    check "$name: losses" -n "$(losses "$read" | jq 'select(length == 3)')"
    check "$name: from files as from the seed" "$(losses "$read")" = "$(losses "$drawn")"
done
model mixed "$mistral" 4 mixed
id=$(submit mixed ".model = {path: \"$tmp/models/mixed\"} | .steps = 2")
wait_state "$id" succeeded >/dev/null
check "what it was read as" "$(field "$id" .spec.model.vocab_size)" = 260

# A larger vocabulary than the weights have.
id=$(submit grown ".model = {path: \"$tmp/models/qwen\", vocab_size: 320} | .steps = 2 |
    .objective.mask_token_id = 260")
wait_state "$id" succeeded >/dev/null
check "as large as asked" "$(field "$id" '.spec.model | "\(.vocab_size) \(.config.vocab_size)"')" = \
    "320 260"

# dry NAME JQ-FILTER: a dry run's answer in $tmp/dry
dry() {
    spec dry ".model = {path: \"$tmp/models/$1\"} | ${2:-.}" |
        curl -sS --json @- "$URL/v1/jobs?dry_run=true" >"$tmp/dry"
}
dry qwen
check "a warning" "$(jq -r '.plan.warnings[0]' "$tmp/dry" | grep -c 'max_position_embeddings is 32')" \
    -eq 1
dry qwen '.data.sequence_length = 32'
check "no warning" "$(jq -c .plan.warnings "$tmp/dry")" = '[]'

# refused WHAT NAME
refused() {
    dry "$2"
    check "$1 in $(cat "$tmp/dry")" "$(jq -r '.errors[].detail' "$tmp/dry" | grep -cF -- "$1")" -ge 1
}
at=$tmp/models/llama
index=$at/model.safetensors.index.json
cp "$index" "$tmp/index"
mv "$at/model-00002-of-00003.safetensors" "$tmp/shard"
refused 'names a shard that is missing' llama
ln -s /etc/passwd "$at/model-00002-of-00003.safetensors"
refused 'which leads to /etc/passwd lies outside of the directories' llama
rm "$at/model-00002-of-00003.safetensors"
mv "$tmp/shard" "$at/model-00002-of-00003.safetensors"
jq '.weight_map["lm_head.weight"] = "../model.safetensors"' "$tmp/index" >"$index"
refused 'weight_map/lm_head.weight is "../model.safetensors"' llama
jq '.weight_map["lm_head.weight"] = "model-00001-of-00003.safetensors"' "$tmp/index" >"$index"
refused 'lm_head.weight should lie in model-00001-of-00003.safetensors' llama
cp "$tmp/index" "$index"
jq '.intermediate_size = 48' "$at/config.json" >"$tmp/config.json"
cp "$at/config.json" "$tmp/right.json"
cp "$tmp/config.json" "$at/config.json"
refused 'mlp.gate_proj.weight is [64, 32], but config.json asks for [48, 32]' llama
jq '.rope_scaling.rope_type = "dynamic"' "$tmp/right.json" >"$at/config.json"
refused 'is "dynamic" but must be "default", "linear", "llama3" or "yarn"' llama
jq '.model_type = "qwen3_moe"' "$tmp/right.json" >"$at/config.json"
refused 'is "qwen3_moe" but must be "llama", "mistral", "qwen2" or "qwen3"' llama
cp "$tmp/right.json" "$at/config.json"
dry llama
check "right again" "$(jq .plan.world "$tmp/dry")" = 2

# What changed between submission and reading, by name.
hog=$(submit hog '.parallel.degree = 4 | .steps = 100000')
wait_step "$hog" 1
lost=$(submit lost ".model = {path: \"$at\"}")
other=$(submit other ".model = {path: \"$tmp/models/mixed\"}")
rm "$at/model-00002-of-00003.safetensors"
mv "$tmp/models/mixed/model-00001-of-00004.safetensors" "$tmp/models/mixed/elsewhere.safetensors"
ln -s /usr/bin/env "$tmp/models/mixed/model-00001-of-00004.safetensors"
post "/v1/jobs/$hog/cancel" >/dev/null
wait_state "$lost" failed >/dev/null
wait_state "$other" failed >/dev/null
check "a shard that is gone: $(field "$lost" .reason)" \
    "$(field "$lost" .reason | grep -c 'names a shard that is missing')" -eq 1
check "a shard that leads out: $(field "$other" .reason)" \
    "$(field "$other" .reason | grep -c 'lies outside of the directories')" -eq 1

finish
