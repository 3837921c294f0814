#include "tests/support/fake_worker.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "coordinator/model/job_id.h"
#include "core/clock.h"
#include "core/digest.h"
#include "core/random.h"
#include "core/thread.h"
#include "rpc/schema/job_spec.h"
#include "rpc/plan/param_page.h"

#define MAX_SLOTS 8
#define CALL_MS 20000

typedef struct fake_trainer {
    gs_fake_worker *worker;
    gs_thread *thread;
    gs_rpc_client *client;
    gs_rpc_stream *stream;
    int slot, rank;
    char job[32], checkpoints[1200];
    uint64_t incarnation, launch_token;
    int64_t applied_step, target, last_step_ns;
    uint32_t generation;
    uint64_t plan, next_plan;  // folded digests
    int64_t plan_step;
    int told_order;
    bool training, ended, reported, aborted;
    int exit_code, signal;
    atomic_bool killed, done;
    gs_key_file key;
} fake_trainer;

struct gs_fake_worker {
    gs_rpc_context *context;
    gs_rpc_client *client;
    gs_rpc_stream *stream;
    gs_thread *thread;
    char name[64], control[128], gpus_of[64];
    int slots, step_ms, gpus;
    bool has_no_nccl, is_of_before;
    uint64_t incarnation;
    gs_fake_faults *faults;
    gs_fake_plans *plans;
    fake_trainer *trainers[MAX_SLOTS];
    _Atomic int64_t longest_gap_ns, num_steps;
    gs_key_file key;
    bool has_key;
    pthread_mutex_t shown_mutex;
    gs_fake_rank shown[MAX_SLOTS];  // of the last trainer there
};

static gs_deadline call_deadline(void) { return gs_deadline_in_ms(CALL_MS); }

static bool is_struck(const fake_trainer *trainer) {
    const gs_fake_faults *faults = trainer->worker->faults;
    if (!faults || atomic_load(&faults->slot) != trainer->slot) return false;
    const char *worker = atomic_load(&faults->worker);
    return !worker || !strcmp(worker, trainer->worker->name);
}

static bool strikes(const fake_trainer *trainer, const atomic_int *at_step) {
    if (!is_struck(trainer)) return false;
    int step = atomic_load(at_step);
    return step > 0 && trainer->applied_step >= step;
}

static bool differs(const fake_trainer *trainer) {
    return is_struck(trainer) && atomic_load(&trainer->worker->faults->other_shape);
}

static void say_hello(fake_trainer *trainer) {
    gs_json *hello = gs_json_new_object();
    gs_json_set_string(hello, "job", trainer->job);
    gs_json_set_u64(hello, "launch_token", trainer->launch_token);
    gs_json_set_string(hello, "worker", trainer->worker->name);
    gs_json_set_int(hello, "slot", trainer->slot);
    gs_json_set_u64(hello, "incarnation", trainer->incarnation);
    gs_json_set_int(hello, "pid", 1000 + trainer->slot);
    gs_json_set_string(hello, "host", "testhost");
    gs_json_set_string(hello, "boot_id", "b");
    gs_json_set_string(hello, "build", "test");
    gs_json_set_int(hello, "proto_least", GS_PROTOCOL_LEAST);
    gs_json_set_int(hello, "proto_most", GS_PROTOCOL_MOST);
    gs_json_set_string(hello, "params_digest", differs(trainer) ? "other" : "same");
    gs_json_set_int(hello, "num_params", 2);
    gs_json_set_int(hello, "total_elements", 1100);
    gs_json_set_string(hello, "arithmetic", "test");
    gs_json_set_string(hello, "data_digest", "d");
    gs_json_set_int(hello, "applied_step", trainer->applied_step);
    gs_rpc_stream_close(trainer->stream);
    trainer->stream = NULL;
    gs_status status = gs_rpc_stream_open(&trainer->stream, trainer->client, GS_HELLO, hello);
    if (status.code) gs_sleep_ns(5 * GS_NS_PER_MS);
    gs_json_release(hello);
}

