// "auto": each bucket in the way that is quickest of those that lose no more than the error budget: plain sums, 16 bits, or
// codes of 8 bits whose rows of 512 have a scale each, what they lose being owed to the next step (error feedback).
//
// What a way takes is measured for each communicator (auto_costs.h), what it would lose from the gradients of some steps
// (auto_errors.h): the first one of a plan, a few behind it, then now and then. In those steps a collective of a few numbers
// goes before each bucket's own, by which all ranks have the worst of them; so all come to the same choice
// (core/hook_offers.h), which holds from the next step on. A step that does not count has measured nothing.
//
// What is owed is kept by parameter, as other hooks keep it: whichever way a bucket goes next, it is added and goes along. So
// another choice, plan or world loses nothing, and a checkpoint has what was owed. A new plan begins with plain sums, and so does
// the step behind one that did not count where it went in fp16.
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "gradsync/comm/work_stream.h"
#include "gradsync/hooks/auto_costs.h"
#include "gradsync/hooks/auto_errors.h"
#include "gradsync/hooks/auto_trial.h"
#include "gradsync/hooks/code_message.h"
#include "gradsync/hooks/hook_calls.h"
#include "gradsync/hooks/param_state.h"

// Steps of a plan at which gradients are looked at: the first, when as many have shown how quick the link is now, and each
// LOOK_EVERY-th; and where a trial ends (auto_trial.h).
#define LOOK_EVERY 64
// What ranks tell each other of a bucket: errors, how much slower link and kernels are than when they were measured, and what a step
// takes.
enum { LINK_NUMBER = GS_NUM_OFFERS, WORK_NUMBER, STEP_NUMBER, NUM_NUMBERS };

typedef struct auto_bucket {
    const gs_hook_param *params;
    gs_residual_item *items;
    size_t num_params;
    void *messages;   // of all ranks, where codes are offered
    double *numbers;
    gs_hook_offers offers;
    bool owes;    // something may be owed to its parameters
    size_t bytes;  // of its gradients
    // Of the step in hand.
    int64_t step;
    bool has_run, looks, was_heard;
    gs_work first, work;  // from the small sum beside it to the last
    int64_t busy_ns;  // of this rank's kernels
} auto_bucket;

typedef struct chooser {
    double error_budget;
    bool error_feedback;
    gs_device *device;  // borrowed
    gs_param_state errors;
    gs_residual_item *items;  // of all parameters
    auto_bucket *buckets;
    size_t num_buckets, num_elements;  // elements: of all gradients
    void *messages;  // owned; of all buckets and ranks, where codes are offered. No memory of the arena: what sends them needs none
    gs_auto_costs costs;
    gs_auto_trial trial;
    const gs_comm *measured;  // whose costs they are; never looked into
    uint32_t generation;
    int64_t steps_of_plan;
    bool has_failed;  // the last step did not count
    int64_t free_ns;  // until when the collectives before took, in the step in hand
    uint64_t elements, elements_sent;
} chooser;

static const gs_hook_option options[] = {
    {.name = "error_budget", .fallback = 0.01, .least = 0, .most = 0.5},
    {.name = "error_feedback", .fallback = 1, .least = 0, .most = 1, .is_whole = true},
};

static bool feeds_back(const gs_hook_setup *setup) {
    return gs_hook_option_value(setup->choice, "error_feedback") != 0;
}

static gs_param_state_options describe_errors(const gs_hook_setup *setup) {
    return (gs_param_state_options){
        .name = "error", .is_own = true, .params = setup->params, .num_params = setup->num_params};
}

static size_t count_elements(const gs_hook_setup *setup) {
    size_t total = 0;
    for (size_t i = 0; i < setup->num_params; i++) total += setup->params[i].room;
    return total;
}

static bool offers_codes(const gs_comm *comm) {
    return gs_auto_costs_differ(comm) && gs_comm_world_size(comm) <= GS_AUTO_MOST_RANKS;
}

