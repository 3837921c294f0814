// Kind powersgd: PyTorch's powerSGD_hook on known gradients, through a reducer with one process for
// each rank. The file's random Q is written into the hook's state where the original drew it:
// before the first compressed iteration, without warm start before each. All else follows from the
// inputs.
//
// Errors are compared as their mean over ranks: the original keeps what a rank differs from the
// mean by, too, which cancels there, and grows.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/low_rank.h"
#include "gradsync/comm/device_arena.h"
#include "gradsync/hooks/hook_calls.h"
#include "gradsync/reducer/reducer.h"
#include "tests/conformance/conformance.h"
#include "tests/conformance/replica.h"
#include "tests/conformance/training.h"
#include "tests/support/shared_gpu.h"
#include "tests/support/soon.h"
#include "tests/support/test_device.h"
#include "rpc/checkpoint/safetensors.h"

#define FILE_SECONDS 120.0
#define MAX_PARAMS 32
#define MAX_BUCKETS 8
#define MAX_WORLD 8

// A tensor of a bucket, and where its elements are in the bucket's rows of the file.
typedef struct member {
    int bucket, place;
    size_t first, count;
    gs_low_rank shape;
} member;

typedef struct recording {
    const gs_rank_env *env;
    gs_safetensors *file;
    int world_size, steps, start, rank;
    bool warm, feeds_back;
    double rate, epsilon;
    gs_dtype dtype;
    size_t num_params;
    gs_param_spec params[MAX_PARAMS];
    member members[MAX_PARAMS];
    size_t bucket_counts[MAX_BUCKETS];
    gs_plan_bucket plan_buckets[MAX_BUCKETS];
    size_t order[MAX_PARAMS];
    gs_bucket_plan plan;
    gs_device *device;
    gs_arena *arena;
    gs_comm *comm;
    gs_reducer *reducer;
} recording;

// `count` numbers of a tensor from `first` on.
static gs_status read_numbers(double *out, const recording *self, size_t first, size_t count,
                              const char *format, int bucket, int place) {
    char name[64];
    snprintf(name, sizeof name, format, bucket, place);
    const gs_safetensor *tensor = gs_safetensors_find(self->file, name);
    const size_t element_bytes = gs_dtype_bytes(self->dtype);
    if (!tensor || tensor->dtype != self->dtype || (first + count) * element_bytes > tensor->bytes)
        return gs_error(GS_INVALID_ARGUMENT, "tensor %s is not there or too short", name);
    const char *data = (const char *)tensor->data + first * element_bytes;
    for (size_t i = 0; i < count; i++) {
        float narrow;
        memcpy(self->dtype == GS_FP64 ? (void *)&out[i] : &narrow, data + i * element_bytes,
               element_bytes);
        if (self->dtype == GS_FP32) out[i] = (double)narrow;
    }
    return gs_ok();
}

static void narrow(void *out, const double *numbers, size_t count, gs_dtype dtype) {
    for (size_t i = 0; i < count; i++) {
        if (dtype == GS_FP64)
            ((double *)out)[i] = numbers[i];
        else
            ((float *)out)[i] = (float)numbers[i];
    }
}

static void widen(double *out, const void *numbers, size_t count, gs_dtype dtype) {
    for (size_t i = 0; i < count; i++)
        out[i] =
            dtype == GS_FP64 ? ((const double *)numbers)[i] : (double)((const float *)numbers)[i];
}

