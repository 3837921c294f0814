#include "worker/control/member.h"

#include <stdlib.h>

#include "core/log.h"
#include "rpc/schema/messages.h"
#include "rpc/schema/step_record.h"
#include "worker/control/line.h"
#include "worker/control/member_messages.h"
#include "worker/control/outbox.h"
#include "worker/control/rendezvous.h"
#include "worker/telemetry/timeline_message.h"

#define CALL_SECONDS 5.0
#define FAULT_SECONDS 2.0
// Without a coordinator: how long a trainer that has nothing to train waits, and one that must
// settle.
#define IDLE_ORPHAN_NS (60 * GS_NS_PER_SEC)
#define SETTLE_ORPHAN_SECONDS 10.0
#define SETTLE_SECONDS 60.0
// How long what a run has come to is kept when a coordinator is there that does not know it.
#define UNKNOWN_SECONDS 10.0
// Of timelines: spans and buckets that are left behind at the end.
#define LEFT_STEPS 3
#define LEFT_ROWS 600

struct gs_member {
    const gs_launch *launch;
    gs_control *control;
    gs_place place;  // in the generation that it was prepared for last
    gs_rpc_context *context;
    gs_rpc_client *client;
    gs_outbox *outbox;
    gs_line *line;
};

// Takes the request.
static gs_status call(gs_member *member, gs_method method, gs_json *request, double seconds) {
    gs_status status =
        gs_rpc_call(member->client, method, request, NULL, gs_deadline_in_seconds(seconds));
    gs_json_release(request);
    return status;
}

static gs_status read_key(void *ctx, gs_key_file *key) {
    return gs_launch_page_get_key(ctx, key);
}

gs_status gs_member_create(gs_member **out, const gs_launch *launch, gs_control *control) {
    gs_member *member = calloc(1, sizeof *member);
    if (!member) return gs_error(GS_RESOURCE_EXHAUSTED, "member: out of memory");
    member->launch = launch;
    member->control = control;
    gs_rpc_client_options options = {.endpoint = launch->coordinator,
                                     .job = launch->job_number,
                                     .incarnation = launch->incarnation,
                                     .launch_token = strtoull(launch->launch_token, NULL, 10)};
    if (atomic_load(&launch->page->key_turn)) options.source = (gs_rpc_key_source){read_key, launch->page};
    gs_status status = gs_rpc_context_create(&member->context);
    if (!status.code) status = gs_rpc_client_open(&member->client, member->context, &options);
    if (!status.code) status = gs_outbox_create(&member->outbox, member->client);
    if (!status.code)
        status = gs_line_create(&member->line, member->client, member->outbox, control, launch->page);
    if (status.code) {
        gs_member_destroy(member);
        return status;
    }
    *out = member;
    return gs_ok();
}

gs_status gs_member_join(gs_member *member, const gs_trainer_facts *facts) {
    return gs_line_start(member->line, gs_member_message_hello(member->launch, facts),
                         member->launch->incarnation, facts->params, facts->num_params);
}

void gs_member_destroy(gs_member *member) {
    if (!member) return;
    gs_line_destroy(member->line);
    gs_outbox_destroy(member->outbox);
    gs_rpc_client_close(member->client);
    gs_rpc_context_destroy(member->context);
    free(member);
}

gs_status gs_member_next_event(gs_member *member, gs_json **event, gs_deadline deadline) {
    GS_TRY(gs_line_refusal(member->line));
    GS_TRY(gs_mailbox_check(&member->control->mailbox));
    if (gs_line_next_event(member->line, event, deadline)) return gs_ok();
    if (gs_now_ns() - gs_line_heard_ns(member->line) > IDLE_ORPHAN_NS)
        return gs_error(GS_UNAVAILABLE, "no coordinator at %s", member->launch->coordinator);
    return gs_error(GS_DEADLINE_EXCEEDED, "no word from the coordinator yet");
}

void gs_member_set_state(gs_member *member, gs_member_state state, uint32_t generation) {
    gs_line_set_state(member->line, state, generation);
}

void gs_member_take_place(gs_member *member, const gs_place *place) {
    member->place = *place;
    gs_line_keep_order(member->line, NULL);  // of a generation that is over
    gs_line_keep_communicator(member->line, NULL);
    gs_member_set_state(member, GS_MEMBER_PREPARED, place->generation);
}

gs_status gs_member_send_ready(gs_member *member, const char *plan_hash, gs_digest state_digest) {
    int64_t applied_step = atomic_load(&member->control->progress.applied_step);
    gs_json *request = gs_member_message_ready(gs_line_generation(member->line), plan_hash,
                                               applied_step, &state_digest);
    return call(member, GS_READY, request, CALL_SECONDS);
}

gs_status gs_member_send_comm_up(gs_member *member, const gs_comm_facts *facts) {
    gs_line_keep_communicator(member->line, gs_member_message_comm_up(facts));
    return call(member, GS_COMM_UP, gs_member_message_comm_up(facts), CALL_SECONDS);
}

bool gs_member_wait_for_welcome(gs_member *member, gs_deadline deadline) {
    bool save, drains;
    gs_deadline unknown_until = gs_deadline_in_seconds(UNKNOWN_SECONDS);
    do {
        if (!gs_line_started(member->line) || gs_line_refusal(member->line).code) return false;
        if (gs_line_welcomed(member->line)) return true;
        if (!gs_line_unknown(member->line))
            unknown_until = gs_deadline_in_seconds(UNKNOWN_SECONDS);
        else if (gs_deadline_passed(unknown_until)) return false;
        drains = gs_mailbox_drains(&member->control->mailbox, &save);
        if (!drains) gs_sleep_ns(20 * GS_NS_PER_MS);
    } while (!drains && !gs_deadline_passed(deadline));
    return false;
}