static gs_status measure(gs_hook_needs *needs, const gs_hook_setup *setup) {
    const gs_param_state_options errors = describe_errors(setup);
    GS_TRY(gs_hook_refuse_exact(setup));
    GS_TRY(gs_hook_check_feedback(setup));
    if (setup->wire_dtype)
        return gs_error(GS_INVALID_ARGUMENT, "chooses what travels itself, and the wire dtype is %s",
                        gs_dtype_name(setup->wire_dtype));
    if (setup->device && !gs_device_is_host(setup->device))
        return gs_error(GS_UNIMPLEMENTED, "chooses by times of hosts, and gradients are on a GPU: name the hook that is to be taken");
    *needs = (gs_hook_needs){.num_phases = 1, .most_posts = 3, .narrows = true};
    if (feeds_back(setup)) needs->state_bytes = gs_param_state_bytes(&errors);
    // Numbers of each bucket. The same in every world, and where only plain sums are offered.
    needs->bucket_bytes = (setup->num_params + 1) * GS_HOOK_PLACE_BYTES;
    return gs_ok();
}

static void destroy(void *state) {
    chooser *self = state;
    gs_param_state_release(&self->errors);
    free(self->items);
    free(self->buckets);
    free(self->messages);
    free(self);
}

static gs_status init(chooser *self, const gs_hook_setup *setup) {
    const gs_param_state_options errors = describe_errors(setup);
    *self = (chooser){.error_budget = gs_hook_option_value(setup->choice, "error_budget"),
                      .error_feedback = feeds_back(setup),
                      .device = setup->device,
                      .num_elements = count_elements(setup)};
    if (self->error_feedback) GS_TRY(gs_param_state_init(&self->errors, &errors, setup->device, setup->state));
    self->items = calloc(setup->num_params + 1, sizeof *self->items);
    return self->items ? gs_ok() : gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
}

static gs_status create(void **state, const gs_hook_setup *setup) {
    chooser *self = calloc(1, sizeof *self);
    if (!self) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    gs_status status = init(self, setup);
    if (status.code) destroy(self);
    else *state = self;
    return status;
}

static gs_code_message message_of(size_t count, gs_dtype dtype) {
    return (gs_code_message){.count = count, .segment_count = GS_AUTO_ROW_COUNT, .dtype = dtype};
}

static size_t most_reserved(const gs_hook_plan *plan) {
    size_t most = 0;
    for (size_t b = 0; b < plan->num_buckets; b++)
        if (plan->buckets[b].hook == plan->hook && plan->buckets[b].reserved_count > most) most = plan->buckets[b].reserved_count;
    return most;
}

static gs_status measure_costs(chooser *self, const gs_hook_plan *plan) {
    uint32_t generation = gs_comm_generation(plan->comm);
    if (self->measured == plan->comm && self->generation == generation) return gs_ok();
    self->measured = NULL;
    GS_TRY(gs_auto_costs_measure(&self->costs, plan->comm, self->num_elements, most_reserved(plan), plan->deadline));
    self->measured = plan->comm;
    self->generation = generation;
    return gs_ok();
}

// Double-precision gradients go as they are.
static void offer(const chooser *self, auto_bucket *own, const gs_hook_layout *layout) {
    own->offers = (gs_hook_offers){.chosen = GS_OFFER_ALLREDUCE, .step = -1};
    for (int kind = 0; kind < GS_NUM_OFFERS; kind++) own->offers.errors[kind] = kind ? -1 : 0;
    gs_auto_costs_forecast(&self->costs, own->offers.seconds, layout->count * gs_dtype_bytes(layout->dtype));
    if (layout->dtype == GS_FP32) return;
    for (int kind = 1; kind < GS_NUM_OFFERS; kind++) own->offers.seconds[kind] = 0;
}

// Of a bucket's codes, of all ranks; 0: it is never sent so.
static size_t code_bytes(const gs_hook_plan *plan, const gs_hook_layout *layout) {
    const gs_code_message message = message_of(layout->count, layout->dtype);
    if (layout->hook != plan->hook || layout->dtype != GS_FP32 || !layout->count || !offers_codes(plan->comm)) return 0;
    return gs_round_up(gs_code_message_bytes(&message) * (size_t)gs_comm_world_size(plan->comm), GS_HOOK_PLACE_BYTES);
}

