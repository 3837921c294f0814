#include "tests/support/option_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rpc/schema/job_spec.h"

#define NONE OPTION_NOT_OF_STEP
#define WORK OPTION_OF_WORK
#define WAY OPTION_OF_WAY
// What 16 bits round of a gradient on its way, with two ranks: 2^-8 in bf16, and some.
#define WIRE_TOLERANCE 0.01
// What a parameter's 16 bits round goes the other way after an update that differs in its last bit.
#define HALF_TOLERANCE 0.01

#define HOOK(member) "/reducer/hook/" member
#define POWERSGD {HOOK("kind"), "\"powersgd\""}
#define FULL_RANK {HOOK("rank"), "64"}, {HOOK("min_compression_rate"), "1e-6"}
#define WITHOUT_MEMORY \
    {HOOK("start_step"), "0"}, {HOOK("error_feedback"), "false"}, {HOOK("warm_start"), "false"}
#define CARRYING {HOOK("error_feedback"), "true"}
// 8 bits of the largest gradient of a tensor, at its smaller ones.
#define BYTE_TOLERANCE 0.05
// Every rank's codes are rounded, and Adam moves as far by a small gradient, which a code may lose, as by a large one.
#define CODE_TOLERANCE 0.25
// What fp32 leaves of a matrix that is projected onto its own columns.
#define RANK_TOLERANCE 1e-3

#define NO(pointer) {pointer, NONE, {NULL}, {{NULL, NULL}}, 0}
#define OF(role, pointer, ...) {pointer, role, {__VA_ARGS__}, {{NULL, NULL}}, 0}
#define MLP {"/model/kind", "\"mlp\""}
#define BY_RANK {"/data/split", "\"by_rank\""}

