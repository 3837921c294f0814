#include "tests/unit/api/fake_coordinator.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/thread.h"

enum { MAX_WATCHERS = 128, MAX_ITEMS = 1024, MAX_WAITING = 32 };

typedef struct canned {
    gs_code code;
    char message[128];
    char *body, *then;
    char *last_request;
    int num_calls;
    bool set, is_held;
    gs_rpc_call_handle *waiting[MAX_WAITING];  // the server thread's
    int num_waiting;
} canned;

struct fake_coordinator {
    gs_rpc_context *context;
    gs_rpc_server *server;
    gs_api *api;
    gs_thread *thread;
    char *returned;
    pthread_mutex_t lock;  // what follows
    canned answers[GS_NUM_METHODS];
    char *items[MAX_ITEMS];
    int num_items, num_watchers;
    gs_rpc_call_handle *watchers[MAX_WATCHERS];  // the server thread's
};

static void must(gs_status status) {
    if (!status.code) return;
    fprintf(stderr, "fake coordinator: %s\n", status.message);
    abort();
}

static gs_json *parse(const char *text) {
    gs_json *value = NULL;
    if (text) must(gs_json_parse(&value, text, strlen(text)));
    return value;
}

static void note_request(canned *answer, const gs_json *request) {
    free(answer->last_request);
    answer->last_request = NULL;
    if (request) must(gs_json_encode(&answer->last_request, NULL, request, false));
    answer->num_calls++;
}

static void send_answer(fake_coordinator *fake, gs_method method, gs_rpc_call_handle *call) {
    pthread_mutex_lock(&fake->lock);
    canned *answer = &fake->answers[method];
    const char *body = answer->then && answer->num_calls > 1 ? answer->then : answer->body;
    gs_json *reply = parse(body);
    gs_status status = answer->set ? gs_ok() : gs_error(GS_UNIMPLEMENTED, "no answer was given");
    if (answer->code) status = gs_error(answer->code, "%s", answer->message);
    pthread_mutex_unlock(&fake->lock);
    if (method == GS_GET_METRICS || method == GS_GET_JOB_TIMELINE) {
        if (!status.code) status = gs_rpc_item(call, reply);
        else gs_json_release(reply);
        gs_rpc_end(call, status);
    } else {
        gs_rpc_reply(call, status, reply);
    }
}

static void answer_call(fake_coordinator *fake, gs_method method, gs_rpc_call_handle *call, const gs_json *request) {
    pthread_mutex_lock(&fake->lock);
    canned *answer = &fake->answers[method];
    note_request(answer, request);
    bool is_held = answer->is_held && answer->num_waiting < MAX_WAITING;
    if (is_held) answer->waiting[answer->num_waiting++] = call;
    pthread_mutex_unlock(&fake->lock);
    if (!is_held) send_answer(fake, method, call);
}

static gs_rpc_call_handle *take_released(fake_coordinator *fake, gs_method method) {
    pthread_mutex_lock(&fake->lock);
    canned *answer = &fake->answers[method];
    gs_rpc_call_handle *call = !answer->is_held && answer->num_waiting ? answer->waiting[--answer->num_waiting] : NULL;
    pthread_mutex_unlock(&fake->lock);
    return call;
}

static void send_released(fake_coordinator *fake) {
    gs_rpc_call_handle *call;
    for (int method = 0; method < GS_NUM_METHODS; method++)
        while ((call = take_released(fake, (gs_method)method))) send_answer(fake, (gs_method)method, call);
}

static void drop_waiting(canned *answer, const gs_rpc_call_handle *call) {
    for (int i = 0; i < answer->num_waiting; i++)
        if (answer->waiting[i] == call) answer->waiting[i--] = answer->waiting[--answer->num_waiting];
}

#define CANNED(name, method)                                                                       \
    static void name(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,                 \
                     const gs_json *request) {                                                     \
        (void)peer;                                                                                \
        answer_call(ctx, method, call, request);                                                   \
    }
CANNED(create_job, GS_CREATE_JOB)
CANNED(list_jobs, GS_LIST_JOBS)
CANNED(get_job, GS_GET_JOB)
CANNED(stop_job, GS_STOP_JOB)
CANNED(replan_job, GS_REPLAN_JOB)
CANNED(release_job, GS_RELEASE_JOB)
CANNED(adopt_job, GS_ADOPT_JOB)
CANNED(delete_job, GS_DELETE_JOB)
CANNED(get_workers, GS_GET_JOB_WORKERS)
CANNED(get_plan, GS_GET_JOB_PLAN)
CANNED(get_job_metrics, GS_GET_JOB_METRICS)
CANNED(get_series, GS_GET_JOB_SERIES)
CANNED(list_events, GS_LIST_EVENTS)
CANNED(read_logs, GS_READ_LOGS)
CANNED(list_checkpoints, GS_LIST_CHECKPOINTS)
CANNED(list_workers, GS_LIST_WORKERS)
CANNED(preview_plan, GS_PREVIEW_PLAN)
CANNED(get_metrics, GS_GET_METRICS)
CANNED(get_health, GS_GET_HEALTH)
CANNED(get_job_timeline, GS_GET_JOB_TIMELINE)
CANNED(get_job_diagnosis, GS_GET_JOB_DIAGNOSIS)
CANNED(trace_job, GS_TRACE_JOB)
CANNED(examine_workers, GS_EXAMINE_WORKERS)
CANNED(get_system, GS_GET_SYSTEM)

