#include "core/link_plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/link_groups.h"
#include "core/plan_policy.h"

// For which costs plans are made, and over which they are judged; factors of the estimate.
static const double made_byte[] = {0.5, 0.7, 0.85, 1, 1.1};
static const double made_start[] = {0.5, 1, 2, 4, 16};
static const double judged_byte[] = {0.75, 0.9, 1, 1.15, 1.35};
static const double judged_start[] = {0.5, 1, 2};
#define COUNT_OF(list) (sizeof(list) / sizeof(list)[0])
#define NUM_WORLDS (COUNT_OF(judged_byte) * COUNT_OF(judged_start))
#define CAP_PLANS 4
#define MAX_PLANS (COUNT_OF(made_byte) * COUNT_OF(made_start) + CAP_PLANS)
// A plan may take that much longer than parity's caps, wherever the link lies in its range.
#define PARITY_SLACK 1.01
// Of plans so close to the best the one with fewest buckets is taken: each costs work that no model has.
#define NEAR_BEST 0.005

// A request along its order: places 0 … n - 1.
typedef struct course {
    const gs_link_request *request;
    size_t count;
    double *ready;   // n; never falls: buckets go in order
    double *before;  // n + 1; bytes of all before a place
    double *finish;  // n + 1; of the best plan of all before a place
    size_t *from;    // n + 1; where its last bucket begins
    size_t *queue;   // n + 1
} course;

typedef struct candidate {
    gs_bucket_plan plan;
    bool is_of_groups;  // its members are groups
    double *ready;      // by bucket, when its last member is
    double finish[NUM_WORLDS];
    double regret;
    bool is_barred;
} candidate;

bool gs_link_model_is_known(const gs_link_model *model) {
    return model->num_samples > 0 && model->cost.byte_seconds > 0 && model->cost.start_seconds > 0 &&
           isfinite(model->cost.byte_seconds) && isfinite(model->cost.start_seconds);
}

static gs_status out_of_memory(void) {
    return gs_error(GS_RESOURCE_EXHAUSTED, "link plan: out of memory");
}

static gs_status check_order(const gs_link_request *request) {
    bool *seen = calloc(request->num_params + 1, sizeof *seen);
    if (!seen) return out_of_memory();
    gs_status status = gs_ok();
    for (size_t i = 0; i < request->num_params && !status.code; i++) {
        size_t param = request->order[i];
        if (param >= request->num_params || seen[param])
            status = gs_error(GS_INVALID_ARGUMENT, "order[%zu]: %zu is no parameter of %zu, or named twice", i,
                              param, request->num_params);
        else
            seen[param] = true;
    }
    free(seen);
    return status;
}

static void release_course(course *way) {
    free(way->ready);
    free(way->before);
    free(way->finish);
    free(way->from);
    free(way->queue);
}

static gs_status lay_course(course *way, const gs_link_request *request) {
    size_t count = request->num_params;
    *way = (course){.request = request, .count = count};
    GS_TRY(check_order(request));
    way->ready = calloc(count + 1, sizeof *way->ready);
    way->before = calloc(count + 1, sizeof *way->before);
    way->finish = calloc(count + 1, sizeof *way->finish);
    way->from = calloc(count + 1, sizeof *way->from);
    way->queue = calloc(count + 1, sizeof *way->queue);
    if (!way->ready || !way->before || !way->finish || !way->from || !way->queue) {
        release_course(way);
        return out_of_memory();
    }
    double ready = 0;
    for (size_t i = 0; i < count; i++) {
        size_t param = request->order[i];
        if (request->ready_seconds[param] > ready) ready = request->ready_seconds[param];
        way->ready[i] = ready;
        way->before[i + 1] = way->before[i] + (double)gs_param_spec_grad_bytes(&request->params[param]);
    }
    return gs_ok();
}

static bool is_alone(const course *way, size_t place) {
    return way->request->params[way->request->order[place]].sparse;
}

