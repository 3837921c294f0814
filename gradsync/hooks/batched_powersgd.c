// Batched PowerSGD: a whole bucket as one square matrix, row after row and zeros behind it,
// whatever the shapes in it. One pair of factors and no second kind of gradient: faster, and less
// accurate.
//
//   lane 0   the reserved elements ─▶   P ─▶
//   lane 1   Q ─▶
//
// The square is the bucket's. So another plan makes other squares; what is kept is kept all the
// same:
//   error  belongs to elements: it lies by parameter, and moves with it.
//   Q      belongs to the square. It lies in pieces by parameter, too, since a plan's squares never
//   need more
//          than all parameters' own; beside them stands which bucket they are of. After another
//          plan, or state of another plan, a bucket that is not the one starts from its first draw
//          again, on all ranks alike.
// Columns of zeros, and steps without warm start: as in powersgd.c.
#include <stdlib.h>
#include <string.h>

#include "core/digest.h"
#include "core/memory.h"
#include "gradsync/comm/work_stream.h"
#include "gradsync/hooks/hook_calls.h"
#include "gradsync/hooks/low_rank_state.h"
#include "gradsync/hooks/random_factor.h"

#define LOADING_SECONDS 60.0

typedef struct square {
    gs_low_rank_exchange exchange;
    gs_low_rank shape;
    uint64_t key;  // of its members, in order
    const gs_hook_layout *layout;
    void *grads;   // the matrix: gradients, then the approximation
    void *errors;  // the same: M, then the next error; NULL without error feedback
    void *first_draw;
    void *drawn;  // where the next one is drawn
    void *wire;
} square;

typedef struct batched {
    gs_low_rank_state kept;
    int64_t *buckets_of;  // of each parameter's piece of Q: the key of its bucket; 0: none
    square *squares;      // of the plan
    size_t num_squares;
} batched;

static const gs_hook_option options[] = {GS_LOW_RANK_OPTION_ROWS};

static size_t count_error(const void *ctx, const gs_hook_param *param) {
    const gs_low_rank_options *chosen = ctx;
    return chosen->error_feedback ? param->count : 0;
}

// Roots of sums are at most sums of roots, rounded up or not.
static size_t count_factor(const void *ctx, const gs_hook_param *param) {
    const gs_low_rank_options *chosen = ctx;
    return gs_low_rank_side(param->room) * (size_t)chosen->rank;
}

static const gs_low_rank_counts counts = {.error = count_error, .factor = count_factor};

static size_t place_bytes(size_t count, size_t element_bytes) {
    return gs_round_up(count * element_bytes, GS_HOOK_PLACE_BYTES);
}

// A square of side s has less than (√count + 1)² elements.
static size_t measure_buckets(const gs_hook_setup *setup, const gs_low_rank_options *chosen) {
    const gs_low_rank_wire wire = gs_low_rank_wire_of(setup);
    size_t bytes = wire.needs_memory ? gs_hook_most_bytes(setup, gs_dtype_bytes(wire.dtype)) : 0;
    for (size_t i = 0; i < setup->num_params; i++) {
        const gs_hook_param *param = &setup->params[i];
        const size_t side = gs_low_rank_side(param->room),
                     element_bytes = gs_dtype_bytes(param->dtype);
        const gs_low_rank shape = {.rows = side, .cols = side, .rank = chosen->rank};
        bytes += 2 * place_bytes(param->room + 2 * side + 1, element_bytes) +
                 place_bytes(side * (size_t)chosen->rank, element_bytes) +
                 gs_low_rank_exchange_bytes(shape, param->dtype, wire);
    }
    return bytes;
}

static gs_status measure(gs_hook_needs *needs, const gs_hook_setup *setup) {
    const gs_low_rank_options chosen = gs_low_rank_options_of(setup->choice);
    GS_TRY(gs_low_rank_options_check(setup));
    *needs = (gs_hook_needs){.num_phases = 2, .most_posts = 2, .narrows = setup->wire_dtype != 0};
    GS_TRY(gs_low_rank_state_bytes(&needs->state_bytes, setup, &counts));
    needs->bucket_bytes = measure_buckets(setup, &chosen);
    return gs_ok();
}

