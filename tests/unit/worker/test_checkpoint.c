#include "worker/checkpoint/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/random.h"
#include "kernels/device.h"
#include "rpc/checkpoint/checkpoint_commit.h"
#include "rpc/checkpoint/checkpoint_reader.h"
#include "rpc/json/json.h"
#include "tests/support/asserts.h"
#include "tests/support/device_memory.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_device.h"
#include "worker/checkpoint/manifest.h"

#define PART "part-0.safetensors"
#define NUM_PLACES 1000

static const char mlp_spec[] =
    "{\"name\":\"c\",\"model\":{\"kind\":\"mlp\",\"mlp\":{\"dims\":[30,20,4],\"batch_norm\":\"local\"}},"
    "\"optimizer\":{\"kind\":\"adamw\",\"lr\":0.01},\"steps\":{\"target\":9}}";

typedef struct fixture {
    gs_device *device;
    gs_job_spec spec;
    gs_trainer_state state;
    gs_state_snapshot snapshot;
    char *dir;
} fixture;

static void decode_spec(gs_job_spec *spec, const char *text) {
    gs_json *json;
    gs_field_errors errors = {0};
    assert_ok(gs_json_parse(&json, text, strlen(text)));
    gs_status status = gs_job_spec_decode(spec, json, &errors);
    if (status.code) fail_msg("%s: %s", errors.items[0].pointer, errors.items[0].message);
    gs_json_release(json);
}

// A state in which every tensor and every number is something else than at the start.
static void scramble(gs_trainer_state *state, uint64_t seed) {
    for (size_t i = 0; i < state->num_tensors; i++) {
        unsigned char *data = calloc(1, state->tensors[i].bytes + 1);
        assert_non_null(data);
        if (state->tensors[i].dtype == GS_FP32) {
            gs_random_fill_normal((float *)(void *)data, state->tensors[i].bytes / 4,
                                  (gs_random_key){seed, i}, 0, 0, 1);
        } else {
            memset(data, (int)(seed + i) & 127, state->tensors[i].bytes);
        }
        assert_ok(gs_trainer_state_write(state, i, data));
        free(data);
    }
    state->position = (gs_position){.step = 41, .consumed = 41 * 8, .skipped_steps = 2};
}

static int set_up(void **state) {
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    decode_spec(&f->spec, mlp_spec);
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
    free(f);
    return 0;
}

static gs_checkpoint_result save_of(const fixture *f, const char *directory, const char *job) {
    gs_checkpoint_result result;
    gs_checkpoint_options options = {.directory = directory,
                                     .job = job,
                                     .spec = &f->spec,
                                     .request = {.reason = "periodic", .world_size = 2, .num_parts = 1}};
    gs_status status = gs_checkpoint_save(&result, &f->snapshot, &options);
    assert_int_equal(status.code, result.status.code);
    return result;
}

static gs_checkpoint_result save(const fixture *f, const char *directory) {
    return save_of(f, directory, "j-000000000001");
}

static char *join(const char *a, const char *b) {
    char *path = NULL;
    if (asprintf(&path, "%s/%s", a, b) < 0) abort();
    return path;
}

static void equal_states_of_two_jobs_have_equal_digests(void **state) {
    fixture *f = *state;
    gs_checkpoint_result one = save(f, f->dir), other = save_of(f, f->dir, "j-000000000002");
    assert_ok(one.status);
    assert_ok(other.status);
    assert_true(gs_digest_equal(one.state_digest, gs_state_snapshot_digest(&f->snapshot)));
    assert_true(gs_digest_equal(one.state_digest, other.state_digest));
    assert_true(gs_digest_equal(one.part_digest, other.part_digest));
    scramble(&f->state, 8);
    assert_ok(gs_state_snapshot_take(&f->snapshot, &f->state));
    gs_checkpoint_result third = save(f, f->dir);
    assert_false(gs_digest_equal(one.state_digest, third.state_digest));
    assert_false(gs_digest_equal(one.part_digest, third.part_digest));
}

