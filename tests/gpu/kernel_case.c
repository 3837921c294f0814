// Shapes and tensors of a check, all drawn from the seed.
#include "tests/gpu/kernel_case.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/kernel_test.h"

static void *take_memory(size_t bytes) {
    void *memory = calloc(bytes ? bytes : 1, 1);
    if (!memory) {
        fprintf(stderr, "no memory for %zu bytes\n", bytes);
        abort();
    }
    return memory;
}

// ---- shapes

static uint64_t draw(kernel_test *test) {
    return gs_random_u64((gs_random_key){test->seed, test->stream}, test->drawn++);
}

uint64_t kernel_random(kernel_test *test, uint64_t limit) {
    return draw(test) % limit;
}

float kernel_real(kernel_test *test, float low, float high) {
    return low + (high - low) * ((float)(draw(test) >> 40) * 0x1p-24f);
}

bool kernel_in_simulator(void) {
#ifdef GRADSYNC_CUDA_SIM
    return true;
#else
    return getenv("GRADSYNC_TEST_SMALL") != NULL;
#endif
}

gs_dtype kernel_half_dtype(const kernel_test *test) {
    return test->half_dtype;
}

size_t kernel_dim(kernel_test *test, size_t smallest, size_t largest) {
    if (largest <= smallest) return smallest;
    const size_t span = largest - smallest;
    size_t count = 0;
    switch (kernel_random(test, 8)) {
    case 0:
        count = kernel_random(test, 4);
        break;
    case 1:
    case 2:
        count = 32 * kernel_random(test, 1 + span / 32) + kernel_random(test, 3) - 1;
        break;
    case 3:
        count = 8 * kernel_random(test, 1 + span / 8);
        break;
    default:
        count = (size_t)exp((double)kernel_real(test, 0.0f, 1.0f) * log1p((double)span));
        break;
    }
    return count > span ? smallest + span / 2
                        : smallest + count;  // -1 of the second kind comes here
}

size_t kernel_count_from(kernel_test *test, size_t smallest, size_t largest) {
    return kernel_dim(test, smallest, kernel_in_simulator() ? largest / 32 : largest);
}

size_t kernel_count(kernel_test *test, size_t largest) {
    return kernel_count_from(test, 0, largest);
}

// ---- tensors

void kernel_forget_tensors(kernel_test *test) {
    for (int i = 0; i < test->num_tensors; i++) {
        free(test->tensors[i].initial);
        free(test->tensors[i].want);
    }
    for (int i = 0; i < test->num_memory; i++) free(test->memory[i]);
    test->num_tensors = test->num_memory = 0;
    test->is_aligned = false;
}

void kernel_begin(kernel_test *test, const char *format, ...) {
    kernel_forget_tensors(test);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(test->shape, sizeof test->shape, format, arguments);
    va_end(arguments);
}

void kernel_align(kernel_test *test) {
    test->is_aligned = true;
    for (int i = 0; i < test->num_tensors; i++) test->tensors[i].offset_bytes = 0;
}

static int add_tensor(kernel_test *test, kernel_role role, const char *name, gs_dtype dtype,
                      size_t count) {
    if (test->num_tensors == KERNEL_MAX_TENSORS) {
        fprintf(stderr, "%s: more than %d tensors\n", test->case_name, KERNEL_MAX_TENSORS);
        abort();
    }
    kernel_tensor *tensor = &test->tensors[test->num_tensors];
    *tensor = (kernel_tensor){.name = name, .role = role, .dtype = dtype, .count = count};
    tensor->bytes = count * gs_dtype_bytes(dtype);
    tensor->row = 1;
    tensor->num_parts = 1;
    // Half of the tensors on a boundary, a quarter on one of 16 bytes, a quarter anywhere.
    const uint64_t way = kernel_random(test, 4), offset = kernel_random(test, 16);
    if (way == 2) tensor->offset_bytes = 16 * (offset % 4);
    if (way == 3) tensor->offset_bytes = gs_dtype_bytes(dtype) * offset;
    if (test->is_aligned || role == KERNEL_TABLE) tensor->offset_bytes = 0;
    tensor->initial = take_memory(tensor->bytes);
    tensor->want = take_memory(tensor->bytes);
    return test->num_tensors++;
}

static float draw_magnitude(uint64_t bits, int lowest, int highest) {
    const float mantissa = 1.0f + (float)(bits & 0xffffff) * 0x1p-24f;
    const int exponent = lowest + (int)((bits >> 24) % (uint64_t)(highest - lowest));
    return ldexpf(bits >> 63 ? -mantissa : mantissa, exponent);
}

static float draw_special(uint64_t bits, gs_dtype dtype) {
    static const float specials[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1.0f, -1.0f, 65504.0f};
    if ((bits >> 40) % 16 == 0) return specials[(bits >> 44) % 8];
    if (dtype == GS_FP16) return draw_magnitude(bits, -26, 17);
    return draw_magnitude(bits, -149, 128);
}

