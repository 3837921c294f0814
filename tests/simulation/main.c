// Lives of the coordinator's engine, millions of them.
//
//     test_simulation [--seed S | --drawn] [--histories N] [--seconds T] [--first] [--rows N] [--tell]
//
// Each history is made of its seed alone. A finding names its seed; --tell tells that history in words. --drawn: the seeds follow
// GRADSYNC_SEED. --rows: it is a failure when fewer rows of the transition tables are taken, and when most histories
// are poor: of events, trainers or faults.
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
#define REPEATED 20  // every such history is lived twice
// Of a history, as most of them are.
#define LEAST_EVENTS 300
#define LEAST_TRAINERS 3
#define LEAST_FAULTS 1

typedef struct run_settings {
    uint64_t seed;
    long histories, rows;
    bool tells, ends_at_first;  // finding
    double seconds;  // at most; 0: all
} run_settings;

// No two numbers have seeds in common that are looked at.
static uint64_t drawn_seed(void) {
    const char *number = getenv("GRADSYNC_SEED");
    uint64_t seed = (number ? strtoull(number, NULL, 10) : 0) * 1000000 + 1;
    printf("seeds from %" PRIu64 " (GRADSYNC_SEED=%s)\n", seed, number ? number : "0");
    return seed;
}

static run_settings parse(int argc, char **argv) {
    run_settings settings = {.seed = 1, .histories = 200};
    for (int i = 1; i < argc; i++) {
        bool has_value = i + 1 < argc;
        if (!strcmp(argv[i], "--tell")) settings.tells = true;
        else if (!strcmp(argv[i], "--first")) settings.ends_at_first = true;
        else if (!strcmp(argv[i], "--drawn")) settings.seed = drawn_seed();
        else if (has_value && !strcmp(argv[i], "--rows")) settings.rows = strtol(argv[++i], NULL, 10);
        else if (has_value && !strcmp(argv[i], "--seed")) settings.seed = strtoull(argv[++i], NULL, 10);
        else if (has_value && !strcmp(argv[i], "--histories")) settings.histories = strtol(argv[++i], NULL, 10);
        else if (has_value && !strcmp(argv[i], "--seconds")) settings.seconds = strtod(argv[++i], NULL);
        else {
            fprintf(stderr, "usage: %s [--seed S | --drawn] [--histories N] [--seconds T] [--first] [--rows N] [--tell]\n", argv[0]);
            exit(64);
        }
    }
    return settings;
}

static int compare(const void *a, const void *b) {
    long x = *(const long *)a, y = *(const long *)b;
    return (x > y) - (x < y);
}

// What happened in them, one number for each history.
typedef struct census {
    long *events, *trainers, *faults;
    long count;
} census;

static long median(long *numbers, long count) {
    qsort(numbers, (size_t)count, sizeof *numbers, compare);
    return count ? numbers[count / 2] : 0;
}

static long sum(const long *numbers, long count) {
    long all = 0;
    for (long i = 0; i < count; i++) all += numbers[i];
    return all;
}

static long count_at_least(const long *numbers, long count, long least) {
    long enough = 0;
    for (long i = 0; i < count; i++) enough += numbers[i] >= least;
    return enough;
}

static void print_ends(void) {
    printf("The coordinator was killed behind an effect (and others of that step never happened):\n");
    for (int kind = 0; kind < GS_NUM_EFFECTS; kind++)
        printf("%12ld (%ld)  %s\n", coordinator_ended[kind].all, coordinator_ended[kind].unfinished, gs_effect_name((gs_effect_kind)kind));
}

static void print_databases(void) {
    const database_counts *counted = &database_counted;
    printf("SQLite kept the rows of %ld histories: %ld transactions; %ld crashes, %ld in a transaction, %ld with the power; "
           "%ld behind which a failed one was not taken back yet; "
           "%ld starts and %ld that the disk refused; found: %ld all that was acknowledged, %ld that and the last transaction, "
           "%ld less, of a disk that lied, %ld unclear, %ld damaged\n",
           counted->histories, counted->transactions, counted->crashes, counted->in_transactions, counted->power_failures,
           counted->doubts, counted->starts, counted->refused, counted->found_newest, counted->found_last, counted->found_older,
           counted->found_unclear, counted->set_aside);
}

