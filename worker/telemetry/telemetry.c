#include "worker/telemetry/telemetry.h"

#include <stdio.h>
#include <string.h>

#include "core/clock.h"

#define NUM_BOUNDS(bounds) (sizeof(bounds) / sizeof((bounds)[0]))

void gs_telemetry_init(gs_telemetry *telemetry, uint32_t generation, int rank, int world_size) {
    *telemetry = (gs_telemetry){.generation = generation,
                                .rank = rank,
                                .world_size = world_size,
                                .report_every_ns = GS_REPORT_EVERY_NS,
                                .reported_ns = gs_now_ns()};
}

static double tokens_per_second(const gs_telemetry *telemetry) {
    if (telemetry->step_seconds <= 0) return 0;
    return (double)(telemetry->last.samples * telemetry->last.positions) / telemetry->step_seconds;
}

static void drop_oldest(gs_telemetry *telemetry, int count) {
    telemetry->num_history -= count;
    telemetry->num_told -= count;
    memmove(telemetry->history, telemetry->history + count,
            (size_t)telemetry->num_history * sizeof telemetry->history[0]);
}

static void drop_every_second(gs_telemetry *telemetry) {
    int kept = 0;
    for (int i = 1; i < telemetry->num_history; i += 2) {
        telemetry->history[kept++] = telemetry->history[i];
    }
    telemetry->num_history = kept;
    telemetry->num_told = 0;
}

static void make_room(gs_telemetry *telemetry) {
    if (telemetry->num_history < GS_HISTORY_STEPS) return;
    int repeated = telemetry->unheard ? 0 : GS_REPORT_MAX_HISTORY;
    if (telemetry->num_told > repeated) drop_oldest(telemetry, telemetry->num_told - repeated);
    else drop_every_second(telemetry);
}

static void remember_step(gs_telemetry *telemetry) {
    make_room(telemetry);
    telemetry->history[telemetry->num_history++] = (gs_history_entry){
        .step = telemetry->applied_step,
        .loss = telemetry->last.loss,
        .grad_norm = telemetry->last.grad_norm,
        .lr = telemetry->last.lr,
        .step_seconds = telemetry->step_seconds,
        .tokens_per_second = tokens_per_second(telemetry),
        .comm_exposed_seconds = telemetry->comm_exposed_seconds,
        .overlap_ratio = telemetry->overlap_ratio};
}

static void add_phases(gs_step_phases *sum, const gs_step_phases *step) {
    sum->data += step->data;
    sum->forward += step->forward;
    sum->backward += step->backward;
    sum->comm_exposed += step->comm_exposed;
    sum->optimizer += step->optimizer;
}

// A static graph leaves at home what no rank uses: ready, and never posted.
static bool travelled(const gs_bucket_times *bucket) {
    return bucket->posted_ns != 0;
}

static void observe_buckets(gs_telemetry *telemetry, const gs_reduce_stats *stats) {
    gs_telemetry_totals *totals = &telemetry->totals;
    telemetry->payload_bytes = telemetry->wire_bytes = 0;
    for (size_t i = 0; i < stats->num_buckets; i++) {
        const gs_bucket_times *bucket = &stats->buckets[i];
        totals->copy_in_seconds += gs_seconds_of(bucket->copy_in_ns);
        totals->copy_out_seconds += gs_seconds_of(bucket->copy_out_ns);
        if (!travelled(bucket)) continue;
        telemetry->payload_bytes += bucket->bytes;
        telemetry->wire_bytes += bucket->wire_bytes;
        gs_histogram_observe(&telemetry->queue_histogram, gs_reduce_bounds,
                             NUM_BOUNDS(gs_reduce_bounds),
                             gs_seconds_of(bucket->posted_ns - bucket->ready_ns));
        gs_histogram_observe(&telemetry->reduce_histogram, gs_reduce_bounds,
                             NUM_BOUNDS(gs_reduce_bounds),
                             gs_seconds_of(bucket->finished_ns - bucket->posted_ns));
    }
    totals->payload_bytes += telemetry->payload_bytes;
    totals->wire_bytes += telemetry->wire_bytes;
    totals->encode_seconds += gs_seconds_of(stats->encode_ns);
    totals->decode_seconds += gs_seconds_of(stats->decode_ns);
    if (stats->knows_residuals) telemetry->residual_norm = stats->residual_norm;
    telemetry->knows_residuals |= stats->knows_residuals;
    if (stats->ready_order_mismatches) totals->order_mismatches++;
}

