#include "gradsync/comm/hosts/founding.h"

#include "gradsync/comm/backends.h"

static gs_status open_host(gs_hosts_founding *out, gs_hosts_party *party, int num_lanes,
                           const gs_comm_options *options, gs_deadline deadline) {
    int members[GS_HOSTS_MOST_RANKS];
    int host = party->topology.host_of[party->rank];
    GS_TRY(gs_arena_create(&out->memory, (size_t)num_lanes * GS_HOSTS_LANE_BYTES));
    party->slots[party->place] = gs_arena_data(out->memory);
    if (party->host_size == 1) return gs_ok();
    gs_hosts_members(&party->topology, host, members);
    GS_TRY(gs_hosts_level_open(&party->host, &gs_comm_shm, 'm', members, party->host_size, options,
                               2 * num_lanes, out->memory, deadline));
    for (int i = 0; i < party->host_size; i++) {
        size_t bytes = 0;
        if (i == party->place) continue;
        party->slots[i] = party->host.backend->peer_arena(party->host.state, i, &bytes);
        if (bytes < gs_arena_bytes(out->memory))
            return gs_error(GS_UNAVAILABLE, "sees %zu bytes of rank %d", bytes, members[i]);
    }
    return gs_ok();
}

// Each host is added to what those before it came to.
static void order_column(gs_hosts_founding *out, gs_hosts_party *party) {
    bool ascends = true;
    out->order = (gs_reduce_tree){.num_inputs = party->topology.num_hosts,
                                  .rank = out->order_ranks,
                                  .part = out->order_parts,
                                  .merges = out->order_merges};
    for (int i = 0; i < party->topology.num_hosts; i++) {
        out->order_ranks[i] = party->topology.number_of[party->place][i];
        out->order_merges[i] = i > 0;
        ascends &= out->order_ranks[i] == i;
    }
    if (!ascends) party->order = &out->order;
}

static gs_status open_column(gs_hosts_founding *out, gs_hosts_party *party, int num_lanes,
                             const gs_comm_options *options, gs_deadline deadline) {
    int members[GS_HOSTS_MOST_RANKS];
    if (party->place >= party->topology.num_columns) return gs_ok();
    int count = gs_hosts_column(&party->topology, party->place, members);
    order_column(out, party);
    return gs_hosts_level_open(&party->column, &gs_comm_net, 'c', members, count, options,
                               num_lanes, NULL, deadline);
}

// A level that could not be made somewhere is told to all at the next stage.
gs_status gs_hosts_founding_open(gs_hosts_founding *out, gs_hosts_party *party, int num_lanes,
                                 const gs_comm_options *options, gs_stages *stages,
                                 gs_deadline deadline) {
    GS_TRY(gs_hosts_topology_learn(&party->topology, options, stages));
    party->place = party->topology.place_of[party->rank];
    party->host_size = party->topology.size_of[party->topology.host_of[party->rank]];
    gs_status host = open_host(out, party, num_lanes, options, deadline);
    GS_TRY(gs_stages_meet(stages, "hosts", host, NULL, NULL, 0));
    gs_status column = open_column(out, party, num_lanes, options, deadline);
    GS_TRY(gs_stages_meet(stages, "hosts", column, NULL, NULL, 0));
    return gs_hosts_level_open_whole(&party->all, &gs_comm_net, options, stages, deadline);
}

void gs_hosts_founding_leave(gs_hosts_party *party) {
    gs_hosts_level_close(&party->column);
    gs_hosts_level_close(&party->all);
    gs_hosts_level_close(&party->host);
}

void gs_hosts_founding_release(gs_hosts_founding *founding) {
    gs_arena_destroy(founding->memory);
    founding->memory = NULL;
}
