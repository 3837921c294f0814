#include "coordinator/observe/views/page.h"

#include <limits.h>

gs_status gs_page_begin(gs_page *page, const gs_json *request, int64_t usual) {
    *page = (gs_page){0};
    int64_t limit = usual;
    if (gs_json_get(request, "limit")) GS_TRY(gs_json_read_int(&limit, request, "limit", 1, GS_PAGE_MAX_ITEMS));
    page->limit = (size_t)limit;
    page->items = gs_json_new_array();
    return gs_ok();
}

bool gs_page_add(gs_page *page, gs_json *item) {
    size_t count = gs_json_count(page->items), bytes = gs_json_most_bytes(item) + 1;
    if (count > 0 && (count == page->limit || page->bytes + bytes > GS_PAGE_MAX_BYTES)) {
        gs_json_release(item);
        return false;
    }
    gs_json_push(page->items, item);
    page->bytes += bytes;
    return true;
}

gs_json *gs_page_end(gs_page *page) {
    gs_json *items = page->items;
    page->items = NULL;
    return items;
}

gs_status gs_page_read_first(int *first, const gs_json *request) {
    uint64_t last;
    *first = 0;
    if (!gs_json_get(request, "cursor")) return gs_ok();
    GS_TRY(gs_json_read_u64(&last, request, "cursor"));
    *first = last < INT_MAX ? (int)last + 1 : INT_MAX;
    return gs_ok();
}

void gs_page_set_last(gs_json *reply, int last) { gs_json_set_u64(reply, "next_cursor", (uint64_t)last); }
