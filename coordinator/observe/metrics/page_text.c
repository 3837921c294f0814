#include "coordinator/observe/metrics/page_text.h"

#include <stdlib.h>
#include <string.h>

#include "core/metrics_text.h"
#include "rpc/json/json.h"

#define ITEM_BYTES ((size_t)64 << 10)

void gs_page_text_release(gs_page_text *page) {
    for (size_t i = 0; i < page->num_families; i++) gs_strbuf_release(&page->families[i].text);
    *page = (gs_page_text){0};
}

// Samples of a family often follow each other.
static gs_page_family *find_family(gs_page_text *page, const gs_metric_family *family) {
    if (page->num_families > 0 && page->families[page->latest].family == family) return &page->families[page->latest];
    size_t index = 0;
    while (index < page->num_families && page->families[index].family != family) index++;
    if (index == GS_PAGE_MAX_FAMILIES) return NULL;
    if (index == page->num_families) page->families[page->num_families++].family = family;
    page->latest = index;
    return &page->families[index];
}

void gs_page_text_add(void *ctx, const gs_metric_sample *sample) {
    gs_page_family *family = find_family(ctx, sample->family);
    if (family) gs_metric_sample_write(&family->text, sample);
}

void gs_page_items_release(gs_page_item *items) {
    while (items) {
        gs_page_item *next = items->next;
        free(items->text);
        free(items);
        items = next;
    }
}

static void push_part(gs_json *families, const gs_metric_family *family, const char *text, size_t bytes) {
    static const char *const types[] = {"counter", "gauge", "histogram"};
    gs_json *object = gs_json_new_object();
    gs_json_set_string(object, "name", family->name);
    gs_json_set_string(object, "type", types[family->type]);
    gs_json_set_string(object, "help", family->help);
    gs_json_set(object, "text", gs_json_new_string_len(text, bytes));
    gs_json_push(families, object);
}

// The lines from the beginning of `text` that an item with so much room takes; at least one.
static size_t whole_lines(const char *text, size_t bytes, size_t room) {
    if (bytes <= room) return bytes;
    size_t end = room;
    while (end > 0 && text[end - 1] != '\n') end--;
    if (end > 0) return end;
    const char *line = memchr(text, '\n', bytes);
    return line ? (size_t)(line - text) + 1 : bytes;
}

static gs_page_item *encode_item(gs_json *families) {
    gs_json *item = gs_json_new_object();
    gs_json_set(item, "families", families);
    gs_page_item *made = calloc(1, sizeof *made);
    gs_status status = made ? gs_json_encode(&made->text, &made->bytes, item, false) : gs_ok();
    gs_json_release(item);
    if (!status.code) return made;
    free(made);
    return NULL;
}

gs_page_item *gs_page_text_to_items(const gs_page_text *page) {
    gs_page_item *items = NULL, **end = &items;
    size_t index = 0, at = 0;
    while (index < page->num_families) {
        gs_json *families = gs_json_new_array();
        for (size_t filled = 0; index < page->num_families && filled < ITEM_BYTES;) {
            const gs_page_family *of = &page->families[index];
            size_t bytes = whole_lines(gs_strbuf_text(&of->text) + at, of->text.len - at, ITEM_BYTES - filled);
            push_part(families, of->family, gs_strbuf_text(&of->text) + at, bytes);
            filled += bytes;
            at += bytes;
            if (at < of->text.len) break;
            index++;
            at = 0;
        }
        *end = encode_item(families);
        if (*end) end = &(*end)->next;
    }
    return items;
}
