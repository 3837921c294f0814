#include "gradsync/comm/same_words.h"

#include <stdlib.h>

static gs_status differ(const gs_same_word *word, int rank, int64_t theirs, int64_t ours) {
    if (word->is_opaque)
        return gs_error(GS_FAILED_PRECONDITION, "rank %d against rank 0: another %s", rank,
                        word->name);
    return gs_error(GS_FAILED_PRECONDITION, "rank %d against rank 0: %s %lld against %lld", rank,
                    word->name, (long long)theirs, (long long)ours);
}

static gs_status compare(const gs_same_word *words, size_t num_words, const int64_t *all,
                         int world_size) {
    for (int r = 1; r < world_size; r++) {
        const int64_t *theirs = all + (size_t)r * num_words;
        for (size_t w = 0; w < num_words; w++) {
            if (theirs[w] != all[w]) return differ(&words[w], r, theirs[w], all[w]);
        }
    }
    return gs_ok();
}

gs_status gs_same_words_check(const gs_same_word *words, size_t num_words, gs_comm *comm,
                              gs_deadline deadline) {
    int world_size = gs_comm_world_size(comm);
    int64_t *all = calloc(((size_t)world_size + 1) * num_words, sizeof *all);
    if (!all) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    int64_t *mine = all + (size_t)world_size * num_words;
    for (size_t w = 0; w < num_words; w++) mine[w] = words[w].value;
    gs_status status = gs_comm_run(comm,
                                   &(gs_collective){.kind = GS_ALLGATHER,
                                                    .send = mine,
                                                    .recv = all,
                                                    .count = num_words,
                                                    .dtype = GS_I64,
                                                    .step = -1,
                                                    .bucket = -1},
                                   deadline);
    if (!status.code) status = compare(words, num_words, all, world_size);
    free(all);
    return status;
}
