#include "worker/data/data_loader.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "core/memory.h"
#include "core/thread.h"
#include "worker/data/rank_sampler.h"
#include "worker/data/sampler.h"

#define DEFAULT_RING_BATCHES 4
#define PRODUCER_WAIT_NS (10 * GS_NS_PER_SEC)

// Where the producer is in the sequence of this rank's micro-batches.
typedef struct cursor {
    int64_t consumed; // global samples before the current step
    int64_t batch;    // evaluation: how many global batches are done
    int shard_index;  // own shards, from 0
    int pass;
} cursor;

typedef struct slot {
    int32_t *tokens, *targets; // owned; (rows, positions)
    float *features;           // owned; (rows, row_features)
    int64_t num_rows;          // filled
    gs_status status;          // of filling it; OUT_OF_RANGE: evaluation ended
} slot;

struct gs_data_loader {
    gs_data_source source;
    gs_sampler sampler;
    gs_rank_sampler rank_sampler;
    gs_logical_shards shards;
    bool evaluates, splits_by_rank, joins_shards;
    int64_t num_eval_batches;
    int64_t rows;
    slot *ring; // owned
    int ring_slots;
    gs_thread *thread;

    // Owner's thread only.
    bool holds_slot; // the batch last given out still occupies the ring's head

    // Under the lock. The producer alone writes into slots [head + num_filled]; the owner reads the
    // head.
    pthread_mutex_t lock;
    pthread_cond_t changed;
    cursor next; // what the producer fills next
    int head, num_filled;
    bool stuck; // an error is in the ring: nothing more comes
};

static void advance(const gs_data_loader *loader, cursor *at) {
    if (++at->pass < loader->sampler.passes_per_shard) return;
    at->pass = 0;
    if (!loader->joins_shards && ++at->shard_index < gs_logical_shards_count(&loader->shards))
        return;
    at->shard_index = 0;
    at->consumed += loader->sampler.global_batch;
    at->batch++;
}

// The sample of a row; joined shards lie one after the other.
static int64_t sample_of_row(const gs_data_loader *loader, const cursor *at, int64_t row) {
    int64_t shard_rows = loader->sampler.global_batch / loader->sampler.num_shards /
                         loader->sampler.passes_per_shard;
    int passes = loader->sampler.passes_per_shard;
    int own_shard = at->shard_index + (int)(row / shard_rows);
    row %= shard_rows;
    if (loader->splits_by_rank)
        return gs_rank_sampler_index(&loader->rank_sampler, at->consumed,
                                     own_shard * passes + at->pass, row);
    int shard = gs_logical_shards_first(&loader->shards, loader->shards.rank) + own_shard;
    return gs_sampler_index(&loader->sampler, at->consumed, shard, at->pass, row);
}

static gs_status fill_rows(const gs_data_loader *loader, slot *to, const cursor *at) {
    const gs_dataset_shape *shape = &loader->source.shape;
    to->num_rows = loader->rows;
    if (loader->splits_by_rank && !loader->joins_shards)
        to->num_rows = gs_rank_sampler_rows(
            &loader->rank_sampler, at->consumed,
            at->shard_index * loader->sampler.passes_per_shard + at->pass);
    for (int64_t row = 0; row < to->num_rows; row++) {
        int64_t index = sample_of_row(loader, at, row);
        int64_t place = row * shape->positions;
        GS_TRY(gs_data_source_fill(&loader->source, index, to->tokens ? to->tokens + place : NULL,
                                   to->features ? to->features + row * shape->row_features : NULL,
                                   to->targets + place));
    }
    return gs_ok();
}

// Over the steps that others have data for and this rank has not.
static gs_status skip_to_own(const gs_data_loader *loader, cursor *at) {
    int64_t consumed = gs_rank_sampler_next_batch(&loader->rank_sampler, at->consumed);
    if (consumed < 0)
        return gs_error(GS_OUT_OF_RANGE, "training data: rank %d has read all of its part",
                        loader->shards.rank);
    at->consumed = consumed;
    return gs_ok();
}

