#include "worker/telemetry/link_watch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "worker/telemetry/link_timing.h"

// Of each weight this is left when another comes.
#define FADING 0.98
// What takes that many times as long as expected was held up by something else than the link; GS_LINK_MOST_HELD_UP in a row were not.
#define OUTLIER 5
#define ENOUGH_SAMPLES 8
// Sizes that differ by less than that, squared, are one.
#define ONE_SIZE 1e-9
// What the small one of the calibration weighs beside a train: it decides where trains leave the start open, and is overruled where they do not.
#define ANCHOR_SHARE 0.05
#define NINE_OF_TEN 1.645
#define LEAST_SECONDS 1e-6
#define LEAST_BYTE_SECONDS 1e-13
// The next size of the calibration is left out where one of it would take longer.
#define MOST_CALIBRATION_SECONDS 0.4
#define MOST_CALIBRATION_BYTES 4194304
#define MOST_REPEATS 12
// Of each of the sums by which shares are compared.
#define MOST_TRIAL_SECONDS 0.25
#define LEAST_TRIAL_BYTES 262144
#define FIRST_SHARE 3
#define SECOND_SHARE 10
#define SHARE_EVERY 100
// Of each rank's connections the slowest are told.
#define MAX_PEERS 15
#define PEER_NUMBERS 4

static double expected(const gs_link_fit *fit, double count, double bytes) {
    return count * fit->cost.start_seconds + fit->cost.byte_seconds * bytes;
}

static double determinant(const gs_link_fit *fit) {
    return fit->weight * fit->xx - fit->x * fit->x;
}

static void solve(gs_link_fit *fit) {
    double width = determinant(fit);
    // All of one size: what is known of the start stays, and the rest is the bytes'.
    if (width <= ONE_SIZE * fit->weight * fit->xx) {
        if (fit->x > 0) fit->cost.byte_seconds = (fit->y - fit->weight * fit->cost.start_seconds) / fit->x;
    } else {
        fit->cost.start_seconds = (fit->xx * fit->y - fit->x * fit->xy) / width;
        fit->cost.byte_seconds = (fit->weight * fit->xy - fit->x * fit->y) / width;
    }
    if (!(fit->cost.start_seconds > LEAST_SECONDS)) fit->cost.start_seconds = LEAST_SECONDS;
    if (!(fit->cost.byte_seconds > LEAST_BYTE_SECONDS)) fit->cost.byte_seconds = LEAST_BYTE_SECONDS;
}

static void weigh(gs_link_fit *fit, const gs_link_sample *one, double weight) {
    fit->weight += weight * one->count * one->count;
    fit->x += weight * one->count * one->bytes;
    fit->xx += weight * one->bytes * one->bytes;
    fit->y += weight * one->count * one->seconds;
    fit->xy += weight * one->bytes * one->seconds;
}

static void fade(gs_link_fit *fit) {
    fit->weight *= FADING;
    fit->x *= FADING;
    fit->xx *= FADING;
    fit->y *= FADING;
    fit->xy *= FADING;
}

static void count_in(gs_link_fit *fit, const gs_link_sample *one) {
    double guess = fit->num_samples ? expected(fit, one->count, one->bytes) : one->seconds;
    // What several of them in flight hide of each other must not weigh more than it is.
    double scale = guess > one->seconds ? guess : one->seconds;
    const gs_link_sample *anchor = &fit->anchor;
    fade(fit);
    weigh(fit, one, 1 / (scale * scale));
    if (one->count > 1 && anchor->count > 0) weigh(fit, anchor, ANCHOR_SHARE / (anchor->seconds * anchor->seconds));
    if (!fit->num_samples) fit->cost = (gs_link_cost){one->seconds / one->count, LEAST_BYTE_SECONDS};
    double off = (one->seconds - guess) / scale;
    fit->spread = fit->num_samples ? FADING * fit->spread + (1 - FADING) * off * off : 0;
    fit->num_samples++;
    solve(fit);
}

