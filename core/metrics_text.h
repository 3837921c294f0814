// Samples of a registry as lines of the Prometheus text format (0.0.4).
//
// Only the lines: help and type of a family are written by whoever puts the page together.
#ifndef CORE_METRICS_TEXT_H
#define CORE_METRICS_TEXT_H

#include "core/metrics.h"
#include "core/strbuf.h"

void gs_metric_sample_write(gs_strbuf *out, const gs_metric_sample *sample);

#endif
