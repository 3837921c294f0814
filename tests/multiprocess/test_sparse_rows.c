// Row-sparse gradients between real processes: against sums done serially, to the bit.
#include "gradsync/sparse/sparse_rows.h"

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/digest.h"
#include "core/random.h"
#include "gradsync/reducer/reducer.h"
#include "tests/support/comm_rank.h"
#include "tests/support/ranks.h"
#include "tests/support/soon.h"

#define MAX_WORLD 8
#define NUM_STEPS 5
#define NUM_SEEDS 6

// A parameter, and what each rank adds to it in each step; all of it follows from the seed.
typedef struct rows_case {
    uint64_t seed;
    int world_size;
    gs_param_spec param;
    size_t num_rows, columns, most_rows;
    gs_reducer_op op;
} rows_case;

static uint64_t draw(const rows_case *c, uint64_t a, uint64_t b, uint64_t i) {
    return gs_random_u64((gs_random_key){c->seed, gs_random_stream(a, b, 0)}, i);
}

static rows_case make_case(uint64_t seed, int world_size) {
    rows_case c = {.seed = seed, .world_size = world_size};
    c.num_rows = 1 + draw(&c, 1, 0, 0) % (seed % 2 ? 60 : 3000);
    c.columns = 1 + draw(&c, 1, 0, 1) % 70;
    c.most_rows = 1 + draw(&c, 1, 0, 2) % 400;
    c.op = (gs_reducer_op)(seed % 3);
    c.param = gs_param_spec_make(GS_FP32, (int64_t)c.num_rows, (int64_t)c.columns, "embedding");
    c.param.sparse = true;
    return c;
}

static int64_t samples_of(int64_t step, int rank) {
    return 1 + (step + rank) % 3;
}

// Occurrences of a rank: none in some steps, as many as it may have, mostly few of the low rows.
static size_t count_of(const rows_case *c, int64_t step, int rank) {
    uint64_t bits = draw(c, 2 + (uint64_t)step, (uint64_t)rank, 0);
    return bits % 4 == 0 ? 0 : bits / 4 % (c->most_rows + 1);
}

static int64_t index_of(const rows_case *c, int64_t step, int rank, size_t i) {
    uint64_t bits = draw(c, 2 + (uint64_t)step, (uint64_t)rank, 1 + i);
    return (int64_t)(bits % 3 ? bits / 3 % (c->num_rows / 4 + 1) : bits / 3 % c->num_rows);
}

static void write_values(const rows_case *c, float *out, int64_t step, int rank, size_t i) {
    gs_random_fill_uniform(
        out, c->columns,
        (gs_random_key){c->seed, gs_random_stream(100 + (uint64_t)step, i, (uint64_t)rank)}, 0,
        -1.0f, 1.0f);
}

// Each rank's rows in order of occurrence, the ranks' sums in rank order, the scale last.
static void sum_serially(const rows_case *c, float *dense, uint8_t *touched, int64_t step) {
    size_t count = c->num_rows * c->columns;
    float *one = malloc(count * sizeof *one), *row = malloc(c->columns * sizeof *row);
    int64_t samples = 0;
    if (!one || !row) abort();
    memset(dense, 0, count * sizeof *dense);
    memset(touched, 0, c->num_rows);
    for (int rank = 0; rank < c->world_size; rank++) {
        samples += samples_of(step, rank);
        memset(one, 0, count * sizeof *one);
        for (size_t i = 0; i < count_of(c, step, rank); i++) {
            size_t index = (size_t)index_of(c, step, rank, i);
            write_values(c, row, step, rank, i);
            touched[index] = 1;
            for (size_t j = 0; j < c->columns; j++) one[index * c->columns + j] += row[j];
        }
        for (size_t i = 0; i < count; i++) dense[i] += one[i];
    }
    double scale = c->op == GS_SUM ? 1 : 1.0 / c->world_size;
    if (c->op == GS_SAMPLE_MEAN) scale = 1.0 / (double)samples;
    for (size_t i = 0; i < count; i++) dense[i] *= (float)scale;
    free(one);
    free(row);
}