// Sends a request and forgets the reply; false when it failed.
static bool call(fake_trainer *trainer, gs_method method, gs_json *request) {
    gs_json *reply = NULL;
    gs_status status = gs_rpc_call(trainer->client, method, request, &reply, call_deadline());
    gs_json_release(request);
    gs_json_release(reply);
    return status.code == GS_OK;
}

static gs_json *bound(const fake_trainer *trainer) {
    gs_json *message = gs_json_new_object();
    gs_json_set_int(message, "generation", trainer->generation);
    gs_json_set_int(message, "rank", trainer->rank);
    return message;
}

static void send_timeline(fake_trainer *trainer, int64_t request);

static void end_trainer(fake_trainer *trainer, const char *reason, int exit_code) {
    if (trainer->generation) send_timeline(trainer, 0);
    gs_json *bye = bound(trainer);
    gs_json_set_int(bye, "applied_step", trainer->applied_step);
    gs_json_set_string(bye, "reason", reason);
    gs_json_set_int(bye, "exit_code", exit_code);
    if (!strcmp(reason, "error")) {
        gs_json_set_string(bye, "error", "could not open its data shard");
        gs_json_set_string(bye, "class", "user");
        gs_json_set_string(bye, "hint", "mount the data directory");
    }
    if (!strcmp(reason, "target_reached") && trainer->rank == 0) {
        gs_json_set_string(bye, "sample", "once upon a time");
    }
    call(trainer, GS_BYE, bye);
    trainer->exit_code = exit_code;
    trainer->ended = true;
}

static size_t count_params(const fake_trainer *trainer) {
    const gs_fake_plans *plans = trainer->worker->plans;
    int count = plans ? atomic_load(&plans->num_params) : 0;
    return count > 0 ? (size_t)count : 2;
}

static void send_params(fake_trainer *trainer) {
    const gs_fake_plans *plans = trainer->worker->plans;
    bool two_types = plans && atomic_load(&plans->has_two_types);
    size_t num_params = count_params(trainer);
    gs_param_spec *params = calloc(num_params, sizeof *params);
    if (!params) abort();
    for (size_t i = 0; i < num_params; i++)
        params[i] = gs_param_spec_make(GS_FP32, 10, 10, "fc%zu.weight", i + 1);
    params[0].shape[1] = 100;
    if (two_types) params[1].dtype = GS_FP64;
    if (differs(trainer)) params[1].shape[0] = 20;
    for (size_t i = 0; i < num_params; i += GS_PARAM_PAGE_ROWS) {
        gs_json *ready = gs_json_new_object();
        gs_json_set_int(ready, "generation", 0);
        gs_param_page_write(ready, params, num_params, i);
        call(trainer, GS_READY, ready);
    }
    free(params);
}

static uint64_t digest_of_plan(const gs_json *plan) {
    gs_digest digest = {0};
    if (!gs_digest_parse(&digest, gs_json_string_or(plan, "hash", ""))) abort();
    return gs_digest_fold(digest);
}

static void answer_prepare(fake_trainer *trainer, const gs_json *item) {
    trainer->generation = (uint32_t)gs_json_int_or(item, "generation", 0);
    trainer->rank = (int)gs_json_int_or(item, "rank", -1);
    gs_rpc_client_set_generation(trainer->client, trainer->generation);
    trainer->plan = digest_of_plan(gs_json_get(item, "plan"));
    gs_json *ready = bound(trainer);
    gs_json_remove(ready, "rank");
    gs_json_set_string(ready, "plan_hash", gs_json_string_or(gs_json_get(item, "plan"), "hash", ""));
    gs_json_set_int(ready, "applied_step", trainer->applied_step);
    gs_json_set_string(ready, "state_digest", "s");
    call(trainer, GS_READY, ready);
}

static void connect_world(fake_trainer *trainer) {
    gs_json *exchange = bound(trainer);
    gs_json_set_string(exchange, "tag", "comm");
    gs_json_set_bytes(exchange, "bytes", &trainer->rank, sizeof trainer->rank);
    if (!call(trainer, GS_EXCHANGE, exchange)) return;
    gs_json *up = bound(trainer);
    gs_json_remove(up, "rank");
    gs_json_set_double(up, "seconds", 0.001);
    gs_json_set_string(up, "backend", "fake");
    call(trainer, GS_COMM_UP, up);
}

