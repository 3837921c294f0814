// Whatever a peer asks for, once its frame and its JSON are sound: the reader of that method refuses it, or makes an event of it whose
// members are what they can be; and what is told again by the event is read as the same. The input: a method's name, a space, JSON.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/observe/reports/job_metrics.h"
#include "coordinator/observe/reports/stragglers.h"
#include "coordinator/serve/decode_agent.h"
#include "coordinator/serve/decode_people.h"
#include "coordinator/serve/decode_trainer.h"
#include "rpc/plan/plan_message.h"
#include "rpc/schema/step_record.h"
#include "tests/fuzz/fuzz.h"

static void require(bool holds) {
    if (!holds) abort();
}

// What is told is what was said: the members of a list are those numbers.
static bool says(const gs_json *list, size_t index, int64_t number) {
    int64_t said;
    return gs_json_int(&said, gs_json_at(list, index)) && said == number;
}

static char *text_of(gs_json *value) {
    char *text = NULL;
    require(value && !gs_json_encode(&text, NULL, value, false).code);
    gs_json_release(value);
    return text;
}

static void require_same(gs_json *a, gs_json *b) {
    char *left = text_of(a), *right = text_of(b);
    require(strcmp(left, right) == 0);
    free(left);
    free(right);
}

// As it travels: a tree that was made has numbers that a text of it has not.
static gs_json *sent(gs_json *value) {
    char *text = text_of(value);
    gs_json *came = NULL;
    require(!gs_json_parse_foreign(&came, text, strlen(text)).code);
    free(text);
    return came;
}

static void check_agent_hello(const gs_engine_event *event, const gs_json *request) {
    const gs_agent_hello *hello = &event->agent_hello;
    if (hello->refusal.code) return;
    require(hello->num_slots == gs_json_int_or(request, "slots", 0) && hello->num_slots >= 1 && *hello->worker && hello->devices.per_slot >= 1);
    require(hello->devices.count <= GS_MAX_AGENT_DEVICES);
    for (size_t i = 0; i < (size_t)hello->devices.count; i++) {
        const gs_agent_device *device = &hello->devices.items[i];
        require(*device->uuid && device->memory_bytes >= 0 && gs_agent_devices_find(&hello->devices, device->uuid) == (int)i);
    }
}

static void check_params(const gs_engine_event *event, const gs_json *request) {
    gs_json *page = gs_json_new_object();
    const gs_param_page *read = &event->params.page;
    gs_param_page again;
    gs_param_list list = {0};
    require(event->params.refusal.code || read->num_params == gs_json_count(gs_json_get(request, "params")));
    require(!event->params.refusal.code || (!read->params && !read->num_params));
    gs_param_page_write(page, read->params, read->num_params, 0);
    if (!event->params.refusal.code && !gs_param_list_append(&list, read).code) {
        require(list.num_params == read->num_params);
        page = sent(page);
        if (list.is_complete) {
            require(!gs_param_page_read(&again, page).code && again.num_params == read->num_params);
            require(gs_digest_equal(gs_param_specs_digest(read->params, read->num_params), gs_param_specs_digest(again.params, again.num_params)));
            gs_param_page_release(&again);
        }
    }
    gs_param_list_release(&list);
    gs_json_release(page);
}

static void check_ready_order(const gs_engine_event *event, const gs_json *request) {
    const gs_order_report *report = &event->ready_order;
    gs_link_report link, same = {0};
    gs_plan_offers offers;
    if (report->refusal.code) return;
    const gs_json *shares = gs_json_get(gs_json_get(gs_json_get(request, "link"), "shares"), "of"), *order = gs_json_get(request, "order");
    for (size_t i = 0; i < (size_t)report->link.deal.num_ranks; i++) require(says(shares, i, report->link.deal.shares[i]));
    for (size_t i = 0; i < report->order.count; i++) require(says(order, i, (int64_t)report->order.params[i]));
    if (report->offers.num_buckets) {
        for (size_t b = 0; b < report->offers.num_buckets; b++) require(report->offers.buckets[b].chosen < GS_NUM_OFFERS);
        gs_json *told = sent(gs_offers_message_encode(&report->offers));
        require(!gs_offers_message_decode(&offers, told).code);
        require_same(gs_offers_message_encode(&offers), told);
        gs_plan_offers_release(&offers);
    }
    gs_json *told = sent(gs_link_message_encode(&report->link));
    require(!gs_link_message_decode(&link, told).code && gs_link_report_equal(&link, &report->link));
    gs_link_report_copy(&same, &link);
    require_same(gs_link_message_encode(&same), told);
    gs_link_pair worst = gs_link_worst_pair(&link);
    require(isfinite(worst.latency_seconds) && isfinite(worst.bytes_per_second));
    gs_link_report_release(&link);
    gs_link_report_release(&same);
}

