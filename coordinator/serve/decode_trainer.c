#include "coordinator/serve/decode_trainer.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/model/memory.h"
#include "coordinator/serve/decode_agent.h"
#include "coordinator/store/record/param_order.h"
#include "core/digest.h"
#include "rpc/schema/messages.h"

#define MAX_STEP ((int64_t)1 << 53)
#define MOST_PARTS 4096
#define MOST_STEP_SECONDS 1e6

// Within what a job can reach.
static int64_t within_reach(int64_t step) { return step < 0 ? 0 : step > MAX_STEP ? MAX_STEP : step; }

// −1: not told.
static int64_t step_of(const gs_json *message, const char *key) {
    int64_t step = 0;
    return gs_json_int(&step, gs_json_get(message, key)) ? within_reach(step) : -1;
}

static int64_t step_or_0(const gs_json *message, const char *key) {
    int64_t step = step_of(message, key);
    return step < 0 ? 0 : step;
}

// Any value; two that differ as text differ. 0: not told.
static uint64_t hash_value(const gs_json *value) {
    char *text = NULL;
    size_t bytes = 0;
    gs_status status = value ? gs_json_encode(&text, &bytes, value, false) : gs_ok();
    uint64_t hash = value && !status.code ? gs_hash64(text, bytes, 1) | 1 : 0;
    free(text);
    return hash;
}

static gs_status check_protocol(const gs_json *request) {
    int64_t least = gs_json_int_or(request, "proto_least", GS_PROTOCOL_LEAST);
    int64_t most = gs_json_int_or(request, "proto_most", GS_PROTOCOL_MOST);
    if (least <= GS_PROTOCOL_MOST && most >= GS_PROTOCOL_LEAST) return gs_ok();
    return gs_error(GS_FAILED_PRECONDITION,
                    "trainer speaks protocol %lld to %lld, the coordinator %d to %d",
                    (long long)least, (long long)most, GS_PROTOCOL_LEAST, GS_PROTOCOL_MOST);
}

void gs_decode_hello(gs_engine_event *event, const gs_json *request) {
    event->kind = GS_ON_HELLO;
    gs_trainer_hello *hello = &event->hello;
    const gs_json *communicator = gs_json_get(request, "communicator");
    *hello = (gs_trainer_hello){
        .job = gs_json_string_or(request, "job", ""),
        .cluster = gs_json_string_or(request, "cluster", ""),
        .seen = gs_decode_seen_life(request),
        .pid = gs_json_int_or(request, "pid", 0),
        .applied_step = step_or_0(request, "applied_step"),
        .host = gs_json_string_or(request, "host", ""),
        .boot_id = gs_json_string_or(request, "boot_id", ""),
        .params_digest = gs_json_string_or(request, "params_digest", ""),
        .data_digest = gs_json_string_or(request, "data_digest", ""),
        .backend = gs_json_string_or(communicator, "backend", NULL),
        .backend_reason = gs_json_string_or(communicator, "reason", NULL),
        .backend_generation = (uint32_t)gs_json_int_or(communicator, "generation", 0),
        .takes_cadence = gs_json_bool_or(request, "takes_cadence", false),
        .arithmetic = hash_value(gs_json_get(request, "arithmetic")),
    };
    hello->refusal = gs_json_read_u64(&hello->incarnation, request, "incarnation");
    if (!hello->refusal.code) hello->refusal = gs_json_read_u64(&hello->launch_token, request, "launch_token");
    if (!hello->refusal.code) hello->refusal = check_protocol(request);
}

void gs_decode_ready(gs_engine_event *event, const gs_json *request) {
    if (gs_json_get(request, "params") && gs_json_int_or(request, "generation", 0) == 0) {
        event->kind = GS_ON_PARAMS;
        event->params.refusal = gs_param_page_read(&event->params.page, request);
        return;
    }
    event->kind = GS_ON_READY;
    event->ready = (gs_ready_report){.plan_hash = gs_json_string_or(request, "plan_hash", ""),
                                     .state_digest = gs_json_string_or(request, "state_digest", ""),
                                     .applied_step = step_of(request, "applied_step")};
}

