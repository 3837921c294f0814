// PowerSGD (Vogels et al. 2019), as PyTorch's hook has it: a gradient that is worth it travels as
// two thin factors (low_rank_exchange.h), the others of a bucket together as they are.
//
//   lane 0   U: what is not compressed, with the reserved elements ─▶   P ─▶
//   lane 1   Q ─▶
//
// What it keeps lies by parameter, so that plans and worlds may change: the error of compressed
// gradients, and Q, from which the next step starts (warm start), drawn at first. Without warm
// start each step draws the Q of the next one, so that state is the same kind of thing with and
// without. A column of Q that became zero, as by gradients that were zero everywhere for one step,
// would stay zero for ever, and the gradient with it: it starts again from its first draw. With an
// epsilon, which is how the original lives with zeros, one of two stays zero as there.
#include <stdlib.h>

#include "core/memory.h"
#include "gradsync/comm/work_stream.h"
#include "gradsync/hooks/hook_calls.h"
#include "gradsync/hooks/low_rank_state.h"
#include "gradsync/hooks/random_factor.h"

#define DRAWING_SECONDS 60.0

// Elements of a bucket that travel as they are, behind each other.
typedef struct run {
    size_t first, count;
} run;

typedef struct sent_bucket {
    gs_low_rank_exchange exchange;
    const gs_hook_param **matrices;  // whose gradient each is
    run *runs;
    size_t num_runs, rest_count;
    void *rest;  // where runs lie together; NULL: a single one travels where it is
    void *wire;  // of the bucket before start_step, of the runs later
} sent_bucket;

// Of each parameter.
typedef struct factored {
    gs_low_rank shape;
    void *first_draw;  // what its factor starts from, and starts again
    void *drawn;       // where the next one is drawn
} factored;

typedef struct powersgd {
    gs_low_rank_state kept;
    factored *factored;
    sent_bucket *buckets;  // of the plan
    size_t num_buckets;
    const gs_hook_param **matrices;  // of all buckets, behind each other
    run *runs;
} powersgd;

static const gs_hook_option options[] = {
    GS_LOW_RANK_OPTION_ROWS,
    {.name = "min_compression_rate", .fallback = 2, .least = 0x1p-30, .most = 0x1p30},
};

static gs_low_rank shape_of(const gs_low_rank_options *chosen, const gs_hook_param *param) {
    return gs_low_rank_of(param->spec, chosen->rank, chosen->min_compression_rate);
}

static size_t count_error(const void *ctx, const gs_hook_param *param) {
    const gs_low_rank_options *chosen = ctx;
    return chosen->error_feedback && shape_of(chosen, param).rank ? param->count : 0;
}

static size_t count_factor(const void *ctx, const gs_hook_param *param) {
    gs_low_rank shape = shape_of(ctx, param);
    return shape.cols * (size_t)shape.rank;
}

static const gs_low_rank_counts counts = {.error = count_error, .factor = count_factor};

static size_t factor_bytes(const gs_low_rank_options *chosen, const gs_hook_param *param) {
    return gs_round_up(count_factor(chosen, param) * gs_dtype_bytes(param->dtype), GS_LINE_BYTES);
}

// First draws lie behind what is kept.
static size_t measure_draws(const gs_low_rank_options *chosen, const gs_hook_param *params,
                            size_t num_params) {
    size_t bytes = 0;
    for (size_t i = 0; i < num_params; i++) bytes += factor_bytes(chosen, &params[i]);
    return bytes;
}

// The runs of a bucket take room where its gradients do, and behind them the reserved elements; so
// for the rest of each parameter two pieces more.
static size_t measure_buckets(const gs_hook_setup *setup, const gs_low_rank_options *chosen) {
    const gs_low_rank_wire wire = gs_low_rank_wire_of(setup);
    size_t bytes = wire.needs_memory ? gs_hook_most_bytes(setup, gs_dtype_bytes(wire.dtype)) : 0;
    for (size_t i = 0; i < setup->num_params; i++) {
        const gs_hook_param *param = &setup->params[i];
        const gs_low_rank shape = shape_of(chosen, param);
        bytes += shape.rank
                     ? gs_low_rank_exchange_bytes(shape, param->dtype, wire)
                     : gs_round_up(param->room * gs_dtype_bytes(param->dtype), GS_HOOK_PLACE_BYTES);
        bytes += 2 * GS_HOOK_PLACE_BYTES;
    }
    return bytes;
}