// "10x24" and the rank that the original used.
static gs_status read_member(recording *self, int bucket, int place, const char *shape, int rank) {
    gs_param_spec *spec = &self->params[self->num_params];
    member *read = &self->members[self->num_params];
    if (self->num_params == MAX_PARAMS) return gs_error(GS_INVALID_ARGUMENT, "too many tensors");
    *spec = (gs_param_spec){.dtype = self->dtype};
    snprintf(spec->name, sizeof spec->name, "b%d.t%d", bucket, place);
    for (char *at = (char *)(uintptr_t)shape;; at++) {
        spec->shape[spec->num_dims++] = strtol(at, &at, 10);
        if (*at != 'x' || spec->num_dims == GS_MAX_DIMS) break;
    }
    *read = (member){.bucket = bucket,
                     .place = place,
                     .first = self->bucket_counts[bucket],
                     .count = gs_param_spec_count(spec),
                     .shape = gs_low_rank_of(spec, self->rank, self->rate)};
    self->bucket_counts[bucket] += read->count;
    self->order[self->num_params] = self->num_params;
    self->num_params++;
    if (read->shape.rank == rank) return gs_ok();
    return gs_error(GS_DATA_LOSS, "%s of shape %s: rank %d, wanted %d", spec->name, shape,
                    read->shape.rank, rank);
}

static gs_status read_bucket(recording *self, int bucket) {
    char key[32], shapes[256], *rest;
    snprintf(key, sizeof key, "b%d.ranks", bucket);
    const char *ranks = gs_safetensors_metadata(self->file, key);
    snprintf(key, sizeof key, "b%d.shapes", bucket);
    const char *text = gs_safetensors_metadata(self->file, key);
    if (!text || !ranks) return gs_error(GS_INVALID_ARGUMENT, "no bucket %d", bucket);
    snprintf(shapes, sizeof shapes, "%s", text);
    size_t first = self->num_params;
    int place = 0;
    for (char *shape = strtok_r(shapes, ",", &rest); shape; shape = strtok_r(NULL, ",", &rest)) {
        GS_TRY(read_member(self, bucket, place++, shape, (int)strtol(ranks, (char **)&ranks, 10)));
        if (*ranks == ',') ranks++;
    }
    self->plan_buckets[bucket] =
        (gs_plan_bucket){.bytes = self->bucket_counts[bucket] * gs_dtype_bytes(self->dtype),
                         .dtype = self->dtype,
                         .first = first,
                         .num_params = self->num_params - first};
    return gs_ok();
}

static gs_status read_file(recording *self, const char *path) {
    *self = (recording){0};
    GS_TRY(gs_safetensors_load(&self->file, path));
    const char *dtype = gs_safetensors_metadata(self->file, "dtype");
    const int num_buckets = (int)vector_number(self->file, "buckets");
    self->world_size = (int)vector_number(self->file, "world");
    self->rank = (int)vector_number(self->file, "matrix_approximation_rank");
    self->steps = (int)vector_number(self->file, "iterations");
    self->start = (int)vector_number(self->file, "start_powerSGD_iter");
    self->warm = vector_number(self->file, "warm_start") != 0;
    self->feeds_back = vector_number(self->file, "use_error_feedback") != 0;
    self->rate = vector_number(self->file, "min_compression_rate");
    self->epsilon = vector_number(self->file, "orthogonalization_epsilon");
    self->dtype = dtype && strcmp(dtype, "f64") == 0 ? GS_FP64 : GS_FP32;
    if (self->world_size < 1 || self->world_size > MAX_WORLD || self->rank < 1 || num_buckets < 1 ||
        num_buckets > MAX_BUCKETS || self->steps <= self->start)
        return gs_error(GS_INVALID_ARGUMENT, "not a recording of powerSGD_hook");
    for (int b = 0; b < num_buckets; b++) GS_TRY(read_bucket(self, b));
    self->plan = (gs_bucket_plan){.num_buckets = (size_t)num_buckets,
                                  .num_params = self->num_params,
                                  .buckets = self->plan_buckets,
                                  .params = self->order};
    return gs_ok();
}

// The hook, adding up what it reports of each step that counts.
static gs_hook_report reported;

static void commit_and_report(void *state) {
    gs_hook_report report = {0};
    gs_hook_powersgd.report(state, &report);
    reported.elements += report.elements;
    reported.elements_sent += report.elements_sent;
    gs_hook_powersgd.commit(state);
}

