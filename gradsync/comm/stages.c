#include "gradsync/comm/stages.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/failpoint.h"

static_assert(sizeof(gs_status) == 256, "a stage looks the same in every build");

typedef struct stage {
    gs_status status;
    unsigned char payload[GS_STAGE_PAYLOAD_BYTES];
} stage;
static_assert(sizeof(stage) == GS_STAGE_BYTES, "a stage has no padding");

void gs_stages_init(gs_stages *stages, const gs_comm_options *options, gs_deadline deadline) {
    memset(stages, 0, sizeof *stages);
    stages->options = options;
    stages->deadline = deadline;
    stages->all = stages->few;
    if (options->world_size > GS_STAGES_FEW_RANKS)
        stages->all = calloc((size_t)options->world_size, GS_STAGE_BYTES);
}

void gs_stages_release(gs_stages *stages) {
    // A payload may be a secret: NCCL's unique id is.
    if (stages->all)
        explicit_bzero(stages->all, (size_t)stages->options->world_size * GS_STAGE_BYTES);
    if (stages->all != stages->few) free(stages->all);
    stages->all = NULL;
}

// What goes with an error: a pair in numbers of the world, each with one more; zeros: nobody is blamed.
typedef struct blame {
    int32_t reporter, accused;
} blame;

static int world_rank(const gs_comm_options *options, int rank) {
    return options->ranks ? options->ranks[rank] : rank;
}

static void note_blame(gs_comm_failure *unreached, blame told) {
    if (!unreached) return;
    *unreached = (gs_comm_failure){.reporter = -1, .bucket = -1};
    bool is_pair = told.reporter > 0 && told.reporter <= GS_COMM_MAX_RANKS && told.accused > 0 && told.accused <= GS_COMM_MAX_RANKS;
    if (!is_pair) return;
    unreached->kind = GS_COMM_FAILURE_PEER_LOST;
    unreached->reporter = told.reporter - 1;
    gs_comm_failure_accuse(unreached, told.accused - 1);
}

void gs_stages_blame(gs_stages *stages, int rank) {
    const gs_comm_options *options = stages->options;
    note_blame(options->unreached, (blame){world_rank(options, options->rank) + 1, world_rank(options, rank) + 1});
}

// Of an error that this member has, also where a communicator within this one's creation found it.
static blame read_blame(const gs_comm_failure *unreached) {
    if (!unreached || unreached->kind != GS_COMM_FAILURE_PEER_LOST) return (blame){0, 0};
    int accused = 0;
    while (accused < GS_COMM_MAX_RANKS && !gs_comm_failure_names(unreached, accused)) accused++;
    return (blame){unreached->reporter + 1, accused + 1};
}

static gs_status break_off(gs_stages *stages, gs_status status) {
    stages->broken = true;
    stages->verdict = status;
    return status;
}

static gs_status name_rank(const gs_comm_options *options, int rank, gs_status status) {
    status.message[sizeof status.message - 1] = '\0';
    if (status.code < GS_OK || status.code >= GS_NUM_CODES) status.code = GS_UNKNOWN;
    bool is_member = rank >= 0 && rank < options->world_size;
    if (is_member && options->ranks && options->ranks[rank] != rank)
        return gs_status_prefix(status, "rank %d (world rank %d)", rank, options->ranks[rank]);
    return gs_status_prefix(status, "rank %d", rank);
}

// There is no meeting any more. Who comes too late to tell others why it failed still knows it. But
// why a backend does not fit here may be that end itself, seen from elsewhere: a door that is
// closed because its rank has left. So it comes behind what ended the meeting.
static gs_status explain_end(const gs_comm_options *options, const char *what, gs_status mine,
                             gs_status met) {
    if (!mine.code) return gs_status_prefix(met, "%s", what);
    if (mine.code != GS_UNAVAILABLE) return name_rank(options, options->rank, mine);
    return gs_error(met.code, "%s: %.120s; here: %.100s", what, met.message, mine.message);
}

// Meets once; what everybody gave is in `stages->all` then.
static gs_status run_round(gs_stages *stages, const char *what, gs_status mine, const void *payload,
                           size_t bytes) {
    const gs_comm_options *options = stages->options;
    stage own = {.status = mine};
    char tag[64];
    if (!stages->all)
        return break_off(stages, gs_error(GS_RESOURCE_EXHAUSTED, "%s: out of memory", what));
    blame told = read_blame(options->unreached);
    if (mine.code) memcpy(own.payload, &told, sizeof told);
    else if (bytes) memcpy(own.payload, payload, bytes);
    snprintf(tag, sizeof tag, "%s/%d", options->group && *options->group ? options->group : "world",
             ++stages->number);
    gs_status met =
        options->exchange(options->exchange_ctx, tag, options->ranks, options->world_size, &own,
                          sizeof own, stages->all, stages->deadline);
    explicit_bzero(&own, sizeof own);
    if (met.code) return break_off(stages, explain_end(options, what, mine, met));
    for (int i = 0; i < options->world_size && !stages->ended; i++) {
        gs_status theirs;
        memcpy(&theirs, stages->all + (size_t)i * GS_STAGE_BYTES, sizeof theirs);
        if (!theirs.code) continue;
        stages->ended = true;
        stages->verdict = name_rank(options, i, theirs);
        memcpy(&told, stages->all + (size_t)i * GS_STAGE_BYTES + offsetof(stage, payload), sizeof told);
        note_blame(options->unreached, told);
    }
    return stages->ended ? stages->verdict : gs_ok();
}

gs_status gs_stages_meet(gs_stages *stages, const char *what, gs_status mine, void *all,
                         const void *payload, size_t bytes) {
    size_t world_size = (size_t)stages->options->world_size;
#ifdef GRADSYNC_FAILPOINTS
    if (!mine.code) mine = gs_failpoint_pass("comm.stage");
#endif
    if (stages->broken || stages->ended) return stages->verdict;
    if (world_size == 1) {
        if (!mine.code && bytes) memcpy(all, payload, bytes);
        return mine;
    }
    size_t first = 0;
    do {
        size_t count = bytes - first;
        if (count > GS_STAGE_PAYLOAD_BYTES) count = GS_STAGE_PAYLOAD_BYTES;
        const unsigned char *piece = count ? (const unsigned char *)payload + first : NULL;
        GS_TRY(run_round(stages, what, mine, piece, count));
        for (size_t i = 0; i < world_size && count; i++)
            memcpy((unsigned char *)all + i * bytes + first,
                   stages->all + i * GS_STAGE_BYTES + offsetof(stage, payload), count);
        first += count;
    } while (first < bytes);
    return gs_ok();
}

gs_status gs_stages_conclude(gs_stages *stages, gs_status common) {
    if (common.code) {
        stages->ended = true;
        stages->verdict = common;
    }
    return common;
}

gs_status gs_stages_settle(gs_stages *stages, const char *what, gs_status mine) {
    gs_status status = gs_stages_meet(stages, what, mine, NULL, NULL, 0);
    stages->ended = false;
    return status;
}