// Fills one slot and moves the cursor on. Called with the lock held; filling itself runs without.
static void produce(gs_data_loader *loader) {
    cursor at = loader->next;
    slot *to = &loader->ring[(loader->head + loader->num_filled) % loader->ring_slots];
    bool ended = loader->evaluates && at.batch == loader->num_eval_batches;
    pthread_mutex_unlock(&loader->lock);

    gs_status status = gs_ok();
    if (loader->splits_by_rank && at.pass == 0 && at.shard_index == 0)
        status = skip_to_own(loader, &at);
    if (ended)
        status = gs_error(GS_OUT_OF_RANGE, "evaluation data: all batches were given out");
    else if (!status.code)
        status = fill_rows(loader, to, &at);
    pthread_mutex_lock(&loader->lock);
    to->status = status;
    loader->next = at;
    if (ended)
        loader->next = (cursor){0};
    else if (status.code)
        loader->stuck = true;
    else
        advance(loader, &loader->next);
    loader->num_filled++;
    pthread_cond_broadcast(&loader->changed);
}

static void run_producer(void *ctx, const atomic_bool *stopping) {
    gs_data_loader *loader = ctx;
    pthread_mutex_lock(&loader->lock);
    while (!atomic_load(stopping)) {
        if (loader->num_filled < loader->ring_slots && !loader->stuck)
            produce(loader);
        else
            gs_cond_wait(&loader->changed, &loader->lock, gs_deadline_in_ns(PRODUCER_WAIT_NS));
    }
    pthread_mutex_unlock(&loader->lock);
}

static gs_status alloc_ring(gs_data_loader *loader) {
    const gs_dataset_shape *shape = &loader->source.shape;
    size_t rows = (size_t)loader->rows;
    loader->ring = calloc((size_t)loader->ring_slots, sizeof *loader->ring);
    if (!loader->ring) return gs_error(GS_RESOURCE_EXHAUSTED, "data loader: out of memory");
    for (int i = 0; i < loader->ring_slots; i++) {
        slot *at = &loader->ring[i];
        size_t token_bytes, feature_bytes;
        if (!gs_bytes_of(&token_bytes, rows, (size_t)shape->positions * sizeof(int32_t)) ||
            !gs_bytes_of(&feature_bytes, rows, (size_t)shape->row_features * sizeof(float)))
            return gs_error(GS_INVALID_ARGUMENT, "data loader: the micro-batch is too large");
        at->targets = gs_alloc_aligned(token_bytes, 64);
        if (shape->row_features)
            at->features = gs_alloc_aligned(feature_bytes, 64);
        else
            at->tokens = gs_alloc_aligned(token_bytes, 64);
        if (!at->targets || !(at->tokens || at->features))
            return gs_error(GS_RESOURCE_EXHAUSTED, "data loader: out of memory");
    }
    return gs_ok();
}

static void free_loader(gs_data_loader *loader) {
    for (int i = 0; loader->ring && i < loader->ring_slots; i++) {
        free(loader->ring[i].tokens);
        free(loader->ring[i].targets);
        free(loader->ring[i].features);
    }
    free(loader->ring);
    gs_rank_sampler_release(&loader->rank_sampler);
    gs_data_source_close(&loader->source);
    pthread_cond_destroy(&loader->changed);
    pthread_mutex_destroy(&loader->lock);
    free(loader);
}

static gs_status describe_batches(gs_data_loader *loader, const gs_data_loader_options *options) {
    const gs_job_spec *spec = options->spec;
    int64_t passes = gs_job_spec_passes_per_shard(spec);
    loader->rows = spec->data.micro_batch;
    loader->sampler = (gs_sampler){
        .seed = (uint64_t)spec->data.shuffle_seed,
        .num_samples = loader->source.num_samples,
        .global_batch = spec->data.global_batch,
        .num_shards = options->shards.num_shards,
        .passes_per_shard = (int)passes,
        .shuffle = !loader->evaluates,
    };
    int64_t wanted = options->shards.num_shards * passes * loader->rows;
    if (loader->joins_shards) loader->rows *= gs_logical_shards_count(&options->shards);
    if (loader->rows < 1 || passes < 1 || wanted != spec->data.global_batch)
        return gs_error(GS_INVALID_ARGUMENT,
                        "data.global_batch %lld is not %d shards of %lld passes of %lld samples",
                        (long long)spec->data.global_batch, options->shards.num_shards,
                        (long long)passes, (long long)loader->rows);
    int64_t batches = loader->source.num_samples / spec->data.global_batch;
    if (batches > spec->data.eval_batches) batches = spec->data.eval_batches;
    loader->num_eval_batches = batches > 0 ? batches : 1;
    if (!loader->splits_by_rank) return gs_ok();
    return gs_rank_sampler_init(&loader->rank_sampler, &loader->source, spec, &options->shards);
}