static void write_text(const char *directory, const char *name, const char *text) {
    char path[1600];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "we");
    if (!file) return;
    fputs(text, file);
    fclose(file);
}

static void save(fake_trainer *trainer) {
    char name[64], directory[1400], digest[GS_DIGEST_TEXT_LEN];
    snprintf(name, sizeof name, "step-%lld-%016llx", (long long)trainer->applied_step,
             (unsigned long long)gs_random_from_system());
    mkdir(trainer->checkpoints, 0700);
    snprintf(directory, sizeof directory, "%s/%s", trainer->checkpoints, name);
    mkdir(directory, 0700);
    write_text(directory, "part-0.safetensors", "weights");
    write_text(directory, "MANIFEST.json", "{}");
    gs_json *file = gs_json_new_object(), *files = gs_json_new_array();
    gs_json_set_string(file, "name", "part-0.safetensors");
    gs_json_set_int(file, "bytes", 7);
    gs_digest_format(digest, gs_digest_of("weights", 7));
    gs_json_set_string(file, "digest", digest);
    gs_json_push(files, file);
    gs_json *saved = gs_json_new_object();
    gs_json_set_int(saved, "step", trainer->applied_step);
    gs_json_set_string(saved, "directory", name);
    gs_json_set_int(saved, "bytes", 9);
    gs_json_set_double(saved, "seconds", 0.001);
    gs_json_set(saved, "files", files);
    gs_digest_format(digest, gs_digest_of("{}", 2));
    gs_json_set_string(saved, "manifest_digest", digest);
    gs_json_set_int(saved, "world_size", 2);
    gs_json_set_string(saved, "reason", "settled");
    call(trainer, GS_CHECKPOINTED, saved);
}

static void settle(fake_trainer *trainer) {
    gs_json *request = bound(trainer), *reply = NULL;
    gs_json_set_int(request, "applied_step", trainer->applied_step);
    gs_json_set_bool(request, "complete", false);
    gs_status status = gs_rpc_call(trainer->client, GS_SETTLE, request, &reply, call_deadline());
    if (!status.code && gs_json_bool_or(reply, "save", false)) save(trainer);
    gs_json_release(request);
    gs_json_release(reply);
    end_trainer(trainer, "aborted", 75);
}

static void take_replan(fake_trainer *trainer, const gs_json *item) {
    gs_fake_faults *faults = trainer->worker->faults;
    if (is_struck(trainer) && atomic_exchange(&faults->loses_replan, false)) return;
    uint64_t next = digest_of_plan(gs_json_get(item, "plan"));
    bool lags = trainer->worker->plans && atomic_load(&trainer->worker->plans->lags);
    trainer->next_plan = next == trainer->plan && !lags ? 0 : next;
}

static void tell_order(fake_trainer *trainer, int which) {
    gs_json *told = bound(trainer), *order = gs_json_new_array();
    size_t num_params = count_params(trainer);
    for (size_t i = 0; i < num_params; i++)
        gs_json_push(order, gs_json_new_int((int64_t)(which == 2 ? i : num_params - 1 - i)));
    gs_json_set_int(told, "step", trainer->applied_step);
    gs_json_set_bool(told, "settled", which != 3);
    gs_json_set(told, "order", order);
    if (call(trainer, GS_READY_ORDER, told)) trainer->told_order = which;
}

static void follow_plans(fake_trainer *trainer) {
    const gs_fake_plans *plans = trainer->worker->plans;
    if (!plans) return;
    int which = atomic_load(&plans->tells_order);
    if (trainer->rank == 0 && which != trainer->told_order) tell_order(trainer, which);
    if (!trainer->next_plan || !atomic_load(&plans->switches)) return;
    if (trainer->rank != 0 && atomic_load(&plans->lags)) return;
    trainer->plan = trainer->next_plan;
    trainer->next_plan = 0;
    trainer->plan_step = trainer->applied_step;
}

static bool has_fault(const fake_trainer *trainer, const atomic_bool *fault) {
    return is_struck(trainer) && atomic_load(fault);
}