static gs_status open_reducer(recording *self, const gs_rank_env *env) {
    static gs_comm_hook hook;
    hook = gs_hook_powersgd;
    hook.commit = commit_and_report;
    const gs_hook_number numbers[] = {{"rank", self->rank},
                                      {"start_step", self->start},
                                      {"min_compression_rate", self->rate},
                                      {"error_feedback", self->feeds_back},
                                      {"warm_start", self->warm},
                                      {"orthogonalization_epsilon", self->epsilon}};
    static gs_hook_number given[sizeof numbers / sizeof numbers[0]];
    static gs_hook_choice choice;
    memcpy(given, numbers, sizeof given);
    choice = (gs_hook_choice){
        .hook = &hook, .numbers = given, .num_numbers = sizeof given / sizeof given[0]};
    self->env = env;
    gs_share_gpu(env->rank);
    GS_TRY(gs_device_open(&self->device, gs_test_device_name(), NULL));
    gs_reducer_options options = {
        .params = self->params,
        .num_params = self->num_params,
        .plan = &self->plan,
        .shards = {.num_shards = env->world_size, .world_size = env->world_size, .rank = env->rank},
        .hooks = &choice,
        .num_hooks = 1,
        .device = self->device};
    size_t bytes;
    gs_comm_options comm = {.backend = conformance_backend(),
                            .rank = env->rank,
                            .world_size = env->world_size,
                            .generation = 1,
                            .exchange = gs_rank_exchange,
                            .exchange_ctx = env->exchange,
                            .device = self->device};
    GS_TRY(gs_reducer_arena_bytes(&bytes, &options));
    GS_TRY(gs_reducer_lanes(&comm.num_lanes, &options));
    GS_TRY(gs_arena_create_on(&self->arena, bytes, self->device));
    comm.arena = options.arena = self->arena;
    GS_TRY(gs_comm_create(&self->comm, &comm, soon()));
    return gs_reducer_create(&self->reducer, &options, self->comm, soon());
}

static void close_recording(recording *self) {
    gs_reducer_destroy(self->reducer);
    gs_comm_destroy(self->comm);
    gs_arena_destroy(self->arena);
    gs_device_close(self->device);
    gs_safetensors_close(self->file);
}

static bool find_tensor(gs_hook_tensor *out, const recording *self, const char *name,
                        size_t param) {
    gs_hook_state_tensor tensor;
    for (size_t i = 0; gs_reducer_hook_state(&tensor, self->reducer, i); i++) {
        *out = tensor.tensor;
        if (strcmp(out->name, name) == 0 && out->param == (int64_t)param) return true;
    }
    return false;
}

// Of this iteration, as drawn: (m, r) in the file, by columns in the hook.
static gs_status load_factor(const recording *self, size_t param, int iteration) {
    const member *of = &self->members[param];
    const size_t cols = of->shape.cols, rank = (size_t)of->shape.rank, count = cols * rank;
    double *rows = calloc(2 * count, sizeof *rows), *columns = rows + count;
    void *narrowed = calloc(count, sizeof(double));
    gs_hook_tensor tensor;
    gs_status status = read_numbers(rows, self, self->warm ? 0 : (size_t)iteration * count, count,
                                    "b%d.t%d.q_raw", of->bucket, of->place);
    if (!status.code && !find_tensor(&tensor, self, "q", param))
        status = gs_error(GS_DATA_LOSS, "no state \"q\" of %s", self->params[param].name);
    for (size_t i = 0; i < count; i++) columns[i % rank * cols + i / rank] = rows[i];
    narrow(narrowed, columns, count, self->dtype);
    if (!status.code && tensor.count != count)
        status = gs_error(GS_DATA_LOSS, "q of %zu elements, wanted %zu", tensor.count, count);
    if (!status.code)
        status = gs_device_upload(self->device, tensor.data, narrowed,
                                  count * gs_dtype_bytes(self->dtype));
    free(rows);
    free(narrowed);
    return status;
}

