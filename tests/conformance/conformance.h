// gradsync-conformance KIND FILE... [OPTIONS]: checks numeric referees through the library.
//
// To add a kind: a file here, a line in the tables of main.c. A kind reads its files, computes from the
// inputs in them, compares, and reports each case. Kinds with ranks re-execute this program
// (tests/support/ranks.h): their bodies are in the second table.
#ifndef TESTS_CONFORMANCE_H
#define TESTS_CONFORMANCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "core/bucket_plan.h"
#include "core/clock.h"
#include "core/status.h"
#include "tests/support/ranks.h"

typedef struct conformance {
    int num_passed, num_failed;
} conformance;

// One line each.
void conformance_pass(conformance *run, const char *name);
void conformance_fail(conformance *run, const char *name, const char *format, ...)
    GS_PRINTF(3, 4);
// Passes when `status` is ok, else fails with its message.
void conformance_case(conformance *run, const char *name, gs_status status);

// `args` are the files and options behind the kind's name. An error is for what keeps the kind from
// running (no such file); a case that differs is reported and is no error.
typedef struct conformance_kind {
    const char *name;
    const char *usage;
    gs_status (*run)(conformance *run, char **args, int num_args);
} conformance_kind;

gs_status conformance_bucket_assign(conformance *run, char **args, int num_args);
gs_status conformance_take(conformance *run, char **args, int num_args);
gs_status conformance_partition(conformance *run, char **args, int num_args);
gs_status conformance_zero_assign(conformance *run, char **args, int num_args);

// Of ranks. On the software machine they take a multiple of the time, and its host is often busy with others of its kind.
static inline gs_deadline conformance_deadline(double seconds) {
#ifdef GRADSYNC_CUDA_SIM
    seconds *= 4;
#endif
    return gs_deadline_in_seconds(seconds);
}

// What ranks reduce over: GRADSYNC_CONFORMANCE_BACKEND; NULL unless it says something: as it comes.
static inline const char *conformance_backend(void) {
    return getenv("GRADSYNC_CONFORMANCE_BACKEND");
}

// Helpers for the JSON files: the tensors of one case (fields numel, dtype, device), malloc'd.
struct json_object;
GS_NODISCARD gs_status conformance_read_json(struct json_object **out, const char *path);
GS_NODISCARD gs_status conformance_read_tensors(gs_plan_tensor **out, size_t *num_tensors,
                                                struct json_object *item);

#endif
