#include "worker/telemetry/telemetry.h"

#include <string.h>

#include "core/clock.h"

#define REPORT_EVERY_NS (100 * GS_NS_PER_MS)
#define NUM_BOUNDS(bounds) (sizeof(bounds) / sizeof((bounds)[0]))

void gs_telemetry_init(gs_telemetry *telemetry, uint32_t generation, int rank, int world_size) {
    *telemetry = (gs_telemetry){.generation = generation,
                                .rank = rank,
                                .world_size = world_size,
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
    int repeated = telemetry->unheard ? 0 : GS_REPORTED_STEPS;
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
    while (stride < 1024 && (double)stride * usual * GS_REPORTED_WAITS < gs_seconds_of(REPORT_EVERY_NS)) {
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
    if (telemetry->num_waits == GS_REPORTED_WAITS) {
        telemetry->num_waits--;
        memmove(telemetry->waits, telemetry->waits + 1,
                (size_t)telemetry->num_waits * sizeof telemetry->waits[0]);
    }
    telemetry->waits[telemetry->num_waits++] =
        (gs_step_waits){.step = facts->step,
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
    return gs_now_ns() - telemetry->reported_ns >= REPORT_EVERY_NS;
}

static gs_json *encode_phases(const gs_step_phases *phases) {
    gs_json *out = gs_json_new_object();
    gs_json_set_double(out, "data", phases->data);
    gs_json_set_double(out, "forward", phases->forward);
    gs_json_set_double(out, "backward", phases->backward);
    gs_json_set_double(out, "comm_exposed", phases->comm_exposed);
    gs_json_set_double(out, "optimizer", phases->optimizer);
    gs_json_set_double(out, "checkpoint", phases->checkpoint);
    return out;
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

// Bandwidth counts from when everybody was there: waiting for a slow rank is not the network's.
static gs_json *encode_bucket(const gs_bucket_times *bucket, int index, int64_t origin_ns,
                              int world_size) {
    gs_json *out = gs_json_new_object();
    int64_t begin_ns =
        bucket->all_arrived_ns > bucket->posted_ns ? bucket->all_arrived_ns : bucket->posted_ns;
    double seconds = gs_seconds_of(bucket->finished_ns - begin_ns);
    double bandwidth = travelled(bucket) && seconds > 0 ? (double)bucket->bytes / seconds : 0;
    gs_json_set_int(out, "index", index);
    gs_json_set_int(out, "bytes", (int64_t)bucket->bytes);
    gs_json_set_string(out, "algorithm", bucket->algorithm ? bucket->algorithm : "none");
    gs_json_set_double(out, "ready_seconds", gs_seconds_of(bucket->ready_ns - origin_ns));
    if (travelled(bucket)) {
        gs_json_set_double(out, "launched_seconds", gs_seconds_of(bucket->posted_ns - origin_ns));
        gs_json_set_double(out, "arrived_seconds", gs_seconds_of(begin_ns - origin_ns));
        gs_json_set_double(out, "finished_seconds", gs_seconds_of(bucket->finished_ns - origin_ns));
    }
    gs_json_set_double(out, "algbw_bytes_per_second", bandwidth);
    gs_json_set_double(out, "busbw_bytes_per_second",
                       bandwidth * 2 * (world_size - 1) / world_size);
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

static gs_json *encode_buckets(const gs_telemetry *telemetry) {
    gs_json *out = gs_json_new_array();
    const gs_reduce_stats *stats = telemetry->last.stats;
    if (!stats) return out;
    size_t num_buckets = stats->num_buckets, single = num_buckets;
    if (num_buckets > GS_REPORTED_BUCKETS) single = GS_REPORTED_BUCKETS - 1;
    for (size_t i = 0; i < single; i++) {
        gs_json *bucket = encode_bucket(&stats->buckets[i], (int)i, stats->backward_begin_ns,
                                        telemetry->world_size);
        gs_json_set_int(bucket, "ready_position", ready_position(stats, i));
        gs_json_push(out, bucket);
    }
    if (single < num_buckets) {
        gs_bucket_times rest = fold_buckets(stats, single);
        gs_json_push(out,
                     encode_bucket(&rest, -1, stats->backward_begin_ns, telemetry->world_size));
    }
    return out;
}

static gs_json *encode_totals(const gs_telemetry_totals *totals) {
    gs_json *out = gs_json_new_object();
    gs_json_set_int(out, "steps", totals->steps);
    gs_json_set_int(out, "tokens", totals->tokens);
    gs_json_set_int(out, "samples", totals->samples);
    gs_json_set_int(out, "skipped_steps", totals->skipped_steps);
    gs_json_set_int(out, "payload_bytes", (int64_t)totals->payload_bytes);
    gs_json_set_int(out, "wire_bytes", (int64_t)totals->wire_bytes);
    gs_json_set_double(out, "comm_busy_seconds", totals->comm_busy_seconds);
    gs_json_set_double(out, "comm_exposed_seconds", totals->comm_exposed_seconds);
    gs_json_set_double(out, "wait_seconds", totals->wait_seconds);
    gs_json_set_double(out, "step_seconds", totals->step_seconds);
    gs_json_set_double(out, "blocked_seconds", totals->blocked_seconds);
    gs_json_set_double(out, "copy_in_seconds", totals->copy_in_seconds);
    gs_json_set_double(out, "copy_out_seconds", totals->copy_out_seconds);
    gs_json_set_double(out, "encode_seconds", totals->encode_seconds);
    gs_json_set_double(out, "decode_seconds", totals->decode_seconds);
    gs_json_set_int(out, "order_mismatches", (int64_t)totals->order_mismatches);
    gs_json_set_int(out, "nonfinite", totals->nonfinite);
    gs_json_set(out, "phases", encode_phases(&totals->phases));
    return out;
}

static gs_json *encode_histogram(const gs_histogram *histogram, size_t num_bounds) {
    gs_json *out = gs_json_new_object(), *counts = gs_json_new_array();
    for (size_t i = 0; i <= num_bounds; i++) {
        gs_json_push(counts, gs_json_new_int((int64_t)histogram->counts[i]));
    }
    gs_json_set(out, "counts", counts);
    gs_json_set_double(out, "sum", histogram->sum);
    return out;
}

static gs_json *encode_history(const gs_telemetry *telemetry) {
    gs_json *out = gs_json_new_array();
    for (int i = 0; i < telemetry->num_in_report; i++) {
        const gs_history_entry *entry = &telemetry->history[telemetry->num_told + i];
        gs_json *row = gs_json_new_object();
        gs_json_set_int(row, "step", entry->step);
        gs_json_set_double(row, "loss", entry->loss);
        gs_json_set_double(row, "grad_norm", entry->grad_norm);
        gs_json_set_double(row, "lr", entry->lr);
        gs_json_set_double(row, "step_seconds", entry->step_seconds);
        gs_json_set_double(row, "tokens_per_second", entry->tokens_per_second);
        gs_json_set_double(row, "comm_exposed_seconds", entry->comm_exposed_seconds);
        gs_json_set_double(row, "overlap_ratio", entry->overlap_ratio);
        gs_json_push(out, row);
    }
    return out;
}

static gs_json *encode_waits(const gs_telemetry *telemetry) {
    gs_json *out = gs_json_new_array();
    for (int i = 0; i < telemetry->num_waits; i++) {
        const gs_step_waits *waits = &telemetry->waits[i];
        const double values[] = {waits->compute, waits->wait, waits->transfer, waits->data,
                                 waits->step_seconds};
        gs_json *row = gs_json_new_array();
        gs_json_push(row, gs_json_new_int(waits->step));
        for (size_t k = 0; k < NUM_BOUNDS(values); k++) {
            gs_json_push(row, gs_json_new_double(values[k]));
        }
        gs_json_push(out, row);
    }
    return out;
}

static gs_json *encode_evaluation(const gs_evaluation *evaluation) {
    gs_json *out = gs_json_new_object();
    gs_json_set_int(out, "step", evaluation->step);
    gs_json_set_double(out, "loss", evaluation->loss);
    if (evaluation->has_accuracy) gs_json_set_double(out, "accuracy", evaluation->accuracy);
    gs_json_set_int(out, "batches", evaluation->batches);
    return out;
}

static void set_last_step(gs_json *out, const gs_telemetry *telemetry) {
    const gs_step_facts *last = &telemetry->last;
    gs_json_set_int(out, "generation", telemetry->generation);
    gs_json_set_int(out, "rank", telemetry->rank);
    gs_json_set_int(out, "step", telemetry->applied_step);
    gs_json_set_double(out, "loss", last->loss);
    gs_json_set_double(out, "grad_norm", last->grad_norm);
    gs_json_set_double(out, "lr", last->lr);
    if (last->loss_scale > 0) gs_json_set_double(out, "loss_scale", last->loss_scale);
    gs_json_set_int(out, "samples", last->samples);
    gs_json_set_int(out, "tokens", last->samples * last->positions);
    gs_json_set_double(out, "step_seconds", telemetry->step_seconds);
    gs_json_set_double(out, "tokens_per_second", tokens_per_second(telemetry));
    gs_json_set(out, "phases", encode_phases(&last->phases));
    gs_json_set_double(out, "comm_busy_seconds", telemetry->comm_busy_seconds);
    gs_json_set_double(out, "comm_exposed_seconds", telemetry->comm_exposed_seconds);
    gs_json_set_double(out, "overlap_ratio", telemetry->overlap_ratio);
    gs_json_set_double(out, "wait_seconds", telemetry->wait_seconds);
    gs_json_set_double(out, "backward_seconds", telemetry->backward_seconds);
    if (!last->stats) return;
    gs_json_set_int(out, "payload_bytes", (int64_t)telemetry->payload_bytes);
    gs_json_set_int(out, "wire_bytes", (int64_t)telemetry->wire_bytes);
    if (last->stats->elements) {
        gs_json_set_int(out, "elements", (int64_t)last->stats->elements);
        gs_json_set_int(out, "elements_sent", (int64_t)last->stats->elements_sent);
    }
    if (telemetry->knows_residuals)
        gs_json_set_double(out, "error_feedback_norm", telemetry->residual_norm);
    gs_json_set_int(out, "unused_parameters", (int64_t)last->stats->num_unused);
    gs_json_set_int(out, "unused_bytes", (int64_t)last->stats->unused_bytes);
    gs_json_set_bool(out, "could_be_static", last->could_be_static);
}

gs_json *gs_telemetry_report(gs_telemetry *telemetry, bool with_history) {
    gs_json *out = gs_json_new_object();
    set_last_step(out, telemetry);
    gs_json_set(out, "buckets", encode_buckets(telemetry));
    gs_json_set(out, "totals", encode_totals(&telemetry->totals));
    gs_json_set(out, "step_histogram",
                encode_histogram(&telemetry->step_histogram, NUM_BOUNDS(gs_step_bounds)));
    gs_json_set(out, "reduce_histogram",
                encode_histogram(&telemetry->reduce_histogram, NUM_BOUNDS(gs_reduce_bounds)));
    gs_json_set(out, "queue_histogram",
                encode_histogram(&telemetry->queue_histogram, NUM_BOUNDS(gs_reduce_bounds)));
    gs_json_set(out, "waits", encode_waits(telemetry));
    int waiting = telemetry->num_history - telemetry->num_told;
    telemetry->num_in_report = waiting < GS_REPORTED_STEPS ? waiting : GS_REPORTED_STEPS;
    if (with_history) gs_json_set(out, "history", encode_history(telemetry));
    else telemetry->num_in_report = waiting;
    if (telemetry->has_evaluation) {
        gs_json_set(out, "eval", encode_evaluation(&telemetry->evaluation));
    }
    telemetry->reported_ns = gs_now_ns();
    return out;
}

void gs_telemetry_note_heard(gs_telemetry *telemetry, bool heard) {
    if (heard) {
        telemetry->num_told += telemetry->num_in_report;
        telemetry->has_evaluation = false;
    } else if (!telemetry->unheard) {
        int again = telemetry->num_told < GS_REPORTED_STEPS ? telemetry->num_told : GS_REPORTED_STEPS;
        telemetry->num_told -= again;
    }
    telemetry->num_in_report = 0;
    telemetry->unheard = !heard;
}

bool gs_telemetry_waits(const gs_telemetry *telemetry) {
    return telemetry->num_told < telemetry->num_history || telemetry->has_evaluation;
}
