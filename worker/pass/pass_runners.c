#include "worker/pass/pass_runners.h"

#include <stdlib.h>

#include "core/failpoint.h"
#include "core/log.h"

// How often a teardown says for whom it waits.
#define TEARDOWN_WAIT_SECONDS 2.0
// Of the time that a collective has, how long replicas of one rank may be apart.
#define LOCAL_SHARE 0.75

struct gs_pass_runners {
    gs_pass_runners_options options;
    gs_replicas *replicas;
    int count;
    gs_pass_runner *each;  // its replica's while a step runs; loaders owned, but that of 0
};

static gs_replicas_options replicas_options(const gs_reducer_options *whole,
                                            const gs_model_replicas *models,
                                            const gs_job_spec *spec) {
    bool by_processes = spec->reducer.replica_divisor == GS_DIVISOR_PROCESSES;
    return (gs_replicas_options){.reducer = whole,
                                 .num_replicas = gs_model_replicas_count(models),
                                 .devices = gs_model_replicas_devices(models),
                                 .divisor =
                                     by_processes ? GS_DIVIDE_BY_PROCESSES : GS_DIVIDE_BY_REPLICAS};
}

gs_logical_shards gs_pass_runners_shards(const gs_model_replicas *models,
                                         const gs_logical_shards *shards) {
    return models ? gs_replicas_shards(shards, gs_model_replicas_count(models), 0) : *shards;
}

gs_status gs_pass_runners_reducer_options(gs_reducer_options *out, const gs_reducer_options *whole,
                                          const gs_model_replicas *models,
                                          const gs_job_spec *spec) {
    if (!models) {
        *out = *whole;
        return gs_ok();
    }
    gs_replicas_options options = replicas_options(whole, models, spec);
    return gs_replicas_reducer_options(out, &options);
}

static gs_logical_shards shards_of(const gs_pass_runners *runners, int replica) {
    return gs_replicas_shards(&runners->options.shards, runners->count, replica);
}

static gs_status open_runner(gs_pass_runners *runners, int replica) {
    const gs_pass_runners_options *options = &runners->options;
    gs_pass_runner *runner = &runners->each[replica];
    *runner = (gs_pass_runner){.context = options->context,
                               .view = gs_model_replicas_view(options->models, replica),
                               .loader = replica == 0 ? options->first_loader : NULL,
                               .replica = replica};
    if (replica == 0) return gs_ok();
    gs_data_loader_options loader = {.spec = options->spec,
                                     .split = GS_TRAIN,
                                     .data_root = options->data_root,
                                     .shards = shards_of(runners, replica),
                                     .consumed = options->consumed};
    return gs_data_loader_open(&runner->loader, &loader);
}

gs_status gs_pass_runners_create(gs_pass_runners **out, const gs_pass_runners_options *options) {
    *out = NULL;
    if (!options->models) return gs_ok();
    gs_pass_runners *runners = calloc(1, sizeof *runners);
    if (!runners) return gs_error(GS_RESOURCE_EXHAUSTED, "replicas: out of memory");
    runners->options = *options;
    runners->count = gs_model_replicas_count(options->models);
    runners->each = calloc((size_t)runners->count, sizeof *runners->each);
    gs_status status = gs_ok();
    if (!runners->each) status = gs_error(GS_RESOURCE_EXHAUSTED, "replicas: out of memory");
    for (int r = 0; r < runners->count && !status.code; r++)
        status = gs_status_prefix(open_runner(runners, r), "replica %d", r);
    if (status.code) {
        gs_pass_runners_destroy(runners);
        return status;
    }
    *out = runners;
    return gs_ok();
}

// Nothing that a replica works with is freed under it. One that never comes back is as a
// communicator that cannot be aborted: the watch over teardowns ends the process.
static void await_replicas(gs_pass_runners *runners) {
    for (;;) {
        gs_status idle = gs_model_replicas_wait(runners->options.models,
                                                gs_deadline_in_seconds(TEARDOWN_WAIT_SECONDS));
        if (!idle.code) return;
        gs_log_warn("teardown waits", "rank=%d reason=\"%s\"", runners->options.shards.rank,
                    idle.message);
    }
}

