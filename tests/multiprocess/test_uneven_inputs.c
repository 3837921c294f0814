// Data dealt to ranks in parts of different sizes, through the trainer: ranks are the same bits
// after every step in all three modes, a stop and a resume change nothing, and a rank that dies
// while it only shadows costs no step. And batch norm over all ranks: the same training for every
// world size.
#include <arpa/inet.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/random.h"
#include "rpc/json/json.h"
#include "rpc/json/sealed_json.h"
#include "tests/support/asserts.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_dir.h"
#include "tests/support/trainer_rank.h"
#include "worker/checkpoint/checkpoint.h"

#define WORLD 3
#define MOST_WORLD 4

static void write_bytes(const char *dir, const char *name, const void *data, size_t bytes) {
    char path[600];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

// Files of 10, 21 and 5 samples of 8 tokens: with batches of 2 the ranks have 5, 11 and 3 steps.
static void write_texts(const char *dir) {
    static const struct {
        const char *name;
        size_t samples;
    } files[] = {{"a.txt", 10}, {"b.txt", 21}, {"c.txt", 5}};
    for (size_t f = 0; f < 3; f++) {
        unsigned char text[256];
        size_t bytes = files[f].samples * 8 + 1;
        for (size_t i = 0; i < bytes; i++) text[i] = (unsigned char)('a' + (i * (f + 3)) % 26);
        write_bytes(dir, files[f].name, text, bytes);
    }
}

// 60 images of 20 pixels in 5 classes.
static void write_images(const char *dir) {
    enum { IMAGES = 60, PIXELS = 20 };
    unsigned char images[16 + IMAGES * PIXELS] = {0, 0, 8, 3}, labels[8 + IMAGES] = {0, 0, 8, 1};
    const uint32_t sizes[3] = {htonl(IMAGES), htonl(4), htonl(5)};
    gs_random_key key = {.seed = 5, .stream = 9};
    memcpy(images + 4, sizes, sizeof sizes);
    memcpy(labels + 4, sizes, sizeof sizes[0]);
    for (size_t i = 0; i < IMAGES; i++) {
        labels[8 + i] = (unsigned char)(i % 5);
        for (size_t p = 0; p < PIXELS; p++)
            images[16 + i * PIXELS + p] = (unsigned char)(gs_random_u64(key, i * PIXELS + p) % 200 +
                                                          (p % 5 == i % 5 ? 50u : 0u));
    }
    write_bytes(dir, "images", images, sizeof images);
    write_bytes(dir, "labels", labels, sizeof labels);
}

static char *make_text_spec(const char *uneven, int steps) {
    char *text = NULL;
    if (asprintf(&text,
                 "{\"name\":\"uneven\",\"world\":{\"min\":3,\"max\":3},"
                 "\"model\":{\"kind\":\"gpt2\",\"gpt2\":{\"layers\":1,\"heads\":2,\"channels\":16,"
                 "\"context\":8,\"vocab\":256}},"
                 "\"data\":{\"kind\":\"bytes\",\"train\":[\"*.txt\"],\"micro_batch\":2,"
                 "\"split\":\"by_rank\",%s},"
                 "\"optimizer\":{\"kind\":\"adamw\",\"lr\":0.003,\"grad_clip_norm\":1},"
                 "\"reducer\":{\"first_bucket_bytes\":1024,\"bucket_cap_bytes\":8192,"
                 "\"timeout_seconds\":20},\"steps\":{\"target\":%d}}",
                 uneven, steps) < 0)
        abort();
    return text;
}

// Four logical shards on three ranks: the last one's steps take twice as many samples, and its
// third step fills one pass of two.
static char *make_image_spec(const char *buffers, int steps) {
    char *text = NULL;
    if (asprintf(&text,
                 "{\"name\":\"uneven\",\"world\":{\"min\":3,\"max\":3},\"logical_shards\":4,"
                 "\"model\":{\"kind\":\"mlp\",\"mlp\":{\"dims\":[20,24,16,5]}},"
                 "\"data\":{\"kind\":\"idx\",\"train\":[\"images\"],\"train_labels\":\"labels\","
                 "\"micro_batch\":4,\"split\":\"by_rank\",\"uneven_inputs\":\"join\"},"
                 "\"optimizer\":{\"kind\":\"sgd\",\"lr\":0.05,\"momentum\":0.9},"
                 "\"reducer\":{\"first_bucket_bytes\":512,\"bucket_cap_bytes\":2048,"
                 "\"buffers\":\"%s\",\"op\":\"sample_mean\"},\"steps\":{\"target\":%d}}",
                 buffers, steps) < 0)
        abort();
    return text;
}

static void read_same(gs_digest digests[TRAINER_RANK_MAX_STEPS], const char *dir, int world_size) {
    assert_ok(trainer_rank_read_same(digests, dir, world_size));
}

static void train(const char *dir, const char *spec, int world_size, const char *resume) {
    char *arg = trainer_rank_arg(spec, dir, resume);
    gs_status status = gs_ranks_run("train", world_size, arg, gs_deadline_in_seconds(100));
    free(arg);
    assert_ok(status);
}

static void train_texts(gs_digest digests[TRAINER_RANK_MAX_STEPS], const char *uneven, int steps) {
    char *spec = make_text_spec(uneven, steps), *dir = gs_temp_dir_make();
    write_texts(dir);
    train(dir, spec, WORLD, NULL);
    read_same(digests, dir, WORLD);
    gs_temp_dir_remove(dir);
    free(spec);
}

static void ranks_are_the_same_bits_after_every_step_in_every_mode(void **state) {
    (void)state;
    static const char *const modes[] = {"\"uneven_inputs\":\"even\"", "\"uneven_inputs\":\"join\"",
                                        "\"uneven_inputs\":\"join\",\"join_divisor\":\"active\""};
    gs_digest digests[3][TRAINER_RANK_MAX_STEPS];
    for (size_t m = 0; m < 3; m++) {
        train_texts(digests[m], modes[m], 25);
        assert_int_equal(trainer_rank_last_step(digests[m]), 25);
    }
    // All have data in the first two steps; in the third the smallest part has one row left.
    assert_true(gs_digest_equal(digests[1][3], digests[2][3]));
    assert_false(gs_digest_equal(digests[1][4], digests[2][4]));
    assert_false(gs_digest_equal(digests[0][25], digests[1][25]));
}

static void train_until_data_ends(const char *dir, const char *spec, const char *resume) {
    char *arg = trainer_rank_arg(spec, dir, resume);
    gs_ranks *ranks;
    gs_status statuses[WORLD];
    assert_ok(gs_ranks_start(&ranks, "train", WORLD, arg, NULL));
    assert_ok(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(100)));
    for (int rank = 0; rank < WORLD; rank++) {
        assert_ok(statuses[rank]);
        assert_string_equal(gs_ranks_note(ranks, rank), "end data_ended 3");
    }
    gs_ranks_destroy(ranks);
    free(arg);
}

