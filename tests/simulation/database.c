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

#define MAX_STATES 2000

database_counts database_counted;

typedef struct state_list {
    row_state *items[MAX_STATES];  // owned
    size_t count;
} state_list;

struct sim_database {
    sim_vfs *vfs;
    char folder[64], path[80];
    gs_job_store *store;  // NULL: not open
    // What the next start may find instead of what was acknowledged: that with a transaction that was being written, or that
    // failed and could not be taken back since; and, of a disk that lies, what there was before.
    state_list with_last, older;
    bool is_unclear;  // of what failed, each write may be there or not
    bool has_lost;    // what was acknowledged, since the last start
    uint32_t epoch;   // of the last start
    double ages;      // its disk gives an error now and then, until all is calm
};

static int pages_to_checkpoint, pages_in_memory;

// Most histories are too short for a checkpoint, and too small for a page that is written, or read again, before the commit.
static int set_limits(sqlite3 *database, char **error, const struct sqlite3_api_routines *routines) {
    (void)error;
    (void)routines;
    char text[40];
    snprintf(text, sizeof text, "PRAGMA cache_size = %d", pages_in_memory);
    sqlite3_exec(database, text, NULL, NULL, NULL);  // a disk that cannot be read is met again by who opens
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
    if (sqlite3_auto_extension((void (*)(void))set_limits) != SQLITE_OK) abort();
    database->vfs = vfs_create(&world->dice);
    pages_to_checkpoint = (int)dice_between(&world->dice, 4, 60);
    static const double ages[] = {0, 0, 0, 0, 0.004, 0.03, 0.1};
    database->ages = ages[dice_between(&world->dice, 0, 6)];
    pages_in_memory = (int)dice_between(&world->dice, 1, 12);
    database_counted.histories++;
    return database;
}

static void clear_list(state_list *list) {
    while (list->count > 0) row_state_drop(&list->items[--list->count]);
}

static void add_state(state_list *list, row_state *state) {
    if (list->count == MAX_STATES) abort();
    list->items[list->count++] = state;
}

static bool has_state(const state_list *list, const row_state *state) {
    for (size_t i = 0; i < list->count; i++) {
        if (row_state_equals(list->items[i], state)) return true;
    }
    return false;
}

// A disk that lies may show any of it yet.
static void keep_last(sim_database *database) {
    while (database->with_last.count > 0) add_state(&database->older, database->with_last.items[--database->with_last.count]);
}

static void forget_last(sim_database *database) {
    clear_list(&database->with_last);
    database->is_unclear = false;
}

void database_destroy(sim_database *database) {
    if (!database) return;
    vfs_end(database->vfs);
    gs_job_store_close(database->store);
    clear_list(&database->older);
    forget_last(database);
    vfs_destroy(database->vfs);
    remove_folder(database);
    free(database);
}

void database_fill(sim_world *world, row_write *write, const gs_effect *effect, const gs_state *state) {
    gs_work *work = NULL;
    switch (effect->kind) {
    case GS_DO_WRITE_JOB:
        work = gs_row_work_put_job(effect->job, rows_documents_of(world, effect->job), effect->write.key, state->now_ns);
        break;
    case GS_DO_DELETE_JOB: work = gs_row_work_delete_job(&effect->tombstone); break;
    case GS_DO_RESERVE_GENERATIONS: work = gs_row_work_reserve_generations(effect->generation_end); break;
    case GS_DO_WRITE_CHECKPOINT: work = gs_row_work_put_checkpoint(effect->job_id, effect->checkpoint); break;
    case GS_DO_DELETE_CHECKPOINT: work = gs_row_work_delete_checkpoint(effect->job_id, effect->text); break;
    case GS_DO_PRUNE_KEYS: work = gs_row_work_prune_keys(); break;
    default: break;
    }
    write->product = work ? &work->base : NULL;
}

static void set_trouble(const sim_world *world, sim_database *database, const rows_trouble *trouble, double reads_fail) {
    double ages = world->is_calm ? 0 : database->ages;
    *vfs_trouble_of(database->vfs) = (vfs_trouble){.read_fails = reads_fail + ages,
                                                   .write_fails = trouble->one_fails / 4 + ages / 4,
                                                   .sync_fails = trouble->all_fail,
                                                   .room = trouble->room,
                                                   .lies = trouble->lies};
}