static gs_status measure(gs_hook_needs *needs, const gs_hook_setup *setup) {
    const gs_low_rank_options chosen = gs_low_rank_options_of(setup->choice);
    GS_TRY(gs_low_rank_options_check(setup));
    *needs = (gs_hook_needs){.num_phases = 2, .most_posts = 3, .narrows = setup->wire_dtype != 0};
    GS_TRY(gs_low_rank_state_bytes(&needs->state_bytes, setup, &counts));
    needs->state_bytes += measure_draws(&chosen, setup->params, setup->num_params);
    needs->bucket_bytes = measure_buckets(setup, &chosen);
    return gs_ok();
}

// A random factor, by way of pinned memory that nothing else uses in a step.
static void draw_factor(const powersgd *self, size_t param, void *to, uint64_t draw) {
    const gs_dtype dtype = self->kept.params[param].dtype;
    const size_t count = gs_param_state_count(&self->kept.factors, param);
    void *drawn = self->factored[param].drawn;
    gs_random_factor_fill(
        drawn, dtype, count,
        (gs_random_factor){.seed = self->kept.options.seed, .draw = draw, .key = param});
    gs_device_kernels(self->kept.device)
        ->copy(gs_device_stream(self->kept.device), to, drawn, count * gs_dtype_bytes(dtype));
}

static gs_status make_lists(powersgd *self) {
    self->factored = calloc(self->kept.num_params + 1, sizeof *self->factored);
    self->matrices = calloc(self->kept.num_params + 1, sizeof *self->matrices);
    self->runs = calloc(2 * self->kept.num_params + 1, sizeof *self->runs);
    if (!self->factored || !self->matrices || !self->runs)
        return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    size_t num_matrices = 0, num_rows = 0;
    for (size_t i = 0; i < self->kept.num_params; i++) {
        self->factored[i].shape = shape_of(&self->kept.options, &self->kept.params[i]);
        if (!self->factored[i].shape.rank) continue;
        num_matrices++;
        num_rows += self->factored[i].shape.rows;
    }
    return gs_low_rank_state_alloc(
        &self->kept, measure_draws(&self->kept.options, self->kept.params, self->kept.num_params),
        num_matrices, num_rows);
}

// In the same places as in the state.
static void place_draws(powersgd *self, char *draws) {
    size_t at = 0;
    for (size_t i = 0; i < self->kept.num_params; i++) {
        self->factored[i].drawn = (char *)self->kept.pinned + at;
        self->factored[i].first_draw = draws + at;
        at += factor_bytes(&self->kept.options, &self->kept.params[i]);
    }
}

static gs_status draw_first(powersgd *self) {
    const gs_kernels *kernels = gs_device_kernels(self->kept.device);
    gs_stream *stream = gs_device_stream(self->kept.device);
    for (size_t i = 0; i < self->kept.num_params; i++) {
        if (!self->factored[i].shape.rank) continue;
        draw_factor(self, i, self->factored[i].first_draw, 0);
        kernels->copy(stream, gs_param_state_held(&self->kept.factors, i),
                      self->factored[i].first_draw,
                      gs_param_state_count(&self->kept.factors, i) *
                          gs_dtype_bytes(self->kept.params[i].dtype));
    }
    return gs_stream_wait(stream, gs_deadline_in_seconds(DRAWING_SECONDS));
}

static gs_status make(powersgd *self, const gs_hook_setup *setup) {
    void *draws;
    GS_TRY(gs_low_rank_state_init(&self->kept, &draws, setup, &counts));
    GS_TRY(make_lists(self));
    place_draws(self, draws);
    return draw_first(self);
}

static void destroy(void *state) {
    powersgd *self = state;
    gs_low_rank_state_release(&self->kept);
    free(self->factored);
    free(self->matrices);
    free(self->runs);
    free(self->buckets);
    free(self);
}

static gs_status create(void **state, const gs_hook_setup *setup) {
    powersgd *self = calloc(1, sizeof *self);
    if (!self) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    gs_status status = make(self, setup);
    if (status.code)
        destroy(self);
    else
        *state = self;
    return status;
}

