#include "worker/pass/replica_step.h"

#include <stdlib.h>

#include "core/failpoint.h"
#include "core/log.h"

// How often a teardown says for whom it waits.
#define TEARDOWN_WAIT_SECONDS 2.0
// Of the time that a collective has, how long replicas of one rank may be apart.
#define LOCAL_SHARE 0.75

struct gs_replica_step {
    gs_replica_step_options options;
    gs_replicas *replicas;
    int count;
    gs_pass_runner *runners;  // each its replica's while a step runs; loaders owned, but that of 0
};

static gs_replicas_options replicas_options(const gs_reducer_options *whole,
                                            const gs_replica_set *set, const gs_job_spec *spec) {
    bool by_processes = spec->reducer.replica_divisor == GS_DIVISOR_PROCESSES;
    return (gs_replicas_options){.reducer = whole,
                                 .num_replicas = gs_replica_set_count(set),
                                 .devices = gs_replica_set_devices(set),
                                 .divisor =
                                     by_processes ? GS_DIVIDE_BY_PROCESSES : GS_DIVIDE_BY_REPLICAS};
}

gs_logical_shards gs_replica_step_shards(const gs_replica_set *set,
                                         const gs_logical_shards *shards) {
    return set ? gs_replicas_shards(shards, gs_replica_set_count(set), 0) : *shards;
}

gs_status gs_replica_step_reducer_options(gs_reducer_options *out, const gs_reducer_options *whole,
                                          const gs_replica_set *set, const gs_job_spec *spec) {
    if (!set) {
        *out = *whole;
        return gs_ok();
    }
    gs_replicas_options options = replicas_options(whole, set, spec);
    return gs_replicas_reducer_options(out, &options);
}

static gs_logical_shards shards_of(const gs_replica_step *step, int replica) {
    return gs_replicas_shards(&step->options.shards, step->count, replica);
}

static gs_status open_runner(gs_replica_step *step, int replica) {
    const gs_replica_step_options *options = &step->options;
    gs_pass_runner *runner = &step->runners[replica];
    *runner = (gs_pass_runner){.context = options->context,
                               .view = gs_replica_set_view(options->set, replica),
                               .loader = replica == 0 ? options->first_loader : NULL,
                               .replica = replica};
    if (replica == 0) return gs_ok();
    gs_data_loader_options loader = {.spec = options->spec,
                                     .split = GS_TRAIN,
                                     .data_root = options->data_root,
                                     .shards = shards_of(step, replica),
                                     .consumed = options->consumed};
    return gs_data_loader_open(&runner->loader, &loader);
}

gs_status gs_replica_step_create(gs_replica_step **out, const gs_replica_step_options *options) {
    *out = NULL;
    if (!options->set) return gs_ok();
    gs_replica_step *step = calloc(1, sizeof *step);
    if (!step) return gs_error(GS_RESOURCE_EXHAUSTED, "replicas: out of memory");
    step->options = *options;
    step->count = gs_replica_set_count(options->set);
    step->runners = calloc((size_t)step->count, sizeof *step->runners);
    gs_status status = gs_ok();
    if (!step->runners) status = gs_error(GS_RESOURCE_EXHAUSTED, "replicas: out of memory");
    for (int r = 0; r < step->count && !status.code; r++)
        status = gs_status_prefix(open_runner(step, r), "replica %d", r);
    if (status.code) {
        gs_replica_step_destroy(step);
        return status;
    }
    *out = step;
    return gs_ok();
}

// Nothing that a replica works with is freed under it. One that never comes back is as a
// communicator that cannot be aborted: the watch over teardowns ends the process.
static void await_replicas(gs_replica_step *step) {
    for (;;) {
        gs_status idle =
            gs_replica_set_wait(step->options.set, gs_deadline_in_seconds(TEARDOWN_WAIT_SECONDS));
        if (!idle.code) return;
        gs_log_warn("teardown waits", "rank=%d reason=\"%s\"", step->options.shards.rank,
                    idle.message);
    }
}

void gs_replica_step_destroy(gs_replica_step *step) {
    if (!step) return;
    await_replicas(step);
    gs_replicas_destroy(step->replicas);
    for (int r = 1; step->runners && r < step->count; r++)
        gs_data_loader_close(step->runners[r].loader);
    free(step->runners);
    free(step);
}

gs_status gs_replica_step_connect(gs_replica_step *step, const gs_reducer_options *whole,
                                  gs_reducer *reducer, gs_comm *comm, gs_deadline deadline) {
    if (!step) return gs_ok();
    gs_replicas_options options = replicas_options(whole, step->options.set, step->options.spec);
    GS_TRY(gs_replicas_create(&step->replicas, &options, reducer, comm, deadline));
    for (int r = 0; r < step->count; r++) step->runners[r].replicas = step->replicas;
    return gs_ok();
}

gs_status gs_replica_step_begin(gs_replica_step *step, int64_t number) {
    const gs_job_spec *spec = step->options.spec;
    int64_t passes =
        gs_logical_shards_count(&step->options.shards) * gs_job_spec_passes_per_shard(spec);
    return gs_replicas_begin(step->replicas, number, passes * spec->data.micro_batch);
}

static gs_status run_passes(gs_replica_step *step, int replica) {
    const gs_pass_context *context = step->options.context;
    gs_pass_runner *runner = &step->runners[replica];
    gs_replica_set_refresh(step->options.set, replica);
    // Statistics of the other replicas start as replica 0's do, and end with the step.
    if (replica > 0) {
        GS_FAILPOINT("replica_step.other");
        GS_TRY(gs_buffers_begin(runner->view.buffers, context->comm,
                                gs_pass_context_deadline(context)));
    }
    gs_logical_shards shards = shards_of(step, replica);
    int64_t num_passes =
        gs_logical_shards_count(&shards) * gs_job_spec_passes_per_shard(step->options.spec);
    for (int64_t i = 0; i < num_passes; i++) GS_TRY(gs_pass_runner_run(runner));
    return gs_ok();
}

static void run_replica(void *ctx, int replica) {
    gs_replica_step *step = ctx;
    step->runners[replica].sums = (gs_step_sums){0};
    // The first error of all is kept; one that came from there changes nothing.
    gs_replicas_fail(step->replicas, replica, run_passes(step, replica));
}

gs_status gs_replica_step_run(gs_replica_step *step, gs_step_sums *sums, gs_step_facts *facts) {
    step->runners[0].facts = facts;
    gs_replica_set_start(step->options.set, run_replica, step);
    run_replica(step, 0);
    // Sooner than other ranks give this one up: they only know the rank that did not come.
    gs_deadline deadline =
        gs_deadline_in_seconds(LOCAL_SHARE * step->options.context->timeout_seconds);
    gs_status status = gs_replicas_end(step->replicas, deadline);
    gs_status idle =
        gs_replica_set_wait(step->options.set, gs_pass_context_deadline(step->options.context));
    GS_TRY(status);
    GS_TRY(idle);
    // In replica order: the same sum whatever the timing.
    for (int r = 0; r < step->count; r++) {
        const gs_step_sums *own = &step->runners[r].sums;
        sums->loss += own->loss;
        sums->num_losses += own->num_losses;
        sums->samples += own->samples;
    }
    return gs_ok();
}

const size_t *gs_replica_step_ready_order(const gs_replica_step *step, size_t *num_ready) {
    return gs_replicas_ready_order(step->replicas, num_ready);
}