// Buckets are posted in order, so that what is covered already ends where the latest wait ended.
static int64_t waited_ns(const gs_reduce_stats *stats) {
    int64_t sum_ns = 0, until_ns = 0;
    for (size_t i = 0; i < stats->num_buckets; i++) {
        const gs_bucket_times *bucket = &stats->buckets[i];
        int64_t from_ns = bucket->posted_ns > until_ns ? bucket->posted_ns : until_ns;
        if (bucket->all_arrived_ns <= from_ns) continue;
        sum_ns += bucket->all_arrived_ns - from_ns;
        until_ns = bucket->all_arrived_ns;
    }
    return sum_ns;
}

// Of many short steps every 2nd, 4th, 8th … by its number: a rank that picks fewer picks a part of what
// the others pick.
static bool is_picked(gs_telemetry *telemetry, int64_t step) {
    // From step to step: a rank that is late has short steps itself.
    int64_t now_ns = gs_now_ns(), before_ns = telemetry->observed_ns;
    double usual = telemetry->usual_step_seconds, last = telemetry->step_seconds;
    if (before_ns && gs_seconds_of(now_ns - before_ns) > last) last = gs_seconds_of(now_ns - before_ns);
    telemetry->observed_ns = now_ns;
    usual += (usual > 0 ? 0.1 : 1) * (last - usual);
    telemetry->usual_step_seconds = usual;
    int64_t stride = 1;
    while (stride < 1024 && (double)stride * usual * GS_REPORT_MAX_WAITS < gs_seconds_of(telemetry->report_every_ns)) {
        stride *= 2;
    }
    return step % stride == 0;
}

static void note_waits(gs_telemetry *telemetry, const gs_step_facts *facts) {
    const gs_reduce_stats *stats = facts->stats;
    if (!is_picked(telemetry, facts->step)) return;
    if (facts->has_shadows) return;  // who has no data waits for who has: that is no lateness
    int64_t ready_ns = stats->begin_ns;
    for (size_t i = 0; i < stats->num_buckets; i++) {
        if (stats->buckets[i].ready_ns > ready_ns) ready_ns = stats->buckets[i].ready_ns;
    }
    if (telemetry->num_waits == GS_REPORT_MAX_WAITS) {
        telemetry->num_waits--;
        memmove(telemetry->waits, telemetry->waits + 1,
                (size_t)telemetry->num_waits * sizeof telemetry->waits[0]);
    }
    telemetry->waits[telemetry->num_waits++] =
        (gs_report_waits){.step = facts->step,
                        .compute = gs_seconds_of(ready_ns - stats->begin_ns),
                        .wait = gs_seconds_of(waited_ns(stats)) + facts->opening_seconds,
                        .transfer = gs_seconds_of(stats->busy_ns),
                        .data = facts->phases.data,
                        .step_seconds = telemetry->step_seconds};
}

