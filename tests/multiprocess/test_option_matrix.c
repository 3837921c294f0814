// Every pair of values of a job's options trains on two ranks what one rank trains with the same global batch, or is
// refused by the validator, which names one of the two. Nothing here says which pairs are refused.
//
// The norm of the difference is measured against that of the movement: a forgotten divisor is an error of one half.
// All pairs are shown to the validator, a drawn part runs; GRADSYNC_MATRIX=all runs every pair, a
// number that many, the pointer of an option ("/reducer/sharding") all of its own. GRADSYNC_MATRIX_HOSTS=aabb: four ranks, on two
// hosts as far as they can tell, over two levels.
#include <arpa/inet.h>
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "core/random.h"
#include "rpc/schema/job_spec.h"
#include "tests/support/asserts.h"
#include "tests/support/option_table.h"
#include "tests/support/ranks.h"
#include "tests/support/sample.h"
#include "tests/support/temp_dir.h"
#include "tests/support/trainer_rank.h"

#define DRAWN 60
#define MOST_CELLS 12000
#define RUN_SECONDS 6000.0
#define FP32_TOLERANCE 2e-5
#define REPLICAS 2
#define MOST_WORLD 8

typedef enum cell_end { CELL_RUNS = 0, CELL_REFUSED, CELL_NEEDS_GPU, CELL_WRONG } cell_end;

typedef struct cell {
    const option_value *values[2];
    int num_values;  // 1: one alone
    cell_end end;
    int reference;   // among the references, of those that run
    bool exact;
    double tolerance;
} cell;

typedef struct matrix {
    option_value values[MOST_OPTION_VALUES];
    size_t num_values;
    cell cells[MOST_CELLS];
    size_t num_cells;
    char *references[MOST_CELLS];  // texts, each once
    int num_references;
    char *dir;
} matrix;

static const char *name_of(const cell *of) {
    static char text[300];
    int used = 0;
    for (int i = 0; i < of->num_values; i++)
        used += snprintf(text + used, sizeof text - (size_t)used, "%s%s=%s", i ? " and " : "",
                         of->values[i]->row->pointer, of->values[i]->json);
    return text;
}

// A letter for the host of each rank; NULL: two ranks of one host.
static const char *hosts_wanted(void) {
    const char *hosts = getenv("GRADSYNC_MATRIX_HOSTS");
    return hosts && strlen(hosts) > 1 && strlen(hosts) <= MOST_WORLD ? hosts : NULL;
}

static int world_wanted(void) { return hosts_wanted() ? (int)strlen(hosts_wanted()) : 2; }

// All samples are equal, so over many of them a batch norm multiplies gradients by hundreds: from the usual scale half precision would
// not come down to a step that counts.
static void lower_scale(gs_json *spec) {
    const gs_json *scale = gs_json_get(gs_json_get(spec, "optimizer"), "loss_scale");
    if (strcmp(gs_json_string_or(gs_json_get(spec, "model"), "precision", ""), "fp16") == 0 && !gs_json_get(scale, "init"))
        option_table_set(spec, "/optimizer/loss_scale/init", "1024");
}

// What the ranks of the world train.
static gs_json *spec_of(const cell *of) {
    char number[12];
    gs_json *spec = option_table_spec(of->values, of->num_values, false);
    snprintf(number, sizeof number, "%d", world_wanted());
    option_table_set(spec, "/world/min", number);
    option_table_set(spec, "/world/max", number);
    if (hosts_wanted()) lower_scale(spec);
    return spec;
}

