// A rank whose device is not there, on every machine; what ranks do on devices is in test_device_training.c.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/temp_dir.h"
#include "tests/support/trainer_rank.h"

static void gpu_that_is_not_there_is_named(void **state) {
    (void)state;
    char *dir = gs_temp_dir_make();
    gs_digest digests[TRAINER_RANK_MAX_STEPS];
    gs_status status = trainer_rank_train_on(
        digests, dir, "{\"model\":{\"kind\":\"mlp\"},\"steps\":{\"target\":1}}", 1, NULL, "cuda:63");
    assert_int_equal(status.code, GS_FAILED_PRECONDITION);
    if (!strstr(status.message, "world.device cuda: here: device cuda:63: "))
        fail_msg("it says \"%s\"", status.message);
    gs_temp_dir_remove(dir);
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"train", trainer_rank_run}, {0}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {cmocka_unit_test(gpu_that_is_not_there_is_named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
