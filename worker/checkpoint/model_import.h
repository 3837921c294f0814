// Parameters from a foreign safetensors file: our names, nanoGPT's, Hugging Face's GPT-2 (whose four
// matrix kinds are stored (in, out) and are transposed here), with or without "transformer.".
#ifndef WORKER_CHECKPOINT_MODEL_IMPORT_H
#define WORKER_CHECKPOINT_MODEL_IMPORT_H

#include "core/status.h"
#include "gradsync/step/model.h"

// Fills the model's parameters (and buffers that the file has). Missing or differently shaped tensors are
// INVALID_ARGUMENT naming tensor, shape found and shape wanted; causal masks and the like are ignored.
// params and buffers are host memory. Conversion from fp16, bf16 and fp64 happens on the way.
GS_NODISCARD gs_status gs_model_import(const gs_model *model, void *const *params,
                                       void *const *buffers, const char *path);

#endif