static void write_bytes(const char *dir, const char *name, const void *data, size_t bytes) {
    char path[600];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

// All samples are equal: wherever one begins, eight tokens and the next.
static void write_data(const char *dir) {
    enum { SAMPLES = 200, TOKENS = 8, PIXELS = 12 };
    unsigned char text[SAMPLES * TOKENS + 1];
    for (size_t i = 0; i < sizeof text; i++) text[i] = (unsigned char)("gradsync"[i % TOKENS]);
    write_bytes(dir, "a.txt", text, sizeof text);
    write_bytes(dir, "b.txt", text, sizeof text);
    unsigned char images[16 + SAMPLES * PIXELS] = {0, 0, 8, 3}, labels[8 + SAMPLES] = {0, 0, 8, 1};
    const uint32_t sizes[3] = {htonl(SAMPLES), htonl(3), htonl(4)};
    memcpy(images + 4, sizes, sizeof sizes);
    memcpy(labels + 4, sizes, sizeof sizes[0]);
    for (size_t i = 0; i < (size_t)SAMPLES * PIXELS; i++)
        images[16 + i] = (unsigned char)(i % PIXELS * 20 + 7);
    memset(labels + 8, 1, SAMPLES);
    write_bytes(dir, "images", images, sizeof images);
    write_bytes(dir, "labels", labels, sizeof labels);
}

static bool lies_in(const char *pointer, const char *whole) {
    size_t len = strlen(whole);
    return strncmp(pointer, whole, len) == 0 && (!pointer[len] || pointer[len] == '/');
}

// The option, an element of it, or the table of a few that it is of ("/model/gpt2"); a whole section
// would not say which of many.
static bool names(const char *found, const char *option) {
    bool is_section = strrchr(found, '/') == found;
    return lies_in(found, option) || (!is_section && *found && lies_in(option, found));
}

// Whether the validator names one of the options, or one that they need.
static bool names_one(const gs_field_errors *errors, const cell *of) {
    for (int e = 0; e < errors->count && e < GS_MAX_FIELD_ERRORS; e++) {
        for (int i = 0; i < of->num_values; i++) {
            const option_row *row = of->values[i]->row;
            if (names(errors->items[e].pointer, row->pointer)) return true;
            for (size_t k = 0; k < MOST_OPTION_NEEDS && row->needs[k].pointer; k++)
                if (names(errors->items[e].pointer, row->needs[k].pointer)) return true;
        }
    }
    return false;
}

static bool decode(gs_job_spec *spec, const gs_json *json, gs_field_errors *errors) {
    *errors = (gs_field_errors){0};
    return gs_job_spec_decode(spec, json, errors).code == GS_OK;
}

static int find_reference(matrix *all, char *text) {
    for (int i = 0; i < all->num_references; i++) {
        if (strcmp(all->references[i], text)) continue;
        free(text);
        return i;
    }
    all->references[all->num_references] = text;
    return all->num_references++;
}

// One rank, with the batch and the shards that the two have.
static bool add_reference(matrix *all, cell *of, const gs_job_spec *spec) {
    char number[40], *text = NULL;
    gs_json *serial = option_table_spec(of->values, of->num_values, true);
    option_table_set(serial, "/world/min", "1");
    option_table_set(serial, "/world/max", "1");
    if (hosts_wanted()) lower_scale(serial);
    snprintf(number, sizeof number, "%" PRId64, spec->logical_shards);
    option_table_set(serial, "/logical_shards", number);
    snprintf(number, sizeof number, "%" PRId64, spec->data.global_batch);
    option_table_set(serial, "/data/global_batch", number);
    // A mean over processes of what several replicas added: that many times the mean over all.
    if (spec->reducer.replica_divisor == GS_DIVISOR_PROCESSES && spec->world.replicas_per_process > 1) {
        snprintf(number, sizeof number, "%.17g", spec->optimizer.lr * REPLICAS);
        option_table_set(serial, "/optimizer/lr", number);
    }
    gs_job_spec alone;
    gs_field_errors errors;
    bool sound = decode(&alone, serial, &errors);
    if (!sound)
        print_error("%s: its serial reference is refused: %s %s\n", name_of(of),
                    errors.items[0].pointer, errors.items[0].message);
    if (gs_json_encode(&text, NULL, serial, false).code) abort();
    gs_json_release(serial);
    of->reference = find_reference(all, text);
    return sound;
}

static void judge_cell(cell *of) {
    static gs_job_spec spec;
    gs_field_errors errors;
    gs_json *json = spec_of(of);
    bool sound = decode(&spec, json, &errors);
    gs_json_release(json);
    of->tolerance = FP32_TOLERANCE;
    for (int i = 0; i < of->num_values; i++)
        of->tolerance = fmax(of->tolerance, of->values[i]->row->tolerance);
    of->exact = spec.exact;
    if (!sound) {
        of->end = CELL_REFUSED;
        if (names_one(&errors, of)) return;
        print_error("%s is refused by %s: %s\n", name_of(of), errors.items[0].pointer,
                    errors.items[0].message);
        of->end = CELL_WRONG;
    } else if (gs_job_spec_needs_gpu(&spec)) {
        of->end = CELL_NEEDS_GPU;
    }
}

static void judge_cells(matrix *all) {
    for (size_t i = 0; i < all->num_cells; i++) judge_cell(&all->cells[i]);
}

static void add_references(matrix *all) {
    static gs_job_spec spec;
    gs_field_errors errors;
    for (size_t i = 0; i < all->num_cells; i++) {
        cell *of = &all->cells[i];
        if (of->end != CELL_RUNS) continue;
        gs_json *json = spec_of(of);
        if (!decode(&spec, json, &errors) || !add_reference(all, of, &spec)) of->end = CELL_WRONG;
        gs_json_release(json);
    }
}

static void add_cell(matrix *all, const option_value *one, const option_value *other) {
    if (all->num_cells == MOST_CELLS) abort();
    all->cells[all->num_cells++] =
        (cell){.values = {one, other}, .num_values = other ? 2 : 1};
}

static void list_cells(matrix *all) {
    for (size_t i = 0; i < all->num_values; i++) {
        add_cell(all, &all->values[i], NULL);
        for (size_t k = 0; k < i; k++) {
            if (all->values[i].row != all->values[k].row)
                add_cell(all, &all->values[k], &all->values[i]);
        }
    }
}

// Leaves `wanted` of them, drawn.
static void draw_cells(matrix *all, size_t wanted, uint64_t seed) {
    gs_random_key key = {.seed = seed, .stream = 17};
    for (size_t i = 0; i < wanted && i < all->num_cells; i++) {
        size_t k = i + (size_t)(gs_random_u64(key, i) % (all->num_cells - i));
        cell kept = all->cells[i];
        all->cells[i] = all->cells[k];
        all->cells[k] = kept;
    }
    if (wanted < all->num_cells) all->num_cells = wanted;
}

static bool is_of(const cell *of, const char *pointer) {
    for (int i = 0; i < of->num_values; i++) {
        if (strcmp(of->values[i]->row->pointer, pointer) == 0) return true;
    }
    return false;
}

static void keep_cells_of(matrix *all, const char *pointer) {
    size_t num_kept = 0;
    for (size_t i = 0; i < all->num_cells; i++) {
        if (is_of(&all->cells[i], pointer)) all->cells[num_kept++] = all->cells[i];
    }
    all->num_cells = num_kept;
}

static void choose_cells(matrix *all, const char *wanted, uint64_t seed) {
    if (wanted && strcmp(wanted, "all") == 0) return;
    if (wanted && *wanted == '/')
        keep_cells_of(all, wanted);
    else
        draw_cells(all, wanted ? strtoul(wanted, NULL, 10) : DRAWN, seed);
}

static void write_run(FILE *list, const char *root, const char *dir, const char *spec) {
    assert_int_equal(mkdir(dir, 0700), 0);
    fprintf(list, "{\"spec\":%s,\"dir\":\"%s\",\"data_root\":\"%s\",\"params\":true}\n", spec, dir, root);
}

static void write_lists(matrix *all) {
    char path[600];
    snprintf(path, sizeof path, "%s/cells", all->dir);
    FILE *list = fopen(path, "w");
    assert_non_null(list);
    for (size_t i = 0; i < all->num_cells; i++) {
        if (all->cells[i].end != CELL_RUNS) continue;
        char *text = NULL;
        gs_json *spec = spec_of(&all->cells[i]);
        assert_ok(gs_json_encode(&text, NULL, spec, false));
        snprintf(path, sizeof path, "%s/cell-%zu", all->dir, i);
        write_run(list, all->dir, path, text);
        free(text);
        gs_json_release(spec);
    }
    assert_int_equal(fclose(list), 0);
    snprintf(path, sizeof path, "%s/references", all->dir);
    list = fopen(path, "w");
    assert_non_null(list);
    for (int i = 0; i < all->num_references; i++) {
        snprintf(path, sizeof path, "%s/reference-%d", all->dir, i);
        write_run(list, all->dir, path, all->references[i]);
    }
    assert_int_equal(fclose(list), 0);
}

// One run after the other in the same processes. What one ends with is written down; the next begins.
static gs_status train_all(const gs_rank_env *env) {
    char *line = NULL;
    size_t room = 0;
    FILE *list = fopen(env->arg, "r");
    const char host[2] = {hosts_wanted() && env->world_size > 1 ? hosts_wanted()[env->rank] : 'a', '\0'};
    setenv("GRADSYNC_HOST", host, 1);
    if (!list) return gs_error(GS_NOT_FOUND, "%s", env->arg);
    while (getline(&line, &room, list) > 0) {
        gs_json *run = NULL;
        char path[600];
        gs_rank_env own = *env;
        own.arg = line;
        if (gs_json_parse(&run, line, strlen(line)).code) abort();
        snprintf(path, sizeof path, "%s/status-%d", gs_json_string_or(run, "dir", ""), env->rank);
        gs_json_release(run);
        gs_status status = trainer_rank_run(&own);
        FILE *file = fopen(path, "w");
        if (!file) abort();
        fprintf(file, "%s%s", status.code ? "error: " : "ok", status.code ? status.message : "");
        fclose(file);
    }
    free(line);
    fclose(list);
    return gs_ok();
}

static const gs_rank_body bodies[] = {{"train-all", train_all}, {0}};

static gs_ranks *start(matrix *all, const char *list, int world_size) {
    gs_ranks *ranks;
    char path[600];
    snprintf(path, sizeof path, "%s/%s", all->dir, list);
    assert_ok(gs_ranks_start(&ranks, "train-all", world_size, path, NULL));
    return ranks;
}

static void await(gs_ranks *ranks, int world_size) {
    gs_status statuses[MOST_WORLD];
    assert_ok(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(RUN_SECONDS)));
    gs_ranks_destroy(ranks);
    for (int i = 0; i < world_size; i++) assert_ok(statuses[i]);
}

