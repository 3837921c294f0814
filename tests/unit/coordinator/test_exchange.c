// Who takes part in a round is the same for all of them, and open rounds are bounded.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "coordinator/model/exchange.h"
#include "coordinator/serve/answers.h"
#include "coordinator/serve/decode_trainer.h"
#include "rpc/schema/messages.h"
#include "rpc/wire/rpc_error.h"

#define WORLD 4
#define MOST_WORLD 4096

// `complete`: the round, when all are here; else NULL.
static gs_status join(gs_exchange_round **rounds, gs_exchange_round **complete, int rank, const char *tag,
                      const char *ranks) {
    char text[200];
    gs_json *request = NULL;
    gs_engine_event event = {0};
    gs_exchange_entry *entry;
    snprintf(text, sizeof text, "{\"tag\":\"%s\",\"bytes\":\"r%d\"%s%s}", tag, rank, ranks ? ",\"ranks\":" : "",
             ranks ? ranks : "");
    assert_int_equal(gs_json_parse(&request, text, strlen(text)).code, GS_OK);
    gs_decode_exchange(&event, request);
    gs_status status = gs_exchange_enter(rounds, complete, &entry, WORLD, rank, &event.exchange.request);
    if (status.code || (*complete)->num_arrived < (*complete)->num_ranks) *complete = NULL;
    gs_engine_event_release(&event);
    gs_json_release(request);
    return status;
}

static void end_round(gs_exchange_round **rounds, gs_exchange_round *round) {
    gs_exchange_unlink(rounds, round);
    gs_exchange_free(round);
}

static void end_all(gs_exchange_round **rounds) {
    while (*rounds) end_round(rounds, *rounds);
}

static void expect_bytes(const gs_exchange_round *round, int num_ranks, const int *ranks) {
    char text[8];
    assert_non_null(round);
    assert_int_equal(round->num_ranks, num_ranks);
    for (int i = 0; i < num_ranks; i++) {
        snprintf(text, sizeof text, "r%d", ranks[i]);
        assert_string_equal(round->entries[i].bytes, text);
    }
}

static void who_names_no_ranks_means_all(void **state) {
    (void)state;
    gs_exchange_round *rounds = NULL, *complete;
    static const int order[] = {2, 0, 3};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(join(&rounds, &complete, order[i], "t", i == 1 ? "[0,1,2,3]" : NULL).code, GS_OK);
        assert_null(complete);
    }
    assert_int_equal(join(&rounds, &complete, 1, "t", NULL).code, GS_OK);
    expect_bytes(complete, 4, (const int[]){0, 1, 2, 3});
    end_round(&rounds, complete);
    assert_null(rounds);
}

static void groups_meet_at_the_same_time(void **state) {
    (void)state;
    gs_exchange_round *rounds = NULL, *complete;
    assert_int_equal(join(&rounds, &complete, 3, "b/1", "[1,3]").code, GS_OK);
    assert_int_equal(join(&rounds, &complete, 0, "a/1", "[0,2]").code, GS_OK);
    assert_int_equal(join(&rounds, &complete, 2, "a/1", "[0,2]").code, GS_OK);
    expect_bytes(complete, 2, (const int[]){0, 2});
    end_round(&rounds, complete);
    // One rank in two rounds at once, as one thread for each of its communicators would have it.
    assert_int_equal(join(&rounds, &complete, 3, "c/1", "[2,3]").code, GS_OK);
    assert_null(complete);
    assert_int_equal(join(&rounds, &complete, 1, "b/1", "[1,3]").code, GS_OK);
    expect_bytes(complete, 2, (const int[]){1, 3});
    end_round(&rounds, complete);
    end_all(&rounds);
    assert_null(rounds);
}

static void a_list_that_nobody_may_send_is_refused(void **state) {
    (void)state;
    static const char *const lists[] = {"[]",        "[1,0]", "[0,0,1]", "[0,4]",   "[-1,0]", "[1,2]",
                                        "[0,1,2,3,4]", "[0,\"1\"]", "{\"0\":0}", "7", "[0.5,1]", "[99999999999,0]"};
    gs_exchange_round *rounds = NULL, *complete;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        gs_status status = join(&rounds, &complete, 0, "t", lists[i]);
        if (status.code != GS_INVALID_ARGUMENT) print_error("%s: %s\n", lists[i], status.message);
        assert_int_equal(status.code, GS_INVALID_ARGUMENT);
        assert_null(rounds);
    }
}

