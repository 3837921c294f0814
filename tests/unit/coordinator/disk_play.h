// The engine played alone (engine_play.h) with a job whose checkpoints are what a test is about.
#ifndef TESTS_UNIT_COORDINATOR_DISK_PLAY_H
#define TESTS_UNIT_COORDINATOR_DISK_PLAY_H

#include "tests/unit/coordinator/engine_play.h"

const gs_job *disk_play_job(const gs_play *play);
// It has trained, has a checkpoint of step 3, and its ranks are gone.
int disk_play_set_up(void **state);
void disk_play_expect_wait(const gs_play *play);
void disk_play_save(gs_play *play, const char *directory, int64_t step);
gs_checkpoint_state disk_play_state_of(gs_play *play, const char *directory);
void disk_play_release(gs_play *play, int64_t step);
void disk_play_hear_of(gs_play *play, gs_engine_event_kind kind, const char *directory);
// All ranks hold that step, and train.
void disk_play_begin_from(gs_play *play, int64_t step);
// A look at the disk, which was under way, has come upon it.
void disk_play_find_whole_of(gs_play *play, uint32_t generation, const char *directory, int64_t step);
void disk_play_find_whole(gs_play *play, const char *directory, int64_t step);
void disk_play_expect_unknown(gs_play *play, const char *directory);

#endif
