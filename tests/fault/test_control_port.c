// The control port under replays, frames that cannot be, floods and storms, while a job trains: whatever comes, the job keeps its
// generation, its ranks step on and are heard in time, and the coordinator's memory stays what it was.
// Rows M3, M5, M6, M8, M11, N14 of docs/faults.md.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "coordinator/rules/timing.h"
#include "core/clock.h"
#include "core/random.h"
#include "rpc/json/json.h"
#include "tests/support/asserts.h"
#include "tests/support/control_line.h"
#include "tests/support/coordinator_stage.h"
#include "tests/support/http.h"
#include "tests/support/sample.h"
#include "tests/support/soon.h"

#define RANKS 3
#define DEAD_SECONDS ((double)gs_timing_default.dead_ns / GS_NS_PER_SEC)  // a rank that is silent for so long would be missed
// A sanitizer keeps more than is used; what would be kept of a message of 100,000 frames is 6 MB. What ThreadSanitizer remembers
// grows with what is touched: there nothing is said of memory.
#if defined(__SANITIZE_THREAD__)
#define MOST_GROWTH_BYTES INT64_MAX
#elif defined(__SANITIZE_ADDRESS__)
#define MOST_GROWTH_BYTES (16 << 20)
#else
#define MOST_GROWTH_BYTES (2 << 20)
#endif
#define NUM_WAVES 4  // 24 MB of such frames
#define STRANGER 0x5742a9
#define NUM_STORM 1000
#define FORGED_STEP 900000
#define MOST_ATTEMPTS 6  // who is late because of others is so each time, on a machine that is busy with other tests at times

typedef struct port {
    gs_stage stage;
    gs_control_line *line;  // that the worker of the job speaks over
    int64_t generation, restarts, step;
} port;

static void read_job(port *it, int64_t *generation, int64_t *restarts, int64_t *step) {
    gs_json *job = gs_stage_get(&it->stage, GS_GET_JOB, it->stage.job);
    if (strcmp(gs_json_string_or(job, "state", ""), "running") != 0)
        fail_msg("the job is %s: %s", gs_json_string_or(job, "state", ""), gs_json_string_or(job, "message", ""));
    *generation = gs_json_int_or(job, "generation", -1);
    *restarts = gs_json_int_or(job, "restarts", -1);
    *step = gs_json_int_or(gs_json_get(job, "progress"), "step", -1);
    gs_json_release(job);
}

static void begin(port *it) {
    it->line = gs_control_line_open(it->stage.process.control);
    gs_fake_worker_options options = {.name = "w1", .control = gs_control_line_endpoint(it->line), .slots = RANKS,
                                      .step_ms = 5, .faults = &it->stage.faults, .plans = &it->stage.plans};
    assert_ok(gs_fake_worker_start(&it->stage.workers[0], it->stage.context, &options));
    gs_stage_submit(&it->stage, "{\"name\":\"port\",\"model\":{\"kind\":\"mlp\"},\"world\":{\"min\":3,\"max\":3},"
                                "\"steps\":{\"target\":1000000}}");
    gs_stage_wait_for_step(&it->stage, it->stage.job, 20);
    read_job(it, &it->generation, &it->restarts, &it->step);
}

// The age of the oldest heartbeat among the job's ranks, in seconds.
static double oldest_beat(port *it) {
    gs_json *workers = gs_stage_get(&it->stage, GS_GET_JOB_WORKERS, it->stage.job);
    const gs_json *items = gs_json_get(workers, "items");
    double oldest = 0;
    for (size_t i = 0; i < gs_json_count(items); i++) {
        double age = gs_json_double_or(gs_json_at(items, i), "heartbeat_age_seconds", 1e9);
        if (age > oldest) oldest = age;
    }
    gs_json_release(workers);
    return oldest;
}

static void assert_undisturbed(port *it) {
    int64_t generation, restarts, step;
    read_job(it, &generation, &restarts, &step);
    gs_stage_wait_for_step(&it->stage, it->stage.job, step + 20);
    read_job(it, &generation, &restarts, &it->step);
    assert_int_equal(generation, it->generation);
    assert_int_equal(restarts, it->restarts);
}

