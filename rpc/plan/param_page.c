#include "rpc/plan/param_page.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static gs_json *encode_row(const gs_param_spec *param) {
    gs_json *row = gs_json_new_array(), *shape = gs_json_new_array();
    for (int i = 0; i < param->num_dims; i++) gs_json_push(shape, gs_json_new_int(param->shape[i]));
    gs_json_push(row, gs_json_new_string(param->name));
    gs_json_push(row, gs_json_new_string(gs_dtype_name(param->dtype)));
    gs_json_push(row, shape);
    if (param->sparse) gs_json_push(row, gs_json_new_bool(true));
    return row;
}

void gs_param_page_write(gs_json *page, const gs_param_spec *params, size_t num_params,
                         size_t first) {
    gs_json *rows = gs_json_new_array();
    size_t end = first + GS_PARAM_PAGE_ROWS < num_params ? first + GS_PARAM_PAGE_ROWS : num_params;
    for (size_t i = first; i < end; i++) gs_json_push(rows, encode_row(&params[i]));
    gs_json_set_int(page, "first", (int64_t)first);
    gs_json_set_bool(page, "more", end < num_params);
    gs_json_set(page, "params", rows);
}

static gs_status decode_row(gs_param_spec *param, const gs_json *row, size_t index) {
    const char *name = gs_json_string(gs_json_at(row, 0));
    const char *dtype = gs_json_string(gs_json_at(row, 1));
    const gs_json *shape = gs_json_at(row, 2);
    if (!name || !dtype || strlen(name) >= GS_PARAM_NAME_LEN) {
        return gs_error(GS_INVALID_ARGUMENT, "parameter %zu: must be [name, dtype, [shape]]",
                        index);
    }
    memset(param, 0, sizeof *param);
    snprintf(param->name, sizeof param->name, "%s", name);
    param->dtype = gs_dtype_from_name(dtype);
    if (gs_json_count(shape) > GS_MAX_DIMS) {
        return gs_error(GS_INVALID_ARGUMENT, "parameter %zu \"%s\": more than %d dimensions", index,
                        name, GS_MAX_DIMS);
    }
    param->num_dims = (int)gs_json_count(shape);
    for (int i = 0; i < param->num_dims; i++) {
        if (!gs_json_int(&param->shape[i], gs_json_at(shape, (size_t)i))) {
            return gs_error(GS_INVALID_ARGUMENT, "parameter %zu \"%s\": a dimension is no integer",
                            index, name);
        }
    }
    param->sparse = gs_json_is_true(gs_json_at(row, 3));
    return gs_ok();
}

gs_status gs_param_page_read(gs_param_page *out, const gs_json *page) {
    const gs_json *rows = gs_json_get(page, "params");
    size_t num_rows = gs_json_count(rows);
    *out = (gs_param_page){.first = gs_json_int_or(page, "first", 0), .more = gs_json_bool_or(page, "more", false)};
    if (num_rows > GS_PARAM_PAGE_ROWS)
        return gs_error(GS_INVALID_ARGUMENT, "params: a page of %zu, allowed are %d", num_rows, GS_PARAM_PAGE_ROWS);
    out->params = calloc(num_rows ? num_rows : 1, sizeof *out->params);
    if (!out->params) return gs_error(GS_RESOURCE_EXHAUSTED, "params: out of memory");
    size_t begin = out->first > 0 ? (size_t)out->first : 0;
    for (size_t i = 0; i < num_rows; i++, out->num_params++) {
        gs_status status = decode_row(&out->params[i], gs_json_at(rows, i), begin + i);
        if (!status.code) continue;
        gs_param_page_release(out);
        return status;
    }
    return gs_ok();
}

void gs_param_page_release(gs_param_page *page) {
    free(page->params);
    *page = (gs_param_page){0};
}

static gs_status check_page(const gs_param_list *list, const gs_param_page *page) {
    if (page->first < 0 || (size_t)page->first != list->num_params) {
        return gs_error(GS_INVALID_ARGUMENT, "params: a page from %lld on, wanted from %zu on",
                        (long long)page->first, list->num_params);
    }
    size_t count = list->num_params + page->num_params;
    if (page->num_params > 0 && count <= GS_MAX_PARAMS) return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT, "params: %zu parameters, allowed are 1 to %d", count,
                    GS_MAX_PARAMS);
}

gs_status gs_param_list_append(gs_param_list *list, const gs_param_page *page) {
    if (page->first == 0) gs_param_list_release(list);
    GS_TRY(check_page(list, page));
    size_t count = list->num_params + page->num_params;
    gs_param_spec *params = realloc(list->params, count * sizeof *list->params);
    if (!params) return gs_error(GS_RESOURCE_EXHAUSTED, "params: out of memory");
    memcpy(&params[list->num_params], page->params, page->num_params * sizeof *params);
    list->params = params;
    list->num_params = count;
    if (page->more) return gs_ok();
    GS_TRY(gs_param_specs_check(list->params, list->num_params));
    list->is_complete = true;
    return gs_ok();
}

gs_status gs_param_list_add(gs_param_list *list, const gs_json *page) {
    gs_param_page rows;
    GS_TRY(gs_param_page_read(&rows, page));
    gs_status status = gs_param_list_append(list, &rows);
    gs_param_page_release(&rows);
    return status;
}

void gs_param_list_release(gs_param_list *list) {
    if (!list) return;
    free(list->params);
    *list = (gs_param_list){0};
}
