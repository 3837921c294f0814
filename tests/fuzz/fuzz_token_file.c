// Whatever lies in a token shard: opening says what is wrong, or first and last sample can be asked
// for and hold tokens of the vocabulary.
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/one_file.h"
#include "worker/data/dataset.h"

#define POSITIONS 4
#define VOCAB 1000

static void check_sample(void *dataset, int64_t index) {
    int32_t tokens[POSITIONS], targets[POSITIONS];
    if (gs_dataset_token_shards.fill(dataset, index, tokens, NULL, targets).code) return;
    for (int t = 0; t < POSITIONS; t++)
        if (tokens[t] < 0 || tokens[t] >= VOCAB || targets[t] < 0 || targets[t] >= VOCAB) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static const char *const patterns[] = {"shard"};
    fuzz_write("shard", data, bytes);
    gs_dataset_options options = {.root = fuzz_dir(),
                                  .patterns = patterns,
                                  .num_patterns = 1,
                                  .positions = POSITIONS,
                                  .vocab = VOCAB};
    gs_dataset_shape shape;
    void *dataset;
    if (!gs_dataset_token_shards.open(&dataset, &options, &shape).code) {
        check_sample(dataset, 0);
        check_sample(dataset, shape.num_samples - 1);
        gs_dataset_token_shards.close(dataset);
    }
    return 0;
}

static void __attribute__((destructor)) remove_file(void) {
    fuzz_remove("shard");
}
