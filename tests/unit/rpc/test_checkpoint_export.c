// Checkpoints as ranks write them, made here without ranks, and what comes out as one file.
#include "rpc/checkpoint/checkpoint_export.h"

#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/segment.h"
#include "rpc/checkpoint/checkpoint_commit.h"
#include "rpc/checkpoint/checkpoint_layout.h"
#include "rpc/checkpoint/manifest_part.h"
#include "rpc/checkpoint/part_entry.h"
#include "rpc/checkpoint/part_record.h"
#include "rpc/checkpoint/safetensors.h"
#include "rpc/json/sealed_json.h"
#include "tests/support/asserts.h"
#include "tests/support/temp_dir.h"

#define LARGE 300000  // elements: more than a piece that is copied at once

static const gs_safetensors_entry tensors[] = {
    {.name = "w", .dtype = GS_FP32, .num_dims = 2, .shape = {3, LARGE / 3}},
    {.name = "empty", .dtype = GS_FP32, .num_dims = 2, .shape = {0, 4}},
    {.name = "scalar", .dtype = GS_FP32},
    {.name = "optimizer.exp_avg.w", .dtype = GS_FP32, .num_dims = 2, .shape = {3, LARGE / 3}},
    {.name = "optimizer.num_updates", .dtype = GS_I64, .num_dims = 1, .shape = {3}},
    {.name = "buffer.mean", .dtype = GS_FP32, .num_dims = 1, .shape = {7}},
    {.name = "hook/powersgd/error/w", .dtype = GS_FP32, .num_dims = 2, .shape = {2, 5}},
};
#define NUM_TENSORS (sizeof tensors / sizeof *tensors)

static size_t count_of(size_t tensor) {
    size_t count = 1;
    for (int d = 0; d < tensors[tensor].num_dims; d++) count *= (size_t)tensors[tensor].shape[d];
    return count;
}

static unsigned char byte_of(size_t tensor, size_t at) {
    return (unsigned char)(at * 2654435761u >> 13 ^ tensor * 57);
}

static void fill(unsigned char *data, size_t tensor, size_t begin, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) data[i] = byte_of(tensor, begin + i);
}

static gs_json *describe_run(void) {
    gs_json *head = gs_json_new_object(), *position = gs_json_new_object();
    gs_json *rows = gs_json_new_array();
    gs_json_set_int(position, "step", 17);
    gs_json_set_int(head, "format_version", 2);
    gs_json_set_string(head, "id", "1a2b3c4d");
    gs_json_set_string(head, "job", "j-000000000001");
    gs_json_set(head, "position", position);
    for (size_t i = 0; i < NUM_TENSORS; i++) {
        gs_json *row = gs_json_new_object(), *shape = gs_json_new_array();
        for (int d = 0; d < tensors[i].num_dims; d++)
            gs_json_push(shape, gs_json_new_int(tensors[i].shape[d]));
        gs_json_set_string(row, "name", tensors[i].name);
        gs_json_set_string(row, "dtype", gs_dtype_name(tensors[i].dtype));
        gs_json_set(row, "shape", shape);
        gs_json_push(rows, row);
    }
    gs_json_set(head, "tensors", rows);
    return head;
}

static void write_part_file(const char *path, const gs_segment *segments, size_t num_segments) {
    gs_safetensors_entry entries[NUM_TENSORS];
    char names[NUM_TENSORS][GS_PART_ENTRY_NAME_LEN];
    void *data[NUM_TENSORS];
    for (size_t i = 0; i < num_segments; i++) {
        gs_segment segment = segments[i];
        size_t element_bytes = gs_dtype_bytes(tensors[segment.tensor].dtype);
        bool is_whole = segment.count == count_of(segment.tensor);
        entries[i] = tensors[segment.tensor];
        if (!is_whole) {
            entries[i].num_dims = 1;
            entries[i].shape[0] = (int64_t)segment.count;
        }
        gs_part_entry_name(names[i], tensors[segment.tensor].name, segment.first, is_whole);
        data[i] = malloc(segment.count * element_bytes + 1);
        assert_non_null(data[i]);
        fill(data[i], segment.tensor, segment.first * element_bytes, segment.count * element_bytes);
        entries[i].name = names[i];
        entries[i].data = data[i];
    }
    assert_ok(gs_safetensors_write(path, entries, num_segments, NULL, 0, NULL, NULL));
    for (size_t i = 0; i < num_segments; i++) free(data[i]);
}