// For all buckets of the plan.
static gs_status make_messages(chooser *self, const gs_hook_plan *plan) {
    size_t bytes = 0;
    free(self->messages);
    self->messages = NULL;
    for (size_t b = 0; b < plan->num_buckets; b++) bytes += code_bytes(plan, &plan->buckets[b]);
    if (!bytes) return gs_ok();
    self->messages = gs_alloc_aligned(bytes, GS_HOOK_PLACE_BYTES);
    return self->messages ? gs_ok() : gs_error(GS_RESOURCE_EXHAUSTED, "no memory for %zu bytes of codes", bytes);
}

static gs_status place_bucket(chooser *self, auto_bucket *own, const gs_hook_plan *plan, const gs_hook_layout *layout,
                              gs_residual_item *items) {
    void *numbers;
    *own = (auto_bucket){
        .params = layout->params, .items = items, .num_params = layout->num_params, .owes = self->error_feedback};
    GS_TRY(gs_hook_place(&numbers, plan, NUM_NUMBERS * sizeof(double)));
    own->numbers = numbers;
    offer(self, own, layout);
    return gs_ok();
}

static gs_status on_plan(void *state, const gs_hook_plan *plan) {
    chooser *self = state;
    gs_residual_item *items = self->items;
    size_t code_place = 0;
    free(self->buckets);
    self->num_buckets = 0;
    self->steps_of_plan = 0;
    self->has_failed = false;
    self->trial = (gs_auto_trial){0};
    self->buckets = calloc(plan->num_buckets + 1, sizeof *self->buckets);
    gs_status status = self->buckets ? gs_ok() : gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    if (!status.code) status = make_messages(self, plan);
    // The others measure.
    if (status.code) gs_comm_abort(plan->comm, status.message);
    GS_TRY(status);
    GS_TRY(measure_costs(self, plan));
    self->num_buckets = plan->num_buckets;
    for (size_t b = 0; b < plan->num_buckets; b++) {
        const gs_hook_layout *layout = &plan->buckets[b];
        if (layout->hook != plan->hook) continue;
        GS_TRY(place_bucket(self, &self->buckets[b], plan, layout, items));
        size_t bytes = code_bytes(plan, layout);
        if (bytes) self->buckets[b].messages = (char *)self->messages + code_place;
        code_place += bytes;
        items += layout->num_params;
    }
    return gs_ok();
}

static bool is_look(const chooser *self) {
    bool ends_trial = self->trial.phase == GS_TRIAL_PLAIN && self->steps_of_plan == self->trial.look_at;
    return self->steps_of_plan % LOOK_EVERY == 0 || self->steps_of_plan == GS_AUTO_RING || ends_trial || self->has_failed;
}

static void *element_at(const gs_hook_bucket *bucket, size_t index) {
    return (char *)bucket->data + index * gs_dtype_bytes(bucket->dtype);
}

// What is meant, in units of the result and with what is owed, takes the place of the gradients.
static void add_owed(chooser *self, auto_bucket *own, const gs_hook_bucket *bucket, gs_stream *stream) {
    for (size_t i = 0; i < own->num_params; i++) {
        const gs_hook_param *param = &own->params[i];
        void *grad = element_at(bucket, param->first);
        own->items[i] =
            (gs_residual_item){.grad = grad, .error = grad, .count = param->count, .first = param->first};
        if (self->error_feedback && param->count)
            own->items[i].held = gs_param_state_held(&self->errors, param->index);
    }
    gs_device_kernels(bucket->device)
        ->add_residuals(stream, own->items, own->num_params, bucket->dtype, bucket->scale / bucket->grad_unit, 1);
}

static void owe_nothing(chooser *self, const auto_bucket *own, const gs_hook_bucket *bucket) {
    for (size_t i = 0; self->error_feedback && i < own->num_params; i++) {
        const gs_hook_param *param = &own->params[i];
        if (param->count)
            memset(gs_param_state_write(&self->errors, param->index), 0,
                   param->count * gs_dtype_bytes(bucket->dtype));
    }
}

