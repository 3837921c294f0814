#include "rpc/schema/job_memory.h"

#include <stdlib.h>
#include <string.h>

#include "core/subtrees.h"
#include "rpc/schema/job_plan.h"

#define LINE_BYTES ((uint64_t)64)
#define BUCKET_BYTES ((uint64_t)256)
#define FLOAT_BYTES ((uint64_t)4)

// What other rooms have by these names; tests/unit/worker/test_job_memory.c tells who changes one.
// Windows (worker/state/sharding.c).
#define NUM_WINDOWS 4
// Behind the members of a bucket (gradsync/bucket/bucket.h).
#define NUM_RESERVED 4
// Control block and one lane of shared memory (gradsync/comm/shm/segment.h).
#define CONTROL_BYTES ((uint64_t)4 << 10)
#define LANE_BYTES ((uint64_t)774 << 10)
// Pinned pieces (worker/state/device_copy.h, gradsync/optim/host_update.h).
#define COPY_PIECES_BYTES ((uint64_t)16 << 20)
#define UPDATE_PIECES_BYTES ((uint64_t)16 << 20)

#define MOST_ENTRIES 256

static uint64_t round_up(uint64_t bytes, uint64_t boundary) {
    return (bytes + boundary - 1) / boundary * boundary;
}

static bool is_16_bit(const gs_job_spec *spec) {
    return spec->model.precision == GS_PRECISION_BF16 || spec->model.precision == GS_PRECISION_FP16;
}

// ---- activations: what worker/models lists of a pass, each tensor on a line

static uint64_t tensor_bytes(uint64_t rows, uint64_t cols, uint64_t element_bytes) {
    return round_up(rows * cols * element_bytes, LINE_BYTES);
}

static uint64_t gpt2_activations(const gs_job_spec *spec, uint64_t rows, uint64_t element_bytes) {
    uint64_t channels = (uint64_t)spec->model.gpt2.channels;
    uint64_t positions = rows * (uint64_t)spec->model.gpt2.context;
    uint64_t narrow = tensor_bytes(positions, channels, element_bytes);
    uint64_t wide = tensor_bytes(positions, 4 * channels, element_bytes);
    uint64_t row = tensor_bytes(positions, 1, FLOAT_BYTES);
    uint64_t layer = 5 * narrow + 2 * wide + 4 * row +
                     tensor_bytes(positions, 3 * channels, element_bytes) +
                     tensor_bytes(positions, (uint64_t)spec->model.gpt2.heads, FLOAT_BYTES);
    uint64_t logits =
        tensor_bytes(positions, round_up((uint64_t)spec->model.gpt2.vocab, 8), element_bytes);
    return (uint64_t)spec->model.gpt2.layers * layer + 5 * narrow + wide + 3 * row + logits +
           tensor_bytes(2 * 64, channels, FLOAT_BYTES);
}

static uint64_t mlp_activations(const gs_job_spec *spec, uint64_t rows) {
    uint64_t bytes = tensor_bytes(rows, 1, FLOAT_BYTES) + 2 * LINE_BYTES, widest = 0;
    int num_layers = spec->model.mlp.num_dims - 1;
    for (int i = 1; i <= num_layers; i++) {
        uint64_t out = (uint64_t)spec->model.mlp.dims[i];
        bool has_norm = i < num_layers && spec->model.mlp.batch_norm != GS_BATCH_NORM_NONE;
        if (out > widest) widest = out;
        bytes += tensor_bytes(rows, out, FLOAT_BYTES);
        if (has_norm)
            bytes += tensor_bytes(rows, out, FLOAT_BYTES) + 2 * tensor_bytes(out, 1, FLOAT_BYTES);
    }
    return bytes + 3 * tensor_bytes(rows, widest, FLOAT_BYTES);
}

// On a GPU GPT-2 computes in 16 bits, and nothing else does.
static bool computes_in_16_bits(const gs_job_spec *spec, bool on_gpu) {
    return on_gpu && is_16_bit(spec) && spec->model.kind == GS_MODEL_GPT2;
}

