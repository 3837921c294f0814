#include "bench/control_workers.h"

#include "bench/control_curve.h"
#include "bench/control_reports.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "coordinator/model/job_id.h"
#include "core/clock.h"
#include "core/random.h"
#include "core/strbuf.h"
#include "core/thread.h"
#include "rpc/json/json.h"
#include "rpc/schema/launch_token.h"
#include "rpc/wire/frame.h"

#define GREETING_BYTES 64
#define FLAG_MORE 1
#define FLAG_LONG 2
#define FLAG_COMMAND 4
#define CALL_MS 60000
#define MAX_JOBS 16384
// As rpc/client/rpc_channel.c keeps a connection audible, until it is told of a slower pace.
#define PACE_NS GS_NS_PER_SEC

// Ranks of a job step together.
typedef struct sim_job {
    uint64_t job;
    int64_t begun_ns;
} sim_job;

typedef struct sim_peer {
    struct sim_peer *agent;  // of a trainer
    int fd, index, slot;
    bool is_agent, greeted, ready, stepping;
    bool watches_out;        // epoll tells when there is room again
    size_t handshake_bytes;  // of `out`: what may go out before the other side is ready
    uint64_t incarnation, job, seq;
    char job_text[GS_JOB_ID_LEN], launch_token[24];
    uint64_t shown_token;  // 0: none
    uint32_t coord_epoch, said_to;
    char *hello;  // owned; said again to the life of the coordinator that is there
    int64_t generation, rank, step, told_step;
    const sim_job *of_job;
    int64_t heard_ns, sent_ns, pinged_ns, pace_ns;
    int64_t heartbeat_ns, report_ns;  // the cadence that it was told
    int64_t beat_ns, step_ns;         // when the next one is due; 0: not welcome yet
    int64_t reported_ns, target_step;  // 0: none
    sim_job alone;  // of a trainer that ends its job
    bool has_said_bye;
    control_curve *curve;  // owned; NULL: nothing is sealed
    gs_strbuf in, out;
    gs_frame frame;  // whose body comes next
    bool has_header;
} sim_peer;

struct control_workers {
    control_workers_options options;
    gs_thread *thread;
    int epoll_fd;
    sim_peer **links;
    int num_links, max_links;
    sim_job jobs[MAX_JOBS];
    int num_jobs;
    control_reports *reports;
    atomic_int agents_welcome, trainers_stepping, links_lost;
    _Atomic int64_t step_ns;
    atomic_ullong sent, received, num_reports;
};

static void put_frame(sim_peer *to, const void *data, size_t bytes, uint8_t flags) {
    if (bytes < 256) {
        gs_strbuf_putc(&to->out, (char)flags);
        gs_strbuf_putc(&to->out, (char)bytes);
    } else {
        gs_strbuf_putc(&to->out, (char)(flags | FLAG_LONG));
        for (int shift = 56; shift >= 0; shift -= 8)
            gs_strbuf_putc(&to->out, (char)(bytes >> shift));
    }
    gs_strbuf_add(&to->out, data, bytes);
}

static void put_part(sim_peer *to, const void *data, size_t bytes, uint8_t flags) {
    static _Thread_local uint8_t sealed[1 << 16];
    if (!to->curve) put_frame(to, data, bytes, flags);
    else if (bytes + CONTROL_CURVE_MORE_BYTES <= sizeof sealed)
        put_frame(to, sealed, control_curve_seal(to->curve, sealed, flags & FLAG_MORE, flags & FLAG_COMMAND, data, bytes), 0);
}

static void flush_link(control_workers *workers, sim_peer *to) {
    size_t allowed = 0;
    while (to->fd >= 0 && (allowed = to->ready ? to->out.len : to->handshake_bytes) > 0) {
        ssize_t sent = send(to->fd, to->out.text, allowed, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0) break;
        if (!to->ready) to->handshake_bytes -= (size_t)sent;
        memmove(to->out.text, to->out.text + sent, to->out.len - (size_t)sent);
        to->out.len -= (size_t)sent;
    }
    if (to->fd < 0 || to->watches_out == (allowed > 0)) return;
    to->watches_out = allowed > 0;
    struct epoll_event event = {.events = EPOLLIN | (allowed ? (uint32_t)EPOLLOUT : 0),
                                .data.ptr = to};
    epoll_ctl(workers->epoll_fd, EPOLL_CTL_MOD, to->fd, &event);
}