static void check_exchange(const gs_engine_event *event, const gs_json *request) {
    const gs_exchange_request *exchange = &event->exchange.request;
    const gs_json *named = gs_json_get(request, "ranks");
    for (int i = 0; i < exchange->num_ranks; i++)
        require(exchange->ranks[i] == -1 || says(named, (size_t)i, exchange->ranks[i]));
}

static void check_checkpointed(const gs_engine_event *event, const gs_json *request) {
    const gs_save_report *save = &event->checkpointed;
    if (save->refusal.code) return;
    require(save->found.num_files == gs_json_count(gs_json_get(request, "files")) && save->found.num_files <= 4096);
    require(!save->is_part || (save->part >= 0 && save->part < save->num_parts));
}

static void check_described(const gs_engine_event *event, const gs_json *request) {
    (void)request;
    require(event->described.refusal.code || (event->described.spec && *event->described.spec_digest));
}

static void check_exited(const gs_engine_event *event, const gs_json *request) {
    gs_json *tail = NULL;
    require(event->exited.log_tail != NULL || !gs_json_get(request, "log_tail"));
    if (event->exited.log_tail) require(!gs_json_parse(&tail, event->exited.log_tail, strlen(event->exited.log_tail)).code);
    gs_json_release(tail);
}

static void check_heartbeat(const gs_engine_event *event, const gs_json *request) {
    (void)request;
    require(event->heartbeat.applied_step >= 0 && event->heartbeat.plan.plan_step >= 0);
}

typedef struct method {
    const char *name;
    void (*decode)(gs_engine_event *event, const gs_json *request);
    void (*check)(const gs_engine_event *event, const gs_json *request);
} method;

static const method methods[] = {
    {"AgentHello", gs_decode_agent_hello, check_agent_hello},
    {"AgentHeartbeat", gs_decode_agent_heartbeat, NULL},
    {"Exited", gs_decode_exited, check_exited},
    {"Described", gs_decode_described, check_described},
    {"Hello", gs_decode_hello, NULL},
    {"Ready", gs_decode_ready, NULL},
    {"Exchange", gs_decode_exchange, check_exchange},
    {"CommUp", gs_decode_comm_up, NULL},
    {"Heartbeat", gs_decode_heartbeat, check_heartbeat},
    {"Settle", gs_decode_settle, NULL},
    {"Checkpointed", gs_decode_checkpointed, check_checkpointed},
    {"Bye", gs_decode_bye, NULL},
    {"ReadyOrder", gs_decode_ready_order, check_ready_order},
    {"DeleteJob", gs_decode_delete_job, NULL},
    {"ReplanJob", gs_decode_replan_job, NULL},
    {"AdoptJob", gs_decode_adopt_job, NULL},
    {"ReleaseJob", gs_decode_release_job, NULL},
};

static void decode_fault(const gs_json *request) {
    gs_engine_event event = {0};
    gs_fault_facts facts;
    gs_decode_fault(&event, &facts, request);
    require(facts.reporter >= -1 && facts.reporter < GS_FAULT_MAX_RANKS);
}

static void ignore(void *ctx, const gs_json *entry) {
    (void)ctx;
    (void)entry;
}