// [first, end): rows that this rank is to have.
static gs_status check_result(const rows_case *c, const gs_sparse_rows_result *result, int64_t step,
                              size_t first, size_t end) {
    float *dense = malloc(c->num_rows * c->columns * sizeof *dense);
    uint8_t *touched = malloc(c->num_rows);
    if (!dense || !touched) abort();
    sum_serially(c, dense, touched, step);
    gs_status status = gs_ok();
    size_t place = 0;
    for (size_t row = first; row < end && !status.code; row++) {
        if (!touched[row]) continue;
        if (place == result->num_rows || result->indices[place] != (int32_t)row)
            status = gs_error(GS_INTERNAL, "row %zu is not at place %zu of %zu", row, place,
                              result->num_rows);
        else if (memcmp(result->rows + place++ * c->columns, dense + row * c->columns,
                        c->columns * sizeof(float)) != 0)
            status = gs_error(GS_INTERNAL, "row %zu has other bits than the serial sum", row);
    }
    if (!status.code && place != result->num_rows)
        status = gs_error(GS_INTERNAL, "%zu rows instead of %zu", result->num_rows, place);
    free(dense);
    free(touched);
    return status;
}

static gs_status add_step(const rows_case *c, gs_sparse_rows *rows, int64_t step, int rank) {
    size_t num = count_of(c, step, rank);
    int64_t *wide = calloc(num + 1, sizeof *wide);
    int32_t *narrow = calloc(num + 1, sizeof *narrow);
    float *values = calloc(num * c->columns + 1, sizeof *values);
    if (!wide || !narrow || !values) abort();
    for (size_t i = 0; i < num; i++) {
        narrow[i] = (int32_t)(wide[i] = index_of(c, step, rank, i));
        write_values(c, values + i * c->columns, step, rank, i);
    }
    gs_status status = gs_sparse_rows_begin(rows, step);
    size_t half = num / 2;
    bool early = step % 2;
    if (!status.code && early) status = gs_sparse_rows_touch(rows, wide, GS_I64, num);
    if (!status.code && early) status = gs_sparse_rows_post_indices(rows, samples_of(step, rank));
    if (!status.code) status = gs_sparse_rows_add(rows, wide, GS_I64, values, half);
    if (!status.code)
        status =
            gs_sparse_rows_add(rows, narrow + half, GS_I32, values + half * c->columns, num - half);
    if (!status.code && !early) status = gs_sparse_rows_post_indices(rows, samples_of(step, rank));
    free(wide);
    free(narrow);
    free(values);
    return status;
}

static gs_status run_case(const rows_case *c, const comm_rank *self,
                          const gs_sparse_rows_options *base, uint64_t *digest) {
    gs_sparse_rows_options options = *base;
    options.param = &c->param;
    options.max_rows = options.most_rows = c->most_rows;
    options.op = c->op;
    options.device = self->device;
    size_t bytes;
    GS_TRY(gs_sparse_rows_bytes(&bytes, &options, self->world_size));
    if (bytes <= gs_arena_bytes(self->arena) && c->seed % 2)
        options.memory = gs_arena_data(self->arena);
    gs_sparse_rows *rows;
    GS_TRY(gs_sparse_rows_create(&rows, &options, self->comm, soon()));
    size_t first = 0, end = c->num_rows;
    if (options.stay_with_owner) {
        first = c->num_rows * (size_t)self->rank / (size_t)self->world_size;
        end = c->num_rows * (size_t)(self->rank + 1) / (size_t)self->world_size;
    }
    gs_status status = gs_ok();
    for (int64_t step = 0; step < NUM_STEPS && !status.code; step++) {
        gs_sparse_rows_result result;
        status = add_step(c, rows, step, self->rank);
        if (!status.code && step % 3) status = gs_sparse_rows_post(rows, soon());
        if (!status.code) status = gs_sparse_rows_finish(rows, &result, soon());
        if (!status.code) status = check_result(c, &result, step, first, end);
        if (!status.code && result.num_rows)
            *digest = *digest * 31 +
                      gs_hash64(result.rows, result.num_rows * c->columns * sizeof(float), 0);
        status = gs_status_prefix(status, "seed %" PRIu64 ", step %" PRId64, c->seed, step);
    }
    gs_sparse_rows_destroy(rows);
    return status;
}