// finish(j) = min over i < j of max(finish(i), ready(j)) + start + byte · bytes(i … j). Neither finish nor ready ever
// falls, so of those i that are done by then the last one is best; of the others, which are a suffix, the one with the
// least finish(i) - byte · before(i), and a queue holds what can still become that.
static void find_best(course *way, gs_link_cost cost) {
    size_t done = 0, least = 0, head = 0, tail = 0;
    for (size_t j = 1; j <= way->count; j++) {
        double key = way->finish[j - 1] - cost.byte_seconds * way->before[j - 1];
        while (tail > head &&
               way->finish[way->queue[tail - 1]] - cost.byte_seconds * way->before[way->queue[tail - 1]] >= key)
            tail--;
        way->queue[tail++] = j - 1;
        // What is sparse is alone, and the rest of a bucket has room.
        if (is_alone(way, j - 1) || (j > 1 && is_alone(way, j - 2))) least = j - 1;
        while (least < j - 1 && way->before[j] - way->before[least] > (double)GS_LINK_BUCKET_BYTES) least++;
        while (done + 1 < j && way->finish[done + 1] <= way->ready[j - 1]) done++;
        while (head < tail && (way->queue[head] <= done || way->queue[head] < least)) head++;
        double base = INFINITY;
        size_t from = j - 1;
        if (done >= least && way->finish[done] <= way->ready[j - 1]) {
            base = way->ready[j - 1] - cost.byte_seconds * way->before[done];
            from = done;
        }
        if (head < tail) {
            size_t i = way->queue[head];
            double start = way->finish[i] > way->ready[j - 1] ? way->finish[i] : way->ready[j - 1];
            double other = start - cost.byte_seconds * way->before[i];
            if (other < base) {
                base = other;
                from = i;
            }
        }
        way->finish[j] = base + cost.start_seconds + cost.byte_seconds * way->before[j];
        way->from[j] = from;
    }
}

static int key_of(const gs_link_request *request, size_t param) {
    return request->keys ? request->keys[param] : 0;
}

static bool may_share(const gs_link_request *request, size_t a, size_t b) {
    return request->params[a].dtype == request->params[b].dtype && key_of(request, a) == key_of(request, b);
}

// A run of places becomes a bucket for each type and key in it.
static void add_buckets(gs_bucket_plan *plan, const course *way, size_t from, size_t to, bool *is_taken) {
    const gs_link_request *request = way->request;
    for (size_t first = from; first < to; first++) {
        size_t leader = request->order[first];
        if (is_taken[leader]) continue;
        gs_plan_bucket *bucket = &plan->buckets[plan->num_buckets++];
        *bucket = (gs_plan_bucket){.dtype = request->params[leader].dtype, .first = plan->num_params};
        for (size_t i = first; i < to; i++) {
            size_t param = request->order[i];
            if (is_taken[param] || !may_share(request, leader, param)) continue;
            is_taken[param] = true;
            plan->params[plan->num_params++] = param;
            bucket->bytes += gs_param_spec_grad_bytes(&request->params[param]);
        }
        bucket->num_params = plan->num_params - bucket->first;
        bucket->limit_bytes = request->params[leader].sparse ? 0 : bucket->bytes;
    }
}

static gs_status take_best(gs_bucket_plan *out, const course *way) {
    size_t count = way->count, num_runs = 0;
    bool *is_taken = calloc(count + 1, sizeof *is_taken);
    *out = (gs_bucket_plan){.buckets = calloc(count + 1, sizeof *out->buckets),
                            .params = calloc(count + 1, sizeof *out->params)};
    if (!is_taken || !out->buckets || !out->params) {
        free(is_taken);
        gs_bucket_plan_release(out);
        return out_of_memory();
    }
    for (size_t end = count; end; end = way->from[end]) way->queue[num_runs++] = end;
    for (size_t run = num_runs; run-- > 0;)
        add_buckets(out, way, way->from[way->queue[run]], way->queue[run], is_taken);
    free(is_taken);
    return gs_ok();
}

gs_status gs_link_plan_best(gs_bucket_plan *out, const gs_link_request *request, const gs_link_cost *cost) {
    course way;
    *out = (gs_bucket_plan){0};
    GS_TRY(lay_course(&way, request));
    find_best(&way, *cost);
    gs_status status = take_best(out, &way);
    release_course(&way);
    return status;
}

// 0 where that of no member is known.
static double bucket_ready(const gs_bucket_plan *plan, size_t bucket, const double *ready_seconds) {
    double last = 0;
    for (size_t i = 0; i < plan->buckets[bucket].num_params; i++) {
        double ready = ready_seconds[plan->params[plan->buckets[bucket].first + i]];
        if (ready > last) last = ready;
    }
    return last;
}

static double finish_behind(double finish, double ready, const gs_plan_bucket *bucket, gs_link_cost cost) {
    return (ready > finish ? ready : finish) + cost.start_seconds + cost.byte_seconds * (double)bucket->bytes;
}

