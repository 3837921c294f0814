// The text of a metrics page, family by family, and the items that carry it. One thread at a time.
#ifndef COORDINATOR_OBSERVE_METRICS_PAGE_TEXT_H
#define COORDINATOR_OBSERVE_METRICS_PAGE_TEXT_H

#include <stddef.h>

#include "core/metrics.h"
#include "core/strbuf.h"

#define GS_PAGE_MAX_FAMILIES 192

typedef struct gs_page_family {
    const gs_metric_family *family;
    gs_strbuf text;  // owned
} gs_page_family;

typedef struct gs_page_text {
    gs_page_family families[GS_PAGE_MAX_FAMILIES];
    size_t num_families, latest;
} gs_page_text;  // {0} is empty

void gs_page_text_release(gs_page_text *page);
// A sample; also as what gs_metrics_visit_some calls.
void gs_page_text_add(void *page, const gs_metric_sample *sample);

// An encoded item {families:[…]} of some 64 KiB.
typedef struct gs_page_item {
    struct gs_page_item *next;
    char *text;  // owned
    size_t bytes;
} gs_page_item;

void gs_page_items_release(gs_page_item *items);
// All of the page, in order. What there was no memory for is left out.
gs_page_item *gs_page_text_to_items(const gs_page_text *page);

#endif