static void add_run(sent_bucket *sent, size_t first, size_t count) {
    run *last = sent->num_runs ? &sent->runs[sent->num_runs - 1] : NULL;
    if (!count) return;
    sent->rest_count += count;
    if (last && last->first + last->count == first)
        last->count += count;
    else
        sent->runs[sent->num_runs++] = (run){first, count};
}

// Reserved elements are counts: they travel with gradients only where those are sent as they are.
static gs_status place_bucket(powersgd *self, sent_bucket *sent, const gs_hook_plan *plan,
                              const gs_hook_layout *bucket) {
    sent->exchange.wire = self->kept.wire;
    for (size_t i = 0; i < bucket->num_params; i++) {
        const gs_hook_param *param = &bucket->params[i];
        const gs_low_rank shape = self->factored[param->index].shape;
        if (!shape.rank) {
            add_run(sent, param->first, param->room);
            continue;
        }
        sent->matrices[sent->exchange.num_items] = param;
        GS_TRY(gs_low_rank_exchange_add(&sent->exchange, &self->kept.tables, shape));
    }
    if (!self->kept.wire.dtype) add_run(sent, bucket->count, bucket->reserved_count);
    GS_TRY(gs_low_rank_exchange_place(&sent->exchange, plan, bucket->dtype));
    for (size_t i = 0; i < sent->exchange.num_items; i++) {
        const factored *own = &self->factored[sent->matrices[i]->index];
        if (gs_low_rank_state_restarts(&self->kept, own->shape))
            sent->exchange.q_items[i].spare = own->first_draw;
    }
    GS_TRY(gs_low_rank_wire_place(&sent->wire, self->kept.wire, plan, bucket->count));
    if (sent->num_runs < 2) return gs_ok();
    return gs_hook_place(&sent->rest, plan, sent->rest_count * gs_dtype_bytes(bucket->dtype));
}

static gs_status on_plan(void *state, const gs_hook_plan *plan) {
    powersgd *self = state;
    free(self->buckets);
    self->num_buckets = 0;
    self->buckets = calloc(plan->num_buckets, sizeof *self->buckets);
    if (!self->buckets) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    self->num_buckets = plan->num_buckets;
    gs_low_rank_tables_clear(&self->kept.tables);
    const gs_hook_param **matrices = self->matrices;
    run *runs = self->runs;
    for (size_t b = 0; b < plan->num_buckets; b++) {
        sent_bucket *sent = &self->buckets[b];
        if (plan->buckets[b].hook != plan->hook) continue;
        sent->matrices = matrices;
        sent->runs = runs;
        GS_TRY(place_bucket(self, sent, plan, &plan->buckets[b]));
        matrices += sent->exchange.num_items;
        runs += sent->num_runs;
    }
    return gs_ok();
}

static void *element_at(const gs_hook_bucket *bucket, size_t index) {
    return (char *)bucket->data + index * gs_dtype_bytes(bucket->dtype);
}

static bool is_compressed(const powersgd *self, const gs_hook_bucket *bucket) {
    return bucket->step >= self->kept.options.start_step &&
           self->buckets[bucket->index].exchange.num_items;
}

static void note_elements(powersgd *self, const gs_hook_bucket *bucket) {
    if (bucket->step < self->kept.options.start_step) return;
    for (size_t i = 0; i < bucket->num_params; i++) {
        const gs_low_rank shape = self->factored[bucket->params[i].index].shape;
        self->kept.report.elements += gs_low_rank_elements(shape);
        self->kept.report.elements_sent += gs_low_rank_sent(shape);
    }
}

// Between the bucket and where its runs lie together.
static void copy_runs(const sent_bucket *sent, const gs_hook_bucket *bucket, gs_stream *stream,
                      bool back) {
    const size_t element_bytes = gs_dtype_bytes(bucket->dtype);
    char *together = sent->rest;
    for (size_t i = 0; i < sent->num_runs && together; i++) {
        void *apart = element_at(bucket, sent->runs[i].first);
        const size_t bytes = sent->runs[i].count * element_bytes;
        gs_device_kernels(bucket->device)
            ->copy(stream, back ? apart : together, back ? together : apart, bytes);
        together += bytes;
    }
}