static void destroy(void *state) {
    batched *self = state;
    gs_low_rank_state_release(&self->kept);
    free(self->buckets_of);
    free(self->squares);
    free(self);
}

static gs_status make(batched *self, const gs_hook_setup *setup) {
    size_t drawn_bytes = 0, num_rows = 0;
    void *rest;
    GS_TRY(gs_low_rank_state_init(&self->kept, &rest, setup, &counts));
    for (size_t i = 0; i < self->kept.num_params; i++) {
        num_rows += gs_low_rank_side(self->kept.params[i].room);
        drawn_bytes +=
            place_bytes(count_factor(&self->kept.options, &self->kept.params[i]), sizeof(double));
    }
    self->buckets_of = calloc(self->kept.num_params + 1, sizeof *self->buckets_of);
    if (!self->buckets_of) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    return gs_low_rank_state_alloc(&self->kept, drawn_bytes, self->kept.num_params, num_rows);
}

static gs_status create(void **state, const gs_hook_setup *setup) {
    batched *self = calloc(1, sizeof *self);
    if (!self) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    gs_status status = make(self, setup);
    if (status.code)
        destroy(self);
    else
        *state = self;
    return status;
}

static size_t factor_count(const square *sent) {
    return sent->shape.cols * (size_t)sent->shape.rank;
}

// Between a factor that lies together and its pieces, in order of the bucket's members.
typedef enum piece_way { FROM_HELD, TO_HELD, TO_NEXT } piece_way;

static void copy_pieces(batched *self, const square *sent, gs_stream *stream, void *together,
                        piece_way way) {
    const size_t element_bytes = gs_dtype_bytes(sent->layout->dtype);
    size_t left = factor_count(sent);
    char *at = together;
    for (size_t i = 0; i < sent->layout->num_params && left; i++) {
        const size_t param = sent->layout->params[i].index;
        const size_t room = gs_param_state_count(&self->kept.factors, param);
        const size_t bytes = (room < left ? room : left) * element_bytes;
        void *piece = way == TO_NEXT ? gs_param_state_write(&self->kept.factors, param)
                                     : gs_param_state_held(&self->kept.factors, param);
        gs_device_kernels(self->kept.device)
            ->copy(stream, way == FROM_HELD ? at : piece, way == FROM_HELD ? piece : at, bytes);
        left -= bytes / element_bytes;
        at += bytes;
    }
}

static void draw_factor(const batched *self, const square *sent, uint64_t draw) {
    gs_random_factor_fill(
        sent->drawn, sent->layout->dtype, factor_count(sent),
        (gs_random_factor){.seed = self->kept.options.seed, .draw = draw, .key = sent->key});
}

// Squares whose kept Q is another bucket's start anew.
static gs_status claim_factors(batched *self, gs_deadline deadline) {
    gs_stream *stream = gs_device_stream(self->kept.device);
    for (size_t b = 0; b < self->num_squares; b++) {
        const square *sent = &self->squares[b];
        bool is_its_own = true;
        if (!sent->exchange.num_items) continue;
        for (size_t i = 0; i < sent->layout->num_params; i++) {
            int64_t *key = &self->buckets_of[sent->layout->params[i].index];
            is_its_own &= *key == (int64_t)sent->key;
            *key = (int64_t)sent->key;
        }
        if (!is_its_own) copy_pieces(self, sent, stream, sent->first_draw, TO_HELD);
    }
    return gs_stream_wait(stream, deadline);
}

static uint64_t key_of(const gs_hook_layout *bucket) {
    uint64_t key = 0;
    for (size_t i = 0; i < bucket->num_params; i++)
        key = gs_hash64(&bucket->params[i].index, sizeof bucket->params[i].index, key);
    return key | 1;
}

