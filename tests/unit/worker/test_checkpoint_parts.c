// Checkpoints whose parts several ranks write: the same state, and nothing half-made or forged is taken for
// one.
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/memory.h"
#include "core/random.h"
#include "kernels/device.h"
#include "rpc/checkpoint/checkpoint_commit.h"
#include "rpc/json/sealed_json.h"
#include "tests/support/asserts.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_device.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/state/hook_tensors.h"

#define NUM_RANKS 3
#define NUM_PLACES 1000

typedef struct fixture {
    gs_device *device;
    gs_job_spec spec;
    gs_trainer_state state;
    gs_state_snapshot snapshot;
    char *dir, *path;  // path: of the last save
} fixture;

static const char mlp_spec[] =
    "{\"name\":\"c\",\"model\":{\"kind\":\"mlp\",\"mlp\":{\"dims\":[30,20,4],\"batch_norm\":\"local\"}},"
    "\"optimizer\":{\"kind\":\"adamw\",\"lr\":0.01},\"steps\":{\"target\":9}}";

static void scramble(gs_trainer_state *state, uint64_t seed) {
    for (size_t i = 0; i < state->num_tensors; i++) {
        unsigned char *data = calloc(1, state->tensors[i].bytes + 1);
        assert_non_null(data);
        gs_random_key key = {seed, i};
        for (size_t b = 0; b < state->tensors[i].bytes; b++)
            data[b] = (unsigned char)(gs_random_u64(key, b) % 63);
        assert_ok(gs_trainer_state_write(state, i, data));
        free(data);
    }
    state->position = (gs_position){.step = 41, .consumed = 41 * 8, .skipped_steps = (int64_t)seed};
}

static int set_up(void **state) {
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    gs_json *json;
    gs_field_errors errors = {0};
    assert_ok(gs_json_parse(&json, mlp_spec, strlen(mlp_spec)));
    assert_ok(gs_job_spec_decode(&f->spec, json, &errors));
    gs_json_release(json);
    assert_ok(gs_device_open(&f->device, gs_test_device_name(), &(gs_device_options){.num_threads = 1}));
    assert_ok(gs_trainer_state_init(&f->state, &f->spec, f->device));
    scramble(&f->state, 7);
    assert_ok(gs_state_snapshot_init(&f->snapshot, &f->state, (gs_share_range){0}));
    assert_ok(gs_state_snapshot_take(&f->snapshot, &f->state));
    f->dir = gs_temp_dir_make();
    *state = f;
    return 0;
}

static int tear_down(void **state) {
    fixture *f = *state;
    gs_temp_dir_remove(f->dir);
    gs_state_snapshot_release(&f->snapshot);
    gs_trainer_state_release(&f->state);
    gs_device_close(f->device);
    free(f->path);
    free(f);
    return 0;
}

static gs_checkpoint_result save_part(fixture *f, int part, int num_parts, uint32_t generation) {
    gs_checkpoint_result result;
    const gs_checkpoint_options options = {.directory = f->dir,
                                           .job = "j-000000000001",
                                           .spec = &f->spec,
                                           .request = {.reason = "periodic",
                                                       .world_size = num_parts,
                                                       .part = part,
                                                       .num_parts = num_parts,
                                                       .generation = generation}};
    gs_status status = gs_checkpoint_save(&result, &f->snapshot, &options);
    assert_int_equal(status.code, result.status.code);
    free(f->path);
    f->path = NULL;
    assert_true(asprintf(&f->path, "%s/%s", f->dir, result.name) > 0);
    return result;
}

static void save_parts(fixture *f, int num_parts, uint32_t generation) {
    for (int part = 0; part < num_parts; part++)
        assert_ok(save_part(f, part, num_parts, generation).status);
}

static char *file(const fixture *f, const char *name) {
    static char path[4][600];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", f->path, name);
    return path[turn];
}

static gs_status commit(const fixture *f) {
    gs_json *manifest = NULL;
    uint64_t bytes;
    gs_status status = gs_checkpoint_commit(&manifest, &bytes, f->path);
    gs_json_release(manifest);
    return status;
}

static void expect(gs_status status, gs_code code, const char *says) {
    if (status.code != code || !strstr(status.message, says))
        fail_msg("%s: %s, which is not %s and %s", gs_code_name(status.code), status.message,
                 gs_code_name(code), says);
}

static size_t file_bytes(const char *path) {
    struct stat facts;
    assert_int_equal(stat(path, &facts), 0);
    return (size_t)facts.st_size;
}