uint64_t gs_job_memory_activations(const gs_job_spec *spec, bool on_gpu) {
    uint64_t rows = (uint64_t)gs_job_spec_most_rows(spec);
    if (spec->model.kind == GS_MODEL_MLP) return mlp_activations(spec, rows);
    return gpt2_activations(spec, rows, computes_in_16_bits(spec, on_gpu) ? 2 : FLOAT_BYTES);
}

// ---- who owns how much

typedef struct foresight {
    const gs_job_memory_request *request;
    bool is_sharded, is_flat;
    bool splits_masters;  // in halves: the upper ones are what passes read
    int num_states;       // of the optimizer
    uint64_t num_elements;
    uint64_t *owned;  // of each rank: elements, of flat shards with their padding
} foresight;

static uint64_t count_of(const foresight *all, size_t param) {
    return gs_param_spec_count(&all->request->params[param]);
}

// Members on lines, and even parts of lines where the bucket is cut.
static uint64_t bucket_grads_bytes(const foresight *all, size_t bucket) {
    int parts = all->is_flat ? all->request->world_size : 1;
    size_t count = gs_job_plan_part_count(parts, all->request->plan, bucket, all->request->params);
    return count * (uint64_t)parts * FLOAT_BYTES;
}

// With room for what ranks say of the step, whether they say it there or apart.
static uint64_t bucket_bytes(const foresight *all, size_t bucket) {
    size_t num_reserved = all->request->plan->buckets[bucket].num_params + NUM_RESERVED;
    uint64_t reserved = round_up(num_reserved * FLOAT_BYTES, LINE_BYTES);
    return round_up(bucket_grads_bytes(all, bucket) + reserved, BUCKET_BYTES);
}

static gs_status list_owners(int **owners, const gs_job_memory_request *request) {
    GS_TRY(gs_job_plan_owners(owners, request->spec, request->world_size, request->params,
                              request->num_params));
    if (*owners) return gs_ok();
    return gs_job_plan_bucket_owners(owners, request->spec, request->world_size, request->plan,
                                     request->params, request->num_params);
}

static void count_flat(foresight *all) {
    const gs_bucket_plan *plan = all->request->plan;
    uint64_t bytes = 0;
    for (size_t b = 0; b < plan->num_buckets; b++) bytes += bucket_grads_bytes(all, b);
    for (int rank = 0; rank < all->request->world_size; rank++)
        all->owned[rank] = bytes / FLOAT_BYTES / (uint64_t)all->request->world_size;
}

static gs_status count_owned(foresight *all) {
    const gs_job_memory_request *request = all->request;
    int *owners = NULL;
    all->owned = calloc((size_t)request->world_size, sizeof *all->owned);
    if (!all->owned) return gs_error(GS_RESOURCE_EXHAUSTED, "memory of ranks: out of memory");
    for (size_t i = 0; i < request->num_params; i++) all->num_elements += count_of(all, i);
    if (all->is_sharded) GS_TRY(list_owners(&owners, request));
    all->is_flat = gs_job_plan_is_cut(request->spec);
    for (size_t i = 0; owners && i < request->num_params; i++)
        all->owned[owners[i]] += count_of(all, i);
    for (int rank = 0; rank < request->world_size && !all->is_sharded; rank++)
        all->owned[rank] = all->num_elements;
    if (all->is_flat) count_flat(all);
    free(owners);
    return gs_ok();
}

// ---- what it comes to

static int count_states(const gs_job_spec *spec) {
    if (spec->optimizer.kind != GS_OPTIMIZER_SGD) return 2;
    return spec->optimizer.momentum != 0 ? 1 : 0;
}

// Where gathers have them, of the precision's type.
static uint64_t gathered_bytes(const foresight *all) {
    const gs_job_memory_request *request = all->request;
    uint64_t bytes = 0, share = is_16_bit(request->spec) ? 2 : 1;
    for (size_t b = 0; b < request->plan->num_buckets && all->is_sharded; b++)
        bytes += round_up(bucket_grads_bytes(all, b) / share, BUCKET_BYTES);
    return bytes;
}

