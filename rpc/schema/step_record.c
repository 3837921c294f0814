#include "rpc/schema/step_record.h"

#include <ctype.h>
#include <endian.h>
#include <stdbool.h>
#include <string.h>

#define MAX_STEP ((int64_t)1 << 53)
#define MAX_COUNT ((uint64_t)MAX_STEP)  // what a double holds whole: sums and texts are made of them
#define HEADER_BYTES 40
#define BUCKET_BYTES 80
#define WAITS_BYTES 48
#define STEP_BYTES (16 + 8 * GS_NUM_REPORT_POINTS)
#define MAX_BINS (GS_METRIC_MAX_BOUNDS + 1)
_Static_assert(HEADER_BYTES + 64 * 8 + GS_NUM_REPORT_HISTOGRAMS * 8 * (MAX_BINS + 1) +
                       GS_REPORT_MAX_BUCKETS * BUCKET_BYTES + GS_REPORT_MAX_WAITS * WAITS_BYTES +
                       GS_REPORT_MAX_HISTORY * STEP_BYTES <=
                   GS_STEP_RECORD_MAX_BYTES,
               "every report fits");

typedef struct writer {
    uint8_t *at;
} writer;

static void put_bytes(writer *to, const void *data, size_t bytes) {
    memcpy(to->at, data, bytes);
    to->at += bytes;
}

static void put_u8(writer *to, uint8_t value) { *to->at++ = value; }

static void put_u16(writer *to, size_t value) {
    uint16_t wire = htole16((uint16_t)value);
    put_bytes(to, &wire, sizeof wire);
}

static void put_u32(writer *to, uint32_t value) {
    uint32_t wire = htole32(value);
    put_bytes(to, &wire, sizeof wire);
}

static void put_u64(writer *to, uint64_t value) {
    uint64_t wire = htole64(value);
    put_bytes(to, &wire, sizeof wire);
}

static void put_double(writer *to, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_u64(to, bits);
}

static void put_bucket(writer *to, const gs_report_bucket *bucket) {
    char algorithm[15] = "";
    memcpy(algorithm, bucket->algorithm, strnlen(bucket->algorithm, sizeof algorithm - 1));
    put_u32(to, (uint32_t)bucket->index);
    put_u32(to, (uint32_t)bucket->ready_position);
    put_u64(to, bucket->bytes);
    put_u8(to, bucket->travelled);
    put_bytes(to, algorithm, sizeof algorithm);
    const double seconds[] = {bucket->ready,    bucket->launched, bucket->arrived,
                              bucket->finished, bucket->algbw,    bucket->busbw};
    for (int i = 0; i < 6; i++) put_double(to, seconds[i]);
}

static void put_waits(writer *to, const gs_report_waits *waits) {
    put_u64(to, (uint64_t)waits->step);
    const double seconds[] = {waits->compute, waits->wait, waits->transfer, waits->data, waits->step_seconds};
    for (int i = 0; i < 5; i++) put_double(to, seconds[i]);
}

size_t gs_step_record_pack(uint8_t *record, const gs_step_report *report) {
    writer to = {record};
    put_u16(&to, GS_STEP_RECORD_VERSION);
    put_u16(&to, report->num_buckets);
    put_u16(&to, report->num_waits);
    put_u16(&to, report->num_history);
    for (int i = 0; i < GS_NUM_REPORT_HISTOGRAMS; i++) put_u8(&to, report->num_bins[i]);
    put_u8(&to, 0);
    put_u32(&to, (uint32_t)report->generation);
    put_u32(&to, (uint32_t)report->rank);
    put_u32(&to, 0);
    put_u64(&to, (uint64_t)report->step);
    put_u64(&to, report->known);
    for (int i = 0; i < GS_NUM_REPORT_VALUES; i++) {
        if (report->known >> i & 1) put_double(&to, report->values[i]);
    }
    for (int k = 0; k < GS_NUM_REPORT_HISTOGRAMS; k++) {
        for (int i = 0; i < report->num_bins[k]; i++) put_u64(&to, report->histograms[k].counts[i]);
        if (report->num_bins[k]) put_double(&to, report->histograms[k].sum);
    }
    for (size_t i = 0; i < report->num_buckets; i++) put_bucket(&to, &report->buckets[i]);
    for (size_t i = 0; i < report->num_waits; i++) put_waits(&to, &report->waits[i]);
    for (size_t i = 0; i < report->num_history; i++) {
        put_u64(&to, (uint64_t)report->history[i].step);
        put_u64(&to, report->history[i].known);
        for (int k = 0; k < GS_NUM_REPORT_POINTS; k++) put_double(&to, report->history[i].points[k]);
    }
    return (size_t)(to.at - record);
}

// The length is checked before anything behind the header is read.
typedef struct reader {
    const uint8_t *at;
} reader;

static uint8_t take_u8(reader *from) { return *from->at++; }

static uint16_t take_u16(reader *from) {
    uint16_t wire;
    memcpy(&wire, from->at, sizeof wire);
    from->at += sizeof wire;
    return le16toh(wire);
}

static uint32_t take_u32(reader *from) {
    uint32_t wire;
    memcpy(&wire, from->at, sizeof wire);
    from->at += sizeof wire;
    return le32toh(wire);
}

static uint64_t take_u64(reader *from) {
    uint64_t wire;
    memcpy(&wire, from->at, sizeof wire);
    from->at += sizeof wire;
    return le64toh(wire);
}