// The last two steps, one to a page, with one bucket each.
static void send_timeline(fake_trainer *trainer, int64_t request) {
    for (int64_t back = 1; back >= 0; back--) {
        gs_json *page = bound(trainer), *steps = gs_json_new_array(), *step = NULL;
        char text[400];
        int64_t number = trainer->applied_step - 1 - back;
        snprintf(text, sizeof text,
                 "{\"step\":%lld,\"begin_ns\":%lld,\"duration_ns\":900,\"plan_digest\":\"5\","
                 "\"spans\":[[\"forward\",0,300]],"
                 "\"buckets\":[[0,64,64,100,200,300,300,400,0,0,\"direct\"]]}",
                 (long long)number, (long long)(1000000 + number * 1000));
        gs_status status = gs_json_parse(&step, text, strlen(text));
        if (status.code) abort();
        gs_json_push(steps, step);
        gs_json_set_int(page, "request", request);
        gs_json_set(page, "steps", steps);
        gs_json_set_bool(page, "more", back > 0);
        call(trainer, GS_TIMELINE, page);
    }
}

static void report_fault(fake_trainer *trainer, const char *members) {
    gs_json *fault = NULL;
    if (!members) return;
    if (gs_json_parse(&fault, members, strlen(members)).code) abort();
    gs_json_set_int(fault, "generation", trainer->generation);
    gs_json_set_int(fault, "rank", trainer->rank);
    call(trainer, GS_FAULT, fault);
}

static void report_late_fault(fake_trainer *trainer) {
    gs_fake_faults *faults = trainer->worker->faults;
    if (faults && atomic_load(&faults->late_slot) == trainer->slot)
        report_fault(trainer, atomic_exchange(&faults->late_report, NULL));
}

static void take_item(fake_trainer *trainer, const gs_json *item) {
    const char *type = gs_json_string_or(item, "type", "");
    if (!strcmp(type, "welcome") && gs_json_bool_or(item, "send_params", false)) send_params(trainer);
    else if (!strcmp(type, "prepare")) answer_prepare(trainer, item);
    else if (!strcmp(type, "start")) connect_world(trainer);
    else if (!strcmp(type, "go")) trainer->training = true;
    else if (!strcmp(type, "replan")) take_replan(trainer, item);
    else if (!strcmp(type, "send_timeline") &&
             !(trainer->worker->faults && has_fault(trainer, &trainer->worker->faults->silent)))
        send_timeline(trainer, gs_json_int_or(item, "request", 0));
    else if (!strcmp(type, "abort")) {
        report_late_fault(trainer);
        settle(trainer);
    }
    else if (!strcmp(type, "drain")) {
        if (gs_json_bool_or(item, "save", false) && trainer->rank == 0) save(trainer);
        end_trainer(trainer, "drained", 0);
    }
}

// The trainer that is late waits for nobody, the others for it.
static void add_waits(const fake_trainer *trainer, gs_json *step) {
    bool late = has_fault(trainer, &trainer->worker->faults->late);
    const double values[] = {late ? 0.09 : 0.05, late ? 0 : 0.04, 0.001, late ? 0.041 : 0.001, 0.1};
    gs_json *row = gs_json_new_array(), *waits = gs_json_new_array();
    gs_json_push(row, gs_json_new_int(trainer->applied_step - 1));
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        gs_json_push(row, gs_json_new_double(values[i]));
    gs_json_push(waits, row);
    gs_json_set(step, "waits", waits);
}

static void report_step(fake_trainer *trainer) {
    gs_json *step = bound(trainer), *history = gs_json_new_array(), *entry = gs_json_new_object();
    gs_json_set_int(step, "step", trainer->applied_step);
    gs_json_set_double(step, "loss", 1.0 / (double)trainer->applied_step);
    gs_json_set_double(step, "step_seconds", 0.001);
    gs_json_set_double(step, "wait_seconds", trainer->rank == 0 ? 0.5 : 0.1);
    gs_json_set_int(entry, "step", trainer->applied_step);
    gs_json_set_double(entry, "loss", 1.0 / (double)trainer->applied_step);
    gs_json_push(history, entry);
    gs_json_set(step, "history", history);
    if (trainer->worker->faults && atomic_load(&trainer->worker->faults->late))
        add_waits(trainer, step);
    gs_rpc_send(trainer->client, GS_STEP, step);
    gs_json_release(step);
}