void gs_link_fit_calibrate(gs_link_fit *fit, double bytes, double seconds) {
    if (!(seconds > 0) || !(bytes >= 0)) return;
    const gs_link_sample one = {1, bytes, seconds};
    if (!fit->anchor.count || bytes < fit->anchor.bytes || (bytes == fit->anchor.bytes && seconds < fit->anchor.seconds)) fit->anchor = one;
    count_in(fit, &one);
}

// The link is another one now. Where all of these have one size its start is what was known of it.
static void begin_anew(gs_link_fit *fit) {
    gs_link_fit fresh = {0};
    for (int i = 0; i < fit->num_held_up; i++) {
        count_in(&fresh, &fit->held_up[i]);
        if (i) continue;
        fresh.cost.start_seconds = fit->cost.start_seconds;
        solve(&fresh);
    }
    *fit = fresh;
}

void gs_link_fit_add_train(gs_link_fit *fit, double count, double bytes, double seconds) {
    if (!(seconds > 0) || !(bytes >= 0) || !(count >= 1)) return;
    const gs_link_sample one = {count, bytes, seconds};
    if (fit->num_samples < ENOUGH_SAMPLES || seconds <= OUTLIER * expected(fit, count, bytes)) {
        fit->num_held_up = 0;
        count_in(fit, &one);
        return;
    }
    fit->held_up[fit->num_held_up++] = one;
    // It was off by nearly all that it took: the range says that there are such.
    fit->spread = FADING * fit->spread + (1 - FADING);
    if (fit->num_held_up == GS_LINK_MOST_HELD_UP) begin_anew(fit);
}

void gs_link_fit_add(gs_link_fit *fit, double bytes, double seconds) {
    gs_link_fit_add_train(fit, 1, bytes, seconds);
}

static double not_below(double value, double least) {
    return value > least ? value : least;
}

gs_link_model gs_link_fit_model(const gs_link_fit *fit) {
    if (fit->num_samples < ENOUGH_SAMPLES || !(fit->x > 0)) return (gs_link_model){0};
    // Of one size it is not known what is start and what is bytes: each may be all of it.
    double width = not_below(determinant(fit), ONE_SIZE * fit->weight * fit->xx), most_start = fit->y / fit->weight, most_byte = fit->y / fit->x;
    gs_link_cost off = {NINE_OF_TEN * sqrt(fit->spread * fit->xx / width), NINE_OF_TEN * sqrt(fit->spread * fit->weight / width)};
    if (off.start_seconds > most_start) off.start_seconds = most_start;
    if (off.byte_seconds > most_byte) off.byte_seconds = most_byte;
    gs_link_cost cost = fit->cost;
    return (gs_link_model){
        .cost = cost,
        .low = {not_below(cost.start_seconds - off.start_seconds, 0), not_below(cost.byte_seconds - off.byte_seconds, 0)},
        .high = {cost.start_seconds + off.start_seconds, cost.byte_seconds + off.byte_seconds},
        .wire_ratio = 1,
        .num_samples = fit->num_samples};
}

static bool crosses_hosts(const gs_comm *comm) {
    static const char *const within[] = {"self", "shm", "nccl"};
    for (size_t i = 0; i < sizeof within / sizeof within[0]; i++) {
        if (!strcmp(gs_comm_backend_name(comm), within[i])) return false;
    }
    // What is computed on a GPU is timed where the host enqueues it: gradients are not ready then.
    return gs_comm_world_size(comm) > 1 && gs_device_is_host(gs_comm_device(comm));
}

