#include "gradsync/reducer/agreement.h"

#include <stdlib.h>
#include <string.h>

#include "core/digest.h"
#include "gradsync/hooks/hook_facts.h"

// One rank's side of the comparison, as words.
enum {
    FACT_WORLD_SIZE,
    FACT_NUM_SHARDS,
    FACT_PASSES,
    FACT_EXACT,
    FACT_OP,
    FACT_UNUSED_IS_ERROR,
    FACT_STATIC_GRAPH,
    FACT_WIRE_DTYPE,
    FACT_TALLY,
    FACT_NUM_HOOKS,  // facts of them
    FACT_HOOKS_HIGH,
    FACT_HOOKS_LOW,
    FACT_NUM_PARAMS,
    FACT_PARAMS_HIGH,
    FACT_PARAMS_LOW,
    FACT_NUM_BUCKETS,
    FACT_PLAN_HIGH,
    FACT_PLAN_LOW,
    FACT_TRAINABLE_HIGH,
    FACT_TRAINABLE_LOW,
    NUM_FACTS
};

static const char *const setting_names[FACT_NUM_HOOKS] = {
    [FACT_WORLD_SIZE] = "world size",
    [FACT_NUM_SHARDS] = "logical shards",
    [FACT_PASSES] = "passes per shard",
    [FACT_EXACT] = "exact mode",
    [FACT_OP] = "reduction (mean 0, sum 1, sample mean 2)",
    [FACT_UNUSED_IS_ERROR] = "unused_is_error",
    [FACT_STATIC_GRAPH] = "static graph",
    [FACT_WIRE_DTYPE] = "wire dtype",
    [FACT_TALLY] = "tally (in buckets 0, apart 1, in buckets and squares dealt 2)",
};

// This rank's hooks, each with its options.
typedef struct own_hooks {
    gs_hook_fact *facts;
    size_t num_hooks;
} own_hooks;

static bool is_trainable(const gs_agreement *agreement, size_t param) {
    return !agreement->trainable || agreement->trainable[param];
}

static gs_digest digest_trainable(const gs_agreement *agreement) {
    uint64_t words[2] = {0};
    for (size_t i = 0; i < agreement->num_params; i++) {
        if (is_trainable(agreement, i)) continue;
        words[0] = i + 1;
        gs_digest digest = gs_digest_of(words, sizeof words);
        words[1] = digest.low ^ digest.high;
    }
    return gs_digest_of(words, sizeof words);
}

static void collect_facts(int64_t facts[NUM_FACTS], const gs_agreement *agreement,
                          const own_hooks *own, int world_size) {
    gs_digest hooks = gs_digest_of(own->facts, own->num_hooks * sizeof *own->facts);
    gs_digest params = gs_param_specs_digest(agreement->params, agreement->num_params);
    gs_digest plan = gs_bucket_plan_digest(agreement->plan);
    facts[FACT_WORLD_SIZE] = world_size;
    facts[FACT_NUM_SHARDS] = agreement->num_shards;
    facts[FACT_PASSES] = agreement->passes_per_shard;
    facts[FACT_EXACT] = agreement->exact;
    facts[FACT_OP] = agreement->op;
    facts[FACT_UNUSED_IS_ERROR] = agreement->unused_is_error;
    facts[FACT_STATIC_GRAPH] = agreement->static_graph;
    facts[FACT_WIRE_DTYPE] = agreement->wire_dtype;
    facts[FACT_TALLY] = agreement->tally;
    facts[FACT_NUM_HOOKS] = (int64_t)own->num_hooks;
    facts[FACT_HOOKS_HIGH] = (int64_t)hooks.high;
    facts[FACT_HOOKS_LOW] = (int64_t)hooks.low;
    facts[FACT_NUM_PARAMS] = (int64_t)agreement->num_params;
    facts[FACT_PARAMS_HIGH] = (int64_t)params.high;
    facts[FACT_PARAMS_LOW] = (int64_t)params.low;
    facts[FACT_NUM_BUCKETS] = (int64_t)agreement->plan->num_buckets;
    facts[FACT_PLAN_HIGH] = (int64_t)plan.high;
    facts[FACT_PLAN_LOW] = (int64_t)plan.low;
    gs_digest trainable = digest_trainable(agreement);
    facts[FACT_TRAINABLE_HIGH] = (int64_t)trainable.high;
    facts[FACT_TRAINABLE_LOW] = (int64_t)trainable.low;
}