static int64_t count_dropped(port *it, const char *reason) {
    char wanted[100];
    snprintf(wanted, sizeof wanted, "gradsync_control_messages_dropped_total{reason=\"%s\"} ", reason);
    gs_wire_response page = gs_wire_exchange(it->stage.process.http, "GET /metrics HTTP/1.1\r\n\r\n", NULL, false);
    const char *found = page.body ? strstr(page.body, wanted) : NULL;
    assert_non_null(found);
    int64_t count = strtoll(found + strlen(wanted), NULL, 10);
    gs_wire_response_release(&page);
    return count;
}

static void wait_for_dropped(port *it, const char *reason, int64_t count) {
    gs_deadline deadline = soon();
    while (count_dropped(it, reason) < count) {
        assert_false(gs_deadline_passed(deadline));
        gs_sleep_ns(20 * GS_NS_PER_MS);
    }
}

// All that each connection said, said again by somebody who heard it, with one more connection for each.
static void replay(port *it, const gs_said_list *said) {
    for (int connection = 0; connection < said->num_connections; connection++) {
        gs_stranger stranger;
        assert_true(gs_stranger_open(&stranger, it->stage.process.control));
        for (size_t i = 0; i < said->count; i++) {
            const gs_said *one = &said->items[i];
            if (one->connection != connection) continue;
            if (!gs_stranger_say(&stranger, one->header, sizeof one->header, one->body, one->body_bytes)) break;
        }
        gs_sleep_ns(20 * GS_NS_PER_MS);
        gs_stranger_close(&stranger);
    }
}

static void what_was_recorded_and_is_said_again_changes_nothing(void **state) {
    port *it = *state;
    begin(it);
    gs_said_list said = gs_control_line_said(it->line);
    int64_t dropped = count_dropped(it, "stale");
    replay(it, &said);
    wait_for_dropped(it, "stale", dropped + 1);
    assert_undisturbed(it);

    // To the next life, before and while those who said it come back.
    gs_coordinator_process_kill(&it->stage.process);
    assert_ok(gs_coordinator_process_start(&it->stage.process));
    replay(it, &said);
    assert_undisturbed(it);

    // Of trainers that are gone, to the generation after theirs.
    atomic_store(&it->stage.faults.slot, 1);
    atomic_store(&it->stage.faults.crash_at_step, 1);
    gs_deadline deadline = soon();
    int64_t before = it->generation;
    while (it->generation == before) {
        assert_false(gs_deadline_passed(deadline));
        gs_json *job = gs_stage_get(&it->stage, GS_GET_JOB, it->stage.job);
        if (!strcmp(gs_json_string_or(job, "state", ""), "running"))
            it->generation = gs_json_int_or(job, "generation", -1);
        gs_json_release(job);
        gs_sleep_ns(5 * GS_NS_PER_MS);
    }
    read_job(it, &it->generation, &it->restarts, &it->step);
    replay(it, &said);
    assert_undisturbed(it);
    gs_said_list_release(&said);
}

