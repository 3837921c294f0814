// Lives of the coordinator's engine, millions of them.
//
//     test_simulation [--seed S] [--histories N] [--seconds T] [--first] [--tell]
//
// Each history is made of its seed alone. A finding names its seed; --tell tells that history in words.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "tests/simulation/coordinator.h"
#include "tests/simulation/database.h"
#include "tests/simulation/model.h"
#include "tests/simulation/oracle.h"

#define MOST_FINDINGS 20

typedef struct run_settings {
    uint64_t seed;
    long histories;
    bool tells, ends_at_first;  // finding
    double seconds;  // at most; 0: all
} run_settings;

static run_settings parse(int argc, char **argv) {
    run_settings settings = {.seed = 1, .histories = 200};
    for (int i = 1; i < argc; i++) {
        bool has_value = i + 1 < argc;
        if (!strcmp(argv[i], "--tell")) settings.tells = true;
        else if (!strcmp(argv[i], "--first")) settings.ends_at_first = true;
        else if (has_value && !strcmp(argv[i], "--seed")) settings.seed = strtoull(argv[++i], NULL, 10);
        else if (has_value && !strcmp(argv[i], "--histories")) settings.histories = strtol(argv[++i], NULL, 10);
        else if (has_value && !strcmp(argv[i], "--seconds")) settings.seconds = strtod(argv[++i], NULL);
        else {
            fprintf(stderr, "usage: %s [--seed S] [--histories N] [--seconds T] [--first] [--tell]\n", argv[0]);
            exit(64);
        }
    }
    return settings;
}

static int compare(const void *a, const void *b) {
    long x = *(const long *)a, y = *(const long *)b;
    return (x > y) - (x < y);
}

static void print_ends(void) {
    printf("The coordinator was killed behind an effect (and others of that step never happened):\n");
    for (int kind = 0; kind < GS_NUM_EFFECTS; kind++)
        printf("%12ld (%ld)  %s\n", coordinator_ended[kind].all, coordinator_ended[kind].unfinished, gs_effect_name((gs_effect_kind)kind));
}

static void print_databases(void) {
    const database_counts *counted = &database_counted;
    printf("SQLite kept the rows of %ld histories: %ld transactions; %ld crashes, %ld in a transaction, %ld with the power; "
           "%ld starts and %ld that the disk refused; found: %ld all that was acknowledged, %ld that and the last transaction, "
           "%ld less, of a disk that lied, %ld unclear, %ld damaged\n",
           counted->histories, counted->transactions, counted->crashes, counted->in_transactions, counted->power_failures,
           counted->starts, counted->refused, counted->found_newest, counted->found_last, counted->found_older,
           counted->found_unclear, counted->set_aside);
}

static void print_rows(void) {
    for (int machine = 0; machine < GS_NUM_MACHINES; machine++) {
        const gs_transition_table *table = gs_transitions_of((gs_machine)machine);
        for (int row = 0; row < table->num_rows; row++) {
            const gs_transition *transition = &table->rows[row];
            printf("%12" PRIu64 "  %s: %s to %s, %s\n", coordinator_taken[machine][row], table->name,
                   table->state_name(transition->from), table->state_name(transition->to), transition->when);
        }
    }
}

int main(int argc, char **argv) {
    run_settings settings = parse(argc, argv);
    long *events = calloc((size_t)settings.histories + 1, sizeof *events);
    long faults = 0, trainers = 0, done = 0, findings = 0;
    int64_t begun_ns = gs_now_ns();
    for (long i = 0; i < settings.histories; i++) {
        if (settings.seconds > 0 && gs_seconds_since(begun_ns) > settings.seconds) break;
        sim_world world;
        uint64_t seed = settings.seed + (uint64_t)i;
        world_create(&world, &(world_options){.seed = seed, .tells = settings.tells, .has_faults = true});
        world_run(&world);
        const char *finding = oracle_finding(&world);
        if (finding) {
            printf("seed %" PRIu64 ": %s\n", seed, finding);
            fflush(stdout);
            findings++;
        }
        events[done++] = world.num_events;
        faults += world.num_faults;
        trainers += world.num_trainers;
        world_destroy(&world);
        if (findings >= (settings.ends_at_first ? 1 : MOST_FINDINGS)) break;
    }
    qsort(events, (size_t)done, sizeof *events, compare);
    if (!settings.tells) {
        print_rows();
        print_ends();
        print_databases();
    }
    printf("%ld histories in %.1f s, %ld findings; events of one: median %ld, most %ld; faults %ld, trainers %ld in all\n", done,
           gs_seconds_since(begun_ns), findings, done ? events[done / 2] : 0, done ? events[done - 1] : 0, faults, trainers);
    free(events);
    model_release();
    return findings ? 1 : 0;
}