static gs_status place_square(batched *self, square *sent, const gs_hook_plan *plan) {
    const gs_hook_layout *bucket = sent->layout;
    const size_t side = gs_low_rank_side(bucket->count),
                 element_bytes = gs_dtype_bytes(bucket->dtype);
    const size_t rank = (size_t)self->kept.options.rank;
    sent->shape =
        (gs_low_rank){.rows = side, .cols = side, .rank = (int)(rank < side ? rank : side)};
    sent->key = key_of(bucket);
    sent->exchange.wire = self->kept.wire;
    GS_TRY(gs_low_rank_exchange_add(&sent->exchange, &self->kept.tables, sent->shape));
    GS_TRY(gs_low_rank_exchange_place(&sent->exchange, plan, bucket->dtype));
    GS_TRY(gs_low_rank_wire_place(&sent->wire, self->kept.wire, plan, bucket->count));
    GS_TRY(gs_hook_place(&sent->grads, plan, side * side * element_bytes));
    if (self->kept.options.error_feedback)
        GS_TRY(gs_hook_place(&sent->errors, plan, side * side * element_bytes));
    GS_TRY(gs_hook_place(&sent->first_draw, plan, factor_count(sent) * element_bytes));
    gs_low_rank_item *item = &sent->exchange.items[0];
    item->grad = sent->grads;
    item->held = item->error = sent->errors;
    if (gs_low_rank_state_restarts(&self->kept, sent->shape))
        sent->exchange.q_items[0].spare = sent->first_draw;
    return gs_ok();
}

static gs_status on_plan(void *state, const gs_hook_plan *plan) {
    batched *self = state;
    char *drawn = self->kept.pinned;
    free(self->squares);
    self->num_squares = 0;
    self->squares = calloc(plan->num_buckets, sizeof *self->squares);
    if (!self->squares) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    self->num_squares = plan->num_buckets;
    gs_low_rank_tables_clear(&self->kept.tables);
    for (size_t b = 0; b < plan->num_buckets; b++) {
        square *sent = &self->squares[b];
        sent->layout = &plan->buckets[b];
        if (sent->layout->hook != plan->hook || !sent->layout->count) continue;
        GS_TRY(place_square(self, sent, plan));
        sent->drawn = drawn;
        const size_t bytes = factor_count(sent) * gs_dtype_bytes(sent->layout->dtype);
        draw_factor(self, sent, 0);
        gs_device_kernels(self->kept.device)
            ->copy(gs_device_stream(self->kept.device), sent->first_draw, drawn, bytes);
        drawn += gs_round_up(bytes, GS_LINE_BYTES);
    }
    return claim_factors(self, plan->deadline);
}

static gs_status loaded(void *state) {
    return claim_factors(state, gs_deadline_in_seconds(LOADING_SECONDS));
}

static bool is_compressed(const batched *self, const gs_hook_bucket *bucket) {
    return bucket->step >= self->kept.options.start_step && bucket->count;
}

// The square without its error: gradients, and zeros where there are none.
static void fill_grads(const square *sent, const gs_hook_bucket *bucket, gs_stream *stream) {
    const gs_kernels *kernels = gs_device_kernels(bucket->device);
    const size_t element_bytes = gs_dtype_bytes(bucket->dtype);
    const size_t all = sent->shape.rows * sent->shape.cols;
    kernels->copy(stream, sent->grads, bucket->data, bucket->count * element_bytes);
    kernels->clear(stream, (char *)sent->grads + bucket->count * element_bytes,
                   (all - bucket->count) * element_bytes);
}

// Of each member what is held; what an approximation leaves between and behind members belongs to
// nobody.
static void fill_errors(batched *self, const square *sent, const gs_hook_bucket *bucket,
                        gs_stream *stream) {
    const gs_kernels *kernels = gs_device_kernels(bucket->device);
    const size_t element_bytes = gs_dtype_bytes(bucket->dtype);
    size_t end = 0;
    for (size_t i = 0; i <= bucket->num_params; i++) {
        const gs_hook_param *param = i < bucket->num_params ? &bucket->params[i] : NULL;
        const size_t first = param ? param->first : sent->shape.rows * sent->shape.cols;
        char *errors = sent->errors;
        kernels->clear(stream, errors + end * element_bytes, (first - end) * element_bytes);
        if (!param) return;
        end = first + param->count;
        if (!param->count) continue;
        kernels->copy(stream, errors + first * element_bytes,
                      gs_param_state_held(&self->kept.errors, param->index),
                      param->count * element_bytes);
    }
}