void gs_telemetry_observe(gs_telemetry *telemetry, const gs_step_facts *facts, int64_t step_ns) {
    const gs_reduce_stats *stats = facts->stats;
    gs_telemetry_totals *totals = &telemetry->totals;
    telemetry->last = *facts;
    telemetry->applied_step = facts->step + 1;
    telemetry->step_seconds = gs_seconds_of(step_ns);
    telemetry->comm_busy_seconds = gs_seconds_of(stats->busy_ns);
    telemetry->comm_exposed_seconds = gs_seconds_of(stats->exposed_ns);
    telemetry->wait_seconds = gs_seconds_of(stats->wait_ns);
    telemetry->backward_seconds = gs_seconds_of(stats->backward_end_ns - stats->backward_begin_ns);
    telemetry->overlap_ratio = gs_reduce_stats_overlap_ratio(stats);
    totals->steps++;
    totals->samples += facts->samples;
    totals->tokens += facts->samples * facts->positions;
    totals->nonfinite += facts->nonfinite_ranks;
    totals->skipped_steps += facts->nonfinite_ranks > 0;
    totals->step_seconds += telemetry->step_seconds;
    if (!facts->has_shadows)
        totals->blocked_seconds += gs_seconds_of(waited_ns(stats)) + facts->opening_seconds;
    totals->comm_busy_seconds += telemetry->comm_busy_seconds;
    totals->comm_exposed_seconds += telemetry->comm_exposed_seconds;
    totals->wait_seconds += telemetry->wait_seconds;
    add_phases(&totals->phases, &facts->phases);
    totals->wire_bytes += facts->row_wire_bytes;
    observe_buckets(telemetry, stats);
    note_waits(telemetry, facts);
    gs_histogram_observe(&telemetry->step_histogram, gs_step_bounds, NUM_BOUNDS(gs_step_bounds),
                         telemetry->step_seconds);
    remember_step(telemetry);
}

void gs_telemetry_add_checkpoint(gs_telemetry *telemetry, double seconds) {
    telemetry->last.phases.checkpoint = seconds;
    telemetry->totals.phases.checkpoint += seconds;
}

bool gs_telemetry_is_due(const gs_telemetry *telemetry) {
    return gs_now_ns() - telemetry->reported_ns >= telemetry->report_every_ns;
}

// The last entry stands for all buckets from number `index` on that travelled: first ready to last finished.
static gs_bucket_times fold_buckets(const gs_reduce_stats *stats, size_t index) {
    gs_bucket_times sum = stats->buckets[index];
    for (size_t i = index + 1; i < stats->num_buckets; i++) {
        const gs_bucket_times *next = &stats->buckets[i];
        if (!travelled(next)) continue;
        if (!travelled(&sum)) {
            sum = *next;
            continue;
        }
        sum.bytes += next->bytes;
        sum.wire_bytes += next->wire_bytes;
        if (next->ready_ns < sum.ready_ns) sum.ready_ns = next->ready_ns;
        if (next->posted_ns < sum.posted_ns) sum.posted_ns = next->posted_ns;
        if (next->all_arrived_ns > sum.all_arrived_ns) sum.all_arrived_ns = next->all_arrived_ns;
        if (next->finished_ns > sum.finished_ns) sum.finished_ns = next->finished_ns;
    }
    return sum;
}

// From this rank's post to the end, what it waits for others and what it does in between with it: never more than really
// moved. Of the rank that came last it is what the transport did, so of all ranks the most counts. When all others had
// come no rank knows: it sees that when it looks, and then they may have done their part already.
static gs_report_bucket tell_bucket(const gs_bucket_times *bucket, int index, int64_t position, int64_t origin_ns,
                                    int world_size) {
    int64_t begin_ns = bucket->all_arrived_ns > bucket->posted_ns ? bucket->all_arrived_ns : bucket->posted_ns;
    double seconds = gs_seconds_of(bucket->finished_ns - bucket->posted_ns);
    double bandwidth = travelled(bucket) && seconds > 0 ? (double)bucket->bytes / seconds : 0;
    gs_report_bucket out = {.index = index,
                            .ready_position = (int32_t)position,
                            .bytes = bucket->bytes,
                            .travelled = travelled(bucket),
                            .ready = gs_seconds_of(bucket->ready_ns - origin_ns),
                            .algbw = bandwidth,
                            .busbw = bandwidth * 2 * (world_size - 1) / world_size};
    snprintf(out.algorithm, sizeof out.algorithm, "%s", bucket->algorithm ? bucket->algorithm : "none");
    if (!out.travelled) return out;
    out.launched = gs_seconds_of(bucket->posted_ns - origin_ns);
    out.arrived = gs_seconds_of(begin_ns - origin_ns);
    out.finished = gs_seconds_of(bucket->finished_ns - origin_ns);
    return out;
}

