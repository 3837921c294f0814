#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "tests/conformance/conformance.h"
#include "tests/conformance/training.h"
#include "tests/support/sample.h"
#include "tests/support/test_device.h"

#define SKIPPED 77

static const conformance_kind kinds[] = {
    {"bucket-assign", "bucket_assignment.json", conformance_bucket_assign},
    {"take", "take_tensors.json", conformance_take},
    {"partition", "oss_partition.json zero_partition.json sdp_buckets.json", conformance_partition},
    {"zero-assign", "zero_overlap.json", conformance_zero_assign},
    {"train-mlp", "[--sharded] ddp_mlp/*.safetensors", conformance_train_mlp},
    {"zero-train", "zero_overlap/*.safetensors", conformance_zero_train},
    {"clip-scale", "clip_and_scale.json", conformance_clip_scale},
    {"gpt2", "gpt2_tiny.safetensors [--world 1|2]", conformance_gpt2},
    {"hook", "hooks.safetensors", conformance_hook},
    {"powersgd", "powersgd/*.safetensors", conformance_powersgd},
};

static const gs_rank_body bodies[] = {
    {"train-mlp", conformance_train_mlp_rank},   {"zero-train", conformance_zero_train_rank},
    {"clip-sharded", conformance_clip_rank},     {"gpt2-start", conformance_gpt2_start_rank},
    {"gpt2-train", conformance_gpt2_train_rank}, {"hook", conformance_hook_rank},
    {"powersgd", conformance_powersgd_rank},     {NULL, NULL},
};

void conformance_pass(conformance *run, const char *name) {
    run->num_passed++;
    printf("ok   %s\n", name);
}

void conformance_fail(conformance *run, const char *name, const char *format, ...) {
    run->num_failed++;
    printf("FAIL %s: ", name);
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
}

void conformance_case(conformance *run, const char *name, gs_status status) {
    if (status.code)
        conformance_fail(run, name, "%s", status.message);
    else
        conformance_pass(run, name);
}

static int print_usage(void) {
    fprintf(stderr, "usage: gradsync-conformance [--draw N] KIND FILE... [OPTIONS]\n");
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        fprintf(stderr, "  %-14s %s\n", kinds[i].name, kinds[i].usage);
    return 2;
}

// With --draw N before the kind, or GRADSYNC_SAMPLE=N, every Nth of the files, from one that
// GRADSYNC_SEED draws; GRADSYNC_RUNS=all takes all where --draw says less. Options before the files
// stay; with others behind them all do.
static int sample_files(char **words, int num_words, uint64_t share) {
    const char *runs = getenv("GRADSYNC_RUNS");
    sample drawn = sample_from_environment();
    if (share && !(runs && strcmp(runs, "all") == 0)) drawn.share = share;
    int first = 0;
    while (first < num_words && strncmp(words[first], "--", 2) == 0) first++;
    int num_files = num_words - first, num_taken = 0;
    if (drawn.share <= 1 || num_files < 2) return num_words;
    if (drawn.share > (uint64_t)num_files) drawn.share = (uint64_t)num_files;
    char **files = words + first;
    for (int i = 0; i < num_files; i++)
        if (strncmp(files[i], "--", 2) == 0) return num_words;
    sample_say(&drawn, "the files");
    for (int i = 0; i < num_files; i++)
        if ((uint64_t)i % drawn.share == drawn.seed % drawn.share) files[num_taken++] = files[i];
    return first + num_taken;
}

int main(int argc, char **argv) {
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    uint64_t share = 0;
    if (argc > 2 && strcmp(argv[1], "--draw") == 0) {
        share = strtoull(argv[2], NULL, 10);
        argv += 2;
        argc -= 2;
    }
    if (argc < 3) return print_usage();
    char why[256];
    if (strcmp(gs_test_device_name(), "cpu") != 0 && gs_cuda_device_count(why, sizeof why) == 0) {
        gs_test_miss_device(why);
        printf("skipped: %s\n", why);
        return SKIPPED;
    }
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(kinds[i].name, argv[1]) != 0) continue;
        conformance run = {0};
        gs_status status = kinds[i].run(&run, argv + 2, sample_files(argv + 2, argc - 2, share));
        if (status.code) {
            fprintf(stderr, "gradsync-conformance: %s\n", status.message);
            return 2;
        }
        printf("%s: %d of %d cases pass\n", kinds[i].name, run.num_passed,
               run.num_passed + run.num_failed);
        return run.num_failed || !run.num_passed;
    }
    fprintf(stderr, "gradsync-conformance: there is no kind \"%s\"\n", argv[1]);
    return print_usage();
}