static void watch(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                  const gs_json *request) {
    (void)peer;
    fake_coordinator *fake = ctx;
    pthread_mutex_lock(&fake->lock);
    note_request(&fake->answers[GS_WATCH], request);
    fake->watchers[fake->num_watchers++ % MAX_WATCHERS] = call;
    pthread_mutex_unlock(&fake->lock);
    gs_status told = gs_rpc_item(call, parse("{\"event\":\"snapshot\",\"sequence\":10,\"data\":{}}"));
    if (told.code) abort();
}

static void forget_call(void *ctx, gs_rpc_call_handle *call) {
    fake_coordinator *fake = ctx;
    pthread_mutex_lock(&fake->lock);
    for (int i = 0; i < fake->num_watchers; i++) {
        if (fake->watchers[i] != call) continue;
        fake->watchers[i] = fake->watchers[--fake->num_watchers];
        break;
    }
    for (int method = 0; method < GS_NUM_METHODS; method++) drop_waiting(&fake->answers[method], call);
    pthread_mutex_unlock(&fake->lock);
}

static void send_items(fake_coordinator *fake) {
    pthread_mutex_lock(&fake->lock);
    for (int i = 0; i < fake->num_items; i++) {
        bool end = strstr(fake->items[i], "\"end\"") != NULL;
        for (int j = 0; j < fake->num_watchers; j++) {
            gs_status told = gs_rpc_item(fake->watchers[j], parse(fake->items[i]));
            (void)told;  // who has left is not told
            if (end) gs_rpc_end(fake->watchers[j], gs_ok());
        }
        if (end) fake->num_watchers = 0;
        free(fake->items[i]);
    }
    fake->num_items = 0;
    pthread_mutex_unlock(&fake->lock);
}

static void run_server(void *ctx, const atomic_bool *stopping) {
    fake_coordinator *fake = ctx;
    while (!atomic_load(stopping)) {
        send_items(fake);
        send_released(fake);
        must(gs_rpc_server_turn(fake->server, -1, gs_deadline_in_ms(10)));
    }
}

static fake_coordinator *start_fake(int64_t request_ms, int64_t answer_ms, const char *tokens_path, bool are_required, const char *address) {
    fake_coordinator *fake = calloc(1, sizeof *fake);
    if (!fake) abort();
    pthread_mutex_init(&fake->lock, NULL);
    gs_rpc_server_options options = {.endpoints = {"inproc://fake"},
                                     .coordinator_epoch = 7,
                                     .ctx = fake,
                                     .call_gone = forget_call,
                                     .handlers = {[GS_CREATE_JOB] = create_job,
                                                  [GS_LIST_JOBS] = list_jobs,
                                                  [GS_GET_JOB] = get_job,
                                                  [GS_STOP_JOB] = stop_job,
                                                  [GS_REPLAN_JOB] = replan_job,
                                                  [GS_RELEASE_JOB] = release_job,
                                                  [GS_ADOPT_JOB] = adopt_job,
                                                  [GS_DELETE_JOB] = delete_job,
                                                  [GS_GET_JOB_WORKERS] = get_workers,
                                                  [GS_GET_JOB_PLAN] = get_plan,
                                                  [GS_GET_JOB_METRICS] = get_job_metrics,
                                                  [GS_GET_JOB_SERIES] = get_series,
                                                  [GS_LIST_EVENTS] = list_events,
                                                  [GS_READ_LOGS] = read_logs,
                                                  [GS_LIST_CHECKPOINTS] = list_checkpoints,
                                                  [GS_LIST_WORKERS] = list_workers,
                                                  [GS_EXAMINE_WORKERS] = examine_workers,
                                                  [GS_PREVIEW_PLAN] = preview_plan,
                                                  [GS_GET_METRICS] = get_metrics,
                                                  [GS_GET_HEALTH] = get_health,
                                                  [GS_GET_JOB_TIMELINE] = get_job_timeline,
                                                  [GS_GET_JOB_DIAGNOSIS] = get_job_diagnosis,
                                                  [GS_TRACE_JOB] = trace_job,
                                                  [GS_GET_SYSTEM] = get_system,
                                                  [GS_WATCH] = watch}};
    must(gs_rpc_context_create(&fake->context));
    must(gs_rpc_server_open(&fake->server, fake->context, &options));
    must(gs_thread_start(&fake->thread, "fake", run_server, fake));
    gs_api_options api = {.http_address = address,
                          .insecure_no_tls = true,
                          .context = fake->context,
                          .rpc_endpoint = "inproc://fake",
                          .http_readonly = "127.0.0.1:0",
                          .allow_host = "localhost",  // of raw requests
                          .request_ms = request_ms,
                          .answer_ms = answer_ms,
                          .tokens_path = tokens_path,
                          .require_token = are_required,
                          .max_per_address = 512};
    must(gs_api_start(&fake->api, &api));
    fake_answer(fake, GS_GET_SYSTEM, GS_OK, "", "{\"version\":\"test\",\"coordinator_epoch\":7}");
    return fake;
}