// Connections begin slowly, and the longer the way is the longer they do: until a size gets no quicker by a tenth. All
// ranks hear the same times, and decide alike.
static gs_status time_sizes(gs_link_watch *watch, float *memory, double timeout_seconds) {
    static const size_t sizes[] = {4096, 262144, MOST_CALIBRATION_BYTES};
    double total = 0, seconds = 0;
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        double last = 0, before = 0;
        if (s && seconds * (double)sizes[s] / (double)sizes[s - 1] > 4 * MOST_CALIBRATION_SECONDS) return gs_ok();
        for (int i = 0; i < MOST_REPEATS && (i < 3 || seconds < 0.9 * last); i++) {
            before = last;
            last = seconds;
            GS_TRY(gs_link_time_sum(&seconds, watch->comm, memory, sizes[s], timeout_seconds));
            total += seconds;
            if (i > 1 && total > MOST_CALIBRATION_SECONDS) break;
        }
        watch->trial_bytes = sizes[s];
        // The quickest twice: what held another one up was not the link.
        double quickest = seconds < last ? seconds : last;
        const double kept[] = {quickest, before < quickest ? before : quickest, seconds};
        for (size_t k = 0; k < 3; k++) gs_link_fit_calibrate(&watch->fit, (double)sizes[s], kept[k]);
    }
    return gs_ok();
}

static gs_status calibrate(gs_link_watch *watch, double timeout_seconds) {
    float *memory = calloc(1, MOST_CALIBRATION_BYTES);
    if (!memory) return gs_error(GS_RESOURCE_EXHAUSTED, "link: out of memory");
    gs_status status = time_sizes(watch, memory, timeout_seconds);
    free(memory);
    if (watch->trial_bytes < LEAST_TRIAL_BYTES) watch->trial_bytes = LEAST_TRIAL_BYTES;
    while (watch->trial_bytes > LEAST_TRIAL_BYTES && expected(&watch->fit, 1, (double)watch->trial_bytes) > MOST_TRIAL_SECONDS)
        watch->trial_bytes /= 2;
    return status;
}

// Other shares are another link: what collectives took before says nothing.
static gs_status balance(gs_link_watch *watch, double timeout_seconds) {
    bool changed = false;
    GS_TRY(gs_link_balance_consider(&watch->balance, &changed, watch->comm, watch->trial_bytes, timeout_seconds));
    if (!changed) return gs_ok();
    watch->fit = (gs_link_fit){0};
    return calibrate(watch, timeout_seconds);
}

gs_status gs_link_watch_begin(gs_link_watch *out, gs_comm *comm, size_t num_params, double timeout_seconds) {
    *out = (gs_link_watch){0};
    if (!crosses_hosts(comm)) return gs_ok();
    size_t num_shared = num_params + (size_t)gs_comm_world_size(comm) * MAX_PEERS * PEER_NUMBERS;
    gs_link_watch watch = {.comm = comm, .num_params = num_params};
    watch.ready = calloc(GS_LINK_RING * num_params + 1, sizeof *watch.ready);
    watch.shared = calloc(num_shared, sizeof *watch.shared);
    gs_status status = watch.ready && watch.shared ? calibrate(&watch, timeout_seconds) : gs_error(GS_RESOURCE_EXHAUSTED, "link: out of memory");
    if (!status.code) status = balance(&watch, timeout_seconds);
    if (status.code) {
        gs_link_watch_end(&watch);
        return gs_status_prefix(status, "calibration of the link");
    }
    if (gs_comm_rank(comm) == 0)
        gs_log_info("link measured", "rank=0 backend=%s start_us=%.1f megabytes_per_second=%.1f", gs_comm_backend_name(comm),
                    1e6 * watch.fit.cost.start_seconds, 1e-6 / watch.fit.cost.byte_seconds);
    *out = watch;
    return gs_ok();
}

void gs_link_watch_end(gs_link_watch *watch) {
    free(watch->ready);
    free(watch->shared);
    *watch = (gs_link_watch){0};
}

static void end_train(gs_link_watch *watch, gs_link_sample *train, int64_t begin_ns, int64_t end_ns) {
    if (train->count > 0) gs_link_fit_add_train(&watch->fit, train->count, train->bytes, (double)(end_ns - begin_ns) / 1e9);
    *train = (gs_link_sample){0};
}