// arg: "mode stay"
static gs_status body_random(const gs_rank_env *env) {
    int mode, stay;
    if (sscanf(env->arg, "%d %d", &mode, &stay) != 2) abort();
    comm_rank self;
    uint64_t digest = 0;
    gs_status status = comm_rank_open(&self, env, (size_t)1 << 20, NULL);
    for (uint64_t seed = 1; seed <= NUM_SEEDS && !status.code; seed++) {
        rows_case c = make_case(seed * 10 + (uint64_t)env->world_size, env->world_size);
        status =
            run_case(&c, &self,
                     &(gs_sparse_rows_options){.mode = (gs_rows_mode)mode, .stay_with_owner = stay},
                     &digest);
    }
    char text[32];
    snprintf(text, sizeof text, "%016" PRIx64, digest);
    gs_rank_note(env, text);
    comm_rank_close(&self);
    return status;
}

static void run_ranks(char note[64], const char *body, int world_size, const char *arg,
                      bool equal) {
    gs_ranks *ranks;
    gs_status statuses[MAX_WORLD];
    gs_status status = gs_ranks_start(&ranks, body, world_size, arg, NULL);
    assert_string_equal(status.message, "");
    status = gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(60));
    assert_string_equal(status.message, "");
    for (int r = 0; r < world_size; r++) {
        assert_string_equal(statuses[r].message, "");
        if (equal) assert_string_equal(gs_ranks_note(ranks, r), gs_ranks_note(ranks, 0));
    }
    snprintf(note, 64, "%s", gs_ranks_note(ranks, 0));
    gs_ranks_destroy(ranks);
}

static void rows_are_the_serial_sum_with_the_same_bits_whatever_the_way(void **state) {
    (void)state;
    const int worlds[] = {1, 2, 3, 4, 7};
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
        char notes[3][64];
        for (int mode = GS_ROWS_AUTO; mode <= GS_ROWS_OWNER; mode++) {
            char arg[16];
            snprintf(arg, sizeof arg, "%d 0", mode);
            run_ranks(notes[mode], "random", worlds[i], arg, true);
            assert_string_equal(notes[mode], notes[0]);
        }
    }
}

static void rows_that_stay_with_their_owner_are_its_range_of_the_sum(void **state) {
    (void)state;
    const int worlds[] = {1, 2, 3, 5};
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
        char note[64];
        run_ranks(note, "random", worlds[i], "0 1", false);
    }
}

// SGD over the rows that came, and over the whole serial gradient: the same bits.
static gs_status learn(const rows_case *c, gs_sparse_rows *rows, float *table, float *referee,
                       int rank) {
    size_t count = c->num_rows * c->columns;
    float *dense = malloc(count * sizeof *dense);
    uint8_t *touched = malloc(c->num_rows);
    if (!dense || !touched) abort();
    gs_status status = gs_ok();
    for (int64_t step = 0; step < NUM_STEPS && !status.code; step++) {
        gs_sparse_rows_result result;
        status = add_step(c, rows, step, rank);
        if (!status.code) status = gs_sparse_rows_finish(rows, &result, soon());
        for (size_t i = 0; i < result.num_rows && !status.code; i++) {
            float *row = table + (size_t)result.indices[i] * c->columns;
            for (size_t j = 0; j < c->columns; j++)
                row[j] -= 0.5f * result.rows[i * c->columns + j];
        }
        sum_serially(c, dense, touched, step);
        for (size_t i = 0; i < count; i++) referee[i] -= 0.5f * dense[i];
    }
    free(dense);
    free(touched);
    if (status.code || memcmp(table, referee, count * sizeof *table) == 0) return status;
    return gs_error(GS_INTERNAL, "another table than by the dense gradient");
}

