// Whether the checks see what they are there for: launches that are honest on the CPU and do one
// thing wrong on the device must fail, each with its words.
#include <stdio.h>
#include <string.h>

#include "tests/gpu/kernel_case.h"
#include "tests/gpu/kernel_test.h"

#define COUNT ((size_t)3001)
#define EXACT                                                                                      \
    { 0.0, 0.0, NULL }
static const kernel_bound loose = {1e-3, 1e-2, "for the test of the tests"};

typedef struct misdeed {
    const char *claim;
    void (*commit)(const kernel_run *run, float *out, float *in);
    kernel_bound bound;
    int from_launch;  // it begins with this launch on the device, counted from 1
    const char *words;
} misdeed;

static void write_behind(const kernel_run *run, float *out, float *in) {
    (void)in;
    run->kernels->fill(run->stream, out + COUNT, 1.0f, 1);
}

static void write_before(const kernel_run *run, float *out, float *in) {
    (void)in;
    run->kernels->fill(run->stream, out - 1, 1.0f, 1);
}

static void change_input(const kernel_run *run, float *out, float *in) {
    (void)out;
    run->kernels->fill(run->stream, in + COUNT - 1, 9.0f, 1);
}

static void change_last_bit(const kernel_run *run, float *out, float *in) {
    (void)in;
    run->kernels->fill(run->stream, out + 7, 1.00000012f, 1);
}

static void spoil_element(const kernel_run *run, float *out, float *in) {
    (void)in;
    run->kernels->fill(run->stream, out + 7, 1.05f, 1);
}

static void spoil_all(const kernel_run *run, float *out, float *in) {
    run->kernels->scale(run->stream, out, in, 1.002f, COUNT);
}

static void hide_nan(const kernel_run *run, float *out, float *in) {
    (void)in;
    run->kernels->fill(run->stream, out + 8, 1.0f, 1);
}

static void leave_hole(const kernel_run *run, float *out, float *in) {
    (void)in;
    run->kernels->copy(run->stream, out + 100, out + COUNT, sizeof *out);  // the guard: poison
}

static const misdeed misdeeds[] = {
    {"write_behind_is_seen", write_behind, EXACT, 1, "bytes behind it"},
    {"write_before_is_seen", write_before, EXACT, 1, "bytes before it"},
    {"changed_input_is_seen", change_input, EXACT, 1, "was changed"},
    {"unwritten_element_is_seen", leave_hole, EXACT, 1, "must be the same bits"},
    {"last_bit_is_seen", change_last_bit, EXACT, 1, "must be the same bits"},
    {"one_wrong_element_among_many_is_seen",
     spoil_element,
     {1e-1, 1e-2, "loose norm"},
     1,
     "farther than the bound of an element"},
    {"small_error_everywhere_is_seen", spoil_all, {1e-3, 1e-2, "tight norm"}, 1, "relative norm"},
    {"hidden_nan_is_seen", hide_nan, {1e-3, 1e-2, "any"}, 1, "not finite in the same places"},
    {"other_bits_the_second_time_are_seen", change_last_bit, {1e-3, 1e-2, "any"}, 2, "second time"},
    {"other_bits_from_a_graph_are_seen", change_last_bit, {1e-3, 1e-2, "any"}, 3, "from a graph"},
};

typedef struct deed {
    const misdeed *wrong;
    int num_launches;  // on the device
} deed;

static bool is_device(const kernel_run *run) {
    return strncmp(run->kernels->name, "cuda", 4) == 0;
}

static void launch_deed(const kernel_run *run) {
    deed *job = *(deed *const *)run->shape;
    run->kernels->relu(run->stream, run->at[0], run->at[1], COUNT);
    if (is_device(run) && job->wrong && ++job->num_launches >= job->wrong->from_launch)
        job->wrong->commit(run, run->at[0], run->at[1]);
}

static void check_deed(kernel_test *test, const misdeed *wrong, kernel_bound bound) {
    deed job = {.wrong = wrong}, *shape = &job;
    kernel_begin(test, "count %zu", COUNT);
    kernel_output(test, "out", GS_FP32, COUNT, bound);
    float *in = kernel_data(test, kernel_input(test, "in", GS_FP32, COUNT, KERNEL_POSITIVE));
    in[7] = 1.0f;
    in[8] = __builtin_nanf("");
    kernel_check(test, launch_deed, &shape);
}