static void what_is_saved_comes_back_bit_for_bit(void **state) {
    fixture *f = *state;
    gs_checkpoint_result result = save(f, f->dir);
    assert_ok(result.status);
    assert_int_equal(strncmp(result.name, "step-0000000041-", 16), 0);
    gs_digest before = gs_trainer_state_digest(&f->state);
    assert_true(gs_digest_equal(before, gs_state_snapshot_digest(&f->snapshot)));

    scramble(&f->state, 8);
    f->state.position = (gs_position){0};
    char *path = join(f->dir, result.name);
    assert_ok(gs_checkpoint_load(&f->state, path, &f->spec));
    assert_true(gs_digest_equal(before, gs_trainer_state_digest(&f->state)));
    assert_int_equal(f->state.position.skipped_steps, 2);
    free(path);
}

// Masters are fp32 in the file; what passes read is brought up to date by whatever changes the masters.
static void expect_values_of_masters(const gs_trainer_state *state) {
    for (size_t p = 0; p < state->num_params; p++) {
        size_t count = gs_param_spec_count(&state->param_specs[p]);
        float *masters = calloc(count, sizeof *masters), *values = calloc(count, sizeof *values);
        assert_true(masters && values && state->values[p] != state->params[p]);
        assert_ok(gs_trainer_state_read(state, p, masters));
        device_memory_read(state->device, values, state->values[p], count * sizeof *values);
        for (size_t i = 0; i < count; i++)
            assert_true(values[i] == gs_fp16_to_fp32(gs_fp32_to_fp16(masters[i])));
        free(masters);
        free(values);
    }
}

static void fp16_keeps_masters_and_loss_scale(void **state) {
    (void)state;
    fixture f = {.dir = gs_temp_dir_make()};
    static const char fp16_spec[] =
        "{\"name\":\"c\",\"model\":{\"kind\":\"mlp\",\"precision\":\"fp16\",\"mlp\":{\"dims\":"
        "[30,20,4]}},\"optimizer\":{\"loss_scale\":{\"init\":12345.678}},\"steps\":{\"target\":9}}";
    decode_spec(&f.spec, fp16_spec);
    assert_ok(gs_device_open(&f.device, gs_test_device_name(), &(gs_device_options){.num_threads = 1}));
    assert_ok(gs_trainer_state_init(&f.state, &f.spec, f.device));
    expect_values_of_masters(&f.state);
    assert_int_equal(f.state.param_specs[0].dtype, GS_FP16);
    assert_int_equal(f.state.tensors[0].dtype, GS_FP32);
    assert_true(f.state.position.loss_scale.scale == 12345.678f);
    f.state.position.loss_scale = (gs_grad_scaler){.scale = 0x1.23456p-7f, .growth_tracker = 1999};
    gs_digest forgave_nothing = gs_trainer_state_digest(&f.state);
    f.state.position.loss_scale.num_forgiven = 3;
    gs_digest before = gs_trainer_state_digest(&f.state);
    assert_false(gs_digest_equal(before, forgave_nothing));
    f.state.position.loss_scale.growth_tracker--;
    assert_false(gs_digest_equal(before, gs_trainer_state_digest(&f.state)));
    f.state.position.loss_scale.growth_tracker++;
    assert_ok(gs_state_snapshot_init(&f.snapshot, &f.state, (gs_share_range){0}));
    assert_ok(gs_state_snapshot_take(&f.snapshot, &f.state));
    gs_checkpoint_result result = save(&f, f.dir);
    assert_ok(result.status);

    scramble(&f.state, 8);
    char *path = join(f.dir, result.name);
    assert_ok(gs_checkpoint_load(&f.state, path, &f.spec));
    assert_true(gs_digest_equal(before, gs_trainer_state_digest(&f.state)));
    expect_values_of_masters(&f.state);
    scramble(&f.state, 9);
    assert_ok(gs_state_snapshot_restore(&f.snapshot, &f.state));
    assert_true(gs_digest_equal(before, gs_trainer_state_digest(&f.state)));
    expect_values_of_masters(&f.state);

    // More forgiven overflows than any job forgives.
    f.state.position.loss_scale.num_forgiven = 99;
    assert_ok(gs_state_snapshot_take(&f.snapshot, &f.state));
    result = save(&f, f.dir);
    assert_ok(result.status);
    free(path);
    path = join(f.dir, result.name);
    gs_status status = gs_checkpoint_load(&f.state, path, &f.spec);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    assert_non_null(strstr(status.message, "forgiven_overflows is 99, not between 0 and 98"));
    free(path);
    gs_temp_dir_remove(f.dir);
    gs_state_snapshot_release(&f.snapshot);
    gs_trainer_state_release(&f.state);
    gs_device_close(f.device);
}