static const option_row rows[] = {
    // Names, places, times.
    NO("/name"), NO("/labels"), NO("/world/min"), NO("/world/max"), NO("/world/join_window_seconds"),
    NO("/world/wait_seconds"), NO("/world/threads_per_rank"), NO("/steps/target"),
    NO("/steps/deadline_seconds"), NO("/tracing/ring_steps"), NO("/debug/step_delay_ms"),
    NO("/reducer/timeout_seconds"), NO("/limits/memory_bytes"), NO("/limits/open_files"), NO("/environment"),
    // What is saved and told, and what a failure leads to.
    NO("/checkpoint/every_steps"), NO("/checkpoint/every_seconds"), NO("/checkpoint/keep_last"), NO("/checkpoint/on_stop"),
    NO("/checkpoint/resume"), NO("/checkpoint/parts"), NO("/sample/tokens"), NO("/sample/prompt"),
    NO("/sample/temperature"), NO("/restart/on_worker_lost"), NO("/restart/on_worker_error"),
    NO("/restart/max_restarts"), NO("/restart/window_seconds"), NO("/restart/healthy_after_steps"),
    NO("/restart/backoff_initial_seconds"), NO("/restart/backoff_max_seconds"),
    // Shapes, seeds, files: another model or another sample, the same step.
    NO("/model/gpt2/layers"), NO("/model/gpt2/heads"), NO("/model/gpt2/channels"),
    NO("/model/gpt2/context"), NO("/model/gpt2/vocab"), NO("/model/mlp/dims"), NO("/model/seed"),
    NO("/model/init_from"), NO("/data/kind"), NO("/data/train"), NO("/data/eval"),
    NO("/data/train_labels"), NO("/data/eval_labels"), NO("/data/shuffle_seed"),
    NO("/data/eval_every_steps"), NO("/data/eval_batches"),
    // Factors of a rule whose kind is in the grid.
    NO("/optimizer/lr"), NO("/optimizer/beta1"), NO("/optimizer/beta2"), NO("/optimizer/eps"),
    NO("/optimizer/loss_scale/growth_factor"), NO("/optimizer/loss_scale/backoff_factor"),
    NO("/optimizer/loss_scale/hysteresis"), NO("/optimizer/loss_scale/min"),
    NO("/optimizer/schedule/final_ratio"),

    OF(WAY, "/world/device"),
    OF(WAY, "/world/replicas_per_process", "2"),
    OF(WORK, "/exact"),
    OF(WORK, "/logical_shards", "4"),
    {"/model/kind", WORK, {NULL}, {{NULL, NULL}}, 0},
    OF(WORK, "/model/gpt2/layer_drop", "0.5"),
    {"/model/mlp/batch_norm", WORK, {"\"none\"", "\"local\"", "\"sync\""}, {MLP}, 0},
    OF(WORK, "/model/freeze", "[{\"params\":\"*.bias\",\"until_step\":1}]", "[{\"params\":\"*.weight\",\"from_step\":2}]"),
    {"/model/precision", WORK, {NULL}, {{NULL, NULL}}, HALF_TOLERANCE},
    OF(WORK, "/data/global_batch", "16"),
    OF(WORK, "/data/micro_batch", "4"),
    OF(WAY, "/data/split"),
    {"/data/uneven_inputs", WAY, {NULL}, {BY_RANK}, 0},
    {"/data/join_divisor", WAY, {NULL}, {BY_RANK, {"/data/uneven_inputs", "\"join\""}}, 0},
    OF(WORK, "/optimizer/kind"),
    OF(WORK, "/optimizer/momentum", "0.9"),
    OF(WORK, "/optimizer/weight_decay", "0.1"),
    OF(WORK, "/optimizer/grad_clip_norm", "0.01"),
    {"/optimizer/nesterov", WORK, {NULL}, {{"/optimizer/momentum", "0.9"}}, 0},
    OF(WORK, "/optimizer/zero_grad"),
    OF(WAY, "/optimizer/in_backward"),
    OF(WAY, "/optimizer/offload"),
    {"/optimizer/loss_scale/init", WORK, {"1024"}, {{"/model/precision", "\"fp16\""}}, HALF_TOLERANCE},
    {"/optimizer/loss_scale/growth_interval", WORK, {"1"}, {{"/model/precision", "\"fp16\""}},
     HALF_TOLERANCE},
    OF(WORK, "/optimizer/schedule/kind"),
    OF(WORK, "/optimizer/schedule/warmup_steps", "2"),
    OF(WAY, "/reducer/plan", "\"parity\"", "\"auto\""),
    {"/reducer/plan", WAY, {"\"owner\""},
     {{"/reducer/sharding", "\"optimizer\""}, {"/reducer/partition", "\"oss\""}}, 0},
    OF(WAY, "/reducer/first_bucket_bytes", "256"),
    OF(WAY, "/reducer/bucket_cap_bytes", "[2048,300]"),
    OF(WAY, "/reducer/max_buckets", "2"),
    OF(WAY, "/reducer/small_bucket"),
    OF(WAY, "/reducer/rebuild_after_steps", "0"),
    // Hooks that keep little are given so much that nothing is lost: matrices of full rank, all elements.
    {HOOK("kind"), WAY, {"\"fp16\"", "\"bf16\""}, {{NULL, NULL}}, WIRE_TOLERANCE},
    {HOOK("kind"), WAY, {"\"powersgd\""}, {FULL_RANK, WITHOUT_MEMORY}, RANK_TOLERANCE},
    {HOOK("kind"), WAY, {"\"uint8_gather\""}, {{NULL, NULL}}, BYTE_TOLERANCE},
    {HOOK("kind"), WAY, {"\"int8\"", "\"int8_channel\""}, {{NULL, NULL}}, CODE_TOLERANCE},
    {HOOK("kind"), WAY, {"\"topk\""}, {{HOOK("ratio"), "1"}, CARRYING}, 0},
    // Of those the quickest, whichever that is here.
    {HOOK("kind"), WAY, {"\"auto\""}, {{HOOK("error_feedback"), "false"}}, CODE_TOLERANCE},
    {HOOK("error_budget"), WAY, {"0", "0.1"}, {{HOOK("kind"), "\"auto\""}, {HOOK("error_feedback"), "false"}}, CODE_TOLERANCE},
    // These lose in any case. They are there, and begin behind the last step.
    {HOOK("kind"), WAY, {"\"batched_powersgd\"", "\"onebit\""}, {{HOOK("start_step"), "3"}, CARRYING}, 0},
    {HOOK("kind"), WAY, {"\"local_sgd\""}, {{HOOK("start_step"), "3"}}, 0},
    // Ranks train apart: nothing serial is like it. What they do together stands in its own tests.
    {HOOK("kind"), NONE, {"\"noop\""}, {{NULL, NULL}}, 0},
    {HOOK("wrap"), WAY, {NULL}, {{NULL, NULL}}, WIRE_TOLERANCE},
    {HOOK("rank"), WAY, {"32"}, {POWERSGD, FULL_RANK, WITHOUT_MEMORY}, RANK_TOLERANCE},
    {HOOK("start_step"), WAY, {"1"}, {POWERSGD, FULL_RANK, WITHOUT_MEMORY}, RANK_TOLERANCE},
    {HOOK("min_compression_rate"), WAY, {"4"}, {POWERSGD, {HOOK("rank"), "64"}, WITHOUT_MEMORY}, RANK_TOLERANCE},
    {HOOK("error_feedback"), WAY, {"true"}, {POWERSGD, FULL_RANK, {HOOK("start_step"), "2"}}, RANK_TOLERANCE},
    {HOOK("warm_start"), WAY, {"true"}, {POWERSGD, FULL_RANK, {HOOK("start_step"), "2"}, CARRYING}, RANK_TOLERANCE},
    {HOOK("orthogonalization_epsilon"), WAY, {"1e-12"}, {POWERSGD, FULL_RANK, WITHOUT_MEMORY}, RANK_TOLERANCE},
    {HOOK("seed"), WAY, {"5"}, {POWERSGD, FULL_RANK, WITHOUT_MEMORY}, RANK_TOLERANCE},
    {HOOK("divide_after_cast"), WAY, {NULL}, {{HOOK("kind"), "\"fp16\""}}, WIRE_TOLERANCE},
    NO(HOOK("ratio")), NO(HOOK("period")), NO(HOOK("group_averages")),
    NO(HOOK("local_ranks")),
    OF(WORK, "/reducer/op"),
    OF(WAY, "/reducer/buffers"),
    OF(WAY, "/reducer/backend"),
    OF(WAY, "/reducer/unused_parameters"),
    {"/reducer/wire_dtype", WAY, {NULL}, {{NULL, NULL}}, WIRE_TOLERANCE},
    OF(WAY, "/reducer/sharding"),
    {"/reducer/partition", WAY, {NULL}, {{"/reducer/sharding", "\"optimizer\""}}, 0},
    {"/reducer/zero_overlap", WAY, {NULL}, {{"/reducer/sharding", "\"optimizer\""}}, 0},
    {"/reducer/zero_split_buckets", WAY, {"true"},
     {{"/reducer/sharding", "\"optimizer\""}, {"/reducer/zero_overlap", "\"step\""}}, 0},
    OF(WAY, "/reducer/static_graph"),
    OF(WAY, "/reducer/sparse_embedding"),
    OF(WAY, "/reducer/replica_divisor"),
    OF(WAY, "/reducer/check_replicas_every_steps", "1"),
};
#define NUM_ROWS (sizeof rows / sizeof rows[0])

