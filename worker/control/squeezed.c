#include "worker/control/squeezed.h"

#include <string.h>

#define MOST_ZEROS 255

size_t gs_squeeze(unsigned char *out, const void *data, size_t bytes) {
    const unsigned char *from = data;
    size_t count = 0;
    for (size_t i = 0; i < bytes;) {
        size_t zeros = 0;
        while (i + zeros < bytes && zeros < MOST_ZEROS && !from[i + zeros]) zeros++;
        out[count++] = from[i];
        if (zeros) out[count++] = (unsigned char)zeros;
        i += zeros ? zeros : 1;
    }
    return count;
}

bool gs_unsqueeze(void *data, size_t bytes, const unsigned char *squeezed, size_t squeezed_bytes) {
    unsigned char *to = data;
    size_t count = 0;
    for (size_t i = 0; i < squeezed_bytes; i++) {
        bool is_zero = !squeezed[i];
        if (is_zero && ++i == squeezed_bytes) return false;
        size_t run = is_zero ? squeezed[i] : 1;
        if (run == 0 || run > bytes - count) return false;
        memset(to + count, is_zero ? 0 : squeezed[i], run);
        count += run;
    }
    return count == bytes;
}
