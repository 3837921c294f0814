// What every target in this folder defines; libFuzzer or replay_main.c calls it.
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>

// Must come back from any bytes. Returns 0.
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

#endif