// The caller's; NULL where the run did not get so far.
static float *read_floats(size_t *count, const char *dir, const char *name) {
    char path[700];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "rb");
    if (!file) return NULL;
    fseek(file, 0, SEEK_END);
    long bytes = ftell(file);
    rewind(file);
    float *data = malloc((size_t)bytes + 1);
    if (!data || fread(data, 1, (size_t)bytes, file) != (size_t)bytes) abort();
    fclose(file);
    *count = (size_t)bytes / sizeof *data;
    return data;
}

static void print_statuses(const char *dir, int world_size) {
    for (int rank = 0; rank < world_size; rank++) {
        char path[700], text[300] = "nothing";
        snprintf(path, sizeof path, "%s/status-%d", dir, rank);
        FILE *file = fopen(path, "r");
        if (file && fgets(text, sizeof text, file)) print_error("    rank %d: %s\n", rank, text);
        if (file) fclose(file);
    }
}

static bool compare_params(const cell *of, const char *dir, const char *serial) {
    size_t counts[4] = {0};
    float *got = read_floats(&counts[0], dir, "params-0");
    float *wanted = read_floats(&counts[2], serial, "params-0");
    float *initial = read_floats(&counts[3], serial, "initial-0");
    bool equal = got && wanted && initial && counts[0] == counts[2] && counts[0] == counts[3], differ = false;
    for (int rank = 1; equal && rank < world_wanted(); rank++) {
        char name[24];
        snprintf(name, sizeof name, "params-%d", rank);
        float *other = read_floats(&counts[1], dir, name);
        equal = other && counts[0] == counts[1];
        differ |= equal && memcmp(got, other, counts[0] * sizeof *got);
        free(other);
    }
    const char *problem = equal ? NULL : "it did not end";
    if (equal && differ) problem = "its ranks differ";
    double distance = 0, moved = 0;
    for (size_t i = 0; equal && i < counts[0]; i++) {
        distance += pow((double)got[i] - (double)wanted[i], 2);
        moved += pow((double)wanted[i] - (double)initial[i], 2);
    }
    double error = sqrt(distance) / sqrt(moved);
    if (equal && !problem && of->exact && distance != 0) problem = "exact has other bits";
    if (equal && !problem && !(moved > 0)) problem = "nothing moved";
    if (equal && !problem && !(error <= of->tolerance)) problem = "it is another training";
    if (problem)
        print_error("%s: %s: %.3g of the movement, at most %.3g\n", name_of(of), problem, error,
                    of->exact ? 0.0 : of->tolerance);
    free(got);
    free(wanted);
    free(initial);
    return !problem;
}

