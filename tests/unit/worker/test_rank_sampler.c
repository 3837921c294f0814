#include "worker/data/rank_sampler.h"

#include "tests/support/asserts.h"
#include "tests/unit/worker/data_files.h"

#define MOST_SAMPLES 256

// A split of `num_samples` samples in these files; nobody reads them.
static gs_data_source source_of(const int64_t *file_begins, size_t num_files, int64_t num_samples) {
    return (gs_data_source){
        .shape = {.num_samples = num_samples, .file_begins = file_begins, .num_files = num_files},
        .num_samples = num_samples};
}

static gs_job_spec spec_of(int uneven_inputs, int64_t shards, int64_t passes, int64_t micro_batch) {
    gs_job_spec spec = {.logical_shards = shards};
    spec.data.micro_batch = micro_batch;
    spec.data.global_batch = shards * passes * micro_batch;
    spec.data.uneven_inputs = uneven_inputs;
    spec.data.split = GS_SPLIT_BY_RANK;
    return spec;
}

// How often each sample of the split comes in `steps` steps of a rank, and how many there are in
// all.
static int64_t count_samples(int counts[MOST_SAMPLES], const gs_rank_sampler *sampler,
                             const gs_job_spec *spec, int64_t first_step, int64_t steps) {
    int64_t passes = sampler->rank_batch / sampler->pass_rows, total = 0;
    for (int64_t step = first_step; step < first_step + steps; step++) {
        int64_t consumed = step * spec->data.global_batch, in_step = 0;
        for (int64_t pass = 0; pass < passes; pass++) {
            int64_t rows = gs_rank_sampler_rows(sampler, consumed, pass);
            assert_in_range((uint64_t)rows, 0, (uint64_t)sampler->pass_rows);
            for (int64_t row = 0; row < rows; row++)
                counts[gs_rank_sampler_index(sampler, consumed, pass, row)]++;
            in_step += rows;
        }
        assert_int_equal(gs_rank_sampler_has_batch(sampler, consumed), in_step > 0);
        total += in_step;
    }
    return total;
}

static void check_union(const gs_data_source *source, const gs_job_spec *spec, int world_size,
                        int64_t steps_wanted) {
    for (int64_t epoch = 0; epoch < 3; epoch++) {
        int counts[MOST_SAMPLES] = {0};
        for (int rank = 0; rank < world_size; rank++) {
            gs_logical_shards shards = {
                .num_shards = (int)spec->logical_shards, .world_size = world_size, .rank = rank};
            gs_rank_sampler sampler;
            assert_ok(gs_rank_sampler_init(&sampler, source, spec, &shards));
            assert_int_equal(sampler.steps_per_epoch, steps_wanted);
            count_samples(counts, &sampler, spec, epoch * steps_wanted, steps_wanted);
            gs_rank_sampler_release(&sampler);
        }
        for (int64_t i = 0; i < source->num_samples; i++)
            if (counts[i] != 1)
                fail_msg("epoch %d: sample %d comes %d times", (int)epoch, (int)i, counts[i]);
    }
}

static void an_epoch_of_a_join_is_every_sample_once(void **state) {
    (void)state;
    const int64_t files[] = {0, 10, 31, 36, 36, 40};
    // Files 0 and 3, 1 and 4, 2: parts of 10, 25 and 5.
    gs_data_source source = source_of(files, 5, 40);
    gs_job_spec spec = spec_of(GS_UNEVEN_JOIN, 3, 1, 4);
    check_union(&source, &spec, 3, 7);
    // Four shards on three ranks: the last one takes twice as much of its part in a step.
    spec = spec_of(GS_UNEVEN_JOIN, 4, 2, 2);
    check_union(&source, &spec, 3, 7);
    // No files: runs of 14, 13, 13.
    source = source_of(NULL, 0, 40);
    check_union(&source, &spec, 3, 4);
}

static void files_are_dealt_like_cards_and_runs_when_there_are_too_few(void **state) {
    (void)state;
    const int64_t files[] = {0, 10, 31, 36};
    gs_data_source source = source_of(files, 3, 36);
    static const int64_t by_file[] = {15, 21}, by_run[] = {9, 9, 9, 9};
    int64_t count;
    for (int rank = 0; rank < 2; rank++) {
        assert_ok(gs_rank_part_count(&count, &source, rank, 2));
        assert_int_equal(count, by_file[rank]);
    }
    for (int rank = 0; rank < 4; rank++) {
        assert_ok(gs_rank_part_count(&count, &source, rank, 4));
        assert_int_equal(count, by_run[rank]);
    }
    gs_rank_part part;
    assert_ok(gs_rank_part_init(&part, &source, 0, 2));
    assert_int_equal(gs_rank_part_sample(&part, 9), 9);
    assert_int_equal(gs_rank_part_sample(&part, 10), 31);
    assert_int_equal(gs_rank_part_sample(&part, 14), 35);
    gs_rank_part_release(&part);
}

static void samples_held_out_for_evaluation_are_nobodys(void **state) {
    (void)state;
    const int64_t files[] = {0, 10, 31, 36};
    gs_data_source source = source_of(files, 3, 36);
    source.num_samples = 33;
    int64_t count, total = 0;
    for (int rank = 0; rank < 3; rank++) {
        assert_ok(gs_rank_part_count(&count, &source, rank, 3));
        total += count;
    }
    assert_int_equal(total, 33);
    assert_int_equal(count, 2);
}

