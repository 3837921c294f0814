// "powersgd" and "batched_powersgd" in double. A column that is a small share of its matrix has
// roundings that are as much larger a share of it, and what is carried has those of the step
// before: a result is as sure as that. Where a gradient has fewer directions than the factor,
// columns are rounding noise, and another implementation's own: from there on a matrix may be
// anything, and is not compared.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/digest.h"
#include "core/low_rank.h"
#include "gradsync/hooks/hook_calls.h"
#include "gradsync/hooks/random_factor.h"
#include "tests/support/carried.h"
#include "tests/support/hook_reference.h"

#define MAX_WORLD 16
#define ROUNDINGS 32.0      // of a column of full share
#define WIRE_ROUNDINGS 2.0  // of one that travels in 16 bits
#define MOST_NOISE 0.1      // of a result that is compared

typedef struct low_rank {
    carried owed;     // by parameter and rank
    carried factors;  // by matrix
    carried norms;    // by parameter: the largest norm so far, and what part of it is noise
} low_rank;

typedef struct matrix {
    size_t rows, cols, rank;
    uint64_t key;          // of its factor, kept and drawn
    double *m[MAX_WORLD];  // what each rank has; becomes what it owes
    double *result;
    double norm;   // the largest so far
    double share;  // of the norm, that its columns have at least
    double noise;  // of the norm
} matrix;

static void *must_have(size_t count) {
    double *memory = calloc(count + 1, sizeof *memory);
    if (!memory) abort();
    return memory;
}

static low_rank *low_rank_of(void **state) {
    if (!*state) *state = must_have(sizeof(low_rank));
    return *state;
}

static void release(void *state) {
    low_rank *self = state;
    if (!self) return;
    carried_release(&self->owed);
    carried_release(&self->factors);
    carried_release(&self->norms);
    free(self);
}

static double dot(const double *a, const double *b, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += a[i] * b[i];
    return sum;
}

static double separate(double *columns, size_t rows, size_t c) {
    double *column = columns + c * rows;
    for (int sweep = 0; sweep < 2; sweep++) {
        for (size_t k = 0; k < c; k++) {
            const double share = dot(columns + k * rows, column, rows);
            for (size_t i = 0; i < rows; i++) column[i] -= share * columns[k * rows + i];
        }
    }
    return sqrt(dot(column, column, rows));
}

// Columns that are nothing but zeros come from `spare`. The least norm that any other had.
static double orthogonalize(double *columns, size_t rows, size_t rank, const double *spare) {
    double least = INFINITY;
    for (size_t c = 0; c < rank; c++) {
        double norm = separate(columns, rows, c);
        if (norm == 0 && spare) {
            memcpy(columns + c * rows, spare + c * rows, rows * sizeof *columns);
            norm = separate(columns, rows, c);
        } else if (norm > 0) {
            least = fmin(least, norm);
        }
        for (size_t i = 0; i < rows && norm > 0; i++) columns[c * rows + i] /= norm;
    }
    return least;
}

static void draw_factor(double *q, const matrix *of, const gs_hook_choice *choice, uint64_t draw) {
    gs_random_factor_fill(q, GS_FP64, of->cols * of->rank,
                          (gs_random_factor){.seed = (uint64_t)gs_hook_option_value(choice, "seed"),
                                             .draw = draw,
                                             .key = of->key});
}

static void multiply(matrix *of, int world_size, double *p, double *q) {
    const size_t rows = of->rows, cols = of->cols;
    for (int r = 0; r < world_size; r++)
        for (size_t c = 0; c < of->rank; c++)
            for (size_t i = 0; i < rows; i++)
                p[c * rows + i] += dot(of->m[r] + i * cols, q + c * cols, cols);
}

// What is left of each rank's is owed.
static void approximate(matrix *of, int world_size, const double *p, double *q) {
    const size_t rows = of->rows, cols = of->cols;
    memset(q, 0, cols * of->rank * sizeof *q);
    for (int r = 0; r < world_size; r++) {
        double *own = must_have(cols * of->rank);
        for (size_t c = 0; c < of->rank; c++)
            for (size_t k = 0; k < rows * cols; k++)
                own[c * cols + k % cols] += of->m[r][k] * p[c * rows + k / cols];
        for (size_t c = 0; c < of->rank; c++)
            for (size_t k = 0; k < rows * cols; k++) {
                const double part = p[c * rows + k / cols] * own[c * cols + k % cols];
                of->m[r][k] -= part;
                of->result[k] += part;
            }
        for (size_t k = 0; k < cols * of->rank; k++) q[k] += own[k];
        free(own);
    }
}

