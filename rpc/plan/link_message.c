#include "rpc/plan/link_message.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MICROS 1e6
#define MOST_PARAMS 1000000
// No link is slower than a byte in a second, no collective takes longer to start, and no rank has such a number.
#define MOST_SECONDS 1e6
#define MOST_RANK 65536
#define MOST_RATE 1e15

void gs_link_report_release(gs_link_report *report) {
    free(report->ready_seconds);
    *report = (gs_link_report){0};
}

void gs_link_report_copy(gs_link_report *out, const gs_link_report *report) {
    gs_link_report copy = *report;
    copy.ready_seconds = NULL;
    if (report->ready_seconds) {
        copy.ready_seconds = malloc((report->num_params + 1) * sizeof *copy.ready_seconds);
        if (!copy.ready_seconds) abort();
        memcpy(copy.ready_seconds, report->ready_seconds, report->num_params * sizeof *copy.ready_seconds);
    }
    gs_link_report_release(out);
    *out = copy;
}

static bool deals_equal(const gs_link_deal *a, const gs_link_deal *b) {
    return a->num_ranks == b->num_ranks && !memcmp(a->shares, b->shares, (size_t)a->num_ranks * sizeof *a->shares);
}

bool gs_link_report_equal(const gs_link_report *a, const gs_link_report *b) {
    return a->num_params == b->num_params && a->model.num_samples == b->model.num_samples &&
           a->model.cost.start_seconds == b->model.cost.start_seconds &&
           a->model.cost.byte_seconds == b->model.cost.byte_seconds && !a->ready_seconds == !b->ready_seconds && deals_equal(&a->deal, &b->deal) &&
           (!a->ready_seconds ||
            !memcmp(a->ready_seconds, b->ready_seconds, a->num_params * sizeof *a->ready_seconds));
}

gs_link_pair gs_link_worst_pair(const gs_link_report *report) {
    gs_link_pair worst = {0};
    for (size_t i = 0; i < report->num_pairs; i++) {
        const gs_link_pair *pair = &report->pairs[i];
        if (pair->latency_seconds > worst.latency_seconds) worst.latency_seconds = pair->latency_seconds;
        if (pair->bytes_per_second > 0 && (worst.bytes_per_second == 0 || pair->bytes_per_second < worst.bytes_per_second))
            worst.bytes_per_second = pair->bytes_per_second;
    }
    return worst;
}

static gs_json *encode_cost(const gs_link_cost *cost) {
    gs_json *list = gs_json_new_array();
    gs_json_push(list, gs_json_new_double(cost->start_seconds));
    gs_json_push(list, gs_json_new_double(cost->byte_seconds));
    return list;
}

// In whole microseconds: a plan does not turn on less, and lists are half as long.
static gs_json *encode_ready(const gs_link_report *report) {
    gs_json *list = gs_json_new_array();
    for (size_t i = 0; i < report->num_params; i++) {
        double ready = report->ready_seconds[i];
        gs_json_push(list, gs_json_new_int(ready < 0 ? -1 : llround(ready * MICROS)));
    }
    return list;
}

static gs_json *encode_pairs(const gs_link_report *report) {
    gs_json *list = gs_json_new_array();
    for (size_t i = 0; i < report->num_pairs; i++) {
        const gs_link_pair *pair = &report->pairs[i];
        gs_json *entry = gs_json_new_array();
        gs_json_push(entry, gs_json_new_int(pair->from));
        gs_json_push(entry, gs_json_new_int(pair->to));
        gs_json_push(entry, gs_json_new_double(pair->latency_seconds));
        gs_json_push(entry, gs_json_new_double(pair->bytes_per_second));
        gs_json_push(entry, gs_json_new_int(pair->retransmitted));
        gs_json_push(list, entry);
    }
    return list;
}