static void write_part(const char *dir, size_t part, size_t num_parts) {
    gs_segment_tensor list[NUM_TENSORS];
    gs_segment segments[NUM_TENSORS];
    char name[GS_CHECKPOINT_FILE_LEN], path[600];
    for (size_t i = 0; i < NUM_TENSORS; i++)
        list[i] = (gs_segment_tensor){tensors[i].name, count_of(i),
                                      gs_dtype_bytes(tensors[i].dtype)};
    size_t num_segments = gs_segments_of_part(segments, list, NUM_TENSORS, part, num_parts, 64);
    gs_checkpoint_part_name(name, part);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    write_part_file(path, segments, num_segments);

    gs_manifest_part sums;
    uint64_t bytes;
    gs_digest digest;
    assert_ok(gs_manifest_part_read(&sums, (gs_file_place){NULL, path}));
    gs_json *record = gs_part_record_make(describe_run(), gs_manifest_part_to_json(&sums), part,
                                          num_parts, segments, num_segments);
    gs_manifest_part_release(&sums);
    gs_checkpoint_record_name(name, part);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_ok(gs_sealed_json_write(record, path, &bytes, &digest));
}

typedef struct fixture {
    char *dir;
    char path[300], file[300];  // of the checkpoint, of what is made of it
} fixture;

static void save(fixture *f, size_t num_parts) {
    gs_json *manifest = NULL;
    uint64_t bytes;
    snprintf(f->path, sizeof f->path, "%s/step-%zu", f->dir, num_parts);
    snprintf(f->file, sizeof f->file, "%s/all.safetensors", f->dir);
    assert_int_equal(mkdir(f->path, 0700), 0);
    for (size_t part = 0; part < num_parts; part++) write_part(f->path, part, num_parts);
    assert_ok(gs_checkpoint_commit(&manifest, &bytes, f->path));
    gs_json_release(manifest);
}

static gs_status export_all(const fixture *f) {
    gs_checkpoint_export out;
    return gs_checkpoint_export_write(&out, f->file, f->path, &(gs_checkpoint_export_options){0});
}

static int set_up(void **state) {
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->dir = gs_temp_dir_make();
    *state = f;
    return 0;
}

static int tear_down(void **state) {
    fixture *f = *state;
    gs_temp_dir_remove(f->dir);
    free(f);
    return 0;
}

// What lies beside the checkpoint: the file, or what was left of one.
static size_t count_files(const fixture *f) {
    size_t count = 0;
    DIR *dir = opendir(f->dir);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));)
        count += entry->d_name[0] != '.' && strncmp(entry->d_name, "step-", 5) != 0;
    closedir(dir);
    return count;
}

static void expect(gs_status status, gs_code code, const char *says) {
    if (status.code != code || !strstr(status.message, says))
        fail_msg("%s: %s, which is not %s and %s", gs_code_name(status.code), status.message,
                 gs_code_name(code), says);
}

static void assert_tensor(const gs_safetensors *file, size_t tensor) {
    const gs_safetensor *found = gs_safetensors_find(file, tensors[tensor].name);
    assert_non_null(found);
    assert_int_equal(found->dtype, tensors[tensor].dtype);
    assert_int_equal(found->num_dims, tensors[tensor].num_dims);
    assert_memory_equal(found->shape, tensors[tensor].shape, sizeof found->shape);
    unsigned char *data = malloc(found->bytes + 1);
    assert_non_null(data);
    assert_ok(gs_safetensors_read(file, found, data, 0, found->bytes));
    for (size_t i = 0; i < found->bytes; i++) assert_int_equal(data[i], byte_of(tensor, i));
    free(data);
}

