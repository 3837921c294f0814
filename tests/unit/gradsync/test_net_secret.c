// The proof of the greeting is SipHash-2-4 with 128 bits, and greetings hold for who knows the
// secret alone.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "gradsync/comm/net/greeting.h"
#include "tests/support/asserts.h"

// Two of the authors' test vectors: the key is 00 01 … 0f, the input 00 01 …
static void the_proof_is_siphash(void **state) {
    (void)state;
    static const struct {
        size_t bytes;
        uint8_t proof[GS_NET_SECRET_BYTES];
    } cases[] = {{0,
                  {0xa3, 0x81, 0x7f, 0x04, 0xba, 0x25, 0xa8, 0xe6, 0x6d, 0xf6, 0x72, 0x14, 0xc7,
                   0x55, 0x02, 0x93}},
                 {1,
                  {0xda, 0x87, 0xc1, 0xd8, 0x6b, 0x99, 0xaf, 0x44, 0x34, 0x76, 0x59, 0x11, 0x9b,
                   0x22, 0xfc, 0x45}}};
    gs_net_secret key;
    uint8_t input[16];
    for (uint8_t i = 0; i < 16; i++) key.bytes[i] = input[i] = i;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gs_net_secret proof = gs_net_secret_prove(&key, input, cases[i].bytes);
        assert_memory_equal(proof.bytes, cases[i].proof, sizeof proof.bytes);
    }
}

static gs_net_greeting begin(void) {
    gs_net_greeting greeting = {
        .hello = {.version = GS_NET_VERSION, .generation = 3, .from = 1, .to = 2}};
    assert_ok(gs_net_secret_draw(&greeting.hello.nonce));
    return greeting;
}

static void who_knows_the_secret_is_known_by_both_sides(void **state) {
    (void)state;
    gs_net_secret key;
    assert_ok(gs_net_secret_draw(&key));
    gs_net_greeting greeting = begin();
    assert_ok(gs_net_greeting_answer(&greeting, &key));
    assert_true(gs_net_greeting_conclude(&greeting, &key));
    assert_true(gs_net_greeting_is_proven(&greeting, &key));
}

static void who_does_not_is_found_out_on_either_side(void **state) {
    (void)state;
    gs_net_secret key, other;
    assert_ok(gs_net_secret_draw(&key));
    assert_ok(gs_net_secret_draw(&other));
    gs_net_greeting greeting = begin();
    assert_ok(gs_net_greeting_answer(&greeting, &other));
    assert_false(gs_net_greeting_conclude(&greeting, &key));
    assert_ok(gs_net_greeting_answer(&greeting, &key));
    greeting.last = greeting.answer.proof;  // said back to who said it
    assert_false(gs_net_greeting_is_proven(&greeting, &key));
    assert_true(gs_net_greeting_conclude(&greeting, &key));
    greeting.hello.from = 0;  // another rank's proof
    assert_false(gs_net_greeting_is_proven(&greeting, &key));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_proof_is_siphash),
        cmocka_unit_test(who_knows_the_secret_is_known_by_both_sides),
        cmocka_unit_test(who_does_not_is_found_out_on_either_side),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