// A rank that is lost while all end makes them start again, from where nothing is left to do.
static void job_that_stops_ends_on_all_ranks_when_the_first_part_is_read(void **state) {
    (void)state;
    char *spec = make_text_spec("\"uneven_inputs\":\"stop\"", 50), *dir = gs_temp_dir_make();
    gs_digest digests[TRAINER_RANK_MAX_STEPS];
    write_texts(dir);
    train_until_data_ends(dir, spec, NULL);
    read_same(digests, dir, WORLD);
    assert_int_equal(trainer_rank_last_step(digests), 3);
    char *checkpoint = trainer_rank_checkpoint(dir);
    assert_non_null(checkpoint);
    train_until_data_ends(dir, spec, checkpoint);
    gs_temp_dir_remove(dir);
    free(checkpoint);
    free(spec);
}

static void read_params_digest(char out[GS_DIGEST_TEXT_LEN], const char *dir) {
    char path[700], *checkpoint = trainer_rank_checkpoint(dir);
    gs_json *manifest;
    if (!checkpoint) fail_msg("there is no checkpoint: ranks ended with other states");
    snprintf(path, sizeof path, "%s/MANIFEST.json", checkpoint);
    assert_ok(gs_sealed_json_read(&manifest, path));
    snprintf(out, GS_DIGEST_TEXT_LEN, "%s", gs_json_string_or(manifest, "params_digest", ""));
    gs_json_release(manifest);
    free(checkpoint);
}