static gs_status body_learns(const gs_rank_env *env) {
    comm_rank self;
    gs_sparse_rows *rows = NULL;
    rows_case c = make_case(11, env->world_size);
    size_t count = c.num_rows * c.columns;
    GS_TRY(comm_rank_open(&self, env, 0, NULL));
    float *table = calloc(count, sizeof *table), *referee = calloc(count, sizeof *referee);
    if (!table || !referee) abort();
    gs_status status = gs_sparse_rows_create(
        &rows,
        &(gs_sparse_rows_options){
            .param = &c.param, .max_rows = c.most_rows, .op = c.op, .device = self.device},
        self.comm, soon());
    if (!status.code) status = learn(&c, rows, table, referee, env->rank);
    char text[32];
    snprintf(text, sizeof text, "%016" PRIx64, gs_hash64(table, count * sizeof *table, 0));
    gs_rank_note(env, text);
    gs_sparse_rows_destroy(rows);
    comm_rank_close(&self);
    free(table);
    free(referee);
    return status;
}

static void a_table_updated_by_rows_alone_is_that_of_the_dense_gradient(void **state) {
    (void)state;
    char note[64];
    run_ranks(note, "learns", 3, "", true);
}

// A sorted list that all ranks know (index metadata): a plain all-reduce, no indices travel.
static gs_status body_listed(const gs_rank_env *env) {
    comm_rank self;
    gs_sparse_rows *rows = NULL;
    gs_param_spec param = gs_param_spec_make(GS_FP32, 100, 3, "table");
    const int64_t list[] = {2, 30, 31, 99};
    gs_sparse_rows_result result;
    GS_TRY(comm_rank_open(&self, env, 0, NULL));
    gs_status status = gs_sparse_rows_create(&rows,
                                             &(gs_sparse_rows_options){.param = &param,
                                                                       .max_rows = 4,
                                                                       .indices = list,
                                                                       .num_indices = 4,
                                                                       .op = GS_SUM,
                                                                       .device = self.device},
                                             self.comm, soon());
    const int32_t mine[] = {env->rank ? 31 : 2, 99};
    const float values[] = {1, 2, 3, 4, 5, 6};
    for (int64_t step = 0; step < 3 && !status.code; step++) {
        status = gs_sparse_rows_begin(rows, step);
        if (!status.code) status = gs_sparse_rows_add(rows, mine, GS_I32, values, 2);
        if (!status.code) status = gs_sparse_rows_finish(rows, &result, soon());
        float ranks = (float)env->world_size;
        const float wanted[] = {
            1,         2,         3,        0, 0, 0, ranks - 1, 2 * (ranks - 1), 3 * (ranks - 1),
            4 * ranks, 5 * ranks, 6 * ranks};
        if (!status.code && (result.num_rows != 4 || result.indices[2] != 31 ||
                             memcmp(result.rows, wanted, sizeof wanted) != 0 ||
                             result.index_bytes > 16 * (size_t)env->world_size))
            status = gs_error(GS_INTERNAL, "not the sum");
    }
    const int32_t stranger[] = {98};
    if (!status.code && env->world_size == 1) {
        status = gs_sparse_rows_begin(rows, 3);
        gs_status refused = gs_sparse_rows_add(rows, stranger, GS_I32, values, 1);
        if (!strstr(refused.message,
                    "rank 0, step 3: rows of \"table\": row 98 is not in the list of indices"))
            status = gs_error(GS_INTERNAL, "said: %s", refused.message);
    }
    gs_sparse_rows_destroy(rows);
    comm_rank_close(&self);
    return status;
}

static void an_agreed_list_of_indices_makes_it_a_plain_all_reduce(void **state) {
    (void)state;
    char note[64];
    run_ranks(note, "listed", 1, "", false);
    run_ranks(note, "listed", 3, "", false);
}