static gs_status tell_numbers(chooser *self, auto_bucket *own, const gs_hook_bucket *bucket, gs_hook_work *work,
                              double scale) {
    gs_auto_errors_measure(own->numbers, bucket->device, bucket->data, bucket->count, (float)scale,
                           gs_comm_world_size(bucket->comm));
    own->numbers[LINK_NUMBER] = gs_auto_drift_now(&self->costs.link);
    own->numbers[WORK_NUMBER] = gs_auto_drift_now(&self->costs.work);
    own->numbers[STEP_NUMBER] = gs_auto_trial_step_seconds(&self->trial);
    return gs_hook_post(work, bucket,
                        &(gs_collective){.kind = GS_ALLREDUCE,
                                         .send = own->numbers,
                                         .recv = own->numbers,
                                         .count = NUM_NUMBERS,
                                         .dtype = GS_FP64,
                                         .op = GS_OP_MAX});
}

static gs_status send_sums(const gs_hook_bucket *bucket, gs_hook_work *work, double scale, gs_dtype wire_dtype) {
    gs_collective sum = {.kind = GS_ALLREDUCE,
                         .send = bucket->data,
                         .recv = bucket->data,
                         .count = bucket->count,
                         .dtype = bucket->dtype,
                         .op = GS_OP_SUM,
                         .scale = scale};
    if (wire_dtype) {
        sum.scale = 1;
        sum.wire_dtype = wire_dtype;
        sum.wire_scale = (float)scale;
    }
    return gs_hook_post(work, bucket, &sum);
}

// One collective, where there is nothing but sums.
static gs_status send_all(const gs_hook_bucket *bucket, gs_hook_work *work) {
    gs_hook_bucket all = *bucket;
    all.count += bucket->reserved_count;
    return send_sums(&all, work, bucket->scale, GS_DTYPE_UNSET);
}

// What codes do not say is owed: own codes are read again, in the place of what they were made from, which `finish` writes
// anew.
static gs_status send_codes(chooser *self, auto_bucket *own, const gs_hook_bucket *bucket, gs_hook_work *work,
                            gs_stream *stream) {
    const gs_kernels *kernels = gs_device_kernels(bucket->device);
    const gs_code_message message = message_of(bucket->count, bucket->dtype);
    const int rank = gs_comm_rank(bucket->comm);
    const gs_quantized codes = gs_code_message_at(&message, own->messages, rank);
    int64_t begin_ns = gs_now_ns();
    for (size_t i = 0; self->error_feedback && i < own->num_params; i++) {
        const gs_hook_param *param = &own->params[i];
        if (param->count)
            memcpy(gs_param_state_write(&self->errors, param->index), element_at(bucket, param->first),
                   param->count * gs_dtype_bytes(bucket->dtype));
    }
    kernels->quantize(stream, &codes, bucket->data, GS_AUTO_LEAST_SCALE);
    if (self->error_feedback)
        kernels->dequantize(stream, bucket->data, &codes, 1, gs_code_message_bytes(&message), 1);
    for (size_t i = 0; self->error_feedback && i < own->num_params; i++) {
        const gs_hook_param *param = &own->params[i];
        if (param->count)
            kernels->axpy(stream, gs_param_state_write(&self->errors, param->index), element_at(bucket, param->first),
                          -1, param->count);
    }
    own->busy_ns += gs_now_ns() - begin_ns;
    self->elements_sent += gs_code_message_bytes(&message) / gs_dtype_bytes(bucket->dtype);
    const gs_collective gather = gs_code_message_gather(&message, own->messages, rank);
    return gs_hook_post(work, bucket, &gather);
}

static gs_status send(chooser *self, auto_bucket *own, const gs_hook_bucket *bucket, gs_hook_work *work,
                      gs_stream *stream, double scale) {
    int kind = own->offers.chosen;
    if (kind == GS_OFFER_INT8) return send_codes(self, own, bucket, work, stream);
    if (own->owes) owe_nothing(self, own, bucket);
    self->elements_sent += kind == GS_OFFER_ALLREDUCE ? bucket->count : bucket->count / 2;
    static const gs_dtype wires[GS_NUM_OFFERS] = {[GS_OFFER_FP16] = GS_FP16, [GS_OFFER_BF16] = GS_BF16};
    return send_sums(bucket, work, scale, wires[kind]);
}

