#include "tests/simulation/rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/store/record/checkpoint_record.h"
#include "coordinator/store/record/job_record.h"
#include "coordinator/store/work.h"
#include "tests/simulation/coordinator.h"
#include "tests/simulation/database.h"
#include "tests/simulation/oracle.h"
#include "tests/simulation/promises.h"
#include "tests/simulation/sets.h"

#define DATABASES 0.08  // of all histories
#define ROW_BYTES 100  // beside its text

static const char *const clusters[] = {"c-simulation", "c-another"};

// Of a job; a specification does not change.
typedef struct job_papers {
    uint64_t job;
    gs_job_documents documents;
    char *spec_text;  // owned; as it is in all its records
    struct job_papers *next;
} job_papers;

struct sim_rows {
    row_state now;
    row_state other;  // of another data directory
    int cluster;      // whose `now` is
    // What a commit that failed may have left: taken by a crash, gone with the next commit.
    row_state *ghost;
    row_state *honest;  // what is on a disk that lies; NULL: it does not
    sim_database *database;  // that keeps them instead; NULL: none
    job_papers *papers;
    gs_json *no_text;  // owned; ""
    rows_trouble trouble;
    gs_retention retention;
};

static gs_retention draw_retention(sim_dice *dice) {
    gs_retention retention = {0};
    if (dice_chance(dice, 0.4)) retention.ended_jobs = (size_t)dice_between(dice, 1, 3);
    if (dice_chance(dice, 0.3)) retention.ended_ns = dice_between(dice, 5, 60) * SECONDS;
    if (dice_chance(dice, 0.2)) retention.live_jobs = (size_t)dice_between(dice, 1, 3);
    if (dice_chance(dice, 0.2)) retention.keys = (size_t)dice_between(dice, 1, 3);
    return retention;
}

void rows_create(sim_world *world) {
    world->rows = calloc(1, sizeof *world->rows);
    world->rows->now.generation_end = world->rows->other.generation_end = 1;
    world->rows->trouble.room = -1;
    world->rows->no_text = gs_json_new_string("");
    world->rows->retention = draw_retention(&world->dice);
    if (dice_chance(&world->dice, DATABASES)) world->rows->database = database_create(world);
}

void rows_destroy(sim_world *world) {
    database_destroy(world->rows->database);
    gs_json_release(world->rows->no_text);
    while (world->rows->papers) {
        job_papers *papers = world->rows->papers;
        world->rows->papers = papers->next;
        gs_job_documents_release(&papers->documents);
        free(papers->spec_text);
        free(papers);
    }
    row_state_drop(&world->rows->ghost);
    row_state_drop(&world->rows->honest);
    row_state_release(&world->rows->now);
    row_state_release(&world->rows->other);
    free(world->rows);
}

rows_trouble *rows_trouble_of(sim_world *world) { return &world->rows->trouble; }
const gs_retention *rows_retention(const sim_world *world) { return &world->rows->retention; }

static const job_papers *papers_of(sim_world *world, const gs_job *job) {
    sim_rows *rows = world->rows;
    for (const job_papers *papers = rows->papers; papers; papers = papers->next) {
        if (papers->job == job->id) return papers;
    }
    job_papers *papers = malloc(sizeof *papers);
    *papers = (job_papers){.job = job->id, .documents = gs_job_documents_of(&job->spec), .next = rows->papers};
    if (gs_json_encode(&papers->spec_text, NULL, papers->documents.spec, false).code) abort();
    rows->papers = papers;
    return papers;
}

const gs_job_documents *rows_documents_of(sim_world *world, const gs_job *job) { return &papers_of(world, job)->documents; }

// The specification is most of a record, and the same in all of a job: it is put together once.
static char *record_of(sim_world *world, const gs_job *job, const gs_state *state) {
    static const char begins[] = "{\"spec\":\"\"", with_spec[] = "{\"spec\":";
    const job_papers *papers = papers_of(world, job);
    gs_job_documents documents = papers->documents;
    documents.spec = world->rows->no_text;
    char *rest = NULL;
    gs_status status = gs_job_to_record(&rest, job, &documents, state->now_ns);
    if (status.code || strncmp(rest, begins, strlen(begins)) != 0) abort();
    size_t spec_bytes = strlen(papers->spec_text), rest_bytes = strlen(rest) - strlen(begins);
    char *text = malloc(strlen(with_spec) + spec_bytes + rest_bytes + 1);
    memcpy(text, with_spec, strlen(with_spec));
    memcpy(text + strlen(with_spec), papers->spec_text, spec_bytes);
    memcpy(text + strlen(with_spec) + spec_bytes, rest + strlen(begins), rest_bytes + 1);
    free(rest);
    return text;
}