static void any_number_of_parts_is_the_same_state(void **state) {
    fixture *f = *state;
    const gs_digest saved = gs_trainer_state_digest(&f->state);
    for (int num_parts = 2; num_parts <= 40; num_parts += num_parts < 7 ? 1 : 11) {
        size_t least = SIZE_MAX, most = 0;
        for (int part = num_parts - 1; part >= 0; part--) {
            gs_checkpoint_result result = save_part(f, part, num_parts, (uint32_t)num_parts);
            assert_ok(result.status);
            assert_true(gs_digest_equal(result.state_digest, saved));
            expect(commit(f), part ? GS_NOT_FOUND : GS_OK, part ? "part-0.json" : "");
            size_t bytes = file_bytes(file(f, result.part_name));
            if (bytes < least) least = bytes;
            if (bytes > most) most = bytes;
        }
        assert_true(most - least < 3500);  // of data 128, the rest is names
        assert_int_equal(access(file(f, "part-0.json"), F_OK), -1);
        scramble(&f->state, 8);
        assert_ok(gs_checkpoint_load(&f->state, f->path, &f->spec));
        assert_true(gs_digest_equal(saved, gs_trainer_state_digest(&f->state)));
        assert_ok(commit(f));  // once more is nothing
    }
}

static void a_save_of_another_generation_lies_elsewhere(void **state) {
    fixture *f = *state;
    save_part(f, 0, NUM_RANKS, 1);
    char *first = strdup(f->path);
    save_part(f, 1, NUM_RANKS, 1);
    assert_string_equal(first, f->path);
    save_part(f, 1, NUM_RANKS, 2);
    assert_string_not_equal(first, f->path);
    expect(save_part(f, 1, NUM_RANKS, 2).status, GS_FAILED_PRECONDITION, "is there already");
    free(first);
}

static void a_part_that_is_missing_short_or_anothers_is_no_checkpoint(void **state) {
    fixture *f = *state;
    save_parts(f, NUM_RANKS, 1);
    rename(file(f, "part-2.json"), file(f, "kept"));
    expect(commit(f), GS_NOT_FOUND, "part-2.json");
    expect(gs_checkpoint_load(&f->state, f->path, &f->spec), GS_NOT_FOUND, "MANIFEST");
    rename(file(f, "part-1.json"), file(f, "part-2.json"));
    rename(file(f, "kept"), file(f, "part-1.json"));
    expect(commit(f), GS_DATA_LOSS, "part 1: its record is that of part 2");

    save_parts(f, NUM_RANKS, 2);
    rename(file(f, "part-1.safetensors"), file(f, "kept"));
    expect(commit(f), GS_NOT_FOUND, "part-1.safetensors");
    rename(file(f, "kept"), file(f, "part-1.safetensors"));
    size_t bytes = file_bytes(file(f, "part-1.safetensors"));
    assert_int_equal(truncate(file(f, "part-1.safetensors"), (off_t)bytes - 1), 0);
    expect(commit(f), GS_DATA_LOSS, "part-1.safetensors");

    save_parts(f, NUM_RANKS, 3);
    char *saved = strdup(f->path);
    scramble(&f->state, 8);  // a rank with another state, at the same step
    assert_ok(gs_state_snapshot_take(&f->snapshot, &f->state));
    save_parts(f, NUM_RANKS, 4);
    char from[700];
    snprintf(from, sizeof from, "%s/part-1.json", saved);
    rename(from, file(f, "part-1.json"));
    expect(commit(f), GS_DATA_LOSS, "part 1 is of another save than part 0: its id");
    assert_int_equal(access(file(f, "MANIFEST.json"), F_OK), -1);
    free(saved);
}

static void ranks_that_do_not_hold_the_same_make_no_checkpoint(void **state) {
    fixture *f = *state;
    save_part(f, 0, 2, 1);
    scramble(&f->state, 7);
    f->state.position.consumed++;
    assert_ok(gs_state_snapshot_take(&f->snapshot, &f->state));
    save_part(f, 1, 2, 1);
    expect(commit(f), GS_DATA_LOSS, "part 1 is of another save than part 0: its position");
}