// A job without a record, for which no step waits: parameters of the last one arrive while the next begins.
typedef struct quiet_job {
    const char *uneven, *reducer;
    int channels, target;
} quiet_job;

static void train_quiet_texts(char digest[GS_DIGEST_TEXT_LEN], const quiet_job *of,
                              const char *reducer) {
    char *arg, *dir = gs_temp_dir_make();
    if (asprintf(&arg,
                 "{\"dir\":\"%s\",\"quiet\":true,\"device\":\"cpu\",\"spec\":{\"name\":\"quiet\","
                 "\"world\":{\"min\":3,\"max\":3},\"logical_shards\":3,"
                 "\"model\":{\"kind\":\"gpt2\",\"gpt2\":{\"layers\":1,\"heads\":2,"
                 "\"channels\":%d,\"context\":8,\"vocab\":256}},"
                 "\"data\":{\"kind\":\"bytes\",\"train\":[\"*.txt\"],\"micro_batch\":2,"
                 "\"split\":\"by_rank\",%s},"
                 "\"optimizer\":{\"kind\":\"adamw\",\"lr\":0.003},"
                 "\"reducer\":{\"bucket_cap_bytes\":16384%s},\"steps\":{\"target\":%d}}}",
                 dir, of->channels, of->uneven, reducer, of->target) < 0)
        abort();
    write_texts(dir);
    assert_ok(gs_ranks_run("train", WORLD, arg, gs_deadline_in_seconds(100)));
    read_params_digest(digest, dir);
    gs_temp_dir_remove(dir);
    free(arg);
}

// A rank has no data, to the end of the run or of an epoch, while parameters are on their way: they are here before
// anybody evaluates, saves, compares or changes them.
static void sharded_jobs_of_uneven_parts_have_the_bits_of_whole_updates(void **state) {
    (void)state;
    static const quiet_job jobs[] = {
        {"\"uneven_inputs\":\"stop\"", ",\"sharding\":\"optimizer\"", 256, 50},
        {"\"uneven_inputs\":\"join\"", ",\"sharding\":\"optimizer\",\"partition\":\"oss\"", 64, 24},
        {"\"uneven_inputs\":\"join\",\"join_divisor\":\"active\"", ",\"sharding\":\"gradients\"", 64,
         12},
        {"\"uneven_inputs\":\"join\"",
         ",\"sharding\":\"optimizer\",\"zero_overlap\":\"interleaved\"", 128, 12},
    };
    for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i++) {
        char whole[GS_DIGEST_TEXT_LEN], parts[GS_DIGEST_TEXT_LEN];
        train_quiet_texts(whole, &jobs[i], "");
        train_quiet_texts(parts, &jobs[i], jobs[i].reducer);
        if (strcmp(whole, parts)) fail_msg("%s%s: other bits", jobs[i].uneven, jobs[i].reducer);
    }
}

// An epoch of 11 steps is each of 36 samples of 8 tokens once; ranks 0 and 2 only shadow its end.
static void every_rank_counts_the_tokens_of_all(void **state) {
    (void)state;
    char *spec = make_text_spec("\"uneven_inputs\":\"join\"", 11), *dir = gs_temp_dir_make();
    write_texts(dir);
    train(dir, spec, WORLD, NULL);
    for (int rank = 0; rank < WORLD; rank++) {
        trainer_rank_report report;
        assert_true(trainer_rank_read_report(&report, dir, rank));
        assert_int_equal(report.tokens, 36 * 8);
    }
    gs_temp_dir_remove(dir);
    free(spec);
}

