#include "core/metrics_text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_SHORT_WHOLE 1e15  // below it every whole number has at most 15 digits

// The shortest text that reads back as the same number.
static void write_value(gs_strbuf *out, double value) {
    char text[40];
    if (isnan(value)) {
        snprintf(text, sizeof text, "NaN");
    } else if (isinf(value)) {
        snprintf(text, sizeof text, "%cInf", value > 0 ? '+' : '-');
    } else if (fabs(value) < MAX_SHORT_WHOLE && value == floor(value)) {
        snprintf(text, sizeof text, "%" PRId64, (int64_t)value);
    } else {
        snprintf(text, sizeof text, "%.15g", value);
        if (strtod(text, NULL) != value) snprintf(text, sizeof text, "%.17g", value);
    }
    gs_strbuf_puts(out, text);
}

static void write_escaped(gs_strbuf *out, const char *text) {
    for (const char *c = text; *c; c++) {
        if (*c == '\n') gs_strbuf_puts(out, "\\n");
        else if (*c == '\\' || *c == '"') gs_strbuf_printf(out, "\\%c", *c);
        else gs_strbuf_putc(out, *c);
    }
}

static void write_line(gs_strbuf *out, const gs_metric_sample *sample, const char *suffix,
                       const double *bound, double value) {
    const gs_metric_family *family = sample->family;
    char separator = '{';
    gs_strbuf_puts(out, family->name);
    gs_strbuf_puts(out, suffix);
    for (size_t i = 0; i < GS_METRIC_MAX_LABELS && family->labels[i]; i++) {
        gs_strbuf_putc(out, separator);
        gs_strbuf_puts(out, family->labels[i]);
        gs_strbuf_puts(out, "=\"");
        write_escaped(out, sample->label_values[i]);
        gs_strbuf_putc(out, '"');
        separator = ',';
    }
    if (bound) {
        gs_strbuf_putc(out, separator);
        gs_strbuf_puts(out, "le=\"");
        write_value(out, *bound);
        gs_strbuf_putc(out, '"');
        separator = ',';
    }
    gs_strbuf_puts(out, separator == ',' ? "} " : " ");
    write_value(out, value);
    gs_strbuf_putc(out, '\n');
}

void gs_metric_sample_write(gs_strbuf *out, const gs_metric_sample *sample) {
    const gs_metric_family *family = sample->family;
    if (family->type != GS_HISTOGRAM) {
        write_line(out, sample, "", NULL, sample->value);
        return;
    }
    uint64_t total = 0;
    for (size_t i = 0; i <= family->num_bounds; i++) {
        double bound = i < family->num_bounds ? family->bounds[i] : HUGE_VAL;
        total += sample->histogram.counts[i];
        write_line(out, sample, "_bucket", &bound, (double)total);
    }
    write_line(out, sample, "_sum", NULL, sample->histogram.sum);
    write_line(out, sample, "_count", NULL, (double)total);
}