// ---- parts that are compared by themselves

#define PART ((size_t)500)
#define NUM_ROWS ((size_t)3)

// The right half of each row, a thousandth of the left one, comes out 2 % too large.
static void launch_parts(const kernel_run *run) {
    float *out = run->at[0], *in = run->at[1];
    run->kernels->relu(run->stream, out, in, 2 * PART * NUM_ROWS);
    for (size_t row = 0; is_device(run) && row < NUM_ROWS; row++) {
        const size_t at = (2 * row + 1) * PART;
        run->kernels->scale(run->stream, out + at, in + at, 1.02f, PART);
    }
}

static void check_parts(kernel_test *test, int num_parts) {
    kernel_begin(test, "%d parts", num_parts);
    const int out = kernel_output(test, "out", GS_FP32, 2 * PART * NUM_ROWS, loose);
    kernel_split(test, out, 2 * PART, num_parts);
    const int input = kernel_input(test, "in", GS_FP32, 2 * PART * NUM_ROWS, KERNEL_POSITIVE);
    float *in = kernel_data(test, input);
    for (size_t i = 0; i < 2 * PART * NUM_ROWS; i++)
        if (i / PART % 2) in[i] *= 1e-3f;
    kernel_check(test, launch_parts, NULL);
}

// ---- failures that must come, and leave everything alone

typedef struct embedding_job {
    bool writes;
} embedding_job;

static void launch_embedding(const kernel_run *run) {
    const embedding_job *job = run->shape;
    run->kernels->embedding(run->stream, run->at[0], run->at[1], run->at[2], run->at[3], 1, 2, 4,
                            3);
    if (is_device(run) && job->writes) run->kernels->fill(run->stream, run->at[0], 1.0f, 1);
}

static void check_embedding(kernel_test *test, int32_t token, bool writes, const char *words) {
    const embedding_job job = {writes};
    kernel_begin(test, "token %d", token);
    kernel_output(test, "out", GS_FP32, 8, KERNEL_SAME_BITS);
    int32_t *tokens = kernel_data(test, kernel_tokens(test, "tokens", 2, 3));
    tokens[1] = token;
    kernel_input(test, "wte", GS_FP32, 12, KERNEL_UNIT);
    kernel_input(test, "wpe", GS_FP32, 8, KERNEL_UNIT);
    kernel_check_fails(test, launch_embedding, &job, words);
}

static int expect(kernel_test *test, const char *claim, const char *words) {
    const bool as_expected = words ? test->failed && strstr(test->failure, words) : !test->failed;
    printf("%s %s%s%s\n", as_expected ? "ok  " : "FAIL", claim, as_expected ? "" : ": ",
           as_expected    ? ""
           : test->failed ? test->failure
                          : "nothing was seen");
    test->failed = false;
    kernel_forget_tensors(test);
    return !as_expected;
}

int kernel_self_test(kernel_test *test) {
    int num_failed = 0;
    test->quiet = true;
    test->case_name = "self_test";
    check_deed(test, NULL, KERNEL_SAME_BITS);
    num_failed += expect(test, "honest_kernel_passes", NULL);
    check_deed(test, NULL, loose);
    num_failed += expect(test, "honest_kernel_passes_within_a_bound", NULL);
    for (size_t i = 0; i < sizeof misdeeds / sizeof *misdeeds; i++) {
        check_deed(test, &misdeeds[i], misdeeds[i].bound);
        num_failed += expect(test, misdeeds[i].claim, misdeeds[i].words);
    }
    check_parts(test, 1);
    num_failed += expect(test, "small_half_is_lost_beside_a_large_one", NULL);
    check_parts(test, 2);
    num_failed += expect(test, "small_half_is_seen_as_a_part", "part 1: relative norm");
    check_embedding(test, 3, false, "row 1: token 3");
    num_failed += expect(test, "expected_failure_passes", NULL);
    check_embedding(test, 2, false, "row 1: token 2");
    num_failed += expect(test, "failure_that_does_not_come_is_seen", "does not fail");
    check_embedding(test, 3, true, "row 1: token 3");
    num_failed += expect(test, "failure_that_writes_is_seen", "was changed");
    return num_failed;
}
