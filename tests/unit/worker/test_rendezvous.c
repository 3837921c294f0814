// Ranks that meet by way of the coordinator, as many as a job may have.
#include "worker/control/rendezvous.h"

#include <setjmp.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/thread.h"
#include "gradsync/comm/stages.h"
#include "rpc/server/rpc_server.h"
#include "tests/support/asserts.h"

// Of so many ranks here; each of the others says what the one of these says whose number it has, modulo their count.
#define HERE 3
#define MOST_WORLD 4096

typedef struct fixture {
    gs_rpc_context *context;
    gs_rpc_server *server;
    gs_thread *thread;
    gs_rpc_client *clients[HERE];
    atomic_int world_size;  // a test says it when the server is there
    // Of the server's thread until it has stopped.
    gs_rpc_call_handle *held[HERE];
    char *texts[HERE], tags[4096];
    int num_held, num_rounds;
    size_t longest_text, most_bytes;
} fixture;

static void answer(fixture *f) {
    gs_json *body = gs_json_new_object(), *all = gs_json_new_array();
    for (int i = 0; i < f->world_size; i++) gs_json_push(all, gs_json_new_string(f->texts[i % HERE]));
    gs_json_set(body, "all", all);
    size_t bytes = 0;
    char *text = NULL;
    assert_ok(gs_json_encode(&text, &bytes, body, false));
    free(text);
    if (bytes > f->most_bytes) f->most_bytes = bytes;
    for (int i = 0; i < HERE; i++) {
        gs_rpc_reply(f->held[i], gs_ok(), gs_json_retain(body));
        free(f->texts[i]);
        f->texts[i] = NULL;
    }
    gs_json_release(body);
    f->num_held = 0;
    f->num_rounds++;
}

static void exchange(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request) {
    fixture *f = ctx;
    (void)peer;
    int rank = (int)gs_json_int_or(request, "rank", -1);
    const char *text = gs_json_string_or(request, "bytes", ""), *tag = gs_json_string_or(request, "tag", "");
    if (strlen(text) > f->longest_text) f->longest_text = strlen(text);
    if (rank == 0 && strlen(f->tags) + strlen(tag) + 2 < sizeof f->tags) {
        strcat(f->tags, tag);
        strcat(f->tags, " ");
    }
    f->held[rank] = call;
    f->texts[rank] = strdup(text);
    if (++f->num_held == HERE) answer(f);
}

static void run_server(void *ctx, const atomic_bool *stopping) {
    fixture *f = ctx;
    while (!atomic_load(stopping)) {
        gs_status status = gs_rpc_server_turn(f->server, -1, gs_deadline_in_ms(5));
        if (status.code) return;
    }
}

static int set_up(void **state) {
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    assert_ok(gs_rpc_context_create(&f->context));
    gs_rpc_server_options options = {.endpoints = {"tcp://127.0.0.1:0"}, .coordinator_epoch = 1, .ctx = f};
    options.handlers[GS_EXCHANGE] = exchange;
    assert_ok(gs_rpc_server_open(&f->server, f->context, &options));
    const char *endpoint = gs_rpc_server_endpoint(f->server, 0);
    for (int i = 0; i < HERE; i++)
        assert_ok(gs_rpc_client_open(&f->clients[i], f->context, &(gs_rpc_client_options){.endpoint = endpoint}));
    assert_ok(gs_thread_start(&f->thread, "coordinator", run_server, f));
    *state = f;
    return 0;
}

static void stop(fixture *f) {
    gs_thread_stop(f->thread);
    f->thread = NULL;
}

static int tear_down(void **state) {
    fixture *f = *state;
    for (int i = 0; i < HERE; i++) gs_rpc_client_close(f->clients[i]);
    stop(f);
    gs_rpc_server_close(f->server);
    gs_rpc_context_destroy(f->context);
    free(f);
    return 0;
}

typedef struct rank {
    fixture *f;
    int rank;
    const unsigned char *mine;
    size_t bytes;
    unsigned char *all;
    gs_status status;
    gs_thread *thread;
} rank;

static void meet(void *ctx, const atomic_bool *stopping) {
    rank *it = ctx;
    (void)stopping;
    gs_place place = {.generation = 1, .rank = it->rank, .world_size = it->f->world_size};
    it->status = gs_rendezvous_exchange(it->f->clients[it->rank], &place, "world/1", NULL, place.world_size, it->mine,
                                        it->bytes, it->all, gs_deadline_in_seconds(120));
}

