#include "tests/unit/worker/data_files.h"

#include "worker/data/data_loader.h"

// Samples of one position whose token is their own number: the file holds 0, 1, 2, …
static gs_job_spec spec_of(int64_t global_batch, int64_t micro_batch) {
    gs_job_spec spec = {0};
    spec.logical_shards = 4;
    spec.model.kind = GS_MODEL_GPT2;
    spec.model.gpt2.context = 1;
    spec.model.gpt2.vocab = 256;
    spec.data.kind = GS_DATA_BYTES;
    strcpy(spec.data.train[0], "numbers");
    spec.data.num_train = 1;
    spec.data.global_batch = global_batch;
    spec.data.micro_batch = micro_batch;
    spec.data.shuffle_seed = 3;
    spec.data.eval_batches = 2;
    return spec;
}

static void write_numbers(const char *root, const char *name, int first, int count) {
    uint8_t bytes[256];
    for (int i = 0; i < count; i++) bytes[i] = (uint8_t)(first + i);
    write_file(root, name, bytes, (size_t)count);
}

static gs_data_loader *open_loader(const char *root, const gs_job_spec *spec, gs_data_split split,
                                   int rank, int world_size, int64_t consumed) {
    gs_data_loader_options options = {
        .spec = spec,
        .split = split,
        .data_root = root,
        .shards = {.num_shards = 4, .world_size = world_size, .rank = rank},
        .consumed = consumed,
    };
    gs_data_loader *loader;
    gs_status status = gs_data_loader_open(&loader, &options);
    if (status.code) fail_msg("%s", status.message);
    return loader;
}

static int64_t count_samples(const char *dir, const gs_job_spec *spec, gs_data_split split) {
    gs_data_source source;
    gs_status status = gs_data_source_open(&source, spec, split, dir);
    if (status.code) fail_msg("%s", status.message);
    int64_t num_samples = source.num_samples;
    gs_data_source_close(&source);
    return num_samples;
}

static gs_status next(gs_data_loader *loader, gs_batch *batch) {
    return gs_data_loader_next(loader, batch, gs_deadline_in_seconds(60));
}

static void take(gs_data_loader *loader, int32_t *tokens, size_t rows) {
    gs_batch batch;
    gs_status status = next(loader, &batch);
    if (status.code) fail_msg("%s", status.message);
    assert_int_equal(batch.rows, rows);
    memcpy(tokens, batch.tokens, rows * sizeof *tokens);
    for (size_t i = 0; i < rows; i++) assert_int_equal(batch.targets[i], batch.tokens[i] + 1);
}

static void each_epoch_has_every_sample_once(void **state) {
    write_numbers(*state, "numbers", 0, 65); // 64 samples, 4 steps of 16
    gs_job_spec spec = spec_of(16, 2);
    gs_data_loader *loader = open_loader(*state, &spec, GS_TRAIN, 0, 1, 0);
    assert_int_equal(count_samples(*state, &spec, GS_TRAIN), 64);
    for (int epoch = 0; epoch < 3; epoch++) {
        int seen[64] = {0};
        for (int i = 0; i < 32; i++) {
            int32_t tokens[2];
            take(loader, tokens, 2);
            seen[tokens[0]]++;
            seen[tokens[1]]++;
        }
        for (int i = 0; i < 64; i++) assert_int_equal(seen[i], 1);
    }
    gs_data_loader_close(loader);
}

static void ranks_of_any_world_share_the_same_global_batches(void **state) {
    write_numbers(*state, "numbers", 0, 65);
    gs_job_spec spec = spec_of(16, 2);
    int32_t alone[3][16];
    gs_data_loader *loader = open_loader(*state, &spec, GS_TRAIN, 0, 1, 0);
    for (int step = 0; step < 3; step++)
        for (int i = 0; i < 8; i++) take(loader, &alone[step][2 * i], 2);
    gs_data_loader_close(loader);

    for (int world = 2; world <= 4; world++) {
        int32_t together[3][16];
        int at = 0;
        for (int rank = 0; rank < world; rank++) {
            loader = open_loader(*state, &spec, GS_TRAIN, rank, world, 0);
            gs_logical_shards shards = {.num_shards = 4, .world_size = world, .rank = rank};
            int micro_batches = 2 * gs_logical_shards_count(&shards);
            for (int step = 0; step < 3; step++)
                for (int i = 0; i < micro_batches; i++)
                    take(loader, &together[step][at + 2 * i], 2);
            at += 2 * micro_batches;
            gs_data_loader_close(loader);
        }
        assert_int_equal(at, 16);
        assert_memory_equal(alone, together, sizeof alone);
    }
}