static gs_status gather_bytes(void *all, const void *mine, size_t bytes, gs_comm *comm,
                              gs_deadline deadline) {
    return gs_comm_run(comm,
                       &(gs_collective){.kind = GS_ALLGATHER,
                                        .send = mine,
                                        .recv = all,
                                        .count = bytes,
                                        .dtype = GS_U8,
                                        .step = -1,
                                        .bucket = -1},
                       deadline);
}

static bool same_digest(const int64_t *a, const int64_t *b, int high) {
    return a[high] == b[high] && a[high + 1] == b[high + 1];
}

// The first rank whose words at `high` and behind differ from rank 0's; 0 when none does.
static int find_other_digest(const int64_t *facts, int world_size, int high) {
    for (int r = 1; r < world_size; r++) {
        if (!same_digest(facts, facts + (size_t)r * NUM_FACTS, high)) return r;
    }
    return 0;
}

static gs_status differ(int rank, int fact, int64_t theirs, int64_t ours) {
    if (fact == FACT_WIRE_DTYPE)
        return gs_error(GS_FAILED_PRECONDITION, "rank %d against rank 0: wire dtype %s against %s",
                        rank, gs_dtype_name((gs_dtype)theirs), gs_dtype_name((gs_dtype)ours));
    return gs_error(GS_FAILED_PRECONDITION, "rank %d against rank 0: %s %lld against %lld", rank,
                    setting_names[fact], (long long)theirs, (long long)ours);
}

static gs_status compare_settings(const int64_t *facts, int world_size) {
    for (int r = 1; r < world_size; r++) {
        const int64_t *theirs = facts + (size_t)r * NUM_FACTS;
        for (int f = 0; f < FACT_NUM_HOOKS; f++) {
            if (theirs[f] != facts[f]) return differ(r, f, theirs[f], facts[f]);
        }
    }
    return gs_ok();
}

// Hooks differ somewhere: all of them are gathered, with their options, and the first difference is put in words.
static gs_status explain_hooks(const own_hooks *own, const int64_t *facts, int other, gs_comm *comm,
                               gs_deadline deadline) {
    size_t world_size = (size_t)gs_comm_world_size(comm), most = 0;
    for (size_t r = 0; r < world_size; r++) {
        size_t num_hooks = (size_t)facts[r * NUM_FACTS + FACT_NUM_HOOKS];
        if (num_hooks > most) most = num_hooks;
    }
    gs_hook_fact *mine = calloc(most, sizeof *mine), *all = calloc(most * world_size, sizeof *all);
    gs_status status = gs_error(GS_RESOURCE_EXHAUSTED, "hooks: out of memory");
    if (mine && all) {
        memcpy(mine, own->facts, own->num_hooks * sizeof *mine);
        status = gather_bytes(all, mine, most * sizeof *mine, comm, deadline);
    }
    if (!status.code) {
        status = gs_hook_facts_compare(all + (size_t)other * most,
                                       (size_t)facts[(size_t)other * NUM_FACTS + FACT_NUM_HOOKS],
                                       all, (size_t)facts[FACT_NUM_HOOKS]);
        status = gs_status_prefix(status, "rank %d against rank 0", other);
    }
    free(mine);
    free(all);
    return status;
}