static size_t check_cells(matrix *all) {
    size_t num_wrong = 0;
    for (size_t i = 0; i < all->num_cells; i++) {
        const cell *of = &all->cells[i];
        char dir[600], serial[600];
        if (of->end == CELL_WRONG) num_wrong++;
        if (of->end != CELL_RUNS) continue;
        snprintf(dir, sizeof dir, "%s/cell-%zu", all->dir, i);
        snprintf(serial, sizeof serial, "%s/reference-%d", all->dir, of->reference);
        if (compare_params(of, dir, serial)) continue;
        print_statuses(dir, world_wanted());
        print_statuses(serial, 1);
        num_wrong++;
    }
    return num_wrong;
}

static matrix all;

static void every_option_is_classified(void **state) {
    (void)state;
    const char *problem = option_table_values(all.values, &all.num_values);
    if (problem) print_error("%s\n", problem);
    assert_null(problem);
}

static void count_ends(const matrix *of, size_t counts[4]) {
    memset(counts, 0, 4 * sizeof *counts);
    for (size_t i = 0; i < of->num_cells; i++) counts[of->cells[i].end]++;
}

static void each_pair_equals_a_serial_run_or_is_refused_by_name(void **state) {
    (void)state;
    const char *wanted = getenv("GRADSYNC_MATRIX");
    uint64_t seed = sample_number("GRADSYNC_SEED", 1);
    assert_null(option_table_values(all.values, &all.num_values));
    list_cells(&all);
    judge_cells(&all);
    size_t num_pairs = all.num_cells, counts[4];
    count_ends(&all, counts);
    assert_int_equal(counts[CELL_WRONG], 0);
    choose_cells(&all, wanted, seed);
    all.dir = gs_temp_dir_make();
    write_data(all.dir);
    add_references(&all);
    write_lists(&all);
    gs_ranks *serial = start(&all, "references", 1), *pairs = start(&all, "cells", world_wanted());
    await(serial, 1);
    await(pairs, world_wanted());
    size_t num_wrong = check_cells(&all);
    count_ends(&all, counts);
    print_message("%zu of %zu pairs of %zu values, GRADSYNC_SEED=%" PRIu64
                  ": %zu equal %d serial runs, %zu refused by name, %zu need a GPU, %zu wrong\n",
                  all.num_cells, num_pairs, all.num_values, seed,
                  counts[CELL_RUNS] + counts[CELL_WRONG] - num_wrong, all.num_references,
                  counts[CELL_REFUSED], counts[CELL_NEEDS_GPU], num_wrong);
    gs_temp_dir_remove(all.dir);
    for (int i = 0; i < all.num_references; i++) free(all.references[i]);
    assert_int_equal(num_wrong, 0);
}

int main(int argc, char **argv) {
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_option_is_classified),
        cmocka_unit_test(each_pair_equals_a_serial_run_or_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
