// How long the loop takes for the view of a plan as people see it, when the plan is made; of a model with so many parameters of 1,000
// elements in buckets of 1 MiB. The median of 101, of the time that its thread computes.
//
//   bench_plan_view [PARAMETERS]
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "coordinator/observe/views/plan_view.h"

#define TIMES 101

static double computed_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}

static int compare(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

int main(int argc, char **argv) {
    size_t num_params = argc > 1 ? strtoul(argv[1], NULL, 10) : 20000;
    gs_param_spec *params = calloc(num_params, sizeof *params);
    gs_bucket_plan plan;
    gs_hook_rule hook = {.kind = "allreduce"};
    gs_plan_header header = {.revision = 1, .reason = "size_based", .hash = "xxh3:0", .world_size = 2, .hook = &hook};
    if (!params) return 1;
    for (size_t i = 0; i < num_params; i++) params[i] = gs_param_spec_make(GS_FP32, 10, 100, "transformer.layers.%zu.weight", i);
    if (gs_bucket_plan_parity(&plan, params, num_params, 1 << 20, 1 << 20, NULL).code) return 1;
    double ms[TIMES];
    for (int i = 0; i < TIMES; i++) {
        double begun_ms = computed_ms();
        gs_json *view = gs_plan_to_view(&plan, &header, params, NULL);
        gs_plan_view_seal(view);
        ms[i] = computed_ms() - begun_ms;
        gs_json_release(view);
    }
    qsort(ms, TIMES, sizeof *ms, compare);
    printf("parameters=%zu buckets=%zu view_ms=%.2f least=%.2f most=%.2f\n", num_params, plan.num_buckets, ms[TIMES / 2], ms[0], ms[TIMES - 1]);
    gs_bucket_plan_release(&plan);
    free(params);
    return 0;
}
