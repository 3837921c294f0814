#include "tests/simulation/database.h"

#include <dirent.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "coordinator/store/job_store.h"
#include "coordinator/store/row_work.h"
#include "coordinator/store/stored.h"
#include "tests/simulation/oracle.h"
#include "tests/simulation/vfs.h"

#define MAX_OLDER 2000

database_counts database_counted;

struct sim_database {
    sim_vfs *vfs;
    char folder[64], path[80];
    gs_job_store *store;  // NULL: not open
    // What the next start may find instead of what was acknowledged: that with what was being written, or what failed;
    // and, of a disk that lies, what there was before.
    row_state *with_last;  // NULL: nothing was being written
    row_state *older[MAX_OLDER];
    size_t num_older;
    bool is_unclear;  // of what failed, each write may be there or not
    bool has_lost;    // what was acknowledged, since the last start
    uint32_t epoch;   // of the last start
};

static int pages_to_checkpoint;

// More often than the product asks for: most histories are too short for one.
static int set_checkpoints(sqlite3 *database, char **error, const struct sqlite3_api_routines *routines) {
    (void)error;
    (void)routines;
    return sqlite3_wal_autocheckpoint(database, pages_to_checkpoint);
}

// The product makes the file itself; SQLite's is the simulated one of that name.
static void make_folder(sim_database *database) {
    snprintf(database->folder, sizeof database->folder, "/tmp/gradsync-simulation-XXXXXX");
    if (!mkdtemp(database->folder)) abort();
    snprintf(database->path, sizeof database->path, "%s/db", database->folder);
}

static void remove_folder(const sim_database *database) {
    DIR *list = opendir(database->folder);
    for (const struct dirent *entry; list && (entry = readdir(list));) unlinkat(dirfd(list), entry->d_name, 0);
    if (list) closedir(list);
    rmdir(database->folder);
}

sim_database *database_create(sim_world *world) {
    sim_database *database = calloc(1, sizeof *database);
    make_folder(database);
    if (sqlite3_auto_extension((void (*)(void))set_checkpoints) != SQLITE_OK) abort();
    database->vfs = vfs_create(&world->dice);
    pages_to_checkpoint = (int)dice_between(&world->dice, 4, 60);
    database_counted.histories++;
    return database;
}

// Everything that was acknowledged is written for certain.
static void forget_older(sim_database *database) {
    while (database->num_older > 0) row_state_drop(&database->older[--database->num_older]);
}

static void forget_last(sim_database *database) {
    row_state_drop(&database->with_last);
    database->is_unclear = false;
}

void database_destroy(sim_database *database) {
    if (!database) return;
    vfs_end(database->vfs);
    gs_job_store_close(database->store);
    forget_older(database);
    forget_last(database);
    vfs_destroy(database->vfs);
    remove_folder(database);
    free(database);
}

void database_fill(row_write *write, const gs_effect *effect, const gs_state *state) {
    gs_work *work = NULL;
    gs_job_documents documents = {0};
    switch (effect->kind) {
    case GS_DO_WRITE_JOB:
        documents = gs_job_documents_of(&effect->job->spec);
        work = gs_row_work_put_job(effect->job, &documents, effect->write.key, state->now_ns);
        gs_job_documents_release(&documents);
        break;
    case GS_DO_DELETE_JOB: work = gs_row_work_delete_job(&effect->tombstone); break;
    case GS_DO_RESERVE_GENERATIONS: work = gs_row_work_reserve_generations(effect->generation_end); break;
    case GS_DO_WRITE_CHECKPOINT: work = gs_row_work_put_checkpoint(effect->job_id, effect->checkpoint); break;
    case GS_DO_DELETE_CHECKPOINT: work = gs_row_work_delete_checkpoint(effect->job_id, effect->text); break;
    case GS_DO_PRUNE_KEYS: work = gs_row_work_prune_keys(state->wall_ms); break;
    default: break;
    }
    write->product = work ? &work->base : NULL;
}