gs_status gs_data_loader_open(gs_data_loader **out, const gs_data_loader_options *options) {
    gs_data_loader *loader = calloc(1, sizeof *loader);
    if (!loader) return gs_error(GS_RESOURCE_EXHAUSTED, "data loader: out of memory");
    pthread_mutex_init(&loader->lock, NULL);
    gs_cond_init(&loader->changed);
    loader->shards = options->shards;
    loader->evaluates = options->split == GS_EVAL;
    loader->splits_by_rank =
        !loader->evaluates && options->spec->data.split == GS_SPLIT_BY_RANK;
    loader->joins_shards = !loader->evaluates && options->joins_shards;
    loader->ring_slots = options->ring_batches > 0 ? options->ring_batches : DEFAULT_RING_BATCHES;
    // One slot is the batch that the owner looks at.
    if (loader->ring_slots < 2) loader->ring_slots = 2;
    if (!loader->evaluates) loader->next.consumed = options->consumed;

    gs_status status =
        gs_data_source_open(&loader->source, options->spec, options->split, options->data_root);
    if (!status.code) status = describe_batches(loader, options);
    if (!status.code) status = alloc_ring(loader);
    if (!status.code)
        status = gs_thread_start(&loader->thread, loader->evaluates ? "eval-loader" : "loader",
                                 run_producer, loader);
    if (status.code) {
        free_loader(loader);
        return status;
    }
    *out = loader;
    return gs_ok();
}

void gs_data_loader_close(gs_data_loader *loader) {
    if (!loader) return;
    gs_thread_ask_to_stop(loader->thread);
    pthread_mutex_lock(&loader->lock);
    pthread_cond_broadcast(&loader->changed);
    pthread_mutex_unlock(&loader->lock);
    gs_thread_stop(loader->thread);
    free_loader(loader);
}

static void release_head(gs_data_loader *loader) {
    loader->holds_slot = false;
    loader->head = (loader->head + 1) % loader->ring_slots;
    loader->num_filled--;
    pthread_cond_broadcast(&loader->changed);
}

static bool wait_filled(gs_data_loader *loader, gs_deadline deadline) {
    while (!loader->num_filled && gs_cond_wait(&loader->changed, &loader->lock, deadline)) {
    }
    return loader->num_filled > 0;
}

gs_status gs_data_loader_next(gs_data_loader *loader, gs_batch *batch, gs_deadline deadline) {
    pthread_mutex_lock(&loader->lock);
    if (loader->holds_slot) release_head(loader);
    bool filled = wait_filled(loader, deadline);
    slot *head = &loader->ring[loader->head];
    gs_status status = filled ? head->status : gs_ok();
    // An error stays at the head and is given again; the end of an evaluation is given once.
    if (filled && !status.code) loader->holds_slot = true;
    if (filled && status.code == GS_OUT_OF_RANGE) release_head(loader);
    int64_t consumed = loader->next.consumed;
    pthread_mutex_unlock(&loader->lock);
    if (!filled)
        return gs_error(GS_DEADLINE_EXCEEDED,
                        "data loader: the batch near global sample %lld was not read in time",
                        (long long)consumed);
    if (status.code) return status;
    const gs_dataset_shape *shape = &loader->source.shape;
    *batch = (gs_batch){
        .rows = (size_t)head->num_rows,
        .positions = (size_t)shape->positions,
        .row_features = (size_t)shape->row_features,
        .tokens = head->tokens,
        .features = head->features,
        .targets = head->targets,
    };
    return gs_ok();
}

bool gs_data_loader_has_batch(const gs_data_loader *loader, int64_t consumed) {
    return !loader->splits_by_rank || gs_rank_sampler_has_batch(&loader->rank_sampler, consumed);
}

bool gs_data_loader_begins_epoch(const gs_data_loader *loader, int64_t consumed) {
    if (!loader->splits_by_rank) return false;
    const gs_rank_sampler *sampler = &loader->rank_sampler;
    return consumed / sampler->global_batch % sampler->steps_per_epoch == 0;
}

int64_t gs_data_loader_positions(const gs_data_loader *loader) {
    return loader->source.shape.positions;
}

gs_batch gs_data_loader_largest(const gs_data_loader *loader) {
    const gs_dataset_shape *shape = &loader->source.shape;
    return (gs_batch){.rows = (size_t)loader->rows,
                      .positions = (size_t)shape->positions,
                      .row_features = (size_t)shape->row_features};
}

gs_digest gs_data_loader_digest(const gs_data_loader *loader) {
    return loader->source.shape.digest;
}
