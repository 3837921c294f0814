// What a start reads of jobs that have ended: when they did, and which of them it could not read.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "coordinator/store/record/job_record.h"
#include "coordinator/store/stored.h"
#include "core/clock.h"
#include "tests/support/asserts.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/coordinator/engine_play.h"

#define NUM_JOBS 3000  // more than can be read within a millisecond
#define SPOILT 17

typedef struct texts {
    char *row, *card;
} texts;

static texts write_ended_job(void) {
    static const char spec[] = "{\"name\":\"waits\",\"world\":{\"min\":1,\"max\":1,\"device\":\"cuda\",\"wait_seconds\":1},"
                               "\"model\":{\"kind\":\"mlp\"},\"steps\":{\"target\":5}}";
    gs_play play;
    texts out = {0};
    gs_play_open(&play);
    gs_job *job = gs_play_submit(&play, spec);
    gs_play_wait(&play, 3 * GS_NS_PER_SEC);
    assert_true(gs_job_state_terminal(job->state));
    gs_job_documents documents = gs_job_documents_of(&job->spec);
    assert_ok(gs_job_to_record(&out.row, job, &documents, play.now_ns));
    assert_ok(gs_job_to_card(&out.card, job, &documents, play.now_ns));
    gs_job_documents_release(&documents);
    gs_play_close(&play);
    return out;
}

static void fill(gs_job_store *store) {
    texts written = write_ended_job();
    assert_ok(gs_job_store_begin(store));
    for (uint64_t id = 1; id <= NUM_JOBS; id++) {
        assert_ok(gs_job_store_put_job(store, id, id == SPOILT ? "{" : written.row));
        assert_ok(gs_job_store_put_card(store, id, id == SPOILT ? "{" : written.card));
    }
    assert_ok(gs_job_store_commit(store));
    free(written.row);
    free(written.card);
}

static void end_all_at_once(const char *path) {
    sqlite3 *database = NULL;
    assert_int_equal(sqlite3_open(path, &database), SQLITE_OK);
    assert_int_equal(sqlite3_exec(database, "UPDATE card SET lived_ms = 5", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(database);
}

// However long the reading takes: who ended first would be another one by it, and goes first where too many have.
static void jobs_that_ended_together_are_found_so(void **state) {
    (void)state;
    char *directory = gs_temp_dir_make(), path[600];
    snprintf(path, sizeof path, "%s/store.db", directory);
    gs_job_store *store = NULL;
    gs_store_start start;
    gs_stored stored;
    assert_ok(gs_job_store_open(&store, &start, path));
    fill(store);
    gs_job_store_close(store);
    end_all_at_once(path);
    assert_ok(gs_job_store_open(&store, &start, path));
    assert_ok(gs_stored_load(&stored, store, gs_now_ns(), gs_wall_ms()));
    assert_int_equal(stored.num_jobs, NUM_JOBS - 1);
    for (size_t i = 0; i < stored.num_jobs; i++) assert_int_equal(stored.jobs[i].job->ended_ns, stored.jobs[0].job->ended_ns);
    assert_int_equal(stored.num_unreadable, 1);
    assert_int_equal(stored.unreadable[0], SPOILT);
    gs_stored_release(&stored);
    gs_job_store_close(store);
    gs_temp_dir_remove(directory);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(jobs_that_ended_together_are_found_so)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