static void a_snapshot_restores_what_it_took(void **state) {
    fixture *f = *state;
    gs_digest before = gs_trainer_state_digest(&f->state);
    scramble(&f->state, 9);
    assert_ok(gs_state_snapshot_restore(&f->snapshot, &f->state));
    assert_true(gs_digest_equal(before, gs_trainer_state_digest(&f->state)));
    gs_trainer_state_begin_params_digest(&f->state, 0, 1);
    assert_true(gs_digest_equal(gs_state_snapshot_params_digest(&f->snapshot),
                                gs_trainer_state_end_params_digest(&f->state)));
}

static size_t file_bytes(const char *path) {
    struct stat facts;
    assert_int_equal(stat(path, &facts), 0);
    return (size_t)facts.st_size;
}

static void flip_byte(const char *path, size_t at, unsigned char mask) {
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, (long)at, SEEK_SET), 0);
    int byte = fgetc(file);
    assert_int_equal(fseek(file, (long)at, SEEK_SET), 0);
    fputc(byte ^ mask, file);
    fclose(file);
}

// Seeded: byte positions over both files, the manifest as often as the part.
static void a_changed_byte_anywhere_is_found_and_nothing_is_loaded(void **state) {
    fixture *f = *state;
    gs_checkpoint_result result = save(f, f->dir);
    assert_ok(result.status);
    char *path = join(f->dir, result.name);
    char *files[2] = {join(path, PART), join(path, GS_CHECKPOINT_MANIFEST)};
    scramble(&f->state, 10);
    gs_digest untouched = gs_trainer_state_digest(&f->state);
    gs_random_key key = {20261120, 1};
    for (uint64_t i = 0; i < NUM_PLACES; i++) {
        const char *file = files[i % 2];
        size_t at = gs_random_u64(key, 2 * i) % file_bytes(file);
        unsigned char mask = (unsigned char)(1 + gs_random_u64(key, 2 * i + 1) % 255);
        flip_byte(file, at, mask);
        gs_status status = gs_checkpoint_load(&f->state, path, &f->spec);
        flip_byte(file, at, mask);
        if (status.code != GS_DATA_LOSS) {
            fail_msg("byte %zu of %s: %s %s", at, file, gs_code_name(status.code), status.message);
        }
    }
    assert_true(gs_digest_equal(untouched, gs_trainer_state_digest(&f->state)));
    assert_ok(gs_checkpoint_load(&f->state, path, &f->spec));
    free(files[0]);
    free(files[1]);
    free(path);
}

static void a_short_part_is_data_loss(void **state) {
    fixture *f = *state;
    gs_checkpoint_result result = save(f, f->dir);
    char *path = join(f->dir, result.name), *part = join(path, PART);
    assert_int_equal(truncate(part, (off_t)file_bytes(part) - 1), 0);
    gs_status status = gs_checkpoint_load(&f->state, path, &f->spec);
    assert_int_equal(status.code, GS_DATA_LOSS);
    assert_non_null(strstr(status.message, PART));
    free(part);
    free(path);
}

static void a_directory_without_manifest_is_no_checkpoint(void **state) {
    fixture *f = *state;
    gs_checkpoint_result result = save(f, f->dir);
    char *path = join(f->dir, result.name), *manifest = join(path, GS_CHECKPOINT_MANIFEST);
    unlink(manifest);
    gs_status status = gs_checkpoint_load(&f->state, path, &f->spec);
    assert_int_equal(status.code, GS_NOT_FOUND);
    free(manifest);
    free(path);
}