void gs_decode_exchange(gs_engine_event *event, const gs_json *request) {
    event->kind = GS_ON_EXCHANGE;
    event->exchange.refusal = gs_ok();
    gs_exchange_request *exchange = &event->exchange.request;
    *exchange = (gs_exchange_request){.tag = gs_json_string_or(request, "tag", "")};
    const char *bytes = gs_json_string_or(request, "bytes", NULL);
    if (bytes) {
        size_t length = strlen(bytes) + 1;
        exchange->bytes = memcpy(gs_model_alloc(length, 1), bytes, length);
    }
    const gs_json *named = gs_json_get(request, "ranks");
    if (!named) return;
    size_t count = gs_json_count(named);
    int *ranks = gs_model_alloc(count, sizeof *ranks);
    for (size_t i = 0; i < count; i++) {
        int64_t rank = -1;
        bool is_rank = gs_json_int(&rank, gs_json_at(named, i)) && rank >= 0 && rank <= INT_MAX;
        ranks[i] = is_rank ? (int)rank : -1;
    }
    exchange->ranks = ranks;
    exchange->num_ranks = (int)count;
}

void gs_decode_comm_up(gs_engine_event *event, const gs_json *request) {
    event->kind = GS_ON_COMM_UP;
    event->comm_up.backend = gs_json_string_or(request, "backend", "");
    event->comm_up.reason = gs_json_string_or(request, "reason", NULL);
}

static gs_activity activity_of(const char *phase) {
    if (!phase) return GS_ACTIVITY_OTHER;
    if (!strcmp(phase, "reduce") || !strcmp(phase, "commit")) return GS_ACTIVITY_WAITS;
    if (!strcmp(phase, "evaluate") || !strcmp(phase, "checkpoint")) return GS_ACTIVITY_LONG_WORK;
    return GS_ACTIVITY_OTHER;
}

static void read_plan(gs_plan_report *report, const gs_json *request) {
    *report = (gs_plan_report){.plan_step = step_or_0(request, "plan_step")};
    if (!gs_json_get(request, "plan")) return;
    gs_status plan = gs_json_read_u64(&report->plan, request, "plan");
    gs_status next = gs_json_read_u64(&report->next_plan, request, "next_plan");
    report->told = !plan.code && !next.code;
}

void gs_decode_heartbeat(gs_engine_event *event, const gs_json *request) {
    event->kind = GS_ON_HEARTBEAT;
    const char *phase = gs_json_string_or(request, "phase", NULL);
    event->heartbeat = (gs_heartbeat_report){.applied_step = step_or_0(request, "applied_step"),
                                             .rss_bytes = gs_json_int_or(request, "rss_bytes", -1),
                                             .phase = phase,
                                             .activity = activity_of(phase),
                                             .membership = gs_membership_of(gs_json_string_or(request, "state", NULL))};
    read_plan(&event->heartbeat.plan, request);
}

void gs_decode_step(gs_engine_event *event, const gs_step_report *report) {
    event->kind = GS_ON_STEP;
    double seconds = gs_step_report_get(report, GS_REPORT_STEP_SECONDS, 0);
    event->step.applied_step = within_reach(report->step);
    // Deadlines are made of it, in nanoseconds and by factors of ten.
    event->step.step_seconds = isfinite(seconds) && seconds > 0 ? fmin(seconds, MOST_STEP_SECONDS) : 0;
}

void gs_decode_fault(gs_engine_event *event, gs_fault_facts *facts, const gs_json *request) {
    event->kind = GS_ON_FAULT;
    *facts = gs_fault_facts_of(gs_fault_kind_of(gs_json_string_or(request, "kind", "")), -1);
    int64_t reporter = gs_json_int_or(request, "reporter", -1);
    if (reporter >= 0 && reporter < GS_FAULT_MAX_RANKS) facts->reporter = (int)reporter;
    int64_t collective = gs_json_int_or(request, "collective", 0);
    if (collective > 0) {
        facts->collective = (uint64_t)collective;
        facts->lane = (int)gs_json_int_or(request, "lane", 0);
        facts->step = gs_json_int_or(request, "collective_step", 0);
        facts->bucket = (int)gs_json_int_or(request, "bucket", -1);
    }
    // A worker of before calls them so.
    const gs_json *accused = gs_json_get(request, "accused");
    if (!accused) accused = gs_json_get(request, "suspects");
    for (size_t i = 0; i < gs_json_count(accused); i++) {
        int64_t rank = -1;
        if (gs_json_int(&rank, gs_json_at(accused, i))) gs_fault_accuse(facts, rank);
    }
    event->fault.facts = facts;
    event->fault.text = gs_json_string_or(request, "text", "");
}