// One that has nothing to change writes no page: of a disk that lies what was before it may still be found.
static bool has_written(const row_state *before, const row_state *now) {
    return before->generation_end != now->generation_end || !row_state_equals(before, now);
}

static row_state *with_all(const row_state *before, row_write **writes, size_t num_writes) {
    row_state *all = row_state_copy(before);
    for (size_t i = 0; i < num_writes; i++) row_state_apply(all, writes[i]);
    return all;
}

void database_commit(sim_world *world, sim_database *database, row_state *now, const rows_trouble *trouble, row_write **writes,
                     size_t num_writes) {
    gs_write *products[256];
    if (!database->store) return;
    if (trouble->lies) add_state(&database->older, row_state_copy(now));
    row_state *before = row_state_copy(now);
    set_trouble(world, database, trouble, trouble->reads_fail / 8);
    for (size_t i = 0; i < num_writes; i++) products[i] = writes[i]->product;
    gs_transaction_run(database->store, products, num_writes);
    database_counted.transactions++;
    size_t num_failed = 0;
    for (size_t i = 0; i < num_writes; i++) {
        writes[i]->status = products[i]->status;
        num_failed += writes[i]->status.code != 0;
        if (!writes[i]->status.code) row_state_apply(now, writes[i]);
    }
    bool may_be_found = vfs_has_ended(database->vfs) || gs_job_store_is_in_doubt(database->store);
    database_counted.doubts += gs_job_store_is_in_doubt(database->store);
    if (!may_be_found || num_failed < num_writes) {
        if (trouble->lies) keep_last(database);
        forget_last(database);
        if (!trouble->lies && has_written(before, now)) clear_list(&database->older);
    } else {
        add_state(&database->with_last, with_all(before, writes, num_writes));
        bool each_may_fail = database->ages > 0 || trouble->one_fails > 0 || trouble->reads_fail > 0 || trouble->room >= 0;
        database->is_unclear |= num_writes > 1 && each_may_fail;
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
    row_state_put(ctx, ROWS_OF_KEYS, row->job, row->key, row->body);
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

static void tell_rows(const sim_world *world, const char *what, const row_state *state) {
    for (size_t i = 0; i < state->num_rows; i++) {
        const stored_row *row = &state->rows[i];
        world_tell(world, "%s: table %d job %llx %s: %.2000s", what, (int)row->table, (unsigned long long)row->job, row->name, row->text->text);
    }
}

// Of what may be there.
static void judge(sim_world *world, sim_database *database, const row_state *now, const row_state *found) {
    if (row_state_equals(found, now)) database_counted.found_newest++;
    else if (has_state(&database->with_last, found)) database_counted.found_last++;
    else if (database->has_lost && has_state(&database->older, found)) database_counted.found_older++;
    else if (database->is_unclear) database_counted.found_unclear++;
    else {
        tell_rows(world, "acknowledged", now);
        tell_rows(world, "found", found);
        oracle_fail(world, "the store holds neither what was acknowledged nor that with all that was being written");
    }
}

static void judge_start(sim_world *world, sim_database *database, const row_state *now, const gs_store_start *start) {
    if (database->has_lost) return;
    if (start->coordinator_epoch <= database->epoch) oracle_fail(world, "epoch %u comes again", start->coordinator_epoch);
    if (start->first_generation < now->generation_end) oracle_fail(world, "generation %u comes again", start->first_generation);
}

static void adopt_key(void *ctx, const gs_store_row *row) {
    gs_engine_adopt_key(ctx, row->key, row->body, row->job, INT64_MAX);  // no history is as long as a key lives
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
    for (size_t i = 0; i < stored.num_unreadable; i++) gs_engine_adopt_unreadable(engine, stored.unreadable[i]);
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
                                 .retention = *rows_retention(world),
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
    set_trouble(world, database, trouble, trouble->reads_fail / 4);
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
    row_state_replace(now, found);
    if (database->has_lost) rows_are_others(world);
    forget_last(database);
    if (trouble->lies) add_state(&database->older, row_state_copy(now));
    else clear_list(&database->older);
    database->has_lost = false;
    database->epoch = start.coordinator_epoch;
    return engine;
}