// How many there are that have been taken.
static long print_rows(void) {
    long taken = 0, rows = 0;
    for (int machine = 0; machine < GS_NUM_MACHINES; machine++) {
        const gs_transition_table *table = gs_transitions_of((gs_machine)machine);
        for (int row = 0; row < table->num_rows; row++) {
            const gs_transition *transition = &table->rows[row];
            uint64_t times = coordinator_taken[machine][row];
            printf("%12" PRIu64 "  %s: %s to %s, %s\n", times, table->name, table->state_name(transition->from),
                   table->state_name(transition->to), transition->when);
            taken += times > 0;
            rows++;
        }
    }
    printf("%ld of %ld rows are taken\n", taken, rows);
    return taken;
}

// False: they are too poor to show anything.
static bool judge_census(census *lives) {
    long events = median(lives->events, lives->count), trainers = median(lives->trainers, lives->count);
    long faults = median(lives->faults, lives->count);
    printf("of one: median %ld events (most %ld), %ld trainers, %ld faults; %ld of %ld have %d trainers, %ld have a fault\n", events,
           lives->count ? lives->events[lives->count - 1] : 0, trainers, faults,
           count_at_least(lives->trainers, lives->count, LEAST_TRAINERS), lives->count, LEAST_TRAINERS,
           count_at_least(lives->faults, lives->count, LEAST_FAULTS));
    return events >= LEAST_EVENTS && trainers >= LEAST_TRAINERS && faults >= LEAST_FAULTS;
}

typedef struct life {
    long events, trainers, faults;
    uint64_t dice;  // as they lie at its end
    bool is_wrong;
} life;

static life live(uint64_t seed, bool tells) {
    sim_world world;
    world_create(&world, &(world_options){.seed = seed, .tells = tells, .has_faults = true});
    world_run(&world);
    const char *finding = oracle_finding(&world);
    if (finding) printf("seed %" PRIu64 ": %s\n", seed, finding);
    fflush(stdout);
    const life lived = {world.num_events, world.num_trainers, world.num_faults, world.dice.state, finding != NULL};
    world_destroy(&world);
    return lived;
}

// False: something besides the seed decides what happens.
static bool lives_again(uint64_t seed, const life *first) {
    const life again = live(seed, false);
    bool is_same = again.events == first->events && again.dice == first->dice;
    if (!is_same) printf("seed %" PRIu64 ": lives another history the second time\n", seed);
    return is_same;
}

// True: something is wrong.
static bool note_life(census *lives, uint64_t seed, bool tells) {
    const life lived = live(seed, tells);
    lives->events[lives->count] = lived.events;
    lives->trainers[lives->count] = lived.trainers;
    lives->faults[lives->count++] = lived.faults;
    return lived.is_wrong || (!tells && seed % REPEATED == 0 && !lives_again(seed, &lived));
}

int main(int argc, char **argv) {
    run_settings settings = parse(argc, argv);
    size_t most = (size_t)settings.histories + 1;
    census lives = {calloc(most, sizeof(long)), calloc(most, sizeof(long)), calloc(most, sizeof(long)), 0};
    long findings = 0;
    int64_t begun_ns = gs_now_ns();
    while (lives.count < settings.histories && findings < (settings.ends_at_first ? 1 : MOST_FINDINGS)) {
        if (settings.seconds > 0 && gs_seconds_since(begun_ns) > settings.seconds) break;
        findings += note_life(&lives, settings.seed + (uint64_t)lives.count, settings.tells);
    }
    bool is_poor = false;
    if (!settings.tells) {
        is_poor = print_rows() < settings.rows;
        print_ends();
        print_databases();
        is_poor |= !judge_census(&lives) && settings.rows > 0;
    }
    printf("%ld histories in %.1f s, %ld findings; %ld events, %ld faults, %ld trainers in all%s\n", lives.count,
           gs_seconds_since(begun_ns), findings, sum(lives.events, lives.count), sum(lives.faults, lives.count),
           sum(lives.trainers, lives.count), is_poor ? "; too few rows, or poor histories" : "");
    free(lives.events);
    free(lives.trainers);
    free(lives.faults);
    model_release();
    return findings || is_poor ? 1 : 0;
}