static void even_cuts_all_parts_to_the_smallest(void **state) {
    (void)state;
    const int64_t files[] = {0, 10, 31, 36};
    gs_data_source source = source_of(files, 3, 36);
    gs_job_spec spec = spec_of(GS_UNEVEN_EVEN, 3, 1, 2);
    for (int rank = 0; rank < 3; rank++) {
        gs_logical_shards shards = {.num_shards = 3, .world_size = 3, .rank = rank};
        int counts[MOST_SAMPLES] = {0}, later[MOST_SAMPLES] = {0};
        gs_rank_sampler sampler;
        assert_ok(gs_rank_sampler_init(&sampler, &source, &spec, &shards));
        assert_int_equal(sampler.steps_per_epoch, 2);
        assert_int_equal(count_samples(counts, &sampler, &spec, 0, 2), 4);
        // What one epoch leaves out may come in the next: another order.
        assert_int_equal(count_samples(later, &sampler, &spec, 2, 40), 80);
        for (int64_t i = files[rank]; i < files[rank + 1]; i++) {
            assert_true(counts[i] <= 1);
            assert_true(later[i] > 0);
        }
        gs_rank_sampler_release(&sampler);
    }
}

static void stop_ends_with_the_smallest_part(void **state) {
    (void)state;
    const int64_t files[] = {0, 10, 31, 36};
    gs_data_source source = source_of(files, 3, 36);
    gs_job_spec spec = spec_of(GS_UNEVEN_STOP, 3, 1, 2);
    gs_logical_shards shards = {.num_shards = 3, .world_size = 3, .rank = 2};
    gs_rank_sampler sampler;
    assert_ok(gs_rank_sampler_init(&sampler, &source, &spec, &shards));
    assert_true(gs_rank_sampler_has_batch(&sampler, 2 * 6));
    assert_int_equal(gs_rank_sampler_rows(&sampler, 2 * 6, 0), 1);
    assert_false(gs_rank_sampler_has_batch(&sampler, 3 * 6));
    assert_int_equal(gs_rank_sampler_next_batch(&sampler, 3 * 6), -1);
    gs_rank_sampler_release(&sampler);
    shards.rank = 1;
    assert_ok(gs_rank_sampler_init(&sampler, &source, &spec, &shards));
    assert_true(gs_rank_sampler_has_batch(&sampler, 10 * 6));
    assert_false(gs_rank_sampler_has_batch(&sampler, 11 * 6));
    gs_rank_sampler_release(&sampler);
}

// The next epoch begins for all ranks at once: a rank that is done early waits for it.
static void rank_without_data_goes_on_with_the_next_epoch(void **state) {
    (void)state;
    const int64_t files[] = {0, 10, 31, 36};
    gs_data_source source = source_of(files, 3, 36);
    gs_job_spec spec = spec_of(GS_UNEVEN_JOIN, 3, 1, 2);
    gs_logical_shards shards = {.num_shards = 3, .world_size = 3, .rank = 2};
    gs_rank_sampler sampler;
    assert_ok(gs_rank_sampler_init(&sampler, &source, &spec, &shards));
    assert_int_equal(sampler.steps_per_epoch, 11);
    assert_int_equal(gs_rank_sampler_next_batch(&sampler, 2 * 6), 2 * 6);
    assert_int_equal(gs_rank_sampler_next_batch(&sampler, 3 * 6), 11 * 6);
    assert_int_equal(gs_rank_sampler_next_batch(&sampler, (22 + 5) * 6), 33 * 6);
    gs_rank_sampler_release(&sampler);
}

// A variance of one row has no meaning: local batch norm does without that row for an epoch.
static void lonely_last_row_is_left_out_under_local_batch_norm(void **state) {
    (void)state;
    gs_data_source source = source_of(NULL, 0, 26);
    gs_job_spec spec = spec_of(GS_UNEVEN_JOIN, 2, 1, 4);
    gs_logical_shards shards = {.num_shards = 2, .world_size = 2};
    gs_rank_sampler sampler;
    spec.model.kind = GS_MODEL_MLP;
    spec.model.mlp.num_dims = 3;
    assert_ok(gs_rank_sampler_init(&sampler, &source, &spec, &shards));
    assert_int_equal(sampler.num_usable, 12);
    assert_int_equal(sampler.steps_per_epoch, 3);
    gs_rank_sampler_release(&sampler);
    spec.model.mlp.batch_norm = GS_BATCH_NORM_NONE;
    assert_ok(gs_rank_sampler_init(&sampler, &source, &spec, &shards));
    assert_int_equal(sampler.num_usable, 13);
    gs_rank_sampler_release(&sampler);
}

static void part_that_is_too_small_names_its_rank(void **state) {
    (void)state;
    const int64_t files[] = {0, 10, 31, 36};
    gs_data_source source = source_of(files, 3, 36);
    gs_job_spec spec = spec_of(GS_UNEVEN_EVEN, 3, 1, 8);
    gs_logical_shards shards = {.num_shards = 3, .world_size = 3};
    gs_rank_sampler sampler;
    gs_status status = gs_rank_sampler_init(&sampler, &source, &spec, &shards);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    assert_non_null(strstr(status.message, "rank 2 has 5 samples"));
    source = source_of(NULL, 0, 2);
    status = gs_rank_sampler_init(&sampler, &source, &spec, &shards);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    assert_non_null(strstr(status.message, "2 samples are too few for 3 ranks"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_epoch_of_a_join_is_every_sample_once),
        cmocka_unit_test(files_are_dealt_like_cards_and_runs_when_there_are_too_few),
        cmocka_unit_test(samples_held_out_for_evaluation_are_nobodys),
        cmocka_unit_test(even_cuts_all_parts_to_the_smallest),
        cmocka_unit_test(stop_ends_with_the_smallest_part),
        cmocka_unit_test(rank_without_data_goes_on_with_the_next_epoch),
        cmocka_unit_test(lonely_last_row_is_left_out_under_local_batch_norm),
        cmocka_unit_test(part_that_is_too_small_names_its_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