// A worker of before tells its steps so. What is read can be shown, and packed as those of today do; and is taken among the reports of a job.
static void decode_step(const gs_json *request) {
    static gs_job_metrics *metrics;
    static gs_report_rows rows, rows_again;
    static uint8_t record[GS_STEP_RECORD_MAX_BYTES];
    gs_engine_event event = {0};
    gs_step_report report, again;
    gs_step_report_from_json(&report, &rows, request);
    gs_decode_step(&event, &report);
    require(event.step.applied_step >= 0 && event.step.applied_step <= (report.step < 0 ? 0 : report.step));
    require(isfinite(event.step.step_seconds) && event.step.step_seconds >= 0);
    free(text_of(gs_step_report_to_json(&report)));
    size_t bytes = gs_step_record_pack(record, &report);
    require(bytes <= sizeof record);
    gs_status status = gs_step_record_unpack(&again, &rows_again, record, bytes);
    if (!status.code) require(again.num_buckets == report.num_buckets && again.num_history == report.num_history);
    if (!metrics && !(metrics = gs_job_metrics_create())) abort();
    gs_job_metrics_take(metrics, 0, 1, &report, &(gs_metrics_record){ignore, NULL});
    require(isfinite(gs_stragglers_view(gs_job_metrics_stragglers(metrics), 0).lag_seconds));
}

static void decode_stop(const gs_json *request) {
    gs_engine_event event = {0};
    if (gs_decode_stop_job(&event, request).code) return;
    require(event.stop.grace_seconds == -1 || (event.stop.grace_seconds >= 0 && event.stop.grace_seconds <= 86400));
}

static void decode_create(const gs_json *request) {
    gs_engine_event event = {0};
    char fingerprint[GS_DIGEST_TEXT_LEN];
    gs_json *details = NULL;
    gs_digest digest;
    gs_status status = gs_decode_create_job(&event, fingerprint, &details, request);
    require(gs_digest_parse(&digest, fingerprint) && (status.code || !details));
    gs_json_release(details);
    gs_engine_event_release(&event);
}

// What comes the other way: a worker reads it against the parameters that it has.
static void decode_plan(const gs_json *message) {
    gs_param_spec params[5];
    gs_bucket_plan plan, again;
    for (int i = 0; i < 5; i++) params[i] = gs_param_spec_make(i < 4 ? GS_FP32 : GS_BF16, 3, 1 + i, "p%d", i);
    if (gs_plan_message_decode(&plan, message, params, 5).code) {
        require(!plan.buckets && !plan.params);
        return;
    }
    gs_json *told = sent(gs_plan_message_encode(&plan, &(gs_plan_label){.reason = ""}));
    require(!gs_plan_message_decode(&again, told, params, 5).code);
    require(gs_digest_equal(gs_bucket_plan_digest(&plan), gs_bucket_plan_digest(&again)));
    gs_json_release(told);
    gs_bucket_plan_release(&plan);
    gs_bucket_plan_release(&again);
}

static bool is_named(const char *name, const char *text, size_t len) {
    return strlen(name) == len && memcmp(name, text, len) == 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    const char *name = (const char *)data, *space = memchr(data, ' ', bytes);
    gs_json *request = NULL;
    if (!space) return 0;
    size_t name_len = (size_t)(space - name);
    if (gs_json_parse_foreign(&request, space + 1, bytes - name_len - 1).code) return 0;
    if (is_named("Step", name, name_len)) decode_step(request);
    if (is_named("Fault", name, name_len)) decode_fault(request);
    if (is_named("StopJob", name, name_len)) decode_stop(request);
    if (is_named("CreateJob", name, name_len)) decode_create(request);
    if (is_named("Plan", name, name_len)) decode_plan(request);
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        if (!is_named(methods[i].name, name, name_len)) continue;
        gs_engine_event event = {0};
        methods[i].decode(&event, request);
        if (methods[i].check && event.kind != GS_ON_PARAMS) methods[i].check(&event, request);
        if (event.kind == GS_ON_PARAMS) check_params(&event, request);
        gs_engine_event_release(&event);
    }
    gs_json_release(request);
    return 0;
}