static gs_status run(void *state, const gs_hook_bucket *bucket, gs_hook_work *work) {
    chooser *self = state;
    auto_bucket *own = &self->buckets[bucket->index];
    if (!bucket->count) return bucket->reserved_count ? gs_hook_post_reserved(work, bucket) : gs_ok();
    bool codes = own->offers.chosen == GS_OFFER_INT8, opens = own->owes || codes;
    gs_stream *stream = gs_work_stream_before_post(bucket->comm).stream;
    double scale = opens ? bucket->grad_unit : bucket->scale;
    own->has_run = true;
    own->first = (gs_work){0};
    own->step = bucket->step;
    own->bytes = bucket->count * gs_dtype_bytes(bucket->dtype);
    own->looks = is_look(self) && own->offers.seconds[GS_OFFER_BF16] > 0;
    self->elements += bucket->count;
    int64_t begin_ns = gs_now_ns();
    if (opens) add_owed(self, own, bucket, stream);
    own->busy_ns = gs_now_ns() - begin_ns;
    if (own->looks) GS_TRY(tell_numbers(self, own, bucket, work, scale));
    gs_status status;
    if (!opens && own->offers.chosen == GS_OFFER_ALLREDUCE) {
        self->elements_sent += bucket->count;
        status = send_all(bucket, work);
    } else {
        if (bucket->reserved_count) GS_TRY(gs_hook_post_reserved(work, bucket));
        if (bucket->reserved_count) own->first = work->last;
        status = send(self, own, bucket, work, stream, scale);
    }
    own->work = work->last;
    if (!own->first.sequence) own->first = work->last;
    return status;
}

// Behind the collective before it and behind the last rank.
static void note_time(chooser *self, const auto_bucket *own, const gs_hook_bucket *bucket) {
    gs_work_times times, first;
    if (!gs_comm_times(bucket->comm, own->work, &times) || !times.finished_ns) return;
    if (!gs_comm_times(bucket->comm, own->first, &first)) return;
    int64_t begin_ns = first.all_arrived_ns > first.posted_ns ? first.all_arrived_ns : first.posted_ns;
    if (self->free_ns > begin_ns) begin_ns = self->free_ns;
    if (times.finished_ns > self->free_ns) self->free_ns = times.finished_ns;
    gs_auto_costs_note_link(&self->costs, own->offers.chosen, own->bytes, (double)(times.finished_ns - begin_ns) / (double)GS_NS_PER_SEC);
}

static gs_status finish(void *state, const gs_hook_bucket *bucket, gs_hook_result *result, gs_deadline deadline) {
    chooser *self = state;
    auto_bucket *own = &self->buckets[bucket->index];
    (void)result, (void)deadline;
    if (!bucket->count) return gs_ok();
    own->was_heard = own->looks;
    note_time(self, own, bucket);
    if (own->offers.chosen != GS_OFFER_INT8) return gs_ok();
    const gs_code_message message = message_of(bucket->count, bucket->dtype);
    const gs_quantized first = gs_code_message_at(&message, own->messages, 0);
    int64_t begin_ns = gs_now_ns();
    gs_device_kernels(bucket->device)
        ->dequantize(gs_device_stream(bucket->device), bucket->data, &first,
                     (size_t)gs_comm_world_size(bucket->comm), gs_code_message_bytes(&message), bucket->grad_unit);
    own->busy_ns += gs_now_ns() - begin_ns;
    gs_auto_costs_note_work(&self->costs, GS_OFFER_INT8, own->bytes, (double)own->busy_ns / (double)GS_NS_PER_SEC);
    return gs_ok();
}

static void choose(chooser *self, auto_bucket *own) {
    gs_hook_offers *offers = &own->offers;
    memcpy(offers->errors, own->numbers, sizeof offers->errors);
    offers->step = own->step;
    gs_auto_costs_forecast(&self->costs, offers->seconds, own->bytes);
    offers->chosen = gs_hook_offers_choose(offers, self->error_budget);
}

