// All rows of a store, as a value: what a transaction makes of them, and whether two are the same.
#ifndef TESTS_SIMULATION_ROW_STATE_H
#define TESTS_SIMULATION_ROW_STATE_H

#include "coordinator/engine/engine.h"

// Something to write, as it was when it was asked for.
typedef struct row_write {
    gs_effect_kind kind;
    uint64_t job;
    char directory[GS_CHECKPOINT_NAME_LEN];  // of a checkpoint; "" otherwise
    char *text;                              // owned; a record. NULL: none
    char *key;                               // owned; stored with a job. NULL: none
    char fingerprint[GS_DIGEST_TEXT_LEN];
    gs_tombstone tombstone;  // of a job that is deleted
    uint32_t generation_end;
    gs_status status;          // once it is done
    struct gs_write *product;  // owned; what the product's store is given. NULL: it is not asked
} row_write;

typedef enum row_table { ROWS_OF_JOBS = 0, ROWS_OF_CHECKPOINTS, ROWS_OF_KEYS, ROWS_OF_TOMBSTONES } row_table;

// Of a row and of its copies in other states.
typedef struct shared_text {
    int users;
    char text[];
} shared_text;

typedef struct stored_row {
    row_table table;
    uint64_t job;
    char name[GS_CHECKPOINT_NAME_LEN];  // directory, key
    shared_text *text;
    gs_tombstone tombstone;  // what the row is made of, where it is one
    bool is_spoilt;
} stored_row;

typedef struct row_state {
    stored_row *rows;  // in order of table, job, name
    size_t num_rows, max_rows;
    uint64_t *lives;  // of each epoch, from 1
    uint32_t epoch, max_epochs, generation_end;
} row_state;

void row_state_release(row_state *state);
row_state *row_state_copy(const row_state *state);
void row_state_drop(row_state **copy);                    // NULL then
void row_state_replace(row_state *state, row_state *by);  // by is taken
stored_row *row_state_put(row_state *state, row_table table, uint64_t job, const char *name, const char *text);
void row_state_put_tombstone(row_state *state, const gs_tombstone *tombstone);
void row_state_apply(row_state *state, const row_write *write);
void row_state_begin_life(row_state *state, uint64_t life);
const stored_row *row_state_job(const row_state *state, uint64_t job);  // NULL: none
// Rows; numbers are compared by who knows how they go.
bool row_state_equals(const row_state *a, const row_state *b);

#endif