// Small, with gradients in every parameter, and with an epsilon that keeps what is next to nothing from deciding the
// direction of an adaptive step.
static const option_set base[] = {
    {"/name", "\"matrix\""}, {"/world/min", "2"}, {"/world/max", "2"}, {"/model/kind", "\"gpt2\""},
    {"/data/micro_batch", "2"}, {"/optimizer/kind", "\"sgd\""}, {"/optimizer/lr", "0.05"},
    {"/optimizer/eps", "0.001"}, {"/reducer/first_bucket_bytes", "1024"},
    {"/reducer/bucket_cap_bytes", "[8192]"}, {"/reducer/timeout_seconds", "20"},
    {"/steps/target", "3"},
};
static const option_set gpt2_shape[] = {
    {"/model/gpt2/layers", "2"}, {"/model/gpt2/heads", "2"}, {"/model/gpt2/channels", "16"},
    {"/model/gpt2/context", "8"}, {"/model/gpt2/vocab", "256"},
};
static const option_set mlp_shape[] = {{"/model/mlp/dims", "[12,10,8,3]"}};

void option_table_set(gs_json *spec, const char *pointer, const char *json) {
    char key[64];
    const char *slash = strchr(pointer + 1, '/');
    size_t len = slash ? (size_t)(slash - pointer - 1) : strlen(pointer + 1);
    snprintf(key, sizeof key, "%.*s", (int)len, pointer + 1);
    if (!slash) {
        gs_json *value = NULL;
        if (gs_json_parse(&value, json, strlen(json)).code) abort();
        gs_json_set(spec, key, value);
        return;
    }
    if (!gs_json_get(spec, key)) gs_json_set(spec, key, gs_json_new_object());
    option_table_set((gs_json *)(uintptr_t)gs_json_get(spec, key), slash, json);
}

