#include "gradsync/comm/introduction.h"

#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/digest.h"
#include "core/version.h"
#include "gradsync/comm/comm_backend.h"

// To be raised when what follows it changes.
#define PROTOCOL 2
#define MOST_GROUP_BYTES 40

typedef struct introduction {
    uint32_t protocol, generation;
    int32_t rank, world_size, num_lanes;
    char version[20];  // of the library, and its GS_ABI_VERSION: what structs ranks share
    char group[MOST_GROUP_BYTES];
    char backend[32];
    char device[16];   // "cpu", "cuda"
    uint64_t members;  // digest of `ranks`
} introduction;
static_assert(sizeof(introduction) == 136, "an introduction has no padding");
static_assert(sizeof(introduction) <= GS_STAGE_PAYLOAD_BYTES, "an introduction is one round");

const char *gs_introduction_backend(const gs_comm_options *options) {
    if (options->own_backend) return options->own_backend->name;
    return options->backend && *options->backend ? options->backend : "auto";
}

static gs_status check_group(const gs_comm_options *options) {
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/";
    size_t len = options->group ? strlen(options->group) : 0;
    if (len >= MOST_GROUP_BYTES || (len && strspn(options->group, letters) != len))
        return gs_error(GS_INVALID_ARGUMENT,
                        "group \"%.60s\" is not at most %d letters, digits or any of ._-/",
                        options->group, MOST_GROUP_BYTES - 1);
    for (int i = 0; options->ranks && i < options->world_size; i++) {
        if (options->ranks[i] < 0 || (i > 0 && options->ranks[i] <= options->ranks[i - 1]))
            return gs_error(GS_INVALID_ARGUMENT, "ranks of a group ascend, but %d stands at %d",
                            options->ranks[i], i);
    }
    return gs_ok();
}

gs_status gs_introduction_check(const gs_comm_options *options) {
    if (options->world_size < 1)
        return gs_error(GS_INVALID_ARGUMENT, "world size %d is not positive", options->world_size);
    if (options->world_size > 1 && !options->exchange)
        return gs_error(GS_INVALID_ARGUMENT, "a communicator of %d ranks needs an exchange",
                        options->world_size);
    return check_group(options);
}

static uint64_t digest_members(const gs_comm_options *options) {
    gs_digest digest = {0};
    for (int i = 0; i < options->world_size; i++) {
        struct {
            gs_digest before;
            int32_t rank, place;
        } link = {digest, options->ranks ? options->ranks[i] : i, i};
        digest = gs_digest_of(&link, sizeof link);
    }
    return gs_digest_fold(digest);
}

static introduction introduction_of(const gs_comm_options *options) {
    introduction mine = {.protocol = PROTOCOL,
                         .generation = options->generation,
                         .rank = options->rank,
                         .world_size = options->world_size,
                         .num_lanes = options->num_lanes,
                         .members = digest_members(options)};
    const char *device = gs_device_name(options->device);
    snprintf(mine.version, sizeof mine.version, "%s ABI %d", gs_version(), gs_abi_version());
    snprintf(mine.group, sizeof mine.group, "%s", options->group ? options->group : "");
    snprintf(mine.backend, sizeof mine.backend, "%s", gs_introduction_backend(options));
    snprintf(mine.device, sizeof mine.device, "%.*s", (int)strcspn(device, ":"), device);
    return mine;
}

static gs_status compare_words(int rank, const char *what, const char *one, const char *first,
                               size_t bytes) {
    if (memcmp(one, first, bytes) == 0) return gs_ok();
    return gs_error(GS_FAILED_PRECONDITION, "rank %d %s %.*s, rank 0 %.*s", rank, what, (int)bytes,
                    one, (int)bytes, first);
}

static gs_status compare_numbers(int rank, const char *what, int64_t one, int64_t first) {
    if (one == first) return gs_ok();
    return gs_error(GS_FAILED_PRECONDITION, "rank %d has %s %lld, rank 0 has %lld", rank, what,
                    (long long)one, (long long)first);
}

static gs_status compare(int rank, const introduction *one, const introduction *first) {
    GS_TRY(compare_numbers(rank, "introduction", one->protocol, first->protocol));
    GS_TRY(compare_words(rank, "has gradsync", one->version, first->version, sizeof one->version));
    if (one->rank != rank)
        return gs_error(GS_FAILED_PRECONDITION, "rank %d takes itself for rank %d", rank, one->rank);
    GS_TRY(compare_numbers(rank, "generation", one->generation, first->generation));
    GS_TRY(compare_numbers(rank, "world size", one->world_size, first->world_size));
    GS_TRY(compare_words(rank, "means group", one->group, first->group, sizeof one->group));
    if (one->members != first->members)
        return gs_error(GS_FAILED_PRECONDITION, "rank %d means other ranks by group %.*s than rank 0",
                        rank, (int)sizeof one->group, one->group);
    if (one->num_lanes != first->num_lanes)
        return gs_error(GS_FAILED_PRECONDITION, "rank %d has %d lanes, rank 0 has %d", rank,
                        one->num_lanes, first->num_lanes);
    GS_TRY(compare_words(rank, "wants backend", one->backend, first->backend, sizeof one->backend));
    return compare_words(rank, "trains on", one->device, first->device, sizeof one->device);
}

gs_status gs_introduce(gs_stages *stages, const gs_comm_options *options, gs_status mine) {
    introduction own = {0};
    if (!mine.code) own = introduction_of(options);
    introduction *all = calloc((size_t)options->world_size, sizeof *all);
    if (!mine.code && !all) mine = gs_error(GS_RESOURCE_EXHAUSTED, "communicator: out of memory");
    gs_status status = gs_stages_meet(stages, "communicator", mine, all, &own, sizeof own);
    for (int i = 0; i < options->world_size && !status.code; i++)
        status = compare(i, &all[i], &all[0]);
    free(all);
    return gs_stages_conclude(stages, status);
}
