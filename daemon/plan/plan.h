/* Who owns which rows, who sees which keys, who sends what: docs/mathematics.md, "Who does what",
 * and the paper on context-sharded block parallelism (arXiv 2609.19242), sections on CP, BP and
 * CSBP.
 *
 * Pure functions: no I/O, no clock, no device. Both programs link this: dllmd for the dry run, a
 * worker for its layout. All ranks compute the same plan from the same inputs, so both ends of an
 * exchange agree without talking.
 *
 * Coordinates. A sequence has L rows at positions 0..L-1 in 1 + views streams. Stream 0 is the
 * clean one, stream 1 + v the corrupted rows of view v. Key position = stream * L + position: one
 * number names a key anywhere in the group. Several sequences of a micro-batch are laid end to end
 * as one sequence of more documents (visibility is cut at document boundaries, so nothing else
 * changes).
 */
#ifndef PLAN_PLAN_H
#define PLAN_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/base/err.h"
#include "daemon/base/intervals.h"
#include "daemon/plan/spec.h"

/* What the layout of one sequence over one group depends on. */
struct plan_shape {
    enum parallel_mode mode;
    bool causal;        /* autoregressive: stream 0 alone, row i sees [0, i] */
    int degree;         /* R: ranks that share the sequence */
    int views;          /* corrupted streams; 0 if causal */
    int64_t length;     /* L, a multiple of block_size; L >= 2R unless mode is none */
    int64_t block_size; /* b */
};

/* Rows [begin, end) belong to one document; sorted, disjoint. Rows in none are padding. */
struct plan_document {
    int64_t begin;
    int64_t end;
};

/* ---- Ownership (does not depend on documents or windows) ---- */

/* A stretch of rows that lie together in a rank's local order. */
struct plan_run {
    int stream;
    int64_t position; /* of its first row, in the stream */
    int64_t length;
    int64_t row;       /* of its first row, in the rank's local order */
    bool carries_loss; /* this rank computes the loss of these rows (corrupted rows; clean rows if
                        * causal). Each loss row of the sequence is so on exactly one rank. */
    bool exchanged;    /* this rank contributes these rows' keys to the group */
};

/* The rank of each corrupted block: dual-end pairs, the middle dealt dearest first. For all modes
 * but CP and NONE; owner has L / b entries. */
void plan_block_owners(int64_t blocks, int degree, int32_t *owner);

/* Chunk c of n rows cut in 2R: [floor(c n / 2R), floor((c+1) n / 2R)). */
int64_t plan_chunk_begin(int64_t n, int degree, int chunk);

/* ---- Layout of one rank for one sequence ---- */

enum exchange_type {
    EXCHANGE_NONE,       /* all keys are local: NONE, BP, degree 1 */
    EXCHANGE_GATHER,     /* every rank's exchanged rows, padded to gather_rows each */
    EXCHANGE_ALL_TO_ALL, /* only the rows that somebody sees: windowed layers under CSBP */
};

/* Rows [row, row + length) of a rank's local order. */
struct plan_range {
    int64_t row;
    int64_t length;
};

/* How keys reach this rank in the layers of one kind, and what each of its rows sees there. */
struct plan_kind {
    int64_t window; /* 0: full */

    /* Piece 0: this rank's corrupted keys. Piece 1: clean keys (under CP both are in the exchanged
     * buffer). Either may be empty of chunks. `local` pieces index rows of the rank's own K/V,
     * others rows of the exchanged buffer. Chunks are in key positions, sorted. */
    struct {
        bool local;
        int n_chunks;
        struct key_chunk *chunks;
        struct key_interval *intervals; /* [n_rows], in key positions */
    } pieces[ATTENTION_PIECES];

    enum exchange_type exchange;
    /* What this rank contributes. GATHER: its exchanged rows in local order (n_send ranges,
     * send_rows rows in all, the same data for everybody). ALL_TO_ALL: ranges grouped by
     * destination; send_counts[r] rows go to rank r, in order. */
    int n_send;
    struct plan_range *send;
    int64_t send_rows;    /* rows in the packed send buffer, padding left out */
    int64_t *send_counts; /* [degree]; ALL_TO_ALL, own entry included */
    int64_t *recv_counts; /* [degree]; ALL_TO_ALL, likewise */
    int64_t gather_rows;  /* GATHER: rows each rank contributes, padding included */
    int64_t buffer_rows;  /* rows of the exchanged buffer: degree x gather_rows, or sum of
                           * recv_counts (source rank order) */
    int64_t wire_rows;    /* rows received from other ranks, padding not counted */
};

