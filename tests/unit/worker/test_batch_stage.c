#include "worker/pass/batch_stage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/asserts.h"
#include "tests/support/device_memory.h"

// More than the stage keeps at once.
#define NUM_BATCHES 13

static gs_data_loader *open_loader(const char *model) {
    char text[600];
    gs_json *json;
    gs_field_errors errors = {0};
    gs_job_spec *spec = calloc(1, sizeof *spec);
    assert_non_null(spec);
    snprintf(text, sizeof text, "{\"name\":\"t\",\"model\":{%s},\"steps\":{\"target\":1},"
             "\"data\":{\"micro_batch\":3}}", model);
    assert_ok(gs_json_parse(&json, text, strlen(text)));
    assert_ok(gs_job_spec_decode(spec, json, &errors));
    gs_json_release(json);
    gs_data_loader *loader;
    assert_ok(gs_data_loader_open(
        &loader, &(gs_data_loader_options){.spec = spec,
                                           .data_root = ".",
                                           .shards = {.num_shards = 1, .world_size = 1}}));
    free(spec);
    return loader;
}

static void check_memory(gs_device *device, const void *staged, const void *wanted, size_t bytes) {
    char *found = malloc(bytes);
    assert_non_null(found);
    device_memory_read(device, found, staged, bytes);
    assert_memory_equal(found, wanted, bytes);
    free(found);
}

// The same batches, one after the other, as a loader of the same data gives them out.
static void check_batches(const char *model) {
    gs_device *device = test_device_open(1);
    gs_data_loader *plain = open_loader(model), *staged = open_loader(model);
    gs_batch largest = gs_data_loader_largest(staged), first = {0};
    gs_batch_stage *stage;
    assert_ok(gs_batch_stage_create(&stage, device, &largest));
    assert_int_equal(stage == NULL, test_device_is_host());
    for (int i = 0; i < NUM_BATCHES; i++) {
        gs_batch wanted, batch;
        gs_deadline deadline = gs_deadline_in_seconds(60);
        assert_ok(gs_data_loader_next(plain, &wanted, deadline));
        assert_ok(gs_batch_stage_next(stage, &batch, staged, deadline));
        assert_int_equal(batch.rows, 3);
        check_memory(device, batch.targets, wanted.targets,
                     batch.rows * batch.positions * sizeof(int32_t));
        if (wanted.features)
            check_memory(device, batch.features, wanted.features,
                         batch.rows * batch.row_features * sizeof(float));
        if (wanted.tokens) {
            size_t bytes = batch.rows * batch.positions * sizeof(int32_t);
            check_memory(device, batch.tokens, wanted.tokens, bytes);
            assert_memory_equal(gs_batch_stage_host_tokens(stage, &batch), wanted.tokens, bytes);
        }
        if (i == 0) first = batch;
        // A graph of a pass finds each batch where it found the first.
        if (stage) {
            assert_ptr_equal(batch.targets, first.targets);
            assert_ptr_equal(batch.tokens, first.tokens);
            assert_ptr_equal(batch.features, first.features);
        }
    }
    gs_batch_stage_destroy(stage);
    gs_data_loader_close(plain);
    gs_data_loader_close(staged);
    test_device_close(device);
}

static void tokens_arrive_as_the_loader_has_them(void **state) {
    (void)state;
    check_batches("\"kind\":\"gpt2\"");
}

static void features_arrive_as_the_loader_has_them(void **state) {
    (void)state;
    check_batches("\"kind\":\"mlp\",\"mlp\":{\"dims\":[12,8,3]}");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_arrive_as_the_loader_has_them),
        cmocka_unit_test(features_arrive_as_the_loader_has_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