// All buckets tell the same of the link, and of steps. A bucket that was not heard keeps what was said of it.
static void choose_all(chooser *self) {
    double step_seconds = 0, plain_seconds = 0;
    bool was_heard = false, was_compressed = false, would_be = false;
    for (size_t b = 0; b < self->num_buckets; b++) {
        auto_bucket *own = &self->buckets[b];
        was_compressed |= own->offers.chosen != GS_OFFER_ALLREDUCE;
        if (!own->was_heard) continue;
        was_heard = true;
        step_seconds = own->numbers[STEP_NUMBER];
        gs_auto_drift_agree(&self->costs.link, own->numbers[LINK_NUMBER]);
        gs_auto_drift_agree(&self->costs.work, own->numbers[WORK_NUMBER]);
    }
    if (!was_heard) return;
    for (size_t b = 0; b < self->num_buckets; b++) {
        auto_bucket *own = &self->buckets[b];
        if (own->was_heard) choose(self, own);
        would_be |= own->offers.chosen != GS_OFFER_ALLREDUCE;
        plain_seconds += own->offers.seconds[GS_OFFER_ALLREDUCE];
    }
    bool may_be = gs_auto_trial_decide(&self->trial, self->steps_of_plan, step_seconds, plain_seconds, was_compressed, would_be);
    for (size_t b = 0; b < self->num_buckets; b++) {
        gs_hook_offers *offers = &self->buckets[b].offers;
        offers->is_tried = !may_be && offers->chosen != GS_OFFER_ALLREDUCE;
        if (!may_be) offers->chosen = GS_OFFER_ALLREDUCE;
        offers->with_seconds = self->trial.with_seconds;
        offers->without_seconds = self->trial.without_seconds;
    }
}

static void forget_step(chooser *self, bool counts) {
    for (size_t b = 0; b < self->num_buckets; b++) {
        auto_bucket *own = &self->buckets[b];
        own->has_run = own->looks = own->was_heard = false;
    }
    gs_auto_costs_close_step(&self->costs, counts);
    self->free_ns = 0;
    self->elements = self->elements_sent = 0;
}

static void commit(void *state) {
    chooser *self = state;
    if (self->error_feedback) gs_param_state_commit(&self->errors);
    for (size_t b = 0; b < self->num_buckets; b++) {
        auto_bucket *own = &self->buckets[b];
        if (own->has_run) own->owes = self->error_feedback && own->offers.chosen == GS_OFFER_INT8;
    }
    gs_auto_trial_note_step(&self->trial, gs_now_ns(), true);
    choose_all(self);
    self->steps_of_plan++;
    self->has_failed = false;
    forget_step(self, true);
}

// Gradients that have outgrown fp16 since the last look make a sum that is not finite, and would make it again in each step
// that is thrown away for that. So the next one goes without fp16, and looks.
static void leave_fp16(chooser *self) {
    for (size_t b = 0; b < self->num_buckets; b++) {
        gs_hook_offers *offers = &self->buckets[b].offers;
        if (offers->chosen == GS_OFFER_FP16) offers->chosen = GS_OFFER_ALLREDUCE;
    }
    self->has_failed = true;
}

static void roll_back(void *state) {
    chooser *self = state;
    if (self->error_feedback) gs_param_state_rollback(&self->errors);
    leave_fp16(self);
    gs_auto_trial_note_step(&self->trial, 0, false);
    forget_step(self, false);
}

static bool find_tensor(void *state, size_t index, gs_hook_tensor *tensor) {
    const chooser *self = state;
    return self->error_feedback && gs_param_state_tensor(&self->errors, index, tensor);
}

static gs_status take_loaded(void *state) {
    chooser *self = state;
    for (size_t b = 0; b < self->num_buckets; b++) self->buckets[b].owes = self->error_feedback;
    return gs_ok();
}

static void report(void *state, gs_hook_report *out) {
    const chooser *self = state;
    out->elements = self->elements;
    out->elements_sent = self->elements_sent;
    out->carries = self->error_feedback;
}

static bool offers(void *state, size_t bucket, gs_hook_offers *out) {
    const chooser *self = state;
    if (bucket >= self->num_buckets || !self->buckets[bucket].numbers) return false;
    *out = self->buckets[bucket].offers;
    return true;
}

const gs_comm_hook gs_hook_auto = {.name = "auto",
                                   .options = options,
                                   .num_options = sizeof options / sizeof options[0],
                                   .measure = measure,
                                   .create = create,
                                   .on_plan = on_plan,
                                   .run = run,
                                   .finish = finish,
                                   .commit = commit,
                                   .rollback = roll_back,
                                   .tensor = find_tensor,
                                   .loaded = take_loaded,
                                   .destroy = destroy,
                                   .report = report,
                                   .offers = offers};