struct plan_layout {
    struct plan_shape shape;
    int rank; /* in the group */
    int64_t n_rows;
    int n_runs;
    struct plan_run *runs;
    int32_t *stream;    /* [n_rows] */
    int64_t *position;  /* [n_rows], in the stream */
    int32_t *rope;      /* [n_rows] position counted from the document's start; 0 in padding */
    bool *carries_loss; /* [n_rows] its run's, but false in padding */
    int n_kinds;
    struct plan_kind *kinds; /* one for each distinct window of `windows`, in order */
};

/* windows: the distinct windows of the model's layers (0 for full attention), n_kinds of them.
 * documents: see above. Errors: ERR_INVALID for a shape that cannot be (it names the field),
 * ERR_NO_MEMORY. */
struct err *plan_layout_create(const struct plan_shape *shape, int rank,
                               const struct plan_document *documents, size_t n_documents,
                               const int64_t *windows, int n_kinds, struct plan_layout **out);
void plan_layout_free(struct plan_layout *layout);

/* Local row of (stream, position) on this rank, or -1. */
int64_t plan_layout_row(const struct plan_layout *layout, int stream, int64_t position);

/* Visible query-key pairs of this rank's rows in one kind: the attention's work. */
int64_t plan_visible_pairs(const struct plan_layout *layout, int kind);

/* Upper bounds for one rank over all documents, for memory made before step 0; reached by one
 * document that fills the sequence. For this very length: cut in chunks, a shorter sequence may
 * give a rank a row more. */
struct plan_capacity {
    int64_t rows;        /* local rows */
    int64_t loss_rows;   /* rows that may carry loss */
    int64_t send_rows;   /* packed send buffer, rows */
    int64_t buffer_rows; /* exchanged buffer, rows */
};
struct err *plan_capacity(const struct plan_shape *shape, int rank, const int64_t *windows,
                          int n_kinds, struct plan_capacity *out);

/* ---- Estimates for the dry run and for placement ---- */

/* Rows of logits that a rank has in memory at a time, by the bytes of an activation: more on a GPU,
 * where each chunk of them adds once to the gradient of the whole head. */
int64_t plan_logit_rows(size_t dtype_bytes);

struct plan_estimate {
    /* bytes a rank */
    size_t weights_bytes, gradients_bytes, optimizer_bytes, activations_bytes, exchange_bytes,
        loss_bytes, checkpoint_bytes, total_bytes;
    /* bytes this rank receives per micro-batch: forward + backward (+ recomputation) over all
     * layers, and per optimizer step for gradients and weights */
    int64_t attention_wire_bytes, step_wire_bytes;
    int64_t visible_pairs;   /* forward, over all layers */
    int64_t rows, loss_rows; /* local rows, and those of them that may carry loss */
};
/* All ranks of the group, out [degree]; one document a sequence. dtype_bytes: 4 on the CPU, 2 for
 * bf16. Takes well under a second. Errors: ERR_INVALID for a shape that cannot be, or one whose
 * exchanges have too many parts to look at (it says so), ERR_NO_MEMORY. */
struct err *plan_estimates(const struct job_spec *spec, enum parallel_mode mode, int degree,
                           size_t dtype_bytes, struct plan_estimate *out);
/* One rank of it. */
struct err *plan_estimate(const struct job_spec *spec, enum parallel_mode mode, int degree,
                          int rank, size_t dtype_bytes, struct plan_estimate *out);

/* Distinct windows of a model's layers in order of first use; out has MODEL_MAX_LAYERS entries.
 * kind_of_layer [layers] gets each layer's index into it. Returns their count. */
int plan_windows(const struct model_config *model, int64_t *out, int *kind_of_layer);

struct plan_shape plan_shape_of(const struct job_spec *spec);

/* "parallel": "auto" for `slots` free slots of `slot_bytes` memory each: the smallest degree whose
 * neediest rank fits (1: mode none, else csbp; above 16 powers of two and all slots are tried), and
 * as many replicas as the other slots hold and the batch divides into. Errors: ERR_CONFLICT without
 * a slot, ERR_INVALID where nothing fits. */
struct err *plan_choose(const struct job_spec *spec, int slots, size_t slot_bytes,
                        size_t dtype_bytes, enum parallel_mode *mode, int *degree, int *data);

#endif
