#include "kernels/choice.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend.h"

typedef struct choice_row {
    const char *variable;
    const char *word;  // of the arithmetic; NULL: the same bits
} choice_row;

static const choice_row rows[GS_NUM_CHOICES] = {
    [GS_CHOICE_SHARED_LOSS_ROWS] = {"GRADSYNC_CUDA_SHARED_LOSS_ROWS", NULL},
    [GS_CHOICE_RESIDUAL_IN_PRODUCT] = {"GRADSYNC_CUDA_RESIDUAL_IN_PRODUCT", "residual_in_product"},
    [GS_CHOICE_BIAS_GRAD_IN_PRODUCT] = {"GRADSYNC_CUDA_BIAS_GRAD_IN_PRODUCT", "bias_grad_in_product"},
    [GS_CHOICE_FACTOR_ON_DEVICE] = {"GRADSYNC_CUDA_FACTOR_ON_DEVICE", NULL},
    [GS_CHOICE_CUDNN_ATTENTION] = {"GRADSYNC_CUDA_CUDNN_ATTENTION", "cudnn_attention"},
};

unsigned gs_choices_from_environment(void) {
    unsigned choices = 0;
    for (int i = 0; i < GS_NUM_CHOICES; i++) {
        const char *value = getenv(rows[i].variable);
        if (value && strcmp(value, "1") == 0) choices |= 1u << i;
    }
    return choices;
}

bool gs_device_chooses(const gs_device *device, gs_choice choice) {
    return device->choices >> choice & 1;
}

void gs_choices_describe(unsigned choices, char *text, size_t text_bytes) {
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < GS_NUM_CHOICES && used < text_bytes; i++) {
        if (rows[i].word && choices >> i & 1)
            used += (size_t)snprintf(text + used, text_bytes - used, " %s", rows[i].word);
    }
}