static void set_all(gs_json *spec, const option_set *sets, size_t count) {
    for (size_t i = 0; i < count && sets[i].pointer; i++)
        option_table_set(spec, sets[i].pointer, sets[i].json);
}

static bool is_left_out(const option_value *value, bool serial) {
    return serial && value->row->role == OPTION_OF_WAY;
}

// Parts that are dealt to ranks are of files, in which all samples are equal: the same batch, whoever has which.
static void choose_data(gs_json *spec) {
    bool is_mlp = strcmp(gs_json_string_or(gs_json_get(spec, "model"), "kind", ""), "mlp") == 0;
    option_table_set(spec, "/data/kind", is_mlp ? "\"idx\"" : "\"bytes\"");
    option_table_set(spec, "/data/train", is_mlp ? "[\"images\"]" : "[\"*.txt\"]");
    if (is_mlp) option_table_set(spec, "/data/train_labels", "\"labels\"");
}

gs_json *option_table_spec(const option_value *const *values, int num, bool serial) {
    gs_json *spec = gs_json_new_object();
    bool by_rank = false;
    set_all(spec, base, sizeof base / sizeof base[0]);
    for (int i = 0; i < num; i++) {
        for (size_t k = 0; k < MOST_OPTION_NEEDS && values[i]->row->needs[k].pointer; k++) {
            by_rank |= strcmp(values[i]->row->needs[k].pointer, "/data/split") == 0;
            if (!is_left_out(values[i], serial)) set_all(spec, &values[i]->row->needs[k], 1);
        }
    }
    for (int i = 0; i < num; i++) {
        by_rank |= strcmp(values[i]->row->pointer, "/data/split") == 0;
        if (!is_left_out(values[i], serial))
            option_table_set(spec, values[i]->row->pointer, values[i]->json);
    }
    bool is_mlp = strcmp(gs_json_string_or(gs_json_get(spec, "model"), "kind", ""), "mlp") == 0;
    if (is_mlp) set_all(spec, mlp_shape, 1);
    else set_all(spec, gpt2_shape, sizeof gpt2_shape / sizeof gpt2_shape[0]);
    if (by_rank) choose_data(spec);
    return spec;
}

typedef struct listing {
    option_value *out;
    size_t count;
    bool seen[NUM_ROWS];
    char problem[200];
} listing;