static gs_status send_rest(const powersgd *self, const gs_hook_bucket *bucket, gs_stream *stream,
                           gs_hook_work *work) {
    const sent_bucket *sent = &self->buckets[bucket->index];
    if (self->kept.wire.dtype) GS_TRY(gs_low_rank_send_reserved(bucket, work));
    if (!sent->num_runs) return gs_ok();
    copy_runs(sent, bucket, stream, false);
    return gs_low_rank_wire_sum(self->kept.wire, sent->wire,
                                sent->rest ? sent->rest : element_at(bucket, sent->runs[0].first),
                                sent->rest_count, bucket->scale, bucket, work);
}

static void describe_matrices(powersgd *self, const gs_hook_bucket *bucket, gs_stream *stream) {
    const sent_bucket *sent = &self->buckets[bucket->index];
    for (size_t i = 0; i < sent->exchange.num_items; i++) {
        gs_low_rank_item *item = &sent->exchange.items[i];
        const gs_hook_param *param = sent->matrices[i];
        item->grad = element_at(bucket, param->first);
        if (self->kept.options.error_feedback) {
            item->held = gs_param_state_held(&self->kept.errors, param->index);
            item->error = gs_param_state_write(&self->kept.errors, param->index);
        }
        gs_device_kernels(bucket->device)
            ->copy(stream, item->q, gs_param_state_held(&self->kept.factors, param->index),
                   item->cols * (size_t)item->rank * gs_dtype_bytes(bucket->dtype));
    }
}

// What is not compressed is on its way while P is made.
static gs_status run_bucket(void *state, const gs_hook_bucket *bucket, gs_hook_work *work) {
    powersgd *self = state;
    const gs_low_rank_exchange *exchange = &self->buckets[bucket->index].exchange;
    if (!work->phase) note_elements(self, bucket);
    if (!is_compressed(self, bucket))
        return work->phase ? gs_ok()
                           : gs_low_rank_send_plain(
                                 self->kept.wire, self->buckets[bucket->index].wire, bucket, work);
    if (work->phase) return gs_low_rank_send_q(exchange, &self->kept.options, bucket, work);
    gs_stream *stream = gs_work_stream_before_post(bucket->comm).stream;
    GS_TRY(send_rest(self, bucket, stream, work));
    describe_matrices(self, bucket, stream);
    return gs_low_rank_send_p(exchange, &self->kept.options, bucket, work);
}

// What the next step starts from.
static void keep_factor(powersgd *self, const gs_hook_bucket *bucket, const gs_low_rank_item *item,
                        size_t param) {
    void *to = gs_param_state_write(&self->kept.factors, param);
    if (self->kept.options.warm_start)
        gs_device_kernels(bucket->device)
            ->copy(gs_device_stream(bucket->device), to, item->q,
                   item->cols * (size_t)item->rank * gs_dtype_bytes(bucket->dtype));
    else
        draw_factor(self, param, to, (uint64_t)bucket->step + 1);
}

static gs_status finish(void *state, const gs_hook_bucket *bucket, gs_hook_result *result,
                        gs_deadline deadline) {
    powersgd *self = state;
    const sent_bucket *sent = &self->buckets[bucket->index];
    (void)result, (void)deadline;
    if (!is_compressed(self, bucket)) return gs_ok();
    copy_runs(sent, bucket, gs_device_stream(bucket->device), true);
    gs_low_rank_rebuild(&sent->exchange, bucket);
    for (size_t i = 0; i < sent->exchange.num_items; i++)
        keep_factor(self, bucket, &sent->exchange.items[i], sent->matrices[i]->index);
    return gs_ok();
}

static void report(void *state, gs_hook_report *out) {
    const powersgd *self = state;
    *out = gs_low_rank_state_report(&self->kept);
    for (size_t b = 0; b < self->num_buckets && out->carries; b++)
        out->residual_squares += gs_low_rank_residual_squares(&self->buckets[b].exchange);
}

const gs_comm_hook gs_hook_powersgd = {.name = "powersgd",
                                       .options = options,
                                       .num_options = sizeof options / sizeof options[0],
                                       .measure = measure,
                                       .create = create,
                                       .on_plan = on_plan,
                                       .run = run_bucket,
                                       .finish = finish,
                                       .commit = gs_low_rank_state_commit,
                                       .rollback = gs_low_rank_state_rollback,
                                       .tensor = gs_low_rank_state_tensor,
                                       .loaded = gs_hook_load_nothing,
                                       .destroy = destroy,
                                       .report = report};