// Several buckets are on their way at a time: when one of them ends most of the next one has come, too, so what lay between the ends of
// two says nothing. Of those that follow without a gap the whole is honest: a train, from when all ranks had its first to when its last was here.
static void note_buckets(gs_link_watch *watch, const gs_reduce_stats *stats) {
    gs_link_sample train = {0};
    int64_t train_ns = 0, free_ns = 0;
    for (size_t i = 0; i < stats->num_buckets; i++) {
        const gs_bucket_times *times = &stats->buckets[i];
        if (!times->finished_ns || !times->posted_ns) continue;
        int64_t begin_ns = times->all_arrived_ns > times->posted_ns ? times->all_arrived_ns : times->posted_ns;
        if (begin_ns > free_ns) {
            end_train(watch, &train, train_ns, free_ns);
            train_ns = begin_ns;
        }
        train.count++;
        train.bytes += (double)times->wire_bytes;
        if (times->finished_ns > free_ns) free_ns = times->finished_ns;
        watch->bytes += (double)times->bytes;
        watch->wire_bytes += (double)times->wire_bytes;
    }
    end_train(watch, &train, train_ns, free_ns);
}

void gs_link_watch_note(gs_link_watch *watch, const gs_reduce_stats *stats) {
    if (!watch->comm) return;
    int64_t now_ns = gs_now_ns();
    if (watch->last_end_ns) {
        double seconds = (double)(now_ns - watch->last_end_ns) / 1e9;
        watch->step_seconds = watch->step_seconds > 0 ? 0.8 * watch->step_seconds + 0.2 * seconds : seconds;
    }
    watch->last_end_ns = now_ns;
    watch->num_steps++;
    note_buckets(watch, stats);
    if (!stats->param_ready_ns) return;
    double *row = watch->ready + (size_t)(watch->num_rows % GS_LINK_RING) * watch->num_params;
    for (size_t i = 0; i < watch->num_params; i++)
        row[i] = stats->param_ready_ns[i] < 0 ? -1 : (double)stats->param_ready_ns[i] / 1e9;
    watch->num_rows++;
}

bool gs_link_watch_is_due(const gs_link_watch *watch) {
    int64_t steps = watch->num_steps;
    if (!watch->comm || steps == watch->shared_step) return false;
    return steps == FIRST_SHARE || steps == SECOND_SHARE || (steps > SECOND_SHARE && (steps - SECOND_SHARE) % SHARE_EVERY == 0);
}

// The second largest of the ring: of many steps one is held up by something.
static double usual_ready(const gs_link_watch *watch, size_t param) {
    int rows = watch->num_rows < GS_LINK_RING ? watch->num_rows : GS_LINK_RING;
    double most = -1, second = -1;
    for (int k = 0; k < rows; k++) {
        double ready = watch->ready[(size_t)k * watch->num_params + param];
        if (ready > most) {
            second = most;
            most = ready;
        } else if (ready > second) {
            second = ready;
        }
    }
    return rows >= 3 && second >= 0 ? second : most;
}

// A place of the table: the peer's rank + 1, latency, seconds for a byte, segments sent again; zeros: nothing.
static double *place_of(gs_link_watch *watch, int rank, int number) {
    return watch->shared + watch->num_params + ((size_t)rank * MAX_PEERS + (size_t)number) * PEER_NUMBERS;
}

static void tell_peers(gs_link_watch *watch) {
    int rank = gs_comm_rank(watch->comm), num_told = 0;
    for (int peer = 0; peer < gs_comm_world_size(watch->comm); peer++) {
        gs_comm_link link = {0};
        if (peer == rank || !gs_comm_peer_link(watch->comm, peer, &link)) continue;
        double latency = (double)(link.least_round_trip_ns > 0 ? link.least_round_trip_ns : link.round_trip_ns) / 1e9;
        double *place = NULL;
        if (num_told < MAX_PEERS) {
            place = place_of(watch, rank, num_told++);
        } else {  // in the place of the quickest
            for (int k = 0; k < MAX_PEERS; k++) {
                double *other = place_of(watch, rank, k);
                if (other[1] < latency && (!place || other[1] < place[1])) place = other;
            }
        }
        if (!place) continue;
        place[0] = peer + 1;
        place[1] = latency;
        place[2] = link.bytes_per_sec > 0 ? 1 / link.bytes_per_sec : 0;
        place[3] = (double)link.retransmits;
    }
}

