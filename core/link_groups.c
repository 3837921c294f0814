#include "core/link_groups.h"

#include <stdlib.h>
#include <string.h>

// While groups are made: lists with room for all parameters, and the groups that parameters went to.
typedef struct maker {
    gs_param_spec *params;
    double *ready;
    int *keys;
    size_t *order, *sizes, *group_of;
    size_t count, run_first;  // groups of the run that is open begin there
    double run_bytes;
} maker;

static gs_status out_of_memory(void) {
    return gs_error(GS_RESOURCE_EXHAUSTED, "link groups: out of memory");
}

static int key_of(const gs_link_request *request, size_t param) {
    return request->keys ? request->keys[param] : 0;
}

static void close_run(maker *made) {
    made->run_first = made->count;
    made->run_bytes = 0;
}

// Types and keys of a run are few: freezes of a job, and those of its parameters.
static size_t find_group(maker *made, const gs_param_spec *param, int key) {
    for (size_t g = made->run_first; g < made->count; g++) {
        if (made->params[g].dtype == param->dtype && made->keys[g] == key) return g;
    }
    size_t group = made->count++;
    made->params[group] = (gs_param_spec){.dtype = param->dtype, .num_dims = 1, .sparse = param->sparse};
    made->keys[group] = key;
    made->ready[group] = -1;
    made->order[group] = group;
    return group;
}

static void add(maker *made, const gs_link_request *request, size_t param, double run_bytes) {
    const gs_param_spec *spec = &request->params[param];
    double bytes = (double)gs_param_spec_grad_bytes(spec);
    if (spec->sparse || (made->run_bytes > 0 && made->run_bytes + bytes > run_bytes)) close_run(made);
    size_t group = find_group(made, spec, key_of(request, param));
    made->group_of[param] = group;
    made->sizes[group]++;
    made->params[group].shape[0] += (int64_t)gs_param_spec_count(spec);
    if (request->ready_seconds[param] > made->ready[group]) made->ready[group] = request->ready_seconds[param];
    made->run_bytes += bytes;
    if (spec->sparse) close_run(made);
}

static gs_status list_members(gs_link_groups *groups, const maker *made, const gs_link_request *request) {
    size_t *next = calloc(made->count + 1, sizeof *next);
    groups->first = calloc(made->count + 1, sizeof *groups->first);
    groups->members = calloc(request->num_params + 1, sizeof *groups->members);
    if (!next || !groups->first || !groups->members) {
        free(next);
        return out_of_memory();
    }
    for (size_t g = 0; g < made->count; g++) groups->first[g + 1] = groups->first[g] + made->sizes[g];
    memcpy(next, groups->first, made->count * sizeof *next);
    for (size_t i = 0; i < request->num_params; i++) {
        size_t param = request->order[i];
        groups->members[next[made->group_of[param]]++] = param;
    }
    free(next);
    return gs_ok();
}

gs_status gs_link_groups_make(gs_link_groups *out, const gs_link_request *request) {
    size_t room = request->num_params + 1;
    double all_bytes = 0;
    *out = (gs_link_groups){0};
    maker made = {.params = malloc(room * sizeof *made.params),
                  .ready = malloc(room * sizeof *made.ready),
                  .keys = malloc(room * sizeof *made.keys),
                  .order = malloc(room * sizeof *made.order),
                  .sizes = calloc(room, sizeof *made.sizes),
                  .group_of = malloc(room * sizeof *made.group_of)};
    gs_status status = made.params && made.ready && made.keys && made.order && made.sizes && made.group_of ? gs_ok() : out_of_memory();
    if (!status.code) {
        for (size_t i = 0; i < request->num_params; i++) all_bytes += (double)gs_param_spec_grad_bytes(&request->params[i]);
        for (size_t i = 0; i < request->num_params; i++)
            add(&made, request, request->order[i], 2 * all_bytes / GS_LINK_GROUP_RUNS);
    }
    out->request = (gs_link_request){.params = made.params,
                                     .num_params = made.count,
                                     .order = made.order,
                                     .ready_seconds = made.ready,
                                     .keys = made.keys,
                                     .max_buckets = request->max_buckets};
    if (!status.code) status = list_members(out, &made, request);
    free(made.sizes);
    free(made.group_of);
    if (status.code) gs_link_groups_release(out);
    return status;
}

void gs_link_groups_release(gs_link_groups *groups) {
    free((void *)groups->request.params);
    free((void *)groups->request.order);
    free((void *)groups->request.ready_seconds);
    free((void *)groups->request.keys);
    free(groups->first);
    free(groups->members);
    *groups = (gs_link_groups){0};
}

gs_status gs_link_groups_expand(gs_bucket_plan *out, const gs_link_groups *groups, const gs_bucket_plan *of_groups) {
    size_t num_params = groups->first[groups->request.num_params];
    *out = (gs_bucket_plan){.num_buckets = of_groups->num_buckets,
                            .buckets = calloc(of_groups->num_buckets + 1, sizeof *out->buckets),
                            .params = calloc(num_params + 1, sizeof *out->params)};
    if (!out->buckets || !out->params) {
        gs_bucket_plan_release(out);
        return out_of_memory();
    }
    for (size_t b = 0; b < of_groups->num_buckets; b++) {
        gs_plan_bucket *bucket = &out->buckets[b];
        *bucket = of_groups->buckets[b];
        bucket->first = out->num_params;
        for (size_t i = 0; i < of_groups->buckets[b].num_params; i++) {
            size_t group = of_groups->params[of_groups->buckets[b].first + i], size = groups->first[group + 1] - groups->first[group];
            memcpy(out->params + out->num_params, groups->members + groups->first[group], size * sizeof *out->params);
            out->num_params += size;
        }
        bucket->num_params = out->num_params - bucket->first;
    }
    return gs_ok();
}