// The choice between the ways is by what all ranks touched, so alike on all.
static gs_status body_choice(const gs_rank_env *env) {
    comm_rank self;
    gs_sparse_rows *rows = NULL;
    gs_param_spec param = gs_param_spec_make(GS_FP32, 1000, 16, "table");
    GS_TRY(comm_rank_open(&self, env, 0, NULL));
    gs_sparse_rows_options options = {.param = &param,
                                      .max_rows = env->rank == 1 ? 40 : 64,
                                      .most_rows = 64,
                                      .device = self.device};
    gs_status status = gs_sparse_rows_create(&rows, &options, self.comm, soon());
    char text[64] = "";
    for (int64_t step = 0; step < 2 && !status.code; step++) {
        gs_sparse_rows_result result;
        int32_t indices[40];
        float values[40 * 16] = {0};
        // Step 0: ranks touch rows of their own. Step 1: all touch the same rows.
        for (int i = 0; i < 40; i++) indices[i] = (step ? 0 : 100 * env->rank) + i;
        status = gs_sparse_rows_begin(rows, step);
        if (!status.code) status = gs_sparse_rows_add(rows, indices, GS_I32, values, 40);
        if (!status.code) status = gs_sparse_rows_finish(rows, &result, soon());
        size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, "%s %zu %" PRIu64 " %" PRIu64 ";",
                 gs_rows_mode_name(result.mode), result.num_rows, result.row_bytes,
                 result.wire_bytes - 4 * (4 + 64));
    }
    gs_rank_note(env, text);
    gs_sparse_rows_destroy(rows);
    comm_rank_close(&self);
    return status;
}

static void auto_takes_the_way_of_fewer_bytes_on_all_ranks(void **state) {
    (void)state;
    char note[64];
    // 4 ranks · 40 rows of 64 bytes: 3 · 40 rows are taken from others; of the union 2 · 3/4 · 40.
    run_ranks(note, "choice", 4, "", true);
    assert_string_equal(note, "gather 160 7680 2560;owner 40 3840 2560;");
}

// arg: which field differs on rank 1
static gs_status body_differs(const gs_rank_env *env) {
    comm_rank self;
    gs_sparse_rows *rows = NULL;
    bool other = env->rank == 1;
    const int64_t list[] = {1, 2, 3};
    gs_param_spec param =
        gs_param_spec_make(GS_FP32, 10, other && strcmp(env->arg, "columns") == 0 ? 3 : 4, "table");
    GS_TRY(comm_rank_open(&self, env, 0, NULL));
    gs_sparse_rows_options options = {.param = &param, .max_rows = 4, .device = self.device};
    if (other && strcmp(env->arg, "mode") == 0) options.mode = GS_ROWS_OWNER;
    if (other && strcmp(env->arg, "most_rows") == 0) options.max_rows = 5;
    if (strcmp(env->arg, "list") == 0) {
        options.indices = list;
        options.num_indices = other ? 2 : 3;
    }
    gs_status status = gs_sparse_rows_create(&rows, &options, self.comm, soon());
    gs_sparse_rows_destroy(rows);
    comm_rank_close(&self);
    return status;
}

static void ranks_with_other_options_are_named(void **state) {
    (void)state;
    const char *const cases[][2] = {{"columns", "rank 1 against rank 0: columns 3 against 4"},
                                    {"mode", "mode (auto 0, gather 1, owner 2) 2 against 0"},
                                    {"most_rows", "most_rows 5 against 4"},
                                    {"list", "rank 1 against rank 0: another list of indices"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gs_ranks *ranks;
        gs_status statuses[2];
        assert_int_equal(gs_ranks_start(&ranks, "differs", 2, cases[i][0], NULL).code, GS_OK);
        assert_int_equal(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(60)).code, GS_OK);
        for (int r = 0; r < 2; r++) {
            if (!strstr(statuses[r].message, cases[i][1])) fail_msg("%s", statuses[r].message);
        }
        gs_ranks_destroy(ranks);
    }
}