static void however_many_parts_there_were_one_file_has_every_tensor(void **state) {
    fixture *f = *state;
    for (size_t num_parts = 1; num_parts <= 9; num_parts += 4) {
        gs_checkpoint_export out;
        gs_safetensors *file;
        save(f, num_parts);
        assert_ok(gs_checkpoint_export_write(&out, f->file, f->path,
                                             &(gs_checkpoint_export_options){0}));
        assert_int_equal(out.step, 17);
        assert_int_equal(out.num_parts, num_parts);
        assert_int_equal(out.num_tensors, NUM_TENSORS);
        assert_ok(gs_safetensors_open(&file, f->file));
        assert_int_equal(gs_safetensors_count(file), NUM_TENSORS);
        for (size_t i = 0; i < NUM_TENSORS; i++) assert_tensor(file, i);
        assert_string_equal(gs_safetensors_metadata(file, "step"), "17");
        assert_string_equal(gs_safetensors_metadata(file, "job"), "j-000000000001");
        gs_safetensors_close(file);
        struct stat facts;
        assert_int_equal(stat(f->file, &facts), 0);
        assert_int_equal(facts.st_size, out.bytes);
        assert_int_equal(unlink(f->file), 0);
    }
}

static void the_model_alone_is_parameters_and_buffers(void **state) {
    fixture *f = *state;
    gs_checkpoint_export out;
    gs_safetensors *file;
    save(f, 2);
    assert_ok(gs_checkpoint_export_write(&out, f->file, f->path,
                                         &(gs_checkpoint_export_options){.model_alone = true}));
    assert_ok(gs_safetensors_open(&file, f->file));
    assert_int_equal(gs_safetensors_count(file), 4);
    assert_tensor(file, 0);
    assert_tensor(file, 5);
    gs_safetensors_close(file);
}

static void damage(const fixture *f, const char *name, long at) {
    char path[700];
    snprintf(path, sizeof path, "%s/%s", f->path, name);
    FILE *stream = fopen(path, "r+b");
    assert_non_null(stream);
    assert_int_equal(fseek(stream, at, SEEK_SET), 0);
    int byte = fgetc(stream);
    assert_int_equal(fseek(stream, at, SEEK_SET), 0);
    fputc(byte ^ 1, stream);
    fclose(stream);
}

static void a_damaged_part_is_named_and_nothing_is_written(void **state) {
    fixture *f = *state;
    save(f, 2);
    damage(f, "part-1.safetensors", 1100000);
    expect(export_all(f), GS_DATA_LOSS, "part-1.safetensors: block 1");
    assert_int_equal(count_files(f), 0);
    damage(f, "part-1.safetensors", 1100000);
    assert_ok(export_all(f));
    assert_int_equal(unlink(f->file), 0);
    damage(f, "MANIFEST.json", 100);
    expect(export_all(f), GS_DATA_LOSS, "MANIFEST.json");
    assert_int_equal(count_files(f), 0);
}

static void a_part_that_is_gone_is_named(void **state) {
    fixture *f = *state;
    char path[700];
    save(f, 3);
    snprintf(path, sizeof path, "%s/part-2.safetensors", f->path);
    assert_int_equal(unlink(path), 0);
    expect(export_all(f), GS_NOT_FOUND, "part-2.safetensors");
    assert_int_equal(count_files(f), 0);
    snprintf(f->path, sizeof f->path, "%s", f->dir);
    expect(export_all(f), GS_NOT_FOUND, "MANIFEST.json");
}

static void a_file_that_is_there_is_never_replaced(void **state) {
    fixture *f = *state;
    save(f, 1);
    assert_int_equal(symlink("nowhere", f->file), 0);
    expect(export_all(f), GS_ALREADY_EXISTS, "all.safetensors: it is there already");
    assert_int_equal(unlink(f->file), 0);
    assert_ok(export_all(f));
    expect(export_all(f), GS_ALREADY_EXISTS, "all.safetensors: it is there already");
    assert_int_equal(count_files(f), 1);

    // One that came while it was written.
    const gs_safetensors_source nothing = {.num_entries = 0};
    expect(gs_safetensors_create(f->file, &nothing, NULL), GS_ALREADY_EXISTS, "all.safetensors");
    assert_int_equal(count_files(f), 1);
}

static void a_full_disk_leaves_nothing(void **state) {
    fixture *f = *state;
    struct rlimit old, tiny;
    save(f, 2);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    tiny = old;
    tiny.rlim_cur = 100000;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tiny), 0);
    gs_status status = export_all(f);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    expect(status, GS_RESOURCE_EXHAUSTED, "all.safetensors");
    assert_int_equal(count_files(f), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(however_many_parts_there_were_one_file_has_every_tensor,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_model_alone_is_parameters_and_buffers, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_damaged_part_is_named_and_nothing_is_written, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_part_that_is_gone_is_named, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_file_that_is_there_is_never_replaced, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_full_disk_leaves_nothing, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
