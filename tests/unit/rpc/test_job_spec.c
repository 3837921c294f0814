#include "rpc/schema/job_spec.h"
#include "tests/support/asserts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static gs_job_spec spec;  // large; each test fills it anew
static gs_field_errors errors;

static gs_status decode(const char *text) {
    gs_json *object = NULL;
    gs_status status = gs_json_parse(&object, text, strlen(text));
    assert_string_equal(status.message, "");
    errors = (gs_field_errors){0};
    status = gs_job_spec_decode(&spec, object, &errors);
    gs_json_release(object);
    return status;
}

static void expect_ok(const char *text) {
    gs_status status = decode(text);
    if (status.code) {
        fail_msg("%s: %s %s", text, errors.items[0].pointer, errors.items[0].message);
    }
}

// `members` stand beside a valid gpt2 job.
static void expect_error(const char *members, const char *pointer, const char *code,
                         const char *message) {
    char text[1024];
    snprintf(text, sizeof text, "{\"steps\":{\"target\":9},%s%s}", members,
             strstr(members, "\"model\":") ? "" : ",\"model\":{\"kind\":\"gpt2\"}");
    gs_status status = decode(text);
    if (!status.code) fail_msg("accepted: %s", text);
    if (errors.count != 1) {
        fail_msg("%s: %d errors, second %s %s", text, errors.count, errors.items[1].pointer,
                 errors.items[1].message);
    }
    assert_string_equal(errors.items[0].pointer, pointer);
    assert_string_equal(errors.items[0].code, code);
    if (message) assert_string_equal(errors.items[0].message, message);
}

static void minimal_spec_is_complete(void **state) {
    (void)state;
    expect_ok("{\"name\":\"hello\",\"model\":{\"kind\":\"mlp\"},\"steps\":{\"target\":200}}");
    assert_string_equal(spec.name, "hello");
    assert_int_equal(spec.model.kind, GS_MODEL_MLP);
    assert_int_equal(spec.model.mlp.num_dims, 4);
    assert_int_equal(spec.world.min, 1);
    assert_int_equal(spec.world.max, 1);
    assert_int_equal(spec.logical_shards, 1);
    assert_int_equal(spec.data.kind, GS_DATA_SYNTHETIC);
    assert_int_equal(spec.data.micro_batch, 8);
    assert_int_equal(spec.data.global_batch, 8);
    assert_int_equal(spec.optimizer.kind, GS_OPTIMIZER_ADAMW);
    assert_int_equal(gs_job_spec_passes_per_shard(&spec), 1);
}

static void name_is_generated_from_the_model(void **state) {
    (void)state;
    expect_ok("{\"model\":{\"kind\":\"gpt2\"},\"steps\":{\"target\":1}}");
    assert_int_equal(strlen(spec.name), strlen("gpt2-") + 6);
    assert_memory_equal(spec.name, "gpt2-", 5);
    char first[GS_SPEC_NAME_LEN];
    strcpy(first, spec.name);
    expect_ok("{\"model\":{\"kind\":\"gpt2\"},\"steps\":{\"target\":1}}");
    assert_string_not_equal(first, spec.name);
}

static void one_bound_of_the_world_gives_the_other(void **state) {
    (void)state;
    expect_ok("{\"model\":{\"kind\":\"gpt2\"},\"steps\":{\"target\":1},\"world\":{\"min\":3}}");
    assert_int_equal(spec.world.max, 3);
    assert_int_equal(spec.logical_shards, 3);
    assert_int_equal(spec.data.global_batch, 24);
    expect_ok("{\"model\":{\"kind\":\"gpt2\"},\"steps\":{\"target\":1},\"world\":{\"max\":4}}");
    assert_int_equal(spec.world.min, 4);
    expect_ok(
        "{\"model\":{\"kind\":\"gpt2\"},\"steps\":{\"target\":1},\"world\":{\"min\":1,\"max\":4},"
        "\"data\":{\"global_batch\":64,\"micro_batch\":4}}");
    assert_int_equal(gs_job_spec_passes_per_shard(&spec), 4);
}

#define BY_RANK "\"data\":{\"split\":\"by_rank\""

static void data_of_ranks_goes_with_ranks_alone(void **state) {
    (void)state;
    expect_error("\"data\":{\"uneven_inputs\":\"join\"}", "/data/uneven_inputs", "not_applicable",
                 "all ranks have data in every step unless data.split is by_rank");
    expect_error(BY_RANK ",\"join_divisor\":\"active\"}", "/data/join_divisor", "not_applicable",
                 "only with data.uneven_inputs join");
    expect_error(BY_RANK ",\"uneven_inputs\":\"join\",\"join_divisor\":\"active\"},"
                         "\"logical_shards\":2",
                 "/data/join_divisor", "not_applicable", NULL);
    expect_error(BY_RANK "},\"world\":{\"min\":1,\"max\":2}", "/data/split", "not_applicable",
                 "parts are dealt to ranks: world.min must be world.max");
    expect_error(BY_RANK "},\"exact\":true", "/exact", "not_applicable",
                 "data.split by_rank depends on the ranks");
    expect_error(BY_RANK "},\"world\":{\"min\":1,\"max\":1,\"replicas_per_process\":2}",
                 "/world/replicas_per_process", "not_applicable",
                 "data.split by_rank deals parts to ranks, not to their replicas");
    expect_error(BY_RANK ",\"uneven_inputs\":\"join\"},\"reducer\":{\"static_graph\":true}",
                 "/reducer/static_graph", "not_applicable",
                 "a restart may begin where ranks have no data to learn it from, and passes without "
                 "rows use no parameter");
    expect_ok("{\"model\":{\"kind\":\"gpt2\"},\"steps\":{\"target\":1},\"world\":{\"max\":3},"
              BY_RANK ",\"uneven_inputs\":\"join\",\"join_divisor\":\"active\"}}");
}

#define EARLY(members) "\"optimizer\":{\"in_backward\":true" members "}"