// Everything that could hurt a rank, as it would say it; with a launch token that is not its own.
static void speak_for(port *it, const gs_frame *rank, uint64_t token) {
    static const struct {
        gs_method method;
        const char *body;
    } lies[] = {
        {GS_HEARTBEAT, "{\"state\":\"waiting\",\"generation\":%1$lld,\"applied_step\":%2$d,\"plan\":\"1\",\"next_plan\":\"0\",\"plan_step\":0}"},
        {GS_STEP, "{\"generation\":%1$lld,\"rank\":0,\"step\":%2$d,\"loss\":1.5,\"step_seconds\":9}"},
        {GS_READY, "{\"generation\":%1$lld,\"plan_hash\":\"xxh3:1\",\"applied_step\":%2$d,\"state_digest\":\"\"}"},
        {GS_EXCHANGE, "{\"generation\":%1$lld,\"tag\":\"comm\",\"rank\":0,\"bytes\":\"AAAA\"}"},
        {GS_COMM_UP, "{\"generation\":%1$lld,\"seconds\":1,\"backend\":\"lies\"}"},
        {GS_READY_ORDER, "{\"generation\":%1$lld,\"step\":%2$d,\"settled\":true,\"order\":[1,0]}"},
        {GS_TIMELINE, "{\"generation\":%1$lld,\"request\":0,\"steps\":[]}"},
        {GS_CHECKPOINTED, "{\"step\":%2$d,\"directory\":\"step-1\",\"error\":\"no\",\"cause\":\"io\"}"},
        {GS_FAULT, "{\"generation\":%1$lld,\"rank\":0,\"kind\":\"timeout\",\"accused\":[1],\"code\":\"ABORTED\",\"text\":\"late\"}"},
        {GS_SETTLE, "{\"generation\":%1$lld,\"rank\":0,\"applied_step\":%2$d,\"complete\":true}"},
        {GS_BYE, "{\"generation\":%1$lld,\"rank\":0,\"applied_step\":%2$d,\"reason\":\"error\",\"exit_code\":1,\"error\":\"lies\",\"class\":\"user\"}"},
    };
    gs_stranger stranger;
    gs_frame frame = {.job = rank->job, .incarnation = rank->incarnation, .token = token, .generation = (uint32_t)it->generation};
    assert_true(gs_stranger_open(&stranger, it->stage.process.control));
    frame.kind = GS_FRAME_PING;
    frame.seq = 1u << 30;  // above all that the rank has said
    assert_true(gs_stranger_say_frame(&stranger, &frame, ""));
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        char body[300];
        bool is_one_way = gs_method_info_of(lies[i].method)->shape == GS_ONE_WAY;
        snprintf(body, sizeof body, lies[i].body, (long long)it->generation, FORGED_STEP);
        frame.kind = is_one_way ? GS_FRAME_ONE_WAY : GS_FRAME_REQUEST;
        frame.method = lies[i].method;
        frame.time_left_ms = is_one_way ? 0 : 10000;
        frame.seq++;
        assert_true(gs_stranger_say_frame(&stranger, &frame, body));
    }
    frame = (gs_frame){.kind = GS_FRAME_CANCEL, .job = rank->job, .incarnation = rank->incarnation, .token = token, .seq = frame.seq + 1};
    assert_true(gs_stranger_say_frame(&stranger, &frame, ""));  // a goodbye, which ends all that its session has open
    gs_stranger_close(&stranger);
}

static int count_hellos(port *it) {
    gs_said_list said = gs_control_line_said(it->line);
    int count = 0;
    for (size_t i = 0; i < said.count; i++) count += said.items[i].frame.kind == GS_FRAME_REQUEST && said.items[i].frame.method == GS_HELLO;
    gs_said_list_release(&said);
    return count;
}

// Who knows what a rank is called, and may speak here, as whoever is another trainer of its worker does.
static void who_has_no_launch_token_speaks_for_no_rank(void **state) {
    port *it = *state;
    begin(it);
    gs_said_list said = gs_control_line_said(it->line);
    int num_hellos = count_hellos(it);
    for (int life = 0; life < 2; life++) {
        for (size_t i = 0; i < said.count; i++) {
            const gs_frame *rank = &said.items[i].frame;
            if (rank->method != GS_HELLO || rank->kind != GS_FRAME_REQUEST) continue;
            assert_true(rank->token);
            speak_for(it, rank, 0);
            speak_for(it, rank, rank->token ^ 1);
        }
        assert_undisturbed(it);
        assert_true(it->step < FORGED_STEP);
        if (life) break;
        assert_int_equal(count_hellos(it), num_hellos);  // nobody's connection was taken
        // To a life that has not heard them yet.
        gs_coordinator_process_kill(&it->stage.process);
        assert_ok(gs_coordinator_process_start(&it->stage.process));
    }
    gs_said_list_release(&said);
}

static int64_t memory_of(const port *it) {
    char path[64];
    long long pages = 0;
    snprintf(path, sizeof path, "/proc/%d/statm", (int)it->stage.process.pid);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%*d %lld", &pages), 1);
    fclose(file);
    return pages * 4096;
}