static void make_step(fake_trainer *trainer) {
    gs_fake_faults *faults = trainer->worker->faults;
    trainer->applied_step++;
    int64_t now_ns = gs_now_ns();
    int64_t gap_ns = trainer->last_step_ns ? now_ns - trainer->last_step_ns : 0;
    if (gap_ns > atomic_load(&trainer->worker->longest_gap_ns)) {
        atomic_store(&trainer->worker->longest_gap_ns, gap_ns);
    }
    trainer->last_step_ns = now_ns;
    atomic_fetch_add(&trainer->worker->num_steps, 1);
    report_step(trainer);
    if (is_struck(trainer)) report_fault(trainer, atomic_exchange(&faults->report, NULL));
    if (faults && strikes(trainer, &faults->crash_at_step)) {
        atomic_store(&faults->crash_at_step, 0);
        trainer->exit_code = -1;
        trainer->signal = 9;
        trainer->ended = true;
    } else if (faults && strikes(trainer, &faults->freeze_at_step)) {
        atomic_store(&faults->freeze_at_step, 0);
        while (!atomic_load(&trainer->killed)) gs_sleep_ns(2 * GS_NS_PER_MS);
    } else if (trainer->applied_step >= trainer->target) {
        end_trainer(trainer, "target_reached", 0);
    }
}

static void beat(fake_trainer *trainer) {
    gs_json *beat = gs_json_new_object();
    gs_json_set_string(beat, "state", "running");
    gs_json_set_int(beat, "generation", trainer->generation);
    gs_json_set_int(beat, "applied_step", trainer->applied_step);
    gs_json_set_string(beat, "phase", "reduce");
    gs_json_set_int(beat, "rss_bytes", 1 << 20);
    gs_json_set_u64(beat, "plan", trainer->plan);
    gs_json_set_u64(beat, "next_plan", trainer->next_plan);
    gs_json_set_int(beat, "plan_step", trainer->plan_step);
    gs_rpc_send(trainer->client, GS_HEARTBEAT, beat);
    gs_json_release(beat);
}

static void run_trainer(void *ctx, const atomic_bool *stopping) {
    fake_trainer *trainer = ctx;
    const gs_fake_faults *faults = trainer->worker->faults;
    int64_t beat_ns = 0;
    say_hello(trainer);
    if (is_struck(trainer) && atomic_load(&faults->exit_code_at_start)) {
        end_trainer(trainer, "error", atomic_load(&faults->exit_code_at_start));
        while (atomic_load(&faults->lingers) && !atomic_load(&trainer->killed) &&
               !atomic_load(stopping)) {
            gs_sleep_ns(2 * GS_NS_PER_MS);
        }
    }
    while (!trainer->ended && !atomic_load(&trainer->killed) && !atomic_load(stopping)) {
        gs_json *item = NULL;
        gs_status status = {.code = GS_UNAVAILABLE};
        if (trainer->stream) {
            status = gs_rpc_stream_next(trainer->stream, &item,
                                        gs_deadline_in_ms(trainer->worker->step_ms));
        }
        if (item) take_item(trainer, item);
        gs_json_release(item);
        bool over = status.code == GS_ABORTED || status.code == GS_NOT_FOUND;
        if (over) {
            trainer->exit_code = 75;
            trainer->ended = true;
        } else if (status.code && status.code != GS_DEADLINE_EXCEEDED) {
            gs_sleep_ns((int64_t)trainer->worker->step_ms * GS_NS_PER_MS);
            if (gs_rpc_client_connected(trainer->client)) say_hello(trainer);
        }
        if (!trainer->ended && trainer->training) make_step(trainer);
        if (!trainer->ended && trainer->training) follow_plans(trainer);
        if (gs_now_ns() - beat_ns > 100 * GS_NS_PER_MS && !trainer->ended) {
            beat(trainer);
            beat_ns = gs_now_ns();
        }
    }
    if (atomic_load(&trainer->killed)) {
        trainer->exit_code = -1;
        trainer->signal = 9;
    }
    gs_rpc_stream_close(trainer->stream);
    gs_rpc_client_close(trainer->client);
    atomic_store(&trainer->done, true);
}

