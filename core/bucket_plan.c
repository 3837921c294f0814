#include "core/bucket_plan.h"

#include <stdlib.h>
#include <string.h>

#include "core/memory.h"

#define NO_TENSOR SIZE_MAX

static uint64_t add_saturating(uint64_t a, uint64_t b) {
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

static uint64_t bytes_of_tensor(const gs_plan_tensor *tensor) {
    uint64_t bytes, element_bytes = tensor->element_bytes;
    if (!element_bytes) element_bytes = gs_dtype_bytes(tensor->dtype);
    return __builtin_mul_overflow(tensor->count, element_bytes, &bytes) ? UINT64_MAX : bytes;
}

// The open bucket of one (dtype, device), a list through assignment.next, and the limit in force.
typedef struct open_bucket {
    gs_dtype dtype;
    int device;
    size_t cursor;  // into the limits
    uint64_t bytes;
    size_t head, tail;
    size_t opened_at;  // position of the first member in the input; for the order of leftovers
} open_bucket;

typedef struct assignment {
    const gs_plan_request *request;
    gs_bucket_plan plan;
    open_bucket *keys;
    size_t num_keys;
    size_t *key_at;     // hash of (dtype, device) → number of the key + 1; linear probing
    size_t num_places;  // of key_at; a power of two, at most half of them taken
    size_t *next;       // tensor → the next one of its open bucket
} assignment;

// A request may name as many devices as tensors.
static open_bucket *find_key(assignment *work, const gs_plan_tensor *tensor) {
    const int64_t name[2] = {tensor->dtype, tensor->device};
    size_t last = work->num_places - 1, place = gs_hash64(name, sizeof name, 0) & last;
    for (; work->key_at[place]; place = (place + 1) & last) {
        open_bucket *key = &work->keys[work->key_at[place] - 1];
        if (key->dtype == tensor->dtype && key->device == tensor->device) return key;
    }
    open_bucket *key = &work->keys[work->num_keys++];
    work->key_at[place] = work->num_keys;
    *key = (open_bucket){.dtype = tensor->dtype, .device = tensor->device, .head = NO_TENSOR};
    return key;
}

static void emit_bucket(assignment *work, open_bucket *key, uint64_t limit_bytes) {
    gs_bucket_plan *plan = &work->plan;
    gs_plan_bucket *bucket = &plan->buckets[plan->num_buckets++];
    *bucket = (gs_plan_bucket){.limit_bytes = limit_bytes,
                               .bytes = key->bytes,
                               .dtype = key->dtype,
                               .device = key->device,
                               .first = plan->num_params};
    for (size_t i = key->head; i != NO_TENSOR; i = work->next[i])
        plan->params[plan->num_params++] = i;
    bucket->num_params = plan->num_params - bucket->first;
    key->head = NO_TENSOR;
    key->bytes = 0;
}

// Which tensor comes at a position. The list packed from its end, where none is given, is the reversed
// registration order: so its end is tensor 0.
static size_t tensor_at(const gs_plan_request *request, size_t position) {
    if (!request->order) return position;
    return request->order[request->from_end ? request->num_tensors - 1 - position : position];
}

static void assign_tensor(assignment *work, size_t position) {
    const gs_plan_request *request = work->request;
    size_t index = tensor_at(request, position);
    const gs_plan_tensor *tensor = &request->tensors[index];
    work->next[index] = NO_TENSOR;
    if (tensor->sparse) {
        open_bucket alone = {.dtype = tensor->dtype,
                             .device = tensor->device,
                             .head = index,
                             .bytes = bytes_of_tensor(tensor)};
        emit_bucket(work, &alone, 0);
        return;
    }
    open_bucket *key = find_key(work, tensor);
    if (key->head == NO_TENSOR) {
        key->head = index;
        key->opened_at = position;
    } else {
        work->next[key->tail] = index;
    }
    key->tail = index;
    key->bytes = add_saturating(key->bytes, bytes_of_tensor(tensor));
    uint64_t limit_bytes = request->limits_bytes[key->cursor];
    if (key->bytes >= limit_bytes) {
        emit_bucket(work, key, limit_bytes);
        if (key->cursor + 1 < request->num_limits) key->cursor++;
    }
}

static int compare_opened(const void *a, const void *b) {
    const open_bucket *left = a, *right = b;
    return left->opened_at < right->opened_at ? -1 : left->opened_at > right->opened_at;
}

static void emit_leftovers(assignment *work) {
    qsort(work->keys, work->num_keys, sizeof *work->keys, compare_opened);
    for (size_t k = 0; k < work->num_keys; k++) {
        open_bucket *key = &work->keys[k];
        if (key->head != NO_TENSOR)
            emit_bucket(work, key, work->request->limits_bytes[key->cursor]);
    }
}

// Buckets have moved: puts the members behind each other in the buckets' new order. `scratch` has
// room for all members.
static void gather_members(gs_bucket_plan *plan, size_t *scratch) {
    size_t used = 0;
    for (size_t b = 0; b < plan->num_buckets; b++) {
        gs_plan_bucket *bucket = &plan->buckets[b];
        memcpy(scratch + used, plan->params + bucket->first, bucket->num_params * sizeof *scratch);
        bucket->first = used;
        used += bucket->num_params;
    }
    if (used) memcpy(plan->params, scratch, used * sizeof *scratch);
}

// By smallest index, which is the first member's: without an explicit order members ascend.
static int compare_first_member(const void *a, const void *b, void *params) {
    const gs_plan_bucket *left = a, *right = b;
    const size_t *members = params;
    size_t l = members[left->first], r = members[right->first];
    return l < r ? -1 : l > r;
}

static void reverse_buckets(gs_bucket_plan *plan) {
    for (size_t b = 0; b < plan->num_buckets / 2; b++) {
        gs_plan_bucket swapped = plan->buckets[b];
        plan->buckets[b] = plan->buckets[plan->num_buckets - 1 - b];
        plan->buckets[plan->num_buckets - 1 - b] = swapped;
    }
}

static void reverse_members(gs_bucket_plan *plan) {
    for (size_t b = 0; b < plan->num_buckets; b++) {
        size_t *members = plan->params + plan->buckets[b].first;
        size_t count = plan->buckets[b].num_params;
        for (size_t i = 0; i < count / 2; i++) {
            size_t swapped = members[i];
            members[i] = members[count - 1 - i];
            members[count - 1 - i] = swapped;
        }
    }
}

static gs_status check_order(const size_t *order, size_t num_tensors) {
    uint8_t *seen = calloc(num_tensors ? num_tensors : 1, 1);
    if (!seen) return gs_error(GS_RESOURCE_EXHAUSTED, "bucket plan: out of memory");
    gs_status status = gs_ok();
    for (size_t i = 0; i < num_tensors && !status.code; i++) {
        if (order[i] >= num_tensors)
            status = gs_error(GS_INVALID_ARGUMENT, "order[%zu]: there is no parameter %zu of %zu",
                              i, order[i], num_tensors);
        else if (seen[order[i]])
            status = gs_error(GS_INVALID_ARGUMENT, "order[%zu]: parameter %zu is named twice", i,
                              order[i]);
        else
            seen[order[i]] = 1;
    }
    free(seen);
    return status;
}

static gs_status check_request(const gs_plan_request *request) {
    if (!request->num_limits) return gs_error(GS_INVALID_ARGUMENT, "limits: none given");
    if (request->from_end && request->reverse)
        return gs_error(GS_INVALID_ARGUMENT, "from_end: turns the list of buckets around itself");
    for (size_t i = 0; i < request->num_tensors; i++) {
        if (!gs_dtype_bytes(request->tensors[i].dtype))
            return gs_error(GS_INVALID_ARGUMENT, "tensor %zu: dtype unset", i);
        if (request->tensors[i].sparse_storage)
            return gs_error(GS_INVALID_ARGUMENT, "tensor %zu: stored sparsely, not supported", i);
    }
    if (request->order) return check_order(request->order, request->num_tensors);
    return gs_ok();
}

static gs_status alloc_plan(gs_bucket_plan *plan, size_t max_buckets, size_t max_params) {
    *plan = (gs_bucket_plan){0};
    plan->buckets = calloc(max_buckets ? max_buckets : 1, sizeof *plan->buckets);
    plan->params = calloc(max_params ? max_params : 1, sizeof *plan->params);
    if (plan->buckets && plan->params) return gs_ok();
    gs_bucket_plan_release(plan);
    return gs_error(GS_RESOURCE_EXHAUSTED, "bucket plan: out of memory");
}

static gs_status init_assignment(assignment *work, const gs_plan_request *request) {
    size_t num_tensors = request->num_tensors, places = num_tensors ? num_tensors : 1;
    *work = (assignment){.request = request, .num_places = 2};
    while (work->num_places < 2 * places) work->num_places *= 2;
    work->keys = calloc(places, sizeof *work->keys);
    work->key_at = calloc(work->num_places, sizeof *work->key_at);
    work->next = calloc(places, sizeof *work->next);
    if (!work->keys || !work->key_at || !work->next)
        return gs_error(GS_RESOURCE_EXHAUSTED, "bucket plan: out of memory");
    return alloc_plan(&work->plan, num_tensors, num_tensors);
}

static void release_assignment(assignment *work) {
    free(work->keys);
    free(work->key_at);
    free(work->next);
}

gs_status gs_bucket_plan_assign(gs_bucket_plan *out, const gs_plan_request *request) {
    GS_TRY(check_request(request));
    assignment work;
    gs_status status = init_assignment(&work, request);
    if (!status.code) {
        for (size_t i = 0; i < request->num_tensors; i++) assign_tensor(&work, i);
        emit_leftovers(&work);
        if (!request->order && !request->from_end)
            qsort_r(work.plan.buckets, work.plan.num_buckets, sizeof *work.plan.buckets,
                    compare_first_member, work.plan.params);
        if (request->reverse || request->from_end) reverse_buckets(&work.plan);
        gather_members(&work.plan, work.next);
        if (request->from_end) reverse_members(&work.plan);
        *out = work.plan;
    }
    release_assignment(&work);
    return status;
}

static gs_plan_tensor *tensors_of_params(const int *owners, const gs_param_spec *params,
                                         size_t num_params) {
    gs_plan_tensor *tensors = calloc(num_params ? num_params : 1, sizeof *tensors);
    if (!tensors) return NULL;
    for (size_t i = 0; i < num_params; i++)
        tensors[i] = (gs_plan_tensor){.count = gs_param_spec_count(&params[i]),
                                      .dtype = params[i].dtype,
                                      .device = owners ? owners[i] : 0,
                                      .element_bytes = gs_dtype_grad_bytes(params[i].dtype),
                                      .sparse = params[i].sparse};
    return tensors;
}

// Parameters are all on one device, so that owners can take its place as a key.
gs_status gs_bucket_plan_of_owned(gs_bucket_plan *out, const gs_plan_request *layout,
                                  const int *owners, const gs_param_spec *params,
                                  size_t num_params) {
    gs_plan_request request = *layout;
    gs_plan_tensor *tensors = tensors_of_params(owners, params, num_params);
    if (!tensors) return gs_error(GS_RESOURCE_EXHAUSTED, "bucket plan: out of memory");
    request.tensors = tensors;
    request.num_tensors = num_params;
    gs_status status = gs_bucket_plan_assign(out, &request);
    for (size_t b = 0; !status.code && b < out->num_buckets; b++) out->buckets[b].device = 0;
    free(tensors);
    return status;
}

gs_status gs_bucket_plan_of_params(gs_bucket_plan *out, const gs_plan_request *layout,
                                   const gs_param_spec *params, size_t num_params) {
    return gs_bucket_plan_of_owned(out, layout, NULL, params, num_params);
}

gs_status gs_bucket_plan_parity(gs_bucket_plan *out, const gs_param_spec *params, size_t num_params,
                                uint64_t first_bytes, uint64_t cap_bytes,
                                const size_t *ready_order) {
    return gs_bucket_plan_of_params(
        out,
        &(gs_plan_request){.limits_bytes = (const uint64_t[]){first_bytes, cap_bytes},
                           .num_limits = 2,
                           .order = ready_order,
                           .reverse = ready_order == NULL},
        params, num_params);
}

gs_status gs_bucket_plan_one_host(gs_bucket_plan *out, const gs_param_spec *params,
                                  size_t num_params, const size_t *ready_order) {
    return gs_bucket_plan_of_params(
        out,
        &(gs_plan_request){.limits_bytes = (const uint64_t[]){GS_HOST_LAST_BUCKET_BYTES,
                                                              GS_HOST_BUCKET_CAP_BYTES},
                           .num_limits = 2,
                           .order = ready_order,
                           .from_end = true},
        params, num_params);
}

// Words of a chain of digests, little-endian: what went before, then up to 62 more.
typedef struct digest_chain {
    uint64_t words[64];
    size_t num_words;
} digest_chain;

static void add_word(digest_chain *chain, uint64_t word) {
    if (chain->num_words == 64) {
        gs_digest digest = gs_digest_of(chain->words, sizeof chain->words);
        chain->words[0] = digest.high;
        chain->words[1] = digest.low;
        chain->num_words = 2;
    }
    chain->words[chain->num_words++] = word;
}

static bool has_hooks(const gs_bucket_plan *plan) {
    for (size_t b = 0; b < plan->num_buckets; b++) {
        if (plan->buckets[b].hook) return true;
    }
    return false;
}

// Hooks come last, and only where a plan names any: other plans have the digests of builds that knew none.
gs_digest gs_bucket_plan_digest(const gs_bucket_plan *plan) {
    digest_chain chain = {.num_words = 2};
    add_word(&chain, plan->num_params);
    add_word(&chain, plan->num_buckets);
    for (size_t b = 0; b < plan->num_buckets; b++) {
        const gs_plan_bucket *bucket = &plan->buckets[b];
        add_word(&chain, bucket->limit_bytes);
        add_word(&chain, bucket->bytes);
        add_word(&chain, (uint64_t)bucket->dtype);
        add_word(&chain, (uint64_t)(int64_t)bucket->device);
        add_word(&chain, bucket->num_params);
        for (size_t i = 0; i < bucket->num_params; i++)
            add_word(&chain, plan->params[bucket->first + i]);
    }
    bool names_hooks = has_hooks(plan);
    for (size_t b = 0; b < plan->num_buckets && names_hooks; b++)
        add_word(&chain, (uint64_t)(int64_t)plan->buckets[b].hook);
    return gs_digest_of(chain.words, chain.num_words * sizeof chain.words[0]);
}

gs_status gs_bucket_plan_copy(gs_bucket_plan *out, const gs_bucket_plan *plan) {
    gs_bucket_plan copy;
    GS_TRY(alloc_plan(&copy, plan->num_buckets, plan->num_params));
    copy.num_buckets = plan->num_buckets;
    copy.num_params = plan->num_params;
    if (plan->num_buckets)
        memcpy(copy.buckets, plan->buckets, plan->num_buckets * sizeof *copy.buckets);
    if (plan->num_params) memcpy(copy.params, plan->params, plan->num_params * sizeof *copy.params);
    *out = copy;
    return gs_ok();
}

static gs_status check_bucket(const gs_bucket_plan *plan, size_t index, const gs_param_spec *params,
                              size_t num_params) {
    const gs_plan_bucket *bucket = &plan->buckets[index];
    if (!bucket->num_params)
        return gs_error(GS_INVALID_ARGUMENT, "bucket %zu: has no parameters", index);
    if (bucket->hook < 0)
        return gs_error(GS_INVALID_ARGUMENT, "bucket %zu: hook %d", index, bucket->hook);
    if (bucket->first > plan->num_params || bucket->num_params > plan->num_params - bucket->first)
        return gs_error(GS_INVALID_ARGUMENT, "bucket %zu: members beyond the plan", index);
    for (size_t i = 0; i < bucket->num_params; i++) {
        size_t param = plan->params[bucket->first + i];
        if (param < num_params && params[param].dtype != bucket->dtype)
            return gs_error(GS_INVALID_ARGUMENT, "bucket %zu: is %s, parameter %zu \"%.60s\" is %s",
                            index, gs_dtype_name(bucket->dtype), param, params[param].name,
                            gs_dtype_name(params[param].dtype));
    }
    return gs_ok();
}

gs_status gs_bucket_plan_check(const gs_bucket_plan *plan, const gs_param_spec *params,
                               size_t num_params) {
    if (plan->num_params != num_params)
        return gs_error(GS_INVALID_ARGUMENT, "plan: has %zu parameters, the model %zu",
                        plan->num_params, num_params);
    size_t next = 0;
    for (size_t b = 0; b < plan->num_buckets; b++) {
        GS_TRY(check_bucket(plan, b, params, num_params));
        if (plan->buckets[b].first != next)
            return gs_error(GS_INVALID_ARGUMENT, "bucket %zu: members do not follow bucket %zu's",
                            b, b - 1);
        next += plan->buckets[b].num_params;
    }
    if (next != num_params)
        return gs_error(GS_INVALID_ARGUMENT, "plan: %zu parameters of %zu are in buckets", next,
                        num_params);
    return gs_status_prefix(check_order(plan->params, num_params), "plan");
}

void gs_bucket_plan_release(gs_bucket_plan *plan) {
    if (!plan) return;
    free(plan->buckets);
    free(plan->params);
    *plan = (gs_bucket_plan){0};
}

// The open chunk of one dtype, or of all.
typedef struct open_chunk {
    uint64_t bytes;
    size_t num_tensors;
    size_t opened_at;   // the chunk's first tensor
    size_t first_seen;  // the dtype's first tensor; for the order of leftovers
    bool seen;
} open_chunk;

static size_t chunk_slot(const gs_plan_tensor *tensor, bool per_type) {
    return per_type && (unsigned)tensor->dtype < GS_NUM_DTYPES ? (size_t)tensor->dtype : 0;
}

// Numbers the chunks that are still open, in order of their dtypes' first appearance.
static void close_leftovers(open_chunk *open, size_t *number_of, size_t *num_chunks) {
    for (;;) {
        size_t first = GS_NUM_DTYPES;
        for (size_t s = 0; s < GS_NUM_DTYPES; s++) {
            if (open[s].num_tensors &&
                (first == GS_NUM_DTYPES || open[s].first_seen < open[first].first_seen))
                first = s;
        }
        if (first == GS_NUM_DTYPES) return;
        number_of[open[first].opened_at] = (*num_chunks)++;
        open[first].num_tensors = 0;
    }
}

// While a chunk is open its tensors are marked by the position of its first one; when it closes the
// number is noted there, and the last loop looks the numbers up. A chunk without bytes never
// closes.
gs_status gs_take_tensors(size_t *chunk_of, size_t *num_chunks, const gs_plan_tensor *tensors,
                          size_t num_tensors, uint64_t limit_bytes, bool per_type) {
    *num_chunks = 0;
    size_t *number_of = calloc(num_tensors ? num_tensors : 1, sizeof *number_of);
    if (!number_of) return gs_error(GS_RESOURCE_EXHAUSTED, "chunks: out of memory");
    open_chunk open[GS_NUM_DTYPES] = {{0}};
    for (size_t i = 0; i < num_tensors; i++) {
        open_chunk *chunk = &open[chunk_slot(&tensors[i], per_type)];
        uint64_t bytes = bytes_of_tensor(&tensors[i]);
        if (!chunk->seen) chunk->first_seen = i;
        chunk->seen = true;
        if (chunk->bytes && add_saturating(chunk->bytes, bytes) > limit_bytes) {
            number_of[chunk->opened_at] = (*num_chunks)++;
            chunk->bytes = chunk->num_tensors = 0;
        }
        if (!chunk->num_tensors++) chunk->opened_at = i;
        chunk->bytes = add_saturating(chunk->bytes, bytes);
        chunk_of[i] = chunk->opened_at;
    }
    close_leftovers(open, number_of, num_chunks);
    for (size_t i = 0; i < num_tensors; i++) chunk_of[i] = number_of[chunk_of[i]];
    free(number_of);
    return gs_ok();
}