static void updates_in_backward_cannot_wait_for_the_last_bucket(void **state) {
    (void)state;
    const char *pointer = "/optimizer/in_backward";
    expect_error(EARLY(",\"grad_clip_norm\":1"), pointer, "not_applicable",
                 "grad_clip_norm needs the norm of all gradients before the first update");
    expect_error(EARLY("") ",\"reducer\":{\"op\":\"sample_mean\"}", pointer,
                 "not_applicable", "reducer.op sample_mean is divided behind the last bucket");
    expect_error("\"model\":{\"kind\":\"mlp\",\"mlp\":{\"batch_norm\":\"sync\"}}," EARLY(""),
                 pointer, "not_applicable",
                 "batch_norm sync is a mean over samples, divided behind the last bucket");
    expect_error(EARLY("") ",\"world\":{\"replicas_per_process\":2}", pointer,
                 "not_applicable",
                 "replicas of a process read the same parameters, each in a backward of its own");
    expect_ok("{\"model\":{\"kind\":\"gpt2\"},\"steps\":{\"target\":1}," EARLY("") "}");
    assert_true(spec.optimizer.in_backward);
    assert_true(gs_job_spec_may_use_gpu(&spec));
}

#define WINDOWS(min, max)                                                                          \
    "\"reducer\":{\"sharding\":\"gradients\"},\"world\":{\"min\":" #min ",\"max\":" #max "}"
#define SHARDED(members) "\"reducer\":{\"sharding\":\"optimizer\"" members "}"

static void sharding_says_what_it_needs_whole(void **state) {
    (void)state;
    const char *pointer = "/reducer/sharding";
    expect_error("\"reducer\":{\"partition\":\"oss\"}", "/reducer/partition", "not_applicable",
                 "nothing is dealt: reducer.sharding is none");
    expect_error(SHARDED(",\"hook\":{\"kind\":\"powersgd\"}"), pointer, "not_applicable",
                 "reducer.hook: only sums, in fp32 or 16 bits, go to their owner alone");
    expect_error(SHARDED(",\"op\":\"sample_mean\",\"zero_overlap\":\"step\""),
                 "/reducer/zero_overlap", "not_applicable",
                 "reducer.op sample_mean is divided behind the last bucket");
    expect_error(SHARDED(",\"zero_overlap\":\"step\"") ",\"model\":{\"kind\":\"mlp\",\"mlp\":"
                 "{\"dims\":[4,3,2],\"batch_norm\":\"sync\"}}",
                 "/reducer/zero_overlap", "not_applicable",
                 "batch_norm sync is a mean over samples, divided behind the last bucket");
    expect_error(SHARDED("") "," EARLY(""), pointer, "not_applicable",
                 "optimizer.in_backward updates whole buckets on every rank");
    const char *as_many = "gradients: as many logical shards on each rank; every world from min to "
                          "max divides logical_shards";
    expect_error(WINDOWS(1, 3), pointer, "not_applicable", as_many);
    expect_error(WINDOWS(2, 2) ",\"logical_shards\":3", pointer, "not_applicable", as_many);
    expect_error(WINDOWS(2, 2) ",\"logical_shards\":4,\"exact\":true", pointer, "not_applicable",
                 "gradients: each pass is reduced, which exact adds up in another order");
    expect_error("\"reducer\":{\"sharding\":\"gradients\",\"static_graph\":true},"
                 "\"world\":{\"min\":2,\"max\":2},"
                 "\"data\":{\"micro_batch\":2,\"global_batch\":8}",
                 pointer, "not_applicable",
                 "gradients: each pass is reduced, of which a static graph counts the last alone");
    expect_error("\"reducer\":{\"sharding\":\"gradients\",\"partition\":\"oss\"}",
                 "/reducer/partition", "not_applicable",
                 "reducer.sharding gradients keeps an even part of each bucket; flat");
    expect_error(SHARDED(",\"rebuild_after_steps\":5"), "/reducer/rebuild_after_steps",
                 "not_applicable",
                 "reducer.sharding: who owns what follows from the plan, which stays; 0");
    expect_error(SHARDED(",\"partition\":\"oss\",\"max_buckets\":2") ",\"world\":{\"min\":3,\"max\":3}",
                 "/reducer/max_buckets", "not_applicable",
                 "reducer.partition: tensors of two owners share no bucket; as many as world.min at least");
    expect_error(SHARDED("") ",\"checkpoint\":{\"parts\":\"one\"}", "/checkpoint/parts",
                 "not_applicable",
                 "reducer.sharding: no rank has all of the optimizer state; ranks");
    expect_ok("{\"steps\":{\"target\":9},\"model\":{\"kind\":\"mlp\"}," SHARDED("") "}");
    assert_int_equal(spec.reducer.rebuild_after_steps, 0);
    assert_int_equal(spec.checkpoint.parts, GS_CHECKPOINT_PARTS_RANKS);
    assert_true(gs_job_spec_may_use_gpu(&spec));
}

#define SYNC "\"model\":{\"kind\":\"mlp\",\"mlp\":{\"batch_norm\":\"sync\"}}"

static void batch_norm_over_ranks_needs_all_of_them(void **state) {
    (void)state;
    expect_error(SYNC ",\"exact\":true", "/exact", "not_applicable",
                 "batch_norm sync adds up over ranks: equal to rounding only");
    expect_error(SYNC "," BY_RANK ",\"uneven_inputs\":\"join\"}", "/data/uneven_inputs",
                 "not_applicable",
                 "batch_norm sync takes its statistics from all ranks in every pass");
    expect_error(SYNC ",\"reducer\":{\"op\":\"sum\"}", "/reducer/op", "not_applicable", NULL);
    expect_error(SYNC ",\"world\":{\"replicas_per_process\":2}", "/world/replicas_per_process",
                 "not_applicable", NULL);
    expect_error(SYNC ",\"data\":{\"micro_batch\":1}", "/data/micro_batch", "out_of_range", NULL);
    expect_error("\"exact\":true,\"reducer\":{\"buffers\":\"average\"}", "/reducer/buffers",
                 "not_applicable", "an average over ranks depends on their number");
    expect_ok("{" SYNC ",\"steps\":{\"target\":1},\"world\":{\"min\":2,\"max\":5},"
              "\"data\":{\"micro_batch\":1}}");
    assert_int_equal(gs_job_spec_most_rows(&spec), 3);
}