static void nothing_is_saved_or_loaded_behind_a_link(void **state) {
    fixture *f = *state;
    char *job = join(f->dir, "job"), *elsewhere = join(f->dir, "elsewhere");
    gs_checkpoint_result there = save(f, elsewhere);
    assert_ok(there.status);
    assert_int_equal(symlink("elsewhere", job), 0);
    gs_checkpoint_result result = save(f, job);
    assert_int_equal(result.status.code, GS_PERMISSION_DENIED);
    char *whole = join(elsewhere, there.name), *path = join(job, there.name);
    assert_int_equal(gs_checkpoint_load(&f->state, path, &f->spec).code, GS_PERMISSION_DENIED);
    assert_ok(gs_checkpoint_load(&f->state, whole, &f->spec));
    free(path);
    free(whole);
    free(elsewhere);
    free(job);
}

// Once, before that name is opened by the call that follows: the directory goes aside, and a link to another one has its name.
static struct exchange {
    const char *before;  // how the name begins; NULL: nothing is exchanged
    char *directory, *aside, *link_to;
} exchange;

int __real_openat(int fd, const char *name, int flags, ...);
int __wrap_openat(int fd, const char *name, int flags, ...);
int __wrap_openat(int fd, const char *name, int flags, ...) {
    va_list more;
    va_start(more, flags);
    unsigned mode = flags & O_CREAT ? va_arg(more, unsigned) : 0;
    va_end(more);
    if (exchange.before && strncmp(name, exchange.before, strlen(exchange.before)) == 0) {
        exchange.before = NULL;
        assert_int_equal(rename(exchange.directory, exchange.aside), 0);
        assert_int_equal(symlink(exchange.link_to, exchange.directory), 0);
    }
    return __real_openat(fd, name, flags, mode);
}

static void expect_refused(gs_status status, const char *path) {
    assert_int_equal(status.code, GS_PERMISSION_DENIED);
    if (!strstr(status.message, path)) fail_msg("\"%s\" does not name %s", status.message, path);
}

static size_t count_entries(const char *path);

typedef struct lure {
    char *job, *aside, *elsewhere;
} lure;

static lure make_lure(const fixture *f) {
    lure it = {join(f->dir, "job"), join(f->dir, "aside"), join(f->dir, "elsewhere")};
    assert_int_equal(mkdir(it.job, 0700), 0);
    assert_int_equal(mkdir(it.elsewhere, 0700), 0);
    return it;
}

static void release_lure(lure *it) {
    free(it->job);
    free(it->aside);
    free(it->elsewhere);
}

static void a_job_that_becomes_a_link_is_not_saved_behind_it(void **state) {
    // When it is opened; when all but its name is open already.
    static const char *const moments[] = {"job", "step-", "part-0.safetensors.tmp", ".draft-"};
    for (size_t i = 0; i < sizeof moments / sizeof *moments; i++) {
        fixture *f = *state;
        lure it = make_lure(f);
        exchange = (struct exchange){moments[i], it.job, it.aside, it.elsewhere};
        expect_refused(save(f, it.job).status, it.job);
        assert_null(exchange.before);
        assert_int_equal(count_entries(it.elsewhere), 0);
        assert_int_equal(count_entries(it.aside), 0);
        assert_int_equal(unlink(it.job), 0);
        assert_int_equal(rmdir(it.elsewhere), 0);
        assert_int_equal(rmdir(it.aside), 0);
        release_lure(&it);
    }
}

