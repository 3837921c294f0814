#include "gradsync/comm/hosts/topology.h"


#include "gradsync/comm/backends.h"

static void number_hosts(gs_hosts_topology *out, const uint64_t *hosts) {
    for (int i = 0; i < out->world_size; i++) {
        int first = 0;
        while (hosts[first] != hosts[i]) first++;
        out->host_of[i] = first == i ? out->num_hosts++ : out->host_of[first];
        out->place_of[i] = out->size_of[out->host_of[i]]++;
    }
    out->num_columns = out->world_size;
    for (int i = 0; i < out->num_hosts; i++)
        if (out->size_of[i] < out->num_columns) out->num_columns = out->size_of[i];
    for (int k = 0; k < out->num_columns; k++) {
        int members[GS_HOSTS_MOST_RANKS], count = gs_hosts_column(out, k, members);
        for (int i = 0; i < count; i++)
            out->number_of[k][out->host_of[members[i]]] = (uint8_t)i;
    }
}

static gs_status judge(const gs_hosts_topology *topology) {
    if (topology->num_hosts == 1)
        return gs_error(GS_UNAVAILABLE, "all %d ranks are of one host", topology->world_size);
    if (topology->num_hosts == topology->world_size)
        return gs_error(GS_UNAVAILABLE, "no two ranks are of one host");
    return gs_ok();
}

gs_status gs_hosts_topology_learn(gs_hosts_topology *out, const gs_comm_options *options,
                                  gs_stages *stages) {
    uint64_t hosts[GS_HOSTS_MOST_RANKS], mine = gs_backends_host(options->rank);
    *out = (gs_hosts_topology){.world_size = options->world_size};
    if (options->world_size > GS_HOSTS_MOST_RANKS)
        return gs_error(GS_UNAVAILABLE, "hosts serves at most %d ranks, not %d",
                        GS_HOSTS_MOST_RANKS, options->world_size);
    gs_status able = gs_ok();
    if (!gs_device_is_host(options->device))
        able = gs_error(GS_UNAVAILABLE, "hosts moves memory of the host, not of %s",
                        gs_device_name(options->device));
    GS_TRY(gs_stages_meet(stages, "hosts", able, hosts, &mine, sizeof mine));
    number_hosts(out, hosts);
    return gs_stages_conclude(stages, judge(out));
}

int gs_hosts_members(const gs_hosts_topology *topology, int host, int *ranks) {
    int count = 0;
    for (int i = 0; i < topology->world_size; i++)
        if (topology->host_of[i] == host) ranks[count++] = i;
    return count;
}

int gs_hosts_column(const gs_hosts_topology *topology, int column, int *ranks) {
    int count = 0;
    for (int i = 0; i < topology->world_size; i++)
        if (topology->place_of[i] == column) ranks[count++] = i;
    return count;
}

void gs_hosts_topology_describe(const gs_hosts_topology *topology, char *text, size_t text_bytes) {
    gs_backends_list_ranks(text, text_bytes, topology->size_of, topology->num_hosts);
}
