#include "daemon/plan/tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of a table: of what stands before the layers, of one of them, of what stands behind. */
struct row {
    const char *name;
    int64_t rows, columns; /* 0 columns: a vector */
    bool present, starts_group;
};

static struct model_tensor tensor(const struct model_config *m, const struct row *row,
                                  int64_t layer)
{
    bool of_vocabulary = layer < 0 && row->columns; /* a row a token */
    struct model_tensor t = {.dims = row->columns ? 2 : 1,
                             .shape = {row->rows, row->columns},
                             .added_rows = of_vocabulary ? m->added_vocab : 0,
                             .starts_group = row->starts_group};
    if (layer < 0)
        snprintf(t.name, sizeof t.name, "%s", row->name);
    else
        snprintf(t.name, sizeof t.name, "model.layers.%lld.%s", (long long)layer, row->name);
    return t;
}

/* Steps on to the next row that is present; false: the table is over. */
static bool next_row(const struct model_config *m, const struct row *rows, int n, int64_t layer,
                     struct model_tensors_walk *walk, struct model_tensor *out)
{
    while (walk->row < n) {
        const struct row *row = &rows[walk->row++];
        if (row->present) {
            *out = tensor(m, row, layer);
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
    if (walk->layer == 0 && next_row(m, before, COUNT(before), -1, walk, out))
        return true;
    while (walk->layer >= 1 && walk->layer <= m->layers)
        if (next_row(m, of_layer, COUNT(of_layer), walk->layer - 1, walk, out))
            return true;
    return walk->layer == m->layers + 1 && next_row(m, behind, COUNT(behind), -1, walk, out);
#undef COUNT
}

/* ---- What is there against what should be ---- */

struct check {
    const struct tensor_seen *seen;
    bool *known; /* [n] */
    size_t n;
    const char *where, *pointer;
    struct problems *problems;
    int found; /* problems */
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct tensor_seen *)a)->name, ((const struct tensor_seen *)b)->name);
}

/* "[4, 3]" */
static void shape_text(const int64_t *shape, int dims, char *out, size_t size)
{
    size_t used = (size_t)snprintf(out, size, "[");
    for (int i = 0; i < dims && used < size; i++)
        used +=
            (size_t)snprintf(out + used, size - used, "%s%lld", i ? ", " : "", (long long)shape[i]);
    if (used < size)
        snprintf(out + used, size - used, "]");
}

static bool is_float(const char *dtype)
{
    return strcmp(dtype, "F32") == 0 || strcmp(dtype, "BF16") == 0 || strcmp(dtype, "F16") == 0;
}

static const struct tensor_seen *find(const struct check *c, const char *name)
{
    const struct tensor_seen key = {.name = name};
    return bsearch(&key, c->seen, c->n, sizeof key, by_name);
}

static void expect(struct check *c, const struct model_tensor *expected)
{
    const int64_t shape[] = {expected->shape[0] - expected->added_rows, expected->shape[1]};
    const struct tensor_seen *t = find(c, expected->name);
    char want[64], is[192];
    if (t)
        c->known[t - c->seen] = true;
    if (c->found >= TENSORS_MAX_PROBLEMS)
        return;
    shape_text(shape, expected->dims, want, sizeof want);
    if (!t) {
        c->found++;
        problems_add(c->problems, c->pointer, "%s lacks the tensor %s %s", c->where, expected->name,
                     want);
    } else if (t->dims != expected->dims ||
               memcmp(t->shape, shape, (size_t)t->dims * sizeof *shape) != 0) {
        c->found++;
        shape_text(t->shape, t->dims, is, sizeof is);
        problems_add(c->problems, c->pointer, "%s: %s is %s, but config.json asks for %s", t->file,
                     t->name, is, want);
    } else if (!is_float(t->dtype)) {
        c->found++;
        problems_add(c->problems, c->pointer, "%s: %s is %s, but must be F32, BF16 or F16", t->file,
                     t->name, t->dtype);
    }
}

/* The head may lie beside the embedding that it is tied to; who reads them sees that they are the
 * same. */
static void expect_tied_head(struct check *c, const struct model_config *m)
{
    struct model_tensor head = {
        .name = "lm_head.weight",
        .dims = 2,
        .shape = {m->vocab, m->hidden},
        .added_rows = m->added_vocab,
    };
    if (m->tie_embeddings && find(c, head.name))
        expect(c, &head);
}

/* Frequencies that old files of Llama carry along. */
static bool is_left_out(const char *name)
{
    static const char ending[] = "rotary_emb.inv_freq";
    size_t n = strlen(name), k = strlen(ending);
    return n >= k && strcmp(name + n - k, ending) == 0;
}

void model_tensors_check(const struct model_config *model, const struct tensor_seen *seen, size_t n,
                         const char *where, const char *pointer, struct problems *problems)
{
    struct check c = {.seen = seen,
                      .known = calloc(n + 1, sizeof(bool)),
                      .n = n,
                      .where = where,
                      .pointer = pointer,
                      .problems = problems};
    if (!c.known) {
        problems_add_err(problems, pointer, err_no_memory());
        return;
    }
    struct model_tensors_walk walk = {0};
    struct model_tensor expected;
    while (model_tensors_next(model, &walk, &expected))
        expect(&c, &expected);
    expect_tied_head(&c, model);
    for (size_t i = 0; i < n && c.found < TENSORS_MAX_PROBLEMS; i++) {
        if (c.known[i] || is_left_out(seen[i].name))
            continue;
        c.found++;
        problems_add(problems, pointer,
                     "%s has a tensor %.200s, of which config.json knows nothing", seen[i].file,
                     seen[i].name);
    }
    free(c.known);
}
