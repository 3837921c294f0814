// Whatever a rank says to another one beside its sums: a failure becomes one that can be, and says of whom it can be what was said;
// words of others have their place, and never more than that. The input: how many ranks and lanes, a header, a body.
#include <stdlib.h>
#include <string.h>

#include "gradsync/comm/net/message.h"
#include "gradsync/comm/net/words.h"
#include "tests/fuzz/fuzz.h"

static void require(bool holds) {
    if (!holds) abort();
}

static void hear_failure(const uint8_t *data, size_t bytes, int world_size, int num_lanes) {
    static gs_net_failure said, heard, again;
    memset(&said, 0, sizeof said);
    memcpy(&said, data, bytes < sizeof said ? bytes : sizeof said);
    heard = said;
    gs_net_failure_sanitize(&heard, world_size, num_lanes);
    const gs_comm_failure *failure = &heard.failure;
    require(heard.status.code > GS_OK && heard.status.code < GS_NUM_CODES);
    require(memchr(heard.status.message, '\0', sizeof heard.status.message) != NULL);
    require(failure->kind > GS_COMM_FAILURE_NONE && failure->kind <= GS_COMM_FAILURE_ABORTED);
    require(failure->reporter >= -1 && failure->reporter < world_size && failure->lane >= 0 && failure->lane < num_lanes);
    require(failure->bucket >= -1 && failure->step >= 0);
    for (int i = 0; i < GS_COMM_MAX_RANKS; i++)
        require(gs_comm_failure_names(failure, i) == (i < world_size && gs_comm_failure_names(&said.failure, i)));
    again = heard;
    gs_net_failure_sanitize(&again, world_size, num_lanes);
    require(memcmp(&again.failure, failure, sizeof *failure) == 0);
}

static void hear_word(const uint8_t *data, size_t bytes, int world_size, int num_lanes) {
    gs_net_words *words = NULL;
    gs_net_header header;
    void *body = NULL;
    if (bytes < sizeof header) return;
    memcpy(&header, data, sizeof header);
    require(!gs_net_words_create(&words, 0, world_size, num_lanes).code);
    int peer = world_size - 1;
    if (gs_net_words_place(words, peer, &header, &body)) {
        require(header.lane < num_lanes && header.bytes <= sizeof(gs_net_ranks) && (body || !header.bytes));
        if (bytes - sizeof header < header.bytes) header.bytes = bytes - sizeof header;
        if (header.bytes) memcpy(body, data + sizeof header, header.bytes);
        gs_net_words_came(words, peer, &header);
        gs_net_presence here = gs_net_words_was_here(words, peer, header.lane);
        require(header.kind != GS_NET_HERE || (here.sequence == header.sequence && here.word == header.segment));
    }
    gs_net_words_destroy(words);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    if (bytes < 3) return 0;
    int world_size = 2 + data[1] % (GS_NET_MOST_RANKS - 1), num_lanes = 1 + data[2] % 8;
    if (data[0] & 1) hear_failure(data + 3, bytes - 3, world_size, num_lanes);
    else hear_word(data + 3, bytes - 3, world_size, num_lanes);
    return 0;
}