static void announce(port *it, const uint8_t *head, size_t bytes) {
    gs_stranger stranger;
    assert_true(gs_stranger_open(&stranger, it->stage.process.control));
    gs_stranger_send(&stranger, head, bytes);
    assert_true(gs_stranger_is_cut(&stranger, 60 * GS_NS_PER_SEC));
    gs_stranger_close(&stranger);
}

static void send_frames(port *it, int count) {
    static uint8_t frames[30000];
    gs_stranger stranger;
    for (size_t i = 0; i < sizeof frames; i += 3) memcpy(frames + i, (uint8_t[]){1, 1, 'x'}, 3);
    assert_true(gs_stranger_open(&stranger, it->stage.process.control));
    for (int sent = 0; sent < count; sent += (int)sizeof frames / 3)
        assert_true(gs_stranger_send(&stranger, frames, sizeof frames));
    assert_true(gs_stranger_send(&stranger, (uint8_t[]){0, 0}, 2));
    gs_stranger_close(&stranger);
}

static void send_what_cannot_be(port *it) {
    static const uint8_t two_gib[] = {3, 0, 0, 0, 0, 0x80, 0, 0, 0}, all[] = {3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
    gs_stranger stranger;
    int64_t dropped = count_dropped(it, "malformed");
    announce(it, two_gib, sizeof two_gib);
    announce(it, all, sizeof all);
    send_frames(it, 100000);
    assert_true(gs_stranger_open(&stranger, it->stage.process.control));
    for (int i = 0; i < 100; i++) assert_true(gs_stranger_send(&stranger, (uint8_t[]){0, 0}, 2));  // nothing in it
    // A body that is longer than its header says.
    gs_frame frame = {.method = GS_HEARTBEAT, .kind = GS_FRAME_ONE_WAY, .incarnation = STRANGER, .seq = 1};
    uint8_t header[GS_FRAME_HEADER_BYTES];
    gs_frame_pack(header, &frame, "{}", 2);
    assert_true(gs_stranger_say(&stranger, header, sizeof header, "{}                ", 18));
    wait_for_dropped(it, "malformed", dropped + 102);
    gs_stranger_close(&stranger);
}

static void frames_that_cannot_be_take_no_memory(void **state) {
    port *it = *state;
    begin(it);
    send_what_cannot_be(it);  // what an allocator keeps for ever, it has now
    int64_t before = memory_of(it);
    for (int i = 0; i < NUM_WAVES; i++) send_what_cannot_be(it);
    int64_t growth = memory_of(it) - before;
    print_message("memory: %lld KiB, and %lld KiB more\n", (long long)(before >> 10), (long long)(growth / 1024));
    assert_true(growth < MOST_GROWTH_BYTES);
    assert_undisturbed(it);
}

// Each byte changed, the end cut off, a byte more: of one message of each kind that the worker has said.
static int damage(port *it, gs_random_key key, const gs_said *said) {
    size_t bytes = sizeof said->header + said->body_bytes;
    uint8_t *text = malloc(bytes + 1);
    gs_stranger stranger;
    int sent = 0;
    assert_true(gs_stranger_open(&stranger, it->stage.process.control));
    for (size_t i = 0; i < bytes; i++, sent++) {
        memcpy(text, said->header, sizeof said->header);
        memcpy(text + sizeof said->header, said->body, said->body_bytes);
        text[i] ^= (uint8_t)(1 + gs_random_u64(key, (uint64_t)said->frame.method << 32 | i) % 255);
        assert_true(gs_stranger_say(&stranger, text, sizeof said->header, text + sizeof said->header, said->body_bytes));
    }
    for (size_t i = 0; i < bytes; i++, sent++) {  // cut off
        size_t head = i < sizeof said->header ? i : sizeof said->header;
        if (head == sizeof said->header && i - head == said->body_bytes) break;
        assert_true(gs_stranger_say(&stranger, said->header, head, said->body, i - head));
    }
    memcpy(text, said->header, sizeof said->header);
    text[sizeof said->header] = 0;
    assert_true(gs_stranger_say(&stranger, text, sizeof said->header + 1, said->body, said->body_bytes));
    memcpy(text, said->body, said->body_bytes);
    text[said->body_bytes] = ' ';
    assert_true(gs_stranger_say(&stranger, said->header, sizeof said->header, text, said->body_bytes + 1));
    gs_stranger_close(&stranger);
    free(text);
    return sent + 2;
}

static void damaged_messages_of_every_kind_change_nothing(void **state) {
    port *it = *state;
    gs_random_key key = {.seed = sample_seed("damage")};
    atomic_store(&it->stage.plans.tells_order, 1);
    atomic_store(&it->stage.faults.slot, 2);
    atomic_store(&it->stage.faults.report, "{\"kind\":\"timeout\",\"accused\":[1],\"code\":\"ABORTED\",\"text\":\"late\"}");
    begin(it);  // with a fault, and so a settlement, a save and a restart
    gs_deadline deadline = soon();
    gs_said_list said = {0};
    static const gs_method needed[] = {GS_AGENT_HELLO, GS_AGENT_HEARTBEAT, GS_EXITED, GS_HELLO, GS_HEARTBEAT, GS_READY,
                                       GS_EXCHANGE, GS_COMM_UP, GS_STEP, GS_FAULT, GS_SETTLE, GS_CHECKPOINTED, GS_BYE,
                                       GS_READY_ORDER, GS_TIMELINE};
    for (size_t i = 0; i < sizeof needed / sizeof needed[0];) {
        assert_false(gs_deadline_passed(deadline));
        gs_said_list_release(&said);
        said = gs_control_line_said(it->line);
        if (gs_said_find(&said, needed[i])) i++;
        else gs_sleep_ns(20 * GS_NS_PER_MS);
    }
    gs_json_release(gs_stage_wait_for_state(&it->stage, it->stage.job, "running"));
    read_job(it, &it->generation, &it->restarts, &it->step);
    int64_t dropped = count_dropped(it, "malformed");
    int sent = 0;
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) sent += damage(it, key, gs_said_find(&said, needed[i]));
    print_message("%d messages\n", sent);
    wait_for_dropped(it, "malformed", dropped + sent);
    assert_int_equal(count_dropped(it, "malformed"), dropped + sent);
    assert_undisturbed(it);
    gs_said_list_release(&said);
}