static void resume_while_ranks_shadow_has_the_same_bits(void **state) {
    (void)state;
    gs_digest whole[TRAINER_RANK_MAX_STEPS], resumed[TRAINER_RANK_MAX_STEPS];
    train_texts(whole, "\"uneven_inputs\":\"join\"", 25);
    char *first = make_text_spec("\"uneven_inputs\":\"join\"", 7);
    char *rest = make_text_spec("\"uneven_inputs\":\"join\"", 25), *dir = gs_temp_dir_make();
    write_texts(dir);
    train(dir, first, WORLD, NULL);
    char *checkpoint = trainer_rank_checkpoint(dir), *other = gs_temp_dir_make();
    assert_non_null(checkpoint);
    write_texts(other);
    train(other, rest, WORLD, checkpoint);
    read_same(resumed, other, WORLD);
    for (int step = 8; step <= 25; step++)
        if (!gs_digest_equal(whole[step], resumed[step])) fail_msg("step %d differs", step);
    gs_temp_dir_remove(dir);
    gs_temp_dir_remove(other);
    free(checkpoint);
    free(first);
    free(rest);
}

// Rank 2 has no data from its fourth step on, and dies in the sixth: with its zeros under way the
// others may complete that step (rule F2), or undo it, but alike.
static void rank_that_dies_as_a_shadow_costs_no_step(void **state) {
    (void)state;
#ifndef GRADSYNC_FAILPOINTS
    skip();
#endif
    gs_digest whole[TRAINER_RANK_MAX_STEPS], held[TRAINER_RANK_MAX_STEPS];
    train_texts(whole, "\"uneven_inputs\":\"join\"", 12);
    char *spec = make_text_spec("\"uneven_inputs\":\"join\"", 12), *dir = gs_temp_dir_make();
    char *arg = trainer_rank_arg(spec, dir, NULL), problem[160];
    const char *environment[] = {"GRADSYNC_FAILPOINTS=reducer.finish#2=kill@6", NULL};
    gs_ranks *ranks;
    gs_status statuses[WORLD];
    int last[2];
    write_texts(dir);
    assert_ok(gs_ranks_start(&ranks, "train", WORLD, arg, environment));
    assert_ok(gs_ranks_wait_note(ranks, 0, "settling", gs_deadline_in_seconds(60)));
    trainer_rank_declare_dead(dir, 2);
    assert_ok(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(60)));
    for (int rank = 0; rank < 2; rank++) {
        assert_ok(statuses[rank]);
        assert_int_equal(strncmp(gs_ranks_note(ranks, rank), "end aborted", 11), 0);
        if (!trainer_rank_read_record(held, dir, rank, problem)) fail_msg("%s", problem);
        last[rank] = (int)trainer_rank_last_step(held);
        for (int step = 1; step <= last[rank]; step++)
            assert_true(gs_digest_equal(held[step], whole[step]));
    }
    gs_ranks_destroy(ranks);
    assert_int_equal(last[0], last[1]);
    assert_true(last[0] == 5 || last[0] == 6);
    char *checkpoint = trainer_rank_checkpoint(dir), *other = gs_temp_dir_make();
    write_texts(other);
    train(other, spec, WORLD, checkpoint);
    read_same(held, other, WORLD);
    for (int step = last[0] + 1; step <= 12; step++)
        assert_true(gs_digest_equal(held[step], whole[step]));
    gs_temp_dir_remove(other);
    gs_temp_dir_remove(dir);
    free(checkpoint);
    free(arg);
    free(spec);
}