static uint64_t whole_bytes(const foresight *all) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < all->request->num_params; i++)
        bytes += round_up(count_of(all, i) * FLOAT_BYTES, LINE_BYTES);
    return bytes;
}

// Once for passes, once for the optimizer where that updates something else; once more for kernels
// of fp32 where 16 bits are gathered.
static void add_params(gs_job_memory *memory, const foresight *all, int rank) {
    const gs_job_memory_request *request = all->request;
    const gs_job_spec *spec = request->spec;
    bool is_half = computes_in_16_bits(spec, request->on_gpu);
    memory->params_bytes = gathered_bytes(all);
    if (!all->is_sharded)
        memory->params_bytes = whole_bytes(all) / (is_half ? 2 : 1);
    else if (is_16_bit(spec) && !is_half)
        memory->params_bytes += whole_bytes(all);
    if (!is_16_bit(spec)) return;
    uint64_t owned = all->owned[rank] * FLOAT_BYTES;
    memory->masters_bytes = all->splits_masters ? owned / 2 : owned;
}

// Partial sums that are there at once on any rank.
static uint64_t count_slots(const gs_job_memory_request *request) {
    int64_t num_shards = request->spec->logical_shards, world_size = request->world_size;
    int most = 1;
    for (int64_t rank = 0; rank < world_size && request->spec->exact; rank++) {
        int first = (int)(rank * num_shards / world_size);
        int end = (int)((rank + 1) * num_shards / world_size);
        int slots = gs_subtrees_most((int)num_shards, first, end);
        if (slots > most) most = slots;
    }
    return (uint64_t)most;
}

// Gradients of passes that are rounded to 16 bits before they are added; in windows each pass has
// its own.
static uint64_t pass_grads_bytes(const foresight *all) {
    const gs_job_spec *spec = all->request->spec;
    bool one_pass = spec->logical_shards == 1 || spec->exact;
    bool adds = (!one_pass || gs_job_spec_passes_per_shard(spec) > 1) &&
                spec->reducer.sharding != GS_SHARDING_GRADIENTS;
    bool rounds = is_16_bit(spec) && !computes_in_16_bits(spec, all->request->on_gpu);
    return rounds && adds ? all->num_elements * FLOAT_BYTES : 0;
}

// The classifier of GPT-2 writes the tied embedding's gradient long before its turn: it has a place
// of its own.
static bool opens_early(const foresight *all, const gs_plan_bucket *bucket) {
    const size_t *members = all->request->plan->params + bucket->first;
    bool early = false;
    for (size_t i = 0; i < bucket->num_params; i++) early |= members[i] == 0;
    return early && all->request->spec->model.kind == GS_MODEL_GPT2;
}

static void add_windowed_grads(gs_job_memory *memory, const foresight *all) {
    const gs_job_memory_request *request = all->request;
    const gs_bucket_plan *plan = request->plan;
    bool adds_up = request->spec->logical_shards > request->world_size ||
                   gs_job_spec_passes_per_shard(request->spec) > 1;
    uint64_t windows[NUM_WINDOWS] = {0};
    size_t num_dealt = 0;
    for (size_t b = 0; b < plan->num_buckets; b++) {
        uint64_t bytes = round_up(bucket_grads_bytes(all, b), BUCKET_BYTES);
        uint64_t part = bucket_grads_bytes(all, b) / (uint64_t)request->world_size;
        bool has_place = opens_early(all, &plan->buckets[b]);
        if (has_place) memory->gradients_bytes += bytes;
        if (!has_place || adds_up) memory->gradients_bytes += part;
        if (has_place) continue;
        uint64_t *window = &windows[num_dealt++ % NUM_WINDOWS];
        if (bytes > *window) *window = bytes;
    }
    memory->gradients_bytes = round_up(memory->gradients_bytes, BUCKET_BYTES);
    for (int w = 0; w < NUM_WINDOWS; w++) memory->windows_bytes += windows[w];
}

