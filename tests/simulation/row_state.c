#include "tests/simulation/row_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static shared_text *share(const char *text) {
    size_t bytes = strlen(text) + 1;
    shared_text *shared = malloc(sizeof *shared + bytes);
    shared->users = 1;
    memcpy(shared->text, text, bytes);
    return shared;
}

static void leave(shared_text *text) {
    if (text && --text->users == 0) free(text);
}

void row_state_release(row_state *state) {
    for (size_t i = 0; i < state->num_rows; i++) leave(state->rows[i].text);
    free(state->rows);
    free(state->lives);
}

row_state *row_state_copy(const row_state *state) {
    row_state *copy = malloc(sizeof *copy);
    *copy = *state;
    copy->max_rows = state->num_rows;
    copy->rows = malloc((state->num_rows + 1) * sizeof *copy->rows);
    for (size_t i = 0; i < state->num_rows; i++) {
        copy->rows[i] = state->rows[i];
        copy->rows[i].text->users++;
    }
    copy->max_epochs = state->epoch;
    copy->lives = malloc((state->epoch + 1) * sizeof *copy->lives);
    if (state->epoch) memcpy(copy->lives, state->lives, state->epoch * sizeof *copy->lives);
    return copy;
}

void row_state_drop(row_state **copy) {
    if (!*copy) return;
    row_state_release(*copy);
    free(*copy);
    *copy = NULL;
}

void row_state_replace(row_state *state, row_state *by) {
    row_state_release(state);
    *state = *by;
    free(by);
}

static int compare(const stored_row *row, row_table table, uint64_t job, const char *name) {
    if (row->table != table) return row->table < table ? -1 : 1;
    // One request made one job: a key is a key whichever it names.
    if (table != ROWS_OF_KEYS && row->job != job) return row->job < job ? -1 : 1;
    return strcmp(row->name, name);
}

stored_row *row_state_put(row_state *state, row_table table, uint64_t job, const char *name, const char *text) {
    size_t at = 0;
    int order = 1;
    while (at < state->num_rows && (order = compare(&state->rows[at], table, job, name)) < 0) at++;
    if (at == state->num_rows || order > 0) {
        if (state->num_rows == state->max_rows) {
            state->max_rows = state->max_rows ? state->max_rows * 2 : 16;
            state->rows = realloc(state->rows, state->max_rows * sizeof *state->rows);
        }
        memmove(&state->rows[at + 1], &state->rows[at], (state->num_rows++ - at) * sizeof *state->rows);
        state->rows[at] = (stored_row){.table = table};
        snprintf(state->rows[at].name, sizeof state->rows[at].name, "%s", name);
    }
    stored_row *row = &state->rows[at];
    leave(row->text);
    row->text = share(text);
    row->job = job;
    row->is_spoilt = false;
    return row;
}

// directory NULL: all of the job.
static void delete(row_state *state, row_table table, uint64_t job, const char *directory) {
    size_t kept = 0;
    for (size_t i = 0; i < state->num_rows; i++) {
        stored_row *row = &state->rows[i];
        if (row->table == table && row->job == job && (!directory || !strcmp(row->name, directory))) leave(row->text);
        else state->rows[kept++] = *row;
    }
    state->num_rows = kept;
}

void row_state_put_tombstone(row_state *state, const gs_tombstone *tombstone) {
    char text[60];
    snprintf(text, sizeof text, "%u %s %lld", tombstone->generation, gs_job_state_name(tombstone->outcome),
             (long long)tombstone->deleted_ms);
    row_state_put(state, ROWS_OF_TOMBSTONES, tombstone->job, "", text)->tombstone = *tombstone;
}

void row_state_apply(row_state *state, const row_write *write) {
    switch (write->kind) {
    case GS_DO_WRITE_JOB:
        row_state_put(state, ROWS_OF_JOBS, write->job, "", write->text);
        if (write->key) row_state_put(state, ROWS_OF_KEYS, write->job, write->key, write->fingerprint);
        break;
    case GS_DO_DELETE_JOB:
        delete(state, ROWS_OF_JOBS, write->job, NULL);
        delete(state, ROWS_OF_CHECKPOINTS, write->job, NULL);
        if (write->tombstone.frees_keys) delete(state, ROWS_OF_KEYS, write->job, NULL);
        row_state_put_tombstone(state, &write->tombstone);
        break;
    case GS_DO_RESERVE_GENERATIONS: state->generation_end = write->generation_end; break;
    case GS_DO_WRITE_CHECKPOINT: row_state_put(state, ROWS_OF_CHECKPOINTS, write->job, write->directory, write->text); break;
    case GS_DO_DELETE_CHECKPOINT: delete(state, ROWS_OF_CHECKPOINTS, write->job, write->directory); break;
    default: break;
    }
}

const stored_row *row_state_job(const row_state *state, uint64_t job) {
    for (size_t i = 0; i < state->num_rows && state->rows[i].table == ROWS_OF_JOBS; i++) {
        if (state->rows[i].job == job) return &state->rows[i];
    }
    return NULL;
}

void row_state_begin_life(row_state *state, uint64_t life) {
    if (state->epoch == state->max_epochs) {
        state->max_epochs = state->max_epochs * 2 + 8;
        state->lives = realloc(state->lives, state->max_epochs * sizeof *state->lives);
    }
    state->lives[state->epoch++] = life;
    state->generation_end += GS_GENERATION_BLOCK;
}

bool row_state_equals(const row_state *a, const row_state *b) {
    if (a->num_rows != b->num_rows) return false;
    for (size_t i = 0; i < a->num_rows; i++) {
        const stored_row *row = &a->rows[i], *other = &b->rows[i];
        if (compare(row, other->table, other->job, other->name) != 0 || row->job != other->job ||
            strcmp(row->text->text, other->text->text) != 0)
            return false;
    }
    return true;
}
