"""Makes golden vectors with the transformers library, in double precision.

usage: make.py DIRECTORY [NAME...]

Writes DIRECTORY/NAME for each model below: config.json and weights as transformers saves them, and
a file of a block-diffusion and of an autoregressive case with loss and gradients (README.md says
what is in it). Needs torch, transformers and safetensors; nothing of this project.
"""

import json
import os
import sys

import torch
from safetensors.torch import save_file

F32 = torch.float32

# The library computes norms, rotations and softmax in what it calls float32: let that be double.
torch.float32 = torch.float = torch.float64
torch.Tensor.float = torch.Tensor.double

from transformers import (  # noqa: E402
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

LENGTH, BLOCK, VOCAB, MASK = 96, 8, 64, 63
SIZES = dict(
    vocab_size=VOCAB,
    hidden_size=32,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
    initializer_range=0.1,
    attn_implementation="sdpa",
)

MODELS = {
    # Head dimension apart from hidden / heads, biases on q, k, v and o, Llama 3's rotation.
    "llama3": (
        LlamaForCausalLM,
        LlamaConfig(
            **SIZES,
            head_dim=16,
            attention_bias=True,
            tie_word_embeddings=False,
            rope_parameters={
                "rope_type": "llama3",
                "rope_theta": 500.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        ),
    ),
    "llama-linear": (
        LlamaForCausalLM,
        LlamaConfig(
            **SIZES,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
        ),
    ),
    # A window in every layer.
    "mistral-window": (
        MistralForCausalLM,
        MistralConfig(**SIZES, head_dim=16, sliding_window=20, tie_word_embeddings=False),
    ),
    # Windows by layer, YaRN with what it assumes where nothing else is said.
    "qwen2-yarn": (
        Qwen2ForCausalLM,
        Qwen2Config(
            **SIZES,
            tie_word_embeddings=True,
            use_sliding_window=True,
            sliding_window=20,
            layer_types=["sliding_attention", "full_attention"],
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": 1000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        ),
    ),
    # YaRN with everything said.
    "qwen3-yarn": (
        Qwen3ForCausalLM,
        Qwen3Config(
            **SIZES,
            head_dim=16,
            attention_bias=True,
            tie_word_embeddings=False,
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": 1000.0,
                "factor": 4.0,
                "beta_fast": 8.0,
                "beta_slow": 2.0,
                "mscale": 1.0,
                "mscale_all_dim": 0.5,
                "truncate": False,
                "original_max_position_embeddings": 32,
            },
        ),
    ),
}


def fill(model, generator):
    """Weights that bf16 holds exactly."""
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        centre, width = (1.0, 0.1) if name.endswith("norm.weight") else (0.0, 0.12)
        parameter.data = (centre + width * noise).to(torch.bfloat16).to(torch.float64)


def visible(window, stacked):
    """[rows, rows]: who sees whom, of [corrupted; clean] rows or of clean ones that are causal."""
    i, j = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)[None, :]
    near = (j > i - window) if window else torch.ones(LENGTH, LENGTH, dtype=torch.bool)
    if not stacked:
        return (j <= i) & near
    before, same = (j // BLOCK < i // BLOCK) & near, j // BLOCK == i // BLOCK
    corrupted = torch.cat([same, before], 1)
    clean = torch.cat([torch.zeros_like(same), before | same], 1)
    return torch.cat([corrupted, clean])


def mask_of(config, stacked):
    """As the model takes it: one for all layers, or one for each type of layer."""
    window = getattr(config, "sliding_window", None)
    types = getattr(config, "layer_types", None)
    whole = visible(None, stacked)[None, None]
    if not types:
        return visible(window, stacked)[None, None]
    masks = {"full_attention": whole}
    if window:
        masks["sliding_attention"] = visible(window, stacked)[None, None]
    return masks if config.model_type.startswith("qwen") else whole


def run(model, ids, positions, stacked):
    model.zero_grad()
    hidden = model.model(
        input_ids=ids[None],
        position_ids=positions[None],
        attention_mask=mask_of(model.config, stacked),
        use_cache=False,
    ).last_hidden_state
    return model.lm_head(hidden)[0]


def save(path, model, loss, tensors, metadata):
    loss.backward()
    out = {"loss": loss.detach().reshape(1).to(F32), **tensors}
    for name, parameter in model.named_parameters():
        out["grad." + name] = parameter.grad.to(F32)
    out = {name: tensor.contiguous() for name, tensor in out.items()}
    save_file(out, path, {key: json.dumps(value) for key, value in metadata.items()})


def block_diffusion(model, path, generator):
    blocks = LENGTH // BLOCK
    ids = torch.randint(0, MASK, (LENGTH,), generator=generator)
    u = torch.rand(1, generator=generator, dtype=torch.float64)
    t = (0.05 + 0.95 * ((u + torch.arange(blocks) / blocks) % 1)).to(F32)
    corrupted = torch.rand(LENGTH, generator=generator, dtype=torch.float64) < t.repeat_interleave(
        BLOCK
    )
    noisy = torch.where(corrupted, MASK, ids)
    positions = torch.arange(LENGTH)
    logits = run(model, torch.cat([noisy, ids]), torch.cat([positions, positions]), True)[:LENGTH]
    ce = torch.nn.functional.cross_entropy(logits, ids, reduction="none")
    weight = 1 / t.to(torch.float64).repeat_interleave(BLOCK)
    loss = (ce * weight * corrupted).sum() / LENGTH
    tensors = {
        "input_ids": ids.to(torch.int32),
        "noisy_ids": noisy.to(torch.int32),
        "corrupted": corrupted.to(torch.uint8),
        "t": t,
    }
    metadata = {
        "objective": "block_diffusion",
        "loss_weighting": "inverse_t",
        "block_size": BLOCK,
        "mask_token_id": MASK,
    }
    save(path, model, loss, tensors, metadata)


def autoregressive(model, path, generator):
    ids = torch.randint(0, VOCAB, (LENGTH,), generator=generator)
    logits = run(model, ids, torch.arange(LENGTH), False)
    loss = torch.nn.functional.cross_entropy(logits[:-1], ids[1:])
    save(path, model, loss, {"input_ids": ids.to(torch.int32)}, {"objective": "autoregressive"})


def main():
    root, names = sys.argv[1], sys.argv[2:] or list(MODELS)
    for number, name in enumerate(MODELS):
        if name not in names:
            continue
        architecture, config = MODELS[name]
        directory = os.path.join(root, name)
        os.makedirs(directory, exist_ok=True)
        generator = torch.Generator().manual_seed(number)
        torch.set_default_dtype(torch.float64)
        model = architecture(config).double().eval()
        fill(model, generator)
        block_diffusion(model, os.path.join(directory, "block_diffusion.safetensors"), generator)
        autoregressive(model, os.path.join(directory, "autoregressive.safetensors"), generator)
        shard = "30KB" if name == "llama3" else "1GB"
        model.to(torch.bfloat16).save_pretrained(directory, max_shard_size=shard)
        generation = os.path.join(directory, "generation_config.json")
        if os.path.exists(generation):
            os.remove(generation)


if __name__ == "__main__":
    main()