static gs_json *encode_deal(const gs_link_deal *deal) {
    gs_json *entry = gs_json_new_object(), *shares = gs_json_new_array(), *seconds = gs_json_new_array(), *slow = gs_json_new_array();
    for (int i = 0; i < deal->num_ranks; i++) gs_json_push(shares, gs_json_new_int(deal->shares[i]));
    gs_json_push(seconds, gs_json_new_double(deal->seconds_before));
    gs_json_push(seconds, gs_json_new_double(deal->seconds));
    gs_json_push(slow, gs_json_new_int(deal->from));
    gs_json_push(slow, gs_json_new_int(deal->to));
    gs_json_push(slow, gs_json_new_double(deal->slow_bytes_per_second));
    gs_json_push(slow, gs_json_new_double(deal->usual_bytes_per_second));
    gs_json_set(entry, "of", shares);
    gs_json_set(entry, "seconds", seconds);
    gs_json_set(entry, "slow", slow);
    return entry;
}

gs_json *gs_link_message_encode(const gs_link_report *report) {
    const gs_link_model *model = &report->model;
    gs_json *message = gs_json_new_object();
    gs_json_set(message, "cost", encode_cost(&model->cost));
    gs_json_set(message, "low", encode_cost(&model->low));
    gs_json_set(message, "high", encode_cost(&model->high));
    gs_json_set_double(message, "wire_ratio", model->wire_ratio);
    gs_json_set_double(message, "step_seconds", model->step_seconds);
    gs_json_set_int(message, "samples", model->num_samples);
    if (report->ready_seconds) gs_json_set(message, "ready_us", encode_ready(report));
    gs_json_set(message, "pairs", encode_pairs(report));
    if (report->deal.num_ranks) gs_json_set(message, "shares", encode_deal(&report->deal));
    return message;
}

static bool take_number(double *out, const gs_json *value, double most) {
    double number = 0;
    int64_t whole = 0;
    if (gs_json_type_of(value) == GS_JSON_INT && gs_json_int(&whole, value)) number = (double)whole;
    else if (!gs_json_double(&number, value)) return false;
    if (!(number >= 0 && number <= most)) return false;
    *out = number;
    return true;
}

static gs_status refuse(const char *member, size_t place) {
    return gs_error(GS_INVALID_ARGUMENT, "link.%s[%zu]: no number that it can be", member, place);
}

static gs_status take_cost(gs_link_cost *out, const gs_json *message, const char *member) {
    const gs_json *list = gs_json_get(message, member);
    double *const numbers[] = {&out->start_seconds, &out->byte_seconds};
    for (size_t i = 0; i < 2; i++) {
        if (!take_number(numbers[i], gs_json_at(list, i), MOST_SECONDS)) return refuse(member, i);
    }
    return gs_ok();
}

static gs_status take_ready(gs_link_report *out, const gs_json *list) {
    if (!list) return gs_ok();
    if (gs_json_count(list) > MOST_PARAMS) return refuse("ready_us", MOST_PARAMS);
    out->num_params = gs_json_count(list);
    out->ready_seconds = calloc(out->num_params + 1, sizeof *out->ready_seconds);
    if (!out->ready_seconds) return gs_error(GS_RESOURCE_EXHAUSTED, "link: out of memory");
    for (size_t i = 0; i < out->num_params; i++) {
        int64_t micros;
        bool known = gs_json_int(&micros, gs_json_at(list, i)) && micros >= -1 &&
                     micros <= (int64_t)(MOST_SECONDS * MICROS);
        if (!known) return refuse("ready_us", i);
        out->ready_seconds[i] = micros < 0 ? -1 : (double)micros / MICROS;
    }
    return gs_ok();
}

