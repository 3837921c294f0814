// What goes past the caches is what was there, wherever it begins and ends.
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/stream_copy.h"

#define MOST ((size_t)4096)

static void bytes_arrive_and_their_neighbours_stay(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 63, 64, 65, 130, 1000, MOST - 128};
    static _Alignas(64) unsigned char from[MOST], to[MOST], expected[MOST];
    for (size_t i = 0; i < MOST; i++) from[i] = (unsigned char)(i * 7 + i / 256);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (size_t way = 0; way < 16; way++) {
            size_t to_first = way % 4 * 21, from_first = way / 4 * 17;
            memset(to, 0xee, MOST);
            memset(expected, 0xee, MOST);
            memcpy(expected + to_first, from + from_first, sizes[s]);
            gs_stream_copy(to + to_first, from + from_first, sizes[s]);
            assert_memory_equal(to, expected, MOST);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_arrive_and_their_neighbours_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
