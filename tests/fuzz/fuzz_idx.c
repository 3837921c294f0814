// Whatever lies in a pair of IDX files: opening says what is wrong, or first and last image can be
// asked for and are in [0, 1]. The input: one byte that says how many bytes are labels, labels,
// images.
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/one_file.h"
#include "worker/data/dataset.h"

#define PIXELS 4
#define CLASSES 10

static void check_sample(void *dataset, int64_t index) {
    float features[PIXELS];
    int32_t target;
    if (gs_dataset_idx.fill(dataset, index, NULL, features, &target).code) return;
    if (target < 0 || target >= CLASSES) abort();
    for (int i = 0; i < PIXELS; i++)
        if (!(features[i] >= 0.0f && features[i] <= 1.0f)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static const char *const patterns[] = {"images"};
    size_t label_bytes = bytes ? data[0] : 0;
    if (label_bytes + 1 > bytes) return 0;
    fuzz_write("labels", data + 1, label_bytes);
    fuzz_write("images", data + 1 + label_bytes, bytes - 1 - label_bytes);
    gs_dataset_options options = {.root = fuzz_dir(),
                                  .patterns = patterns,
                                  .num_patterns = 1,
                                  .labels = "labels",
                                  .row_features = PIXELS,
                                  .classes = CLASSES};
    gs_dataset_shape shape;
    void *dataset;
    if (!gs_dataset_idx.open(&dataset, &options, &shape).code) {
        check_sample(dataset, 0);
        check_sample(dataset, shape.num_samples - 1);
        gs_dataset_idx.close(dataset);
    }
    return 0;
}

static void __attribute__((destructor)) remove_files(void) {
    fuzz_remove("labels");
    fuzz_remove("images");
}