static void send_frame(control_workers *workers, sim_peer *to, gs_frame_kind kind, gs_method method,
                       const void *body, size_t bytes) {
    gs_frame frame = {.kind = kind,
                      .method = method,
                      .job = to->job,
                      .coord_epoch = to->coord_epoch,
                      .generation = (uint32_t)to->generation,
                      .incarnation = to->incarnation,
                      .seq = ++to->seq,
                      .token = to->shown_token};
    if (kind == GS_FRAME_REQUEST && gs_method_info_of(method)->shape == GS_CALL) {
        frame.time_left_ms = CALL_MS;
    }
    to->sent_ns = gs_now_ns();
    uint8_t header[GS_FRAME_HEADER_BYTES];
    gs_frame_pack(header, &frame, body, bytes);
    put_part(to, header, sizeof header, FLAG_MORE);
    put_part(to, body, bytes, 0);
    atomic_fetch_add_explicit(&workers->sent, 1, memory_order_relaxed);
    flush_link(workers, to);
}

static void send_message(control_workers *workers, sim_peer *to, gs_frame_kind kind,
                         gs_method method, const char *body) {
    send_frame(workers, to, kind, method, body, strlen(body));
}

static void say_hello(control_workers *workers, sim_peer *from) {
    from->said_to = from->coord_epoch;
    send_message(workers, from, GS_FRAME_REQUEST, from->is_agent ? GS_AGENT_HELLO : GS_HELLO, from->hello);
}

static const char ready_command[] = "\5READY\13Socket-Type\0\0\0\6DEALER\10Identity\0\0\0";

// The greeting of ZMTP 3.1, and a DEALER's READY of the NULL mechanism or HELLO of CURVE. Messages wait for the
// other side's READY: libzmq takes none before.
static void put_greeting(sim_peer *to) {
    uint8_t hello[CONTROL_CURVE_HELLO_BYTES];
    char greeting[GREETING_BYTES] = {(char)0xff, 0,    0, 0, 0,   0,   0,   0,
                                     1,          0x7f, 3, 1, 'N', 'U', 'L', 'L'};
    if (to->curve) memcpy(greeting + 12, "CURVE", 5);
    gs_strbuf_add(&to->out, greeting, sizeof greeting);
    if (to->curve) control_curve_hello(to->curve, hello);
    put_frame(to, to->curve ? (const void *)hello : ready_command, to->curve ? sizeof hello : sizeof ready_command, FLAG_COMMAND);
    to->handshake_bytes = to->out.len;
}

static int connect_to(const control_workers *workers) {
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)workers->options.port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1;
    if (fd < 0) return -1;
    inet_pton(AF_INET, workers->options.host, &address.sin_addr);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0 || errno == EINPROGRESS)
        return fd;
    close(fd);
    return -1;
}

static sim_peer *open_link(control_workers *workers) {
    if (workers->num_links == workers->max_links) return NULL;
    sim_peer *made = calloc(1, sizeof *made);
    if (!made) return NULL;
    if (workers->options.key) made->curve = malloc(sizeof *made->curve);
    made->fd = workers->options.key && !made->curve ? -1 : connect_to(workers);
    if (made->fd < 0) {
        free(made->curve);
        free(made);
        return NULL;
    }
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = made};
    epoll_ctl(workers->epoll_fd, EPOLL_CTL_ADD, made->fd, &event);
    workers->links[workers->num_links++] = made;
    if (made->curve) control_curve_begin(made->curve, workers->options.key);
    put_greeting(made);
    flush_link(workers, made);
    return made;
}

static void lose_link(control_workers *workers, sim_peer *lost) {
    if (lost->fd < 0) return;
    close(lost->fd);
    lost->fd = -1;
    if (lost->stepping) atomic_fetch_sub(&workers->trainers_stepping, 1);
    lost->stepping = false;
    atomic_fetch_add(&workers->links_lost, 1);
}

