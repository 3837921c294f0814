#include "bench/control_requests.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"

#define MAX_TURNS 20000
#define PAUSE_NS (2 * GS_NS_PER_MS)

typedef enum request_kind {
    CREATE = 0,
    GET,
    LIST,
    STOP,
    DELETE,
    NOT_JSON,
    NOT_VALID,
    UNKNOWN_JOB,
    UNKNOWN_PATH,
    TOO_LARGE,
    NUM_KINDS
} request_kind;

static const struct {
    const char *name;
    int status;
} kinds[NUM_KINDS] = {{"POST /v1/jobs", 201},        {"GET /v1/jobs/JOB", 200},    {"GET /v1/jobs", 200},
                      {"POST .../stop", 202},        {"DELETE /v1/jobs/JOB", 204}, {"refused: no JSON", 400},
                      {"refused: no job", 422},      {"refused: unknown job", 404}, {"refused: no such path", 404},
                      {"refused: 2 MiB", 413}};

struct control_requests {
    const control_http *http;
    gs_strbuf response;
    double *ms[NUM_KINDS];
    int num_turns, num_wrong;
};

control_requests *control_requests_create(const control_http *http) {
    control_requests *requests = calloc(1, sizeof *requests);
    if (!requests) return NULL;
    requests->http = http;
    for (int i = 0; i < NUM_KINDS; i++) {
        requests->ms[i] = calloc(MAX_TURNS, sizeof(double));
        if (requests->ms[i]) continue;
        control_requests_destroy(requests);
        return NULL;
    }
    return requests;
}

void control_requests_destroy(control_requests *requests) {
    for (int i = 0; i < NUM_KINDS; i++) free(requests->ms[i]);
    gs_strbuf_release(&requests->response);
    free(requests);
}

static void ask(control_requests *requests, request_kind kind, const char *method, const char *path, const char *body) {
    int64_t begun_ns = gs_now_ns();
    int status = kind == TOO_LARGE
                     ? control_http_offer(requests->http, path, (size_t)2 << 20, &requests->response)
                     : control_http_request(requests->http, method, path, body, &requests->response);
    requests->ms[kind][requests->num_turns] = (double)(gs_now_ns() - begun_ns) / 1e6;
    gs_sleep_ns(PAUSE_NS);
    if (status == kinds[kind].status || requests->num_wrong++ > 0) return;
    fprintf(stderr, "control: %s is answered %d, not %d: %.300s\n", kinds[kind].name, status, kinds[kind].status,
            gs_strbuf_text(&requests->response));
}

// Of the job that the last answer shows.
static void find_path(const control_requests *requests, char path[128]) {
    const char *id = strstr(gs_strbuf_text(&requests->response), "\"id\":\"");
    snprintf(path, 128, "/v1/jobs/%.*s", id ? (int)strcspn(id + 6, "\"") : 0, id ? id + 6 : "");
}

bool control_requests_turn(control_requests *requests) {
    // It waits for ranks that nobody has, so nothing happens but what is asked for.
    static const char spec[] = "{\"name\":\"asked\",\"model\":{\"kind\":\"gpt2\"},\"steps\":{\"target\":1000000000},"
                               "\"world\":{\"min\":64,\"max\":64}}";
    char path[128], stop[160];
    if (requests->num_turns == MAX_TURNS) return false;
    ask(requests, CREATE, "POST", "/v1/jobs", spec);
    find_path(requests, path);
    snprintf(stop, sizeof stop, "%s/stop", path);
    ask(requests, GET, "GET", path, "");
    ask(requests, LIST, "GET", "/v1/jobs", "");
    ask(requests, STOP, "POST", stop, "{}");
    ask(requests, DELETE, "DELETE", path, "");
    ask(requests, NOT_JSON, "POST", "/v1/jobs", "{");
    ask(requests, NOT_VALID, "POST", "/v1/jobs", "{\"name\":7}");
    ask(requests, UNKNOWN_JOB, "GET", "/v1/jobs/j-0000000000000", "");
    ask(requests, UNKNOWN_PATH, "GET", "/v1/nothing", "");
    ask(requests, TOO_LARGE, "POST", "/v1/jobs", "");
    requests->num_turns++;
    return true;
}

static int compare(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

bool control_requests_print(control_requests *requests) {
    int count = requests->num_turns;
    for (int i = 0; i < NUM_KINDS && count > 0; i++) {
        double *ms = requests->ms[i];
        qsort(ms, (size_t)count, sizeof *ms, compare);
        printf("#   %-22s %6d times, ms: p50 %6.2f, p99 %6.2f, most %6.2f\n", kinds[i].name, count,
               ms[count / 2], ms[(count * 99 - 1) / 100], ms[count - 1]);
    }
    if (requests->num_wrong) printf("#   %d answers were not those that were expected\n", requests->num_wrong);
    return !requests->num_wrong;
}