static void a_loader_goes_on_where_samples_were_consumed(void **state) {
    write_numbers(*state, "numbers", 0, 65);
    gs_job_spec spec = spec_of(16, 4);
    gs_data_loader *loader = open_loader(*state, &spec, GS_TRAIN, 0, 1, 0);
    int32_t first[8][4], again[4];
    for (int i = 0; i < 8; i++) take(loader, first[i], 4);
    gs_data_loader_close(loader);
    loader = open_loader(*state, &spec, GS_TRAIN, 0, 1, 16);
    for (int i = 4; i < 8; i++) {
        take(loader, again, 4);
        assert_memory_equal(first[i], again, sizeof again);
    }
    gs_data_loader_close(loader);
}

static void evaluation_ends_and_starts_again_the_same(void **state) {
    write_numbers(*state, "numbers", 0, 65);
    write_numbers(*state, "test", 100, 100);
    gs_job_spec spec = spec_of(8, 2);
    strcpy(spec.data.eval[0], "test");
    spec.data.num_eval = 1;
    gs_data_loader *loader = open_loader(*state, &spec, GS_EVAL, 0, 1, 0);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 8; i++) { // two global batches, in file order
            int32_t tokens[2];
            take(loader, tokens, 2);
            assert_int_equal(tokens[0], 100 + 2 * i);
            assert_int_equal(tokens[1], 101 + 2 * i);
        }
        gs_batch batch;
        assert_int_equal(next(loader, &batch).code, GS_OUT_OF_RANGE);
    }
    gs_data_loader_close(loader);
}

static void without_evaluation_files_the_tail_is_held_out(void **state) {
    write_numbers(*state, "numbers", 0, 201); // 200 samples; a twentieth is 10
    gs_job_spec spec = spec_of(8, 2);
    spec.data.eval_every_steps = 5;
    gs_data_loader *train = open_loader(*state, &spec, GS_TRAIN, 0, 1, 0);
    gs_data_loader *eval = open_loader(*state, &spec, GS_EVAL, 0, 1, 0);
    assert_int_equal(count_samples(*state, &spec, GS_TRAIN), 190);
    assert_int_equal(count_samples(*state, &spec, GS_EVAL), 10);
    for (int i = 0; i < 200; i++) {
        int32_t tokens[2];
        take(train, tokens, 2);
        assert_in_range(tokens[0], 0, 189);
        assert_in_range(tokens[1], 0, 189);
    }
    for (int i = 0; i < 4; i++) { // one whole global batch is there
        int32_t tokens[2];
        take(eval, tokens, 2);
        assert_int_equal(tokens[0], 190 + 2 * i);
    }
    gs_batch batch;
    assert_int_equal(next(eval, &batch).code, GS_OUT_OF_RANGE);
    gs_data_loader_close(train);
    gs_data_loader_close(eval);
}

static void synthetic_evaluation_never_meets_training(void **state) {
    gs_job_spec spec = spec_of(8, 8);
    spec.logical_shards = 1;
    spec.model.gpt2.context = 32;
    spec.data.kind = GS_DATA_SYNTHETIC;
    spec.data.eval_every_steps = 1;
    gs_data_loader_options options = {.spec = &spec,
                                      .split = GS_EVAL,
                                      .data_root = *state,
                                      .shards = {.num_shards = 1, .world_size = 1}};
    gs_data_loader *eval, *train;
    assert_int_equal(gs_data_loader_open(&eval, &options).code, GS_OK);
    options.split = GS_TRAIN;
    assert_int_equal(gs_data_loader_open(&train, &options).code, GS_OK);
    gs_batch held, seen;
    assert_int_equal(next(eval, &held).code, GS_OK);
    for (int i = 0; i < 50; i++) {
        assert_int_equal(next(train, &seen).code, GS_OK);
        for (size_t a = 0; a < 8; a++)
            for (size_t b = 0; b < 8; b++)
                assert_memory_not_equal(held.tokens + a * 32, seen.tokens + b * 32,
                                        32 * sizeof(int32_t));
    }
    gs_data_loader_close(eval);
    gs_data_loader_close(train);
}