static void who_means_others_ends_the_round_for_all(void **state) {
    (void)state;
    gs_exchange_round *rounds = NULL, *complete;
    assert_int_equal(join(&rounds, &complete, 0, "t", "[0,1,2]").code, GS_OK);
    gs_status status = join(&rounds, &complete, 1, "t", "[0,1]");
    assert_int_equal(status.code, GS_FAILED_PRECONDITION);
    assert_non_null(strstr(status.message, "exchange t: rank 1 means other ranks"));
    // Who comes later hears the same, rather than wait.
    status = join(&rounds, &complete, 2, "t", "[0,1,2]");
    assert_int_equal(status.code, GS_FAILED_PRECONDITION);
    assert_non_null(strstr(status.message, "rank 1 means other ranks"));
    assert_null(complete);
    end_all(&rounds);
}

static void open_rounds_of_a_rank_are_bounded(void **state) {
    (void)state;
    gs_exchange_round *rounds = NULL, *complete;
    char tag[16];
    for (int i = 0; i < GS_EXCHANGE_MOST_OPEN; i++) {
        snprintf(tag, sizeof tag, "t%d", i);
        assert_int_equal(join(&rounds, &complete, 1, tag, NULL).code, GS_OK);
    }
    assert_int_equal(join(&rounds, &complete, 1, "more", NULL).code, GS_RESOURCE_EXHAUSTED);
    // Again is not more; and the others have their own.
    assert_int_equal(join(&rounds, &complete, 1, "t3", NULL).code, GS_OK);
    assert_int_equal(join(&rounds, &complete, 0, "other", NULL).code, GS_OK);
    end_all(&rounds);
}

// Of each of `count` ranks of the largest world as many characters. The status of the last one that came.
static gs_status give_all(gs_exchange_round **rounds, gs_exchange_round **round, int count, size_t characters) {
    gs_status status = gs_ok();
    for (int rank = 0; rank < count && !status.code; rank++) {
        gs_exchange_entry *entry;
        gs_exchange_request request = {.tag = "world/1", .bytes = malloc(characters + 1)};
        assert_non_null(request.bytes);
        memset(request.bytes, 'A', characters);
        request.bytes[characters] = '\0';
        status = gs_exchange_enter(rounds, round, &entry, MOST_WORLD, rank, &request);
        free(request.bytes);
    }
    return status;
}

static void what_the_largest_world_may_give_fits_its_answer(void **state) {
    (void)state;
    gs_exchange_round *rounds = NULL, *round;
    assert_int_equal(give_all(&rounds, &round, MOST_WORLD, GS_EXCHANGE_ANSWER_BYTES / MOST_WORLD - 3).code, GS_OK);
    assert_int_equal(round->num_arrived, MOST_WORLD);
    gs_json *body = gs_json_new_object();
    gs_json_set(body, "all", gs_answer_round(round));
    gs_code code = GS_OK;
    size_t bytes;
    char *text = gs_rpc_answer_encode(&bytes, &code, "", body);
    assert_int_equal(code, GS_OK);
    free(text);
    end_all(&rounds);
}

// At once, and with the numbers: not when all have come, by an answer of which nobody gets a word.
static void what_no_answer_holds_ends_the_round_for_all(void **state) {
    (void)state;
    gs_exchange_round *rounds = NULL, *round;
    gs_status status = give_all(&rounds, &round, 1220, 856);
    assert_int_equal(status.code, GS_OK);
    status = give_all(&rounds, &round, 1220, 856);  // the same again is not more
    assert_int_equal(status.code, GS_OK);
    assert_int_equal(round->num_arrived, 1220);
    end_all(&rounds);
    status = give_all(&rounds, &round, MOST_WORLD, 856);
    assert_int_equal(status.code, GS_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(status.message, "exchange world/1: 1221 of 4096 ranks gave more than the 1048512 bytes that an answer holds"));
    assert_non_null(round);
    assert_int_equal(round->refusal.code, GS_RESOURCE_EXHAUSTED);
    end_all(&rounds);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_names_no_ranks_means_all),
        cmocka_unit_test(groups_meet_at_the_same_time),
        cmocka_unit_test(a_list_that_nobody_may_send_is_refused),
        cmocka_unit_test(who_means_others_ends_the_round_for_all),
        cmocka_unit_test(open_rounds_of_a_rank_are_bounded),
        cmocka_unit_test(what_the_largest_world_may_give_fits_its_answer),
        cmocka_unit_test(what_no_answer_holds_ends_the_round_for_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