void row_write_fill(sim_world *world, row_write *write, const gs_effect *effect, const gs_state *state) {
    if (world->rows->database) database_fill(world, write, effect, state);
    write->kind = effect->kind;
    write->job = effect->job_id;
    if (effect->text) snprintf(write->directory, sizeof write->directory, "%s", effect->text);
    if (effect->kind == GS_DO_DELETE_JOB) write->tombstone = effect->tombstone;
    if (effect->kind == GS_DO_RESERVE_GENERATIONS) write->generation_end = effect->generation_end;
    if (effect->kind == GS_DO_WRITE_CHECKPOINT && gs_checkpoint_to_record(&write->text, effect->checkpoint).code) abort();
    if (effect->kind != GS_DO_WRITE_JOB) return;
    write->text = record_of(world, effect->job, state);
    const gs_request_key *key = effect->write.key;
    if (!key) return;
    write->key = strdup(key->key);
    snprintf(write->fingerprint, sizeof write->fingerprint, "%s", key->fingerprint);
}

void row_write_release(row_write *write) {
    free(write->text);
    free(write->key);
    if (write->product) gs_work_destroy((gs_work *)write->product);
}

static gs_status try_one(sim_world *world, const row_write *write) {
    rows_trouble *trouble = &world->rows->trouble;
    int64_t bytes = ROW_BYTES + (write->text ? (int64_t)strlen(write->text) : 0);
    if (trouble->room >= 0 && bytes > trouble->room) return gs_error(GS_RESOURCE_EXHAUSTED, "disk full");
    if (trouble->one_fails > 0 && dice_chance(&world->dice, trouble->one_fails)) return gs_error(GS_UNAVAILABLE, "I/O error");
    if (trouble->room >= 0) trouble->room -= bytes;
    return gs_ok();
}

static void keep_honest(sim_rows *rows) {
    if (rows->trouble.lies && !rows->honest) rows->honest = row_state_copy(&rows->now);
}

static void kill_coordinator(sim_world *world, uint64_t whom, void *what) {
    (void)whom;
    (void)what;
    world_tell(world, "the coordinator is killed behind a commit that failed");
    coordinator_kill(world, dice_delay_ns(&world->dice, 2 * SECONDS));
}

static void kill_behind_failure(sim_world *world, row_write **writes, size_t num_writes) {
    rows_trouble *trouble = &world->rows->trouble;
    bool all_failed = trouble->is_fatal;
    for (size_t i = 0; i < num_writes; i++) all_failed &= writes[i]->status.code != 0;
    if (!all_failed) return;
    trouble->is_fatal = false;
    world_after(world, dice_between(&world->dice, 0, 1000) * MILLISECONDS, kill_coordinator, 0, NULL);
}

static void commit_simply(sim_world *world, row_write **writes, size_t num_writes) {
    sim_rows *rows = world->rows;
    keep_honest(rows);
    bool fails = rows->trouble.all_fail > 0 && dice_chance(&world->dice, rows->trouble.all_fail);
    row_state *before = fails ? row_state_copy(&rows->now) : NULL;
    for (size_t i = 0; i < num_writes; i++) {
        writes[i]->status = try_one(world, writes[i]);
        if (!writes[i]->status.code) row_state_apply(&rows->now, writes[i]);
    }
    row_state_drop(&rows->ghost);
    if (fails) {
        // Nobody knows whether it is there: the log may have got all of it before the disk said no.
        rows->ghost = row_state_copy(&rows->now);
        row_state_replace(&rows->now, before);
        for (size_t i = 0; i < num_writes; i++) {
            if (!writes[i]->status.code) writes[i]->status = gs_error(GS_UNAVAILABLE, "commit: I/O error");
        }
    }
    // Also a disk that lies writes now and then.
    if (!rows->trouble.lies || dice_chance(&world->dice, 0.1)) row_state_drop(&rows->honest);
}

void rows_commit(sim_world *world, row_write **writes, size_t num_writes) {
    sim_rows *rows = world->rows;
    if (rows->database) database_commit(world, rows->database, &rows->now, &rows->trouble, writes, num_writes);
    else commit_simply(world, writes, num_writes);
    kill_behind_failure(world, writes, num_writes);
}

static promised_rows find_rows(const sim_world *world, uint64_t job) {
    const row_state *state = &world->rows->now;
    promised_rows found = {0};
    for (size_t i = 0; i < state->num_rows; i++) {
        const stored_row *row = &state->rows[i];
        if (row->job != job) continue;
        found.has_job |= row->table == ROWS_OF_JOBS;
        found.has_key |= row->table == ROWS_OF_KEYS;
        found.has_tombstone |= row->table == ROWS_OF_TOMBSTONES;
    }
    return found;
}

// A promise about a row that is gone cannot be kept.
void rows_are_others(sim_world *world) {
    promises_find_rows(world, find_rows);
    sets_forget_numbers(world);
}

bool rows_end_soon(sim_world *world, int operations) {
    if (world->rows->database) database_end_soon(world->rows->database, operations);
    return world->rows->database;
}

bool rows_have_ended(const sim_world *world) { return world->rows->database && database_has_ended(world->rows->database); }