static void exchange(low_rank *self, const gs_hook_choice *choice, int64_t step, int world_size,
                     matrix *of) {
    const size_t q_count = of->cols * of->rank;
    const bool is_warm = gs_hook_option_value(choice, "warm_start") != 0;
    double *q = carried_find(&self->factors, of->key), *spare = must_have(q_count),
           *p = must_have(of->rows * of->rank), norm = 0;
    draw_factor(spare, of, choice, 0);
    // Of warm factors the norm is the matrix's; of drawn ones not, and they are never noise.
    const bool is_drawn = !q || !is_warm;
    if (!q) {
        q = carried_at(&self->factors, of->key, q_count);
        memcpy(q, spare, q_count * sizeof *q);
    }
    const double q_norm = orthogonalize(q, of->cols, of->rank, is_warm ? spare : NULL);
    if (!is_drawn) of->share = fmin(of->share, q_norm / of->norm);
    for (int r = 0; r < world_size; r++) norm += sqrt(dot(of->m[r], of->m[r], of->rows * of->cols));
    of->norm = fmax(of->norm, norm);
    multiply(of, world_size, p, q);
    const double p_norm = orthogonalize(p, of->rows, of->rank, NULL);
    if (of->norm > 0) of->share = fmin(of->share, p_norm / of->norm);
    approximate(of, world_size, p, q);
    if (!is_warm) draw_factor(q, of, choice, (uint64_t)step + 1);
    free(spare);
    free(p);
}

// What members carry into a matrix, from `first` of it on.
static void open_member(low_rank *self, const reference_bucket *bucket, const gs_hook_param *param,
                        matrix *of, size_t first) {
    const double *norms = carried_at(&self->norms, param->index, 2);
    of->norm = fmax(of->norm, norms[0]);
    of->noise = fmax(of->noise, norms[1]);
    for (int r = 0; r < bucket->world_size; r++) {
        const double *owed = carried_at(&self->owed, carried_key(param->index, r), param->count);
        for (size_t i = 0; i < param->count; i++)
            of->m[r][first + i] = bucket->in[r][param->first + i] * bucket->scale + owed[i];
    }
}

static void add_noise(const reference_bucket *bucket, matrix *of) {
    of->noise += ROUNDINGS * reference_epsilon(bucket->dtype);
    if (bucket->wire_dtype) of->noise += WIRE_ROUNDINGS * reference_epsilon(bucket->wire_dtype);
    of->noise /= of->share;
}

static bool carries(const gs_hook_choice *choice) {
    return gs_hook_option_value(choice, "error_feedback") != 0 ||
           gs_hook_option_value(choice, "warm_start") != 0;
}

static void close_member(low_rank *self, const gs_hook_choice *choice,
                         const reference_bucket *bucket, const gs_hook_param *param,
                         const matrix *of, size_t first) {
    double *norms = carried_at(&self->norms, param->index, 2);
    norms[0] = of->norm;
    norms[1] = carries(choice) ? of->noise : 0;
    const double slack = of->noise < MOST_NOISE ? of->noise * of->norm : INFINITY;
    for (size_t i = 0; i < param->count; i++) {
        bucket->out[param->first + i] = of->result[first + i];
        bucket->slack[param->first + i] = slack;
    }
    for (int r = 0; r < bucket->world_size; r++) {
        double *owed = carried_at(&self->owed, carried_key(param->index, r), param->count);
        for (size_t i = 0; i < param->count && gs_hook_option_value(choice, "error_feedback") != 0;
             i++)
            owed[i] = of->m[r][first + i];
    }
}

static void open_matrix(matrix *of, size_t rows, size_t cols, int world_size) {
    *of = (matrix){.rows = rows, .cols = cols, .share = 1, .result = must_have(rows * cols)};
    for (int r = 0; r < world_size; r++) of->m[r] = must_have(rows * cols);
}