static void records_that_were_left_behind_go(void **state) {
    fixture *f = *state;
    save_parts(f, NUM_RANKS, 1);
    assert_int_equal(link(file(f, "part-0.json"), file(f, "kept-0")), 0);
    assert_int_equal(link(file(f, "part-2.json"), file(f, "kept-2")), 0);
    assert_ok(commit(f));
    // As if it had been killed right behind the manifest.
    assert_int_equal(rename(file(f, "kept-0"), file(f, "part-0.json")), 0);
    assert_int_equal(rename(file(f, "kept-2"), file(f, "part-2.json")), 0);
    assert_ok(commit(f));
    assert_int_equal(access(file(f, "part-0.json"), F_OK), -1);
    assert_int_equal(access(file(f, "part-2.json"), F_OK), -1);
    assert_ok(gs_checkpoint_load(&f->state, f->path, &f->spec));
}

static void nothing_is_written_into_a_checkpoint(void **state) {
    fixture *f = *state;
    save_parts(f, NUM_RANKS, 1);
    assert_ok(commit(f));
    scramble(&f->state, 8);
    assert_ok(gs_state_snapshot_take(&f->snapshot, &f->state));
    expect(save_part(f, 1, NUM_RANKS, 1).status, GS_FAILED_PRECONDITION, "is a checkpoint already");
    assert_ok(gs_checkpoint_load(&f->state, f->path, &f->spec));
}

// Whoever looks is not held up, and does not write elsewhere.
static void pipes_and_links_are_no_checkpoint(void **state) {
    fixture *f = *state;
    alarm(60);
    save_parts(f, NUM_RANKS, 1);
    rename(file(f, "part-2.json"), file(f, "kept"));
    assert_int_equal(mkfifo(file(f, "part-2.json"), 0600), 0);
    expect(commit(f), GS_DATA_LOSS, "part-2.json: is no regular file");
    rename(file(f, "kept"), file(f, "part-2.json"));

    char *real = f->path;
    assert_true(asprintf(&f->path, "%s/step-link", f->dir) > 0);
    assert_int_equal(symlink(real, f->path), 0);
    expect(commit(f), GS_DATA_LOSS, "step-link: is a symbolic link");
    assert_int_equal(access(file(f, "MANIFEST.json"), F_OK), -1);
    free(f->path);
    f->path = real;

    assert_int_equal(mkfifo(file(f, "MANIFEST.json"), 0600), 0);
    expect(commit(f), GS_DATA_LOSS, "MANIFEST.json: is no regular file");
    expect(gs_checkpoint_load(&f->state, f->path, &f->spec), GS_DATA_LOSS, "no regular file");
    assert_int_equal(unlink(file(f, "MANIFEST.json")), 0);
    assert_ok(commit(f));
    assert_int_equal(unlink(file(f, "part-1.safetensors")), 0);
    assert_int_equal(mkfifo(file(f, "part-1.safetensors"), 0600), 0);
    expect(gs_checkpoint_load(&f->state, f->path, &f->spec), GS_DATA_LOSS, "part-1.safetensors");
    expect(commit(f), GS_DATA_LOSS, "part-1.safetensors");
    alarm(0);
}

static void flip_byte(const char *path, size_t at, unsigned char mask) {
    FILE *stream = fopen(path, "r+b");
    assert_non_null(stream);
    assert_int_equal(fseek(stream, (long)at, SEEK_SET), 0);
    int byte = fgetc(stream);
    assert_int_equal(fseek(stream, (long)at, SEEK_SET), 0);
    fputc(byte ^ mask, stream);
    fclose(stream);
}

static void a_changed_byte_and_swapped_parts_are_found(void **state) {
    fixture *f = *state;
    save_parts(f, NUM_RANKS, 1);
    assert_ok(commit(f));
    scramble(&f->state, 10);
    const gs_digest untouched = gs_trainer_state_digest(&f->state);
    static const char *const names[] = {"part-0.safetensors", "part-1.safetensors",
                                        "part-2.safetensors", "MANIFEST.json"};
    for (uint64_t i = 0; i < NUM_PLACES; i++) {
        const char *path = file(f, names[i % 4]);
        size_t at = gs_random_u64((gs_random_key){20261122, 1}, 2 * i) % file_bytes(path);
        unsigned char mask =
            (unsigned char)(1 + gs_random_u64((gs_random_key){20261122, 1}, 2 * i + 1) % 255);
        flip_byte(path, at, mask);
        expect(gs_checkpoint_load(&f->state, f->path, &f->spec), GS_DATA_LOSS, names[i % 4]);
        flip_byte(path, at, mask);
    }
    rename(file(f, names[0]), file(f, "kept"));
    rename(file(f, names[1]), file(f, names[0]));
    rename(file(f, "kept"), file(f, names[1]));
    expect(gs_checkpoint_load(&f->state, f->path, &f->spec), GS_DATA_LOSS, "part-0.safetensors");
    assert_true(gs_digest_equal(untouched, gs_trainer_state_digest(&f->state)));
}

