#include "coordinator/model/job_table.h"

#include <stdlib.h>
#include <string.h>

#include "coordinator/model/memory.h"
#include "coordinator/model/run.h"

void gs_job_destroy(gs_job *job) {
    if (!job) return;
    gs_run_destroy(job->run);
    gs_job_free(job);
}

// It has a record again: of its trainers, which were adopted.
static void drop_unreadable(gs_job_table *table, uint64_t id) {
    for (size_t i = 0; i < table->num_unreadable; i++) {
        if (table->unreadable[i] != id) continue;
        table->unreadable[i] = table->unreadable[--table->num_unreadable];
        return;
    }
}

void gs_job_table_add(gs_job_table *table, gs_job *job) {
    drop_unreadable(table, job->id);
    table->items = gs_model_grow(table->items, table->count, &table->reserved, sizeof *table->items);
    if (!gs_u64_map_set(&table->by_id, job->id, job)) abort();
    table->items[table->count++] = job;
}

void gs_job_table_unlink(gs_job_table *table, gs_job *job) {
    size_t index = 0;
    while (table->items[index] != job) index++;
    memmove(&table->items[index], &table->items[index + 1], (table->count - index - 1) * sizeof *table->items);
    table->count--;
    gs_u64_map_remove(&table->by_id, job->id);
}

void gs_job_table_release(gs_job_table *table) {
    for (size_t i = 0; i < table->count; i++) gs_job_destroy(table->items[i]);
    free(table->items);
    gs_u64_map_release(&table->by_id);
    free(table->tombstones);
    free(table->unreadable);
    *table = (gs_job_table){0};
}

gs_job *gs_job_table_get(const gs_job_table *table, uint64_t id) {
    return id ? gs_u64_map_get(&table->by_id, id) : NULL;
}

gs_job *gs_job_table_of_text(const gs_job_table *table, const char *text) {
    uint64_t id = 0;
    return text && gs_job_id_parse(&id, text) ? gs_job_table_get(table, id) : NULL;
}

gs_job *gs_job_table_live_name(const gs_job_table *table, const char *name) {
    for (size_t i = 0; i < table->count; i++) {
        gs_job *job = table->items[i];
        if (!gs_job_state_terminal(job->state) && !strcmp(job->spec.name, name)) return job;
    }
    return NULL;
}

static gs_job *find_prefix(const gs_job_table *table, size_t *matches, const char *text) {
    gs_job *found = NULL;
    *matches = 0;
    for (size_t i = 0; i < table->count; i++) {
        if (strncmp(table->items[i]->id_text, text, strlen(text)) != 0) continue;
        found = table->items[i];
        ++*matches;
    }
    return found;
}

static bool is_unreadable(const gs_job_table *table, uint64_t id) {
    for (size_t i = 0; i < table->num_unreadable; i++)
        if (table->unreadable[i] == id) return true;
    return false;
}

gs_status gs_job_table_find(const gs_job_table *table, gs_job **job, size_t *candidates, const char *text) {
    *candidates = 0;
    if (!text || !text[0]) return gs_error(GS_INVALID_ARGUMENT, "job: must be an id or a name");
    *job = gs_job_table_of_text(table, text);
    if (!*job) *job = gs_job_table_live_name(table, text);
    size_t matches = 0;
    if (!*job && strlen(text) >= 4) *job = find_prefix(table, &matches, text);
    if (matches > 1) {
        *candidates = matches;
        return gs_error(GS_FAILED_PRECONDITION, "job \"%s\" is ambiguous: %zu ids begin so", text, matches);
    }
    // The name of ended jobs too: what people type next after a job ended.
    for (size_t i = table->count; i-- > 0 && !*job;) {
        if (!strcmp(table->items[i]->spec.name, text)) *job = table->items[i];
    }
    uint64_t id;
    if (!*job && gs_job_id_parse(&id, text) && is_unreadable(table, id))
        return gs_error(GS_FAILED_PRECONDITION, "the record of job %s cannot be read", text);
    return *job ? gs_ok() : gs_error(GS_NOT_FOUND, "no job \"%s\"", text);
}

gs_status gs_job_table_check_sole(const gs_job_table *table, size_t *candidates, const char *text) {
    size_t count = 0;
    *candidates = 0;
    if (gs_job_table_of_text(table, text)) return gs_ok();
    for (size_t i = 0; i < table->count; i++) count += !strcmp(table->items[i]->spec.name, text);
    if (count < 2) return gs_ok();
    *candidates = count;
    return gs_error(GS_FAILED_PRECONDITION, "job \"%s\" is ambiguous: %zu jobs have that name", text, count);
}

bool gs_job_is_candidate(const gs_job *job, const char *text) {
    return !strncmp(job->id_text, text, strlen(text)) || !strcmp(job->spec.name, text);
}

// The first that is not below it.
static size_t place_of(const gs_job_table *table, uint64_t id) {
    size_t low = 0, high = table->num_tombstones;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (table->tombstones[middle].job < id) low = middle + 1;
        else high = middle;
    }
    return low;
}

void gs_job_table_bury(gs_job_table *table, const gs_tombstone *tombstone) {
    size_t at = place_of(table, tombstone->job);
    if (at < table->num_tombstones && table->tombstones[at].job == tombstone->job) {
        table->tombstones[at] = *tombstone;
        return;
    }
    table->tombstones =
        gs_model_grow(table->tombstones, table->num_tombstones, &table->max_tombstones, sizeof *table->tombstones);
    gs_tombstone *place = table->tombstones + at;
    memmove(place + 1, place, (table->num_tombstones++ - at) * sizeof *place);
    *place = *tombstone;
    if (table->num_tombstones <= GS_MAX_TOMBSTONES) return;
    memmove(table->tombstones, table->tombstones + 1, --table->num_tombstones * sizeof *table->tombstones);
}

const gs_tombstone *gs_job_table_tombstone(const gs_job_table *table, uint64_t id) {
    size_t at = place_of(table, id);
    bool is_listed = at < table->num_tombstones && table->tombstones[at].job == id;
    return is_listed ? &table->tombstones[at] : NULL;
}

void gs_job_table_add_unreadable(gs_job_table *table, uint64_t id) {
    table->unreadable = gs_model_grow(table->unreadable, table->num_unreadable, &table->max_unreadable, sizeof *table->unreadable);
    table->unreadable[table->num_unreadable++] = id;
}

bool gs_job_table_is_gone(const gs_job_table *table, uint64_t id, bool is_ours) {
    if (gs_job_table_get(table, id)) return false;
    if (gs_job_table_tombstone(table, id)) return true;
    return is_ours && table->num_tombstones == GS_MAX_TOMBSTONES && id < table->tombstones[0].job && !is_unreadable(table, id);
}
