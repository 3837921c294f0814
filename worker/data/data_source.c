#include "worker/data/data_source.h"

// To add a data set: its file, its line here.
static const gs_dataset_ops *const datasets[] = {
    [GS_DATA_SYNTHETIC] = &gs_dataset_synthetic,
    [GS_DATA_BYTES] = &gs_dataset_bytes,
    [GS_DATA_TOKEN_SHARDS] = &gs_dataset_token_shards,
    [GS_DATA_IDX] = &gs_dataset_idx,
};
#define NUM_DATASETS ((int)(sizeof datasets / sizeof *datasets))

static void describe_model(gs_dataset_options *options, const gs_job_spec *spec) {
    if (spec->model.kind == GS_MODEL_GPT2) {
        options->positions = spec->model.gpt2.context;
        options->vocab = spec->model.gpt2.vocab;
    } else {
        options->positions = 1;
        options->row_features = spec->model.mlp.dims[0];
        options->classes = spec->model.mlp.dims[spec->model.mlp.num_dims - 1];
    }
}

// The tail of the training data that evaluation gets when the job names nothing else.
static gs_status hold_out(int64_t *held_out, int64_t num_samples, const gs_job_spec *spec) {
    *held_out = 0;
    if (spec->data.eval_every_steps == 0) return gs_ok();
    int64_t samples = (num_samples + 19) / 20;
    if (samples < spec->data.global_batch) samples = spec->data.global_batch;
    if (samples > num_samples / 2) samples = num_samples / 2;
    if (samples == 0)
        return gs_error(GS_INVALID_ARGUMENT,
                        "data: %lld sample is too few to hold one out for evaluation; "
                        "name data.eval or set data.eval_every_steps to 0",
                        (long long)num_samples);
    *held_out = samples;
    return gs_ok();
}

static gs_status choose_samples(gs_data_source *source, const gs_job_spec *spec,
                                gs_data_split split, bool own_files) {
    source->num_samples = source->shape.num_samples;
    if (own_files) return gs_ok();
    if (spec->data.kind == GS_DATA_SYNTHETIC) {
        if (split == GS_EVAL) source->first_sample = source->shape.num_samples;
        return gs_ok();
    }
    int64_t held_out;
    GS_TRY(hold_out(&held_out, source->shape.num_samples, spec));
    int64_t kept = source->shape.num_samples - held_out;
    if (split == GS_TRAIN) {
        source->num_samples = kept;
    } else if (held_out) {
        source->first_sample = kept;
        source->num_samples = held_out;
    } else {
        return gs_error(GS_FAILED_PRECONDITION,
                        "data: this job never evaluates and holds no samples out for it");
    }
    return gs_ok();
}

gs_status gs_data_source_open(gs_data_source *source, const gs_job_spec *spec, gs_data_split split,
                              const char *data_root) {
    *source = (gs_data_source){0};
    if (spec->data.kind < 0 || spec->data.kind >= NUM_DATASETS)
        return gs_error(GS_INVALID_ARGUMENT, "data.kind: unknown");
    bool eval_files = spec->data.kind != GS_DATA_SYNTHETIC && spec->data.num_eval > 0;
    bool take_eval = split == GS_EVAL && eval_files;
    const char *patterns[GS_SPEC_MAX_PATTERNS];
    int num_patterns = take_eval ? spec->data.num_eval : spec->data.num_train;
    for (int i = 0; i < num_patterns; i++)
        patterns[i] = take_eval ? spec->data.eval[i] : spec->data.train[i];

    gs_dataset_options options = {
        .root = data_root ? data_root : ".",
        .patterns = patterns,
        .num_patterns = (size_t)num_patterns,
        .labels = take_eval ? spec->data.eval_labels : spec->data.train_labels,
        .seed = (uint64_t)spec->data.shuffle_seed,
    };
    describe_model(&options, spec);
    const gs_dataset_ops *ops = datasets[spec->data.kind];
    gs_status status = ops->open(&source->dataset, &options, &source->shape);
    if (status.code) return gs_status_prefix(status, "data.%s", take_eval ? "eval" : "train");
    source->ops = ops;
    // With evaluation files of its own a job trains on all of its training data.
    status = choose_samples(source, spec, split, eval_files);
    if (status.code) gs_data_source_close(source);
    return status;
}

void gs_data_source_close(gs_data_source *source) {
    if (!source) return;
    if (source->ops) source->ops->close(source->dataset);
    *source = (gs_data_source){0};
}

gs_status gs_data_source_fill(const gs_data_source *source, int64_t index, int32_t *tokens,
                              float *features, int32_t *targets) {
    return source->ops->fill(source->dataset, source->first_sample + index, tokens, features,
                             targets);
}