void rows_crash(sim_world *world, bool power_failed) {
    sim_rows *rows = world->rows;
    if (rows->database) {
        database_crash(world, rows->database, power_failed);
        return;
    }
    if (power_failed && rows->honest) {
        world_tell(world, "disk: what it said was written is lost");
        row_state_replace(&rows->now, rows->honest);
        rows->honest = NULL;
        rows_are_others(world);
    } else if (rows->ghost && dice_chance(&world->dice, 0.5)) {
        world_tell(world, "disk: a commit that failed is there");
        row_state_replace(&rows->now, rows->ghost);
        rows->ghost = NULL;
    }
    row_state_drop(&rows->ghost);
}

// As gs_stored_load does: what cannot be read is left out, and stays where it is.
static gs_job *read_job(sim_world *world, const stored_row *row) {
    gs_job *job = NULL;
    gs_job_documents documents = {0};
    char *text = strdup(row->text->text);
    if (row->is_spoilt) text[strlen(text) / 2] = 0;
    gs_status status = gs_job_from_record(&job, &documents, row->job, text, world->now_ns, world->wall_ms);
    free(text);
    if (!status.code) gs_job_documents_release(&documents);
    promises_can_read(world, row->job, !row->is_spoilt);
    if (row->is_spoilt) {
        if (!status.code) oracle_fail(world, "half a record is read as a job");
        return NULL;
    }
    if (status.code) oracle_fail(world, "a record cannot be read: %s", status.message);
    return job;
}

static void adopt_jobs(sim_world *world, gs_engine *engine) {
    const row_state *state = &world->rows->now;
    for (size_t i = 0; i < state->num_rows && state->rows[i].table == ROWS_OF_JOBS; i++) {
        gs_job *job = read_job(world, &state->rows[i]);
        for (size_t k = 0; job && k < state->num_rows; k++) {
            const stored_row *row = &state->rows[k];
            gs_checkpoint read = {0};
            if (row->table != ROWS_OF_CHECKPOINTS || row->job != job->id) continue;
            if (gs_checkpoint_from_record(&read, row->text->text).code) oracle_fail(world, "the record of a checkpoint cannot be read");
            gs_checkpoints_load(&job->checkpoints, row->name, &read);
        }
        if (job) gs_engine_adopt_job(engine, job);
        else gs_engine_adopt_unreadable(engine, state->rows[i].job);
    }
}

gs_engine *rows_wake_engine(sim_world *world, const gs_timing *timing) {
    row_state *state = &world->rows->now;
    const rows_trouble *trouble = &world->rows->trouble;
    if (world->rows->database) return database_wake_engine(world, world->rows->database, state, trouble, timing);
    if (trouble->reads_fail > 0 && dice_chance(&world->dice, trouble->reads_fail)) return NULL;
    uint32_t first_generation = state->generation_end;
    row_state_begin_life(state, dice_roll(&world->dice) >> 1 | 1);
    row_state_drop(&world->rows->honest);  // a start waits until what it read is there
    gs_engine *engine = NULL;
    gs_engine_options options = {.timing = timing,
                                 .retention = *rows_retention(world),
                                 .checkpoints_dir = "/checkpoints",
                                 .cluster = rows_cluster(world),
                                 .epoch = state->epoch,
                                 .life = state->lives[state->epoch - 1],
                                 .first_generation = first_generation};
    gs_status status = gs_engine_create(&engine, &options);
    if (status.code) {
        oracle_fail(world, "no engine: %s", status.message);
        abort();
    }
    for (uint32_t i = 0; i < state->epoch; i++) gs_engine_adopt_life(engine, i + 1, state->lives[i]);
    for (size_t i = 0; i < state->num_rows; i++) {
        const stored_row *row = &state->rows[i];
        if (row->table == ROWS_OF_TOMBSTONES) gs_engine_adopt_tombstone(engine, &row->tombstone);
        if (row->table == ROWS_OF_KEYS) gs_engine_adopt_key(engine, row->name, row->text->text, row->job, INT64_MAX);
    }
    adopt_jobs(world, engine);
    return engine;
}

const char *rows_cluster(const sim_world *world) { return clusters[world->rows->cluster]; }

bool rows_exchange(sim_world *world) {
    sim_rows *rows = world->rows;
    if (rows->database) return false;
    row_state_drop(&rows->ghost);
    row_state_drop(&rows->honest);
    row_state left = rows->now;
    rows->now = rows->other;
    rows->other = left;
    rows->cluster = !rows->cluster;
    rows_are_others(world);
    return true;
}

void rows_spoil(sim_world *world) {
    if (world->rows->database) return;
    row_state *state = &world->rows->now;
    size_t num_jobs = 0;
    while (num_jobs < state->num_rows && state->rows[num_jobs].table == ROWS_OF_JOBS) num_jobs++;
    if (!num_jobs) return;
    stored_row *row = &state->rows[dice_between(&world->dice, 0, (int64_t)num_jobs - 1)];
    row->is_spoilt = true;
    world_tell(world, "disk: a job's record cannot be read any more");
}

bool rows_repair(sim_world *world) {
    bool any = false;
    for (size_t i = 0; i < world->rows->now.num_rows; i++) {
        any |= world->rows->now.rows[i].is_spoilt;
        world->rows->now.rows[i].is_spoilt = false;
    }
    return any;
}