// Rank 1 leaves between its indices and its rows.
static gs_status body_leaves(const gs_rank_env *env) {
    comm_rank self;
    gs_sparse_rows *rows = NULL;
    gs_param_spec param = gs_param_spec_make(GS_FP32, 10, 4, "table");
    gs_sparse_rows_result result;
    const int32_t indices[] = {3};
    const float values[4] = {0};
    GS_TRY(comm_rank_open(&self, env, 0, NULL));
    gs_sparse_rows_options options = {.param = &param, .max_rows = 4, .device = self.device};
    gs_status status = gs_sparse_rows_create(&rows, &options, self.comm, soon());
    if (!status.code) status = gs_sparse_rows_begin(rows, 7);
    if (!status.code) status = gs_sparse_rows_add(rows, indices, GS_I32, values, 1);
    if (!status.code) status = gs_sparse_rows_post_indices(rows, 1);
    if (!status.code && env->rank != 1)
        status = gs_sparse_rows_finish(rows, &result, gs_deadline_in_seconds(300));
    gs_sparse_rows_destroy(rows);
    comm_rank_close(&self);
    return status;
}

static void a_rank_that_leaves_within_a_step_ends_the_wait_of_the_others(void **state) {
    (void)state;
    gs_ranks *ranks;
    gs_status statuses[3];
    assert_int_equal(gs_ranks_start(&ranks, "leaves", 3, "", NULL).code, GS_OK);
    assert_int_equal(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(60)).code, GS_OK);
    for (int r = 0; r < 3; r += 2) {
        assert_int_equal(statuses[r].code, GS_ABORTED);
        if (!strstr(statuses[r].message,
                    "rank 1, step 7: rows of \"table\" were destroyed within the step"))
            fail_msg("%s", statuses[r].message);
    }
    assert_int_equal(statuses[1].code, GS_OK);
    gs_ranks_destroy(ranks);
}

// A rank that errs ends the step of the others at once, with its words; they do not wait for a
// deadline.
static gs_status body_errs(const gs_rank_env *env) {
    comm_rank self;
    gs_sparse_rows *rows = NULL;
    gs_param_spec param = gs_param_spec_make(GS_FP32, 10, 4, "table");
    gs_sparse_rows_result result;
    const int32_t indices[] = {3, env->rank == 1 ? 10 : 4};
    const float values[8] = {0};
    GS_TRY(comm_rank_open(&self, env, 0, NULL));
    gs_sparse_rows_options options = {.param = &param, .max_rows = 4, .device = self.device};
    gs_status status = gs_sparse_rows_create(&rows, &options, self.comm, soon());
    if (!status.code) status = gs_sparse_rows_begin(rows, 7);
    if (!status.code) status = gs_sparse_rows_add(rows, indices, GS_I32, values, 2);
    if (!status.code) status = gs_sparse_rows_finish(rows, &result, gs_deadline_in_seconds(300));
    gs_sparse_rows_destroy(rows);
    comm_rank_close(&self);
    return status;
}

static void a_row_outside_the_parameter_ends_the_step_everywhere(void **state) {
    (void)state;
    gs_ranks *ranks;
    gs_status statuses[3];
    assert_int_equal(gs_ranks_start(&ranks, "errs", 3, "", NULL).code, GS_OK);
    assert_int_equal(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(60)).code, GS_OK);
    for (int r = 0; r < 3; r++) {
        const char *said =
            strstr(statuses[r].message,
                   "rank 1, step 7: rows of \"table\": index 1 is 10, not in [0, 10)");
        if (!said) fail_msg("%s", statuses[r].message);
    }
    assert_int_equal(statuses[1].code, GS_INVALID_ARGUMENT);
    assert_int_equal(statuses[0].code, GS_ABORTED);
    gs_ranks_destroy(ranks);
}

// A model of two dense parameters and a sparse table between them, on a reducer; the table's rows
// beside it, or, with "tail", added to a dense gradient of the same shape.
enum { FIRST = 0, TABLE, LAST, NUM_TABLE_PARAMS };