static void parts_are_never_dealt_to_another_world(void **state) {
    (void)state;
    char *spec = make_text_spec("\"uneven_inputs\":\"join\"", 5), *dir = gs_temp_dir_make();
    char *arg = trainer_rank_arg(spec, dir, NULL);
    write_texts(dir);
    gs_status status = gs_ranks_run("train", 2, arg, gs_deadline_in_seconds(60));
    assert_int_equal(status.code, GS_FAILED_PRECONDITION);
    assert_non_null(strstr(status.message, "dealt to 3 ranks, not to 2"));

    // Nor by a checkpoint of three ranks that two take up; everything else is the same.
    train(dir, spec, WORLD, NULL);
    char *checkpoint = trainer_rank_checkpoint(dir), *two = NULL;
    size_t head = strcspn(spec, "}") + 1;  // up to the world's end
    if (asprintf(&two, "{\"name\":\"two\",\"world\":{\"min\":2,\"max\":2},\"logical_shards\":3%s",
                 spec + head) < 0)
        abort();
    free(arg);
    arg = trainer_rank_arg(two, dir, checkpoint);
    status = gs_ranks_run("train", 2, arg, gs_deadline_in_seconds(60));
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    assert_non_null(strstr(status.message, "data/ranks"));
    gs_temp_dir_remove(dir);
    free(checkpoint);
    free(two);
    free(arg);
    free(spec);
}

static void buffers_of_uneven_ranks_are_the_same_bits(void **state) {
    (void)state;
    static const char *const policies[] = {"broadcast", "average"};
    gs_digest digests[2][TRAINER_RANK_MAX_STEPS];
    for (size_t p = 0; p < 2; p++) {
        char *spec = make_image_spec(policies[p], 12), *dir = gs_temp_dir_make();
        write_images(dir);
        train(dir, spec, WORLD, NULL);
        read_same(digests[p], dir, WORLD);
        assert_int_equal(trainer_rank_last_step(digests[p]), 12);
        gs_temp_dir_remove(dir);
        free(spec);
    }
    assert_false(gs_digest_equal(digests[0][1], digests[1][1]));
}

static void ranks_keep_buffers_of_their_own_until_an_epoch_ends(void **state) {
    (void)state;
    char *spec = make_image_spec("none", 12), *dir = gs_temp_dir_make(), problem[160];
    gs_digest held[WORLD][TRAINER_RANK_MAX_STEPS];
    write_images(dir);
    train(dir, spec, WORLD, NULL);
    for (int rank = 0; rank < WORLD; rank++) {
        if (!trainer_rank_read_record(held[rank], dir, rank, problem)) fail_msg("%s", problem);
        assert_int_equal(trainer_rank_last_step(held[rank]), 12);
        // An epoch has 5 steps.
        for (int step = 1; rank && step <= 12; step++)
            assert_int_equal(gs_digest_equal(held[rank][step], held[0][step]), step % 5 == 0);
    }
    gs_temp_dir_remove(dir);
    free(spec);
}

// ---- batch norm over all ranks

static char *make_norm_spec(const char *norm) {
    char *text = NULL;
    if (asprintf(
            &text,
            "{\"name\":\"norm\",\"world\":{\"min\":1,\"max\":4},\"logical_shards\":4,"
            "\"model\":{\"kind\":\"mlp\",\"mlp\":{\"dims\":[20,24,16,5],\"batch_norm\":\"%s\"}},"
            "\"data\":{\"kind\":\"synthetic\",\"micro_batch\":3,\"global_batch\":24},"
            "\"optimizer\":{\"kind\":\"sgd\",\"lr\":0.05,\"momentum\":0.9},"
            "\"reducer\":{\"first_bucket_bytes\":512,\"bucket_cap_bytes\":2048},"
            "\"steps\":{\"target\":10}}",
            norm) < 0)
        abort();
    return text;
}

static gs_job_spec *decode(const char *text) {
    gs_job_spec *spec = calloc(1, sizeof *spec);
    gs_field_errors errors = {0};
    gs_json *json;
    assert_non_null(spec);
    assert_ok(gs_json_parse(&json, text, strlen(text)));
    gs_status status = gs_job_spec_decode(spec, json, &errors);
    if (status.code) fail_msg("%s: %s", errors.items[0].pointer, errors.items[0].message);
    gs_json_release(json);
    return spec;
}

