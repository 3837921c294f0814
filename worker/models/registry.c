#include "worker/models/registry.h"

// What the model computes in.
static gs_dtype choose_dtype(const gs_job_spec *spec, const gs_device *device) {
    static const gs_dtype dtypes[] = {
        [GS_PRECISION_BF16] = GS_BF16, [GS_PRECISION_FP16] = GS_FP16, [GS_PRECISION_TF32] = GS_FP32};
    gs_dtype dtype = dtypes[spec->model.precision];
    bool is_half = dtype == GS_BF16 || dtype == GS_FP16;
    if (!is_half || gs_device_is_host(device)) return GS_FP32;
    return gs_device_half_kernels(device, dtype) ? dtype : GS_FP32;
}

static gs_status create_gpt2(gs_model *out, const gs_job_spec *spec, int64_t micro_batch,
                             gs_device *device) {
    gs_gpt2_options options = {
        .layers = spec->model.gpt2.layers,
        .heads = spec->model.gpt2.heads,
        .channels = spec->model.gpt2.channels,
        .context = spec->model.gpt2.context,
        .vocab = spec->model.gpt2.vocab,
        .micro_batch = micro_batch,
        .layer_drop = spec->model.gpt2.layer_drop,
        .seed = (uint64_t)spec->model.seed,
        .dtype = choose_dtype(spec, device),
    };
    return gs_gpt2_create(out, &options, device);
}

static gs_status create_mlp(gs_model *out, const gs_job_spec *spec, int64_t micro_batch,
                            gs_device *device) {
    gs_mlp_options options = {
        .dims = spec->model.mlp.dims,
        .num_dims = spec->model.mlp.num_dims,
        .batch_norm = spec->model.mlp.batch_norm != GS_BATCH_NORM_NONE,
        .micro_batch = micro_batch,
    };
    return gs_mlp_create(out, &options, device);
}

// To add a model: its file, its line here.
static gs_status (*const makers[])(gs_model *out, const gs_job_spec *spec, int64_t micro_batch,
                                   gs_device *device) = {
    [GS_MODEL_GPT2] = create_gpt2,
    [GS_MODEL_MLP] = create_mlp,
};
#define NUM_MAKERS ((int)(sizeof makers / sizeof *makers))

gs_status gs_model_create(gs_model *out, const gs_job_spec *spec, int64_t micro_batch,
                          gs_device *device) {
    if (spec->model.kind < 0 || spec->model.kind >= NUM_MAKERS)
        return gs_error(GS_INVALID_ARGUMENT, "model.kind: unknown");
    return makers[spec->model.kind](out, spec, micro_batch, device);
}
