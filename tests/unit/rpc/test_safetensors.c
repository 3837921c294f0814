#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/unit/worker/data_files.h"

#include "rpc/checkpoint/safetensors.h"

// A file in memory: header text and `data_bytes` of data.
typedef struct image {
    uint8_t bytes[4096];
    size_t num_bytes;
} image;

static image make_image(const char *header, size_t data_bytes) {
    image out = {.num_bytes = 8 + strlen(header) + data_bytes};
    uint64_t length = strlen(header);
    for (int i = 0; i < 8; i++) out.bytes[i] = (uint8_t)(length >> (8 * i));
    memcpy(out.bytes + 8, header, strlen(header));
    for (size_t i = 0; i < data_bytes; i++) out.bytes[8 + length + i] = (uint8_t)i;
    return out;
}

static gs_status open_image(gs_safetensors **file, const image *bytes) {
    return gs_safetensors_open_memory(file, bytes->bytes, bytes->num_bytes);
}

static void expect_loss(const char *header, size_t data_bytes, const char *text) {
    image bytes = make_image(header, data_bytes);
    gs_safetensors *file;
    gs_status status = open_image(&file, &bytes);
    if (status.code != GS_DATA_LOSS || !strstr(status.message, text))
        fail_msg("%s\nwanted: %s\ngot: %s", header, text, status.message);
}

static void a_valid_file_gives_its_tensors_and_metadata(void **state) {
    (void)state;
    image bytes =
        make_image("{\"b\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[2,10]},"
                   "\"a\":{\"dtype\":\"F8_E4M3\",\"shape\":[2],\"data_offsets\":[0,2]},"
                   "\"none\":{\"dtype\":\"I64\",\"shape\":[3,0],\"data_offsets\":[10,10]},"
                   "\"one\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[10,11]},"
                   "\"__metadata__\":{\"step\":\"12\"}}   ",
                   11);
    gs_safetensors *file;
    assert_int_equal(open_image(&file, &bytes).code, GS_OK);
    assert_int_equal(gs_safetensors_count(file), 4);
    assert_string_equal(gs_safetensors_metadata(file, "step"), "12");
    assert_null(gs_safetensors_metadata(file, "other"));
    const gs_safetensor *b = gs_safetensors_find(file, "b");
    assert_int_equal(b->dtype, GS_FP32);
    assert_int_equal(b->num_dims, 2);
    assert_int_equal(b->shape[1], 2);
    assert_int_equal(b->bytes, 8);
    assert_int_equal(*(const uint8_t *)b->data, 2);
    const gs_safetensor *a = gs_safetensors_find(file, "a");
    assert_int_equal(a->dtype, GS_DTYPE_UNSET);
    assert_string_equal(a->dtype_name, "F8_E4M3");
    assert_int_equal(gs_safetensors_find(file, "one")->num_dims, 0);
    assert_int_equal(gs_safetensors_find(file, "none")->bytes, 0);
    assert_null(gs_safetensors_find(file, "c"));
    assert_string_equal(gs_safetensors_at(file, 0)->name, "a");
    assert_null(gs_safetensors_at(file, 4));
    gs_safetensors_close(file);
}

static void headers_that_lie_about_lengths_are_refused(void **state) {
    (void)state;
    gs_safetensors *file;
    image bytes = make_image("{}", 0);
    assert_int_equal(open_image(&file, &bytes).code, GS_OK);
    gs_safetensors_close(file);
    for (size_t i = 0; i < bytes.num_bytes; i++)
        assert_int_equal(gs_safetensors_open_memory(&file, bytes.bytes, i).code, GS_DATA_LOSS);
    memset(bytes.bytes, 0xff, 8);
    assert_int_equal(open_image(&file, &bytes).code, GS_DATA_LOSS);
    memset(bytes.bytes, 0, 8);
    assert_int_equal(open_image(&file, &bytes).code, GS_DATA_LOSS);
    for (uint8_t length = 3; length < 20; length++) {  // from one byte past the end on
        bytes.bytes[0] = length;
        gs_status status = open_image(&file, &bytes);
        assert_int_equal(status.code, GS_DATA_LOSS);
        assert_non_null(strstr(status.message, "in a file of 10"));
    }
    expect_loss(" {}", 0, "{");
    expect_loss("[]", 0, "{");
    expect_loss("{\"a\":", 0, "header");
}

