// Which kernels of OpenBLAS a process gets, and what it says when the environment keeps it from
// better ones. OpenBLAS reads the environment when it is loaded, so each case is a process of its
// own: this program once more, which prints what it found.
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "kernels/host_blas.h"
#include "tests/unit/kernels/kernel_test.h"

static const char *program;

typedef struct found {
    int num_warnings;
    char warning[512], arithmetic[256], limit[256];
} found;

static void keep_warning(void *ctx, gs_log_level level, const char *line) {
    found *seen = ctx;
    if (level != GS_LOG_WARN) return;
    seen->num_warnings++;
    snprintf(seen->warning, sizeof seen->warning, "%s", line);
}

// The child: two devices of one process, one after the other.
static int open_twice(void) {
    found seen = {0};
    gs_log_set_sink(keep_warning, &seen);
    gs_host_blas_own();
    for (int i = 0; i < 2; i++) {
        gs_device *device = open_cpu_device(NULL, 1);
        gs_device_arithmetic(device, seen.arithmetic, sizeof seen.arithmetic);
        gs_device_limit(device, seen.limit, sizeof seen.limit);
        gs_device_close(device);
    }
    printf("%d\n%s\n%s\n%s\n", seen.num_warnings, seen.warning, seen.arithmetic, seen.limit);
    return 0;
}

static void read_line(char *line, size_t line_bytes, FILE *from) {
    if (!fgets(line, (int)line_bytes, from)) fail_msg("the child said too little");
    line[strcspn(line, "\n")] = '\0';
}

// core: what OPENBLAS_CORETYPE says, or NULL when it is not set.
static found ask_child(const char *core) {
    if (core) {
        setenv("OPENBLAS_CORETYPE", core, 1);
    } else {
        unsetenv("OPENBLAS_CORETYPE");
    }
    char command[4200], count[16];
    snprintf(command, sizeof command, "'%s' --child", program);
    FILE *child = popen(command, "r");  // NOLINT: our own path
    assert_non_null(child);
    found seen;
    read_line(count, sizeof count, child);
    read_line(seen.warning, sizeof seen.warning, child);
    read_line(seen.arithmetic, sizeof seen.arithmetic, child);
    read_line(seen.limit, sizeof seen.limit, child);
    assert_int_equal(pclose(child), 0);
    seen.num_warnings = atoi(count);
    return seen;
}

static bool has_avx2(void) {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return false;
#endif
}

static bool has_avx512(void) {
#if defined(__x86_64__)
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
    return false;
#endif
}

static void assert_says(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("'%s' is not in: %s", part, text);
}

static void assert_held(const char *core, const char *core_has, const char *processor_has) {
    char part[128];
    found seen = ask_child(core);
    assert_int_equal(seen.num_warnings, 1);  // for two devices
    snprintf(part, sizeof part, "OPENBLAS_CORETYPE=%s core=%s core_has=\"%s\" processor_has=\"%s\"",
             core, core, core_has, processor_has);
    assert_says(seen.warning, part);
    snprintf(part, sizeof part, "openblas held below %s by OPENBLAS_CORETYPE=%s", processor_has,
             core);
    assert_string_equal(seen.limit, part);
    snprintf(part, sizeof part, "/%s", core);
    assert_says(seen.arithmetic, part);
    // What decides the bits stands alone: a machine with this very core shares an exact job.
    assert_null(strstr(seen.arithmetic, "held"));
}

static void assert_free(const char *core) {
    found seen = ask_child(core);
    if (seen.num_warnings) fail_msg("%s", seen.warning);
    assert_string_equal(seen.limit, "");
}

static void avx2_kernels_on_an_avx512_processor_are_said_once(void **state) {
    (void)state;
    if (!has_avx512()) skip();
    assert_held("Haswell", "AVX2", "AVX-512");
    assert_held("Zen", "AVX2", "AVX-512");
}

static void older_kernels_are_said_on_every_modern_processor(void **state) {
    (void)state;
    if (!has_avx2()) skip();
    assert_held("Sandybridge", "less than AVX2", has_avx512() ? "AVX-512" : "AVX2");
}

static void what_openblas_chooses_by_itself_is_fine(void **state) {
    (void)state;
    assert_free(NULL);
}

static void a_fitting_core_in_the_environment_is_fine(void **state) {
    (void)state;
    if (!has_avx2()) skip();
    assert_free(has_avx512() ? "SkylakeX" : "Haswell");
}

// Such a name is none to OpenBLAS, which then chooses by itself.
static void an_unknown_core_holds_nothing(void **state) {
    (void)state;
    assert_free("NoSuchCore");
}

static void it_does_not_fall_back_to_sse3(void **state) {
    (void)state;
    if (!has_avx2()) skip();
    found seen = ask_child(NULL);
    if (strstr(seen.arithmetic, "Prescott")) fail_msg("%s", seen.arithmetic);
}

int main(int argc, char **argv) {
    if (argc > 1) return open_twice();
    program = argv[0];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(avx2_kernels_on_an_avx512_processor_are_said_once),
        cmocka_unit_test(older_kernels_are_said_on_every_modern_processor),
        cmocka_unit_test(what_openblas_chooses_by_itself_is_fine),
        cmocka_unit_test(a_fitting_core_in_the_environment_is_fine),
        cmocka_unit_test(an_unknown_core_holds_nothing),
        cmocka_unit_test(it_does_not_fall_back_to_sse3),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
