// Parameters from a foreign safetensors file: our names, nanoGPT's, Hugging Face's GPT-2 (whose four
// matrix kinds are stored (in, out) and are transposed here), with or without "transformer.".
#ifndef WORKER_CHECKPOINT_MODEL_IMPORT_H
#define WORKER_CHECKPOINT_MODEL_IMPORT_H

#include "core/status.h"
#include "gradsync/step/model.h"

// A tensor of the model, by number: parameters, behind them buffers. `data`: all of it in host memory, as the model
// has it, parameters as fp32; borrowed for the call.
typedef gs_status (*gs_import_take)(void *ctx, size_t tensor, const void *data);

// Hands out the model's parameters one after the other, and buffers that the file has. Missing or differently shaped
// tensors are INVALID_ARGUMENT naming tensor, shape found and shape wanted, when others may have been handed out;
// causal masks and the like are ignored. Conversion from fp16, bf16 and fp64 happens on the way.
GS_NODISCARD gs_status gs_model_import(const gs_model *model, const char *path, gs_import_take take,
                                       void *ctx);

#endif
