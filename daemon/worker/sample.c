#include "daemon/worker/sample.h"

#include <stdlib.h>

struct err *sample_fill(const struct dataset *dataset, enum dataset_split split, int64_t sequence,
                        struct batch *batch, int64_t row)
{
    struct plan_document *documents =
        malloc((size_t)(batch->length / batch->block_size) * sizeof *documents);
    if (!documents)
        return err_no_memory();
    size_t n = 0;
    struct err *e = dataset_sequence(dataset, split, sequence, batch->ids + row,
                                     batch->supervised + row, documents, &n);
    for (size_t i = 0; !e && i < n; i++)
        batch_add_document(batch, row + documents[i].begin, row + documents[i].end);
    free(documents);
    return e;
}
