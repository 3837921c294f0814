#include "gradsync/reducer/static_graph.h"

#include <stdlib.h>
#include <string.h>

gs_status gs_static_graph_init(gs_static_graph *graph, size_t num_params) {
    *graph = (gs_static_graph){.on = true, .num_params = num_params};
    graph->counts = calloc(num_params, sizeof *graph->counts);
    graph->num_marked = calloc(num_params, sizeof *graph->num_marked);
    graph->used = calloc(num_params, sizeof *graph->used);
    graph->used_anywhere = calloc(num_params, sizeof *graph->used_anywhere);
    graph->unused = calloc(num_params, sizeof *graph->unused);
    if (graph->counts && graph->num_marked && graph->used && graph->used_anywhere && graph->unused)
        return gs_ok();
    gs_static_graph_release(graph);
    return gs_error(GS_RESOURCE_EXHAUSTED, "static graph: out of memory");
}

void gs_static_graph_release(gs_static_graph *graph) {
    if (!graph) return;
    free(graph->counts);
    free(graph->num_marked);
    free(graph->used);
    free(graph->used_anywhere);
    free(graph->unused);
    *graph = (gs_static_graph){0};
}

void gs_static_graph_forget(gs_static_graph *graph) {
    graph->known = false;
    graph->num_unused = 0;
}

void gs_static_graph_begin_pass(gs_static_graph *graph) {
    memset(graph->num_marked, 0, graph->num_params * sizeof *graph->num_marked);
}

size_t gs_static_graph_find_broken(const gs_static_graph *graph, const uint8_t *used) {
    size_t param = 0;
    while (param < graph->num_params && graph->num_marked[param] == graph->counts[param] &&
           used[param] == graph->used[param])
        param++;
    return param;
}

void gs_static_graph_learn(gs_static_graph *graph, const uint8_t *used,
                           const uint8_t *used_anywhere) {
    memcpy(graph->counts, graph->num_marked, graph->num_params * sizeof *graph->counts);
    memcpy(graph->used, used, graph->num_params);
    memcpy(graph->used_anywhere, used_anywhere, graph->num_params);
    graph->num_unused = 0;
    for (size_t i = 0; i < graph->num_params; i++) {
        if (!graph->counts[i]) graph->unused[graph->num_unused++] = i;
    }
    graph->known = true;
}