// Where in the order of readiness a bucket came, from 0.
static int64_t ready_position(const gs_reduce_stats *stats, size_t index) {
    int64_t position = 0, own_ns = stats->buckets[index].ready_ns;
    for (size_t i = 0; i < stats->num_buckets; i++) {
        int64_t other_ns = stats->buckets[i].ready_ns;
        position += other_ns < own_ns || (other_ns == own_ns && i < index);
    }
    return position;
}

static void tell_buckets(gs_step_report *report, gs_telemetry *telemetry) {
    const gs_reduce_stats *stats = telemetry->last.stats;
    if (!stats) return;
    gs_report_bucket *rows = telemetry->rows.buckets;
    size_t num_buckets = stats->num_buckets, single = num_buckets;
    if (num_buckets > GS_REPORT_MAX_BUCKETS) single = GS_REPORT_MAX_BUCKETS - 1;
    for (size_t i = 0; i < single; i++)
        rows[i] = tell_bucket(&stats->buckets[i], (int)i, ready_position(stats, i), stats->backward_begin_ns,
                              telemetry->world_size);
    report->num_buckets = single;
    if (single == num_buckets) return;
    gs_bucket_times rest = fold_buckets(stats, single);
    rows[report->num_buckets++] = tell_bucket(&rest, -1, -1, stats->backward_begin_ns, telemetry->world_size);
}

static void tell_totals(gs_step_report *report, const gs_telemetry_totals *totals) {
    const double values[] = {
        [GS_REPORT_ALL_STEPS] = (double)totals->steps,
        [GS_REPORT_ALL_TOKENS] = (double)totals->tokens,
        [GS_REPORT_ALL_SAMPLES] = (double)totals->samples,
        [GS_REPORT_ALL_SKIPPED_STEPS] = (double)totals->skipped_steps,
        [GS_REPORT_ALL_PAYLOAD_BYTES] = (double)totals->payload_bytes,
        [GS_REPORT_ALL_WIRE_BYTES] = (double)totals->wire_bytes,
        [GS_REPORT_ALL_COMM_BUSY] = totals->comm_busy_seconds,
        [GS_REPORT_ALL_COMM_EXPOSED] = totals->comm_exposed_seconds,
        [GS_REPORT_ALL_WAIT] = totals->wait_seconds,
        [GS_REPORT_ALL_STEP_SECONDS] = totals->step_seconds,
        [GS_REPORT_ALL_BLOCKED] = totals->blocked_seconds,
        [GS_REPORT_ALL_COPY_IN] = totals->copy_in_seconds,
        [GS_REPORT_ALL_COPY_OUT] = totals->copy_out_seconds,
        [GS_REPORT_ALL_ENCODE] = totals->encode_seconds,
        [GS_REPORT_ALL_DECODE] = totals->decode_seconds,
        [GS_REPORT_ALL_ORDER_MISMATCHES] = (double)totals->order_mismatches,
        [GS_REPORT_ALL_NONFINITE] = (double)totals->nonfinite,
        [GS_REPORT_ALL_DATA] = totals->phases.data,
        [GS_REPORT_ALL_FORWARD] = totals->phases.forward,
        [GS_REPORT_ALL_BACKWARD] = totals->phases.backward,
        [GS_REPORT_ALL_EXPOSED] = totals->phases.comm_exposed,
        [GS_REPORT_ALL_OPTIMIZER] = totals->phases.optimizer,
        [GS_REPORT_ALL_CHECKPOINT] = totals->phases.checkpoint,
    };
    _Static_assert(NUM_BOUNDS(values) == GS_NUM_REPORT_VALUES, "all totals");
    for (int i = GS_REPORT_FIRST_TOTAL; i < GS_NUM_REPORT_VALUES; i++)
        gs_step_report_set(report, (gs_report_value)i, values[i]);
}