static void a_header_that_would_fill_the_memory_is_refused(void **state) {
    (void)state;
    const size_t count = 1000001, bytes = 8 + 2 * count + 1;
    char *text = malloc(bytes);
    assert_non_null(text);
    uint64_t length = bytes - 8;
    memcpy(text, &length, sizeof length);  // little-endian host
    text[8] = '{';
    for (size_t i = 0; i < count; i++) memcpy(text + 9 + 2 * i, "0,", 2);
    gs_safetensors *file;
    gs_status status = gs_safetensors_open_memory(&file, text, bytes);
    assert_int_equal(status.code, GS_DATA_LOSS);
    assert_non_null(strstr(status.message, "more than 1000000 values"));
    free(text);
}

static void places_must_tile_the_data(void **state) {
    (void)state;
#define U8(name, count, begin, end)                                                                \
    "\"" name "\":{\"dtype\":\"U8\",\"shape\":[" #count "],\"data_offsets\":[" #begin "," #end "]" \
    "}"
    expect_loss("{" U8("a", 4, 0, 4) "," U8("b", 4, 2, 6) "}", 6, "overlap");
    expect_loss("{" U8("a", 4, 0, 4) "," U8("b", 2, 5, 7) "}", 7, "hole");
    expect_loss("{" U8("a", 4, 1, 5) "}", 5, "hole");
    expect_loss("{" U8("a", 4, 0, 4) "}", 5, "after the last");
    expect_loss("{" U8("a", 4, 0, 4) "}", 3, "outside");
    expect_loss("{" U8("a", 4, 0, 5) "}", 5, "shape of 4");
    expect_loss("{" U8("a", 0, 3, 2) "}", 4, "outside");
    expect_loss("{" U8("a", 4, -4, 0) "}", 4, "outside");
    expect_loss("{" U8("a", 4, 0, 4) "," U8("a", 4, 0, 4) "}", 4, "twice");
    expect_loss("{" U8("a", 4, 0, 4) "," U8("a", 0, 4, 4) "}", 4, "twice");
    expect_loss("{" U8("a", 4, 0, 4) "," U8("\\u0061", 0, 4, 4) "}", 4, "twice");
#undef U8
}