static void add_grads(gs_job_memory *memory, const foresight *all) {
    const gs_bucket_plan *plan = all->request->plan;
    memory->gradients_bytes = pass_grads_bytes(all);
    if (all->request->spec->reducer.sharding == GS_SHARDING_GRADIENTS) {
        add_windowed_grads(memory, all);
        return;
    }
    uint64_t slot = 0;
    for (size_t b = 0; b < plan->num_buckets; b++) slot += bucket_bytes(all, b);
    memory->gradients_bytes += slot * count_slots(all->request);
}

// Masters or parameters, and the state.
static uint64_t saved_bytes(const foresight *all, int rank) {
    return all->owned[rank] * FLOAT_BYTES * (uint64_t)(1 + all->num_states);
}

// As worker/pass/backward_update.c, but for what ranks know alone: whether they have a core to
// spare.
static bool may_undo(const gs_job_memory_request *request) {
    const gs_job_spec *spec = request->spec;
    bool overlaps = spec->reducer.zero_overlap != GS_ZERO_OVERLAP_OFF;
    bool is_wanted = spec->optimizer.in_backward || overlaps;
    bool travels = request->on_gpu || request->world_size > 1;
    return is_wanted && travels && !(spec->optimizer.grad_clip_norm > 0);
}

// Of a copy: at the end of a run the host writes its own memory as it is.
static uint64_t snapshot_bytes(const foresight *all, int rank) {
    const gs_job_spec *spec = all->request->spec;
    bool by_all = all->is_sharded || spec->checkpoint.parts == GS_CHECKPOINT_PARTS_RANKS;
    int64_t every_steps = spec->checkpoint.every_steps;
    bool is_periodic = every_steps > 0 ? every_steps < spec->steps.target : spec->checkpoint.every_seconds > 0;
    bool copies = all->request->on_gpu || is_periodic;
    return copies && (by_all || rank == 0) ? saved_bytes(all, rank) : 0;
}

static void add_exchange(gs_job_memory *memory, const foresight *all) {
    bool talks = all->request->world_size > 1 && !all->request->on_gpu;
    uint64_t lanes = all->is_sharded ? 2 : 1;
    if (talks) memory->exchange_bytes = CONTROL_BYTES + lanes * LANE_BYTES;
}

static bool offloads(const gs_job_memory_request *request) {
    return request->on_gpu && request->spec->optimizer.offload;
}

static gs_job_memory foresee_rank(const foresight *all, int rank) {
    const gs_job_memory_request *request = all->request;
    gs_job_memory memory = {
        .optimizer_bytes = all->owned[rank] * FLOAT_BYTES * (uint64_t)all->num_states,
        .undo_bytes = may_undo(request) ? saved_bytes(all, rank) : 0,
        .activations_bytes = gs_job_memory_activations(request->spec, request->on_gpu),
        .snapshot_bytes = snapshot_bytes(all, rank),
        .staging_bytes = (request->on_gpu ? COPY_PIECES_BYTES : 0) +
                         (offloads(request) ? UPDATE_PIECES_BYTES : 0)};
    add_params(&memory, all, rank);
    add_grads(&memory, all);
    add_exchange(&memory, all);
    memory.total_bytes = memory.params_bytes + memory.masters_bytes + memory.gradients_bytes +
                         memory.windows_bytes + memory.optimizer_bytes + memory.undo_bytes +
                         memory.activations_bytes + memory.exchange_bytes + memory.snapshot_bytes +
                         memory.staging_bytes;
    memory.host_bytes =
        request->on_gpu ? memory.snapshot_bytes + memory.staging_bytes : memory.total_bytes;
    if (offloads(request)) memory.host_bytes += memory.optimizer_bytes;
    return memory;
}