static void open_agent(control_workers *workers, int index) {
    sim_peer *agent = open_link(workers);
    if (!agent) {
        atomic_fetch_add(&workers->links_lost, 1);
        return;
    }
    agent->is_agent = true;
    agent->index = index;
    agent->incarnation = gs_random_from_system() | 1;
    char body[512];
    snprintf(body, sizeof body,
             "{\"worker\":\"sim-%05d\",\"host\":\"host-%05d\",\"boot_id\":\"sim\",\"pid\":%d,"
             "\"incarnation\":\"%llu\",\"build\":\"sim\",\"proto_least\":2,\"proto_most\":2,"
             "\"slots\":%d,"
             "\"cores\":8,\"data_root\":\"/\",\"takes_cadence\":true,\"running\":[]}",
             index, index, index + 1, (unsigned long long)agent->incarnation,
             workers->options.slots);
    agent->hello = strdup(body);
}

static void start_trainer(control_workers *workers, sim_peer *agent, const gs_json *item) {
    uint64_t incarnation = 0;
    gs_status status = gs_json_read_u64(&incarnation, item, "incarnation");
    const char *job = gs_json_string_or(item, "job", "");
    sim_peer *trainer = status.code ? NULL : open_link(workers);
    if (!trainer || !gs_job_id_parse(&trainer->job, job)) return;
    trainer->agent = agent;
    trainer->incarnation = incarnation;
    trainer->rank = -1;
    trainer->slot = (int)gs_json_int_or(item, "slot", 0);
    if (workers->options.ends_jobs)
        trainer->target_step = gs_json_int_or(gs_json_get(gs_json_get(item, "spec"), "steps"), "target", 1);
    snprintf(trainer->job_text, sizeof trainer->job_text, "%s", job);
    snprintf(trainer->launch_token, sizeof trainer->launch_token, "%s",
             gs_json_string_or(item, "launch_token", ""));
    trainer->shown_token = gs_launch_token_show(strtoull(trainer->launch_token, NULL, 10));
    char body[1024];
    snprintf(
        body, sizeof body,
        "{\"job\":\"%s\",\"launch_token\":\"%s\",\"worker\":\"sim-%05d\",\"slot\":%d,"
        "\"incarnation\":\"%llu\",\"pid\":%d,\"host\":\"host-%05d\",\"boot_id\":\"sim\",\"build\":"
        "\"sim\","
        "\"proto_least\":2,\"proto_most\":2,\"params_digest\":\"xxh3:sim\",\"num_params\":3,"
        "\"total_elements\":12345,\"arithmetic\":\"sim\",\"data_digest\":\"\",\"applied_step\":0,"
        "\"takes_cadence\":true}",
        job, trainer->launch_token, agent->index, trainer->slot, (unsigned long long)incarnation,
        agent->index * 100 + trainer->slot + 1, agent->index);
    trainer->hello = strdup(body);
    trainer->coord_epoch = agent->coord_epoch;
}

static void answer_prepare(control_workers *workers, sim_peer *trainer, const gs_json *item) {
    trainer->generation = gs_json_int_or(item, "generation", 0);
    trainer->rank = gs_json_int_or(item, "rank", 0);
    char body[256];
    snprintf(body, sizeof body,
             "{\"generation\":%lld,\"plan_hash\":\"%s\",\"applied_step\":0,\"state_digest\":\"\"}",
             (long long)trainer->generation,
             gs_json_string_or(gs_json_get(item, "plan"), "hash", ""));
    send_message(workers, trainer, GS_FRAME_REQUEST, GS_READY, body);
}

// What its agent would see: the process is gone. The coordinator then starts the job again.
static void end_trainer(control_workers *workers, sim_peer *trainer, int exit_code, int signal) {
    if (trainer->fd < 0) return;
    lose_link(workers, trainer);
    char body[384];
    snprintf(
        body, sizeof body,
        "{\"slot\":%d,\"job\":\"%s\",\"rank\":%lld,\"generation\":%lld,\"incarnation\":\"%llu\","
        "\"exit_code\":%d,\"signal\":%d,\"host\":\"host-%05d\",\"log_tail\":[]}",
        trainer->slot, trainer->job_text, (long long)trainer->rank, (long long)trainer->generation,
        (unsigned long long)trainer->incarnation, exit_code, signal, trainer->agent->index);
    if (trainer->agent->fd >= 0) {
        send_message(workers, trainer->agent, GS_FRAME_REQUEST, GS_EXITED, body);
    }
}

