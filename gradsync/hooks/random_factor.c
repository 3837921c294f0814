#include "gradsync/hooks/random_factor.h"

#include "core/random.h"

// Odd, and below 2^20.
static int32_t draw(gs_random_key key, uint64_t index) {
    uint32_t block[4];
    int32_t sum = 0;
    gs_random_block(block, key, index);
    for (int i = 0; i < 4; i++) sum += (int32_t)(block[i] & 0xffff) + (int32_t)(block[i] >> 16);
    return 2 * sum - 8 * 0xffff + 1;
}

void gs_random_factor_fill(void *out, gs_dtype dtype, size_t count, gs_random_factor what) {
    const gs_random_key key = {.seed = what.seed,
                               .stream = gs_random_stream(what.draw, what.key, 0x51)};
    for (size_t i = 0; i < count; i++) {
        const int32_t number = draw(key, i);
        if (dtype == GS_FP64)
            ((double *)out)[i] = (double)number * 0x1p-17;
        else
            ((float *)out)[i] = (float)number * 0x1p-17f;
    }
}