static void rules_between_members_are_checked(void **state) {
    (void)state;
    expect_error("\"world\":{\"min\":4,\"max\":2}", "/world/min", "out_of_range",
                 "must be between 1 and world.max (2)");
    expect_error("\"world\":{\"max\":4},\"logical_shards\":3", "/logical_shards", "out_of_range",
                 "must be at least world.max (4)");
    expect_error("\"world\":{\"max\":2},\"data\":{\"global_batch\":24}", "/data/global_batch",
                 "out_of_range", "must be a multiple of logical_shards times micro_batch (16)");
    expect_error("\"model\":{\"kind\":\"gpt2\",\"gpt2\":{\"heads\":3}}", "/model/gpt2/heads",
                 "out_of_range", "must divide channels (128)");
    expect_error("\"model\":{\"kind\":\"mlp\",\"mlp\":{\"dims\":[10]}}", "/model/mlp/dims",
                 "out_of_range", NULL);
    expect_error("\"model\":{\"kind\":\"mlp\"},\"data\":{\"micro_batch\":1}", "/data/micro_batch",
                 "out_of_range", "must be at least 2 with batch_norm local");
    expect_error("\"model\":{\"kind\":\"mlp\",\"gpt2\":{\"heads\":2}}", "/model/gpt2",
                 "not_applicable", "model.kind is mlp");
    expect_error("\"data\":{\"kind\":\"bytes\"}", "/data/train", "missing",
                 "must be given for data of kind bytes");
    expect_error(
        "\"data\":{\"kind\":\"bytes\",\"train\":\"a\"},\"model\":{\"kind\":\"gpt2\",\"gpt2\":"
        "{\"vocab\":128}}",
        "/model/gpt2/vocab", "out_of_range", NULL);
    expect_error("\"data\":{\"kind\":\"idx\",\"train\":\"a\",\"train_labels\":\"b\"}", "/data/kind",
                 "not_applicable", "idx is for model.kind mlp");
    expect_error("\"model\":{\"kind\":\"mlp\"},\"data\":{\"kind\":\"idx\",\"train\":\"a\"}",
                 "/data/train_labels", "missing", NULL);
    expect_error("\"data\":{\"train\":\"a\"}", "/data/train", "not_applicable",
                 "data of kind synthetic reads no files");
    expect_error("\"optimizer\":{\"momentum\":0.9}", "/optimizer/momentum", "not_applicable",
                 "only for sgd");
    expect_error("\"optimizer\":{\"kind\":\"sgd\",\"nesterov\":true}", "/optimizer/nesterov",
                 "not_applicable", NULL);
    expect_error("\"optimizer\":{\"lr\":0}", "/optimizer/lr", "out_of_range", NULL);
    expect_error("\"reducer\":{\"timeout_seconds\":0}", "/reducer/timeout_seconds", "out_of_range",
                 NULL);
    expect_error("\"restart\":{\"on_worker_error\":\"rescale\"}", "/restart/on_worker_error",
                 "bad_word", NULL);
    expect_error("\"world\":{\"max\":2},\"reducer\":{\"backend\":\"self\"}", "/reducer/backend",
                 "not_applicable", NULL);
    expect_error("\"model\":{\"kind\":\"mlp\"},\"sample\":{\"tokens\":5}", "/sample/tokens",
                 "not_applicable", NULL);
    expect_error("\"exact\":true,\"model\":{\"kind\":\"mlp\"},\"reducer\":{\"buffers\":\"none\"}",
                 "/exact", "not_applicable", NULL);
}

#define GPT2 "\"model\":{\"kind\":\"gpt2\",\"gpt2\":{\"layer_drop\":0.2}}"

static void rules_of_sparse_embeddings_and_dropped_layers_are_checked(void **state) {
    (void)state;
    const char *const modes[] = {"gather", "owner", "auto"};
    for (int i = 0; i < 3; i++) {
        char text[128];
        snprintf(text, sizeof text,
                 "{\"model\":{\"kind\":\"gpt2\"},\"steps\":{\"target\":1},\"reducer\":"
                 "{\"sparse_embedding\":\"%s\"}}", modes[i]);
        expect_ok(text);
        assert_int_equal(spec.reducer.sparse_embedding, GS_SPARSE_GATHER + i);
    }
    expect_error("\"model\":{\"kind\":\"mlp\"},\"reducer\":{\"sparse_embedding\":\"auto\"}",
                 "/reducer/sparse_embedding", "not_applicable",
                 "only a gpt2 model has an embedding");
    expect_error("\"exact\":true,\"reducer\":{\"sparse_embedding\":\"owner\"}",
                 "/reducer/sparse_embedding", "not_applicable",
                 "exact: which rows are added first depends on the number of ranks");
    expect_error("\"data\":{\"split\":\"by_rank\",\"uneven_inputs\":\"join\"},\"reducer\":{\"sparse_embedding\":"
                 "\"gather\"}",
                 "/reducer/sparse_embedding", "not_applicable", NULL);
    expect_error("\"world\":{\"replicas_per_process\":2},\"reducer\":{\"sparse_embedding\":"
                 "\"gather\"}",
                 "/reducer/sparse_embedding", "not_applicable", NULL);
    expect_error(GPT2 ",\"reducer\":{\"static_graph\":true}", "/model/gpt2/layer_drop",
                 "not_applicable",
                 "reducer.static_graph promises the same parameters in every step");
    expect_error(GPT2 ",\"reducer\":{\"unused_parameters\":\"error\"}", "/model/gpt2/layer_drop",
                 "not_applicable", NULL);
}