static void shapes_and_types_are_checked(void **state) {
    (void)state;
    expect_loss("{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "size");
    expect_loss("{\"a\":{\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,4]}}", 4, "size");
    expect_loss("{\"a\":{\"dtype\":\"Q4\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "Q4");
    expect_loss("{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype");
    expect_loss("{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "shape");
    expect_loss("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "data_offsets");
    expect_loss("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4,
                "data_offsets");
    expect_loss("{\"a\":7}", 0, "object");
    expect_loss("{\"__metadata__\":{\"a\":1}}", 0, "string");
    expect_loss("{\"__metadata__\":[]}", 0, "object");
    expect_loss("{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],"
                "\"data_offsets\":[0,0]}}",
                0, "overflow");
    expect_loss("{\"a\":{\"dtype\":\"F64\",\"shape\":[4611686018427387904],"
                "\"data_offsets\":[0,0]}}",
                0, "overflow");
    expect_loss("{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}",
                1, "dimensions");
}

static const float floats[6] = {1, 2, 3, 4, 5, 6};
static const int64_t longs[1] = {42};
static const uint8_t small[3] = {7, 8, 9};
static const gs_safetensors_entry entries[] = {
    {.name = "bytes", .dtype = GS_U8, .num_dims = 1, .shape = {3}, .data = small},
    {.name = "w", .dtype = GS_FP32, .num_dims = 2, .shape = {2, 3}, .data = floats},
    {.name = "count", .dtype = GS_I64, .num_dims = 0, .data = longs},
};
static const gs_safetensors_metadata_entry metadata[] = {{"step", "3"}, {"quoted", "a\"b\n"}};

static gs_status write_three(const char *dir, size_t *bytes, gs_digest *digest) {
    char path[512];
    snprintf(path, sizeof path, "%s/x.safetensors", dir);
    return gs_safetensors_write(path, entries, 3, metadata, 2, bytes, digest);
}

static int count_files(const char *dir) {
    DIR *stream = opendir(dir);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(stream));) count += entry->d_name[0] != '.';
    closedir(stream);
    return count;
}

static void what_was_written_is_read_back(void **state) {
    size_t bytes;
    gs_digest digest;
    assert_int_equal(write_three(*state, &bytes, &digest).code, GS_OK);
    assert_int_equal(count_files(*state), 1);
    char path[512];
    snprintf(path, sizeof path, "%s/x.safetensors", (char *)*state);
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_size, bytes);
    assert_int_equal(info.st_mode & 0777, 0600);

    FILE *raw = fopen(path, "rb");
    uint8_t *copy = malloc(bytes);
    assert_int_equal(fread(copy, 1, bytes, raw), bytes);
    fclose(raw);
    assert_true(gs_digest_equal(digest, gs_digest_of(copy, bytes)));
    free(copy);

    gs_safetensors *file;
    assert_int_equal(gs_safetensors_load(&file, path).code, GS_OK);
    assert_int_equal(gs_safetensors_count(file), 3);
    assert_memory_equal(gs_safetensors_find(file, "w")->data, floats, sizeof floats);
    assert_memory_equal(gs_safetensors_find(file, "count")->data, longs, sizeof longs);
    assert_memory_equal(gs_safetensors_find(file, "bytes")->data, small, sizeof small);
    assert_string_equal(gs_safetensors_metadata(file, "quoted"), "a\"b\n");
    // The widest tensor starts the data, on a boundary that suits vectors.
    const gs_safetensor *widest = gs_safetensors_find(file, "count");
    assert_int_equal(widest->begin, 0);
    size_t data_bytes = 0;
    for (size_t i = 0; i < 3; i++) data_bytes += gs_safetensors_at(file, i)->bytes;
    assert_int_equal((bytes - data_bytes) % 64, 0);
    assert_int_equal(gs_safetensors_find(file, "w")->begin % 4, 0);
    gs_safetensors_close(file);
}

static void a_file_that_is_cut_short_is_an_error_of_the_read(void **state) {
    char path[512];
    float read[4];
    struct stat info;
    assert_int_equal(write_three(*state, NULL, NULL).code, GS_OK);
    snprintf(path, sizeof path, "%s/x.safetensors", (char *)*state);
    gs_safetensors *file;
    assert_int_equal(gs_safetensors_open(&file, path).code, GS_OK);
    const gs_safetensor *tensor = gs_safetensors_find(file, "w");
    assert_null(tensor->data);
    assert_int_equal(gs_safetensors_read(file, tensor, read, 4, 8).code, GS_OK);
    assert_memory_equal(read, (const char *)floats + 4, 8);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(truncate(path, 0), 0);
    gs_status status = gs_safetensors_read(file, tensor, read, 4, 8);
    assert_int_equal(status.code, GS_DATA_LOSS);
    assert_non_null(strstr(status.message, "was cut short"));
    gs_safetensors_close(file);
}

static void equal_contents_make_equal_files(void **state) {
    gs_digest first, second;
    assert_int_equal(write_three(*state, NULL, &first).code, GS_OK);
    assert_int_equal(write_three(*state, NULL, &second).code, GS_OK);
    assert_true(gs_digest_equal(first, second));
}

static void doubled_names_and_bad_shapes_write_nothing(void **state) {
    char path[512];
    snprintf(path, sizeof path, "%s/x.safetensors", (char *)*state);
    gs_safetensors_entry twice[] = {entries[0], entries[0]};
    assert_int_equal(gs_safetensors_write(path, twice, 2, NULL, 0, NULL, NULL).code,
                     GS_INVALID_ARGUMENT);
    gs_safetensors_entry bad = entries[1];
    bad.shape[0] = -2;
    assert_int_equal(gs_safetensors_write(path, &bad, 1, NULL, 0, NULL, NULL).code,
                     GS_INVALID_ARGUMENT);
    assert_int_equal(count_files(*state), 0);
}

// The limit on file sizes stands for the disk: what is over it cannot be written.
static void a_full_disk_leaves_the_old_file_and_nothing_else(void **state) {
    gs_digest before;
    assert_int_equal(write_three(*state, NULL, &before).code, GS_OK);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit old, tiny;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    tiny = old;
    tiny.rlim_cur = 1000;
    static float large[5000];
    gs_safetensors_entry entry = {
        .name = "l", .dtype = GS_FP32, .num_dims = 1, .shape = {5000}, .data = large};
    char path[512];
    snprintf(path, sizeof path, "%s/x.safetensors", (char *)*state);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tiny), 0);
    gs_status status = gs_safetensors_write(path, &entry, 1, NULL, 0, NULL, NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(status.code, GS_RESOURCE_EXHAUSTED);
    assert_int_equal(count_files(*state), 1);
    gs_safetensors *file;
    assert_int_equal(gs_safetensors_open(&file, path).code, GS_OK);
    assert_non_null(gs_safetensors_find(file, "w"));
    gs_safetensors_close(file);
}

