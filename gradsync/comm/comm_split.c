// A split: its ranks meet by all-gathers of the communicator that they have.
//
// Ranks of all colours meet together, round after round. In a round a rank that makes its part says
// what one stage of the creation has to say (stages.h), and one that is done, or has nothing to
// make, how it fared. It is over when all are done.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gradsync/comm/backends.h"
#include "gradsync/comm/comm.h"
#include "gradsync/comm/stages.h"

typedef struct colour {
    int64_t color;
    uint64_t host;  // 0: not asked for
} colour;

typedef struct word {
    int32_t is_done, reserved;
    gs_status status;  // of who is done
    unsigned char stage[GS_STAGE_BYTES];
} word;

typedef struct split {
    gs_comm *whole;
    gs_deadline deadline;
    colour *colours;  // of all ranks
    word mine, *words;
    int *members, *world_ranks;  // of the part: their ranks in the whole, and in the world
    int num_members, rank;
    gs_status broken;  // the whole failed: nobody can be met
} split;

static gs_status gather(const split *self, const void *mine, void *all, size_t bytes) {
    return gs_comm_run(self->whole,
                       &(gs_collective){.kind = GS_ALLGATHER,
                                        .send = mine,
                                        .recv = all,
                                        .count = bytes,
                                        .dtype = GS_U8,
                                        .step = -1,
                                        .bucket = -1},
                       self->deadline);
}

static gs_status meet(split *self) {
    if (!self->broken.code)
        self->broken = gather(self, &self->mine, self->words, sizeof self->mine);
    return self->broken;
}

// gs_exchange of the part that is made.
static gs_status exchange_stage(void *ctx, const char *tag, const int *ranks, int num_ranks,
                                const void *mine, size_t bytes, void *all, gs_deadline deadline) {
    split *self = ctx;
    (void)tag, (void)ranks, (void)num_ranks, (void)deadline;
    if (bytes > sizeof self->mine.stage)
        return gs_error(GS_INTERNAL, "a stage of %zu bytes", bytes);
    memcpy(self->mine.stage, mine, bytes);
    GS_TRY(meet(self));
    for (int i = 0; i < self->num_members; i++) {
        const word *theirs = &self->words[self->members[i]];
        if (theirs->is_done)
            return theirs->status.code
                       ? theirs->status
                       : gs_error(GS_INTERNAL, "rank %d is done before others", self->members[i]);
        memcpy((unsigned char *)all + (size_t)i * bytes, theirs->stage, bytes);
    }
    return gs_ok();
}

static void find_members(split *self) {
    int own = gs_comm_rank(self->whole);
    for (int i = 0; i < gs_comm_world_size(self->whole); i++) {
        if (memcmp(&self->colours[i], &self->colours[own], sizeof(colour)) != 0) continue;
        if (i == own) self->rank = self->num_members;
        self->world_ranks[self->num_members] = gs_comm_world_rank(self->whole, i);
        self->members[self->num_members++] = i;
    }
}

// Of two levels a part may have but one.
static const char *find_backend(const gs_comm *whole) {
    const char *name = gs_comm_backend_name(whole);
    return strcmp(name, "hosts") == 0 ? "auto" : name;
}

static gs_status create_part(gs_comm **out, split *self, const gs_comm_split_options *options) {
    char group[40];
    gs_comm_options part = *gs_comm_made_with(self->whole);
    const char *name = options->name ? options->name : "part";
    find_members(self);
    if (strlen(name) > 24) return gs_error(GS_INVALID_ARGUMENT, "a part's name is \"%.60s\"", name);
    // By its first rank: two parts of a colour on two hosts are two.
    snprintf(group, sizeof group, "%s/%d", name, self->world_ranks[0]);
    if (!part.ranks_on_host) part.ranks_on_host = part.world_size;
    if (self->num_members == 1)
        part.backend = "self", part.own_backend = NULL;
    else if (!part.own_backend)
        part.backend = find_backend(self->whole);
    if (part.helper != GS_HELPER_ON) part.helper = GS_HELPER_OFF;
    part.rank = self->rank;
    part.world_size = self->num_members;
    part.ranks = self->world_ranks;
    part.group = group;
    part.num_lanes = options->num_lanes;
    part.exchange = exchange_stage;
    part.exchange_ctx = self;
    return gs_comm_create_part(out, self->whole, &part, self->deadline);
}

// Until all are done; then the first error counts for all.
static gs_status conclude(split *self, gs_status mine) {
    bool all_done = false;
    self->mine = (word){.is_done = 1, .status = mine};
    while (!all_done) {
        GS_TRY(meet(self));
        all_done = true;
        for (int i = 0; i < gs_comm_world_size(self->whole); i++)
            all_done &= self->words[i].is_done;
    }
    for (int i = 0; i < gs_comm_world_size(self->whole); i++) {
        if (self->words[i].status.code)
            return gs_status_prefix(self->words[i].status, "rank %d", i);
    }
    return gs_ok();
}

static gs_status make_parts(gs_comm **out, split *self, const gs_comm_split_options *options) {
    int rank = gs_comm_rank(self->whole);
    colour mine = {.color = options->color,
                   .host = options->by_host && options->color >= 0 ? gs_backends_host(rank) : 0};
    gs_status status = gs_ok();
    GS_TRY(gather(self, &mine, self->colours, sizeof mine));
    if (options->color < GS_COMM_NO_COLOR)
        status = gs_error(GS_INVALID_ARGUMENT, "colour %d", options->color);
    else if (options->color != GS_COMM_NO_COLOR)
        status = create_part(out, self, options);
    status = conclude(self, status);
    if (!status.code) return gs_ok();
    gs_comm_destroy(*out);
    *out = NULL;
    return gs_status_prefix(status, "split");
}

gs_status gs_comm_split(gs_comm **out, gs_comm *comm, const gs_comm_split_options *options,
                        gs_deadline deadline) {
    size_t world_size = (size_t)gs_comm_world_size(comm);
    split self = {.whole = comm, .deadline = deadline};
    *out = NULL;
    self.colours = calloc(world_size, sizeof *self.colours);
    self.words = calloc(world_size, sizeof *self.words);
    self.members = calloc(world_size, sizeof *self.members);
    self.world_ranks = calloc(world_size, sizeof *self.world_ranks);
    gs_status status = gs_error(GS_RESOURCE_EXHAUSTED, "split: out of memory");
    if (self.colours && self.words && self.members && self.world_ranks)
        status = make_parts(out, &self, options);
    else  // the others are on their way
        gs_comm_abort(comm, status.message);
    free(self.colours);
    free(self.words);
    free(self.members);
    free(self.world_ranks);
    return status;
}