static gs_status load_factors(recording *self, int step) {
    if (step < self->start || (self->warm && step > self->start)) return gs_ok();
    for (size_t p = 0; p < self->num_params; p++)
        if (self->members[p].shape.rank) GS_TRY(load_factor(self, p, step - self->start));
    return gs_reducer_hook_state_loaded(self->reducer);
}

static gs_status take_step(recording *self, int step) {
    gs_reducer_pass pass;
    gs_reduce_result reduced;
    GS_TRY(gs_reducer_begin(self->reducer, step));
    GS_TRY(gs_reducer_begin_pass(self->reducer, &pass, 1));
    for (size_t p = 0; p < self->num_params; p++) {
        const member *of = &self->members[p];
        const size_t row = (size_t)(step * self->world_size + self->env->rank);
        double *numbers = calloc(of->count, sizeof *numbers);
        void *narrowed = calloc(of->count, sizeof(double));
        gs_status status =
            read_numbers(numbers, self, row * self->bucket_counts[of->bucket] + of->first,
                         of->count, "b%d.in", of->bucket, 0);
        narrow(narrowed, numbers, of->count, self->dtype);
        if (!status.code)
            status = gs_device_upload(self->device, pass.grads[p], narrowed,
                                      of->count * gs_dtype_bytes(self->dtype));
        free(numbers);
        free(narrowed);
        GS_TRY(status);
        GS_TRY(gs_reducer_mark_ready(self->reducer, p));
    }
    GS_TRY(gs_reducer_end_pass(self->reducer));
    GS_TRY(gs_reducer_finish(self->reducer, &reduced, soon()));
    return gs_reducer_commit(self->reducer);
}

// What a tensor's results are measured by: the largest input of any rank with the error that was
// carried into it.
static gs_status measure_input(double *largest, const recording *self, const member *of, int step) {
    double *input = calloc(2 * of->count, sizeof *input), *carried = input + of->count;
    const size_t length = self->bucket_counts[of->bucket];
    gs_status status = gs_ok();
    *largest = 0;
    for (int r = 0; r < self->world_size && !status.code; r++) {
        status =
            read_numbers(input, self, (size_t)(step * self->world_size + r) * length + of->first,
                         of->count, "b%d.in", of->bucket, 0);
        const int behind = step - 1 - self->start;
        if (!status.code && self->feeds_back && behind >= 0)
            status = read_numbers(carried, self,
                                  (size_t)(behind * self->world_size + r) * length + of->first,
                                  of->count, "b%d.err", of->bucket, 0);
        for (size_t i = 0; i < of->count; i++)
            *largest = fmax(*largest, fabs(input[i] + carried[i]));
    }
    free(input);
    return status;
}

static gs_status compare(const recording *self, const char *what, const member *of, int step,
                         const double *got, const double *wanted) {
    double largest;
    GS_TRY(measure_input(&largest, self, of, step));
    const double most = (self->dtype == GS_FP64 ? 1e-11 : 1e-4) * largest;
    for (size_t i = 0; i < of->count; i++) {
        if (!(fabs(got[i] - wanted[i]) <= most))
            return gs_error(GS_DATA_LOSS,
                            "iteration %d: %s of b%d.t%d: element %zu is %.9g, wanted %.9g "
                            "(allowed %.3g)",
                            step, what, of->bucket, of->place, i, got[i], wanted[i], most);
    }
    return gs_ok();
}

static gs_status read_device(const recording *self, double *out, const void *data, size_t count) {
    void *host = calloc(count, sizeof(double));
    gs_status status =
        gs_device_download(self->device, host, data, count * gs_dtype_bytes(self->dtype));
    widen(out, host, count, self->dtype);
    free(host);
    return status;
}

