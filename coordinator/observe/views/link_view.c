#include "coordinator/observe/views/link_view.h"

#include <stdio.h>
#include <string.h>

#include "rpc/schema/job_plan.h"

static void set_range(gs_json *view, const char *key, double low, double value, double high) {
    gs_json *range = gs_json_new_object();
    gs_json_set_double(range, "low", low);
    gs_json_set_double(range, "estimate", value);
    gs_json_set_double(range, "high", high);
    gs_json_set(view, key, range);
}

// As in plans, what people read is a speed. 0: there is none.
static double speed_of(double byte_seconds) { return byte_seconds > 0 ? 1 / byte_seconds : 0; }

static const gs_member *member_of(const gs_run *run, int rank) {
    for (int i = 0; i < run->num_members; i++) {
        if (run->members[i].rank == rank) return &run->members[i];
    }
    return NULL;
}

static const char *host_of(const gs_run *run, int rank) {
    const gs_member *member = member_of(run, rank);
    return member ? member->host : "";
}

static gs_json *pair_to_view(const gs_run *run, const gs_link_pair *pair) {
    gs_json *view = gs_json_new_object(), *ranks = gs_json_new_array(), *hosts = gs_json_new_array();
    const int ends[] = {pair->from, pair->to};
    for (int i = 0; i < 2; i++) {
        gs_json_push(ranks, gs_json_new_int(ends[i]));
        gs_json_push(hosts, gs_json_new_string(host_of(run, ends[i])));
    }
    gs_json_set(view, "ranks", ranks);
    gs_json_set(view, "hosts", hosts);
    gs_json_set_double(view, "latency_seconds", pair->latency_seconds);
    if (pair->bytes_per_second > 0) gs_json_set_double(view, "bytes_per_second", pair->bytes_per_second);
    gs_json_set_int(view, "retransmitted", pair->retransmitted);
    return view;
}

// Who adds how much of a bucket, and why: a part of 1 for each rank.
static void set_shares(gs_json *view, const gs_run *run, const gs_link_deal *deal) {
    double whole = 0;
    char why[400];
    for (int i = 0; i < deal->num_ranks; i++) whole += deal->shares[i];
    if (!(whole > 0) || deal->from >= deal->num_ranks || deal->to >= deal->num_ranks) return;
    gs_json *list = gs_json_new_array();
    for (int i = 0; i < deal->num_ranks; i++) gs_json_push(list, gs_json_new_double(deal->shares[i] / whole));
    snprintf(why, sizeof why,
             "the way between ranks %d (%.60s) and %d (%.60s) gives %.1f MB/s where %.1f is usual: they add %.1f and %.1f %% of a bucket, not %.1f "
             "each, and little travels between them; a sum that was timed took %.4f s, and %.4f with equal parts",
             deal->from, host_of(run, deal->from), deal->to, host_of(run, deal->to), 1e-6 * deal->slow_bytes_per_second,
             1e-6 * deal->usual_bytes_per_second, 100 * deal->shares[deal->from] / whole, 100 * deal->shares[deal->to] / whole,
             100.0 / deal->num_ranks, deal->seconds, deal->seconds_before);
    gs_json_set(view, "shares", list);
    gs_json_set_string(view, "shares_why", why);
}

gs_json *gs_link_to_view(const gs_run *run, const gs_link_report *link, const gs_bucket_plan *plan,
                         const gs_param_spec *params, size_t num_params) {
    const gs_link_model *model = &link->model;
    if (!gs_link_model_is_known(model)) return NULL;
    gs_json *view = gs_json_new_object(), *pairs = gs_json_new_array();
    set_range(view, "start_seconds", model->low.start_seconds, model->cost.start_seconds, model->high.start_seconds);
    set_range(view, "bytes_per_second", speed_of(model->high.byte_seconds), speed_of(model->cost.byte_seconds),
              speed_of(model->low.byte_seconds));
    gs_json_set_int(view, "collectives", model->num_samples);
    gs_json_set_double(view, "wire_ratio", model->wire_ratio);
    gs_json_set_double(view, "step_seconds", model->step_seconds);
    gs_json_set_bool(view, "followed", gs_job_plan_follows_link(&run->job->spec));
    gs_plan_place place = {.apart = true, .link = model, .ready_seconds = link->ready_seconds};
    double forecast, bound;
    bool fits = params && plan && link->ready_seconds && link->num_params == num_params;
    if (fits && !gs_job_plan_forecast(&forecast, &bound, &place, plan, params, num_params).code) {
        gs_json_set_double(view, "forecast_seconds", forecast);
        gs_json_set_double(view, "bound_seconds", bound);
    }
    for (size_t i = 0; i < link->num_pairs; i++) gs_json_push(pairs, pair_to_view(run, &link->pairs[i]));
    gs_json_set(view, "pairs", pairs);
    set_shares(view, run, &link->deal);
    return view;
}