void gs_decode_settle(gs_engine_event *event, const gs_json *request) {
    event->kind = GS_ON_SETTLE;
    event->settle = (gs_settle_question){.applied_step = step_of(request, "applied_step"),
                                         .complete = gs_json_bool_or(request, "complete", false),
                                         .apart = gs_json_bool_or(request, "apart", false)};
}

static void read_text(char *text, size_t text_bytes, const gs_json *object, const char *key) {
    snprintf(text, text_bytes, "%s", gs_json_string_or(object, key, ""));
}

static gs_status check_files(const gs_json *list) {
    size_t count = gs_json_count(list);
    if (count <= MOST_PARTS) return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT, "files: has %zu, at most %d", count, MOST_PARTS);
}

static void read_files(gs_checkpoint_report *report, const gs_json *list) {
    report->num_files = gs_json_count(list);
    report->files = gs_model_alloc(report->num_files, sizeof *report->files);
    for (size_t i = 0; i < report->num_files; i++) {
        const gs_json *entry = gs_json_at(list, i);
        read_text(report->files[i].name, sizeof report->files[i].name, entry, "name");
        read_text(report->files[i].digest, sizeof report->files[i].digest, entry, "digest");
        report->files[i].bytes = gs_json_int_or(entry, "bytes", -1);
    }
}

static gs_status read_part(gs_save_report *save, const gs_json *request) {
    GS_TRY(gs_json_read_int(&save->num_parts, request, "num_parts", 2, MOST_PARTS));
    return gs_json_read_int(&save->part, request, "part", 0, save->num_parts - 1);
}

void gs_decode_checkpointed(gs_engine_event *event, const gs_json *request) {
    event->kind = GS_ON_CHECKPOINTED;
    gs_save_report *save = &event->checkpointed;
    *save = (gs_save_report){
        .directory = gs_json_string_or(request, "directory", ""),
        .is_part = gs_json_get(request, "num_parts") != NULL,
        .failed = gs_json_get(request, "error") != NULL,
        .settling = !strcmp(gs_json_string_or(request, "reason", ""), "settled"),
    };
    if (save->failed) {
        save->cause = gs_save_failure_of(gs_json_string_or(request, "cause", ""));
        save->error = gs_json_string_or(request, "error", "");
    }
    const gs_json *files = gs_json_get(request, "files");
    save->refusal = check_files(files);
    if (save->is_part && !save->refusal.code) save->refusal = read_part(save, request);
    gs_checkpoint_report *found = &save->found;
    found->step = gs_json_int_or(request, "step", 0);
    found->bytes = gs_json_int_or(request, "bytes", 0);
    found->world_size = gs_json_int_or(request, "world_size", 0);
    found->seconds = gs_json_double_or(request, "seconds", 0);
    read_text(found->reason, sizeof found->reason, request, "reason");
    read_text(found->state_digest, sizeof found->state_digest, request, "state_digest");
    read_text(found->manifest_digest, sizeof found->manifest_digest, request, "manifest_digest");
    if (!save->refusal.code) read_files(found, files);
}

void gs_decode_bye(gs_engine_event *event, const gs_json *request) {
    event->kind = GS_ON_BYE;
    event->bye = (gs_bye_report){
        .reason = gs_bye_reason_of(gs_json_string_or(request, "reason", "")),
        .exit_code = (int)gs_json_int_or(request, "exit_code", 0),
        .class = gs_json_string_or(request, "class", ""),
        .error = gs_json_string_or(request, "error", ""),
        .hint = gs_json_string_or(request, "hint", ""),
        .applied_step = step_or_0(request, "applied_step"),
        .has_sample = gs_json_string_or(request, "sample", NULL) != NULL,
    };
    read_plan(&event->bye.plan, request);
}

void gs_decode_ready_order(gs_engine_event *event, const gs_json *request) {
    event->kind = GS_ON_READY_ORDER;
    event->ready_order = (gs_order_report){.settled = gs_json_bool_or(request, "settled", false)};
    event->ready_order.refusal =
        gs_param_order_decode(&event->ready_order.order, gs_json_get(request, "order"));
    const gs_json *link = gs_json_get(request, "link");
    if (link && !event->ready_order.refusal.code)
        event->ready_order.refusal = gs_link_message_decode(&event->ready_order.link, link);
    const gs_json *offers = gs_json_get(request, "offers");
    if (offers && !event->ready_order.refusal.code)
        event->ready_order.refusal = gs_offers_message_decode(&event->ready_order.offers, offers);
}