gs_status gs_job_memory_foresee(gs_job_memory **out, const gs_job_memory_request *request) {
    const gs_job_spec *spec = request->spec;
    foresight all = {.request = request,
                     .is_sharded = spec->reducer.sharding != GS_SHARDING_NONE,
                     .splits_masters = computes_in_16_bits(spec, request->on_gpu) &&
                                       spec->model.precision == GS_PRECISION_BF16 &&
                                       !spec->optimizer.offload &&
                                       spec->optimizer.kind != GS_OPTIMIZER_SGD,
                     .num_states = count_states(spec)};
    *out = NULL;
    gs_status status = count_owned(&all);
    gs_job_memory *list = calloc((size_t)request->world_size, sizeof *list);
    if (!status.code && !list)
        status = gs_error(GS_RESOURCE_EXHAUSTED, "memory of ranks: out of memory");
    for (int rank = 0; rank < request->world_size && !status.code; rank++)
        list[rank] = foresee_rank(&all, rank);
    free(all.owned);
    if (status.code)
        free(list);
    else
        *out = list;
    return status;
}

// ---- for people

static gs_json *rank_to_json(const gs_job_memory *memory, int first, int last) {
    const struct {
        const char *name;
        uint64_t bytes;
    } members[] = {{"params_bytes", memory->params_bytes},
                   {"masters_bytes", memory->masters_bytes},
                   {"gradients_bytes", memory->gradients_bytes},
                   {"windows_bytes", memory->windows_bytes},
                   {"optimizer_bytes", memory->optimizer_bytes},
                   {"undo_bytes", memory->undo_bytes},
                   {"activations_bytes", memory->activations_bytes},
                   {"exchange_bytes", memory->exchange_bytes},
                   {"snapshot_bytes", memory->snapshot_bytes},
                   {"staging_bytes", memory->staging_bytes},
                   {"total_bytes", memory->total_bytes},
                   {"host_bytes", memory->host_bytes}};
    gs_json *entry = gs_json_new_object();
    gs_json_set_int(entry, "first_rank", first);
    gs_json_set_int(entry, "last_rank", last);
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        gs_json_set_int(entry, members[i].name, (int64_t)members[i].bytes);
    return entry;
}

static gs_json *list_not_counted(const gs_job_spec *spec) {
    gs_json *names = gs_json_new_array();
    if (!gs_job_hook_is_sum(&spec->reducer.hook))
        gs_json_push(names, gs_json_new_string("reducer.hook"));
    if (spec->reducer.sparse_embedding != GS_SPARSE_OFF)
        gs_json_push(names, gs_json_new_string("reducer.sparse_embedding"));
    if (spec->world.replicas_per_process > 1)
        gs_json_push(names, gs_json_new_string("world.replicas_per_process"));
    return names;
}

// Of neighbours that hold as much; beyond the most entries, of the one that holds most.
static void list_ranks(gs_json *ranks, const gs_job_memory *list, int world_size) {
    int next, largest = 0;
    for (int rank = 1; rank < world_size; rank++)
        if (list[rank].total_bytes > list[largest].total_bytes) largest = rank;
    for (int first = 0; first < world_size; first = next) {
        bool is_last = gs_json_count(ranks) + 1 == MOST_ENTRIES;
        for (next = first + 1; next < world_size; next++)
            if (!is_last && memcmp(&list[first], &list[next], sizeof *list) != 0) break;
        gs_json_push(ranks, rank_to_json(&list[is_last ? largest : first], first, next - 1));
    }
}

gs_status gs_job_memory_to_json(gs_json **out, const gs_job_memory_request *request) {
    gs_job_memory *list;
    *out = NULL;
    GS_TRY(gs_job_memory_foresee(&list, request));
    gs_json *ranks = gs_json_new_array();
    list_ranks(ranks, list, request->world_size);
    free(list);
    *out = gs_json_new_object();
    gs_json_set_string(*out, "device", request->on_gpu ? "cuda" : "cpu");
    gs_json_set(*out, "ranks", ranks);
    gs_json_set(*out, "not_counted", list_not_counted(request->spec));
    return gs_ok();
}
