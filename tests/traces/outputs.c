#include "tests/traces/outputs.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void name_channel(char *channel, size_t bytes, const gs_json *json) {
    const gs_json *row = gs_json_get(json, "row");
    if (!row) {
        snprintf(channel, bytes, "call %08lld", (long long)gs_json_int_or(json, "call", 0));
        return;
    }
    const char *operation = gs_json_string(gs_json_at(row, 0));
    const gs_json *key = gs_json_at(row, 1);
    int64_t number = 0;
    // Events of all jobs are one list, and so is what has no key.
    bool one_list = strncmp(operation, "put_event", 9) == 0 || strncmp(operation, "prune", 5) == 0 ||
                    strncmp(operation, "mark", 4) == 0;
    if (!one_list && gs_json_int(&number, key))
        snprintf(channel, bytes, "%s %lld", operation, (long long)number);
    else if (!one_list && gs_json_string(key))
        snprintf(channel, bytes, "%s %s", operation, gs_json_string(key));
    else
        snprintf(channel, bytes, "%s", operation);
    const char *directory = gs_json_string(gs_json_at(row, 2));
    size_t used = strlen(channel);
    if (directory && strncmp(operation + strlen(operation) - 10, "checkpoint", 10) == 0)
        snprintf(channel + used, bytes - used, " %s", directory);
}

void outputs_add(outputs *list, int turn, gs_json *json) {
    if (list->count == list->reserved) {
        list->reserved = list->reserved ? 2 * list->reserved : 1024;
        list->items = realloc(list->items, list->reserved * sizeof *list->items);
        if (!list->items) abort();
    }
    output *item = &list->items[list->count++];
    *item = (output){.turn = turn, .json = json};
    name_channel(item->channel, sizeof item->channel, json);
}

void outputs_release(outputs *list) {
    for (size_t i = 0; i < list->count; i++) gs_json_release(list->items[i].json);
    free(list->items);
    *list = (outputs){0};
}

static int compare_channels(const void *a, const void *b) {
    return strcmp(((const output *)a)->channel, ((const output *)b)->channel);
}

// Merges halves: the order within a channel stays.
static void sort_items(output *items, output *spare, size_t count) {
    if (count < 2) return;
    size_t half = count / 2, a = 0, b = half, n = 0;
    sort_items(items, spare, half);
    sort_items(items + half, spare, count - half);
    while (a < half || b < count) {
        bool left = b == count || (a < half && compare_channels(&items[a], &items[b]) <= 0);
        spare[n++] = items[left ? a++ : b++];
    }
    memcpy(items, spare, count * sizeof *items);
}

void outputs_sort(outputs *list) {
    output *spare = calloc(list->count + 1, sizeof *spare);
    if (!spare) abort();
    sort_items(list->items, spare, list->count);
    free(spare);
}

typedef struct comparison {
    void (*differs)(void *ctx, const difference *one);
    void *ctx;
    const output *about;
    char path[300];
    const gs_json *other;
    bool other_is_found;
} comparison;

static char *text_of(const gs_json *json) {
    char *text = NULL;
    gs_status status = gs_json_encode(&text, NULL, json, false);
    if (!status.code) return text;
    return strdup("?");
}

static void report(const comparison *it, const char *path, const gs_json *expected,
                   const gs_json *found) {
    char *expected_text = expected ? text_of(expected) : strdup("");
    char *found_text = found ? text_of(found) : strdup("");
    difference known = {.channel = it->about->channel, .path = path,
                        .turn = it->about->turn, .expected = expected_text, .found = found_text};
    it->differs(it->ctx, &known);
    free(expected_text);
    free(found_text);
}

static void compare_values(comparison *it, const gs_json *expected, const gs_json *found);

static void compare_member(comparison *it, const char *key, const gs_json *expected,
                           const gs_json *found) {
    size_t length = strlen(it->path);
    snprintf(it->path + length, sizeof it->path - length, "/%s", key);
    compare_values(it, expected, found);
    it->path[length] = '\0';
}

typedef struct members {
    comparison *it;
    const gs_json *other;
    bool swapped;
} members;

static bool visit_expected(void *ctx, const char *key, const gs_json *value) {
    members *all = ctx;
    compare_member(all->it, key, value, gs_json_get(all->other, key));
    return true;
}

static bool visit_found(void *ctx, const char *key, const gs_json *value) {
    members *all = ctx;
    if (value && !gs_json_get(all->other, key)) compare_member(all->it, key, NULL, value);
    return true;
}

static void compare_arrays(comparison *it, const gs_json *expected, const gs_json *found) {
    size_t most = gs_json_count(expected) > gs_json_count(found) ? gs_json_count(expected)
                                                                 : gs_json_count(found);
    for (size_t i = 0; i < most; i++) {
        char key[24];
        snprintf(key, sizeof key, "%zu", i);
        compare_member(it, key, gs_json_at(expected, i), gs_json_at(found, i));
    }
}

static void compare_values(comparison *it, const gs_json *expected, const gs_json *found) {
    gs_json_type type = gs_json_type_of(expected);
    if (expected == found) return;
    if (!expected || !found || type != gs_json_type_of(found)) {
        report(it, it->path, expected, found);
    } else if (type == GS_JSON_OBJECT) {
        members all = {it, found, false};
        gs_json_each(expected, visit_expected, &all);
        all.other = expected;
        gs_json_each(found, visit_found, &all);
    } else if (type == GS_JSON_ARRAY) {
        compare_arrays(it, expected, found);
    } else {
        char *a = text_of(expected), *b = text_of(found);
        if (strcmp(a, b) != 0) report(it, it->path, expected, found);
        free(a);
        free(b);
    }
}

static void compare_two(comparison *it, const output *expected, const output *found) {
    it->about = expected;
    it->path[0] = '\0';
    if (expected->turn != found->turn) {
        gs_json *a = gs_json_new_int(expected->turn), *b = gs_json_new_int(found->turn);
        report(it, "turn", a, b);
        gs_json_release(a);
        gs_json_release(b);
    }
    compare_values(it, expected->json, found->json);
}

void outputs_compare(const outputs *expected, const outputs *found,
                     void (*differs)(void *ctx, const difference *one), void *ctx) {
    comparison it = {.differs = differs, .ctx = ctx};
    size_t a = 0, b = 0;
    while (a < expected->count || b < found->count) {
        int order = a == expected->count ? 1
                    : b == found->count  ? -1
                                         : compare_channels(&expected->items[a], &found->items[b]);
        if (order == 0) {
            compare_two(&it, &expected->items[a++], &found->items[b++]);
            continue;
        }
        it.about = order < 0 ? &expected->items[a] : &found->items[b];
        report(&it, order < 0 ? "-" : "+", order < 0 ? expected->items[a].json : NULL,
               order < 0 ? NULL : found->items[b].json);
        order < 0 ? a++ : b++;
    }
}
