#include <fcntl.h>
#include <unistd.h>

#include "tests/unit/worker/data_files.h"

#include "worker/data/dataset.h"

#define HEADER_BYTES 1024

static const char *const all[] = {"*.bin"};

static gs_dataset_options options_of(const char *root) {
    return (gs_dataset_options){
        .root = root, .patterns = all, .num_patterns = 1, .positions = 3, .vocab = 50257};
}

// A shard of `count` ids first, first + 1, …, of id_bytes each.
static void write_shard(const char *root, const char *name, size_t id_bytes, int32_t count,
                        uint32_t first) {
    int32_t header[256] = {id_bytes == 2 ? 20240520 : 20240801, id_bytes == 2 ? 1 : 7, count};
    size_t bytes = HEADER_BYTES + (size_t)count * id_bytes;
    uint8_t *file = calloc(1, bytes);
    memcpy(file, header, HEADER_BYTES);
    for (int32_t i = 0; i < count; i++) {
        uint32_t id = first + (uint32_t)i;
        memcpy(file + HEADER_BYTES + (size_t)i * id_bytes, &id, id_bytes);  // little-endian host
    }
    write_file(root, name, file, bytes);
    free(file);
}

static gs_status open_shards(void **data, const char *root, gs_dataset_shape *shape) {
    gs_dataset_options options = options_of(root);
    return gs_dataset_token_shards.open(data, &options, shape);
}

static void both_widths_are_read_in_name_order(void **state) {
    write_shard(*state, "a.bin", 2, 8, 10);
    write_shard(*state, "b.bin", 4, 4, 40000);
    gs_dataset_shape shape;
    void *data;
    assert_int_equal(open_shards(&data, *state, &shape).code, GS_OK);
    assert_int_equal(shape.num_samples, 3);
    const int32_t first[] = {10, 13, 40000};
    for (int64_t i = 0; i < 3; i++) {
        int32_t tokens[3], targets[3];
        assert_int_equal(gs_dataset_token_shards.fill(data, i, tokens, NULL, targets).code, GS_OK);
        for (int t = 0; t < 3; t++) {
            assert_int_equal(tokens[t], first[i] + t);
            assert_int_equal(targets[t], first[i] + t + 1);
        }
    }
    gs_dataset_token_shards.close(data);
}

// A window's last target needs one id more: 6 ids are one window of 3, not two.
static void the_last_window_needs_its_target(void **state) {
    for (size_t id_bytes = 2; id_bytes <= 4; id_bytes += 2)
        for (int32_t count = 0; count <= 8; count++) {
            write_shard(*state, "a.bin", id_bytes, count, 10);
            gs_dataset_shape shape;
            void *data;
            gs_status status = open_shards(&data, *state, &shape);
            assert_int_equal(status.code, count < 4 ? GS_INVALID_ARGUMENT : GS_OK);
            if (status.code) continue;
            assert_int_equal(shape.num_samples, count < 7 ? 1 : 2);
            gs_dataset_token_shards.close(data);
        }
}

static void a_token_outside_the_vocabulary_names_file_and_position(void **state) {
    write_shard(*state, "a.bin", 2, 7, 50252);  // 50252 … 50258
    gs_dataset_shape shape;
    void *data;
    assert_int_equal(open_shards(&data, *state, &shape).code, GS_OK);
    int32_t tokens[3], targets[3];
    assert_int_equal(gs_dataset_token_shards.fill(data, 0, tokens, NULL, targets).code, GS_OK);
    gs_status status = gs_dataset_token_shards.fill(data, 1, tokens, NULL, targets);
    assert_int_equal(status.code, GS_DATA_LOSS);
    assert_non_null(strstr(status.message, "a.bin"));
    assert_non_null(strstr(status.message, "token 5 is 50257"));
    gs_dataset_token_shards.close(data);
}

static void expect_loss(const char *root, const char *text) {
    gs_dataset_shape shape;
    void *data;
    gs_status status = open_shards(&data, root, &shape);
    assert_int_equal(status.code, GS_DATA_LOSS);
    if (!strstr(status.message, text)) fail_msg("%s", status.message);
}

static void a_wrong_magic_or_version_is_refused(void **state) {
    int32_t header[256] = {20240520, 2, 0};
    write_file(*state, "a.bin", header, sizeof header);
    expect_loss(*state, "version 2");
    header[0] = 20240326;
    write_file(*state, "a.bin", header, sizeof header);
    expect_loss(*state, "20240326");
}

static void the_size_must_be_exactly_what_the_header_says(void **state) {
    int32_t header[257] = {20240520, 1, 1};
    write_file(*state, "a.bin", header, HEADER_BYTES + 1);
    expect_loss(*state, "1025 bytes");
    write_file(*state, "a.bin", header, HEADER_BYTES + 4);
    expect_loss(*state, "1028 bytes");
    write_file(*state, "a.bin", header, 1000);
    expect_loss(*state, "too few");
    header[2] = -1;
    write_file(*state, "a.bin", header, HEADER_BYTES + 4);
    expect_loss(*state, "negative");
}

// 2^31 - 1 ids of 4 bytes make 8 GiB: offsets beyond 32 bits, in a file that has only holes.
static void shards_beyond_4_gib_are_read(void **state) {
    char path[512];
    snprintf(path, sizeof path, "%s/large.bin", (char *)*state);
    int32_t header[256] = {20240801, 7, INT32_MAX};
    write_file(*state, "large.bin", header, sizeof header);
    off_t bytes = HEADER_BYTES + (off_t)INT32_MAX * 4;
    if (truncate(path, bytes) != 0) skip();
    int fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    uint32_t last = 1234;
    assert_int_equal(pwrite(fd, &last, sizeof last, bytes - 4), sizeof last);
    close(fd);
    gs_dataset_shape shape;
    void *data;
    assert_int_equal(open_shards(&data, *state, &shape).code, GS_OK);
    assert_int_equal(shape.num_samples, (INT32_MAX - 1) / 3);
    int32_t tokens[3], targets[3];
    assert_int_equal(
        gs_dataset_token_shards.fill(data, shape.num_samples - 1, tokens, NULL, targets).code,
        GS_OK);
    assert_int_equal(targets[2], 1234);
    gs_dataset_token_shards.close(data);
}

static void a_shard_that_is_cut_short_is_named(void **state) {
    write_shard(*state, "a.bin", 2, 8, 10);
    write_shard(*state, "b.bin", 4, 8, 10);
    gs_dataset_shape shape;
    void *data;
    int32_t tokens[3], targets[3];
    assert_int_equal(open_shards(&data, *state, &shape).code, GS_OK);
    cut_file(*state, "b.bin", HEADER_BYTES + 4 * 4);
    assert_int_equal(gs_dataset_token_shards.fill(data, 2, tokens, NULL, targets).code, GS_OK);
    assert_names(gs_dataset_token_shards.fill(data, 3, tokens, NULL, targets),
                 "b.bin: was cut short");
    gs_dataset_token_shards.close(data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(both_widths_are_read_in_name_order, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(the_last_window_needs_its_target, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_token_outside_the_vocabulary_names_file_and_position,
                                        make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_wrong_magic_or_version_is_refused, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(the_size_must_be_exactly_what_the_header_says, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(shards_beyond_4_gib_are_read, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_shard_that_is_cut_short_is_named, make_dir, remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