// What `world_size` ranks end with after 10 steps: parameters, optimizer, buffers. Returns the loss
// of the last one.
static double train_norm(gs_trainer_state *end, gs_device *device, const gs_job_spec *spec,
                         const char *text, int world_size) {
    trainer_rank_report report;
    gs_digest digests[TRAINER_RANK_MAX_STEPS];
    char *dir = gs_temp_dir_make();
    train(dir, text, world_size, NULL);
    read_same(digests, dir, world_size);
    char *checkpoint = trainer_rank_checkpoint(dir);
    assert_non_null(checkpoint);
    assert_ok(gs_trainer_state_init(end, spec, device));
    assert_ok(gs_checkpoint_load(end, checkpoint, spec));
    assert_int_equal(end->position.step, 10);
    assert_true(trainer_rank_read_report(&report, dir, 0));
    gs_temp_dir_remove(dir);
    free(checkpoint);
    return report.loss;
}

// The largest distance of any parameter or buffer, relative to the largest value of its tensor.
static double distance_between(const gs_trainer_state *a, const gs_trainer_state *b) {
    double worst = 0;
    for (size_t t = 0; t < a->num_tensors; t++) {
        const float *x = gs_trainer_state_data(a, t), *y = gs_trainer_state_data(b, t);
        size_t count = a->tensors[t].bytes / sizeof(float);
        double apart = 0, largest = 1e-3;
        if (a->tensors[t].dtype != GS_FP32) {
            assert_memory_equal(x, y, a->tensors[t].bytes);
            continue;
        }
        for (size_t i = 0; i < count; i++) {
            largest = fmax(largest, fabs((double)x[i]));
            double distance = fabs((double)x[i] - (double)y[i]);
            // fmax would leave a NaN out.
            if (!(distance <= apart)) apart = isnan(distance) ? (double)INFINITY : distance;
        }
        worst = fmax(worst, apart / largest);
    }
    return worst;
}

// To rounding: 2e-5 of each tensor's largest value and of the loss, after 10 steps of SGD with
// momentum.
static void synchronised_batch_norm_does_not_depend_on_the_world_size(void **state) {
    (void)state;
    gs_device *device;
    gs_trainer_state one, many;
    char *text = make_norm_spec("sync");
    gs_job_spec *spec = decode(text);
    assert_ok(gs_device_open(&device, "cpu", &(gs_device_options){0}));
    double loss = train_norm(&one, device, spec, text, 1);
    for (int world_size = 2; world_size <= MOST_WORLD; world_size++) {
        double apart = fabs(train_norm(&many, device, spec, text, world_size) - loss);
        double distance = distance_between(&one, &many);
        print_message("  %d ranks: %.2g apart, loss %.2g\n", world_size, distance, apart);
        assert_true(distance < 2e-5);
        assert_true(apart < 2e-5);
        gs_trainer_state_release(&many);
    }
    gs_trainer_state_release(&one);
    gs_device_close(device);
    free(spec);
    free(text);
}

