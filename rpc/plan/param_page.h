// The list of a model's parameters on its way to the coordinator: in pages, each within a message.
#ifndef RPC_PLAN_PARAM_PAGE_H
#define RPC_PLAN_PARAM_PAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/param_spec.h"
#include "core/status.h"
#include "rpc/json/json.h"

#define GS_MAX_PARAMS 20000
// So many of the longest rows, every character of their names escaped, are less than a message.
#define GS_PARAM_PAGE_ROWS 1000

// Writes {first, more, params:[[name, dtype, [shape…], true if sparse]…]} into `page`.
void gs_param_page_write(gs_json *page, const gs_param_spec *params, size_t num_params,
                         size_t first);

// A page as it came: rows with names, dtypes and shapes that can be.
typedef struct gs_param_page {
    gs_param_spec *params;  // owned
    size_t num_params;
    int64_t first;
    bool more;
} gs_param_page;

// INVALID_ARGUMENT names the parameter.
GS_NODISCARD gs_status gs_param_page_read(gs_param_page *out, const gs_json *page);
void gs_param_page_release(gs_param_page *page);

// What has come of a list.
typedef struct gs_param_list {
    gs_param_spec *params;  // owned
    size_t num_params;
    bool is_complete;
} gs_param_list;  // {0} is empty

// Adds a page; the first one begins anew. INVALID_ARGUMENT names the parameter.
GS_NODISCARD gs_status gs_param_list_append(gs_param_list *list, const gs_param_page *page);
GS_NODISCARD gs_status gs_param_list_add(gs_param_list *list, const gs_json *page);
void gs_param_list_release(gs_param_list *list);

#endif
