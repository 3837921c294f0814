// Ranks in network namespaces of their own, over a bridge: packets are dropped, both ways or one
// way, or a rank hardly reads. No rank takes a wrong sum for a right one, all return at their
// deadlines, and those who cannot be heard are named. What lines delay, lose, disorder or slow down changes no sum. And
// what is small does not wait for acknowledgements.
//
// The parent's namespace has the bridge; a rank makes a namespace, says so, and gets an end of a
// pair of interfaces. All of it ends with the processes.
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <net/if.h>

#include <cmocka.h>

#include "tests/support/asserts.h"
#include "tests/support/comm_rank.h"
#include "tests/support/ranks.h"

#define WORLD 4
#define COUNT 320000
#define FAR_SECONDS 90.0
#define LATE_SECONDS 8.0  // the deadline of a sum: far more than one takes on a busy machine
#define MOST_TURNS 1000000
#define SMALL_COUNT 256
#define SMALL_NS (20 * GS_NS_PER_MS)  // an acknowledgement that is put off takes 40
#define SMALL_ROUNDS 30
#define BAD_COUNT 60000
#define BAD_TURNS 20

static bool runs(const char *format, ...) {
    char command[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(command, sizeof command, format, arguments);
    va_end(arguments);
    return system(command) == 0;
}

// In a rank: a host of its own. Each case has a subnet of its own: the hosts of the last one answer
// until the kernel has come to their ends. The argument begins with its letter.
static gs_status enter_host(const gs_rank_env *env) {
    gs_deadline deadline = gs_deadline_in_seconds(FAR_SECONDS);
    if (unshare(CLONE_NEWNET)) return gs_error(GS_UNIMPLEMENTED, "no namespaces");
    gs_rank_note(env, "apart");
    while (!if_nametoindex("data")) {
        if (gs_deadline_passed(deadline)) return gs_error(GS_UNIMPLEMENTED, "no interface");
        gs_sleep_ns(GS_NS_PER_MS);
    }
    return runs("ip addr add 10.9.%d.%d/24 dev data && ip link set data up && ip link set lo up",
                env->arg[0], env->rank + 1)
               ? gs_ok()
               : gs_error(GS_UNIMPLEMENTED, "no address");
}

static gs_status open_on_host(comm_rank *self, const gs_rank_env *env) {
    char address[32];
    snprintf(address, sizeof address, "10.9.%d.%d", env->arg[0], env->rank + 1);
    GS_TRY(enter_host(env));
    return comm_rank_open(self, env, 0,
                          &(gs_comm_options){.backend = "net", .data_address = address});
}

// The argument's rest: ranks of which one at least is to be named, and nobody else.
static bool is_rightly_accused(const gs_rank_env *env, const gs_comm_failure *seen) {
    int num_right = 0;
    for (const char *at = env->arg + 1; *at; at++)
        num_right += gs_comm_failure_names(seen, *at - '0');
    return num_right && num_right == gs_comm_failure_num_accused(seen);
}

static gs_status add_until_it_fails(comm_rank *self, const gs_rank_env *env, float *data) {
    for (uint64_t i = 0; i < MOST_TURNS; i++) {
        gs_collective sum = {.kind = GS_ALLREDUCE,
                             .send = data,
                             .recv = data,
                             .count = COUNT,
                             .dtype = GS_FP32,
                             .step = (int64_t)i,
                             .bucket = 0};
        gs_work work = {0};
        gs_deadline deadline = gs_deadline_in_seconds(LATE_SECONDS);
        fill_pattern(data, GS_FP32, COUNT, i, self->rank, 0);
        gs_status status = gs_comm_post(self->comm, &work, &sum);
        if (!status.code) status = gs_comm_wait(self->comm, work, deadline);
        int64_t late_ns = gs_now_ns() - deadline.at_ns;
        bool is_done = !status.code;
        if (i == 0) gs_rank_note(env, "adds");
        if (is_done) {
            GS_TRY(check_pattern(data, GS_FP32, COUNT, i, -1, self->world_size, 0));
            continue;
        }
        gs_comm_failure seen;
        gs_comm_explain(self->comm, &seen);
        gs_comm_let_go(self->comm, status.message);
        GS_TRY(check_pattern(data, GS_FP32, COUNT, i, self->rank, self->world_size, 0));
        if (!is_rightly_accused(env, &seen))
            return gs_error(GS_INTERNAL, "others are accused: %s", status.message);
        char note[64];
        snprintf(note, sizeof note, "over, %lld us late", (long long)(late_ns / 1000));
        gs_rank_note(env, note);
        return status;
    }
    return gs_error(GS_INTERNAL, "nothing was lost");
}

static gs_status add(const gs_rank_env *env) {
    comm_rank self = {0};
    gs_status status = open_on_host(&self, env);
    float *data = malloc(COUNT * sizeof *data);
    if (!status.code) status = add_until_it_fails(&self, env, data);
    comm_rank_close(&self);
    free(data);
    return status;
}

// Rank 0 sends two small messages, the second a millisecond behind the first, to rank 1, which has asked for both and has
// nothing to say in between: without TCP_NODELAY the second waits for an acknowledgement that is put off. *gap_ns: how far
// apart they came.
static gs_status send_two(comm_rank *self, int64_t *gap_ns, gs_deadline deadline) {
    static float data[2][SMALL_COUNT];
    gs_work meets, works[2];
    gs_work_times times[2];
    GS_TRY(gs_comm_post(self->comm, &meets, &(gs_collective){.kind = GS_BARRIER}));
    for (int k = 0; k < 2; k++) {
        gs_collective message = {
            .kind = GS_BROADCAST, .send = data[k], .recv = data[k], .count = SMALL_COUNT, .dtype = GS_FP32};
        if (self->rank == 0) {
            GS_TRY(gs_comm_wait(self->comm, k ? works[0] : meets, deadline));
            gs_sleep_ns(GS_NS_PER_MS);
        }
        GS_TRY(gs_comm_post(self->comm, &works[k], &message));
    }
    for (int k = 0; k < 2; k++) {
        GS_TRY(gs_comm_wait(self->comm, works[k], deadline));
        if (!gs_comm_times(self->comm, works[k], &times[k])) return gs_error(GS_INTERNAL, "no times");
    }
    *gap_ns = self->rank ? times[1].finished_ns - times[0].finished_ns : 0;
    return gs_ok();
}

// Until so many in a row took no longer than they may: the machine has other things to do too, but not for ever.
static gs_status send_small(const gs_rank_env *env) {
    comm_rank self = {0};
    GS_TRY(open_on_host(&self, env));
    gs_status status = gs_ok();
    gs_deadline deadline = gs_deadline_in_seconds(FAR_SECONDS);
    float slowest = 2 * (float)SMALL_NS;
    while (!status.code && slowest > (float)SMALL_NS && !gs_deadline_passed(deadline)) {
        slowest = 0;
        for (int i = 0; i < SMALL_ROUNDS && !status.code; i++) {
            int64_t gap_ns = 0;
            status = send_two(&self, &gap_ns, deadline);
            if ((float)gap_ns > slowest) slowest = (float)gap_ns;
        }
        gs_collective most = {.kind = GS_ALLREDUCE,
                              .send = &slowest,
                              .recv = &slowest,
                              .count = 1,
                              .dtype = GS_FP32,
                              .op = GS_OP_MAX};
        if (!status.code) status = gs_comm_run(self.comm, &most, deadline);
    }
    comm_rank_close(&self);
    if (status.code || slowest <= (float)SMALL_NS) return status;
    return gs_error(GS_INTERNAL, "no %d messages in a row in time, %.1f ms at last", SMALL_ROUNDS,
                    (double)slowest / 1e6);
}

// Lines that delay, lose, disorder and are slow: what TCP makes up for changes no sum.
static gs_status add_all(const gs_rank_env *env) {
    comm_rank self = {0};
    float *data = malloc(BAD_COUNT * sizeof *data);
    gs_status status = open_on_host(&self, env);
    gs_collective sum = {
        .kind = GS_ALLREDUCE, .send = data, .recv = data, .count = BAD_COUNT, .dtype = GS_FP32};
    for (uint64_t i = 0; i < BAD_TURNS && !status.code; i++) {
        fill_pattern(data, GS_FP32, BAD_COUNT, i, self.rank, 0);
        status = gs_comm_run(self.comm, &sum, gs_deadline_in_seconds(FAR_SECONDS));
        if (!status.code) status = check_pattern(data, GS_FP32, BAD_COUNT, i, -1, self.world_size, 0);
    }
    gs_comm_link link = {0};
    char note[64];
    int64_t num_sent_again = 0;
    for (int i = 0; i < self.world_size && !status.code; i++)
        if (gs_comm_peer_link(self.comm, i, &link)) num_sent_again += (int64_t)link.retransmits;
    snprintf(note, sizeof note, "%lld segments sent again", (long long)num_sent_again);
    gs_rank_note(env, note);
    comm_rank_close(&self);
    free(data);
    return status;
}

static const gs_rank_body bodies[] = {
    {"add", add}, {"add all", add_all}, {"send small", send_small}, {0}};

static int ports[WORLD];  // of the bridge, by rank
static pid_t relays[WORLD];

// A line of its own between a rank and the bridge (tests/support/link/relay.c).
static void start_relay(int rank, const char *options) {
    char in[24], out[24], command[160], said = 0;
    int pipe_ends[2];
    snprintf(in, sizeof in, "port%d", ports[rank]);
    snprintf(out, sizeof out, "near%d", ports[rank]);
    assert_true(runs("ip link set %s nomaster && ip link add %s type veth peer name far%d && ip link set %s up && "
                     "ip link set far%d master bridge up",
                     in, out, ports[rank], out, ports[rank]));
    assert_int_equal(pipe(pipe_ends), 0);
    snprintf(command, sizeof command, "exec %s %s %s %s", LINK_RELAY, in, out, options);
    relays[rank] = fork();
    if (relays[rank] == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(pipe_ends[1], STDOUT_FILENO);
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    close(pipe_ends[1]);
    assert_int_equal(read(pipe_ends[0], &said, 1), 1);  // it is ready
    close(pipe_ends[0]);
}

static void stop_relays(void) {
    for (int i = 0; i < WORLD; i++) {
        if (relays[i] <= 0) continue;
        kill(relays[i], SIGKILL);
        waitpid(relays[i], NULL, 0);
        relays[i] = 0;
    }
}

// Starts ranks and gives them their networks. False: this machine does not let us.
static bool start_hosts(gs_ranks **out, const char *body, int world_size, const char *arg, const char *const *lines) {
    static bool is_apart;
    static int num_ports;
    if (!is_apart &&
        (unshare(CLONE_NEWNET) || !runs("ip link add bridge type bridge 2>/dev/null") ||
         !runs("ip link set bridge up && iptables -w -L >/dev/null 2>&1")))
        return false;
    is_apart = true;
    assert_ok(gs_ranks_start(out, body, world_size, arg, NULL));
    for (int i = 0; i < world_size; i++) {
        assert_ok(gs_ranks_wait_note(*out, i, "apart", gs_deadline_in_seconds(FAR_SECONDS)));
        int pid = (int)gs_ranks_pid(*out, i);
        ports[i] = num_ports++;  // those of ended ranks go when the kernel comes to it
        assert_true(runs("ip link add port%d type veth peer name data netns %d && "
                         "ip link set port%d master bridge up",
                         ports[i], pid, ports[i]));
        if (lines) start_relay(i, lines[i]);
    }
    return true;
}

static void start_adding(gs_ranks **out, const char *accused) {
    if (!start_hosts(out, "add", WORLD, accused, NULL)) skip();
    for (int i = 0; i < WORLD; i++)
        assert_ok(gs_ranks_wait_note(*out, i, "adds", gs_deadline_in_seconds(FAR_SECONDS)));
}

// Ranks of `excused` may accuse whom they like.
static void await_end(gs_ranks *ranks, const char *excused) {
    gs_status statuses[WORLD];
    assert_ok(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(2 * FAR_SECONDS)));
    for (int i = 0; i < WORLD; i++) {
        bool is_excused = strchr(excused, '0' + i) != NULL;
        print_message("rank %d %s: %s\n", i, gs_ranks_note(ranks, i), statuses[i].message);
        assert_true(is_excused || statuses[i].code == GS_DEADLINE_EXCEEDED ||
                    statuses[i].code == GS_ABORTED);
    }
    gs_ranks_destroy(ranks);
}

static void a_rank_whose_packets_are_all_dropped_is_named(void **state) {
    (void)state;
    gs_ranks *ranks;
    start_adding(&ranks, "a2");
    assert_true(runs("ip link set port%d nomaster", ports[2]));
    await_end(ranks, "2");
}

static void two_ranks_of_which_one_does_not_hear_the_other_are_named(void **state) {
    (void)state;
    gs_ranks *ranks;
    start_adding(&ranks, "b13");
    assert_true(runs("nsenter -t %d -n iptables -w -A INPUT -s 10.9.%d.2 -j DROP",
                     (int)gs_ranks_pid(ranks, 3), 'b'));
    await_end(ranks, "");
}

// It runs for a millisecond of twenty until the others give it up, or never do: then it is frozen.
static void a_rank_that_hardly_reads_spoils_nobodys_sum(void **state) {
    (void)state;
    gs_ranks *ranks;
    start_adding(&ranks, "c2");
    for (int i = 0; i < 50; i++) {
        gs_ranks_signal(ranks, 2, SIGSTOP);
        gs_sleep_ns(19 * GS_NS_PER_MS);
        gs_ranks_signal(ranks, 2, SIGCONT);
        gs_sleep_ns(GS_NS_PER_MS);
    }
    gs_ranks_signal(ranks, 2, SIGSTOP);
    for (int i = 0; i < WORLD; i++) {
        if (i != 2)
            assert_ok(gs_ranks_wait_note(ranks, i, "over", gs_deadline_in_seconds(FAR_SECONDS)));
    }
    gs_ranks_signal(ranks, 2, SIGCONT);
    await_end(ranks, "2");
}

static void a_rank_whose_connection_is_reset_is_named(void **state) {
    (void)state;
    gs_ranks *ranks;
    start_adding(&ranks, "e13");
    assert_true(runs("nsenter -t %d -n iptables -w -A INPUT -p tcp -s 10.9.%d.2 -j REJECT --reject-with tcp-reset",
                     (int)gs_ranks_pid(ranks, 3), 'e'));
    await_end(ranks, "");
}

static void sums_over_bad_lines_are_those_of_good_ones(void **state) {
    static const char *const lines[WORLD] = {"--delay-us 3000 --jitter-us 2000", "--delay-us 200 --loss 0.02 --seed 7",
                                             "--delay-us 1000 --reorder 0.05 --seed 7", "--rate 8000000 --queue 300000"};
    (void)state;
    gs_ranks *ranks;
    gs_status statuses[WORLD];
    if (!start_hosts(&ranks, "add all", WORLD, "f", lines)) skip();
    assert_ok(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(3 * FAR_SECONDS)));
    for (int i = 0; i < WORLD; i++) print_message("rank %d: %s\n", i, gs_ranks_note(ranks, i));
    gs_ranks_destroy(ranks);
    stop_relays();
    for (int i = 0; i < WORLD; i++) assert_ok(statuses[i]);
}

static void small_messages_wait_for_no_acknowledgement(void **state) {
    (void)state;
    gs_ranks *ranks;
    gs_status statuses[2];
    if (!start_hosts(&ranks, "send small", 2, "d", NULL)) skip();
    assert_ok(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(3 * FAR_SECONDS)));
    gs_ranks_destroy(ranks);
    assert_ok(statuses[0]);
    assert_ok(statuses[1]);
}

int main(int argc, char **argv) {
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_whose_packets_are_all_dropped_is_named),
        cmocka_unit_test(two_ranks_of_which_one_does_not_hear_the_other_are_named),
        cmocka_unit_test(a_rank_that_hardly_reads_spoils_nobodys_sum),
        cmocka_unit_test(a_rank_whose_connection_is_reset_is_named),
        cmocka_unit_test(sums_over_bad_lines_are_those_of_good_ones),
        cmocka_unit_test(small_messages_wait_for_no_acknowledgement),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
