#include "daemon/plan/tensors.h"

#include <stdio.h>

/* Of a table: of what stands before the layers, of one of them, of what stands behind. */
struct row {
    const char *name;
    int64_t rows, columns; /* 0 columns: a vector */
    bool present, starts_group;
};

static struct model_tensor tensor(const struct row *row, int64_t layer)
{
    struct model_tensor t = {.dims = row->columns ? 2 : 1,
                             .shape = {row->rows, row->columns},
                             .starts_group = row->starts_group};
    if (layer < 0)
        snprintf(t.name, sizeof t.name, "%s", row->name);
    else
        snprintf(t.name, sizeof t.name, "model.layers.%lld.%s", (long long)layer, row->name);
    return t;
}

/* Steps on to the next row that is present; false: the table is over. */
static bool next_row(const struct row *rows, int n, int64_t layer, struct model_tensors_walk *walk,
                     struct model_tensor *out)
{
    while (walk->row < n) {
        const struct row *row = &rows[walk->row++];
        if (row->present) {
            *out = tensor(row, layer);
            return true;
        }
    }
    walk->row = 0;
    walk->layer++;
    return false;
}

/* walk->layer: 0 for what stands before the layers, 1 + n for layer n, then what stands behind. */
bool model_tensors_next(const struct model_config *m, struct model_tensors_walk *walk,
                        struct model_tensor *out)
{
    int64_t q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;
    const struct row before[] = {
        {"model.embed_tokens.weight", m->vocab, m->hidden, true, true},
    };
    const struct row of_layer[] = {
        {"input_layernorm.weight", m->hidden, 0, true, true},
        {"self_attn.q_proj.weight", q, m->hidden, true, true},
        {"self_attn.k_proj.weight", kv, m->hidden, true, false},
        {"self_attn.v_proj.weight", kv, m->hidden, true, false},
        {"self_attn.q_proj.bias", q, 0, m->qkv_bias, true},
        {"self_attn.k_proj.bias", kv, 0, m->qkv_bias, false},
        {"self_attn.v_proj.bias", kv, 0, m->qkv_bias, false},
        {"self_attn.q_norm.weight", m->head_dim, 0, m->head_norm, true},
        {"self_attn.k_norm.weight", m->head_dim, 0, m->head_norm, true},
        {"self_attn.o_proj.weight", m->hidden, q, true, true},
        {"self_attn.o_proj.bias", m->hidden, 0, m->o_bias, true},
        {"post_attention_layernorm.weight", m->hidden, 0, true, true},
        {"mlp.gate_proj.weight", m->intermediate, m->hidden, true, true},
        {"mlp.up_proj.weight", m->intermediate, m->hidden, true, false},
        {"mlp.down_proj.weight", m->hidden, m->intermediate, true, true},
    };
    const struct row behind[] = {
        {"model.norm.weight", m->hidden, 0, true, true},
        {"lm_head.weight", m->vocab, m->hidden, !m->tie_embeddings, true},
    };
#define COUNT(rows) (int)(sizeof(rows) / sizeof *(rows))
    if (walk->layer == 0 && next_row(before, COUNT(before), -1, walk, out))
        return true;
    while (walk->layer >= 1 && walk->layer <= m->layers)
        if (next_row(of_layer, COUNT(of_layer), walk->layer - 1, walk, out))
            return true;
    return walk->layer == m->layers + 1 && next_row(behind, COUNT(behind), -1, walk, out);
#undef COUNT
}