// Every parameter is a bucket, in 16 bits two collectives each, and plans change on the way; ranks
// stop here and there. What is posted in another order than elsewhere ends the step with an error.
static void statistics_and_buckets_have_one_order_whatever_the_timing(void **state) {
    (void)state;
#ifndef GRADSYNC_FAILPOINTS
    skip();
#endif
    static const char *const options[] = {"\"wire_dtype\":\"bf16\"", "\"static_graph\":true"};
    const char *environment[] = {
        "GRADSYNC_FAILPOINTS=reducer.launch#0=sleep:20@5,reducer.launch#1=sleep:20@23,"
        "step.backward#2=sleep:20@3,reducer.launch#3=sleep:30@61,comm.done#1=sleep:10@90,"
        "step.forward#0=sleep:20@9,comm.done#2=sleep:10@200",
        NULL};
    for (size_t o = 0; o < 2; o++) {
        gs_digest calm[TRAINER_RANK_MAX_STEPS], held[TRAINER_RANK_MAX_STEPS];
        char *spec = NULL;
        if (asprintf(&spec,
                     "{\"name\":\"deep\",\"world\":{\"min\":4,\"max\":4},\"logical_shards\":6,"
                     "\"model\":{\"kind\":\"mlp\",\"mlp\":{\"dims\":[20,16,16,16,16,16,16,16,16,"
                     "16,16,16,16,16,16,5],\"batch_norm\":\"sync\"}},"
                     "\"data\":{\"kind\":\"synthetic\",\"micro_batch\":2,\"global_batch\":24},"
                     "\"optimizer\":{\"kind\":\"sgd\",\"lr\":0.05},"
                     "\"reducer\":{\"first_bucket_bytes\":8,\"bucket_cap_bytes\":8,"
                     "\"rebuild_after_steps\":2,%s},\"steps\":{\"target\":8}}",
                     options[o]) < 0)
            abort();
        for (int timed = 0; timed < 2; timed++) {
            char *dir = gs_temp_dir_make(), *arg = trainer_rank_arg(spec, dir, NULL);
            gs_ranks *ranks;
            gs_status statuses[4];
            assert_ok(gs_ranks_start(&ranks, "train", 4, arg, timed ? environment : NULL));
            assert_ok(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(100)));
            for (int rank = 0; rank < 4; rank++) assert_ok(statuses[rank]);
            read_same(timed ? held : calm, dir, 4);
            gs_ranks_destroy(ranks);
            gs_temp_dir_remove(dir);
            free(arg);
        }
        assert_int_equal(trainer_rank_last_step(held), 8);
        assert_memory_equal(held, calm, sizeof held);
        free(spec);
    }
}

static void local_batch_norm_trains_something_else(void **state) {
    (void)state;
    gs_device *device;
    gs_trainer_state together, alone;
    char *sync = make_norm_spec("sync"), *local = make_norm_spec("local");
    gs_job_spec *sync_spec = decode(sync), *local_spec = decode(local);
    assert_ok(gs_device_open(&device, "cpu", &(gs_device_options){0}));
    train_norm(&together, device, sync_spec, sync, 4);
    train_norm(&alone, device, local_spec, local, 4);
    assert_true(distance_between(&together, &alone) > 1e-2);
    gs_trainer_state_release(&together);
    gs_trainer_state_release(&alone);
    gs_device_close(device);
    free(sync_spec);
    free(local_spec);
    free(sync);
    free(local);
}

// Each rank's whole part is one short batch: 10, 21 and 5 rows. Weighed by samples that is the mean
// over all 36, which one rank with all of them computes too. To rounding: 2e-5 after 8 steps.
static void short_batches_weigh_by_their_samples(void **state) {
    (void)state;
    gs_device *device;
    gs_trainer_state ends[2];
    assert_ok(gs_device_open(&device, "cpu", &(gs_device_options){0}));
    for (int i = 0; i < 2; i++) {
        char *text = NULL, *dir = gs_temp_dir_make();
        gs_digest digests[TRAINER_RANK_MAX_STEPS];
        int world_size = i ? WORLD : 1;
        if (asprintf(&text,
                     "{\"name\":\"whole\",\"world\":{\"min\":%d,\"max\":%d},"
                     "\"model\":{\"kind\":\"gpt2\",\"gpt2\":{\"layers\":1,\"heads\":2,"
                     "\"channels\":16,\"context\":8,\"vocab\":256}},"
                     "\"data\":{\"kind\":\"bytes\",\"train\":[\"*.txt\"],\"micro_batch\":64,"
                     "\"split\":\"by_rank\",\"uneven_inputs\":\"join\"},"
                     "\"optimizer\":{\"kind\":\"sgd\",\"lr\":0.1,\"momentum\":0.9},"
                     "\"reducer\":{\"op\":\"sample_mean\"},\"steps\":{\"target\":8}}",
                     world_size, world_size) < 0)
            abort();
        gs_job_spec *spec = decode(text);
        write_texts(dir);
        train(dir, text, world_size, NULL);
        read_same(digests, dir, world_size);
        char *checkpoint = trainer_rank_checkpoint(dir);
        assert_non_null(checkpoint);
        assert_ok(gs_trainer_state_init(&ends[i], spec, device));
        assert_ok(gs_checkpoint_load(&ends[i], checkpoint, spec));
        gs_temp_dir_remove(dir);
        free(checkpoint);
        free(spec);
        free(text);
    }
    double distance = distance_between(&ends[0], &ends[1]);
    print_message("  %.2g apart\n", distance);
    assert_true(distance < 2e-5);
    for (int i = 0; i < 2; i++) gs_trainer_state_release(&ends[i]);
    gs_device_close(device);
}

