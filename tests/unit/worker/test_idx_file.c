#include "tests/unit/worker/data_files.h"

#include "worker/data/dataset.h"

static const char *const images_pattern[] = {"images"};

static gs_dataset_options options_of(const char *root) {
    return (gs_dataset_options){.root = root,
                                .patterns = images_pattern,
                                .num_patterns = 1,
                                .labels = "labels",
                                .row_features = 4,
                                .classes = 10};
}

// Three images of 2 × 2, three labels.
static const uint8_t good_images[] = {0, 0, 8, 3, 0, 0, 0, 3, 0,   0,   0, 2, 0,  0,
                                      0, 2, 0, 1, 2, 3, 4, 5, 255, 128, 8, 9, 10, 11};
static const uint8_t good_labels[] = {0, 0, 8, 1, 0, 0, 0, 3, 7, 0, 9};

static void write_pair(const char *root, const uint8_t *images, size_t image_bytes,
                       const uint8_t *labels, size_t label_bytes) {
    write_file(root, "images", images, image_bytes);
    write_file(root, "labels", labels, label_bytes);
}

static void pixels_are_scaled_and_labels_are_targets(void **state) {
    write_pair(*state, good_images, sizeof good_images, good_labels, sizeof good_labels);
    gs_dataset_options options = options_of(*state);
    gs_dataset_shape shape;
    void *data;
    assert_int_equal(gs_dataset_idx.open(&data, &options, &shape).code, GS_OK);
    assert_int_equal(shape.num_samples, 3);
    assert_int_equal(shape.row_features, 4);
    assert_int_equal(shape.positions, 1);
    float features[4];
    int32_t target;
    assert_int_equal(gs_dataset_idx.fill(data, 1, NULL, features, &target).code, GS_OK);
    assert_int_equal(target, 0);
    assert_true(features[0] == 4.0f / 255.0f);
    assert_true(features[2] == 1.0f);
    assert_int_equal(gs_dataset_idx.fill(data, 2, NULL, features, &target).code, GS_OK);
    assert_int_equal(target, 9);
    gs_dataset_idx.close(data);
}

static void expect(const char *root, const gs_dataset_options *options, gs_code code,
                   const char *text) {
    (void)root;
    gs_dataset_shape shape;
    void *data;
    gs_status status = gs_dataset_idx.open(&data, options, &shape);
    if (status.code != code || !strstr(status.message, text)) fail_msg("%s", status.message);
}

static void gzip_is_refused_by_name(void **state) {
    const uint8_t gzip[] = {0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 3};
    write_pair(*state, gzip, sizeof gzip, good_labels, sizeof good_labels);
    gs_dataset_options options = options_of(*state);
    expect(*state, &options, GS_DATA_LOSS, "gzip");
}

static void what_is_no_idx_file_is_refused(void **state) {
    uint8_t other[sizeof good_images];
    memcpy(other, good_images, sizeof other);
    gs_dataset_options options = options_of(*state);
    for (size_t i = 0; i < 2; i++) {
        other[i] = 1;
        write_pair(*state, other, sizeof other, good_labels, sizeof good_labels);
        expect(*state, &options, GS_DATA_LOSS, "not an IDX file");
        other[i] = 0;
    }
    const uint8_t dims[] = {0, 1, 5, 255};
    for (size_t i = 0; i < sizeof dims; i++) {
        other[3] = dims[i];
        write_pair(*state, other, sizeof other, good_labels, sizeof good_labels);
        expect(*state, &options, GS_DATA_LOSS, "dimensions");
    }
    for (size_t bytes = 0; bytes < 8; bytes++) {
        write_pair(*state, good_images, bytes, good_labels, sizeof good_labels);
        expect(*state, &options, GS_DATA_LOSS, "not an IDX file");
        write_pair(*state, good_images, sizeof good_images, good_labels, bytes);
        expect(*state, &options, GS_DATA_LOSS, "not an IDX file");
    }
}

static void sizes_must_fill_the_file(void **state) {
    gs_dataset_options options = options_of(*state);
    write_pair(*state, good_images, sizeof good_images - 1, good_labels, sizeof good_labels);
    expect(*state, &options, GS_DATA_LOSS, "do not fill");
    uint8_t huge[] = {0,   0,   8,   4,   255, 255, 255, 255, 255, 255,
                      255, 255, 255, 255, 255, 255, 255, 255, 255, 255};
    write_pair(*state, huge, sizeof huge, good_labels, sizeof good_labels);
    expect(*state, &options, GS_DATA_LOSS, "images");
    write_pair(*state, good_images, 9, good_labels, sizeof good_labels);
    expect(*state, &options, GS_DATA_LOSS, "header");
}

static void image_and_label_counts_must_agree(void **state) {
    const uint8_t two[] = {0, 0, 8, 1, 0, 0, 0, 2, 7, 0};
    write_pair(*state, good_images, sizeof good_images, two, sizeof two);
    gs_dataset_options options = options_of(*state);
    expect(*state, &options, GS_DATA_LOSS, "3 images");
}

static void labels_and_pixels_must_fit_the_model(void **state) {
    write_pair(*state, good_images, sizeof good_images, good_labels, sizeof good_labels);
    gs_dataset_options options = options_of(*state);
    options.classes = 9;
    expect(*state, &options, GS_DATA_LOSS, "label 2 is 9");
    options = options_of(*state);
    options.row_features = 5;
    expect(*state, &options, GS_INVALID_ARGUMENT, "4 pixels");
}

static void other_element_types_are_refused(void **state) {
    uint8_t floats[sizeof good_images];
    memcpy(floats, good_images, sizeof floats);
    floats[2] = 0x0D;
    write_pair(*state, floats, sizeof floats, good_labels, sizeof good_labels);
    gs_dataset_options options = options_of(*state);
    expect(*state, &options, GS_DATA_LOSS, "0x0d");
}

static void a_file_that_is_cut_short_is_named(void **state) {
    gs_dataset_options options = options_of(*state);
    gs_dataset_shape shape;
    void *data;
    float features[4];
    int32_t target;
    for (int cuts_labels = 0; cuts_labels < 2; cuts_labels++) {
        write_pair(*state, good_images, sizeof good_images, good_labels, sizeof good_labels);
        assert_int_equal(gs_dataset_idx.open(&data, &options, &shape).code, GS_OK);
        if (cuts_labels) {
            cut_file(*state, "labels", sizeof good_labels - 1);
        } else {
            cut_file(*state, "images", sizeof good_images - 1);
        }
        assert_int_equal(gs_dataset_idx.fill(data, 1, NULL, features, &target).code, GS_OK);
        assert_names(gs_dataset_idx.fill(data, 2, NULL, features, &target),
                     cuts_labels ? "labels: was cut short" : "images: was cut short");
        gs_dataset_idx.close(data);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(pixels_are_scaled_and_labels_are_targets, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(gzip_is_refused_by_name, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(what_is_no_idx_file_is_refused, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(sizes_must_fill_the_file, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(image_and_label_counts_must_agree, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(labels_and_pixels_must_fit_the_model, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(other_element_types_are_refused, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_file_that_is_cut_short_is_named, make_dir, remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