typedef struct table_rank {
    comm_rank self;
    gs_param_spec params[NUM_TABLE_PARAMS];
    gs_reducer *reducer;
    gs_sparse_rows *rows;
    gs_sparse_rows_result result;
    bool is_tail;
} table_rank;

static gs_status open_table(table_rank *rank, const gs_rank_env *env) {
    GS_TRY(comm_rank_open(&rank->self, env, (size_t)1 << 16, NULL));
    rank->is_tail = strcmp(env->arg, "tail") == 0;
    rank->params[FIRST] = gs_param_spec_make(GS_FP32, 5, 0, "first");
    rank->params[TABLE] = gs_param_spec_make(GS_FP32, 20, 2, "table");
    rank->params[TABLE].sparse = !rank->is_tail;
    rank->params[LAST] = gs_param_spec_make(GS_FP32, 3, 0, "last");
    gs_bucket_plan plan;
    GS_TRY(gs_bucket_plan_parity(&plan, rank->params, NUM_TABLE_PARAMS, 1 << 20, 1 << 20, NULL));
    // The sparse one alone, without a limit; the dense ones together.
    gs_status status = gs_ok();
    if (plan.num_buckets != (rank->is_tail ? 1 : 2) ||
        (!rank->is_tail && plan.buckets[0].limit_bytes != 0))
        status = gs_error(GS_INTERNAL, "%zu buckets", plan.num_buckets);
    gs_reducer_options options = {
        .params = rank->params,
        .num_params = NUM_TABLE_PARAMS,
        .plan = &plan,
        .shards = {.num_shards = 2, .world_size = env->world_size, .rank = env->rank},
        .arena = rank->self.arena,
        .device = rank->self.device};
    if (!status.code) status = gs_reducer_create(&rank->reducer, &options, rank->self.comm, soon());
    gs_bucket_plan_release(&plan);
    GS_TRY(status);
    return gs_sparse_rows_create(&rank->rows,
                                 &(gs_sparse_rows_options){.param = &rank->params[TABLE],
                                                           .max_rows = 4,
                                                           .divisor = 2,
                                                           .device = rank->self.device},
                                 rank->self.comm, soon());
}

static gs_status finish_table(void *ctx, void *const *grads, gs_deadline deadline) {
    table_rank *rank = ctx;
    GS_TRY(gs_sparse_rows_finish(rank->rows, &rank->result, deadline));
    return rank->is_tail ? gs_sparse_rows_add_to(rank->rows, grads[TABLE]) : gs_ok();
}

// Rank r adds r + 1 to row 7 and 10 to row r, when `adds`.
static gs_status run_table_step(table_rank *rank, int64_t step, bool adds,
                                gs_reduce_result *result) {
    static const size_t changed[] = {TABLE};
    gs_reducer_tail tail = {.finish = finish_table,
                            .ctx = rank,
                            .params = changed,
                            .num_params = rank->is_tail ? 1 : 0};
    gs_reducer_pass pass;
    GS_TRY(gs_reducer_begin(rank->reducer, step));
    GS_TRY(gs_sparse_rows_begin(rank->rows, step));
    GS_TRY(gs_reducer_add_tail(rank->reducer, &tail));
    GS_TRY(gs_reducer_begin_pass(rank->reducer, &pass, 1));
    float own = (float)(rank->self.rank + 1);
    const int32_t indices[] = {7, rank->self.rank, 7};
    const float values[] = {own, 0, 10, 0, 0, own};
    if (adds) GS_TRY(gs_sparse_rows_add(rank->rows, indices, GS_I32, values, 3));
    GS_TRY(gs_sparse_rows_post_indices(rank->rows, 1));
    for (size_t p = 0; p < NUM_TABLE_PARAMS; p++) {
        for (size_t i = 0; pass.grads[p] && i < gs_param_spec_count(&rank->params[p]); i++)
            ((float *)pass.grads[p])[i] = 1;
        if (p != TABLE || adds || rank->is_tail) GS_TRY(gs_reducer_mark_ready(rank->reducer, p));
    }
    GS_TRY(gs_reducer_end_pass(rank->reducer));
    GS_TRY(gs_sparse_rows_post(rank->rows, soon()));
    return gs_reducer_finish(rank->reducer, result, soon());
}