static void stop_trainer(control_workers *workers, const gs_json *item) {
    uint64_t incarnation = 0;
    if (gs_json_read_u64(&incarnation, item, "incarnation").code) return;
    for (int i = 0; i < workers->num_links; i++) {
        sim_peer *trainer = workers->links[i];
        if (trainer->incarnation == incarnation) end_trainer(workers, trainer, -1, 9);
    }
}

static const sim_job *find_job(control_workers *workers, uint64_t job) {
    for (int i = 0; i < workers->num_jobs; i++) {
        if (workers->jobs[i].job == job) return &workers->jobs[i];
    }
    sim_job *made = &workers->jobs[workers->num_jobs++];
    *made = (sim_job){job, gs_now_ns()};
    return made;
}

// Spread over the period, as real ones are.
static void take_cadence(sim_peer *of, const gs_json *item) {
    double spread = (double)(of->incarnation % 1000) / 1000;
    of->heartbeat_ns = (int64_t)(gs_json_double_or(item, "heartbeat_seconds", 0.1) * 1e9);
    of->report_ns = (int64_t)(gs_json_double_or(item, "report_seconds", 0.1) * 1e9);
    of->beat_ns = gs_now_ns() + (int64_t)(spread * (double)of->heartbeat_ns);
}

static void take_trainer_item(control_workers *workers, sim_peer *trainer, const gs_json *item,
                              const char *type) {
    char body[256];
    if (!strcmp(type, "welcome")) {
        take_cadence(trainer, item);
        if (!gs_json_bool_or(item, "send_params", false)) return;
        send_message(
            workers, trainer, GS_FRAME_REQUEST, GS_READY,
            "{\"generation\":0,\"params\":[[\"w\",\"fp32\",[100,100]],[\"b\",\"fp32\",[100]],"
            "[\"o\",\"fp32\",[2245]]]}");
    } else if (!strcmp(type, "cadence")) {
        take_cadence(trainer, item);
    } else if (!strcmp(type, "prepare")) {
        answer_prepare(workers, trainer, item);
    } else if (!strcmp(type, "start")) {
        snprintf(body, sizeof body,
                 "{\"generation\":%lld,\"seconds\":0.01,\"backend\":\"shm\",\"reason\":\"sim\","
                 "\"algorithm\":\"sim\"}",
                 (long long)trainer->generation);
        send_message(workers, trainer, GS_FRAME_REQUEST, GS_COMM_UP, body);
    } else if (!strcmp(type, "go") && !trainer->stepping) {
        trainer->stepping = true;
        trainer->alone = (sim_job){trainer->job, gs_now_ns()};
        trainer->of_job = trainer->target_step ? &trainer->alone : find_job(workers, trainer->job);
        trainer->step_ns = trainer->of_job->begun_ns;
        atomic_fetch_add(&workers->trainers_stepping, 1);
    } else if (!strcmp(type, "abort")) {
        end_trainer(workers, trainer, 75, 0);
    }
}

static void take_message(control_workers *workers, sim_peer *from, const gs_frame *frame,
                         const char *body, size_t bytes) {
    atomic_fetch_add_explicit(&workers->received, 1, memory_order_relaxed);
    from->heard_ns = gs_now_ns();
    from->coord_epoch = frame->coord_epoch;
    if (frame->kind == GS_FRAME_PING) from->pace_ns = (int64_t)frame->time_left_ms * GS_NS_PER_MS;
    if (frame->kind == GS_FRAME_END && frame->status == GS_UNAVAILABLE && from->said_to != from->coord_epoch) {
        say_hello(workers, from);
        return;
    }
    if (from->is_agent && frame->kind == GS_FRAME_REPLY) return;  // of lines and exits
    if (frame->kind == GS_FRAME_END || frame->status) {
        if (from->is_agent) fprintf(stderr, "control: agent refused: %.*s\n", (int)bytes, body);
        if (from->is_agent) lose_link(workers, from);
        else end_trainer(workers, from, 75, 0);
        return;
    }
    if (frame->kind == GS_FRAME_REPLY && frame->method == GS_BYE) {
        end_trainer(workers, from, 0, 0);
        return;
    }
    gs_json *item = NULL;
    if (frame->kind != GS_FRAME_ITEM || gs_json_parse(&item, body, bytes).code) return;
    const char *type = gs_json_string_or(item, "type", "");
    if (!from->is_agent) {
        take_trainer_item(workers, from, item, type);
    } else if (!strcmp(type, "welcome")) {
        atomic_fetch_add(&workers->agents_welcome, 1);
        take_cadence(from, item);
    } else if (!strcmp(type, "cadence")) {
        take_cadence(from, item);
    } else if (!strcmp(type, "start_rank")) {
        start_trainer(workers, from, item);
    } else if (!strcmp(type, "stop_rank")) {
        stop_trainer(workers, item);
    }
    gs_json_release(item);
}

