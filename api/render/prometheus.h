// Prometheus text exposition, format 0.0.4, out of metric families: theirs is the page, the lines are
// core/metrics_text's, here and at the coordinator.
//
// Families may come in pieces (a page is collected from a stream); the text has each family once,
// with its series together. A family whose name is not legal is left out, so that it does not spoil
// the page.
#ifndef API_RENDER_PROMETHEUS_H
#define API_RENDER_PROMETHEUS_H

#include "core/metrics.h"
#include "core/strbuf.h"
#include "rpc/json/json.h"

#define GS_PROMETHEUS_TYPE "text/plain; version=0.0.4; charset=utf-8"

typedef struct gs_prometheus_page gs_prometheus_page;

gs_prometheus_page *gs_prometheus_page_create(void);  // NULL: out of memory
void gs_prometheus_page_destroy(gs_prometheus_page *page);
// {name, type, help, text}: `text` are lines.
void gs_prometheus_page_add_family(gs_prometheus_page *page, const gs_json *family);
void gs_prometheus_page_add_metrics(gs_prometheus_page *page, gs_metrics *metrics);
void gs_prometheus_page_write(const gs_prometheus_page *page, gs_strbuf *out);

#endif