// Between two of the statistics of a step, with buckets of it on their way.
static void rank_that_dies_between_statistics_ends_the_step_for_all(void **state) {
    (void)state;
#ifndef GRADSYNC_FAILPOINTS
    skip();
#endif
    static const char *const places[] = {"step.backward#1=kill@7", "comm.done#1=kill@60",
                                         "comm.done#1=kill@63"};
    char *spec = make_norm_spec("sync");
    gs_digest whole[TRAINER_RANK_MAX_STEPS], held[TRAINER_RANK_MAX_STEPS];
    char *dir = gs_temp_dir_make(), problem[160];
    train(dir, spec, WORLD, NULL);
    read_same(whole, dir, WORLD);
    gs_temp_dir_remove(dir);
    for (size_t p = 0; p < 3; p++) {
        char armed[96], *arg;
        snprintf(armed, sizeof armed, "GRADSYNC_FAILPOINTS=%s", places[p]);
        const char *environment[] = {armed, NULL};
        gs_ranks *ranks;
        gs_status statuses[WORLD];
        dir = gs_temp_dir_make();
        arg = trainer_rank_arg(spec, dir, NULL);
        assert_ok(gs_ranks_start(&ranks, "train", WORLD, arg, environment));
        assert_ok(gs_ranks_wait_note(ranks, 0, "settling", gs_deadline_in_seconds(60)));
        trainer_rank_declare_dead(dir, 1);
        assert_ok(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(60)));
        int64_t last[WORLD];
        for (int rank = 0; rank < WORLD; rank++) {
            if (!trainer_rank_read_record(held, dir, rank, problem)) fail_msg("%s", problem);
            last[rank] = trainer_rank_last_step(held);
            for (int64_t step = 1; step <= last[rank]; step++)
                assert_true(gs_digest_equal(held[step], whole[step]));
        }
        assert_int_equal(last[0], last[2]);
        assert_true(last[0] >= last[1] && last[0] < 10);
        gs_ranks_destroy(ranks);
        gs_temp_dir_remove(dir);
        free(arg);
    }
    free(spec);
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"train", trainer_rank_run}, {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_are_the_same_bits_after_every_step_in_every_mode),
        cmocka_unit_test(job_that_stops_ends_on_all_ranks_when_the_first_part_is_read),
        cmocka_unit_test(sharded_jobs_of_uneven_parts_have_the_bits_of_whole_updates),
        cmocka_unit_test(every_rank_counts_the_tokens_of_all),
        cmocka_unit_test(resume_while_ranks_shadow_has_the_same_bits),
        cmocka_unit_test(rank_that_dies_as_a_shadow_costs_no_step),
        cmocka_unit_test(parts_are_never_dealt_to_another_world),
        cmocka_unit_test(buffers_of_uneven_ranks_are_the_same_bits),
        cmocka_unit_test(ranks_keep_buffers_of_their_own_until_an_epoch_ends),
        cmocka_unit_test(synchronised_batch_norm_does_not_depend_on_the_world_size),
        cmocka_unit_test(statistics_and_buckets_have_one_order_whatever_the_timing),
        cmocka_unit_test(local_batch_norm_trains_something_else),
        cmocka_unit_test(short_batches_weigh_by_their_samples),
        cmocka_unit_test(rank_that_dies_between_statistics_ends_the_step_for_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