// It said WELCOME, or ERROR.
static void shake_hands(control_workers *workers, sim_peer *from, const char *data, size_t bytes) {
    uint8_t initiate[CONTROL_CURVE_INITIATE_ROOM];
    size_t initiate_bytes = control_curve_initiate(from->curve, initiate, data, bytes, ready_command + 6, sizeof ready_command - 6);
    if (!initiate_bytes) {
        fprintf(stderr, "control: no handshake: %.*s\n", (int)bytes, data);
        lose_link(workers, from);
        return;
    }
    put_frame(from, initiate, initiate_bytes, FLAG_COMMAND);
    from->handshake_bytes = from->out.len;
    flush_link(workers, from);
}

static void take_part(control_workers *workers, sim_peer *from, uint8_t flags, const char *data,
                      size_t bytes) {
    if (flags & FLAG_COMMAND) {
        if (bytes >= 6 && !memcmp(data, "\5READY", 6)) {
            from->ready = true;
            say_hello(workers, from);
        } else if (from->curve && !from->ready) {
            shake_hands(workers, from, data, bytes);
        }
        if (bytes < 7 || memcmp(data, "\4PING", 5) != 0) return;
        char pong[64] = "\4PONG";
        size_t context_bytes = bytes - 7 < 16 ? bytes - 7 : 16;
        memcpy(pong + 5, data + 7, context_bytes);
        put_part(from, pong, 5 + context_bytes, FLAG_COMMAND);
        flush_link(workers, from);
        return;
    }
    if (flags & FLAG_MORE) {
        // The body's sum is not checked here: the simulator must stay cheap.
        from->has_header = bytes == GS_FRAME_HEADER_BYTES;
        from->frame.method = (gs_method)((uint8_t)data[6] | (uint8_t)data[7] << 8);
        from->frame.kind = (gs_frame_kind)data[8];
        from->frame.status = (gs_code)data[9];
        memcpy(&from->frame.time_left_ms, data + 12, 4);
        memcpy(&from->frame.coord_epoch, data + 32, 4);
    } else if (from->has_header) {
        from->has_header = false;
        take_message(workers, from, &from->frame, data, bytes);
    }
}

// What comes behind the handshake is sealed.
static void take_frame(control_workers *workers, sim_peer *from, uint8_t flags, char *data, size_t bytes) {
    bool has_more, is_command;
    const char *frame;
    if (!from->curve || !from->ready) take_part(workers, from, flags, data, bytes);
    else if (control_curve_open(from->curve, (uint8_t *)data, bytes, &has_more, &is_command, &frame, &bytes))
        take_part(workers, from, (uint8_t)((has_more ? FLAG_MORE : 0) | (is_command ? FLAG_COMMAND : 0)), frame, bytes);
    else lose_link(workers, from);
}

// Whole parts at the front of what was received.
static void take_input(control_workers *workers, sim_peer *from) {
    size_t at = 0;
    if (!from->greeted) {
        if (from->in.len < GREETING_BYTES) return;
        from->greeted = true;
        at = GREETING_BYTES;
    }
    while (from->fd >= 0 && from->in.len - at >= 2) {
        const unsigned char *part = (const unsigned char *)from->in.text + at;
        size_t header_bytes = part[0] & FLAG_LONG ? 9 : 2, bytes = part[1];
        if (from->in.len - at < header_bytes) break;
        if (part[0] & FLAG_LONG) {
            bytes = 0;
            for (int i = 1; i < 9; i++) bytes = bytes << 8 | part[i];
        }
        if (from->in.len - at < header_bytes + bytes) break;
        take_frame(workers, from, part[0], from->in.text + at + header_bytes, bytes);
        at += header_bytes + bytes;
    }
    memmove(from->in.text, from->in.text + at, from->in.len - at);
    from->in.len -= at;
}