// A bucket waits for those before it and for the last of its members; times on the link are by what it sends.
static double finish_of(const gs_bucket_plan *plan, const gs_link_request *request, gs_link_cost cost) {
    double finish = 0;
    for (size_t b = 0; b < plan->num_buckets; b++)
        finish = finish_behind(finish, bucket_ready(plan, b, request->ready_seconds), &plan->buckets[b], cost);
    return finish;
}

static double finish_of_candidate(const candidate *made, gs_link_cost cost) {
    double finish = 0;
    for (size_t b = 0; b < made->plan.num_buckets; b++)
        finish = finish_behind(finish, made->ready[b], &made->plan.buckets[b], cost);
    return finish;
}

static gs_link_cost cost_of_gradients(const gs_link_cost *cost, double wire_ratio) {
    return (gs_link_cost){cost->start_seconds, cost->byte_seconds * (wire_ratio > 0 ? wire_ratio : 1)};
}

gs_status gs_link_plan_forecast(double *seconds, const gs_bucket_plan *plan, const gs_link_request *request,
                                const gs_link_cost *cost, double wire_ratio) {
    *seconds = 0;
    GS_TRY(gs_bucket_plan_check(plan, request->params, request->num_params));
    *seconds = finish_of(plan, request, cost_of_gradients(cost, wire_ratio));
    return gs_ok();
}

typedef struct ready_bytes {
    double ready, bytes;
} ready_bytes;

static int compare_ready(const void *a, const void *b) {
    const ready_bytes *left = a, *right = b;
    return left->ready < right->ready ? -1 : left->ready > right->ready;
}

gs_status gs_link_plan_bound(double *seconds, const gs_link_request *request, const gs_link_cost *cost,
                             double wire_ratio) {
    gs_link_cost own = cost_of_gradients(cost, wire_ratio);
    double left = 0;
    *seconds = 0;
    ready_bytes *sorted = calloc(request->num_params + 1, sizeof *sorted);
    if (!sorted) return out_of_memory();
    for (size_t i = 0; i < request->num_params; i++) {
        double ready = request->ready_seconds[i];
        sorted[i] = (ready_bytes){ready > 0 ? ready : 0, (double)gs_param_spec_grad_bytes(&request->params[i])};
    }
    qsort(sorted, request->num_params, sizeof *sorted, compare_ready);
    for (size_t i = request->num_params; i-- > 0;) {
        left += sorted[i].bytes;
        double finish = sorted[i].ready + own.start_seconds + own.byte_seconds * left;
        if (finish > *seconds) *seconds = finish;
    }
    free(sorted);
    return gs_ok();
}

// Plain caps along the same order, parity's first.
static gs_status make_capped(candidate *plans, size_t *num_plans, const gs_link_request *request) {
    const gs_plan_policy policies[CAP_PLANS] = {
        {.first_bytes = GS_FIRST_BUCKET_BYTES, .max_buckets = request->max_buckets},
        {.first_bytes = GS_FIRST_BUCKET_BYTES, .small_last = true, .max_buckets = request->max_buckets},
        {.caps_bytes = {GS_BUCKET_CAP_BYTES / 4}, .num_caps = 1, .max_buckets = request->max_buckets},
        {.caps_bytes = {GS_LINK_BUCKET_BYTES}, .num_caps = 1, .max_buckets = request->max_buckets}};
    for (size_t i = 0; i < CAP_PLANS; i++) {
        GS_TRY(gs_plan_policy_apply_owned(&plans[*num_plans].plan, &policies[i], request->keys, request->params,
                                          request->num_params, request->order));
        ++*num_plans;
    }
    return gs_ok();
}

static gs_status make_planned(candidate *plans, size_t *num_plans, course *way, gs_link_cost cost, bool is_of_groups) {
    for (size_t b = 0; b < COUNT_OF(made_byte); b++) {
        for (size_t s = 0; s < COUNT_OF(made_start); s++) {
            candidate *made = &plans[*num_plans];
            find_best(way, (gs_link_cost){cost.start_seconds * made_start[s], cost.byte_seconds * made_byte[b]});
            GS_TRY(take_best(&made->plan, way));
            made->is_of_groups = is_of_groups;
            ++*num_plans;
            size_t most = way->request->max_buckets;
            made->is_barred = most && made->plan.num_buckets > most;
        }
    }
    return gs_ok();
}