static void add_value(listing *list, const option_row *row, const char *json) {
    if (list->count == MOST_OPTION_VALUES) abort();
    option_value *value = &list->out[list->count++];
    value->row = row;
    snprintf(value->json, sizeof value->json, "%s", json);
}

// What the base says of a field, else its default.
static const char *standing_of(const char *pointer, const gs_field *field) {
    for (size_t i = 0; i < sizeof base / sizeof base[0]; i++) {
        if (strcmp(base[i].pointer, pointer) == 0) return base[i].json;
    }
    return field->default_value ? field->default_value : "";
}

// Words that this version does not have yet stand in rows all the same.
static bool is_later(const gs_field *field, const char *json) {
    for (size_t i = 0; field->later_words && field->later_words[i]; i++) {
        char word[48];
        snprintf(word, sizeof word, "\"%s\"", field->later_words[i]);
        if (strcmp(word, json) == 0) return true;
    }
    return false;
}

static void list_row(listing *list, const option_row *row, const gs_field *field) {
    if (row->role == OPTION_NOT_OF_STEP) return;
    for (size_t i = 0; i < 3 && row->values[i]; i++)
        if (!is_later(field, row->values[i])) add_value(list, row, row->values[i]);
    if (row->values[0]) return;
    if (field->type == GS_FIELD_BOOL) add_value(list, row, "true");
    else if (field->type != GS_FIELD_ENUM)
        snprintf(list->problem, sizeof list->problem, "%s has no value to try", row->pointer);
    for (size_t i = 0; field->type == GS_FIELD_ENUM && field->words[i]; i++) {
        char json[48];
        snprintf(json, sizeof json, "\"%s\"", field->words[i]);
        if (strcmp(json, standing_of(row->pointer, field)) != 0) add_value(list, row, json);
    }
}

// Of a field of several rows: each word in one of them.
static void check_words(listing *list, const char *pointer, const gs_field *field) {
    for (size_t w = 0; field->type == GS_FIELD_ENUM && field->words[w]; w++) {
        char json[48];
        bool stands = false;
        snprintf(json, sizeof json, "\"%s\"", field->words[w]);
        for (size_t i = 0; i < NUM_ROWS && !stands; i++) {
            for (size_t k = 0; k < 3 && rows[i].values[k] && !stands; k++)
                stands = strcmp(rows[i].pointer, pointer) == 0 && strcmp(rows[i].values[k], json) == 0;
        }
        if (!stands && strcmp(json, standing_of(pointer, field)) != 0)
            snprintf(list->problem, sizeof list->problem, "%s: %s stands in none of its rows", pointer, json);
    }
}

static void list_field(listing *list, const char *pointer, const gs_field *field) {
    int count = 0;
    for (size_t i = 0; i < NUM_ROWS; i++) {
        if (strcmp(rows[i].pointer, pointer) != 0) continue;
        list->seen[i] = true;
        list_row(list, &rows[i], field);
        count++;
    }
    if (count > 1) check_words(list, pointer, field);
    if (count) return;
    snprintf(list->problem, sizeof list->problem,
             "%s is in the field table and in none of the option table's rows: does it change how a "
             "step is computed?", pointer);
}

static void list_fields(listing *list, const char *prefix, const gs_field *fields) {
    for (const gs_field *field = fields; field->name; field++) {
        char pointer[128];
        snprintf(pointer, sizeof pointer, "%s/%s", prefix, field->name);
        if (field->type == GS_FIELD_OBJECT) list_fields(list, pointer, field->fields);
        else list_field(list, pointer, field);
    }
}

const char *option_table_values(option_value *out, size_t *count) {
    static listing list;
    list = (listing){.out = out};
    list_fields(&list, "", gs_job_spec_fields);
    for (size_t i = 0; i < NUM_ROWS; i++) {
        if (!list.seen[i] && !list.problem[0])
            snprintf(list.problem, sizeof list.problem, "%s is in no field table", rows[i].pointer);
    }
    *count = list.count;
    return list.problem[0] ? list.problem : NULL;
}