static gs_status copy_key(void *ctx, gs_key_file *key) {
    *key = *(const gs_key_file *)ctx;
    return gs_ok();
}

// The public halves, to each life of the coordinator.
static void tell_rank_keys(gs_fake_worker *worker) {
    gs_json *told = gs_json_new_object(), *keys = gs_json_new_array();
    for (int i = 0; worker->has_key && i < worker->slots; i++) {
        char shown[GS_CURVE_KEY_TEXT_BYTES];
        if (!worker->trainers[i]) continue;
        gs_json *entry = gs_json_new_object();
        gs_curve_key_format(shown, &worker->trainers[i]->key.pair.shown);
        gs_json_set_int(entry, "slot", i);
        gs_json_set_u64(entry, "incarnation", worker->trainers[i]->incarnation);
        gs_json_set_string(entry, "public", shown);
        gs_json_push(keys, entry);
    }
    bool has_some = gs_json_count(keys) > 0;
    gs_json_set(told, "keys", keys);
    if (has_some) gs_rpc_send(worker->client, GS_RANK_KEYS, told);
    gs_json_release(told);
}

static void draw_key(gs_fake_worker *worker, fake_trainer *trainer, gs_rpc_client_options *options) {
    if (!worker->has_key) return;
    trainer->key = (gs_key_file){.name = "rank", .server = worker->key.server};
    if (gs_curve_pair_draw(&trainer->key.pair).code) abort();
    options->source = (gs_rpc_key_source){copy_key, &trainer->key};
}

static void show_rank(gs_fake_worker *worker, const fake_trainer *trainer, uint64_t job) {
    pthread_mutex_lock(&worker->shown_mutex);
    worker->shown[trainer->slot] = (gs_fake_rank){.client = trainer->client, .job = job, .incarnation = trainer->incarnation,
                                                  .launch_token = trainer->launch_token, .key = trainer->key};
    pthread_mutex_unlock(&worker->shown_mutex);
}

bool gs_fake_worker_rank(gs_fake_worker *worker, int slot, gs_fake_rank *rank) {
    pthread_mutex_lock(&worker->shown_mutex);
    *rank = worker->shown[slot];
    pthread_mutex_unlock(&worker->shown_mutex);
    return rank->client != NULL;
}

static void start_trainer(gs_fake_worker *worker, const gs_json *item) {
    int slot = (int)gs_json_int_or(item, "slot", 0);
    fake_trainer *trainer = calloc(1, sizeof *trainer);
    uint64_t job = 0;
    trainer->worker = worker;
    trainer->slot = slot;
    trainer->rank = -1;
    snprintf(trainer->job, sizeof trainer->job, "%s", gs_json_string_or(item, "job", ""));
    snprintf(trainer->checkpoints, sizeof trainer->checkpoints, "%s",
             gs_json_string_or(item, "checkpoints_dir", ""));
    bool ok = gs_job_id_parse(&job, trainer->job);
    gs_status read = gs_json_read_u64(&trainer->incarnation, item, "incarnation");
    gs_status token = gs_json_read_u64(&trainer->launch_token, item, "launch_token");
    trainer->applied_step = gs_json_int_or(gs_json_get(item, "resume"), "step", 0);
    trainer->target = gs_json_int_or(gs_json_get(gs_json_get(item, "spec"), "steps"), "target", 1);
    gs_rpc_client_options options = {.endpoint = worker->control, .job = job,
                                     .incarnation = trainer->incarnation,
                                     .launch_token = worker->is_of_before ? 0 : trainer->launch_token};
    draw_key(worker, trainer, &options);
    gs_status status = gs_rpc_client_open(&trainer->client, worker->context, &options);
    if (!ok || read.code || token.code || status.code) abort();
    worker->trainers[slot] = trainer;
    tell_rank_keys(worker);
    show_rank(worker, trainer, job);
    status = gs_thread_start(&trainer->thread, "trainer", run_trainer, trainer);
    if (status.code) abort();
}