static void set_trouble(sim_database *database, const rows_trouble *trouble, double reads_fail) {
    *vfs_trouble_of(database->vfs) = (vfs_trouble){.read_fails = reads_fail,
                                                   .write_fails = trouble->one_fails / 4,
                                                   .sync_fails = trouble->all_fail,
                                                   .room = trouble->room,
                                                   .lies = trouble->lies};
}

static void keep_older(sim_database *database, const row_state *state) {
    if (database->num_older == MAX_OLDER) abort();
    database->older[database->num_older++] = row_state_copy(state);
}

static row_state *with_all(const row_state *before, row_write **writes, size_t num_writes) {
    row_state *all = row_state_copy(before);
    for (size_t i = 0; i < num_writes; i++) row_state_apply(all, writes[i]);
    return all;
}

void database_commit(sim_world *world, sim_database *database, row_state *now, const rows_trouble *trouble, row_write **writes,
                     size_t num_writes) {
    (void)world;
    gs_write *products[256];
    if (!database->store) return;
    if (trouble->lies) keep_older(database, now);
    row_state *before = row_state_copy(now);
    set_trouble(database, trouble, 0);
    for (size_t i = 0; i < num_writes; i++) products[i] = writes[i]->product;
    gs_transaction_run(database->store, products, num_writes);
    database_counted.transactions++;
    size_t num_failed = 0;
    for (size_t i = 0; i < num_writes; i++) {
        writes[i]->status = products[i]->status;
        num_failed += writes[i]->status.code != 0;
        if (!writes[i]->status.code) row_state_apply(now, writes[i]);
    }
    if (num_failed < num_writes) {
        forget_last(database);
        if (!trouble->lies) forget_older(database);
    } else {
        row_state_drop(&database->with_last);
        database->with_last = with_all(before, writes, num_writes);
        database->is_unclear |= num_writes > 1;
    }
    row_state_drop(&before);
}

void database_end_soon(sim_database *database, int operations) { vfs_end_soon(database->vfs, operations); }
bool database_has_ended(const sim_database *database) { return vfs_has_ended(database->vfs); }

void database_crash(sim_world *world, sim_database *database, bool power_failed) {
    database_counted.crashes++;
    database_counted.power_failures += power_failed;
    database_counted.in_transactions += vfs_has_ended(database->vfs);
    vfs_end(database->vfs);
    gs_job_store_close(database->store);
    database->store = NULL;
    if (!vfs_begin(database->vfs, power_failed)) return;
    world_tell(world, "disk: what it said was written is lost");
    database->has_lost = true;
}

static void read_job(void *ctx, const gs_store_row *row) { row_state_put(ctx, ROWS_OF_JOBS, row->id, "", row->body); }

static void read_checkpoint(void *ctx, const gs_store_row *row) {
    row_state_put(ctx, ROWS_OF_CHECKPOINTS, row->job, row->key, row->body);
}

static void read_key(void *ctx, const gs_store_row *row) {
    row_state_put(ctx, ROWS_OF_KEYS, row->job, row->key, row->body)->expires_ms = row->expires_ms;
}

static void read_tombstone(void *ctx, const gs_store_row *row) {
    const gs_tombstone tombstone = gs_tombstone_of_row(row);
    row_state_put_tombstone(ctx, &tombstone);
}

static gs_status read_rows(row_state *state, gs_job_store *store) {
    GS_TRY(gs_job_store_load_jobs(store, read_job, state));
    GS_TRY(gs_job_store_load_checkpoints(store, read_checkpoint, state));
    GS_TRY(gs_job_store_load_tombstones(store, read_tombstone, state));
    return gs_job_store_load_keys(store, read_key, state);
}

// Of what may be there.
static void judge(sim_world *world, sim_database *database, const row_state *now, const row_state *found) {
    bool is_older = false;
    for (size_t i = 0; i < database->num_older && database->has_lost && !is_older; i++)
        is_older = row_state_equals(found, database->older[i]);
    if (row_state_equals(found, now)) database_counted.found_newest++;
    else if (database->with_last && row_state_equals(found, database->with_last)) database_counted.found_last++;
    else if (is_older) database_counted.found_older++;
    else if (database->is_unclear) database_counted.found_unclear++;
    else oracle_fail(world, "the store holds neither what was acknowledged nor that with all that was being written");
}