static void a_checkpoint_that_becomes_a_link_is_not_saved_behind_it(void **state) {
    static const char *const moments[] = {"step-", "part-0.safetensors.tmp"};
    fixture *f = *state;
    for (size_t i = 0; i < sizeof moments / sizeof *moments; i++) {
        lure it = make_lure(f);
        // All ranks of one save agree in its name, so it is known before.
        gs_checkpoint_options options = {.directory = it.job,
                                         .job = "j-000000000001",
                                         .cluster = "",
                                         .spec = &f->spec,
                                         .request = {.reason = "periodic", .world_size = 2, .num_parts = 2}};
        gs_checkpoint_result result = gs_checkpoint_announce(&f->snapshot.position, &options);
        char *path = join(it.job, result.name);
        exchange = (struct exchange){moments[i], path, it.aside, it.elsewhere};
        expect_refused(gs_checkpoint_save(&result, &f->snapshot, &options), path);
        assert_null(exchange.before);
        assert_int_equal(count_entries(it.elsewhere), 0);
        unlink(path);
        rmdir(it.aside);
        assert_int_equal(rmdir(it.job), 0);
        assert_int_equal(rmdir(it.elsewhere), 0);
        free(path);
        release_lure(&it);
    }
}

// Another state lies behind the link, whole and valid.
static void nothing_is_loaded_behind_a_link_that_comes_meanwhile(void **state) {
    static const char *const moments[] = {"job", "step-"};
    fixture *f = *state;
    lure it = make_lure(f);
    gs_checkpoint_result result = save(f, it.job);
    assert_ok(result.status);
    gs_digest saved = gs_trainer_state_digest(&f->state);
    char command[4200], *path = join(it.job, result.name);
    scramble(&f->state, 8);
    gs_digest before = gs_trainer_state_digest(&f->state);
    for (size_t i = 0; i < sizeof moments / sizeof *moments; i++) {
        char *exchanged = i == 0 ? it.job : path;
        exchange = (struct exchange){moments[i], exchanged, it.aside, it.elsewhere};
        expect_refused(gs_checkpoint_load(&f->state, path, &f->spec), exchanged);
        assert_true(gs_digest_equal(before, gs_trainer_state_digest(&f->state)));
        assert_int_equal(unlink(exchanged), 0);
        assert_int_equal(rename(it.aside, exchanged), 0);
    }
    // Who has opened it reads what was there.
    snprintf(command, sizeof command, "cp -r '%s' '%s/' && truncate -s -1 '%s/%s/" PART "'", path, it.elsewhere, it.elsewhere, result.name);
    assert_int_equal(system(command), 0);
    exchange = (struct exchange){PART, it.job, it.aside, it.elsewhere};
    assert_ok(gs_checkpoint_load(&f->state, path, &f->spec));
    assert_null(exchange.before);
    assert_true(gs_digest_equal(saved, gs_trainer_state_digest(&f->state)));
    free(path);
    release_lure(&it);
}

static unsigned mode_of(const char *directory, const char *name) {
    struct stat facts;
    char *path = join(directory, name);
    assert_int_equal(lstat(path, &facts), 0);
    free(path);
    return facts.st_mode & 07777;
}

static void weights_are_their_owners_unless_the_place_is_shared_with_its_group(void **state) {
    fixture *f = *state;
    static const struct {
        unsigned root, directory, part, manifest;
    } rows[] = {{0755, 0755, 0600, 0644}, {02770, 02770, 0640, 0644}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *root = join(f->dir, i ? "shared" : "own"), *job = join(root, "job");
        mode_t usual = umask(022);
        assert_int_equal(mkdir(root, 0700), 0);
        assert_int_equal(chmod(root, rows[i].root), 0);
        gs_checkpoint_result result = save(f, job);
        umask(usual);
        assert_ok(result.status);
        char *path = join(job, result.name);
        assert_int_equal(mode_of(root, "job"), rows[i].directory);
        assert_int_equal(mode_of(job, result.name), rows[i].directory);
        assert_int_equal(mode_of(path, PART), rows[i].part);
        assert_int_equal(mode_of(path, "MANIFEST.json"), rows[i].manifest);
        free(path);
        free(job);
        free(root);
    }
}

// In a process of that user, who is in these two groups alone.
static int run_as(uid_t user, gid_t group, gid_t other, int (*body)(fixture *f, const char *path), fixture *f, const char *path) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        umask(0007);
        if (setgroups(1, &other) != 0 || setgid(group) != 0 || setuid(user) != 0) _exit(100);
        _exit(body(f, path));
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 200;
}

