#include "coordinator/model/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/model/memory.h"

static const char *const failure_names[GS_NUM_SAVE_FAILURES] = {"io", "space", "deadline", "residuals", "fenced", "digest"};

const char *gs_save_failure_name(gs_save_failure failure) { return failure_names[failure]; }

gs_save_failure gs_save_failure_of(const char *name) {
    for (int i = 0; i < GS_NUM_SAVE_FAILURES; i++) {
        if (!strcmp(failure_names[i], name)) return (gs_save_failure)i;
    }
    return GS_SAVE_IO;
}

void gs_checkpoint_report_release(gs_checkpoint_report *report) {
    free(report->files);
    *report = (gs_checkpoint_report){0};
}

void gs_checkpoints_release(gs_checkpoints *checkpoints) {
    for (size_t i = 0; i < checkpoints->num_saves; i++) free(checkpoints->saves[i].reported);
    free(checkpoints->saves);
    free(checkpoints->items);
    *checkpoints = (gs_checkpoints){0};
}

gs_checkpoint *gs_checkpoints_add(gs_checkpoints *checkpoints, const char *directory) {
    checkpoints->items = gs_model_grow(checkpoints->items, checkpoints->count, &checkpoints->reserved,
                                       sizeof *checkpoints->items);
    gs_checkpoint *item = &checkpoints->items[checkpoints->count++];
    *item = (gs_checkpoint){0};
    snprintf(item->directory, sizeof item->directory, "%s", directory);
    return item;
}

void gs_checkpoints_load(gs_checkpoints *checkpoints, const char *directory, const gs_checkpoint *row) {
    gs_checkpoint *item = gs_checkpoints_find(checkpoints, directory);
    bool is_gone = item != NULL;
    if (!item) item = gs_checkpoints_add(checkpoints, directory);
    gs_checkpoint loaded = *row;
    memcpy(loaded.directory, item->directory, sizeof loaded.directory);
    if (is_gone) loaded.state = GS_CHECKPOINT_DELETING;
    loaded.is_gone |= is_gone;
    *item = loaded;
}

gs_checkpoint *gs_checkpoints_find(const gs_checkpoints *checkpoints, const char *directory) {
    for (size_t i = 0; i < checkpoints->count; i++) {
        if (!strcmp(checkpoints->items[i].directory, directory)) return &checkpoints->items[i];
    }
    return NULL;
}

void gs_checkpoints_forget(gs_checkpoints *checkpoints, const char *directory) {
    gs_checkpoint *item = gs_checkpoints_find(checkpoints, directory);
    if (!item) return;
    size_t index = (size_t)(item - checkpoints->items);
    memmove(item, item + 1, (checkpoints->count - index - 1) * sizeof *item);
    checkpoints->count--;
}

bool gs_checkpoint_may_start(const gs_checkpoint *item) {
    if (item->state == GS_CHECKPOINT_VERIFYING) return item->is_trusted;
    return item->state == GS_CHECKPOINT_RECORDING || item->state == GS_CHECKPOINT_GOOD;
}

const gs_checkpoint *gs_checkpoints_newest(const gs_checkpoints *checkpoints) {
    const gs_checkpoint *newest = NULL;
    for (size_t i = 0; i < checkpoints->count; i++) {
        const gs_checkpoint *item = &checkpoints->items[i];
        if (checkpoints->most_step && item->step > checkpoints->most_step) continue;
        if (gs_checkpoint_may_start(item) && (!newest || item->step >= newest->step)) newest = item;
    }
    return newest;
}

int64_t gs_checkpoints_newest_step(const gs_checkpoints *checkpoints) {
    const gs_checkpoint *newest = gs_checkpoints_newest(checkpoints);
    return newest ? newest->step : -1;
}

size_t gs_checkpoints_num_verifying(const gs_checkpoints *checkpoints) {
    size_t count = 0;
    for (size_t i = 0; i < checkpoints->count; i++) count += checkpoints->items[i].state == GS_CHECKPOINT_VERIFYING;
    return count;
}

static bool is_awaited(const gs_checkpoints *checkpoints, const gs_checkpoint *item) {
    bool is_wanted = !checkpoints->most_step || item->step <= checkpoints->most_step;
    return is_wanted && item->state == GS_CHECKPOINT_VERIFYING;
}

bool gs_checkpoints_pending(const gs_checkpoints *checkpoints) {
    if (checkpoints->wants_look || checkpoints->looking > 0 || checkpoints->find_again_ns) return true;
    for (size_t i = 0; i < checkpoints->count; i++) {
        const gs_checkpoint *item = &checkpoints->items[i];
        if (is_awaited(checkpoints, item) && !item->is_trusted) return true;
    }
    return false;
}

bool gs_checkpoints_being_read(const gs_checkpoints *checkpoints, int64_t since_ns) {
    for (size_t i = 0; i < checkpoints->count; i++) {
        const gs_checkpoint *item = &checkpoints->items[i];
        if (is_awaited(checkpoints, item) && item->read_asked_ns > since_ns) return true;
    }
    return false;
}

gs_part_save *gs_part_saves_add(gs_checkpoints *checkpoints, const char *directory, int64_t step,
                                size_t num_parts) {
    checkpoints->saves = gs_model_grow(checkpoints->saves, checkpoints->num_saves, &checkpoints->max_saves,
                                       sizeof *checkpoints->saves);
    gs_part_save *save = &checkpoints->saves[checkpoints->num_saves++];
    *save = (gs_part_save){.step = step, .num_parts = num_parts,
                           .reported = gs_model_alloc(num_parts, sizeof *save->reported)};
    snprintf(save->directory, sizeof save->directory, "%s", directory);
    return save;
}

gs_part_save *gs_part_saves_find(const gs_checkpoints *checkpoints, const char *directory) {
    for (size_t i = 0; i < checkpoints->num_saves; i++) {
        if (!strcmp(checkpoints->saves[i].directory, directory)) return &checkpoints->saves[i];
    }
    return NULL;
}

void gs_part_saves_forget(gs_checkpoints *checkpoints, const char *directory) {
    gs_part_save *save = gs_part_saves_find(checkpoints, directory);
    if (!save) return;
    free(save->reported);
    size_t index = (size_t)(save - checkpoints->saves);
    memmove(save, save + 1, (checkpoints->num_saves - index - 1) * sizeof *save);
    checkpoints->num_saves--;
}

bool gs_part_save_has_all(const gs_part_save *save) { return save->num_reported == save->num_parts; }
