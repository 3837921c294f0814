#include "api/render/prometheus.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/metrics_text.h"

enum { MAX_FAMILIES = 512 };

typedef struct page_family {
    char name[128], type[16];
    char *help;
    gs_strbuf series;  // lines
} page_family;

struct gs_prometheus_page {
    page_family families[MAX_FAMILIES];
    size_t num_families;
};

gs_prometheus_page *gs_prometheus_page_create(void) {
    return calloc(1, sizeof(gs_prometheus_page));
}

void gs_prometheus_page_destroy(gs_prometheus_page *page) {
    if (!page) return;
    for (size_t i = 0; i < page->num_families; i++) {
        free(page->families[i].help);
        gs_strbuf_release(&page->families[i].series);
    }
    free(page);
}

static bool is_name(const char *name) {
    if (!name || !(isalpha((unsigned char)*name) || *name == '_')) return false;
    for (const char *c = name; *c; c++)
        if (!isalnum((unsigned char)*c) && *c != '_') return false;
    return true;
}

// The family of that name, made when new. NULL: no legal name, or the page is full.
static page_family *find_family(gs_prometheus_page *page, const char *name, const char *type,
                                const char *help) {
    if (!is_name(name) || strlen(name) >= sizeof page->families[0].name) return NULL;
    for (size_t i = 0; i < page->num_families; i++)
        if (strcmp(page->families[i].name, name) == 0) return &page->families[i];
    if (page->num_families == MAX_FAMILIES) return NULL;
    page_family *family = &page->families[page->num_families++];
    snprintf(family->name, sizeof family->name, "%s", name);
    snprintf(family->type, sizeof family->type, "%s", type);
    family->help = strdup(help && *help ? help : name);
    return family;
}

void gs_prometheus_page_add_family(gs_prometheus_page *page, const gs_json *family_json) {
    static const char *const types[] = {"counter", "gauge", "histogram"};
    const char *type = gs_json_string_or(family_json, "type", "");
    bool known = false;
    for (size_t i = 0; i < 3; i++) known |= strcmp(type, types[i]) == 0;
    page_family *family =
        find_family(page, gs_json_string_or(family_json, "name", ""), known ? type : "untyped",
                    gs_json_string_or(family_json, "help", ""));
    if (!family) return;
    gs_strbuf_puts(&family->series, gs_json_string_or(family_json, "text", ""));
}

static void add_sample(void *ctx, const gs_metric_sample *sample) {
    static const char *const types[] = {
        [GS_COUNTER] = "counter", [GS_GAUGE] = "gauge", [GS_HISTOGRAM] = "histogram"};
    const gs_metric_family *kind = sample->family;
    page_family *family = find_family(ctx, kind->name, types[kind->type], kind->help);
    if (family) gs_metric_sample_write(&family->series, sample);
}

void gs_prometheus_page_add_metrics(gs_prometheus_page *page, gs_metrics *metrics) {
    gs_metrics_visit(metrics, add_sample, page);
}

static void write_help(gs_strbuf *out, const char *text) {
    for (const char *c = text; *c; c++) {
        if (*c == '\n')
            gs_strbuf_puts(out, "\\n");
        else if (*c == '\\')
            gs_strbuf_puts(out, "\\\\");
        else
            gs_strbuf_putc(out, *c);
    }
}

void gs_prometheus_page_write(const gs_prometheus_page *page, gs_strbuf *out) {
    for (size_t i = 0; i < page->num_families; i++) {
        const page_family *family = &page->families[i];
        if (family->series.len == 0) continue;
        gs_strbuf_printf(out, "# HELP %s ", family->name);
        write_help(out, family->help ? family->help : family->name);
        gs_strbuf_printf(out, "\n# TYPE %s %s\n", family->name, family->type);
        gs_strbuf_add(out, family->series.text, family->series.len);
    }
}
