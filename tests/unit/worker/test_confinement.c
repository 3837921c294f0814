// What becomes of a process that a worker confines: looked at from inside, in processes of their own.
#include "worker/agent/confinement.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/asserts.h"

#define MIB (1 << 20)

static gs_confinement_options plain(void) {
    return (gs_confinement_options){.cgroup = "", .secrets = ""};
}

static gs_json *document_of(const char *limits, const char *device) {
    char text[200];
    gs_json *document;
    snprintf(text, sizeof text, "{\"device\":\"%s\",\"spec\":{\"limits\":{%s}}}", device, limits);
    assert_ok(gs_json_parse(&document, text, strlen(text)));
    return document;
}

// Runs `look` in a confined process; its exit code, -signal when it was killed.
static int run_confined(const gs_confinement *confinement, const char *limits, int (*look)(void)) {
    gs_json *document = document_of(limits, "cpu");
    gs_confined confined;
    int state;
    assert_ok(gs_confined_begin(&confined, confinement, document, 0));
    pid_t pid = fork();
    if (pid == 0) {
        const char *failed = gs_confined_apply(&confined);
        if (failed) fprintf(stderr, "could not %s: %s\n", failed, strerror(errno));
        _exit(failed ? 99 : look());
    }
    gs_confined_release(&confined);
    gs_json_release(document);
    assert_int_equal(waitpid(pid, &state, 0), pid);
    return WIFEXITED(state) ? WEXITSTATUS(state) : -WTERMSIG(state);
}

// The number behind a name in /proc/self/status, of base 16 for capabilities.
static unsigned long long status_of(const char *name, int base) {
    char line[256];
    unsigned long long found = ~0ULL;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, name, strlen(name)) == 0 && line[strlen(name)] == ':')
            found = strtoull(line + strlen(name) + 1, NULL, base);
    }
    if (file) fclose(file);
    return found;
}

static int look_at_privileges(void) {
    if (status_of("NoNewPrivs", 10) != 1) return 1;
    // Of root: files of others (1), memory that stays in its place (14).
    unsigned long long most = geteuid() == 0 ? 1ULL << 1 | 1ULL << 14 : 0;
    static const char *const sets[] = {"CapInh", "CapPrm", "CapEff", "CapAmb"};
    for (int i = 0; i < 4; i++)
        if (status_of(sets[i], 16) & ~most) return 2 + i;
    return 0;
}

static void no_privilege_is_left_and_none_can_come(void **state) {
    gs_confinement confinement;
    gs_confinement_options options = plain();
    (void)state;
    assert_ok(gs_confinement_open(&confinement, &options));
    assert_int_equal(run_confined(&confinement, "", look_at_privileges), 0);
    assert_int_equal(run_confined(NULL, "", look_at_privileges), 0);
    gs_confinement_close(&confinement);
}

// As of another user, with nothing but what everybody may.
static int look_at_user(void) {
    struct passwd *nobody = getpwnam("nobody");
    gid_t groups[8];
    if (!nobody || getuid() != nobody->pw_uid || geteuid() != nobody->pw_uid || getgid() != nobody->pw_gid) return 1;
    int count = getgroups(8, groups);
    if (count < 0 || count > 1 || (count == 1 && groups[0] != nobody->pw_gid)) return 2;
    if (setuid(0) == 0) return 3;
    int fd = open("/etc/shadow", O_RDONLY);
    if (fd >= 0) return 4;
    return look_at_privileges();
}

static void it_becomes_another_user_for_good(void **state) {
    gs_confinement confinement;
    gs_confinement_options options = plain();
    (void)state;
    if (geteuid() != 0) skip();
    const gid_t more[] = {0, 12345};  // of the worker, and not for its trainers
    assert_int_equal(setgroups(2, more), 0);
    gs_trainer_user user;
    options.user = &user;
    assert_ok(gs_trainer_user_choose(&user, "nobody"));
    assert_ok(gs_confinement_open(&confinement, &options));
    assert_int_equal(run_confined(&confinement, "", look_at_user), 0);
    gs_confinement_close(&confinement);
    assert_ok(gs_trainer_user_choose(&user, "nobody:nogroup"));
    assert_ok(gs_confinement_open(&confinement, &options));
    assert_int_equal(run_confined(&confinement, "", look_at_user), 0);
    gs_confinement_close(&confinement);
}