static double take_double(reader *from) {
    uint64_t bits = take_u64(from);
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static gs_status refuse(const char *what, int64_t value) {
    return gs_error(GS_INVALID_ARGUMENT, "step record: %s %lld", what, (long long)value);
}

// *all: the values that were sent, those that are not known here too.
static gs_status take_header(gs_step_report *report, uint64_t *all, reader *from, size_t bytes) {
    if (bytes < HEADER_BYTES) return refuse("of length", (int64_t)bytes);
    unsigned version = take_u16(from);
    if (version != GS_STEP_RECORD_VERSION) return refuse("of version", version);
    report->num_buckets = take_u16(from);
    report->num_waits = take_u16(from);
    report->num_history = take_u16(from);
    size_t num_counts = 0;
    for (int i = 0; i < GS_NUM_REPORT_HISTOGRAMS; i++) {
        report->num_bins[i] = take_u8(from);
        if (report->num_bins[i] > MAX_BINS) return refuse("with bins", report->num_bins[i]);
        num_counts += report->num_bins[i] ? report->num_bins[i] + (size_t)1 : 0;
    }
    uint8_t reserved = take_u8(from);
    report->generation = take_u32(from);
    report->rank = (int32_t)take_u32(from);
    uint32_t reserved_too = take_u32(from);
    report->step = (int64_t)take_u64(from);
    *all = take_u64(from);
    if (reserved || reserved_too) return refuse("with reserved bits", reserved);
    if (report->rank < 0) return refuse("of rank", report->rank);
    if (report->step < 0 || report->step > MAX_STEP) return refuse("of step", report->step);
    if (report->num_buckets > GS_REPORT_MAX_BUCKETS) return refuse("with buckets", (int64_t)report->num_buckets);
    if (report->num_waits > GS_REPORT_MAX_WAITS) return refuse("with waits", (int64_t)report->num_waits);
    if (report->num_history > GS_REPORT_MAX_HISTORY) return refuse("with steps", (int64_t)report->num_history);
    size_t expected = HEADER_BYTES + 8 * ((size_t)__builtin_popcountll(*all) + num_counts) +
                      BUCKET_BYTES * report->num_buckets + WAITS_BYTES * report->num_waits +
                      STEP_BYTES * report->num_history;
    return bytes == expected ? gs_ok() : refuse("of another length,", (int64_t)bytes);
}

static gs_status take_bucket(gs_report_bucket *out, reader *from) {
    out->index = (int32_t)take_u32(from);
    out->ready_position = (int32_t)take_u32(from);
    out->bytes = take_u64(from);
    if (out->bytes > MAX_COUNT) return refuse("with a bucket of bytes", (int64_t)out->bytes);
    uint8_t travelled = take_u8(from);
    out->travelled = travelled == 1;
    memcpy(out->algorithm, from->at, sizeof out->algorithm);
    from->at += sizeof out->algorithm;
    double *const seconds[] = {&out->ready,    &out->launched, &out->arrived,
                               &out->finished, &out->algbw,    &out->busbw};
    for (int i = 0; i < 6; i++) *seconds[i] = take_double(from);
    if (travelled > 1 || out->index < -1 || out->ready_position < -1) return refuse("with a bucket of index", out->index);
    size_t length = strnlen(out->algorithm, sizeof out->algorithm);
    if (length == sizeof out->algorithm) return refuse("with an algorithm of length", (int64_t)length);
    for (size_t i = 0; i < sizeof out->algorithm; i++) {
        unsigned char c = (unsigned char)out->algorithm[i];
        if (i < length ? !isgraph(c) : c != 0) return refuse("with an algorithm that has byte", c);
    }
    return gs_ok();
}

static gs_status take_rows(gs_step_report *report, gs_report_rows *rows, reader *from) {
    for (size_t i = 0; i < report->num_buckets; i++) GS_TRY(take_bucket(&rows->buckets[i], from));
    for (size_t i = 0; i < report->num_waits; i++) {
        gs_report_waits *waits = &rows->waits[i];
        waits->step = (int64_t)take_u64(from);
        double *const seconds[] = {&waits->compute, &waits->wait, &waits->transfer, &waits->data,
                                   &waits->step_seconds};
        for (int k = 0; k < 5; k++) *seconds[k] = take_double(from);
        if (waits->step < 0 || waits->step > MAX_STEP) return refuse("with waits of step", waits->step);
    }
    for (size_t i = 0; i < report->num_history; i++) {
        gs_report_step *step = &rows->history[i];
        step->step = (int64_t)take_u64(from);
        step->known = take_u64(from);
        if (step->step < 0 || step->step > MAX_STEP) return refuse("with step", step->step);
        if (step->known >> GS_NUM_REPORT_POINTS) return refuse("with points", (int64_t)step->known);
        for (int k = 0; k < GS_NUM_REPORT_POINTS; k++) step->points[k] = take_double(from);
    }
    report->buckets = rows->buckets;
    report->waits = rows->waits;
    report->history = rows->history;
    return gs_ok();
}

gs_status gs_step_record_unpack(gs_step_report *report, gs_report_rows *rows, const void *record, size_t bytes) {
    reader from = {record};
    uint64_t all = 0;
    *report = (gs_step_report){0};
    GS_TRY(take_header(report, &all, &from, bytes));
    for (int i = 0; i < 64; i++) {
        if (!(all >> i & 1)) continue;
        double value = take_double(&from);
        if (i < GS_NUM_REPORT_VALUES) gs_step_report_set(report, (gs_report_value)i, value);
    }
    for (int k = 0; k < GS_NUM_REPORT_HISTOGRAMS; k++) {
        for (int i = 0; i < report->num_bins[k]; i++) {
            uint64_t count = take_u64(&from);
            if (count > MAX_COUNT) return refuse("with a count of", (int64_t)count);
            report->histograms[k].counts[i] = count;
        }
        if (report->num_bins[k]) report->histograms[k].sum = take_double(&from);
    }
    return take_rows(report, rows, &from);
}