static void tell_histogram(gs_step_report *report, gs_report_histogram_kind which, const gs_histogram *histogram,
                           size_t num_bounds) {
    report->num_bins[which] = (uint8_t)(num_bounds + 1);
    report->histograms[which] = *histogram;
}

static void tell_history(gs_step_report *report, gs_telemetry *telemetry) {
    report->num_history = (size_t)telemetry->num_in_report;
    for (int i = 0; i < telemetry->num_in_report; i++) {
        const gs_history_entry *entry = &telemetry->history[telemetry->num_told + i];
        telemetry->rows.history[i] = (gs_report_step){
            .step = entry->step,
            .known = (1u << GS_NUM_REPORT_POINTS) - 1,
            .points = {[GS_POINT_LOSS] = entry->loss,
                       [GS_POINT_GRAD_NORM] = entry->grad_norm,
                       [GS_POINT_LR] = entry->lr,
                       [GS_POINT_STEP_SECONDS] = entry->step_seconds,
                       [GS_POINT_TOKENS_PER_SECOND] = entry->tokens_per_second,
                       [GS_POINT_COMM_EXPOSED_SECONDS] = entry->comm_exposed_seconds,
                       [GS_POINT_OVERLAP_RATIO] = entry->overlap_ratio}};
    }
}

static void tell_evaluation(gs_step_report *report, const gs_evaluation *evaluation) {
    gs_step_report_set(report, GS_REPORT_EVAL_STEP, (double)evaluation->step);
    gs_step_report_set(report, GS_REPORT_EVAL_LOSS, evaluation->loss);
    if (evaluation->has_accuracy) gs_step_report_set(report, GS_REPORT_EVAL_ACCURACY, evaluation->accuracy);
    gs_step_report_set(report, GS_REPORT_EVAL_BATCHES, (double)evaluation->batches);
}

static void tell_phases(gs_step_report *report, const gs_step_phases *phases) {
    gs_step_report_set(report, GS_REPORT_DATA, phases->data);
    gs_step_report_set(report, GS_REPORT_FORWARD, phases->forward);
    gs_step_report_set(report, GS_REPORT_BACKWARD, phases->backward);
    gs_step_report_set(report, GS_REPORT_COMM_EXPOSED, phases->comm_exposed);
    gs_step_report_set(report, GS_REPORT_OPTIMIZER, phases->optimizer);
    gs_step_report_set(report, GS_REPORT_CHECKPOINT, phases->checkpoint);
}

static void tell_reduction(gs_step_report *report, const gs_telemetry *telemetry) {
    const gs_step_facts *last = &telemetry->last;
    if (!last->stats) return;
    gs_step_report_set(report, GS_REPORT_PAYLOAD_BYTES, (double)telemetry->payload_bytes);
    gs_step_report_set(report, GS_REPORT_WIRE_BYTES, (double)telemetry->wire_bytes);
    if (last->stats->elements) {
        gs_step_report_set(report, GS_REPORT_ELEMENTS, (double)last->stats->elements);
        gs_step_report_set(report, GS_REPORT_ELEMENTS_SENT, (double)last->stats->elements_sent);
    }
    if (telemetry->knows_residuals) gs_step_report_set(report, GS_REPORT_ERROR_FEEDBACK_NORM, telemetry->residual_norm);
    gs_step_report_set(report, GS_REPORT_UNUSED_PARAMETERS, (double)last->stats->num_unused);
    gs_step_report_set(report, GS_REPORT_UNUSED_BYTES, (double)last->stats->unused_bytes);
    gs_step_report_set(report, GS_REPORT_COULD_BE_STATIC, last->could_be_static);
}