static double draw_value(kernel_test *test, gs_dtype dtype, kernel_fill fill) {
    const uint64_t bits = draw(test);
    const float unit = (float)(bits >> 40) * 0x1p-24f;
    switch (fill) {
    case KERNEL_UNIT:
        return (double)(unit * 4.0f - 2.0f);
    case KERNEL_POSITIVE:
        return (double)(0.1f + unit * 1.9f);
    case KERNEL_WIDE:
        return (double)draw_magnitude(bits, dtype == GS_FP16 ? -12 : -20, 10);
    case KERNEL_SPECIAL:
        return (double)draw_special(bits, dtype);
    case KERNEL_ZEROS:
        break;
    }
    return 0.0;
}

static void store_value(unsigned char *data, size_t i, gs_dtype dtype, double value) {
    const float narrow = (float)value;
    const uint16_t bits = dtype == GS_BF16   ? gs_fp32_to_bf16(narrow)
                          : dtype == GS_FP16 ? gs_fp32_to_fp16(narrow)
                                             : 0;
    const int64_t whole = isfinite(value) && fabs(value) < 1e9 ? (int64_t)value : 0;
    const int32_t whole32 = (int32_t)whole;
    switch (dtype) {
    case GS_FP32:
        memcpy(data + i * 4, &narrow, 4);
        break;
    case GS_FP64:
        memcpy(data + i * 8, &value, 8);
        break;
    case GS_FP16:
    case GS_BF16:
        memcpy(data + i * 2, &bits, 2);
        break;
    case GS_I64:
        memcpy(data + i * 8, &whole, 8);
        break;
    case GS_I32:
        memcpy(data + i * 4, &whole32, 4);
        break;
    default:
        data[i] = (unsigned char)whole;
        break;
    }
}

static int add_filled(kernel_test *test, kernel_role role, const char *name, gs_dtype dtype,
                      size_t count, kernel_fill fill) {
    const int index = add_tensor(test, role, name, dtype, count);
    unsigned char *data = test->tensors[index].initial;
    if (fill == KERNEL_ZEROS) return index;
    for (size_t i = 0; i < count; i++) store_value(data, i, dtype, draw_value(test, dtype, fill));
    return index;
}

int kernel_input(kernel_test *test, const char *name, gs_dtype dtype, size_t count,
                 kernel_fill fill) {
    return add_filled(test, KERNEL_INPUT, name, dtype, count, fill);
}

int kernel_inout(kernel_test *test, const char *name, gs_dtype dtype, size_t count,
                 kernel_fill fill, kernel_bound bound) {
    const int index = add_filled(test, KERNEL_INOUT, name, dtype, count, fill);
    test->tensors[index].bound = bound;
    return index;
}

int kernel_tokens(kernel_test *test, const char *name, size_t count, size_t limit) {
    const int index = add_tensor(test, KERNEL_INPUT, name, GS_I32, count);
    for (size_t i = 0; i < count; i++) {
        const uint64_t among = kernel_random(test, 4) ? limit : 1 + limit / 100;
        const int32_t token = (int32_t)kernel_random(test, among);
        memcpy(test->tensors[index].initial + i * sizeof token, &token, sizeof token);
    }
    return index;
}

int kernel_output(kernel_test *test, const char *name, gs_dtype dtype, size_t count,
                  kernel_bound bound) {
    const int index = add_tensor(test, KERNEL_OUTPUT, name, dtype, count);
    test->tensors[index].bound = bound;
    return index;
}

void kernel_split(kernel_test *test, int tensor, size_t row, int num_parts) {
    test->tensors[tensor].row = row;
    test->tensors[tensor].num_parts = num_parts;
}

int kernel_number(kernel_test *test, const char *name, gs_dtype dtype, kernel_bound bound) {
    const int index = kernel_output(test, name, dtype, 1, bound);
    test->tensors[index].pinned = kernel_random(test, 2);
    return index;
}

int kernel_scratch(kernel_test *test, size_t bytes) {
    const int index = add_tensor(test, KERNEL_SCRATCH, "scratch", GS_U8, bytes);
    test->tensors[index].offset_bytes = 0;
    return index;
}

int kernel_table(kernel_test *test, size_t bytes) {
    const int index = add_tensor(test, KERNEL_TABLE, "table", GS_U8, bytes);
    test->tensors[index].pinned = true;
    return index;
}

void *kernel_data(kernel_test *test, int tensor) {
    return test->tensors[tensor].initial;
}

const kernel_run *kernel_cpu(kernel_test *test) {
    return &test->host;
}

void *kernel_memory(kernel_test *test, size_t bytes) {
    const int room = (int)(sizeof test->memory / sizeof *test->memory);
    if (test->num_memory == room) {
        fprintf(stderr, "%s: more than %d pieces of memory\n", test->case_name, room);
        abort();
    }
    return test->memory[test->num_memory++] = take_memory(bytes);
}

const char *kernel_text(kernel_test *test, const char *format, ...) {
    const size_t bytes = 256;
    char *text = kernel_memory(test, bytes);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, bytes, format, arguments);
    va_end(arguments);
    return text;
}