static gs_link_pair *find_pair(gs_link_report *out, int from, int to) {
    for (size_t i = 0; i < out->num_pairs; i++) {
        if (out->pairs[i].from == from && out->pairs[i].to == to) return &out->pairs[i];
    }
    return NULL;
}

static gs_link_pair *room_for(gs_link_report *out, double latency) {
    if (out->num_pairs < GS_LINK_MAX_PAIRS) return &out->pairs[out->num_pairs++];
    gs_link_pair *least = &out->pairs[0];
    for (size_t i = 1; i < out->num_pairs; i++) {
        if (out->pairs[i].latency_seconds < least->latency_seconds) least = &out->pairs[i];
    }
    return least->latency_seconds < latency ? least : NULL;
}

static void hear_peers(gs_link_watch *watch, gs_link_report *out) {
    for (int rank = 0; rank < gs_comm_world_size(watch->comm); rank++) {
        for (int k = 0; k < MAX_PEERS; k++) {
            const double *place = place_of(watch, rank, k);
            int peer = (int)place[0] - 1;
            if (peer < 0) continue;
            int from = rank < peer ? rank : peer, to = rank < peer ? peer : rank;
            gs_link_pair *pair = find_pair(out, from, to);
            double rate = place[2] > 0 ? 1 / place[2] : 0;
            if (pair) {  // told by both ends
                if (place[1] > pair->latency_seconds) pair->latency_seconds = place[1];
                if (rate > 0 && (pair->bytes_per_second == 0 || rate < pair->bytes_per_second)) pair->bytes_per_second = rate;
                pair->retransmitted += (int64_t)place[3];
            } else if ((pair = room_for(out, place[1]))) {
                *pair = (gs_link_pair){from, to, place[1], rate, (int64_t)place[3]};
            }
        }
    }
}

gs_status gs_link_watch_share(gs_link_watch *watch, gs_link_report *out, double timeout_seconds) {
    size_t num_shared = watch->num_params + (size_t)gs_comm_world_size(watch->comm) * MAX_PEERS * PEER_NUMBERS;
    double last = -1;
    *out = (gs_link_report){0};
    watch->shared_step = watch->num_steps;
    memset(watch->shared, 0, num_shared * sizeof *watch->shared);
    for (size_t i = 0; i < watch->num_params; i++) watch->shared[i] = usual_ready(watch, i);
    tell_peers(watch);
    GS_TRY(gs_status_prefix(gs_link_agree_on_most(watch->comm, watch->shared, num_shared, timeout_seconds), "times of the link"));
    GS_TRY(gs_status_prefix(balance(watch, timeout_seconds), "shares of ranks"));
    for (size_t i = 0; i < watch->num_params; i++) {
        if (watch->shared[i] > last) last = watch->shared[i];
    }
    if (last >= 0) {  // else nobody has timed a step
        out->ready_seconds = malloc((watch->num_params + 1) * sizeof *out->ready_seconds);
        if (!out->ready_seconds) return gs_error(GS_RESOURCE_EXHAUSTED, "link: out of memory");
        memcpy(out->ready_seconds, watch->shared, watch->num_params * sizeof *out->ready_seconds);
        out->num_params = watch->num_params;
    }
    out->deal = watch->balance.deal;
    out->model = gs_link_fit_model(&watch->fit);
    out->model.wire_ratio = watch->bytes > 0 ? watch->wire_bytes / watch->bytes : 1;
    out->model.step_seconds = watch->step_seconds;
    watch->bytes = watch->wire_bytes = 0;
    hear_peers(watch, out);
    watch->last_end_ns = 0;  // what it took is no part of a step
    return gs_ok();
}