static void who_is_not_there_is_an_error_at_the_start(void **state) {
    static const char *const wrong[] = {"no-such-user", "nobody:no-such-group", ":", "12345678", "-1", "4294967295", "nobody:-1"};
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        gs_trainer_user user;
        gs_status status = gs_trainer_user_choose(&user, wrong[i]);
        if (status.code != GS_NOT_FOUND) fail_msg("%s: %s", wrong[i], status.message);
        assert_non_null(strstr(status.message, "--run-as"));
    }
}

static int tell_descriptors(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_max > 200) return 0;
    return (int)limit.rlim_max;
}

static void descriptors_are_the_less_of_what_job_and_worker_say(void **state) {
    gs_confinement confinement;
    gs_confinement_options options = plain();
    (void)state;
    options.open_files = 100;
    assert_ok(gs_confinement_open(&confinement, &options));
    assert_int_equal(run_confined(&confinement, "", tell_descriptors), 100);
    assert_int_equal(run_confined(&confinement, "\"open_files\":64", tell_descriptors), 64);
    assert_int_equal(run_confined(&confinement, "\"open_files\":150", tell_descriptors), 100);
    gs_confinement_close(&confinement);
    assert_int_equal(run_confined(NULL, "", tell_descriptors), 0);
    assert_int_equal(run_confined(NULL, "\"open_files\":64", tell_descriptors), 64);
}

static int tell_data_limit(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_DATA, &limit) != 0 || limit.rlim_max == RLIM_INFINITY) return 0;
    return (int)(limit.rlim_max / MIB);
}

// A limit that a sanitizer's own memory would not keep is only looked at.
static void without_a_group_private_memory_is_limited(void **state) {
    gs_confinement confinement;
    gs_confinement_options options = plain();
    (void)state;
    options.memory_bytes = 100 * MIB;
    assert_ok(gs_confinement_open(&confinement, &options));
    assert_int_equal(run_confined(&confinement, "", tell_data_limit), 100);
    assert_int_equal(run_confined(&confinement, "\"memory_bytes\":41943040", tell_data_limit), 40);
    gs_json *document = document_of("", "cuda");
    gs_confined confined;
    assert_ok(gs_confined_begin(&confined, &confinement, document, 0));
    assert_false(confined.counts_data);
    gs_json_release(document);
    gs_confinement_close(&confinement);
}

static int tell_core_limit(void) {
    struct rlimit limit;
    return getrlimit(RLIMIT_CORE, &limit) == 0 && limit.rlim_cur == 0 && limit.rlim_max == 0 ? 1 : 0;
}

static void who_has_secrets_leaves_no_core(void **state) {
    (void)state;
    gs_json *document = document_of("", "cpu");
    for (int has_secrets = 0; has_secrets < 2; has_secrets++) {
        gs_confined confined;
        int ended;
        assert_ok(gs_confined_begin(&confined, NULL, document, 0));
        confined.has_secrets = has_secrets;
        struct rlimit before;
        assert_int_equal(getrlimit(RLIMIT_CORE, &before), 0);
        pid_t pid = fork();
        if (pid == 0) _exit(gs_confined_apply(&confined) ? 99 : tell_core_limit());
        assert_int_equal(waitpid(pid, &ended, 0), pid);
        gs_confined_release(&confined);
        if (has_secrets || before.rlim_max > 0) assert_int_equal(WEXITSTATUS(ended), has_secrets);
    }
    gs_json_release(document);
}

// Shared memory, which no other limit counts: as ranks have it.
static int take_256_mib(void) {
    int fd = memfd_create("taken", MFD_CLOEXEC);
    size_t bytes = 256 * (size_t)MIB;
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0) return 1;
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) return 2;
    memset(memory, 1, bytes);
    return 0;
}

// Where the memory controller can be divided by whoever runs this; NULL: nowhere.
static const char *find_group(char *path, size_t path_bytes) {
    static const char *const roots[] = {"/sys/fs/cgroup/memory", "/sys/fs/cgroup"};
    for (int i = 0; i < 2; i++) {
        char limit[300];
        snprintf(path, path_bytes, "%s/gradsync-test-%d", roots[i], (int)getpid());
        if (mkdir(path, 0755) != 0) continue;
        snprintf(limit, sizeof limit, "%s/%s", path, i == 0 ? "memory.limit_in_bytes" : "memory.max");
        if (access(limit, W_OK) == 0) return path;
        rmdir(path);
    }
    return NULL;
}

// Its parent's process group is not its own any more.
static int leave_a_daemon(void) {
    if (fork() != 0) return 0;
    setsid();
    for (;;) pause();
}