static void tell_last_step(gs_step_report *report, const gs_telemetry *telemetry) {
    const gs_step_facts *last = &telemetry->last;
    gs_step_report_set(report, GS_REPORT_LOSS, last->loss);
    gs_step_report_set(report, GS_REPORT_GRAD_NORM, last->grad_norm);
    gs_step_report_set(report, GS_REPORT_LR, last->lr);
    if (last->loss_scale > 0) gs_step_report_set(report, GS_REPORT_LOSS_SCALE, last->loss_scale);
    gs_step_report_set(report, GS_REPORT_SAMPLES, (double)last->samples);
    gs_step_report_set(report, GS_REPORT_TOKENS, (double)(last->samples * last->positions));
    gs_step_report_set(report, GS_REPORT_STEP_SECONDS, telemetry->step_seconds);
    gs_step_report_set(report, GS_REPORT_TOKENS_PER_SECOND, tokens_per_second(telemetry));
    tell_phases(report, &last->phases);
    gs_step_report_set(report, GS_REPORT_COMM_BUSY_SECONDS, telemetry->comm_busy_seconds);
    gs_step_report_set(report, GS_REPORT_COMM_EXPOSED_SECONDS, telemetry->comm_exposed_seconds);
    gs_step_report_set(report, GS_REPORT_OVERLAP_RATIO, telemetry->overlap_ratio);
    gs_step_report_set(report, GS_REPORT_WAIT_SECONDS, telemetry->wait_seconds);
    gs_step_report_set(report, GS_REPORT_BACKWARD_SECONDS, telemetry->backward_seconds);
    tell_reduction(report, telemetry);
}

gs_step_report gs_telemetry_report(gs_telemetry *telemetry, bool with_history) {
    gs_step_report report = {.generation = telemetry->generation,
                             .rank = telemetry->rank,
                             .step = telemetry->applied_step,
                             .buckets = telemetry->rows.buckets,
                             .waits = telemetry->waits,
                             .num_waits = (size_t)telemetry->num_waits,
                             .history = telemetry->rows.history};
    tell_last_step(&report, telemetry);
    tell_buckets(&report, telemetry);
    tell_totals(&report, &telemetry->totals);
    tell_histogram(&report, GS_REPORT_STEPS, &telemetry->step_histogram, NUM_BOUNDS(gs_step_bounds));
    tell_histogram(&report, GS_REPORT_REDUCES, &telemetry->reduce_histogram, NUM_BOUNDS(gs_reduce_bounds));
    tell_histogram(&report, GS_REPORT_QUEUES, &telemetry->queue_histogram, NUM_BOUNDS(gs_reduce_bounds));
    int waiting = telemetry->num_history - telemetry->num_told;
    telemetry->num_in_report = waiting < GS_REPORT_MAX_HISTORY ? waiting : GS_REPORT_MAX_HISTORY;
    if (with_history) tell_history(&report, telemetry);
    else telemetry->num_in_report = waiting;
    if (telemetry->has_evaluation) tell_evaluation(&report, &telemetry->evaluation);
    telemetry->reported_ns = gs_now_ns();
    return report;
}

void gs_telemetry_note_heard(gs_telemetry *telemetry, bool heard) {
    if (heard) {
        telemetry->num_told += telemetry->num_in_report;
        telemetry->has_evaluation = false;
    } else if (!telemetry->unheard) {
        int again = telemetry->num_told < GS_REPORT_MAX_HISTORY ? telemetry->num_told : GS_REPORT_MAX_HISTORY;
        telemetry->num_told -= again;
    }
    telemetry->num_in_report = 0;
    telemetry->unheard = !heard;
}

bool gs_telemetry_waits(const gs_telemetry *telemetry) {
    return telemetry->num_told < telemetry->num_history || telemetry->has_evaluation;
}
