#include "worker/checkpoint/manifest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void pick_members(gs_json *out, const gs_json *spec, const char *section,
                         const char *const *names) {
    const gs_json *from = section ? gs_json_get(spec, section) : spec;
    gs_json *to = section ? gs_json_new_object() : out;
    for (; *names; names++) {
        const gs_json *member = gs_json_get(from, *names);
        if (member) gs_json_set(to, *names, gs_json_copy(member));
    }
    if (section) gs_json_set(out, section, to);
}

gs_json *gs_manifest_spec(const gs_job_spec *spec) {
    static const char *const top[] = {"exact", "logical_shards", NULL};
    static const char *const model[] = {"kind", "gpt2", "mlp", "precision", "seed", NULL};
    static const char *const data[] = {"kind",         "train",       "train_labels",
                                       "global_batch", "micro_batch", "shuffle_seed",
                                       "split",        "uneven_inputs", "join_divisor", NULL};
    static const char *const optimizer[] = {"kind",     "lr",           "beta1",
                                            "beta2",    "eps",          "momentum",
                                            "nesterov", "weight_decay", "grad_clip_norm",
                                            "schedule", "zero_grad",    "loss_scale",
                                            NULL};
    static const char *const reducer[] = {"hook", "op", "buffers", "wire_dtype", NULL};
    gs_json *all = gs_job_spec_encode(spec), *out = gs_json_new_object();
    pick_members(out, all, NULL, top);
    pick_members(out, all, "model", model);
    // Tables of the kinds that were not chosen decide nothing.
    gs_json *chosen = (gs_json *)(uintptr_t)gs_json_get(out, "model");
    gs_json_remove(chosen, spec->model.kind == GS_MODEL_GPT2 ? "mlp" : "gpt2");
    pick_members(out, all, "data", data);
    // Without evaluation files a job that evaluates holds samples out of its training data.
    chosen = (gs_json *)(uintptr_t)gs_json_get(out, "data");
    gs_json_set_bool(chosen, "holds_out", spec->data.eval_every_steps > 0 && spec->data.num_eval == 0 &&
                                              spec->data.kind != GS_DATA_SYNTHETIC);
    // Parts are dealt to ranks: a position among them means nothing in another world.
    if (spec->data.split == GS_SPLIT_BY_RANK) gs_json_set_int(chosen, "ranks", spec->world.max);
    pick_members(out, all, "optimizer", optimizer);
    chosen = (gs_json *)(uintptr_t)gs_json_get(out, "optimizer");
    if (spec->model.precision != GS_PRECISION_FP16) gs_json_remove(chosen, "loss_scale");
    pick_members(out, all, "reducer", reducer);
    gs_json_release(all);
    return out;
}

static gs_status compare_values(const char *pointer, const gs_json *ours, const gs_json *theirs,
                                const gs_json *defaults);

typedef struct comparison {
    const char *pointer;
    const gs_json *other, *defaults;
    gs_status status;
} comparison;

static bool compare_member(void *ctx, const char *key, const gs_json *value) {
    comparison *at = ctx;
    char pointer[160];
    snprintf(pointer, sizeof pointer, "%s/%s", at->pointer, key);
    // A member that the checkpoint's version did not have was what it is by default.
    const gs_json *usual = gs_json_get(at->defaults, key), *other = gs_json_get(at->other, key);
    at->status = compare_values(pointer, value, other ? other : usual, usual);
    return at->status.code == GS_OK;
}

static gs_status compare_texts(const char *pointer, const gs_json *ours, const gs_json *theirs) {
    char *a = NULL, *b = NULL;
    gs_status status = gs_json_encode(&a, NULL, ours, false);
    if (!status.code && theirs) status = gs_json_encode(&b, NULL, theirs, false);
    if (!status.code && (!b || strcmp(a, b) != 0)) {
        status = gs_error(GS_INVALID_ARGUMENT, "%s is %.60s, the checkpoint has %.60s", pointer, a,
                          b ? b : "none");
    }
    free(a);
    free(b);
    return status;
}

static gs_status compare_values(const char *pointer, const gs_json *ours, const gs_json *theirs,
                                const gs_json *defaults) {
    if (gs_json_type_of(ours) != GS_JSON_OBJECT) return compare_texts(pointer, ours, theirs);
    comparison at = {.pointer = pointer, .other = theirs, .defaults = defaults, .status = gs_ok()};
    gs_json_each(ours, compare_member, &at);
    return at.status;
}

gs_status gs_manifest_spec_compare(const gs_json *ours, const gs_json *theirs) {
    gs_job_spec usual = {0};
    gs_fields_set_defaults(&usual, gs_job_spec_fields);
    if (gs_json_get(gs_json_get(ours, "model"), "mlp")) usual.model.kind = GS_MODEL_MLP;
    gs_json *defaults = gs_manifest_spec(&usual);
    gs_status status = compare_values("", ours, theirs, defaults);
    gs_json_release(defaults);
    return status;
}

gs_json *gs_manifest_position(const gs_position *position) {
    gs_json *out = gs_json_new_object();
    gs_json_set_int(out, "step", position->step);
    gs_json_set_int(out, "consumed", position->consumed);
    gs_json_set_int(out, "skipped_steps", position->skipped_steps);
    gs_json_set_int(out, "skipped_in_a_row", position->skipped_in_a_row);
    if (position->loss_scale.scale > 0) {
        gs_json_set_double(out, "loss_scale", (double)position->loss_scale.scale);
        gs_json_set_int(out, "growth_tracker", position->loss_scale.growth_tracker);
        if (position->loss_scale.num_forgiven)
            gs_json_set_int(out, "forgiven_overflows", position->loss_scale.num_forgiven);
    }
    return out;
}

gs_json *gs_manifest_tensors(const gs_state_snapshot *snapshot, bool in_one_part) {
    gs_json *out = gs_json_new_array();
    for (size_t i = 0; i < snapshot->num_tensors + snapshot->num_own; i++) {
        const gs_state_tensor *tensor = &snapshot->tensors[i];
        gs_json *row = gs_json_new_object(), *shape = gs_json_new_array();
        for (int d = 0; d < tensor->num_dims; d++) {
            gs_json_push(shape, gs_json_new_int(tensor->shape[d]));
        }
        gs_json_set_string(row, "name", tensor->name);
        gs_json_set_string(row, "dtype", gs_dtype_name(tensor->dtype));
        gs_json_set(row, "shape", shape);
        if (in_one_part) gs_json_set_int(row, "part", 0);
        // A row of it for each rank.
        if (i >= snapshot->num_tensors) gs_json_set_bool(row, "own", true);
        gs_json_push(out, row);
    }
    return out;
}