// The last steps, for those who look when this trainer is gone.
static void leave_timeline(gs_member *member) {
    gs_timeline_pages pages = gs_timeline_pages_begin(
        member->control->progress.timeline,
        &(gs_timeline_range_asked){.last = LEFT_STEPS, .max_rows = LEFT_ROWS});
    gs_json *page;
    while ((page = gs_timeline_pages_next(&pages))) {
        gs_member_complete_page(page, 0, gs_line_generation(member->line));
        gs_status status = call(member, GS_TIMELINE, page, 1);
        if (!status.code) continue;
        gs_log_debug("no timeline left", "reason=\"%s\"", status.message);
        return;
    }
}

// With the coordinator that took it its answer is gone, and perhaps the word.
static bool is_lost(const gs_member *member, gs_status status) {
    return status.code == GS_DEADLINE_EXCEEDED ||
           (status.code == GS_UNAVAILABLE && !gs_rpc_client_connected(member->client));
}

void gs_member_say_bye(gs_member *member, const gs_trainer_outcome *outcome, int rank) {
    uint32_t generation = gs_line_generation(member->line);
    gs_member_set_state(member, GS_MEMBER_LEAVING, generation);
    // The next coordinator is told again: it would take the end of this process for a loss.
    bool insists = gs_line_welcomed(member->line);
    // Somebody who is not there will not be there in a moment either.
    double seconds = !gs_line_started(member->line) || insists ? CALL_SECONDS : 1;
    gs_deadline end = gs_deadline_in_seconds(gs_line_wait_seconds(member->line));
    if (gs_line_welcomed(member->line)) leave_timeline(member);
    gs_status status;
    do {
        if (!gs_line_unknown(member->line))
            gs_outbox_flush(member->outbox, gs_deadline_in_seconds(2 * seconds));
        gs_json *bye = gs_member_message_bye(outcome, generation, rank, member->control);
        status = call(member, GS_BYE, bye, seconds);
        insists &= is_lost(member, status) && !gs_deadline_passed(end);
    } while (insists && gs_member_wait_for_welcome(member, end));
    if (status.code) gs_log_warn("left without good-bye", "reason=\"%s\"", status.message);
}

static gs_status exchange(void *ctx, const char *tag, const int *ranks, int num_ranks,
                          const void *mine, size_t bytes, void *all, gs_deadline deadline) {
    gs_member *member = ctx;
    return gs_rendezvous_exchange(member->client, &member->place, tag, ranks, num_ranks, mine, bytes, all,
                                  deadline);
}

static void send_record(gs_member *member, const gs_step_report *report) {
    uint8_t *record = malloc(GS_STEP_RECORD_MAX_BYTES);
    if (!record) return;  // the next one tells as much
    gs_rpc_send_record(member->client, GS_STEP_RECORD, record, gs_step_record_pack(record, report));
    free(record);
}

// To a coordinator of before.
static void send_json(gs_member *member, const gs_step_report *report) {
    gs_json *step = gs_step_report_to_json(report);
    gs_rpc_send(member->client, GS_STEP, step);
    gs_json_release(step);
}

// Before its welcome a coordinator does not know whose report it is.
static bool report(void *ctx, const gs_step_report *step_report) {
    gs_member *member = ctx;
    if (!gs_line_welcomed(member->line)) return false;
    if (gs_line_reads_records(member->line)) send_record(member, step_report);
    else send_json(member, step_report);
    return true;
}

static void checkpointed(void *ctx, const gs_checkpoint_result *result) {
    gs_member *member = ctx;
    gs_outbox_push(member->outbox, GS_CHECKPOINTED, gs_member_message_checkpointed(result));
}

static void ordered(void *ctx, const gs_order_report *order) {
    gs_member *member = ctx;
    gs_line_keep_order(member->line, gs_member_message_order(order));
    gs_outbox_push(member->outbox, GS_READY_ORDER, gs_member_message_order(order));
}

static void fault(void *ctx, const gs_fault *what) {
    gs_member *member = ctx;
    gs_status status = call(member, GS_FAULT, gs_member_message_fault(what), FAULT_SECONDS);
    if (status.code) gs_log_warn("fault not reported", "reason=\"%s\"", status.message);
}

// A coordinator that is there may take its time (a frozen rank must be found and killed first).
static gs_status settle(void *ctx, gs_settle_verdict *verdict, const gs_settlement *settlement) {
    gs_member *member = ctx;
    gs_member_set_state(member, GS_MEMBER_ABORTING, settlement->generation);
    gs_deadline end = gs_deadline_in_seconds(SETTLE_SECONDS);
    gs_json *request = gs_member_message_settle(settlement), *reply = NULL;
    gs_status status;
    do {
        gs_deadline turn = gs_deadline_min(end, gs_deadline_in_seconds(SETTLE_ORPHAN_SECONDS));
        status = gs_rpc_call(member->client, GS_SETTLE, request, &reply, turn);
    } while (status.code == GS_DEADLINE_EXCEEDED && gs_rpc_client_connected(member->client) &&
             !gs_deadline_passed(end));
    if (!status.code) {
        verdict->apply = gs_json_bool_or(reply, "apply", false);
        verdict->save = gs_json_bool_or(reply, "save", false);
    }
    gs_json_release(request);
    gs_json_release(reply);
    return status;
}

const gs_control_ops gs_member_control_ops = {.exchange = exchange,
                                              .report = report,
                                              .checkpointed = checkpointed,
                                              .fault = fault,
                                              .ordered = ordered,
                                              .settle = settle};
