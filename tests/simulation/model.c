#include "tests/simulation/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/digest.h"
#include "rpc/schema/model_params.h"

static gs_job_spec *spec;
static gs_param_spec *params;
static size_t num_params;
static char digest[GS_DIGEST_TEXT_LEN];

static void build(void) {
    static const char text[] =
        "{\"name\":\"job\",\"world\":{\"min\":1,\"max\":2},\"logical_shards\":120,"
        "\"model\":{\"kind\":\"mlp\",\"mlp\":{\"dims\":[4,3,2]}},"
        "\"data\":{\"kind\":\"synthetic\",\"micro_batch\":2,\"global_batch\":240},"
        "\"optimizer\":{\"kind\":\"sgd\"},\"steps\":{\"target\":60},"
        "\"reducer\":{\"plan\":\"parity\"}}";
    gs_json *json = NULL;
    gs_field_errors *errors = calloc(1, sizeof *errors);
    spec = calloc(1, sizeof *spec);
    gs_status status = gs_json_parse(&json, text, strlen(text));
    if (!status.code) status = gs_job_spec_decode(spec, json, errors);
    if (!status.code) status = gs_model_params_of_spec(&params, &num_params, spec);
    if (status.code) {
        fprintf(stderr, "model: %s %s\n", status.message, errors->count ? errors->items[0].message : "");
        abort();
    }
    gs_digest_format(digest, gs_param_specs_digest(params, num_params));
    gs_json_release(json);
    free(errors);
}

const gs_job_spec *model_spec(void) {
    if (!spec) build();
    return spec;
}

const char *model_params_digest(void) {
    if (!spec) build();
    return digest;
}

size_t model_num_params(void) {
    if (!spec) build();
    return num_params;
}

void model_params_page(gs_param_page *page) {
    if (!spec) build();
    *page = (gs_param_page){.params = malloc(num_params * sizeof *params), .num_params = num_params};
    memcpy(page->params, params, num_params * sizeof *params);
}

void model_release(void) {
    free(spec);
    free(params);
    spec = NULL;
    params = NULL;
}
