// The library is a guest: what the process was before it trained here it is afterwards.
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cblas.h>
#include <cmocka.h>
#include <dirent.h>

#include "gradsync/gradsync.h"
#include "tests/support/asserts.h"

extern char **environ;

enum { BLAS_THREADS = 3, SIDE = 96 };

// Everything about this process that a library could change behind its host's back.
typedef struct process {
    char environment[65536];
    int num_threads, num_files, blas_threads;
    char blas_core[32], folder[256];
    sigset_t blocked;
    void (*handlers[32])(int);
    mode_t mask;
} process;

static int count_entries(const char *path) {
    int count = 0;
    DIR *folder = opendir(path);
    assert_non_null(folder);
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

static void look(process *self) {
    memset(self, 0, sizeof *self);
    size_t used = 0;
    for (char **one = environ; *one; one++) {
        size_t bytes = strlen(*one) + 1;
        assert_true(used + bytes < sizeof self->environment);
        memcpy(self->environment + used, *one, bytes);
        used += bytes;
    }
    self->num_threads = count_entries("/proc/self/task");
    self->num_files = count_entries("/proc/self/fd");
    self->blas_threads = openblas_get_num_threads();
    snprintf(self->blas_core, sizeof self->blas_core, "%s", openblas_get_corename());
    assert_non_null(getcwd(self->folder, sizeof self->folder));
    sigprocmask(SIG_BLOCK, NULL, &self->blocked);
    for (int i = 1; i < 32; i++) {
        struct sigaction action;
        sigaction(i, NULL, &action);
        self->handlers[i] = action.sa_handler;
    }
    self->mask = umask(0);
    umask(self->mask);
}

static void count_line(void *ctx, gs_log_level level, const char *line) {
    (void)level;
    (void)line;
    ++*(int *)ctx;
}

// Device with threads, product, communicator, reducer and optimizer, from the first call to the
// last.
static void train(void) {
    static float a[SIDE * SIDE], b[SIDE * SIDE], c[SIDE * SIDE];
    const gs_param_spec param = gs_param_spec_make(GS_FP32, 1000, 0, "weight");
    gs_device *device;
    gs_arena *arena;
    gs_comm *comm;
    gs_reducer *reducer;
    gs_bucket_plan plan;
    size_t bytes;
    assert_ok(gs_device_open(&device, "cpu", &(gs_device_options){.num_threads = 2}));
    gs_device_kernels(device)->matmul(gs_device_stream(device), c, a, b,
                                      &(gs_matmul){.m = SIDE, .n = SIDE, .k = SIDE, .alpha = 1});
    assert_ok(gs_stream_wait(gs_device_stream(device), gs_deadline_in_seconds(60)));
    assert_ok(gs_bucket_plan_one_host(&plan, &param, 1, NULL));
    gs_reducer_options options = {.params = &param,
                                  .num_params = 1,
                                  .plan = &plan,
                                  .shards = {.num_shards = 1, .world_size = 1},
                                  .record = {.level = GS_RECORD_INFO}};
    assert_ok(gs_reducer_arena_bytes(&bytes, &options));
    assert_ok(gs_arena_create(&arena, bytes));
    assert_ok(gs_comm_create(&comm,
                             &(gs_comm_options){.world_size = 1, .device = device, .arena = arena},
                             gs_deadline_in_seconds(60)));
    options.device = device;
    options.arena = arena;
    assert_ok(gs_reducer_create(&reducer, &options, comm, gs_deadline_in_seconds(60)));
    gs_bucket_plan_release(&plan);
    for (int64_t step = 0; step < 3; step++) {
        gs_reducer_pass pass;
        gs_reduce_result result;
        assert_ok(gs_reducer_begin(reducer, step));
        assert_ok(gs_reducer_begin_pass(reducer, &pass, 1));
        memset(pass.grads[0], 0, 1000 * sizeof(float));
        assert_ok(gs_reducer_mark_ready(reducer, 0));
        assert_ok(gs_reducer_end_pass(reducer));
        assert_ok(gs_reducer_finish(reducer, &result, gs_deadline_in_seconds(60)));
    }
    gs_reducer_destroy(reducer);
    gs_comm_destroy(comm);
    gs_arena_destroy(arena);
    gs_device_close(device);
}

// As train, with what it prints in a file; how many bytes there are.
static off_t train_into_a_file(void) {
    char path[] = "/tmp/gradsync_host_XXXXXX";
    int file = mkstemp(path), out = dup(STDOUT_FILENO), err = dup(STDERR_FILENO);
    struct stat facts;
    assert_true(file >= 0 && out >= 0 && err >= 0);
    fflush(NULL);
    dup2(file, STDOUT_FILENO);
    dup2(file, STDERR_FILENO);
    train();
    fflush(NULL);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    assert_int_equal(fstat(file, &facts), 0);
    close(file);
    close(out);
    close(err);
    unlink(path);
    return facts.st_size;
}

static void process_is_as_it_was(void **state) {
    (void)state;
    static process before, after;
    int num_lines = 0;
    setenv("OPENBLAS_NUM_THREADS", "7", 1);  // read when it was loaded, not again
    openblas_set_num_threads(BLAS_THREADS);
    gs_log_set_sink(count_line, &num_lines);
    train();  // what the C library and BLAS make at their first use stays
    look(&before);
    off_t printed = train_into_a_file();
    look(&after);
    gs_log_set_sink(NULL, NULL);
    assert_int_equal(before.blas_threads, BLAS_THREADS);
    assert_int_equal(after.blas_threads, BLAS_THREADS);
    assert_string_equal(after.blas_core, before.blas_core);
    assert_memory_equal(after.environment, before.environment, sizeof before.environment);
    assert_int_equal(after.num_threads, before.num_threads);
    assert_int_equal(after.num_files, before.num_files);
    assert_memory_equal(&after.blocked, &before.blocked, sizeof before.blocked);
    assert_memory_equal(after.handlers, before.handlers, sizeof before.handlers);
    assert_int_equal(after.mask, before.mask);
    assert_string_equal(after.folder, before.folder);
    assert_int_equal(printed, 0);
    assert_true(num_lines > 0);  // it had something to say, to the sink
}

// The first use must not change it either: what `train` is compared with above is its own first
// run.
static void environment_and_blas_outlive_the_first_use(void **state) {
    (void)state;
    static process before, after;
    openblas_set_num_threads(BLAS_THREADS);
    look(&before);
    train();
    look(&after);
    assert_int_equal(after.blas_threads, BLAS_THREADS);
    assert_string_equal(after.blas_core, before.blas_core);
    assert_memory_equal(after.environment, before.environment, sizeof before.environment);
    assert_memory_equal(&after.blocked, &before.blocked, sizeof before.blocked);
    assert_memory_equal(after.handlers, before.handlers, sizeof before.handlers);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(environment_and_blas_outlive_the_first_use),
        cmocka_unit_test(process_is_as_it_was),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