static void judge_start(sim_world *world, sim_database *database, const row_state *now, const gs_store_start *start) {
    if (database->has_lost) return;
    if (start->coordinator_epoch <= database->epoch) oracle_fail(world, "epoch %u comes again", start->coordinator_epoch);
    if (start->first_generation < now->generation_end) oracle_fail(world, "generation %u comes again", start->first_generation);
}

static void adopt_key(void *ctx, const gs_store_row *row) {
    gs_engine_adopt_key(ctx, row->key, row->body, row->job, row->expires_ms);
}

static void adopt_life(void *ctx, const gs_store_row *row) { gs_engine_adopt_life(ctx, row->id, row->job); }

static void adopt_tombstone(void *ctx, const gs_store_row *row) {
    const gs_tombstone tombstone = gs_tombstone_of_row(row);
    gs_engine_adopt_tombstone(ctx, &tombstone);
}

static gs_status load(sim_world *world, gs_engine *engine, gs_job_store *store) {
    gs_stored stored = {0};
    GS_TRY(gs_job_store_load_keys(store, adopt_key, engine));
    GS_TRY(gs_job_store_load_lives(store, adopt_life, engine));
    GS_TRY(gs_job_store_load_tombstones(store, adopt_tombstone, engine));
    GS_TRY(gs_stored_load(&stored, store, world->now_ns, world->wall_ms));
    for (size_t i = 0; i < stored.num_jobs; i++) {
        gs_engine_adopt_job(engine, stored.jobs[i].job);
        stored.jobs[i].job = NULL;
    }
    gs_stored_release(&stored);
    return gs_ok();
}

static gs_engine *make_engine(sim_world *world, gs_job_store *store, const gs_store_start *start, const gs_timing *timing) {
    gs_engine *engine = NULL;
    gs_engine_options options = {.timing = timing,
                                 .checkpoints_dir = "/checkpoints",
                                 .cluster = start->cluster,
                                 .epoch = start->coordinator_epoch,
                                 .life = start->life,
                                 .first_generation = start->first_generation};
    if (gs_engine_create(&engine, &options).code) abort();
    if (!load(world, engine, store).code) return engine;
    gs_engine_destroy(engine);
    return NULL;
}

// As a service is started again and again: it opens, or it says why not.
static gs_status open_store(sim_database *database, gs_store_start *start, row_state *found) {
    GS_TRY(gs_job_store_open(&database->store, start, database->path));
    gs_status status = read_rows(found, database->store);
    if (!status.code) return status;
    gs_job_store_close(database->store);
    database->store = NULL;
    return status;
}

gs_engine *database_wake_engine(sim_world *world, sim_database *database, row_state *now, const rows_trouble *trouble,
                                const gs_timing *timing) {
    gs_store_start start = {0};
    row_state *found = calloc(1, sizeof *found);
    set_trouble(database, trouble, trouble->reads_fail / 4);
    gs_status status = open_store(database, &start, found);
    gs_engine *engine = NULL;
    if (status.code) {
        database_counted.refused++;
        world_tell(world, "coordinator: %s", status.message);
        if (status.code == GS_DATA_LOSS) {
            database_counted.set_aside++;
            oracle_fail(world, "a sound database is taken for damaged: %s", status.message);
        }
    } else {
        judge(world, database, now, found);
        judge_start(world, database, now, &start);
        engine = make_engine(world, database->store, &start, timing);
    }
    vfs_trouble_of(database->vfs)->read_fails = 0;
    if (!engine) {
        gs_job_store_close(database->store);
        database->store = NULL;
        row_state_drop(&found);
        if (vfs_has_ended(database->vfs)) database_crash(world, database, false);  // it died of its start
        return NULL;
    }
    database_counted.starts++;
    found->generation_end = start.first_generation + GS_GENERATION_BLOCK;
    if (database->has_lost) rows_excuse_lost(world, now, found);
    row_state_replace(now, found);
    forget_last(database);
    if (trouble->lies) keep_older(database, now);
    else forget_older(database);
    database->has_lost = false;
    database->epoch = start.coordinator_epoch;
    return engine;
}
