#include "tests/unit/coordinator/disk_play.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

const gs_job *disk_play_job(const gs_play *play) {
    return gs_job_table_get(&gs_engine_state(play->engine)->jobs, play->job);
}

int disk_play_set_up(void **state) {
    gs_play_set_up_training(state);
    gs_play *play = *state;
    gs_play_say(play, 0, GS_ON_CHECKPOINTED);
    assert_int_equal(gs_checkpoints_newest_step(&disk_play_job(play)->checkpoints), 3);
    play->watched_reason = "CheckpointsUnavailable";
    return 0;
}

void disk_play_expect_wait(const gs_play *play) {
    assert_null(disk_play_job(play)->run);
    assert_string_equal(disk_play_job(play)->reason, "CheckpointsUnavailable");
    assert_int_equal(play->num_watched, 1);
}

void disk_play_save(gs_play *play, const char *directory, int64_t step) {
    gs_engine_event event = gs_play_message(play, 0, GS_ON_CHECKPOINTED);
    event.checkpointed.directory = directory;
    event.checkpointed.found.step = step;
    gs_play_hear(play, &event);
}

gs_checkpoint_state disk_play_state_of(gs_play *play, const char *directory) {
    const gs_checkpoint *item = gs_checkpoints_find(&disk_play_job(play)->checkpoints, directory);
    assert_non_null(item);
    return item->state;
}

void disk_play_release(gs_play *play, int64_t step) {
    gs_engine_event event = {.kind = GS_ON_RELEASE_JOB, .from = {.call = ++play->last_call, .generation = -1}};
    event.release.job = play->job_text;
    event.release.step = step;
    gs_play_hear(play, &event);
}

void disk_play_hear_of(gs_play *play, gs_engine_event_kind kind, const char *directory) {
    gs_engine_event event = {.kind = kind, .from = {.generation = -1}};
    event.done = (gs_completion){.stored = GS_STORED_CHECKPOINT, .job = play->job, .directory = directory};
    if (kind == GS_ON_CHECKPOINTS_CHECKED) {
        event.done.names = &directory;
        event.done.num_names = 1;
    }
    gs_play_hear(play, &event);
}

void disk_play_begin_from(gs_play *play, int64_t step) {
    gs_play_say_all(play, GS_ON_HELLO);
    gs_play_say(play, 0, GS_ON_PARAMS);
    for (int i = 0; i < GS_PLAY_RANKS; i++) {
        gs_engine_event ready = gs_play_message(play, i, GS_ON_READY);
        ready.ready.applied_step = step;
        gs_play_hear(play, &ready);
    }
    gs_play_say_all(play, GS_ON_COMM_UP);
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_TRAINING);
}

void disk_play_find_whole_of(gs_play *play, uint32_t generation, const char *directory, int64_t step) {
    gs_engine_event event = {.kind = GS_ON_PARTS_LOOKED, .from = {.generation = -1}};
    event.done = (gs_completion){.job = play->job, .directory = directory, .found = {.step = step, .generation = generation}};
    gs_play_hear(play, &event);
}

void disk_play_find_whole(gs_play *play, const char *directory, int64_t step) {
    gs_play_run(play)->job->checkpoints.looking++;
    disk_play_find_whole_of(play, 0, directory, step);
}

void disk_play_expect_unknown(gs_play *play, const char *directory) {
    assert_null(gs_checkpoints_find(&disk_play_job(play)->checkpoints, directory));
    assert_int_equal(gs_checkpoints_newest_step(&disk_play_job(play)->checkpoints), 3);
}