// A copy whose unused bytes are zero: nothing of this process' memory travels along.
static void copy_specs(gs_param_spec *out, const gs_param_spec *specs, size_t num_specs) {
    for (size_t i = 0; i < num_specs; i++) {
        memset(&out[i], 0, sizeof out[i]);
        memcpy(out[i].name, specs[i].name, strnlen(specs[i].name, GS_PARAM_NAME_LEN - 1));
        out[i].dtype = specs[i].dtype;
        out[i].num_dims = specs[i].num_dims;
        out[i].sparse = specs[i].sparse;
        memcpy(out[i].shape, specs[i].shape, (size_t)specs[i].num_dims * sizeof(int64_t));
    }
}

// Lists differ somewhere: all of them are gathered and the first difference is put in words.
static gs_status explain_params(const gs_agreement *agreement, const int64_t *facts, int other,
                                gs_comm *comm, gs_deadline deadline) {
    size_t world_size = (size_t)gs_comm_world_size(comm), max_params = 0;
    for (size_t r = 0; r < world_size; r++) {
        size_t num_params = (size_t)facts[r * NUM_FACTS + FACT_NUM_PARAMS];
        if (num_params > max_params) max_params = num_params;
    }
    gs_param_spec *mine = calloc(max_params, sizeof *mine);
    gs_param_spec *all = calloc(max_params * world_size, sizeof *all);
    gs_status status = gs_error(GS_RESOURCE_EXHAUSTED, "parameter lists: out of memory");
    if (mine && all) {
        copy_specs(mine, agreement->params, agreement->num_params);
        status = gather_bytes(all, mine, max_params * sizeof *mine, comm, deadline);
    }
    if (!status.code) {
        status = gs_param_specs_compare(all + (size_t)other * max_params,
                                        (size_t)facts[(size_t)other * NUM_FACTS + FACT_NUM_PARAMS],
                                        all, (size_t)facts[FACT_NUM_PARAMS]);
        status = gs_status_prefix(status, "rank %d against rank 0", other);
    }
    free(mine);
    free(all);
    return status;
}

// Words of a plan: its buckets' sizes, the members, the buckets' hooks; each list as long as there are parameters.
#define PLAN_LISTS 3

static void write_plan_words(int64_t *words, const gs_bucket_plan *plan) {
    for (size_t b = 0; b < plan->num_buckets; b++) {
        words[b] = (int64_t)plan->buckets[b].num_params;
        words[2 * plan->num_params + b] = plan->buckets[b].hook;
    }
    for (size_t i = 0; i < plan->num_params; i++)
        words[plan->num_params + i] = (int64_t)plan->params[i];
}

static gs_status compare_plan_words(const int64_t *theirs, const int64_t *ours,
                                    const gs_agreement *agreement, int other) {
    size_t num_params = agreement->num_params;
    for (size_t i = 0; i < num_params; i++) {
        int64_t their_param = theirs[num_params + i], our_param = ours[num_params + i];
        if (their_param != our_param)
            return gs_error(GS_FAILED_PRECONDITION,
                            "rank %d against rank 0: bucket plan: place %zu holds parameter %lld "
                            "\"%.50s\" against %lld \"%.50s\"",
                            other, i, (long long)their_param, agreement->params[their_param].name,
                            (long long)our_param, agreement->params[our_param].name);
    }
    for (size_t b = 0; b < num_params; b++) {
        if (theirs[b] != ours[b])
            return gs_error(GS_FAILED_PRECONDITION,
                            "rank %d against rank 0: bucket plan: bucket %zu has %lld parameters "
                            "against %lld",
                            other, b, (long long)theirs[b], (long long)ours[b]);
    }
    for (size_t b = 0; b < num_params; b++) {
        int64_t their_hook = theirs[2 * num_params + b], our_hook = ours[2 * num_params + b];
        if (their_hook != our_hook)
            return gs_error(GS_FAILED_PRECONDITION,
                            "rank %d against rank 0: bucket plan: bucket %zu has hook %lld against "
                            "%lld",
                            other, b, (long long)their_hook, (long long)our_hook);
    }
    return gs_error(GS_FAILED_PRECONDITION, "rank %d against rank 0: bucket plan: other limits",
                    other);
}