// For two seconds. The oldest heartbeat of others that was seen.
static double flood(port *it, const gs_json *beat) {
    gs_rpc_client *client = gs_fake_worker_client(it->stage.workers[1]);
    double oldest = 0;
    int64_t sent = 0, begun_ns = gs_now_ns(), looked_ns = 0;
    for (int64_t now_ns = begun_ns; now_ns - begun_ns < 2 * GS_NS_PER_SEC; now_ns = gs_now_ns()) {
        while (sent * GS_NS_PER_SEC / 10000 < now_ns - begun_ns) {
            gs_rpc_send(client, GS_AGENT_HEARTBEAT, beat);
            sent++;
        }
        if (now_ns - looked_ns > 50 * GS_NS_PER_MS) {
            double age = oldest_beat(it);
            if (age > oldest) oldest = age;
            looked_ns = now_ns;
        }
        gs_sleep_ns(GS_NS_PER_MS);
    }
    print_message("%lld messages; the oldest heartbeat was %.3f s old\n", (long long)sent, oldest);
    return oldest;
}

static void a_worker_that_floods_makes_no_other_late(void **state) {
    port *it = *state;
    begin(it);
    gs_fake_worker_options options = {.slots = 1, .step_ms = 5};
    gs_stage_start_worker(&it->stage, 1, &options);
    gs_json *beat = gs_json_new_object();
    gs_json_set_int(beat, "slots_busy", 0);
    bool in_time = false;
    for (int attempt = 0; attempt < MOST_ATTEMPTS && !in_time; attempt++)
        in_time = flood(it, beat) < DEAD_SECONDS && count_dropped(it, "flood") > 0;
    gs_json_release(beat);
    assert_true(count_dropped(it, "flood") > 0);
    assert_true(in_time);
    assert_undisturbed(it);
}