void gs_pass_runners_destroy(gs_pass_runners *runners) {
    if (!runners) return;
    await_replicas(runners);
    gs_replicas_destroy(runners->replicas);
    for (int r = 1; runners->each && r < runners->count; r++)
        gs_data_loader_close(runners->each[r].loader);
    free(runners->each);
    free(runners);
}

gs_status gs_pass_runners_connect(gs_pass_runners *runners, const gs_reducer_options *whole,
                                  gs_reducer *reducer, gs_comm *comm, gs_deadline deadline) {
    if (!runners) return gs_ok();
    gs_replicas_options options =
        replicas_options(whole, runners->options.models, runners->options.spec);
    GS_TRY(gs_replicas_create(&runners->replicas, &options, reducer, comm, deadline));
    for (int r = 0; r < runners->count; r++) runners->each[r].replicas = runners->replicas;
    return gs_ok();
}

gs_status gs_pass_runners_begin(gs_pass_runners *runners, int64_t number) {
    const gs_job_spec *spec = runners->options.spec;
    int64_t passes =
        gs_logical_shards_count(&runners->options.shards) * gs_job_spec_passes_per_shard(spec);
    return gs_replicas_begin(runners->replicas, number, passes * spec->data.micro_batch);
}

static gs_status run_passes(gs_pass_runners *runners, int replica) {
    const gs_pass_context *context = runners->options.context;
    gs_pass_runner *runner = &runners->each[replica];
    gs_model_replicas_refresh(runners->options.models, replica);
    // Statistics of the other replicas start as replica 0's do, and end with the step.
    if (replica > 0) {
        GS_FAILPOINT("pass_runners.other");
        GS_TRY(gs_buffers_begin(runner->view.buffers, context->comm,
                                gs_pass_context_deadline(context)));
    }
    gs_logical_shards shards = shards_of(runners, replica);
    int64_t num_passes =
        gs_logical_shards_count(&shards) * gs_job_spec_passes_per_shard(runners->options.spec);
    for (int64_t i = 0; i < num_passes; i++) GS_TRY(gs_pass_runner_run(runner));
    return gs_ok();
}

static void run_replica(void *ctx, int replica) {
    gs_pass_runners *runners = ctx;
    runners->each[replica].sums = (gs_step_sums){0};
    // The first error of all is kept; one that came from there changes nothing.
    gs_replicas_fail(runners->replicas, replica, run_passes(runners, replica));
}

gs_status gs_pass_runners_run(gs_pass_runners *runners, gs_step_sums *sums, gs_step_facts *facts) {
    runners->each[0].facts = facts;
    gs_model_replicas_start(runners->options.models, run_replica, runners);
    run_replica(runners, 0);
    // Sooner than other ranks give this one up: they only know the rank that did not come.
    gs_deadline deadline =
        gs_deadline_in_seconds(LOCAL_SHARE * runners->options.context->timeout_seconds);
    gs_status status = gs_replicas_end(runners->replicas, deadline);
    gs_status idle = gs_model_replicas_wait(runners->options.models,
                                            gs_pass_context_deadline(runners->options.context));
    GS_TRY(status);
    GS_TRY(idle);
    // In replica order: the same sum whatever the timing.
    for (int r = 0; r < runners->count; r++) {
        const gs_step_sums *own = &runners->each[r].sums;
        sums->loss += own->loss;
        sums->num_losses += own->num_losses;
        sums->samples += own->samples;
    }
    return gs_ok();
}

const size_t *gs_pass_runners_ready_order(const gs_pass_runners *runners, size_t *num_ready) {
    return gs_replicas_ready_order(runners->replicas, num_ready);
}