static void run_ranks(fixture *f, rank *ranks, const unsigned char (*gives)[4096], const size_t *bytes) {
    for (int i = 0; i < HERE; i++) {
        ranks[i] = (rank){.f = f, .rank = i, .mine = gives[i], .bytes = bytes[i],
                          .all = malloc((size_t)f->world_size * bytes[i])};
        assert_non_null(ranks[i].all);
        assert_ok(gs_thread_start(&ranks[i].thread, "rank", meet, &ranks[i]));
    }
    for (int i = 0; i < HERE; i++) gs_thread_stop(ranks[i].thread);
    stop(f);
}

static void everybody_has_all(fixture *f, const unsigned char (*gives)[4096], size_t bytes) {
    rank ranks[HERE];
    run_ranks(f, ranks, gives, (const size_t[HERE]){bytes, bytes, bytes});
    for (int i = 0; i < HERE; i++) {
        assert_ok(ranks[i].status);
        for (int k = 0; k < f->world_size; k++)
            assert_memory_equal(ranks[i].all + (size_t)k * bytes, gives[k % HERE], bytes);
        free(ranks[i].all);
    }
    assert_true(f->most_bytes <= (size_t)1 << 20);
}

// A stage of a communicator's creation: a status and what a backend has to say, most of it zeros.
static void fill_stages(unsigned char (*gives)[4096]) {
    memset(gives, 0, HERE * sizeof *gives);
    for (int i = 0; i < HERE; i++)
        for (size_t k = 0; k < 128; k++) gives[i][sizeof(gs_status) + k] = (unsigned char)(k * 31 + (size_t)i + 1);
    gs_status failed = gs_error(GS_UNAVAILABLE, "NCCL: %0200d", 7);
    memcpy(gives[1], &failed, sizeof failed);
}

static void the_largest_world_meets(void **state) {
    fixture *f = *state;
    static unsigned char gives[HERE][4096];
    fill_stages(gives);
    f->world_size = MOST_WORLD;
    everybody_has_all(f, gives, GS_STAGE_BYTES);
}

// Of which each rank has but one: of so many, a megabyte each time would be gigabytes.
static void zeros_of_the_largest_world_are_not_sent(void **state) {
    fixture *f = *state;
    static unsigned char gives[HERE][4096];
    memset(gives, 0, sizeof gives);
    f->world_size = MOST_WORLD;
    everybody_has_all(f, gives, GS_STAGE_BYTES);
    assert_int_equal(f->num_rounds, 1);
    assert_true(f->longest_text <= 20);
}

// Nothing to save in them, and each rank has another number of rounds for what it has.
static void what_has_no_zeros_comes_in_several_rounds(void **state) {
    fixture *f = *state;
    static unsigned char gives[HERE][4096];
    for (int i = 0; i < HERE; i++)
        for (size_t k = 0; k < sizeof gives[i]; k++)
            gives[i][k] = (unsigned char)(k > sizeof gives[i] / (size_t)(i + 1) ? 0 : 1 + k % 255);
    f->world_size = MOST_WORLD;
    everybody_has_all(f, gives, sizeof gives[0]);
    assert_true(f->num_rounds > 20 && f->num_rounds < 24);
    assert_memory_equal(f->tags, "world/1 world/1.2 world/1.3 ", 28);
}

// As ranks of before send it, and read it.
static void what_fits_one_answer_is_sent_as_it_is(void **state) {
    fixture *f = *state;
    static unsigned char gives[HERE][4096];
    fill_stages(gives);
    f->world_size = 1200;
    everybody_has_all(f, gives, GS_STAGE_BYTES);
    assert_int_equal(f->num_rounds, 1);
    assert_int_equal(f->longest_text, (GS_STAGE_BYTES + 2) / 3 * 4);
}

static void who_gives_another_number_of_bytes_is_named(void **state) {
    fixture *f = *state;
    static unsigned char gives[HERE][4096];
    rank ranks[HERE];
    f->world_size = MOST_WORLD;
    run_ranks(f, ranks, gives, (const size_t[HERE]){640, 640, 2000});
    assert_int_equal(ranks[0].status.code, GS_FAILED_PRECONDITION);
    assert_non_null(strstr(ranks[0].status.message, "exchange world/1: rank 2 sent other than 640 bytes"));
    for (int i = 0; i < HERE; i++) free(ranks[i].all);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_largest_world_meets, set_up, tear_down),
        cmocka_unit_test_setup_teardown(zeros_of_the_largest_world_are_not_sent, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_has_no_zeros_comes_in_several_rounds, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_fits_one_answer_is_sent_as_it_is, set_up, tear_down),
        cmocka_unit_test_setup_teardown(who_gives_another_number_of_bytes_is_named, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