static int save_part(fixture *f, const char *job) {
    gs_checkpoint_options options = {.directory = job,
                                     .job = "j-000000000001",
                                     .cluster = "c-home",
                                     .spec = &f->spec,
                                     .request = {.reason = "periodic", .world_size = 2, .num_parts = 2, .generation = 1}};
    for (int part = 0; part < 2; part++) {
        gs_checkpoint_result result;
        options.request.part = part;
        if (gs_checkpoint_save(&result, &f->snapshot, &options).code) return 1;
    }
    return 0;
}

// As a coordinator does: the manifest, and a look at each byte.
static int commit_and_read(fixture *f, const char *path) {
    (void)f;
    gs_json *manifest = NULL;
    gs_checkpoint_reader *reader;
    uint64_t bytes;
    if (gs_checkpoint_commit(&manifest, &bytes, path).code) return 1;
    gs_json_release(manifest);
    if (gs_checkpoint_reader_open(&reader, path, 2).code) return 2;
    gs_checkpoint_reader_close(reader);
    return 0;
}

static int load_as_trainer(fixture *f, const char *path) {
    return gs_checkpoint_load(&f->state, path, &f->spec).code ? 1 : 0;
}

static int remove_as_coordinator(fixture *f, const char *path) {
    (void)f;
    char command[4200];
    snprintf(command, sizeof command, "rm -r '%s'", path);
    return system(command) ? 1 : 0;
}

// A trainer's user, and a coordinator's that is in the trainers' group.
static void two_users_save_verify_load_and_remove_in_a_shared_place(void **state) {
    enum { TRAINER = 54321, COORDINATOR = 54322 };
    fixture *f = *state;
    if (geteuid() != 0) {
        print_message("skipped: other users are root's to be\n");
        skip();
    }
    if (!test_device_is_host()) {
        print_message("skipped: what fork makes of this process has no device to load to\n");
        skip();
    }
    char *root = join(f->dir, "shared"), *job = join(root, "job");
    assert_int_equal(chmod(f->dir, 0711), 0);
    assert_int_equal(mkdir(root, 0700), 0);
    assert_int_equal(chown(root, COORDINATOR, TRAINER), 0);
    assert_int_equal(chmod(root, 02770), 0);
    assert_int_equal(run_as(TRAINER, TRAINER, TRAINER, save_part, f, job), 0);
    gs_checkpoint_options options = {.job = "j-000000000001",
                                     .request = {.reason = "periodic", .world_size = 2, .num_parts = 2, .generation = 1}};
    gs_checkpoint_result known = gs_checkpoint_announce(&f->snapshot.position, &options);
    char *path = join(job, known.name);
    assert_int_equal(run_as(COORDINATOR, COORDINATOR, TRAINER, commit_and_read, f, path), 0);
    // What the coordinator has written there the trainer reads.
    assert_int_equal(run_as(TRAINER, TRAINER, TRAINER, load_as_trainer, f, path), 0);
    // A third user has no part in it.
    assert_int_not_equal(run_as(54323, 54323, 54323, load_as_trainer, f, path), 0);
    assert_int_equal(run_as(COORDINATOR, COORDINATOR, TRAINER, remove_as_coordinator, f, job), 0);
    free(path);
    free(job);
    free(root);
}

static void refuse_with(fixture *f, const char *from, const char *to, const char *named) {
    gs_checkpoint_result result = save(f, f->dir);
    char *path = join(f->dir, result.name), text[sizeof mlp_spec + 32];
    const char *at = strstr(mlp_spec, from);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - mlp_spec), mlp_spec, to, at + strlen(from));
    gs_job_spec other;
    gs_trainer_state fresh;
    decode_spec(&other, text);
    assert_ok(gs_trainer_state_init(&fresh, &other, f->device));
    gs_digest before = gs_trainer_state_digest(&fresh);
    gs_status status = gs_checkpoint_load(&fresh, path, &other);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    if (!strstr(status.message, named)) fail_msg("%s does not name %s", status.message, named);
    assert_true(gs_digest_equal(before, gs_trainer_state_digest(&fresh)));
    gs_trainer_state_release(&fresh);
    free(path);
}