static gs_status compare_output(const recording *self, size_t param, int step, double *got,
                                double *wanted) {
    const member *of = &self->members[param];
    GS_TRY(read_device(self, got, gs_reducer_grads(self->reducer)[param], of->count));
    GS_TRY(read_numbers(wanted, self, (size_t)step * self->bucket_counts[of->bucket] + of->first,
                        of->count, "b%d.out", of->bucket, 0));
    return compare(self, "out", of, step, got, wanted);
}

// Ours are in units of the result, a rank's part of the mean: they are added up.
static gs_status compare_error(const recording *self, size_t param, int step, double *got,
                               double *wanted) {
    const member *of = &self->members[param];
    const size_t length = self->bucket_counts[of->bucket];
    double row[4096];
    gs_hook_tensor tensor;
    if (of->count > sizeof row / sizeof row[0] || !find_tensor(&tensor, self, "error", param))
        return gs_error(GS_DATA_LOSS, "no state \"error\" of %s", self->params[param].name);
    GS_TRY(read_device(self, got, tensor.data, of->count));
    GS_TRY(gs_comm_run(self->comm,
                       &(gs_collective){.kind = GS_ALLREDUCE,
                                        .send = got,
                                        .recv = got,
                                        .count = of->count,
                                        .dtype = GS_FP64,
                                        .bucket = -1},
                       soon()));
    memset(wanted, 0, of->count * sizeof *wanted);
    for (int r = 0; r < self->world_size; r++) {
        const int behind = step - self->start;
        GS_TRY(read_numbers(row, self, (size_t)(behind * self->world_size + r) * length + of->first,
                            of->count, "b%d.err", of->bucket, 0));
        for (size_t i = 0; i < of->count; i++) wanted[i] += row[i] / self->world_size;
    }
    return compare(self, "mean error", of, step, got, wanted);
}

static gs_status compare_step(const recording *self, int step) {
    gs_status status = gs_ok();
    for (size_t p = 0; p < self->num_params && !status.code; p++) {
        const member *of = &self->members[p];
        double *got = calloc(2 * of->count, sizeof *got);
        status = compare_output(self, p, step, got, got + of->count);
        if (!status.code && step >= self->start && self->feeds_back && of->shape.rank)
            status = compare_error(self, p, step, got, got + of->count);
        free(got);
    }
    return status;
}

static gs_status compare_elements(const recording *self) {
    const double before = vector_number(self->file, "total_numel_before_compression"),
                 after = vector_number(self->file, "total_numel_after_compression");
    if ((double)reported.elements == before && (double)reported.elements_sent == after)
        return gs_ok();
    return gs_error(GS_DATA_LOSS, "%llu elements became %llu, wanted %.0f and %.0f",
                    (unsigned long long)reported.elements,
                    (unsigned long long)reported.elements_sent, before, after);
}

// arg: FILE
gs_status conformance_powersgd_rank(const gs_rank_env *env) {
    recording self;
    gs_status status = read_file(&self, env->arg);
    if (!status.code) status = open_reducer(&self, env);
    for (int step = 0; step < self.steps && !status.code; step++) {
        status = load_factors(&self, step);
        if (!status.code) status = take_step(&self, step);
        if (!status.code) status = compare_step(&self, step);
    }
    if (!status.code) status = compare_elements(&self);
    close_recording(&self);
    return status;
}

gs_status conformance_powersgd(conformance *run, char **args, int num_args) {
    for (int i = 0; i < num_args; i++) {
        recording self;
        const char *slash = strrchr(args[i], '/'), *name = slash ? slash + 1 : args[i];
        gs_status status = read_file(&self, args[i]);
        if (!self.file) return status;
        if (!status.code)
            status = gs_ranks_run("powersgd", self.world_size, args[i],
                                  conformance_deadline(FILE_SECONDS));
        conformance_case(run, name, status);
        gs_safetensors_close(self.file);
    }
    return gs_ok();
}
