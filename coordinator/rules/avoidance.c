#include "coordinator/rules/avoidance.h"

#include <stdlib.h>
#include <string.h>

#include "core/clock.h"

#define COUNTS_FOR_NS (600 * GS_NS_PER_SEC)
#define SEATS_OF_A_WORKER 3
#define MOST_SEATS (2 * GS_COMPLAINTS_KEPT)

void gs_complaints_add(gs_complaints *complaints, const gs_complaint *complaint) {
    if (!complaints->items) complaints->items = calloc(GS_COMPLAINTS_KEPT, sizeof *complaints->items);
    if (!complaints->items) abort();
    if (complaints->count == GS_COMPLAINTS_KEPT) {
        memmove(complaints->items, complaints->items + 1, (GS_COMPLAINTS_KEPT - 1) * sizeof *complaints->items);
        complaints->count--;
    }
    complaints->items[complaints->count++] = *complaint;
}

void gs_complaints_release(gs_complaints *complaints) {
    free(complaints->items);
    *complaints = (gs_complaints){0};
}

static bool is_same(const gs_seat *a, const gs_seat *b) { return a->worker == b->worker && a->slot == b->slot; }

// Between the same two workers, in whatever direction, and without a rank in common.
static bool is_apart_from(const gs_complaint *a, const gs_complaint *b) {
    bool is_parallel = a->by.worker == b->by.worker && a->about.worker == b->about.worker;
    bool is_crossed = a->by.worker == b->about.worker && a->about.worker == b->by.worker;
    if (is_parallel) return a->by.slot != b->by.slot && a->about.slot != b->about.slot;
    return is_crossed && a->by.slot != b->about.slot && a->about.slot != b->by.slot;
}

static bool is_of_workers(const gs_complaint *complaint, const gs_complaint *all, int count) {
    if (complaint->by.worker == complaint->about.worker) return false;
    for (int i = 0; i < count; i++)
        if (is_apart_from(complaint, &all[i])) return true;
    return false;
}

// Edges between numbers of seats.
typedef struct complaint_graph {
    gs_seat seats[MOST_SEATS];
    int num_seats;
    int by[GS_COMPLAINTS_KEPT], about[GS_COMPLAINTS_KEPT];
    uint32_t generations[GS_COMPLAINTS_KEPT];
    bool is_early[GS_COMPLAINTS_KEPT];
    bool is_answered[GS_COMPLAINTS_KEPT];
    int num_edges;
} complaint_graph;

static int number_of(complaint_graph *graph, gs_seat seat, bool is_whole) {
    if (is_whole) seat.slot = GS_WHOLE_WORKER;
    for (int i = 0; i < graph->num_seats; i++) {
        if (!is_same(&graph->seats[i], &seat)) continue;
        if (seat.joined_ns > graph->seats[i].joined_ns) graph->seats[i].joined_ns = seat.joined_ns;
        return i;
    }
    graph->seats[graph->num_seats] = seat;
    return graph->num_seats++;
}

static void draw_graph(complaint_graph *graph, const gs_complaints *complaints, int64_t now_ns) {
    int first = 0;
    while (first < complaints->count && now_ns - complaints->items[first].at_ns > COUNTS_FOR_NS) first++;
    const gs_complaint *recent = complaints->items + first;
    int count = complaints->count - first;
    for (int i = 0; i < count; i++) {
        bool is_whole = is_of_workers(&recent[i], recent, count);
        graph->by[i] = number_of(graph, recent[i].by, is_whole);
        graph->about[i] = number_of(graph, recent[i].about, is_whole);
        graph->generations[i] = recent[i].generation;
        graph->is_early[i] = recent[i].is_early;
    }
    graph->num_edges = count;
}

typedef struct seat_evidence {
    int neighbours, times_accused;
    int workers;       // others that its worker has complaints with, all told
    bool is_repeated;  // of more than one generation, one of which had hardly begun
} seat_evidence;

static int count_workers_around(const complaint_graph *graph, uint64_t worker) {
    uint64_t found[GS_COMPLAINTS_KEPT];
    int count = 0;
    for (int i = 0; i < graph->num_edges; i++) {
        uint64_t by = graph->seats[graph->by[i]].worker, about = graph->seats[graph->about[i]].worker;
        if (by == about || (by != worker && about != worker)) continue;
        uint64_t other = by == worker ? about : by;
        int known = 0;
        while (known < count && found[known] != other) known++;
        if (known == count) found[count++] = other;
    }
    return count;
}

static seat_evidence weigh(const complaint_graph *graph, int seat) {
    seat_evidence evidence = {.workers = count_workers_around(graph, graph->seats[seat].worker)};
    bool is_neighbour[MOST_SEATS] = {false};
    uint32_t first = 0;
    bool are_several = false, is_early = false;
    for (int i = 0; i < graph->num_edges; i++) {
        bool is_about = graph->about[i] == seat;
        if (graph->is_answered[i] || (!is_about && graph->by[i] != seat)) continue;
        int other = is_about ? graph->by[i] : graph->about[i];
        evidence.neighbours += !is_neighbour[other];
        evidence.times_accused += is_about;
        is_neighbour[other] = true;
        if (!first) first = graph->generations[i];
        are_several |= graph->generations[i] != first;
        is_early |= graph->is_early[i];
    }
    evidence.is_repeated = are_several && is_early;
    return evidence;
}

static bool is_worse(const seat_evidence *a, const gs_seat *a_seat, const seat_evidence *b, const gs_seat *b_seat) {
    if (a->neighbours != b->neighbours) return a->neighbours > b->neighbours;
    if (a->workers != b->workers) return a->workers > b->workers;
    if (a->times_accused != b->times_accused) return a->times_accused > b->times_accused;
    if (a_seat->joined_ns != b_seat->joined_ns) return a_seat->joined_ns > b_seat->joined_ns;
    return a_seat->worker == b_seat->worker ? a_seat->slot > b_seat->slot : a_seat->worker > b_seat->worker;
}

static int find_worst(const complaint_graph *graph) {
    int worst = -1;
    seat_evidence of_worst = {0};
    for (int i = 0; i < graph->num_seats; i++) {
        seat_evidence evidence = weigh(graph, i);
        if (!evidence.is_repeated) continue;
        if (worst >= 0 && !is_worse(&evidence, &graph->seats[i], &of_worst, &graph->seats[worst])) continue;
        worst = i;
        of_worst = evidence;
    }
    return worst;
}

void gs_avoidance_find(gs_avoidance *out, const gs_complaints *complaints, int64_t now_ns) {
    out->count = 0;
    if (!complaints->count) return;
    complaint_graph graph = {.num_edges = 0};
    draw_graph(&graph, complaints, now_ns);
    for (int worst; (worst = find_worst(&graph)) >= 0;) {
        out->seats[out->count++] = graph.seats[worst];
        for (int i = 0; i < graph.num_edges; i++) graph.is_answered[i] |= graph.by[i] == worst || graph.about[i] == worst;
    }
}

bool gs_avoidance_has(const gs_avoidance *avoidance, uint64_t worker, int slot) {
    int of_worker = 0;
    for (int i = 0; i < avoidance->count; i++) {
        const gs_seat *seat = &avoidance->seats[i];
        if (seat->worker != worker) continue;
        if (seat->slot == slot || seat->slot == GS_WHOLE_WORKER || ++of_worker == SEATS_OF_A_WORKER) return true;
    }
    return false;
}