static void another_learning_rate_is_refused_by_name(void **state) {
    refuse_with(*state, "0.01", "0.02", "/optimizer/lr");
}

static void another_model_is_refused_by_name(void **state) {
    refuse_with(*state, "30,20,4", "30,21,4", "/model/mlp/dims");
}

// Checkpoints of a version that did not have a setting are those of its default.
static void settings_that_a_checkpoint_lacks_were_the_default(void **state) {
    fixture *f = *state;
    gs_json *ours = gs_manifest_spec(&f->spec), *theirs = gs_json_copy(ours);
    gs_json_remove((gs_json *)(uintptr_t)gs_json_get(theirs, "optimizer"), "zero_grad");
    gs_json_remove((gs_json *)(uintptr_t)gs_json_get(theirs, "reducer"), "wire_dtype");
    assert_ok(gs_manifest_spec_compare(ours, theirs));
    gs_json_set_string((gs_json *)(uintptr_t)gs_json_get(ours, "optimizer"), "zero_grad", "zero");
    gs_status status = gs_manifest_spec_compare(ours, theirs);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    assert_non_null(strstr(status.message, "/optimizer/zero_grad"));
    gs_json_release(ours);
    gs_json_release(theirs);
}

static void another_target_is_accepted(void **state) {
    fixture *f = *state;
    gs_checkpoint_result result = save(f, f->dir);
    char *path = join(f->dir, result.name);
    f->spec.steps.target = 1000;
    f->spec.world.max = 1;
    assert_ok(gs_checkpoint_load(&f->state, path, &f->spec));
    free(path);
}

static size_t count_entries(const char *path) {
    char command[4200];
    unsigned count = 0;
    snprintf(command, sizeof command, "find '%s' -mindepth 1 | wc -l", path);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    assert_int_equal(fscanf(pipe, "%u", &count), 1);
    pclose(pipe);
    return count;
}

static void a_full_disk_is_said_and_leaves_nothing_behind(void **state) {
    fixture *f = *state;
    if (mount("none", f->dir, "tmpfs", 0, "size=12k") < 0) {
        print_message("skipped: no tmpfs can be mounted here (%s)\n", strerror(errno));
        skip();
    }
    gs_checkpoint_result result = save(f, f->dir);
    size_t left = count_entries(f->dir);
    umount(f->dir);
    assert_int_equal(result.status.code, GS_RESOURCE_EXHAUSTED);
    assert_string_equal(result.cause, "space");
    assert_int_equal(left, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(equal_states_of_two_jobs_have_equal_digests),
        TEST(what_is_saved_comes_back_bit_for_bit),
        cmocka_unit_test(fp16_keeps_masters_and_loss_scale),
        TEST(a_snapshot_restores_what_it_took),
        TEST(a_changed_byte_anywhere_is_found_and_nothing_is_loaded),
        TEST(a_short_part_is_data_loss),
        TEST(a_directory_without_manifest_is_no_checkpoint),
        TEST(nothing_is_saved_or_loaded_behind_a_link),
        TEST(weights_are_their_owners_unless_the_place_is_shared_with_its_group),
        TEST(two_users_save_verify_load_and_remove_in_a_shared_place),
        TEST(a_job_that_becomes_a_link_is_not_saved_behind_it),
        TEST(a_checkpoint_that_becomes_a_link_is_not_saved_behind_it),
        TEST(nothing_is_loaded_behind_a_link_that_comes_meanwhile),
        TEST(another_learning_rate_is_refused_by_name),
        TEST(another_model_is_refused_by_name),
        TEST(settings_that_a_checkpoint_lacks_were_the_default),
        TEST(another_target_is_accepted),
        TEST(a_full_disk_is_said_and_leaves_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