static void read_link(control_workers *workers, sim_peer *from) {
    char data[65536];
    ssize_t bytes = recv(from->fd, data, sizeof data, MSG_DONTWAIT);
    if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (bytes <= 0) {
        lose_link(workers, from);
        return;
    }
    gs_strbuf_add(&from->in, data, (size_t)bytes);
    take_input(workers, from);
}

static void send_beat(control_workers *workers, sim_peer *from, int64_t now_ns) {
    char body[320];
    if (from->is_agent) {
        snprintf(body, sizeof body, "{\"slots_busy\":%d}", workers->options.slots);
        send_message(workers, from, GS_FRAME_ONE_WAY, GS_AGENT_HEARTBEAT, body);
    } else {
        snprintf(body, sizeof body,
                 "{\"state\":\"%s\",\"generation\":%lld,\"applied_step\":%lld,\"phase\":\"backward\","
                 "\"rss_bytes\":1234567890,\"plan\":\"12345678901234567890\",\"next_plan\":\"0\","
                 "\"plan_step\":0}",
                 from->stepping ? "running" : "waiting", (long long)from->generation, (long long)from->step);
        send_message(workers, from, GS_FRAME_ONE_WAY, GS_HEARTBEAT, body);
    }
    from->beat_ns = now_ns + from->heartbeat_ns;
}

static void send_report(control_workers *workers, sim_peer *from, int64_t now_ns) {
    size_t bytes;
    const void *record = control_reports_make(
        workers->reports, &bytes, &(control_place){from->generation, from->rank, from->step, from->told_step});
    send_frame(workers, from, GS_FRAME_ONE_WAY, GS_STEP_RECORD, record, bytes);
    atomic_fetch_add_explicit(&workers->num_reports, 1, memory_order_relaxed);
    from->reported_ns = now_ns;
    from->told_step = from->step;
}

// A line of its log goes before, by its agent.
static void say_bye(control_workers *workers, sim_peer *from) {
    char body[512];
    snprintf(body, sizeof body,
             "{\"job\":\"%s\",\"records\":[{\"rank\":%lld,\"generation\":%lld,\"stream\":\"stdout\",\"text\":\"done\",\"at_ms\":%lld,"
             "\"position\":%llu}]}", from->job_text, (long long)from->rank, (long long)from->generation, (long long)gs_wall_ms(),
             (unsigned long long)(from->incarnation >> 12));
    if (from->agent->fd >= 0) send_message(workers, from->agent, GS_FRAME_REQUEST, GS_LOG, body);
    snprintf(body, sizeof body, "{\"generation\":%lld,\"rank\":%lld,\"applied_step\":%lld,\"reason\":\"target_reached\",\"exit_code\":0}",
             (long long)from->generation, (long long)from->rank, (long long)from->step);
    from->has_said_bye = true;
    send_message(workers, from, GS_FRAME_REQUEST, GS_BYE, body);
}

// Ranks of a job end a step together; who has told nothing for a while tells of it then.
static void make_step(control_workers *workers, sim_peer *from, int64_t now_ns) {
    int64_t step_ns = atomic_load_explicit(&workers->step_ns, memory_order_relaxed);
    from->step = (now_ns - from->of_job->begun_ns) / step_ns;
    from->step_ns = from->of_job->begun_ns + (from->step + 1) * step_ns;
    if (from->target_step && from->step >= from->target_step) {
        from->step = from->target_step;
        send_report(workers, from, now_ns);
        say_bye(workers, from);
        return;
    }
    if (from->step > from->told_step && now_ns - from->reported_ns >= from->report_ns)
        send_report(workers, from, now_ns);
}

