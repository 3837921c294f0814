// Whom complaints leave out, and whom they do not.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "coordinator/rules/avoidance.h"
#include "core/clock.h"

#define NOW_NS (5000 * GS_NS_PER_SEC)

// Workers are letters, slots digits: "a0".
static gs_seat seat(const char *name) {
    return (gs_seat){.worker = (uint64_t)name[0], .slot = name[1] - '0', .joined_ns = name[0]};
}

static void complain(gs_complaints *complaints, const char *by, const char *about, uint32_t generation, bool has_got_on) {
    gs_complaint complaint = {.by = seat(by), .about = seat(about), .generation = generation, .is_early = !has_got_on, .at_ns = NOW_NS - 100 * GS_NS_PER_SEC};
    gs_complaints_add(complaints, &complaint);
}

// `expected`: the seats of "a0 … a3 b0 … d3" that are avoided, in that order, with blanks between.
static void expect(const gs_complaints *complaints, int64_t now_ns, const char *expected) {
    gs_avoidance avoided;
    char found[200] = "";
    size_t length = 0;
    gs_avoidance_find(&avoided, complaints, now_ns);
    for (char worker = 'a'; worker <= 'd'; worker++)
        for (int slot = 0; slot < 4; slot++) {
            if (!gs_avoidance_has(&avoided, (uint64_t)worker, slot)) continue;
            if (length) found[length++] = ' ';
            found[length++] = worker;
            found[length++] = (char)('0' + slot);
        }
    assert_string_equal(found, expected);
}

typedef struct told {
    const char *by, *about;
    uint32_t generation;
    bool has_got_on;  // ten steps or more
} told;

typedef struct avoidance_case {
    const char *name;
    told complaints[16];
    const char *avoided;
} avoidance_case;

static const avoidance_case cases[] = {
    {"nothing", {{NULL, NULL, 0, false}}, ""},
    {"once", {{"a0", "b0", 1, false}, {"c0", "b0", 1, false}, {"d0", "b0", 1, false}}, ""},
    {"again", {{"a0", "b0", 1, false}, {"c0", "b0", 1, false}, {"a0", "b0", 2, false}}, "b0"},
    {"two about each other: who joined last", {{"a0", "b0", 1, false}, {"b0", "a0", 1, false}, {"a0", "b0", 2, false}, {"b0", "a0", 2, false}}, "b0"},
    {"two, and one is accused", {{"b0", "a0", 1, false}, {"b0", "a0", 2, false}}, "a0"},
    {"who accuses everybody in turn", {{"a0", "b0", 1, false}, {"a0", "c0", 2, false}}, "a0"},
    {"and goes on from another seat of its worker", {{"a0", "b0", 1, false}, {"a0", "c0", 2, false}, {"a1", "b0", 3, false}, {"a1", "c0", 4, false}}, "a0 a1"},
    {"two that have nothing to do with each other", {{"a0", "b0", 1, false}, {"c0", "d0", 2, false}}, ""},
    {"two troubles", {{"a0", "b0", 1, false}, {"a0", "b0", 2, false}, {"c1", "c2", 2, false}, {"c1", "c2", 3, false}}, "b0 c2"},
    {"one seat of a worker of many", {{"a0", "c2", 1, false}, {"b0", "c2", 1, false}, {"c1", "c2", 1, false}, {"a1", "c2", 2, false}}, "c2"},
    {"two hosts that do not hear each other",
     {{"a0", "b0", 1, false}, {"b0", "a0", 1, false}, {"a1", "b1", 1, false}, {"b1", "a1", 1, false}, {"a0", "b0", 2, false}}, "b0 b1 b2 b3"},
    {"crossed, and one is accused more often", {{"a0", "b0", 1, false}, {"b1", "a1", 1, false}, {"b1", "a1", 2, false}}, "a0 a1 a2 a3"},
    {"a host that hears none of three",
     {{"b0", "a0", 1, false}, {"b1", "a1", 1, false}, {"b0", "c0", 1, false}, {"b1", "c1", 1, false}, {"d0", "b0", 2, false}, {"d1", "b1", 2, false}}, "b0 b1 b2 b3"},
    {"three seats of a worker", {{"a0", "d0", 1, false}, {"a0", "d0", 2, false}, {"a0", "d1", 3, false}, {"a0", "d1", 4, false}, {"a0", "d2", 5, false}}, "a0"},
    {"three seats of a worker that fail by themselves",
     {{"d0", "d0", 1, false}, {"d1", "d1", 1, false}, {"d2", "d2", 1, false}, {"d0", "d0", 2, false}, {"d1", "d1", 2, false}, {"d2", "d2", 2, false}}, "d0 d1 d2 d3"},
    {"again, and the job got on between", {{"a0", "b0", 1, true}, {"a0", "b0", 2, true}, {"a0", "b0", 3, true}}, ""},
    {"again, at once", {{"a0", "b0", 1, true}, {"a0", "b0", 2, false}}, "b0"},
    {"its own device", {{"b1", "b1", 3, false}, {"b1", "b1", 4, false}}, "b1"},
};

static void seats_are_avoided_where_complaints_of_generations_meet(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gs_complaints complaints = {0};
        print_message("%s\n", cases[i].name);
        for (const told *each = cases[i].complaints; each->by; each++) complain(&complaints, each->by, each->about, each->generation, each->has_got_on);
        expect(&complaints, NOW_NS, cases[i].avoided);
        gs_complaints_release(&complaints);
    }
}

static void complaints_are_forgotten_after_ten_minutes(void **state) {
    (void)state;
    gs_complaints complaints = {0};
    complain(&complaints, "a0", "b0", 1, false);
    complain(&complaints, "a0", "b0", 2, false);
    expect(&complaints, NOW_NS + 500 * GS_NS_PER_SEC, "b0");
    expect(&complaints, NOW_NS + 500 * GS_NS_PER_SEC + 1, "");
    gs_complaints_release(&complaints);
}

// As many as there may be, each of other seats, and more: the newest count.
static void the_newest_are_kept(void **state) {
    (void)state;
    gs_complaints complaints = {0};
    complain(&complaints, "a0", "b0", 1, false);
    complain(&complaints, "a0", "b0", 2, false);
    for (int i = 0; i < GS_COMPLAINTS_KEPT - 2; i++) {
        gs_complaint other = {.by = {.worker = (uint64_t)(1000 + i)}, .about = {.worker = (uint64_t)(2000 + i)}, .generation = 3, .at_ns = NOW_NS};
        gs_complaints_add(&complaints, &other);
    }
    assert_int_equal(complaints.count, GS_COMPLAINTS_KEPT);
    expect(&complaints, NOW_NS, "b0");
    complain(&complaints, "c0", "d0", 3, false);
    complain(&complaints, "c0", "d0", 4, false);
    assert_int_equal(complaints.count, GS_COMPLAINTS_KEPT);
    expect(&complaints, NOW_NS, "d0");
    gs_complaints_release(&complaints);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(seats_are_avoided_where_complaints_of_generations_meet),
        cmocka_unit_test(complaints_are_forgotten_after_ten_minutes),
        cmocka_unit_test(the_newest_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