static gs_status check_table_step(const table_rank *rank, bool anybody_adds,
                                  const gs_reduce_result *result) {
    void *const *grads = gs_reducer_grads(rank->reducer);
    double squares = 5 + 3;  // of the dense ones
    const float row_7[] = {1.5f, 1.5f};
    if (result->used[TABLE] != (anybody_adds || rank->is_tail))
        return gs_error(GS_INTERNAL, "used: %d", result->used[TABLE]);
    if (rank->result.num_rows != (anybody_adds ? 3 : 0))
        return gs_error(GS_INTERNAL, "%zu rows", rank->result.num_rows);
    if (anybody_adds && (rank->result.indices[2] != 7 || rank->result.rows[0] != 5 ||
                         memcmp(rank->result.rows + 4, row_7, sizeof row_7) != 0))
        return gs_error(GS_INTERNAL, "other rows");
    if (!rank->is_tail) return grads[TABLE] ? gs_error(GS_INTERNAL, "a dense gradient") : gs_ok();
    // All ones, and rows 0, 1 and 7.
    squares += 40;
    if (anybody_adds) squares += 2 * (36 - 1) + 2 * (2.5 * 2.5 - 1);
    if (result->grad_norm < sqrt(squares) - 1e-6 || result->grad_norm > sqrt(squares) + 1e-6)
        return gs_error(GS_INTERNAL, "norm %g", result->grad_norm);
    return gs_ok();
}

static gs_status body_table(const gs_rank_env *env) {
    table_rank rank = {0};
    gs_status status = open_table(&rank, env);
    // Both add, then nobody.
    for (int64_t step = 0; step < 4 && !status.code; step++) {
        gs_reduce_result result;
        bool adds = step % 2 == 0;
        status = run_table_step(&rank, step, adds, &result);
        if (!status.code) status = check_table_step(&rank, adds, &result);
        status = gs_status_prefix(status, "step %d", (int)step);
    }
    gs_sparse_rows_destroy(rank.rows);
    gs_reducer_destroy(rank.reducer);
    comm_rank_close(&rank.self);
    return status;
}

static void a_sparse_parameter_has_a_bucket_of_used_counts_and_rows_beside_it(void **state) {
    (void)state;
    char note[64];
    run_ranks(note, "table", 2, "alone", false);
}

static void rows_as_a_tail_are_in_the_dense_gradient_and_its_norm(void **state) {
    (void)state;
    char note[64];
    run_ranks(note, "table", 2, "tail", false);
}

int main(int argc, char **argv) {
    const gs_rank_body bodies[] = {
        {"random", body_random},   {"listed", body_listed}, {"choice", body_choice},
        {"differs", body_differs}, {"table", body_table},   {"leaves", body_leaves},
        {"errs", body_errs},       {"learns", body_learns}, {0}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_the_serial_sum_with_the_same_bits_whatever_the_way),
        cmocka_unit_test(rows_that_stay_with_their_owner_are_its_range_of_the_sum),
        cmocka_unit_test(a_table_updated_by_rows_alone_is_that_of_the_dense_gradient),
        cmocka_unit_test(an_agreed_list_of_indices_makes_it_a_plain_all_reduce),
        cmocka_unit_test(auto_takes_the_way_of_fewer_bytes_on_all_ranks),
        cmocka_unit_test(ranks_with_other_options_are_named),
        cmocka_unit_test(a_sparse_parameter_has_a_bucket_of_used_counts_and_rows_beside_it),
        cmocka_unit_test(rows_as_a_tail_are_in_the_dense_gradient_and_its_norm),
        cmocka_unit_test(a_rank_that_leaves_within_a_step_ends_the_wait_of_the_others),
        cmocka_unit_test(a_row_outside_the_parameter_ends_the_step_everywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