static void what_a_trainer_leaves_behind_ends_with_its_group(void **state) {
    char path[200], group[260];
    (void)state;
    if (!find_group(path, sizeof path)) {
        print_message("SKIP: no control group can be made here\n");
        skip();
    }
    gs_confinement confinement;
    gs_confinement_options options = plain();
    options.cgroup = path;
    options.memory_bytes = 128 * MIB;
    assert_ok(gs_confinement_open(&confinement, &options));
    assert_int_equal(run_confined(&confinement, "", leave_a_daemon), 0);
    snprintf(group, sizeof group, "%s/gradsync-slot-0", path);
    assert_int_equal(access(group, F_OK), 0);
    gs_rank_cgroup_remove(confinement.cgroup, 0);
    assert_int_not_equal(access(group, F_OK), 0);
    gs_confinement_close(&confinement);
    assert_int_equal(rmdir(path), 0);
}

static void a_group_counts_what_ranks_share(void **state) {
    char path[200];
    (void)state;
    if (!find_group(path, sizeof path)) {
        print_message("SKIP: no control group can be made here\n");
        skip();
    }
    gs_confinement confinement;
    gs_confinement_options options = plain();
    options.cgroup = path;
    options.memory_bytes = 128 * MIB;
    assert_ok(gs_confinement_open(&confinement, &options));
    assert_int_equal(run_confined(&confinement, "", take_256_mib), -SIGKILL);
    assert_int_equal(gs_rank_cgroup_kills(confinement.cgroup, 0), 1);
    // The next one in the slot begins anew.
    options.memory_bytes = 0;
    confinement.options = options;
    assert_int_equal(run_confined(&confinement, "", take_256_mib), 0);
    assert_int_equal(gs_rank_cgroup_kills(confinement.cgroup, 0), 0);
    gs_rank_cgroup_remove(confinement.cgroup, 0);
    gs_confinement_close(&confinement);
    assert_int_equal(rmdir(path), 0);
}

static void what_is_no_group_is_an_error_at_the_start(void **state) {
    static const char *const wrong[] = {"/nowhere", "/tmp"};
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        gs_confinement confinement;
        gs_confinement_options options = plain();
        options.cgroup = wrong[i];
        gs_status status = gs_confinement_open(&confinement, &options);
        assert_true(status.code != GS_OK);
        assert_non_null(strstr(status.message, "--cgroup"));
        gs_confinement_close(&confinement);
    }
}

static void write_controllers(const char *dir, const char *text) {
    char path[300];
    snprintf(path, sizeof path, "%s/cgroup.controllers", dir);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

// A directory that has the files of a group of version 2, as far as they are asked before it is divided.
static void a_group_without_the_memory_controller_says_so(void **state) {
    static const char *const lacking[] = {"hugetlb\n", "\n", "memory2 pids\n", "cpu memor\n"};
    char dir[] = "/tmp/gradsync-group-XXXXXX", path[300];
    gs_confinement confinement;
    gs_confinement_options options = plain();
    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/cgroup.subtree_control", dir);
    assert_int_equal(mknod(path, S_IFREG | 0644, 0), 0);
    options.cgroup = dir;
    for (size_t i = 0; i < sizeof lacking / sizeof *lacking; i++) {
        write_controllers(dir, lacking[i]);
        gs_status status = gs_confinement_open(&confinement, &options);
        assert_int_equal(status.code, GS_FAILED_PRECONDITION);
        if (!strstr(status.message, "memory controller (cgroup.controllers")) fail_msg("%s", status.message);
        gs_confinement_close(&confinement);
    }
    write_controllers(dir, "cpu memory pids\n");
    assert_ok(gs_confinement_open(&confinement, &options));
    gs_confinement_close(&confinement);
    unlink(path);
    snprintf(path, sizeof path, "%s/cgroup.controllers", dir);
    unlink(path);
    assert_int_equal(rmdir(dir), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_privilege_is_left_and_none_can_come),
        cmocka_unit_test(it_becomes_another_user_for_good),
        cmocka_unit_test(who_is_not_there_is_an_error_at_the_start),
        cmocka_unit_test(descriptors_are_the_less_of_what_job_and_worker_say),
        cmocka_unit_test(without_a_group_private_memory_is_limited),
        cmocka_unit_test(who_has_secrets_leaves_no_core),
        cmocka_unit_test(a_group_counts_what_ranks_share),
        cmocka_unit_test(what_a_trainer_leaves_behind_ends_with_its_group),
        cmocka_unit_test(what_is_no_group_is_an_error_at_the_start),
        cmocka_unit_test(a_group_without_the_memory_controller_says_so),
    };
    return cmocka_run_group_tests_name("worker confinement", tests, NULL, NULL);
}