// A list of tensors that grows, as hooks make it: who saves has a list of its own, and notices.
static void a_snapshot_outlives_the_list_that_it_was_made_of(void **state) {
    fixture *f = *state;
    const gs_digest before = gs_state_snapshot_digest(&f->snapshot);
    assert_true(gs_state_snapshot_fits(&f->snapshot, &f->state, (gs_share_range){0}));
    for (int i = 0; i < 40; i++) {
        gs_state_tensor tensor = {.dtype = GS_FP32, .num_dims = 1, .shape = {4}, .bytes = 16};
        snprintf(tensor.name, sizeof tensor.name, "hook/%d", i);
        assert_ok(gs_hook_tensors_add(&f->state, &tensor));
    }
    assert_false(gs_state_snapshot_fits(&f->snapshot, &f->state, (gs_share_range){0}));
    assert_true(gs_digest_equal(before, gs_state_snapshot_digest(&f->snapshot)));
    save_parts(f, 2, 1);
    assert_ok(commit(f));
    gs_state_snapshot_release(&f->snapshot);
    assert_ok(gs_state_snapshot_init(&f->snapshot, &f->state, (gs_share_range){0}));
    assert_true(gs_state_snapshot_fits(&f->snapshot, &f->state, (gs_share_range){0}));
    assert_ok(gs_state_snapshot_take(&f->snapshot, &f->state));
    save_parts(f, 2, 2);
    assert_ok(commit(f));
    gs_hook_tensors_forget(&f->state);
    assert_ok(gs_checkpoint_load(&f->state, f->path, &f->spec));
}

// A manifest that says something else, and is well sealed.
typedef void (*forgery)(gs_json *row);

static gs_json *ranges_of(gs_json *row) {
    return (gs_json *)(uintptr_t)gs_json_get(row, "ranges");
}

static void add_range(gs_json *row, int64_t part, int64_t first, int64_t count) {
    gs_json *range = gs_json_new_array();
    gs_json_push(range, gs_json_new_int(part));
    gs_json_push(range, gs_json_new_int(first));
    gs_json_push(range, gs_json_new_int(count));
    gs_json_push(ranges_of(row), range);
}

static void set_range(gs_json *row, int64_t part, int64_t first, int64_t count) {
    gs_json_set(row, "ranges", gs_json_new_array());
    add_range(row, part, first, count);
}

static void forge_no_range(gs_json *row) { gs_json_set(row, "ranges", gs_json_new_array()); }
static void forge_gap(gs_json *row) { set_range(row, 0, 1, 599); }
static void forge_too_long(gs_json *row) { set_range(row, 0, 0, 601); }
static void forge_twice(gs_json *row) { add_range(row, 0, 0, 600); }
static void forge_no_such_part(gs_json *row) { set_range(row, 3, 0, 600); }
static void forge_other_part(gs_json *row) { set_range(row, 2, 0, 600); }
static void forge_cut(gs_json *row) {  // in two where the file has one piece
    set_range(row, 0, 0, 5);
    add_range(row, 0, 5, 595);
}
static void forge_shape(gs_json *row) {
    gs_json *shape = gs_json_new_array();
    gs_json_push(shape, gs_json_new_int(INT64_MAX));
    gs_json_push(shape, gs_json_new_int(INT64_MAX));
    gs_json_set(row, "shape", shape);
}
static void forge_name(gs_json *row) { gs_json_set_string(row, "name", "fc2.weight"); }