static void report_exit(gs_fake_worker *worker, fake_trainer *trainer) {
    gs_json *exited = gs_json_new_object(), *tail = gs_json_new_array(), *reply = NULL;
    gs_json_push(tail, gs_json_new_string("the last line"));
    gs_json_set_int(exited, "slot", trainer->slot);
    gs_json_set_string(exited, "job", trainer->job);
    gs_json_set_int(exited, "rank", trainer->rank);
    gs_json_set_int(exited, "generation", trainer->generation);
    gs_json_set_u64(exited, "incarnation", trainer->incarnation);
    gs_json_set_int(exited, "exit_code", trainer->exit_code);
    gs_json_set_int(exited, "signal", trainer->signal);
    gs_json_set_string(exited, "host", "testhost");
    gs_json_set(exited, "log_tail", tail);
    gs_status status = gs_rpc_call(worker->client, GS_EXITED, exited, &reply, gs_deadline_in_ms(500));
    gs_json_release(exited);
    gs_json_release(reply);
    if (status.code) return;  // told again later
    gs_thread_stop(trainer->thread);
    worker->trainers[trainer->slot] = NULL;
    free(trainer);
}

// One on "w1" is "GPU-w1-0", if w1 does not share those of another.
static gs_json *list_devices(const gs_fake_worker *worker) {
    gs_json *devices = gs_json_new_array();
    for (int i = 0; i < worker->gpus; i++) {
        char uuid[96];
        snprintf(uuid, sizeof uuid, "GPU-%.60s-%d", worker->gpus_of, i);
        gs_json *device = gs_json_new_object();
        gs_json_set_string(device, "uuid", uuid);
        gs_json_set_string(device, "name", "test device");
        gs_json_set_int(device, "memory_bytes", 1 << 30);
        gs_json_push(devices, device);
    }
    return devices;
}

static void say_agent_hello(gs_fake_worker *worker) {
    gs_json *hello = gs_json_new_object(), *running = gs_json_new_array();
    gs_json_set_string(hello, "worker", worker->name);
    gs_json_set_string(hello, "host", "testhost");
    gs_json_set_string(hello, "boot_id", "b");
    gs_json_set_string(hello, "network", "n");
    gs_json_set_int(hello, "pid", 1);
    gs_json_set_u64(hello, "incarnation", worker->incarnation);
    gs_json_set_string(hello, "build", "test");
    gs_json_set_int(hello, "proto_least", GS_PROTOCOL_LEAST);
    gs_json_set_int(hello, "proto_most", GS_PROTOCOL_MOST);
    gs_json_set_int(hello, "slots", worker->slots);
    gs_json_set_int(hello, "cores", 1);
    gs_json_set_string(hello, "data_root", "/");
    gs_json_set(hello, "devices", list_devices(worker));
    if (worker->gpus == 0) gs_json_set_string(hello, "devices_reason", "no driver in this test");
    if (!worker->has_no_nccl) gs_json_set_string(hello, "nccl", "2.28.9");
    for (int i = 0; i < worker->slots; i++) {
        if (!worker->trainers[i]) continue;
        gs_json *entry = gs_json_new_object();
        gs_json_set_int(entry, "slot", i);
        gs_json_set_string(entry, "job", worker->trainers[i]->job);
        gs_json_set_u64(entry, "incarnation", worker->trainers[i]->incarnation);
        gs_json_push(running, entry);
    }
    if (!worker->is_of_before) gs_json_set_bool(hello, "shows_tokens", true);
    gs_json_set(hello, "running", running);
    gs_rpc_stream_close(worker->stream);
    worker->stream = NULL;
    gs_status status = gs_rpc_stream_open(&worker->stream, worker->client, GS_AGENT_HELLO, hello);
    if (status.code) gs_sleep_ns(5 * GS_NS_PER_MS);
    else tell_rank_keys(worker);
    gs_json_release(hello);
}

