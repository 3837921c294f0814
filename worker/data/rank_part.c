#include "worker/data/rank_part.h"

#include <stdlib.h>

typedef struct run {
    int64_t first, count;
} run;

// What of file `file` lies in the split; a split is a run of the data set's samples.
static run run_of_file(const gs_data_source *source, size_t file) {
    int64_t first = source->shape.file_begins[file] - source->first_sample;
    int64_t end = source->shape.file_begins[file + 1] - source->first_sample;
    if (first < 0) first = 0;
    if (end > source->num_samples) end = source->num_samples;
    return (run){first, end > first ? end - first : 0};
}

static int64_t count_dealt(const gs_data_source *source, int rank, int world_size) {
    int64_t count = 0;
    for (size_t file = (size_t)rank; file < source->shape.num_files; file += (size_t)world_size)
        count += run_of_file(source, file).count;
    return count;
}

static bool deals_files(const gs_data_source *source, int world_size) {
    for (int rank = 0; rank < world_size; rank++)
        if (count_dealt(source, rank, world_size) == 0) return false;
    return true;
}

static run run_of_rank(const gs_data_source *source, int rank, int world_size) {
    int64_t each = source->num_samples / world_size, more = source->num_samples % world_size;
    return (run){rank * each + (rank < more ? rank : more), each + (rank < more)};
}

gs_status gs_rank_part_count(int64_t *num_samples, const gs_data_source *source, int rank,
                             int world_size) {
    if (source->num_samples < world_size)
        return gs_error(GS_INVALID_ARGUMENT,
                        "data.split by_rank: %lld samples are too few for %d ranks",
                        (long long)source->num_samples, world_size);
    *num_samples = deals_files(source, world_size) ? count_dealt(source, rank, world_size)
                                                   : run_of_rank(source, rank, world_size).count;
    return gs_ok();
}

static void add_run(gs_rank_part *part, run added) {
    if (added.count == 0) return;
    part->begins[part->num_runs] = part->num_samples;
    part->samples[part->num_runs++] = added.first;
    part->num_samples += added.count;
}

gs_status gs_rank_part_init(gs_rank_part *part, const gs_data_source *source, int rank,
                            int world_size) {
    *part = (gs_rank_part){0};
    int64_t num_samples;
    GS_TRY(gs_rank_part_count(&num_samples, source, rank, world_size));
    size_t most = source->shape.num_files / (size_t)world_size + 2;
    part->begins = calloc(most, sizeof *part->begins);
    part->samples = calloc(most, sizeof *part->samples);
    if (!part->begins || !part->samples) {
        gs_rank_part_release(part);
        return gs_error(GS_RESOURCE_EXHAUSTED, "rank's part of the data: out of memory");
    }
    if (!deals_files(source, world_size)) {
        add_run(part, run_of_rank(source, rank, world_size));
        return gs_ok();
    }
    for (size_t file = (size_t)rank; file < source->shape.num_files; file += (size_t)world_size)
        add_run(part, run_of_file(source, file));
    return gs_ok();
}

void gs_rank_part_release(gs_rank_part *part) {
    free(part->begins);
    free(part->samples);
    *part = (gs_rank_part){0};
}

int64_t gs_rank_part_sample(const gs_rank_part *part, int64_t index) {
    size_t low = 0, high = part->num_runs;  // begins[low] ≤ index < begins[high]
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (part->begins[middle] <= index)
            low = middle;
        else
            high = middle;
    }
    return part->samples[low] + (index - part->begins[low]);
}
