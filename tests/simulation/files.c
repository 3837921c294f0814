#include "tests/simulation/files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/simulation/promises.h"

static saved_file *find(const sim_world *world, uint64_t job, const char *directory) {
    for (saved_file *file = world->files; file; file = file->next) {
        if (file->job == job && !strcmp(file->directory, directory)) return file;
    }
    return NULL;
}

const saved_file *files_find(const sim_world *world, uint64_t job, const char *directory) {
    return find(world, job, directory);
}

void files_destroy(sim_world *world) {
    for (saved_file *file = world->files, *next; file; file = next) {
        next = file->next;
        free(file);
    }
    world->files = NULL;
}

void files_save(sim_world *world, uint64_t job, const char *directory, int64_t step, uint32_t generation, const char *cluster) {
    saved_file *file = calloc(1, sizeof *file);
    *file = (saved_file){.next = world->files, .job = job, .step = step, .saved_ns = world->now_ns, .generation = generation};
    snprintf(file->directory, sizeof file->directory, "%s", directory);
    snprintf(file->cluster, sizeof file->cluster, "%s", cluster);
    world->files = file;
}

void files_retire(sim_world *world, uint64_t job, const char *directory) {
    saved_file *file = find(world, job, directory);
    if (file) file->is_retired = true;
}

void files_remove(sim_world *world, uint64_t job, const char *directory) {
    for (saved_file **link = &world->files; *link;) {
        saved_file *file = *link;
        bool matches = file->job == job && (!directory || !strcmp(file->directory, directory));
        if (!matches) {
            link = &file->next;
            continue;
        }
        *link = file->next;
        free(file);
    }
}

static saved_file *any_file(const sim_world *world, sim_dice *dice) {
    saved_file *file = world->files;
    for (int64_t skipped = dice_between(dice, 0, 2); file && skipped > 0 && file->next; skipped--) file = file->next;
    return file;
}

const saved_file *files_any(const sim_world *world, sim_dice *dice) { return any_file(world, dice); }

void files_lose(sim_world *world, const saved_file *file) {
    const saved_file lost = *file;
    world_tell(world, "disk: checkpoint %s is removed by somebody", lost.directory);
    promises_lost(world, lost.job, lost.directory, lost.step);
    files_remove(world, lost.job, lost.directory);
}

void files_damage(sim_world *world) {
    saved_file *file = any_file(world, &world->dice);
    if (!file || file->is_damaged) return;
    file->is_damaged = true;
    world_tell(world, "disk: checkpoint %s rots", file->directory);
    promises_damaged(world, file->job, file->directory);
}

bool files_read(sim_world *world, uint64_t job, const char *directory) {
    const saved_file *file = find(world, job, directory);
    if (file && !file->is_damaged) return true;
    if (file) {
        world_tell(world, "disk: checkpoint %s is found damaged, and is now bad-%s", directory, directory);
        files_remove(world, job, directory);
    }
    return false;
}
