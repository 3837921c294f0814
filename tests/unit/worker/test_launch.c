#include "worker/launch.h"

#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

static const char document_text[] =
    "{\"job\":\"j-0000000000zz\",\"job_name\":\"hello\",\"launch_token\":\"123\",\"slot\":3,"
    "\"rank_hint\":2,\"incarnation\":\"18446744073709551615\",\"threads\":4,"
    "\"coordinator\":\"tcp://127.0.0.1:8471\",\"data_root\":\"/data\","
    "\"spec\":{\"name\":\"hello\",\"steps\":{\"target\":5},\"model\":{\"kind\":\"mlp\"}}}";

static int write_document(gs_launch_page **page, const char *text) {
    gs_json *document;
    int fd = -1;
    gs_status status = gs_json_parse(&document, text, strlen(text));
    assert_int_equal(status.code, GS_OK);
    status = gs_launch_write(&fd, page, document, NULL);
    assert_int_equal(status.code, GS_OK);
    gs_json_release(document);
    return fd;
}

static void what_the_agent_writes_the_trainer_reads(void **state) {
    (void)state;
    gs_launch_page *page;
    gs_launch launch;
    gs_status status = gs_launch_read(&launch, write_document(&page, document_text));
    assert_string_equal(status.message, "");
    assert_string_equal(launch.job, "j-0000000000zz");
    assert_int_equal(launch.job_number, 31 * 32 + 31);
    assert_true(launch.incarnation == UINT64_MAX);
    assert_int_equal(launch.slot, 3);
    assert_int_equal(launch.threads, 4);
    assert_string_equal(launch.resume, "");
    assert_int_equal(launch.spec.steps.target, 5);
    gs_launch_release(&launch);
    gs_launch_unmap(page);
}

// The coordinator reads these words (gs_membership_of).
static void states_have_their_words(void **state) {
    (void)state;
    const char *const words[] = {"booting", "waiting", "prepared", "connecting", "connected", "running", "aborting", "leaving"};
    for (int i = GS_MEMBER_BOOTING; i <= GS_MEMBER_LEAVING; i++)
        assert_string_equal(gs_member_state_name((gs_member_state)i), words[i]);
}

// It writes what it likes into the page, and its agent reads that.
static void a_number_that_is_no_state_is_no_word_either(void **state) {
    (void)state;
    const int numbers[] = {GS_MEMBER_LEAVING + 1, 1 << 20, -1, INT_MIN};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        assert_string_equal(gs_member_state_name((gs_member_state)numbers[i]), "booting");
}

static void the_file_cannot_be_made_shorter(void **state) {
    (void)state;
    gs_launch_page *page;
    int fd = write_document(&page, document_text);
    assert_int_equal(ftruncate(fd, 0), -1);
    assert_int_equal(ftruncate(fd, 1 << 20), -1);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE), -1);
    assert_int_equal(atomic_load(&page->rank), 2);
    gs_launch_unmap(page);
    close(fd);
}

static void both_sides_see_the_page(void **state) {
    (void)state;
    gs_launch_page *page;
    gs_launch launch;
    gs_status status = gs_launch_read(&launch, write_document(&page, document_text));
    assert_int_equal(status.code, GS_OK);
    assert_int_equal(atomic_load(&page->rank), 2);
    atomic_store(&launch.page->rank, 7);
    atomic_store(&launch.page->generation, 41);
    assert_int_equal(atomic_load(&page->rank), 7);
    assert_int_equal(atomic_load(&page->generation), 41);
    gs_launch_release(&launch);
    gs_launch_unmap(page);
}

static void a_cluster_is_told_once_to_who_asks(void **state) {
    (void)state;
    gs_launch_page page = {0};
    char cluster[GS_CLUSTER_ID_LEN] = "unset";
    unsigned turn = 0;
    assert_false(gs_launch_page_get_cluster(&page, cluster, sizeof cluster, &turn));
    assert_string_equal(cluster, "unset");
    gs_launch_page_put_cluster(&page, "c-00000000000000aa");
    assert_true(gs_launch_page_get_cluster(&page, cluster, sizeof cluster, &turn));
    assert_string_equal(cluster, "c-00000000000000aa");
    assert_false(gs_launch_page_get_cluster(&page, cluster, sizeof cluster, &turn));
    gs_launch_page_put_cluster(&page, "c-00000000000000bb");
    assert_true(gs_launch_page_get_cluster(&page, cluster, sizeof cluster, &turn));
    assert_string_equal(cluster, "c-00000000000000bb");
    atomic_fetch_add(&page.cluster_turn, 1);  // being written
    assert_false(gs_launch_page_get_cluster(&page, cluster, sizeof cluster, &turn));
}

static void a_bad_specification_names_its_field(void **state) {
    (void)state;
    char text[sizeof document_text + 16];
    snprintf(text, sizeof text, "%s", document_text);
    memcpy(strstr(text, "\"target\""), "\"tarqet\"", 8);
    gs_launch_page *page;
    gs_launch launch;
    gs_status status = gs_launch_read(&launch, write_document(&page, text));
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    assert_non_null(strstr(status.message, "/steps"));
    gs_launch_unmap(page);
}

static void what_is_no_document_is_refused(void **state) {
    (void)state;
    gs_launch launch;
    int fd = memfd_create("short", MFD_CLOEXEC);
    assert_true(fd >= 0);
    gs_status status = gs_launch_read(&launch, fd);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
}

static void job_ids_are_numbers(void **state) {
    (void)state;
    uint64_t number;
    assert_true(gs_job_number(&number, "j-000000000010"));
    assert_int_equal(number, 32);
    assert_false(gs_job_number(&number, "j-00000000001"));
    assert_false(gs_job_number(&number, "j-00000000001u"));
    assert_false(gs_job_number(&number, "k-000000000010"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_agent_writes_the_trainer_reads),
        cmocka_unit_test(states_have_their_words),
        cmocka_unit_test(a_number_that_is_no_state_is_no_word_either),
        cmocka_unit_test(the_file_cannot_be_made_shorter),
        cmocka_unit_test(both_sides_see_the_page),
        cmocka_unit_test(a_cluster_is_told_once_to_who_asks),
        cmocka_unit_test(a_bad_specification_names_its_field),
        cmocka_unit_test(what_is_no_document_is_refused),
        cmocka_unit_test(job_ids_are_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