static gs_status take_pairs(gs_link_report *out, const gs_json *list) {
    if (gs_json_count(list) > GS_LINK_MAX_PAIRS) return refuse("pairs", GS_LINK_MAX_PAIRS);
    for (size_t i = 0; i < gs_json_count(list); i++) {
        const gs_json *entry = gs_json_at(list, i);
        gs_link_pair *pair = &out->pairs[out->num_pairs++];
        int64_t from, to;
        bool known = gs_json_int(&from, gs_json_at(entry, 0)) && from >= 0 && from < MOST_RANK &&
                     gs_json_int(&to, gs_json_at(entry, 1)) && to >= 0 && to < MOST_RANK &&
                     take_number(&pair->latency_seconds, gs_json_at(entry, 2), MOST_SECONDS) &&
                     take_number(&pair->bytes_per_second, gs_json_at(entry, 3), MOST_RATE) &&
                     gs_json_int(&pair->retransmitted, gs_json_at(entry, 4)) && pair->retransmitted >= 0;
        if (!known) return refuse("pairs", i);
        pair->from = (int)from;
        pair->to = (int)to;
    }
    return gs_ok();
}

static bool take_rank(int *out, const gs_json *value, int num_ranks) {
    int64_t rank;
    if (!gs_json_int(&rank, value) || rank < 0 || rank >= num_ranks) return false;
    *out = (int)rank;
    return true;
}

static gs_status take_deal(gs_link_deal *out, const gs_json *entry) {
    const gs_json *shares = gs_json_get(entry, "of"), *seconds = gs_json_get(entry, "seconds"), *slow = gs_json_get(entry, "slow");
    size_t count = gs_json_count(shares);
    if (!entry) return gs_ok();
    if (!count || count > GS_LINK_MAX_SHARES) return refuse("shares.of", count);
    out->num_ranks = (int)count;
    for (size_t i = 0; i < count; i++) {
        int64_t share;
        if (!gs_json_int(&share, gs_json_at(shares, i)) || share < 0 || share > UINT16_MAX) return refuse("shares.of", i);
        out->shares[i] = (uint16_t)share;
    }
    if (!take_number(&out->seconds_before, gs_json_at(seconds, 0), MOST_SECONDS)) return refuse("shares.seconds", 0);
    if (!take_number(&out->seconds, gs_json_at(seconds, 1), MOST_SECONDS)) return refuse("shares.seconds", 1);
    if (!take_rank(&out->from, gs_json_at(slow, 0), out->num_ranks)) return refuse("shares.slow", 0);
    if (!take_rank(&out->to, gs_json_at(slow, 1), out->num_ranks)) return refuse("shares.slow", 1);
    if (!take_number(&out->slow_bytes_per_second, gs_json_at(slow, 2), MOST_RATE)) return refuse("shares.slow", 2);
    return take_number(&out->usual_bytes_per_second, gs_json_at(slow, 3), MOST_RATE) ? gs_ok() : refuse("shares.slow", 3);
}

static gs_status take_all(gs_link_report *out, const gs_json *message) {
    gs_link_model *model = &out->model;
    GS_TRY(take_cost(&model->cost, message, "cost"));
    GS_TRY(take_cost(&model->low, message, "low"));
    GS_TRY(take_cost(&model->high, message, "high"));
    if (!take_number(&model->wire_ratio, gs_json_get(message, "wire_ratio"), 1e6)) return refuse("wire_ratio", 0);
    if (!take_number(&model->step_seconds, gs_json_get(message, "step_seconds"), MOST_SECONDS))
        return refuse("step_seconds", 0);
    model->num_samples = gs_json_int_or(message, "samples", 0);
    if (model->num_samples < 0) return refuse("samples", 0);
    GS_TRY(take_ready(out, gs_json_get(message, "ready_us")));
    GS_TRY(take_pairs(out, gs_json_get(message, "pairs")));
    return take_deal(&out->deal, gs_json_get(message, "shares"));
}

gs_status gs_link_message_decode(gs_link_report *out, const gs_json *message) {
    *out = (gs_link_report){0};
    gs_status status = take_all(out, message);
    if (status.code) gs_link_report_release(out);
    return status;
}