static void close_matrix(matrix *of, int world_size) {
    for (int r = 0; r < world_size; r++) free(of->m[r]);
    free(of->result);
}

static bool is_compressed(const gs_hook_choice *choice, const reference_bucket *bucket) {
    return bucket->step >= (int64_t)gs_hook_option_value(choice, "start_step");
}

static void run_powersgd(void **state, const gs_hook_choice *choice,
                         const reference_bucket *bucket) {
    low_rank *self = low_rank_of(state);
    reference_sum(bucket, bucket->wire_dtype, false);
    for (size_t p = 0; p < bucket->num_params && is_compressed(choice, bucket); p++) {
        const gs_hook_param *param = &bucket->params[p];
        const gs_low_rank shape =
            gs_low_rank_of(param->spec, (int)gs_hook_option_value(choice, "rank"),
                           gs_hook_option_value(choice, "min_compression_rate"));
        matrix of;
        if (!shape.rank) continue;
        open_matrix(&of, shape.rows, shape.cols, bucket->world_size);
        of.rank = (size_t)shape.rank;
        of.key = param->index;
        open_member(self, bucket, param, &of, 0);
        exchange(self, choice, bucket->step, bucket->world_size, &of);
        add_noise(bucket, &of);
        close_member(self, choice, bucket, param, &of, 0);
        close_matrix(&of, bucket->world_size);
    }
}

static uint64_t key_of(const reference_bucket *bucket) {
    uint64_t key = 0;
    for (size_t i = 0; i < bucket->num_params; i++)
        key = gs_hash64(&bucket->params[i].index, sizeof bucket->params[i].index, key);
    return key | 1;
}

static void run_batched(void **state, const gs_hook_choice *choice,
                        const reference_bucket *bucket) {
    low_rank *self = low_rank_of(state);
    if (!is_compressed(choice, bucket) || !bucket->count) {
        reference_sum(bucket, bucket->wire_dtype, false);
        return;
    }
    const size_t side = gs_low_rank_side(bucket->count),
                 rank = (size_t)gs_hook_option_value(choice, "rank");
    matrix of;
    open_matrix(&of, side, side, bucket->world_size);
    of.rank = rank < side ? rank : side;
    of.key = key_of(bucket);
    for (size_t i = 0; i < bucket->num_params; i++)
        open_member(self, bucket, &bucket->params[i], &of, bucket->params[i].first);
    exchange(self, choice, bucket->step, bucket->world_size, &of);
    add_noise(bucket, &of);
    for (size_t i = 0; i < bucket->num_params; i++)
        close_member(self, choice, bucket, &bucket->params[i], &of, bucket->params[i].first);
    close_matrix(&of, bucket->world_size);
}

// What is kept wants two steps before it.
static size_t draw_batched(gs_hook_number numbers[HOOK_REFERENCE_NUMBERS], uint64_t dice,
                           const reference_limits *limits) {
    const bool feeds_back = dice % 4 && !limits->divides_later, is_warm = dice / 4 % 3 > 0;
    const uint64_t least = feeds_back || is_warm ? 2 : 0;
    numbers[0] = (gs_hook_number){"error_feedback", feeds_back};
    numbers[1] = (gs_hook_number){"warm_start", is_warm};
    numbers[2] = (gs_hook_number){"start_step", (double)(least + dice / 16 % 2)};
    numbers[3] = (gs_hook_number){"rank", (double[]){1, 1, 2, 4}[dice / 32 % 4]};
    numbers[4] = (gs_hook_number){"seed", (double)(dice / 128 % 1000)};
    return 5;
}

static size_t draw_powersgd(gs_hook_number numbers[HOOK_REFERENCE_NUMBERS], uint64_t dice,
                            const reference_limits *limits) {
    const size_t count = draw_batched(numbers, dice, limits);
    numbers[count] = (gs_hook_number){"min_compression_rate", dice >> 20 & 1 ? 2 : 1};
    return count + 1;
}

const hook_reference powersgd_reference = {"powersgd", false, draw_powersgd, run_powersgd, release};
const hook_reference batched_powersgd_reference = {"batched_powersgd", false, draw_batched,
                                                   run_batched, release};