static int count_descriptors(const port *it) {
    char command[64];
    int count = 0;
    snprintf(command, sizeof command, "ls /proc/%d/fd | wc -l", (int)it->stage.process.pid);
    FILE *list = popen(command, "re");
    assert_non_null(list);
    assert_int_equal(fscanf(list, "%d", &count), 1);
    pclose(list);
    return count;
}

// The oldest heartbeat of those who were there before that was seen.
static double storm(port *it, int before) {
    static gs_stranger strangers[NUM_STORM];
    static const char hello[] = "{\"job\":\"j-aaaaaaaaaaaa\",\"launch_token\":\"1\",\"worker\":\"w\",\"slot\":0,\"incarnation\":\"1\","
                                "\"pid\":4,\"host\":\"h\",\"boot_id\":\"b\",\"build\":\"t\",\"proto_least\":1,\"proto_most\":1,"
                                "\"params_digest\":\"p\",\"num_params\":2,\"total_elements\":17,\"data_digest\":\"d\","
                                "\"applied_step\":0}";
    double oldest = 0;
    for (int i = 0; i < NUM_STORM; i++) {
        gs_frame frame = {.method = GS_HELLO, .kind = GS_FRAME_REQUEST, .incarnation = (uint64_t)(STRANGER + i), .seq = 1};
        assert_true(gs_stranger_open(&strangers[i], it->stage.process.control));
        assert_true(gs_stranger_say_frame(&strangers[i], &frame, hello));
        if (i % 50 != 0) continue;
        double age = oldest_beat(it);
        if (age > oldest) oldest = age;
    }
    assert_undisturbed(it);
    for (int i = 0; i < NUM_STORM; i++) gs_stranger_close(&strangers[i]);
    print_message("the oldest heartbeat was %.3f s old\n", oldest);
    gs_deadline deadline = soon();
    while (count_descriptors(it) > before + 5) {
        assert_false(gs_deadline_passed(deadline));
        gs_sleep_ns(50 * GS_NS_PER_MS);
    }
    assert_undisturbed(it);
    return oldest;
}

static void a_storm_of_hellos_disturbs_nobody(void **state) {
    port *it = *state;
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    begin(it);
    int before = count_descriptors(it);
    bool in_time = false;
    for (int attempt = 0; attempt < MOST_ATTEMPTS && !in_time; attempt++)
        in_time = storm(it, before) < DEAD_SECONDS;
    assert_true(in_time);
}

// What ASan keeps to find uses after free is not the coordinator's.
static void keep_little(void) {
    const char *options = getenv("ASAN_OPTIONS");
    char text[600];
    snprintf(text, sizeof text, "%s:quarantine_size_mb=1:thread_local_quarantine_size_kb=16", options ? options : "");
    setenv("ASAN_OPTIONS", text, 1);
}

static int set_up(void **state) {
    keep_little();
    port *it = calloc(1, sizeof *it);
    void *stage = NULL;
    if (gs_stage_set_up(&stage) != 0) return -1;
    it->stage = *(gs_stage *)stage;
    free(stage);
    *state = it;
    return 0;
}

static int tear_down(void **state) {
    port *it = *state;
    gs_stage *stage = malloc(sizeof *stage);
    for (int i = 0; i < GS_STAGE_MAX_WORKERS; i++) {
        gs_fake_worker_stop(it->stage.workers[i]);
        it->stage.workers[i] = NULL;
    }
    gs_control_line_close(it->line);
    *stage = it->stage;
    void *left = stage;
    free(it);
    return gs_stage_tear_down(&left);
}

#define ONE_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        ONE_TEST(what_was_recorded_and_is_said_again_changes_nothing),
        ONE_TEST(who_has_no_launch_token_speaks_for_no_rank),
        ONE_TEST(frames_that_cannot_be_take_no_memory),
        ONE_TEST(damaged_messages_of_every_kind_change_nothing),
        ONE_TEST(a_worker_that_floods_makes_no_other_late),
        ONE_TEST(a_storm_of_hellos_disturbs_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