static void forged_manifests_name_what_is_wrong(void **state) {
    fixture *f = *state;
    static const struct {
        forgery forge;
        const char *says;
    } forged[] = {{forge_no_range, "\"fc1.weight\": element 0 is missing"},
                  {forge_gap, "\"fc1.weight\": element 0 is missing"},
                  {forge_too_long, "\"fc1.weight\": 601 elements"},
                  {forge_twice, "\"fc1.weight\": element 0 is there twice"},
                  {forge_no_such_part, "\"fc1.weight\": a range"},
                  {forge_other_part, "part-2.safetensors: tensor \"fc1.weight\": 600 elements"},
                  {forge_cut, "part-0.safetensors: tensor \"fc1.weight\": 5 elements"},
                  {forge_shape, "\"fc1.weight\": name, dtype or shape"},
                  {forge_name, "\"fc2.weight\" is there twice"}};
    save_parts(f, NUM_RANKS, 1);
    assert_ok(commit(f));
    gs_json *manifest;
    assert_ok(gs_sealed_json_read(&manifest, file(f, "MANIFEST.json")));
    gs_json_remove(manifest, "digest");
    scramble(&f->state, 11);
    const gs_digest untouched = gs_trainer_state_digest(&f->state);
    for (size_t i = 0; i < sizeof forged / sizeof *forged; i++) {
        gs_json *lie = gs_json_copy(manifest);
        forged[i].forge((gs_json *)(uintptr_t)gs_json_at(gs_json_get(lie, "tensors"), 0));
        uint64_t bytes;
        gs_digest digest;
        assert_ok(gs_sealed_json_write(lie, file(f, "MANIFEST.json"), &bytes, &digest));
        expect(gs_checkpoint_load(&f->state, f->path, &f->spec), GS_DATA_LOSS, forged[i].says);
    }
    gs_json *lie = gs_json_copy(manifest);
    gs_json *part = (gs_json *)(uintptr_t)gs_json_at(gs_json_get(lie, "parts"), 1);
    gs_json_set_string(part, "name", "../part-1.safetensors");
    uint64_t bytes;
    gs_digest digest;
    assert_ok(gs_sealed_json_write(lie, file(f, "MANIFEST.json"), &bytes, &digest));
    expect(gs_checkpoint_load(&f->state, f->path, &f->spec), GS_DATA_LOSS, "part 1 is");
    assert_true(gs_digest_equal(untouched, gs_trainer_state_digest(&f->state)));
    gs_json_set_int(manifest, "format_version", 3);
    assert_ok(gs_sealed_json_write(manifest, file(f, "MANIFEST.json"), &bytes, &digest));
    expect(gs_checkpoint_load(&f->state, f->path, &f->spec), GS_INVALID_ARGUMENT, "format 3");
}

static void a_disk_that_is_full_for_one_part_leaves_nothing_of_it(void **state) {
    fixture *f = *state;
    if (mount("none", f->dir, "tmpfs", 0, "size=64k") < 0) {
        print_message("skipped: no tmpfs can be mounted here (%s)\n", strerror(errno));
        skip();
    }
    gs_checkpoint_result first = save_part(f, 0, NUM_RANKS, 1);
    FILE *rest_of_disk = fopen(file(f, "filler"), "w");
    assert_non_null(rest_of_disk);
    setvbuf(rest_of_disk, NULL, _IONBF, 0);
    while (fputc(1, rest_of_disk) != EOF) {
    }
    fclose(rest_of_disk);
    // There is room for the part, and none for what says that it is there.
    size_t room = gs_round_up(file_bytes(file(f, "part-0.safetensors")), 4096);
    assert_int_equal(truncate(file(f, "filler"), (off_t)(file_bytes(file(f, "filler")) - room)), 0);
    gs_checkpoint_result other = save_part(f, 1, NUM_RANKS, 1);
    bool rest = access(file(f, "part-1.json"), F_OK) == 0 || access(file(f, "part-1.safetensors"), F_OK) == 0;
    gs_status committed = commit(f);
    umount(f->dir);
    assert_ok(first.status);
    assert_int_equal(other.status.code, GS_RESOURCE_EXHAUSTED);
    assert_string_equal(other.cause, "space");
    assert_false(rest);
    expect(committed, GS_NOT_FOUND, "part-1.json");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(any_number_of_parts_is_the_same_state),
        TEST(a_save_of_another_generation_lies_elsewhere),
        TEST(a_part_that_is_missing_short_or_anothers_is_no_checkpoint),
        TEST(ranks_that_do_not_hold_the_same_make_no_checkpoint),
        TEST(records_that_were_left_behind_go),
        TEST(nothing_is_written_into_a_checkpoint),
        TEST(pipes_and_links_are_no_checkpoint),
        TEST(a_changed_byte_and_swapped_parts_are_found),
        TEST(a_snapshot_outlives_the_list_that_it_was_made_of),
        TEST(forged_manifests_name_what_is_wrong),
        TEST(a_disk_that_is_full_for_one_part_leaves_nothing_of_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