static gs_status run(void *state, const gs_hook_bucket *bucket, gs_hook_work *work) {
    batched *self = state;
    const square *sent = &self->squares[bucket->index];
    if (!is_compressed(self, bucket))
        return work->phase ? gs_ok()
                           : gs_low_rank_send_plain(self->kept.wire, sent->wire, bucket, work);
    if (work->phase) return gs_low_rank_send_q(&sent->exchange, &self->kept.options, bucket, work);
    gs_stream *stream = gs_work_stream_before_post(bucket->comm).stream;
    GS_TRY(gs_low_rank_send_reserved(bucket, work));
    fill_grads(sent, bucket, stream);
    if (sent->errors) fill_errors(self, sent, bucket, stream);
    copy_pieces(self, sent, stream, sent->exchange.q, FROM_HELD);
    for (size_t i = 0; i < bucket->num_params; i++)
        self->kept.report.elements += bucket->params[i].count;
    self->kept.report.elements_sent += gs_low_rank_sent(sent->shape);
    return gs_low_rank_send_p(&sent->exchange, &self->kept.options, bucket, work);
}

static gs_status finish(void *state, const gs_hook_bucket *bucket, gs_hook_result *result,
                        gs_deadline deadline) {
    batched *self = state;
    const square *sent = &self->squares[bucket->index];
    const gs_kernels *kernels = gs_device_kernels(bucket->device);
    gs_stream *stream = gs_device_stream(bucket->device);
    const size_t element_bytes = gs_dtype_bytes(bucket->dtype);
    (void)result, (void)deadline;
    if (!is_compressed(self, bucket)) return gs_ok();
    gs_low_rank_rebuild(&sent->exchange, bucket);
    for (size_t i = 0; i < bucket->num_params; i++) {
        const gs_hook_param *param = &bucket->params[i];
        if (!param->count) continue;
        const size_t at = param->first * element_bytes, bytes = param->count * element_bytes;
        kernels->copy(stream, (char *)bucket->data + at, (char *)sent->grads + at, bytes);
        if (sent->errors)
            kernels->copy(stream, gs_param_state_write(&self->kept.errors, param->index),
                          (char *)sent->errors + at, bytes);
    }
    if (!self->kept.options.warm_start) draw_factor(self, sent, (uint64_t)bucket->step + 1);
    copy_pieces(self, sent, stream, self->kept.options.warm_start ? sent->exchange.q : sent->drawn,
                TO_NEXT);
    return gs_ok();
}

static bool tensor(void *state, size_t index, gs_hook_tensor *out) {
    const batched *self = state;
    if (!index--) {
        *out = (gs_hook_tensor){.name = "bucket",
                                .param = -1,
                                .dtype = GS_I64,
                                .count = self->kept.num_params,
                                .data = self->buckets_of,
                                .is_on_host = true};
        return true;
    }
    return gs_low_rank_state_tensor(state, index, out);
}

static void report(void *state, gs_hook_report *out) {
    const batched *self = state;
    *out = gs_low_rank_state_report(&self->kept);
    for (size_t b = 0; b < self->num_squares && out->carries; b++)
        out->residual_squares += gs_low_rank_residual_squares(&self->squares[b].exchange);
}

const gs_comm_hook gs_hook_batched_powersgd = {.name = "batched_powersgd",
                                               .options = options,
                                               .num_options = sizeof options / sizeof options[0],
                                               .measure = measure,
                                               .create = create,
                                               .on_plan = on_plan,
                                               .run = run,
                                               .finish = finish,
                                               .commit = gs_low_rank_state_commit,
                                               .rollback = gs_low_rank_state_rollback,
                                               .tensor = tensor,
                                               .loaded = loaded,
                                               .destroy = destroy,
                                               .report = report};