#define FREEZE(kind, rules) "\"model\":{\"kind\":\"" kind "\",\"freeze\":[" rules "]}"

static void what_is_frozen_is_checked_by_name_and_step(void **state) {
    (void)state;
    const char *list = "/model/freeze";
    expect_error(FREEZE("mlp", "{\"params\":\"fc4.*\"}"), "/model/freeze/0/params", "no_match",
                 "no parameter has such a name; the first is fc1.weight");
    expect_error(FREEZE("gpt2", "{\"params\":\"wte.weight\"},{\"params\":\"h.[01].*\"}"),
                 "/model/freeze/1/params", "bad_pattern", NULL);
    expect_error(FREEZE("mlp", "{\"from_step\":2}"), "/model/freeze/0/params", "missing", NULL);
    expect_error(FREEZE("mlp", "{\"params\":\"*\",\"until_step\":3}"), list, "out_of_range",
                 "at step 0 no parameter is left that trains");
    expect_error(FREEZE("mlp", "{\"params\":\"*.weight\"},{\"params\":\"*.bias\",\"from_step\":7}"),
                 list, "out_of_range", "at step 7 no parameter is left that trains");
    expect_error(FREEZE("mlp", "{\"params\":\"fc1.*\",\"from_step\":4,\"until_step\":4}"),
                 "/model/freeze/0/until_step", "out_of_range", "must be above from_step (4), or 0");
    expect_error(FREEZE("mlp", "{\"params\":\"fc1.*\"}") ",\"world\":{\"replicas_per_process\":2}", list,
                 "not_applicable",
                 "world.replicas_per_process: replicas add up all gradients among themselves");
    expect_error(FREEZE("gpt2", "{\"params\":\"*.weight\",\"from_step\":2}")
                 ",\"reducer\":{\"sparse_embedding\":\"gather\"}",
                 "/model/freeze/0/params", "not_applicable",
                 "reducer.sparse_embedding: rows of wte.weight travel in every step");
    // Behind the last step nobody asks.
    expect_ok("{\"steps\":{\"target\":7}," FREEZE("mlp", "{\"params\":\"*.weight\"},"
              "{\"params\":\"*.bias\",\"from_step\":7}") "}");
    assert_int_equal(spec.model.num_freezes, 2);
    assert_string_equal(spec.model.freeze[1].params, "*.bias");
    assert_int_equal(spec.model.freeze[1].from_step, 7);
}

static void rules_of_replicas_are_checked(void **state) {
    (void)state;
    expect_ok("{\"model\":{\"kind\":\"gpt2\"},\"steps\":{\"target\":1},"
              "\"world\":{\"max\":3,\"replicas_per_process\":4}}");
    assert_int_equal(spec.logical_shards, 12);
    assert_int_equal(spec.data.global_batch, 12 * 8);
    expect_error("\"world\":{\"max\":2,\"replicas_per_process\":3},\"logical_shards\":5",
                 "/logical_shards", "out_of_range",
                 "must be at least world.max times replicas_per_process (6)");
    expect_error("\"world\":{\"replicas_per_process\":65}", "/world/replicas_per_process",
                 "out_of_range", NULL);
    expect_error("\"exact\":true,\"reducer\":{\"replica_divisor\":\"processes\"}",
                 "/reducer/replica_divisor", "not_applicable", "exact divides by logical shards");
    expect_error("\"reducer\":{\"op\":\"sample_mean\",\"replica_divisor\":\"processes\"}",
                 "/reducer/replica_divisor", "not_applicable", "processes is for reducer.op mean");
    expect_error("\"model\":{\"kind\":\"mlp\",\"mlp\":{\"batch_norm\":\"sync\"}},"
                 "\"world\":{\"replicas_per_process\":2}",
                 "/world/replicas_per_process", "not_applicable", NULL);
    expect_error("\"data\":{\"split\":\"by_rank\"},\"world\":{\"replicas_per_process\":2}",
                 "/world/replicas_per_process", "not_applicable", NULL);
}

static void rules_of_16_bits_are_checked(void **state) {
    (void)state;
    expect_error("\"optimizer\":{\"loss_scale\":{\"init\":8}}", "/optimizer/loss_scale",
                 "not_applicable", "only for model.precision fp16");
    expect_error("\"model\":{\"kind\":\"gpt2\",\"precision\":\"bf16\"},"
                 "\"optimizer\":{\"loss_scale\":{}}",
                 "/optimizer/loss_scale", "not_applicable", NULL);
    expect_error("\"model\":{\"kind\":\"gpt2\",\"precision\":\"fp16\"},"
                 "\"optimizer\":{\"loss_scale\":{\"backoff_factor\":1}}",
                 "/optimizer/loss_scale/backoff_factor", "out_of_range",
                 "must be less than 1, else an overflow stays for ever");
    expect_error("\"model\":{\"kind\":\"gpt2\",\"precision\":\"fp16\"},"
                 "\"optimizer\":{\"loss_scale\":{\"init\":8,\"min\":9}}",
                 "/optimizer/loss_scale/min", "out_of_range",
                 "must be at most optimizer.loss_scale.init");
    expect_error("\"model\":{\"kind\":\"gpt2\",\"precision\":\"fp16\"},"
                 "\"optimizer\":{\"loss_scale\":{\"hysteresis\":100}}",
                 "/optimizer/loss_scale/hysteresis", "out_of_range", "must be between 1 and 99");
    expect_error("\"exact\":true,\"reducer\":{\"wire_dtype\":\"bf16\"}", "/reducer/wire_dtype",
                 "not_applicable", NULL);
    expect_ok("{\"model\":{\"kind\":\"mlp\",\"precision\":\"fp16\"},\"steps\":{\"target\":1},"
              "\"exact\":true,\"optimizer\":{\"loss_scale\":{\"init\":1024},"
              "\"zero_grad\":\"zero\"}}");
    assert_true(spec.optimizer.loss_scale.init == 1024);
    assert_int_equal(spec.optimizer.loss_scale.growth_interval, 2000);
    assert_int_equal(spec.optimizer.zero_grad, GS_ZERO_GRAD_ZERO);
}