static void ping(control_workers *workers, sim_peer *from, int64_t now_ns) {
    int64_t pace_ns = from->pace_ns ? from->pace_ns : PACE_NS, ping_after_ns = pace_ns * 3 / 2;
    bool is_unheard = now_ns - from->heard_ns >= ping_after_ns && now_ns - from->pinged_ns >= ping_after_ns;
    if (now_ns - from->sent_ns < pace_ns && !is_unheard) return;
    from->pinged_ns = now_ns;
    send_frame(workers, from, GS_FRAME_PING, GS_METHOD_NONE, "", 0);
}

static void send_what_is_due(control_workers *workers) {
    int64_t now_ns = gs_now_ns();
    for (int i = 0; i < workers->num_links; i++) {
        sim_peer *from = workers->links[i];
        if (from->fd < 0 || !from->heard_ns) continue;
        if (from->beat_ns && now_ns >= from->beat_ns) send_beat(workers, from, now_ns);
        if (from->fd >= 0 && from->stepping && !from->has_said_bye && now_ns >= from->step_ns) make_step(workers, from, now_ns);
        if (from->fd >= 0) ping(workers, from, now_ns);
    }
}

static void free_link(sim_peer *link) {
    if (link->fd >= 0) close(link->fd);
    gs_strbuf_release(&link->in);
    gs_strbuf_release(&link->out);
    free(link->hello);
    free(link->curve);
    free(link);
}

// Others take the places of trainers that have ended.
static void forget_ended(control_workers *workers) {
    for (int i = workers->num_links; i-- > 0;) {
        sim_peer *link = workers->links[i];
        if (link->fd >= 0 || link->is_agent) continue;
        free_link(link);
        workers->links[i] = workers->links[--workers->num_links];
    }
}

static void run_workers(void *ctx, const atomic_bool *stopping) {
    control_workers *workers = ctx;
    int next_agent = 0;
    while (!atomic_load(stopping)) {
        // Some at a time: a coordinator's backlog is finite.
        for (int i = 0; i < 20 && next_agent < workers->options.num_agents; i++) {
            open_agent(workers, next_agent++);
        }
        struct epoll_event events[256];
        int count = epoll_wait(workers->epoll_fd, events, 256, 2);
        for (int i = 0; i < count; i++) {
            sim_peer *ready = events[i].data.ptr;
            if (ready->fd >= 0 && events[i].events & EPOLLOUT) flush_link(workers, ready);
            if (ready->fd >= 0 && events[i].events & ~(uint32_t)EPOLLOUT) read_link(workers, ready);
        }
        send_what_is_due(workers);
        forget_ended(workers);
    }
}

gs_status control_workers_start(control_workers **out, const control_workers_options *options) {
    control_workers *workers = calloc(1, sizeof *workers);
    if (!workers) return gs_error(GS_RESOURCE_EXHAUSTED, "workers: out of memory");
    workers->options = *options;
    control_workers_pace(workers, options->step_seconds);
    workers->max_links = options->num_agents * (options->slots * 8 + 1);  // some are started again
    workers->links = calloc((size_t)workers->max_links, sizeof(sim_peer *));
    workers->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    workers->reports = control_reports_create();
    gs_status status = !workers->links || workers->epoll_fd < 0 || !workers->reports
                           ? gs_error(GS_RESOURCE_EXHAUSTED, "workers: out of memory")
                           : gs_thread_start(&workers->thread, "workers", run_workers, workers);
    if (status.code) control_workers_stop(workers);
    else *out = workers;
    return status;
}

control_workers_counts control_workers_count(control_workers *workers) {
    return (control_workers_counts){.agents_welcome = atomic_load(&workers->agents_welcome),
                                    .trainers_stepping = atomic_load(&workers->trainers_stepping),
                                    .links_lost = atomic_load(&workers->links_lost),
                                    .sent = atomic_load(&workers->sent),
                                    .received = atomic_load(&workers->received),
                                    .reports = atomic_load(&workers->num_reports)};
}

void control_workers_pace(control_workers *workers, double step_seconds) {
    atomic_store(&workers->step_ns, (int64_t)(step_seconds * 1e9));
}

void control_workers_stop(control_workers *workers) {
    if (!workers) return;
    gs_thread_stop(workers->thread);
    for (int i = 0; i < workers->num_links; i++) free_link(workers->links[i]);
    if (workers->epoll_fd >= 0) close(workers->epoll_fd);
    free(workers->links);
    control_reports_destroy(workers->reports);
    free(workers);
}
