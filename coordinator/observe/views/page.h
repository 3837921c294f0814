// A page of a long answer: at most so many items, and so many bytes that it can be sent whatever they hold. Where it
// ends, a cursor says where the next one begins.
#ifndef COORDINATOR_OBSERVE_VIEWS_PAGE_H
#define COORDINATOR_OBSERVE_VIEWS_PAGE_H

#include <stdbool.h>
#include <stddef.h>

#include "core/status.h"
#include "rpc/json/json.h"

#define GS_PAGE_MAX_ITEMS 500
#define GS_PAGE_MAX_BYTES ((size_t)512 * 1024)  // of its items; what goes around them has as much again

typedef struct gs_page {
    gs_json *items;  // owned until it ends
    size_t limit, bytes;
} gs_page;

// `limit` of the request, or `usual`. INVALID_ARGUMENT: not one to GS_PAGE_MAX_ITEMS.
GS_NODISCARD gs_status gs_page_begin(gs_page *page, const gs_json *request, int64_t usual);
// Takes item. False: it belongs to the next page. The first one always fits.
bool gs_page_add(gs_page *page, gs_json *item);
// The items are the caller's.
gs_json *gs_page_end(gs_page *page);

// Of items with numbers from 0, whose cursor is the last one's: where the page begins.
GS_NODISCARD gs_status gs_page_read_first(int *first, const gs_json *request);
void gs_page_set_last(gs_json *reply, int last);

#endif