#define HOOK(members) "\"reducer\":{\"hook\":{" members "}"

static void rules_of_hooks_with_the_rest_are_checked(void **state) {
    (void)state;
    expect_error(HOOK("\"kind\":\"fp16\"") ",\"wire_dtype\":\"bf16\"}", "/reducer/wire_dtype",
                 "not_applicable", "short for reducer.hook.kind fp16 and bf16: give one");
    expect_error(HOOK("\"wrap\":\"fp16\"") ",\"wire_dtype\":\"fp16\"}", "/reducer/wire_dtype",
                 "not_applicable", "reducer.hook.wrap says the type");
    expect_error("\"exact\":true," HOOK("\"kind\":\"bf16\"") "}", "/reducer/hook/kind", "not_applicable",
                 "exact: what it rounds depends on the number of ranks");
    expect_error("\"exact\":true," HOOK("\"wrap\":\"bf16\"") "}", "/reducer/hook/wrap", "not_applicable",
                 NULL);
    expect_error(HOOK("\"kind\":\"fp16\",\"rank\":2") "}", "/reducer/hook/rank", "not_applicable",
                 "kind is fp16");
    expect_ok("{\"model\":{\"kind\":\"gpt2\"},\"steps\":{\"target\":1},"
              HOOK("\"kind\":\"fp16\",\"divide_after_cast\":true") "}}");
    assert_true(spec.reducer.hook.divide_after_cast);
}