// Only when the parameter lists are equal, so that all plans have as many members.
static gs_status explain_plan(const gs_agreement *agreement, int other, gs_comm *comm,
                              gs_deadline deadline) {
    size_t num_words = PLAN_LISTS * agreement->num_params, world_size = (size_t)gs_comm_world_size(comm);
    int64_t *mine = calloc(num_words, sizeof *mine);
    int64_t *all = calloc(num_words * world_size, sizeof *all);
    gs_status status = gs_error(GS_RESOURCE_EXHAUSTED, "bucket plans: out of memory");
    if (mine && all) {
        write_plan_words(mine, agreement->plan);
        status = gather_bytes(all, mine, num_words * sizeof *mine, comm, deadline);
    }
    if (!status.code)
        status = compare_plan_words(all + (size_t)other * num_words, all, agreement, other);
    free(mine);
    free(all);
    return status;
}

// Only when the parameter lists are equal.
static gs_status compare_trainable(const uint8_t *theirs, const uint8_t *ours,
                                   const gs_agreement *agreement, int other) {
    size_t param = 0;
    while (param + 1 < agreement->num_params && theirs[param] == ours[param]) param++;
    return gs_error(GS_FAILED_PRECONDITION,
                    "rank %d against rank 0: parameter %zu \"%.100s\": %s against %s", other, param,
                    agreement->params[param].name, theirs[param] ? "trainable" : "frozen",
                    ours[param] ? "trainable" : "frozen");
}

static gs_status explain_trainable(const gs_agreement *agreement, int other, gs_comm *comm,
                                   gs_deadline deadline) {
    size_t num_params = agreement->num_params, world_size = (size_t)gs_comm_world_size(comm);
    uint8_t *mine = calloc(num_params, 1), *all = calloc(num_params, world_size);
    gs_status status = gs_error(GS_RESOURCE_EXHAUSTED, "trainable parameters: out of memory");
    if (mine && all) {
        for (size_t i = 0; i < num_params; i++) mine[i] = is_trainable(agreement, i);
        status = gather_bytes(all, mine, num_params, comm, deadline);
    }
    if (!status.code)
        status = compare_trainable(all + (size_t)other * num_params, all, agreement, other);
    free(mine);
    free(all);
    return status;
}

static gs_status compare_all(const gs_agreement *agreement, const own_hooks *own, int64_t *facts,
                             gs_comm *comm, gs_deadline deadline) {
    int world_size = gs_comm_world_size(comm), other;
    int64_t mine[NUM_FACTS];
    collect_facts(mine, agreement, own, world_size);
    GS_TRY(gather_bytes(facts, mine, sizeof mine, comm, deadline));
    GS_TRY(compare_settings(facts, world_size));
    if ((other = find_other_digest(facts, world_size, FACT_HOOKS_HIGH)))
        return explain_hooks(own, facts, other, comm, deadline);
    if ((other = find_other_digest(facts, world_size, FACT_PARAMS_HIGH)))
        return explain_params(agreement, facts, other, comm, deadline);
    if ((other = find_other_digest(facts, world_size, FACT_PLAN_HIGH)))
        return explain_plan(agreement, other, comm, deadline);
    if ((other = find_other_digest(facts, world_size, FACT_TRAINABLE_HIGH)))
        return explain_trainable(agreement, other, comm, deadline);
    return gs_ok();
}

gs_status gs_agreement_check(const gs_agreement *agreement, gs_comm *comm, gs_deadline deadline) {
    size_t world_size = (size_t)gs_comm_world_size(comm);
    own_hooks own = {.num_hooks = gs_hook_facts_count(agreement->hooks)};
    own.facts = calloc(own.num_hooks, sizeof *own.facts);
    int64_t *facts = calloc(world_size, NUM_FACTS * sizeof *facts);
    gs_status status = gs_error(GS_RESOURCE_EXHAUSTED, "agreement: out of memory");
    if (own.facts && facts) {
        gs_hook_facts_write(own.facts, agreement->hooks);
        status = compare_all(agreement, &own, facts, comm, deadline);
    }
    free(own.facts);
    free(facts);
    return status;
}