// How each does in each world; parity's caps are plan 0 and never barred.
static void judge(candidate *plans, size_t num_plans, gs_link_cost cost) {
    for (size_t b = 0; b < COUNT_OF(judged_byte); b++) {
        for (size_t s = 0; s < COUNT_OF(judged_start); s++) {
            size_t world = b * COUNT_OF(judged_start) + s;
            gs_link_cost real = {cost.start_seconds * judged_start[s], cost.byte_seconds * judged_byte[b]};
            double best = INFINITY;
            for (size_t i = 0; i < num_plans; i++) {
                plans[i].finish[world] = finish_of_candidate(&plans[i], real);
                if (plans[i].finish[world] > plans[0].finish[world] * PARITY_SLACK) plans[i].is_barred = true;
                if (plans[i].finish[world] < best) best = plans[i].finish[world];
            }
            for (size_t i = 0; i < num_plans; i++)
                plans[i].regret += (plans[i].finish[world] - best) / (best * NUM_WORLDS);
        }
    }
}

static size_t choose(const candidate *plans, size_t num_plans) {
    size_t best = 0;
    for (size_t i = 1; i < num_plans; i++) {
        if (!plans[i].is_barred && plans[i].regret < plans[best].regret) best = i;
    }
    size_t chosen = best;
    for (size_t i = 0; i < num_plans; i++) {
        if (plans[i].is_barred || plans[i].regret > plans[best].regret + NEAR_BEST) continue;
        if (plans[i].plan.num_buckets < plans[chosen].plan.num_buckets) chosen = i;
    }
    return chosen;
}

static gs_status find_ready(candidate *plans, size_t num_plans, const double *ready_of_params, const double *ready_of_groups) {
    for (size_t i = 0; i < num_plans; i++) {
        const gs_bucket_plan *plan = &plans[i].plan;
        plans[i].ready = calloc(plan->num_buckets + 1, sizeof *plans[i].ready);
        if (!plans[i].ready) return out_of_memory();
        for (size_t b = 0; b < plan->num_buckets; b++)
            plans[i].ready[b] = bucket_ready(plan, b, plans[i].is_of_groups ? ready_of_groups : ready_of_params);
    }
    return gs_ok();
}

static gs_status plan_groups(candidate *plans, size_t *num_plans, const gs_link_groups *groups, gs_link_cost cost) {
    course way;
    if (groups->request.num_params > GS_LINK_MOST_GROUPS) return gs_ok();
    GS_TRY(lay_course(&way, &groups->request));
    gs_status status = make_planned(plans, num_plans, &way, cost, true);
    release_course(&way);
    return status;
}

static gs_status make(gs_bucket_plan *out, candidate *plans, course *way, const gs_link_groups *groups, gs_link_cost cost) {
    size_t num_plans = 0;
    gs_status status = make_capped(plans, &num_plans, way->request);
    if (!status.code)
        status = groups ? plan_groups(plans, &num_plans, groups, cost) : make_planned(plans, &num_plans, way, cost, false);
    if (!status.code)
        status = find_ready(plans, num_plans, way->request->ready_seconds, groups ? groups->request.ready_seconds : NULL);
    if (!status.code) {
        judge(plans, num_plans, cost);
        candidate *chosen = &plans[choose(plans, num_plans)];
        if (chosen->is_of_groups) {
            status = gs_link_groups_expand(out, groups, &chosen->plan);
        } else {
            *out = chosen->plan;
            chosen->plan = (gs_bucket_plan){0};
        }
    }
    for (size_t i = 0; i < MAX_PLANS; i++) {
        gs_bucket_plan_release(&plans[i].plan);
        free(plans[i].ready);
    }
    return status;
}

gs_status gs_link_plan_make(gs_bucket_plan *out, const gs_link_request *request, const gs_link_model *model) {
    course way;
    gs_link_groups groups = {0};
    *out = (gs_bucket_plan){0};
    if (!gs_link_model_is_known(model)) return gs_error(GS_INVALID_ARGUMENT, "link: nothing is known of it");
    GS_TRY(lay_course(&way, request));
    bool is_fine = request->num_params <= GS_LINK_FINE_PARAMS;
    gs_status status = is_fine ? gs_ok() : gs_link_groups_make(&groups, request);
    candidate *plans = calloc(MAX_PLANS, sizeof *plans);
    if (!status.code)
        status = plans ? make(out, plans, &way, is_fine ? NULL : &groups, cost_of_gradients(&model->cost, model->wire_ratio))
                       : out_of_memory();
    free(plans);
    gs_link_groups_release(&groups);
    release_course(&way);
    return status;
}
