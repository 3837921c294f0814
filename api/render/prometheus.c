#include "api/render/prometheus.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FAMILIES = 512 };

typedef struct page_family {
    char name[128], type[16];
    char *help;
    gs_strbuf series;
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

void gs_prometheus_write_value(gs_strbuf *out, double value) {
    if (isnan(value)) {
        gs_strbuf_puts(out, "NaN");
    } else if (isinf(value)) {
        gs_strbuf_puts(out, value > 0 ? "+Inf" : "-Inf");
    } else {
        char text[40];
        snprintf(text, sizeof text, "%.15g", value);
        if (strtod(text, NULL) != value) snprintf(text, sizeof text, "%.17g", value);
        gs_strbuf_puts(out, text);
    }
}

static bool is_name(const char *name) {
    if (!name || !(isalpha((unsigned char)*name) || *name == '_')) return false;
    for (const char *c = name; *c; c++)
        if (!isalnum((unsigned char)*c) && *c != '_') return false;
    return true;
}

static void write_escaped(gs_strbuf *out, const char *text, bool quotes) {
    for (const char *c = text; *c; c++) {
        if (*c == '\\')
            gs_strbuf_puts(out, "\\\\");
        else if (*c == '\n')
            gs_strbuf_puts(out, "\\n");
        else if (*c == '"' && quotes)
            gs_strbuf_puts(out, "\\\"");
        else
            gs_strbuf_putc(out, *c);
    }
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

// Labels without braces: name="value",name="value".
static void write_label(gs_strbuf *labels, const char *name, const char *value) {
    if (!is_name(name)) return;
    if (labels->len > 0) gs_strbuf_putc(labels, ',');
    gs_strbuf_printf(labels, "%s=\"", name);
    write_escaped(labels, value, true);
    gs_strbuf_putc(labels, '"');
}

static void write_sample(page_family *family, const char *suffix, const char *labels,
                         const char *more_labels, double value) {
    gs_strbuf *out = &family->series;
    gs_strbuf_printf(out, "%s%s", family->name, suffix);
    if (*labels || *more_labels)
        gs_strbuf_printf(out, "{%s%s%s}", labels, *labels && *more_labels ? "," : "", more_labels);
    gs_strbuf_putc(out, ' ');
    gs_prometheus_write_value(out, value);
    gs_strbuf_putc(out, '\n');
}

// A bucket line each, cumulative; bound NULL is +Inf. Returns the new total.
static uint64_t write_bucket(page_family *family, const char *labels, const double *bound,
                             uint64_t total, uint64_t count) {
    gs_strbuf le = {0};
    gs_strbuf_puts(&le, "le=\"");
    gs_prometheus_write_value(&le, bound ? *bound : HUGE_VAL);
    gs_strbuf_putc(&le, '"');
    write_sample(family, "_bucket", labels, gs_strbuf_text(&le), (double)(total + count));
    gs_strbuf_release(&le);
    return total + count;
}

static uint64_t count_at(const gs_json *counts, size_t index) {
    int64_t count = 0;
    const gs_json *value = gs_json_at(counts, index);
    return value && gs_json_int(&count, value) && count > 0 ? (uint64_t)count : 0;
}

static void add_json_histogram(page_family *family, const char *labels, const gs_json *series) {
    const gs_json *bounds = gs_json_get(series, "bounds"), *counts = gs_json_get(series, "counts");
    size_t num_bounds = gs_json_count(bounds);
    uint64_t total = 0;
    for (size_t i = 0; i < num_bounds; i++) {
        double bound = 0;
        if (!gs_json_double(&bound, gs_json_at(bounds, i))) return;
        total = write_bucket(family, labels, &bound, total, count_at(counts, i));
    }
    total = write_bucket(family, labels, NULL, total, count_at(counts, num_bounds));
    write_sample(family, "_sum", labels, "", gs_json_double_or(series, "sum", 0));
    write_sample(family, "_count", labels, "", (double)total);
}

static void add_json_series(page_family *family, const gs_json *series) {
    gs_strbuf labels = {0};
    const gs_json *pairs = gs_json_get(series, "labels");
    for (size_t i = 0; i < gs_json_count(pairs); i++) {
        const gs_json *pair = gs_json_at(pairs, i);
        const char *name = gs_json_string(gs_json_at(pair, 0));
        const char *value = gs_json_string(gs_json_at(pair, 1));
        if (name) write_label(&labels, name, value ? value : "");
    }
    if (strcmp(family->type, "histogram") == 0)
        add_json_histogram(family, gs_strbuf_text(&labels), series);
    else
        write_sample(family, "", gs_strbuf_text(&labels), "",
                     gs_json_double_or(series, "value", NAN));
    gs_strbuf_release(&labels);
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
    const gs_json *series = gs_json_get(family_json, "series");
    for (size_t i = 0; i < gs_json_count(series); i++)
        add_json_series(family, gs_json_at(series, i));
}

static void add_sample(void *ctx, const gs_metric_sample *sample) {
    static const char *const types[] = {
        [GS_COUNTER] = "counter", [GS_GAUGE] = "gauge", [GS_HISTOGRAM] = "histogram"};
    const gs_metric_family *kind = sample->family;
    page_family *family = find_family(ctx, kind->name, types[kind->type], kind->help);
    if (!family) return;
    gs_strbuf labels = {0};
    for (size_t i = 0; i < GS_METRIC_MAX_LABELS && kind->labels[i]; i++)
        write_label(&labels, kind->labels[i], sample->label_values[i]);
    const char *text = gs_strbuf_text(&labels);
    if (kind->type != GS_HISTOGRAM) {
        write_sample(family, "", text, "", sample->value);
    } else {
        uint64_t total = 0;
        for (size_t i = 0; i <= kind->num_bounds; i++)
            total = write_bucket(family, text, i < kind->num_bounds ? &kind->bounds[i] : NULL,
                                 total, sample->histogram.counts[i]);
        write_sample(family, "_sum", text, "", sample->histogram.sum);
        write_sample(family, "_count", text, "", (double)total);
    }
    gs_strbuf_release(&labels);
}

void gs_prometheus_page_add_metrics(gs_prometheus_page *page, gs_metrics *metrics) {
    gs_metrics_visit(metrics, add_sample, page);
}

void gs_prometheus_page_write(const gs_prometheus_page *page, gs_strbuf *out) {
    for (size_t i = 0; i < page->num_families; i++) {
        const page_family *family = &page->families[i];
        if (family->series.len == 0) continue;
        gs_strbuf_printf(out, "# HELP %s ", family->name);
        write_escaped(out, family->help ? family->help : family->name, false);
        gs_strbuf_printf(out, "\n# TYPE %s %s\n", family->name, family->type);
        gs_strbuf_add(out, family->series.text, family->series.len);
    }
}