static void a_bad_token_is_reported_in_its_turn_and_again(void **state) {
    uint16_t file[512 + 66] = {0};
    int32_t header[3] = {20240520, 1, 66};
    memcpy(file, header, sizeof header);
    file[512 + 65] = 300;
    write_file(*state, "shard.bin", file, sizeof file);
    gs_job_spec spec = spec_of(8, 2);
    spec.data.kind = GS_DATA_TOKEN_SHARDS;
    strcpy(spec.data.train[0], "*.bin");
    gs_data_loader *loader = open_loader(*state, &spec, GS_TRAIN, 0, 1, 0);
    gs_status status = gs_ok();
    gs_batch batch;
    for (int i = 0; i < 33 && !status.code; i++) status = next(loader, &batch);
    assert_int_equal(status.code, GS_DATA_LOSS);
    assert_non_null(strstr(status.message, "shard.bin"));
    assert_int_equal(next(loader, &batch).code, GS_DATA_LOSS);
    gs_data_loader_close(loader);
}

static void a_loader_that_is_never_read_closes_at_once(void **state) {
    write_numbers(*state, "numbers", 0, 65);
    gs_job_spec spec = spec_of(16, 2);
    gs_data_loader_close(open_loader(*state, &spec, GS_TRAIN, 0, 1, 0));
    gs_data_loader_close(NULL);
}

static void a_global_batch_that_does_not_divide_is_refused(void **state) {
    write_numbers(*state, "numbers", 0, 65);
    gs_job_spec spec = spec_of(17, 2);
    gs_data_loader_options options = {
        .spec = &spec, .data_root = *state, .shards = {.num_shards = 4, .world_size = 1}};
    gs_data_loader *loader;
    assert_int_equal(gs_data_loader_open(&loader, &options).code, GS_INVALID_ARGUMENT);
}

static gs_job_spec split_spec(int uneven_inputs) {
    gs_job_spec spec = spec_of(8, 2);
    strcpy(spec.data.train[0], "part-*");
    spec.data.split = GS_SPLIT_BY_RANK;
    spec.data.uneven_inputs = uneven_inputs;
    return spec;
}

// Parts of 7 and 20 samples for two ranks with two shards each: 2 and 5 steps of two passes of 2.
static void write_parts(const char *root) {
    write_numbers(root, "part-a", 0, 8);
    write_numbers(root, "part-b", 100, 21);
}

static void rank_reads_its_own_part_and_nothing_else(void **state) {
    write_parts(*state);
    gs_job_spec spec = split_spec(GS_UNEVEN_JOIN);
    for (int rank = 0; rank < 2; rank++) {
        gs_data_loader *loader = open_loader(*state, &spec, GS_TRAIN, rank, 2, 0);
        int seen[256] = {0}, samples = 0;
        for (int64_t step = 0; step < 5; step++) {
            if (!gs_data_loader_has_batch(loader, step * 8)) continue;
            for (int pass = 0; pass < 2; pass++) {
                gs_batch batch;
                assert_int_equal(next(loader, &batch).code, GS_OK);
                for (size_t row = 0; row < batch.rows; row++) seen[batch.tokens[row]]++, samples++;
            }
        }
        assert_int_equal(samples, rank ? 20 : 7);
        for (int i = 0; i < samples; i++) assert_int_equal(seen[rank ? 100 + i : i], 1);
        // The next epoch begins where the largest part ends.
        assert_true(gs_data_loader_begins_epoch(loader, 5 * 8));
        gs_batch batch;
        assert_int_equal(next(loader, &batch).code, GS_OK);
        assert_int_equal(batch.rows, 2);
        gs_data_loader_close(loader);
    }
}

static void last_pass_of_a_part_is_short_and_those_behind_it_are_empty(void **state) {
    write_numbers(*state, "part-a", 0, 6);
    write_numbers(*state, "part-b", 100, 21);
    gs_job_spec spec = split_spec(GS_UNEVEN_JOIN);
    static const size_t rows[] = {2, 2, 1, 0};
    gs_data_loader *loader = open_loader(*state, &spec, GS_TRAIN, 0, 2, 0);
    for (size_t i = 0; i < 4; i++) {
        gs_batch batch;
        assert_int_equal(next(loader, &batch).code, GS_OK);
        assert_int_equal(batch.rows, rows[i]);
    }
    assert_false(gs_data_loader_has_batch(loader, 2 * 8));
    gs_data_loader_close(loader);
}