fake_coordinator *fake_start(int64_t request_ms) {
    return start_fake(request_ms, 0, NULL, false, "127.0.0.1:0");
}

fake_coordinator *fake_start_with_patience(int64_t request_ms, int64_t answer_ms) {
    return start_fake(request_ms, answer_ms, NULL, false, "127.0.0.1:0");
}

fake_coordinator *fake_start_with_tokens(const char *tokens_path, bool are_required) {
    return start_fake(0, 0, tokens_path, are_required, "127.0.0.1:0");
}

fake_coordinator *fake_start_behind_proxy(const char *tokens_path) {
    return start_fake(0, 0, tokens_path, true, "0.0.0.0:0");
}

void fake_stop(fake_coordinator *fake) {
    // Of a test that failed: its requests are answered, and waited for by nobody.
    for (int i = 0; i < GS_NUM_METHODS; i++) fake_hold(fake, (gs_method)i, false);
    gs_api_stop(fake->api);
    gs_thread_stop(fake->thread);
    gs_rpc_server_close(fake->server);
    gs_rpc_context_destroy(fake->context);
    for (int i = 0; i < GS_NUM_METHODS; i++) {
        free(fake->answers[i].body);
        free(fake->answers[i].then);
        free(fake->answers[i].last_request);
    }
    free(fake->returned);
    pthread_mutex_destroy(&fake->lock);
    free(fake);
}

const char *fake_address(const fake_coordinator *fake) {
    return gs_api_address(fake->api);
}

const char *fake_readonly_address(const fake_coordinator *fake) {
    return gs_api_readonly_address(fake->api);
}

gs_api *fake_take_api(fake_coordinator *fake) {
    gs_api *api = fake->api;
    fake->api = NULL;
    return api;
}

void fake_answer(fake_coordinator *fake, gs_method method, gs_code code, const char *message,
                 const char *body) {
    pthread_mutex_lock(&fake->lock);
    canned *answer = &fake->answers[method];
    free(answer->body);
    free(answer->then);
    answer->code = code;
    answer->set = true;
    answer->num_calls = 0;
    answer->then = NULL;
    snprintf(answer->message, sizeof answer->message, "%s", message);
    answer->body = body ? strdup(body) : NULL;
    pthread_mutex_unlock(&fake->lock);
}

void fake_answer_then(fake_coordinator *fake, gs_method method, const char *body) {
    pthread_mutex_lock(&fake->lock);
    free(fake->answers[method].then);
    fake->answers[method].then = strdup(body);
    pthread_mutex_unlock(&fake->lock);
}

void fake_hold(fake_coordinator *fake, gs_method method, bool holds) {
    pthread_mutex_lock(&fake->lock);
    fake->answers[method].is_held = holds;
    pthread_mutex_unlock(&fake->lock);
}

const char *fake_last_request(fake_coordinator *fake, gs_method method) {
    pthread_mutex_lock(&fake->lock);
    const char *request = fake->answers[method].last_request;
    free(fake->returned);
    fake->returned = strdup(request ? request : "");
    pthread_mutex_unlock(&fake->lock);
    return fake->returned;
}

int fake_num_calls(fake_coordinator *fake, gs_method method) {
    pthread_mutex_lock(&fake->lock);
    int num_calls = fake->answers[method].num_calls;
    pthread_mutex_unlock(&fake->lock);
    return num_calls;
}

void fake_watch_item(fake_coordinator *fake, const char *item) {
    pthread_mutex_lock(&fake->lock);
    if (fake->num_items < MAX_ITEMS) fake->items[fake->num_items++] = strdup(item);
    pthread_mutex_unlock(&fake->lock);
}

void fake_wait_watchers(fake_coordinator *fake, int num_watchers) {
    gs_deadline deadline = gs_deadline_in_seconds(60);
    for (bool there = false; !there;) {
        pthread_mutex_lock(&fake->lock);
        there = fake->num_watchers >= num_watchers;
        pthread_mutex_unlock(&fake->lock);
        if (gs_deadline_passed(deadline)) abort();
        if (!there) gs_sleep_ns(GS_NS_PER_MS);
    }
}