static void rules_of_ranks_that_train_apart_are_checked(void **state) {
    (void)state;
    expect_error(SYNC "," HOOK("\"kind\":\"local_sgd\"") "}", "/model/mlp/batch_norm", "not_applicable",
                 "batch_norm sync is a mean over samples of all ranks, which train apart");
    expect_error("\"world\":{\"max\":2},"
                 HOOK("\"kind\":\"local_sgd\",\"group_averages\":[{\"period\":2,\"group_size\":2}]") "}",
                 "/reducer/hook/group_averages/0/group_size", "out_of_range", "must be less than world.max, 2");
    static const char *const refused[][2] = {
        {HOOK("\"kind\":\"local_sgd\"") ",\"op\":\"sample_mean\"}", "/reducer/op"},
        {HOOK("\"kind\":\"local_sgd\"") ",\"op\":\"sum\"}", "/reducer/op"},
        {HOOK("\"kind\":\"noop\"") ",\"sparse_embedding\":\"gather\"}", "/reducer/sparse_embedding"},
        {"\"world\":{\"replicas_per_process\":2}," HOOK("\"kind\":\"noop\"") "}",
         "/world/replicas_per_process"},
        {"\"optimizer\":{\"in_backward\":true}," HOOK("\"kind\":\"noop\"") "}", "/optimizer/in_backward"},
        {"\"exact\":true," HOOK("\"kind\":\"local_sgd\"") "}", "/reducer/hook/kind"},
        {"\"model\":{\"kind\":\"gpt2\",\"precision\":\"bf16\"}," HOOK("\"kind\":\"noop\"") "}", "/model/precision"},
        {HOOK("\"kind\":\"noop\",\"period\":4") "}", "/reducer/hook/period"},
        {HOOK("\"kind\":\"local_sgd\",\"wrap\":\"fp16\"") "}", "/reducer/hook/wrap"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        expect_error(refused[i][0], refused[i][1], "not_applicable", NULL);
    expect_ok("{\"model\":{\"kind\":\"gpt2\"},\"steps\":{\"target\":1},"
              HOOK("\"kind\":\"local_sgd\",\"period\":8") "}}");
    assert_true(gs_job_spec_may_use_gpu(&spec));
    assert_int_equal(spec.reducer.hook.start_step, 1000);
    assert_int_equal(spec.reducer.hook.period, 8);
    assert_int_equal(spec.reducer.hook.local_ranks, 0);
}

static void residuals_are_saved_by_each_rank(void **state) {
    (void)state;
    expect_ok("{\"model\":{\"kind\":\"gpt2\"},\"steps\":{\"target\":1}," HOOK("\"kind\":\"powersgd\"") "}}");
    assert_int_equal(spec.checkpoint.parts, GS_CHECKPOINT_PARTS_RANKS);
    assert_int_equal(spec.reducer.hook.start_step, 1000);
    expect_ok("{\"model\":{\"kind\":\"gpt2\"},\"steps\":{\"target\":1},"
              HOOK("\"kind\":\"powersgd\",\"error_feedback\":false") ",\"op\":\"sample_mean\"}}");
    assert_int_equal(spec.checkpoint.parts, GS_CHECKPOINT_PARTS_ONE);
    expect_error("\"checkpoint\":{\"parts\":\"one\"}," HOOK("\"kind\":\"powersgd\"") "}", "/checkpoint/parts",
                 "not_applicable",
                 "reducer.hook.error_feedback: no rank reaches the residuals of others on GPUs; ranks, or world.device cpu");
    expect_ok("{\"model\":{\"kind\":\"gpt2\"},\"steps\":{\"target\":1},\"world\":{\"device\":\"cpu\"},"
              "\"checkpoint\":{\"parts\":\"one\"}," HOOK("\"kind\":\"powersgd\"") "}}");
    assert_int_equal(spec.checkpoint.parts, GS_CHECKPOINT_PARTS_ONE);
    expect_error(HOOK("\"kind\":\"powersgd\"") ",\"op\":\"sample_mean\"}", "/reducer/hook/error_feedback",
                 "not_applicable", NULL);
    expect_error(SYNC "," HOOK("\"kind\":\"powersgd\"") "}", "/reducer/hook/error_feedback", "not_applicable",
                 "batch_norm sync weighs by the samples of each step; give false");
    expect_error(HOOK("\"kind\":\"powersgd\",\"start_step\":1") "}", "/reducer/hook/start_step", "out_of_range",
                 "must be at least 2 with error_feedback");
}

// wire_dtype, wrappers and kinds, as people and plans have them.
static void a_hook_has_one_name(void **state) {
    (void)state;
    static const char *const rows[][2] = {{"\"op\":\"mean\"", "allreduce"},
                                          {"\"wire_dtype\":\"fp16\"", "fp16"},
                                          {"\"wire_dtype\":\"bf16\"", "bf16"},
                                          {"\"hook\":{\"kind\":\"bf16\"}", "bf16"},
                                          {"\"hook\":{\"wrap\":\"fp16\"}", "allreduce+fp16"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[160], name[48];
        snprintf(text, sizeof text,
                 "{\"model\":{\"kind\":\"gpt2\"},\"steps\":{\"target\":1},\"reducer\":{%s}}", rows[i][0]);
        expect_ok(text);
        gs_job_spec_hook_name(name, sizeof name, &spec);
        assert_string_equal(name, rows[i][1]);
    }
    assert_int_equal(gs_job_spec_hook_rule(&spec).wire_dtype, GS_FP16);
}

static void names_and_paths_cannot_leave_their_place(void **state) {
    (void)state;
    expect_error("\"name\":\"Hello\"", "/name", "bad_pattern", NULL);
    expect_error("\"name\":\"1a\"", "/name", "bad_pattern", NULL);
    expect_error("\"name\":\"a b\"", "/name", "bad_pattern", NULL);
    static const char *const bad[] = {"/etc/passwd", "../x", "a/../b", "a/..",  ".hidden", "a//b",
                                      "a/",          "a b",  "a\\\\b", "~root", "a\\nb"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char members[128];
        snprintf(members, sizeof members, "\"data\":{\"kind\":\"bytes\",\"train\":[\"ok\",\"%s\"]}",
                 bad[i]);
        expect_error(members, "/data/train/1", "bad_pattern", NULL);
    }
    expect_ok(
        "{\"model\":{\"kind\":\"gpt2\"},\"steps\":{\"target\":1},"
        "\"data\":{\"kind\":\"bytes\",\"train\":\"corpus/*.txt\",\"eval\":[\"a..b\",\"c-*_1\"]}}");
}

static void values_of_the_full_product_say_so(void **state) {
    (void)state;
    expect_error("\"reducer\":{\"hook\":{\"kind\":\"plugin\",\"rank\":2}}", "/reducer/hook/kind", "bad_word", NULL);
    assert_memory_equal(errors.items[0].message, "not in this version; one of: allreduce, fp16, ", 46);
    expect_error("\"reducer\":{\"hook\":{\"kind\":\"auto\"}},\"world\":{\"device\":\"cuda\"}", "/reducer/hook/kind", "not_applicable",
                 "auto goes by times that hosts measure: no GPUs");
    expect_error("\"reducer\":{\"backend\":\"gloo\"}", "/reducer/backend", "bad_word",
                 "must be one of: auto, self, shm, net, nccl");
    assert_string_equal(errors.items[0].hint, "did you mean net?");
    expect_error("\"world\":{\"device\":\"cuda\",\"max\":2},\"reducer\":{\"backend\":\"net\"}",
                 "/reducer/backend", "not_applicable",
                 "net reduces in the memory of a host, world.device is cuda");
    expect_error("\"restart\":{\"rules\":[]}", "/restart/rules", "unknown_member",
                 "not in this version");
}

static void what_only_gpus_do_is_refused_on_cpus_and_the_other_way(void **state) {
    (void)state;
    expect_error("\"world\":{\"device\":\"cpu\",\"max\":2},\"reducer\":{\"backend\":\"nccl\"}",
                 "/reducer/backend", "not_applicable", "nccl reduces on GPUs, world.device is cpu");
    expect_error("\"model\":{\"kind\":\"gpt2\",\"precision\":\"tf32\"},\"world\":{\"device\":\"cpu\"}",
                 "/model/precision", "not_applicable", "tf32 is of GPUs, world.device is cpu");
    expect_error("\"world\":{\"device\":\"cuda\",\"max\":2},\"reducer\":{\"backend\":\"shm\"}",
                 "/reducer/backend", "not_applicable",
                 "shm reduces in the memory of a host, world.device is cuda");
    expect_error("\"model\":{\"kind\":\"gpt2\",\"precision\":\"tf32\"},\"reducer\":{\"backend\":\"shm\"}",
                 "/model/precision", "not_applicable",
                 "tf32 is of GPUs, reducer.backend shm of CPUs");
    expect_error("\"model\":{\"kind\":\"gpt2\",\"precision\":\"tf32\"},\"world\":{\"replicas_per_process\":2}",
                 "/world/replicas_per_process", "not_applicable",
                 "on GPUs a process has one replica");
    expect_error("\"world\":{\"device\":\"cuda\",\"replicas_per_process\":2}",
                 "/world/replicas_per_process", "not_applicable",
                 "on GPUs a process has one replica");
}

static void unknown_kind_brings_no_errors_in_its_wake(void **state) {
    (void)state;
    expect_error("\"model\":{\"kind\":\"mlpp\",\"mlp\":{\"dims\":[4,2]}}", "/model/kind",
                 "bad_word", "must be one of: gpt2, mlp");
    assert_string_equal(errors.items[0].hint, "did you mean mlp?");
}

// A value that was refused is at its default, of which rules between members must not speak.
static void refused_value_brings_no_errors_in_its_wake(void **state) {
    (void)state;
    expect_error("\"model\":{\"kind\":\"gpt2\"},\"world\":{\"min\":4,\"max\":4097}", "/world/max",
                 "out_of_range", "must be between 1 and 4096");
    expect_error("\"model\":{\"kind\":\"gpt2\"},\"world\":{\"max\":4},\"logical_shards\":-1",
                 "/logical_shards", "out_of_range", "must be between 0 and 65536");
    expect_error("\"model\":{\"kind\":\"gpt2\",\"gpt2\":{\"channels\":0,\"heads\":3}}",
                 "/model/gpt2/channels", "out_of_range", "must be between 1 and 65536");
    expect_error("\"model\":{\"kind\":\"gpt2\"},\"data\":{\"micro_batch\":65537,\"global_batch\":12}",
                 "/data/micro_batch", "out_of_range", "must be between 0 and 65536");
    expect_error("\"model\":{\"kind\":\"mlp\",\"mlp\":{\"dims\":{}}}", "/model/mlp/dims",
                 "wrong_type", "must be a list, not an object");
    expect_error("\"model\":{\"kind\":\"gpt2\"},\"restart\":{\"backoff_initial_seconds\":300,"
                 "\"backoff_max_seconds\":1e9}",
                 "/restart/backoff_max_seconds", "out_of_range", "must be between 0 and 86400");
    expect_error("\"model\":{\"kind\":\"gpt2\"},\"optimizer\":{\"kind\":\"sdg\",\"momentum\":0.9}",
                 "/optimizer/kind", "bad_word", "must be one of: adamw, adam, sgd");
}

static void required_members_are_asked_for(void **state) {
    (void)state;
    gs_status status = decode("{}");
    assert_string_equal(status.message, "2 problems found");
    assert_string_equal(errors.items[0].pointer, "/model");
    assert_string_equal(errors.items[1].pointer, "/steps");
}

static void effective_spec_decodes_to_itself(void **state) {
    (void)state;
    static const char *const texts[] = {
        "{\"name\":\"a\",\"model\":{\"kind\":\"mlp\"},\"steps\":{\"target\":200}}",
        "{\"name\":\"b\",\"labels\":[{\"key\":\"team\",\"value\":\"nlp\"}],\"world\":{\"min\":2,"
        "\"max\":8},"
        "\"exact\":true,\"model\":{\"kind\":\"gpt2\",\"gpt2\":{\"layers\":12,\"heads\":12,"
        "\"channels\":768}},\"data\":{\"kind\":\"token_shards\",\"train\":\"train_*.bin\","
        "\"eval\":[\"val_*.bin\"],\"global_batch\":512,\"micro_batch\":16},\"optimizer\":{\"lr\":0."
        "0006,"
        "\"schedule\":{\"kind\":\"cosine\",\"warmup_steps\":700}},\"steps\":{\"target\":10000},"
        "\"sample\":{\"tokens\":200,\"prompt\":\"Once\"}}",
        "{\"name\":\"c\",\"model\":{\"kind\":\"mlp\",\"mlp\":{\"dims\":[784,10],\"batch_norm\":"
        "\"none\"}},"
        "\"data\":{\"kind\":\"idx\",\"train\":\"t\",\"train_labels\":\"tl\",\"eval\":\"e\","
        "\"eval_labels\":\"el\"},\"optimizer\":{\"kind\":\"sgd\",\"momentum\":0.9,\"nesterov\":"
        "true},"
        "\"steps\":{\"target\":5}}",
        "{\"name\":\"d\",\"model\":{\"kind\":\"mlp\",\"precision\":\"fp16\"},\"optimizer\":{"
        "\"loss_scale\":{\"init\":128,\"growth_interval\":7,\"hysteresis\":2,\"min\":0.5},\"zero_grad\":\"zero\"},"
        "\"reducer\":{\"wire_dtype\":\"bf16\"},\"steps\":{\"target\":5}}",
        "{\"name\":\"h\",\"model\":{\"kind\":\"mlp\"},\"reducer\":{\"hook\":{\"kind\":\"fp16\","
        "\"divide_after_cast\":true}},\"steps\":{\"target\":5}}",
        "{\"name\":\"w\",\"model\":{\"kind\":\"mlp\"},\"reducer\":{\"hook\":{\"wrap\":\"bf16\"}},"
        "\"steps\":{\"target\":5}}",
        "{\"name\":\"v\",\"model\":{\"kind\":\"mlp\"},\"limits\":{\"memory_bytes\":100000000,\"open_files\":64},\"environment\":["
        "{\"name\":\"TZ\",\"value\":\"UTC\"},{\"name\":\"TOKEN\",\"secret\":\"tracker.token\"}],\"steps\":{\"target\":5}}",
        "{\"name\":\"e\",\"model\":{\"kind\":\"mlp\"},\"reducer\":{\"bucket_cap_bytes\":[7000,9000]},"
        "\"steps\":{\"target\":5}}",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        expect_ok(texts[i]);
        gs_job_spec first = spec;
        gs_json *encoded = gs_job_spec_encode(&first);
        errors = (gs_field_errors){0};
        gs_status status = gs_job_spec_decode(&spec, encoded, &errors);
        if (status.code) fail_msg("%s: %s", errors.items[0].pointer, errors.items[0].message);
        assert_memory_equal(&first, &spec, sizeof spec);
        gs_json_release(encoded);
    }
}

#define VARIABLE(members) "\"environment\":[{\"name\":\"TOKEN\",\"secret\":\"a\"},{" members "}]"

static void a_job_sets_variables_that_are_harmless_and_names_secrets(void **state) {
    (void)state;
    static const char *const refused[] = {
        "LD_PRELOAD", "LD_LIBRARY_PATH", "PATH", "HOME", "GRADSYNC_TOKEN", "GLIBC_TUNABLES", "CUDA_VISIBLE_DEVICES", "NCCL_NET_PLUGIN",
        "NCCL_CONF_FILE", "NCCL_NET", "ASAN_OPTIONS", "GCONV_PATH", "RANK", "CREDENTIALS_DIRECTORY", "NCCL_CUDA_PATH",
        "NVTX_INJECTION64_PATH", "IBV_DRIVERS", "RDMAV_DRIVERS", "UCX_MODULE_DIR", "FI_PROVIDER_PATH", "CUBLAS_LOGDEST_DBG",
        "OMP_TOOL_LIBRARIES", "OMP_TOOL", "OMP_TOOL_VERBOSE_INIT", "OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH", "MLX5_DEBUG_FILE",
        "MLX4_DEBUG_FILE", "ZE_ENABLE_ALT_DRIVERS", "ZES_ENABLE_SYSMAN", "NCCL_DEBUG_FILE", "NCCL_TUNER_PLUGIN", "NCCL_TOPO_FILE", "KMP_CPUINFO_FILE",
        "PYTHONPATH", "MY_FILE", "X_LIBRARIES", "SOME_PLUGINS", "SOME_LIBRARY"};
    static const char *const taken[] = {"TZ", "NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "OPENBLAS_CORETYPE", "_x1", "OMP_NUM_THREADS", "OMP_PROC_BIND", "NCCL_IB_HCA", "NCCL_ALGO",
                                        "NCCL_P2P_DISABLE", "NCCL_NET_GDR_LEVEL", "TRACKER_TOKEN", "FILE_COUNT", "PATHS"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char members[200];
        snprintf(members, sizeof members, VARIABLE("\"name\":\"%s\",\"value\":\"x\""), refused[i]);
        expect_error(members, "/environment/1/name", "not_applicable", "a job may not set this variable");
    }
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
        char text[300];
        snprintf(text, sizeof text, "{\"model\":{\"kind\":\"mlp\"},\"steps\":{\"target\":5}," VARIABLE("\"name\":\"%s\"") "}", taken[i]);
        expect_ok(text);
    }
    expect_error(VARIABLE("\"name\":\"TOKEN\""), "/environment/1/name", "not_applicable", "this variable is there twice");
    expect_error(VARIABLE("\"name\":\"A\",\"value\":\"x\",\"secret\":\"y\""), "/environment/1/secret", "not_applicable", NULL);
    expect_error(VARIABLE("\"name\":\"1A\""), "/environment/1/name", "bad_pattern", NULL);
    expect_error(VARIABLE("\"name\":\"A=B\""), "/environment/1/name", "bad_pattern", NULL);
    expect_error(VARIABLE("\"name\":\"A\",\"secret\":\"../etc\""), "/environment/1/secret", "bad_pattern", NULL);
    expect_error(VARIABLE("\"name\":\"A\",\"secret\":\"a/b\""), "/environment/1/secret", "bad_pattern", NULL);
    expect_error(VARIABLE("\"name\":\"A\",\"secret\":\".hidden\""), "/environment/1/secret", "bad_pattern", NULL);
    expect_error("\"limits\":{\"memory_bytes\":1000000}", "/limits/memory_bytes", "out_of_range", "must be 0 or at least 67108864");
    expect_error("\"limits\":{\"open_files\":63}", "/limits/open_files", "out_of_range", "must be 0 or at least 64");
    expect_error("\"limits\":{\"memory_bytes\":-1}", "/limits/memory_bytes", "out_of_range", NULL);
}

// Defaults are JSON text in a table: this finds the one that is not valid for its own row.
static void every_default_is_valid(void **state) {
    (void)state;
    gs_json *schema = gs_fields_schema(gs_job_spec_fields, NULL);
    assert_int_equal(gs_json_count(gs_json_get(schema, "properties")), 17);
    gs_json_release(schema);
    expect_ok("{\"model\":{\"kind\":\"gpt2\"},\"steps\":{\"target\":1}}");
    gs_json *encoded = gs_job_spec_encode(&spec);
    assert_true(gs_json_double_or(gs_json_get(encoded, "optimizer"), "lr", 0) == 0.0003);
    assert_true(gs_json_double_or(gs_json_get(encoded, "optimizer"), "eps", 0) == 1e-8);
    assert_true(gs_json_double_or(gs_json_get(encoded, "reducer"), "timeout_seconds", 0) == 30);
    assert_int_equal(gs_json_int_or(gs_json_get(encoded, "checkpoint"), "keep_last", 0), 3);
    assert_true(gs_json_bool_or(gs_json_get(encoded, "checkpoint"), "on_stop", false));
    gs_json_release(encoded);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(minimal_spec_is_complete),
        cmocka_unit_test(name_is_generated_from_the_model),
        cmocka_unit_test(one_bound_of_the_world_gives_the_other),
        cmocka_unit_test(rules_between_members_are_checked),
        cmocka_unit_test(data_of_ranks_goes_with_ranks_alone),
        cmocka_unit_test(updates_in_backward_cannot_wait_for_the_last_bucket),
        cmocka_unit_test(sharding_says_what_it_needs_whole),
        cmocka_unit_test(batch_norm_over_ranks_needs_all_of_them),
        cmocka_unit_test(rules_of_sparse_embeddings_and_dropped_layers_are_checked),
        cmocka_unit_test(rules_of_16_bits_are_checked),
        cmocka_unit_test(rules_of_hooks_with_the_rest_are_checked),
        cmocka_unit_test(rules_of_ranks_that_train_apart_are_checked),
        cmocka_unit_test(residuals_are_saved_by_each_rank),
        cmocka_unit_test(a_hook_has_one_name),
        cmocka_unit_test(names_and_paths_cannot_leave_their_place),
        cmocka_unit_test(values_of_the_full_product_say_so),
        cmocka_unit_test(what_is_frozen_is_checked_by_name_and_step),
        cmocka_unit_test(rules_of_replicas_are_checked),
        cmocka_unit_test(what_only_gpus_do_is_refused_on_cpus_and_the_other_way),
        cmocka_unit_test(unknown_kind_brings_no_errors_in_its_wake),
        cmocka_unit_test(refused_value_brings_no_errors_in_its_wake),
        cmocka_unit_test(required_members_are_asked_for),
        cmocka_unit_test(effective_spec_decodes_to_itself),
        cmocka_unit_test(a_job_sets_variables_that_are_harmless_and_names_secrets),
        cmocka_unit_test(every_default_is_valid),
    };
    return cmocka_run_group_tests_name("rpc job_spec", tests, NULL, NULL);
}