static void seek_into_a_part_gives_what_would_have_come(void **state) {
    write_parts(*state);
    gs_job_spec spec = split_spec(GS_UNEVEN_JOIN);
    gs_data_loader *whole = open_loader(*state, &spec, GS_TRAIN, 1, 2, 0);
    gs_data_loader *later = open_loader(*state, &spec, GS_TRAIN, 1, 2, 3 * 8);
    int32_t wanted[2], tokens[2];
    for (int pass = 0; pass < 6; pass++) take(whole, wanted, 2);
    for (int pass = 0; pass < 8; pass++) {
        take(whole, wanted, 2);
        take(later, tokens, 2);
        assert_memory_equal(tokens, wanted, sizeof wanted);
    }
    // Rank 0 has nothing at that place: its next batch is the first of the next epoch.
    gs_data_loader *idle = open_loader(*state, &spec, GS_TRAIN, 0, 2, 3 * 8);
    gs_data_loader *fresh = open_loader(*state, &spec, GS_TRAIN, 0, 2, 5 * 8);
    take(idle, tokens, 2);
    take(fresh, wanted, 2);
    assert_memory_equal(tokens, wanted, sizeof wanted);
    gs_data_loader_close(idle);
    gs_data_loader_close(fresh);
    gs_data_loader_close(whole);
    gs_data_loader_close(later);
}

static void part_that_is_read_ends_when_the_job_stops_then(void **state) {
    write_parts(*state);
    gs_job_spec spec = split_spec(GS_UNEVEN_STOP);
    gs_data_loader *loader = open_loader(*state, &spec, GS_TRAIN, 0, 2, 0);
    gs_batch batch;
    for (int pass = 0; pass < 4; pass++) assert_int_equal(next(loader, &batch).code, GS_OK);
    assert_false(gs_data_loader_has_batch(loader, 2 * 8));
    gs_status status = next(loader, &batch);
    assert_int_equal(status.code, GS_OUT_OF_RANGE);
    assert_non_null(strstr(status.message, "rank 0"));
    gs_data_loader_close(loader);
}

// The rows of a pass, whoever owns their shards: one batch where there were several.
static void joined_shards_are_the_rows_of_their_passes(void **state) {
    write_numbers(*state, "numbers", 0, 65);
    gs_job_spec spec = spec_of(16, 2);
    gs_data_loader *apart = open_loader(*state, &spec, GS_TRAIN, 0, 2, 16);
    gs_data_loader_options options = {.spec = &spec,
                                      .data_root = *state,
                                      .shards = {.num_shards = 4, .world_size = 2},
                                      .joins_shards = true,
                                      .consumed = 16};
    gs_data_loader *joined;
    assert_int_equal(gs_data_loader_open(&joined, &options).code, GS_OK);
    int32_t tokens[2][4], rows[4];  // shard; passes of 2
    for (int step = 0; step < 3; step++) {
        for (int shard = 0; shard < 2; shard++)
            for (int pass = 0; pass < 2; pass++) take(apart, &tokens[shard][2 * pass], 2);
        for (int pass = 0; pass < 2; pass++) {
            take(joined, rows, 4);
            assert_memory_equal(rows, &tokens[0][2 * pass], 2 * sizeof rows[0]);
            assert_memory_equal(rows + 2, &tokens[1][2 * pass], 2 * sizeof rows[0]);
        }
    }
    gs_data_loader_close(apart);
    gs_data_loader_close(joined);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(rank_reads_its_own_part_and_nothing_else, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(last_pass_of_a_part_is_short_and_those_behind_it_are_empty,
                                        make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(seek_into_a_part_gives_what_would_have_come, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(part_that_is_read_ends_when_the_job_stops_then, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(joined_shards_are_the_rows_of_their_passes, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(each_epoch_has_every_sample_once, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(ranks_of_any_world_share_the_same_global_batches, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(a_loader_goes_on_where_samples_were_consumed, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(evaluation_ends_and_starts_again_the_same, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(without_evaluation_files_the_tail_is_held_out, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(synthetic_evaluation_never_meets_training, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(a_bad_token_is_reported_in_its_turn_and_again, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(a_loader_that_is_never_read_closes_at_once, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(a_global_batch_that_does_not_divide_is_refused, make_dir,
                                        remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
