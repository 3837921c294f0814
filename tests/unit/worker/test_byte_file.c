#include "tests/unit/worker/data_files.h"

#include "worker/data/dataset.h"

static const char *const all[] = {"*"};

static gs_dataset_options options_of(const char *root) {
    return (gs_dataset_options){
        .root = root, .patterns = all, .num_patterns = 1, .positions = 4, .vocab = 256};
}

static void windows_share_their_last_byte_and_are_numbered_over_files(void **state) {
    write_file(*state, "a", "abcdefghi", 9);    // windows at 0 and 4
    write_file(*state, "b", "0123456", 7);      // one, and two bytes left out
    write_file(*state, "c", "xyz", 3);          // none
    write_file(*state, "d", "\xff\x80uvw", 5);  // one
    gs_dataset_options options = options_of(*state);
    gs_dataset_shape shape;
    void *data;
    assert_int_equal(gs_dataset_bytes.open(&data, &options, &shape).code, GS_OK);
    assert_int_equal(shape.num_samples, 4);
    assert_int_equal(shape.positions, 4);
    assert_int_equal(shape.row_features, 0);
    const char *wanted[] = {"abcde", "efghi", "01234", "\xff\x80uvw"};
    for (int64_t i = 0; i < 4; i++) {
        int32_t tokens[4], targets[4];
        assert_int_equal(gs_dataset_bytes.fill(data, i, tokens, NULL, targets).code, GS_OK);
        for (int t = 0; t < 4; t++) {
            assert_int_equal(tokens[t], (uint8_t)wanted[i][t]);
            assert_int_equal(targets[t], (uint8_t)wanted[i][t + 1]);
        }
    }
    gs_dataset_bytes.close(data);
}

// The last byte of a window is the first of the next one, or only a target: 8 bytes are one window
// of 4.
static void the_last_window_needs_its_target(void **state) {
    gs_dataset_options options = options_of(*state);
    for (size_t bytes = 5; bytes <= 10; bytes++) {
        write_file(*state, "a", "abcdefghij", bytes);
        gs_dataset_shape shape;
        void *data;
        assert_int_equal(gs_dataset_bytes.open(&data, &options, &shape).code, GS_OK);
        assert_int_equal(shape.num_samples, bytes < 9 ? 1 : 2);
        gs_dataset_bytes.close(data);
    }
}

static gs_digest digest_of(const char *root) {
    gs_dataset_options options = options_of(root);
    gs_dataset_shape shape;
    void *data;
    assert_int_equal(gs_dataset_bytes.open(&data, &options, &shape).code, GS_OK);
    gs_dataset_bytes.close(data);
    return shape.digest;
}

static void the_digest_sees_names_and_sizes(void **state) {
    write_file(*state, "a", "abcdefghi", 9);
    gs_digest first = digest_of(*state);
    assert_true(gs_digest_equal(first, digest_of(*state)));
    write_file(*state, "a", "abcdefghij", 10);
    assert_false(gs_digest_equal(first, digest_of(*state)));
}

static void the_digest_sees_every_byte_of_small_files(void **state) {
    enum { BYTES = 9000 };  // two blocks and a bit
    static char text[BYTES];
    memset(text, 'x', sizeof text);
    write_file(*state, "a", text, BYTES);
    write_file(*state, "b", text, 5);
    gs_digest first = digest_of(*state);
    for (size_t at = 0; at < BYTES; at += 499) {
        text[at] = 'y';
        write_file(*state, "a", text, BYTES);
        assert_false(gs_digest_equal(first, digest_of(*state)));
        text[at] = 'x';
    }
    write_file(*state, "a", text, BYTES);
    assert_true(gs_digest_equal(first, digest_of(*state)));
    write_file(*state, "b", "xxxxz", 5);
    assert_false(gs_digest_equal(first, digest_of(*state)));
}

// Of 40 MB two of five bytes are looked at, in each stretch some.
static void the_digest_sees_a_stretch_of_large_files(void **state) {
    enum { BYTES = 40000000, STRETCH = 20000 };
    char *text = malloc(BYTES);
    memset(text, 'x', BYTES);
    write_file(*state, "a", text, BYTES);
    gs_digest first = digest_of(*state);
    for (size_t at = 1; at < BYTES; at += BYTES / 5) {
        memset(text + at, 'y', STRETCH);
        write_file(*state, "a", text, BYTES);
        assert_false(gs_digest_equal(first, digest_of(*state)));
        memset(text + at, 'x', STRETCH);
    }
    free(text);
}

static void files_too_short_for_a_sample_are_refused(void **state) {
    write_file(*state, "a", "abcd", 4);
    write_file(*state, "empty", "", 0);
    gs_dataset_options options = options_of(*state);
    gs_dataset_shape shape;
    void *data;
    assert_int_equal(gs_dataset_bytes.open(&data, &options, &shape).code, GS_INVALID_ARGUMENT);
}

static void a_vocabulary_below_256_is_refused(void **state) {
    write_file(*state, "a", "abcdefghi", 9);
    gs_dataset_options options = options_of(*state);
    options.vocab = 255;
    gs_dataset_shape shape;
    void *data;
    assert_int_equal(gs_dataset_bytes.open(&data, &options, &shape).code, GS_INVALID_ARGUMENT);
}

static void a_file_that_is_cut_short_is_named(void **state) {
    write_file(*state, "a", "abcdefghi", 9);
    write_file(*state, "b", "abcdefghi", 9);
    gs_dataset_options options = options_of(*state);
    gs_dataset_shape shape;
    void *data;
    int32_t tokens[4], targets[4];
    assert_int_equal(gs_dataset_bytes.open(&data, &options, &shape).code, GS_OK);
    cut_file(*state, "b", 0);
    assert_int_equal(gs_dataset_bytes.fill(data, 1, tokens, NULL, targets).code, GS_OK);
    gs_status status = gs_dataset_bytes.fill(data, 3, tokens, NULL, targets);
    assert_names(status, "b: was cut short");
    assert_names(status, "9 bytes when it was opened, 0 now");
    cut_file(*state, "b", 7);  // a part of the window is there
    assert_names(gs_dataset_bytes.fill(data, 3, tokens, NULL, targets), "7 now");
    assert_int_equal(gs_dataset_bytes.fill(data, 2, tokens, NULL, targets).code, GS_OK);
    gs_dataset_bytes.close(data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(windows_share_their_last_byte_and_are_numbered_over_files,
                                        make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(the_last_window_needs_its_target, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(the_digest_sees_names_and_sizes, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(the_digest_sees_every_byte_of_small_files, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(the_digest_sees_a_stretch_of_large_files, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(files_too_short_for_a_sample_are_refused, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(a_vocabulary_below_256_is_refused, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_file_that_is_cut_short_is_named, make_dir, remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