static void take_command(gs_fake_worker *worker, const gs_json *item) {
    const char *type = gs_json_string_or(item, "type", "");
    int slot = (int)gs_json_int_or(item, "slot", 0);
    if (!strcmp(type, "start_rank")) start_trainer(worker, item);
    if (!strcmp(type, "stop_rank") && worker->trainers[slot] &&
        !strcmp(gs_json_string_or(item, "signal", ""), "kill")) {
        atomic_store(&worker->trainers[slot]->killed, true);
    }
}

static void run_agent(void *ctx, const atomic_bool *stopping) {
    gs_fake_worker *worker = ctx;
    gs_deadline next_beat = {0};
    say_agent_hello(worker);
    while (!atomic_load(stopping)) {
        if (gs_deadline_passed(next_beat)) {
            next_beat = gs_deadline_in_ms(50);
            gs_rpc_send(worker->client, GS_AGENT_HEARTBEAT, NULL);
        }
        gs_json *item = NULL;
        gs_status status = {.code = GS_UNAVAILABLE};
        if (worker->stream) status = gs_rpc_stream_next(worker->stream, &item, gs_deadline_in_ms(2));
        if (item) take_command(worker, item);
        gs_json_release(item);
        if (status.code && status.code != GS_DEADLINE_EXCEEDED) {
            gs_sleep_ns(5 * GS_NS_PER_MS);
            if (gs_rpc_client_connected(worker->client)) say_agent_hello(worker);
        }
        for (int i = 0; i < worker->slots; i++) {
            if (worker->trainers[i] && atomic_load(&worker->trainers[i]->done)) {
                report_exit(worker, worker->trainers[i]);
            }
        }
    }
}

gs_status gs_fake_worker_start(gs_fake_worker **out, gs_rpc_context *context,
                               const gs_fake_worker_options *options) {
    gs_fake_worker *worker = calloc(1, sizeof *worker);
    if (!worker) return gs_error(GS_RESOURCE_EXHAUSTED, "fake worker: out of memory");
    worker->context = context;
    worker->slots = options->slots;
    worker->gpus = options->gpus;
    worker->has_no_nccl = options->has_no_nccl;
    snprintf(worker->gpus_of, sizeof worker->gpus_of, "%s",
             options->gpus_of ? options->gpus_of : options->name);
    worker->step_ms = options->step_ms ? options->step_ms : 5;
    worker->faults = options->faults;
    worker->plans = options->plans;
    worker->incarnation = gs_random_from_system();
    snprintf(worker->name, sizeof worker->name, "%s", options->name);
    snprintf(worker->control, sizeof worker->control, "%s", options->control);
    worker->is_of_before = options->is_of_before;
    gs_rpc_client_options client = {.endpoint = worker->control, .incarnation = worker->incarnation};
    pthread_mutex_init(&worker->shown_mutex, NULL);
    worker->has_key = options->key != NULL;
    if (worker->has_key) worker->key = *options->key;
    if (worker->has_key) client.source = (gs_rpc_key_source){copy_key, &worker->key};
    gs_status status = gs_rpc_client_open(&worker->client, context, &client);
    if (!status.code) status = gs_thread_start(&worker->thread, "agent", run_agent, worker);
    if (status.code) {
        gs_rpc_client_close(worker->client);
        free(worker);
        return status;
    }
    *out = worker;
    return gs_ok();
}

int64_t gs_fake_worker_longest_gap_ns(const gs_fake_worker *worker) {
    return atomic_load(&worker->longest_gap_ns);
}

int64_t gs_fake_worker_num_steps(const gs_fake_worker *worker) {
    return atomic_load(&worker->num_steps);
}

gs_rpc_client *gs_fake_worker_client(const gs_fake_worker *worker) { return worker->client; }

void gs_fake_worker_stop(gs_fake_worker *worker) {
    if (!worker) return;
    gs_thread_stop(worker->thread);
    for (int i = 0; i < worker->slots; i++) {
        if (!worker->trainers[i]) continue;
        atomic_store(&worker->trainers[i]->killed, true);
        gs_thread_stop(worker->trainers[i]->thread);
        free(worker->trainers[i]);
    }
    gs_rpc_stream_close(worker->stream);
    gs_rpc_client_close(worker->client);
    pthread_mutex_destroy(&worker->shown_mutex);
    free(worker);
}
