// What of a job has been saved: checkpoints on their way from a report to a row, and saves whose parts are
// still coming. What there is; who moves it is coordinator/engine/base/checkpoints.h.
#ifndef COORDINATOR_MODEL_CHECKPOINT_H
#define COORDINATOR_MODEL_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/digest.h"

#define GS_CHECKPOINT_NAME_LEN 208

typedef enum gs_checkpoint_state {
    GS_CHECKPOINT_VERIFYING = 0,  // its files are being read
    GS_CHECKPOINT_RECORDING,      // a job may start from it; its row is on its way to the disk
    GS_CHECKPOINT_GOOD,           // recorded, too
    GS_CHECKPOINT_DELETING,       // never used again
    GS_NUM_CHECKPOINT_STATES
} gs_checkpoint_state;

// Why one was not made, or is none any more.
typedef enum gs_save_failure {
    GS_SAVE_IO = 0,     // and every word that is not known here
    GS_SAVE_SPACE,
    GS_SAVE_DEADLINE,
    GS_SAVE_RESIDUALS,  // what ranks that are gone carried of their own could not be read any more
    GS_SAVE_FENCED,     // another set of ranks has begun there
    GS_SAVE_DIGEST,     // it was made, and is damaged or gone
    GS_NUM_SAVE_FAILURES
} gs_save_failure;

const char *gs_save_failure_name(gs_save_failure failure);  // "space"
gs_save_failure gs_save_failure_of(const char *name);       // as a rank says it

typedef struct gs_checkpoint_file {
    char name[GS_CHECKPOINT_NAME_LEN];
    int64_t bytes;  // −1: not told
    char digest[GS_DIGEST_TEXT_LEN];
} gs_checkpoint_file;

// One that is on the disk, in the words of the rank that wrote it or of its manifest.
typedef struct gs_checkpoint_report {
    int64_t step, bytes, world_size;
    uint32_t generation;  // of who has written it; 0: not told
    double seconds;
    char reason[48], state_digest[GS_DIGEST_TEXT_LEN];
    char manifest_digest[GS_DIGEST_TEXT_LEN];  // "": not told
    gs_checkpoint_file *files;                 // owned
    size_t num_files;
} gs_checkpoint_report;

void gs_checkpoint_report_release(gs_checkpoint_report *report);

typedef struct gs_checkpoint {
    char directory[GS_CHECKPOINT_NAME_LEN], reason[48];
    char digest[GS_DIGEST_TEXT_LEN];  // of the state; in rows of earlier versions, of the manifest
    int64_t step, bytes, created_ms, world_size, parts;
    double seconds;
    gs_checkpoint_state state;
    bool is_gone;             // its files are, or are damaged: it is never good again
    int64_t read_asked_ns;    // since when its files are being read; 0: they are not, or could not be, and are read again
    bool is_trusted;          // a start does not wait for that: its ranks read them themselves, and say when they are damaged
    bool mark_waits;          // that it is being deleted is written when the write before it has ended
    int64_t record_again_ns;  // its row could not be written: when that is tried again; 0: it is on its way, or there
    int64_t record_pause_ns;  // until then; 0: it has not failed yet, and nobody was told
} gs_checkpoint;

// Whether ranks that nobody hears live, as their checkpoint directory tells.
typedef struct gs_life_look {
    uint32_t generation;
    int64_t number;    // of their last sign: that was known, then that is there; 0: none
    bool raises;       // where it is the same, the directory is closed to them
    bool stands;       // it is theirs, and they have been in it: what it tells is of them
    bool is_raised;    // it is closed to them
} gs_life_look;

// A save that ranks write in parts, until it is a checkpoint or has failed.
typedef struct gs_part_save {
    char directory[GS_CHECKPOINT_NAME_LEN];
    int64_t step;
    size_t num_parts, num_reported;
    uint8_t *reported;  // owned; by part
    double seconds;     // of the slowest
    bool failed;
} gs_part_save;

typedef struct gs_checkpoints {  // {0} is empty
    gs_checkpoint *items;        // owned; in order of arrival
    size_t count, reserved;
    gs_part_save *saves;  // owned; in order of arrival
    size_t num_saves, max_saves;
    bool wants_look;  // since the coordinator's start, until its turn comes
    int looking;      // at files of saves, just now
    int64_t find_again_ns;  // something could not be read; 0: nothing
    int num_finds;          // because of that, since nothing was in the way
    int64_t asked_ns;       // what is looked for, since when
    int64_t listed_ns;      // what there is, when that was asked last; 0: never, and nobody has written there
    int num_lists;          // of the next start, because the one before was old
    int64_t away_since_ns;  // the disk itself does not answer; 0: it does
    char away_reason[160];
    bool is_given_up;       // by an operator: its next start goes on from what is known
    int64_t most_step;      // that its next start goes on from, also by an operator; 0: any
    bool is_found;    // what is on the disk is known: nobody has written there since
    bool is_checked;  // the disk has been asked whether they are still there, since the last run began
    bool were_checked;  // in this life of the coordinator, at any time: what else is known it has recorded itself
    bool is_checking;
} gs_checkpoints;

void gs_checkpoints_release(gs_checkpoints *checkpoints);
gs_checkpoint *gs_checkpoints_add(gs_checkpoints *checkpoints, const char *directory);
// As its row says, unless the record of its job has it gone.
void gs_checkpoints_load(gs_checkpoints *checkpoints, const char *directory, const gs_checkpoint *row);
gs_checkpoint *gs_checkpoints_find(const gs_checkpoints *checkpoints, const char *directory);  // NULL: none
void gs_checkpoints_forget(gs_checkpoints *checkpoints, const char *directory);
// Its files are all there, as far as is known.
bool gs_checkpoint_may_start(const gs_checkpoint *item);
// Of those that a job may start from, none above most_step. NULL: none.
const gs_checkpoint *gs_checkpoints_newest(const gs_checkpoints *checkpoints);
int64_t gs_checkpoints_newest_step(const gs_checkpoints *checkpoints);          // −1: none
// Looked for, or being verified without having been trusted: what a job starts from is not known yet.
bool gs_checkpoints_pending(const gs_checkpoints *checkpoints);
// Trusted or not; not those of which that was asked at or before `since_ns`, whatever keeps them.
bool gs_checkpoints_being_read(const gs_checkpoints *checkpoints, int64_t since_ns);

size_t gs_checkpoints_num_verifying(const gs_checkpoints *checkpoints);
gs_part_save *gs_part_saves_add(gs_checkpoints *checkpoints, const char *directory, int64_t step,
                                size_t num_parts);
gs_part_save *gs_part_saves_find(const gs_checkpoints *checkpoints, const char *directory);  // NULL: none
void gs_part_saves_forget(gs_checkpoints *checkpoints, const char *directory);
bool gs_part_save_has_all(const gs_part_save *save);

#endif