#ifdef GRADSYNC_FAILPOINTS
// Armed in main: the second tensor ever written, and the first rename.
static void a_failure_in_the_middle_leaves_nothing(void **state) {
    assert_int_equal(write_three(*state, NULL, NULL).code, GS_INTERNAL);
    assert_int_equal(count_files(*state), 0);
    assert_int_equal(write_three(*state, NULL, NULL).code, GS_INTERNAL);
    assert_int_equal(count_files(*state), 0);
    assert_int_equal(write_three(*state, NULL, NULL).code, GS_OK);
    assert_int_equal(count_files(*state), 1);
}
#endif

static void a_missing_directory_is_not_found(void **state) {
    (void)state;
    assert_int_equal(gs_safetensors_write("/nonexistent/x", entries, 3, NULL, 0, NULL, NULL).code,
                     GS_NOT_FOUND);
    gs_safetensors *file;
    assert_int_equal(gs_safetensors_open(&file, "/nonexistent/x").code, GS_NOT_FOUND);
}

int main(void) {
#ifdef GRADSYNC_FAILPOINTS
    setenv("GRADSYNC_FAILPOINTS", "safetensors.write=error@2,safetensors.rename=error@1", 1);
#endif
    const struct CMUnitTest tests[] = {
#ifdef GRADSYNC_FAILPOINTS
        cmocka_unit_test_setup_teardown(a_failure_in_the_middle_leaves_nothing, make_dir,
                                        remove_dir),
#endif
        cmocka_unit_test(a_valid_file_gives_its_tensors_and_metadata),
        cmocka_unit_test(headers_that_lie_about_lengths_are_refused),
        cmocka_unit_test(a_header_that_would_fill_the_memory_is_refused),
        cmocka_unit_test(places_must_tile_the_data),
        cmocka_unit_test(shapes_and_types_are_checked),
        cmocka_unit_test_setup_teardown(what_was_written_is_read_back, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_file_that_is_cut_short_is_an_error_of_the_read, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(equal_contents_make_equal_files, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(doubled_names_and_bad_shapes_write_nothing, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(a_full_disk_leaves_the_old_file_and_nothing_else, make_dir,
                                        remove_dir),
        cmocka_unit_test(a_missing_directory_is_not_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
