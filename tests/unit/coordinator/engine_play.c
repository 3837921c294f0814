#include "tests/unit/coordinator/engine_play.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/store/record/job_record.h"
#include "core/clock.h"
#include "core/strbuf.h"
#include "rpc/json/json.h"
#include "rpc/schema/job_spec.h"
#include "rpc/schema/launch_token.h"
#include "rpc/schema/model_params.h"

#define MAX_WORK 512
#define WALL_MS INT64_C(1700000000000)

#define SPEC_OF(ranks) \
    "{\"name\":\"play\",\"world\":{\"min\":" ranks ",\"max\":" ranks "},\"model\":{\"kind\":\"mlp\",\"mlp\":{\"dims\":[4,3,2]}}," \
    "\"data\":{\"kind\":\"synthetic\",\"micro_batch\":2},\"optimizer\":{\"kind\":\"sgd\"},\"steps\":{\"target\":1000}," \
    "\"reducer\":{\"plan\":\"parity\"}}"

static const char spec_text[] = SPEC_OF("2"), alone_text[] = SPEC_OF("1");

// What the disk was asked, until it answers.
typedef struct disk_work {
    gs_engine_event_kind kind;
    gs_stored_kind stored;
    uint64_t ticket, job;
    uint32_t generation_end;
    char directory[GS_CHECKPOINT_NAME_LEN];
} disk_work;

typedef struct gs_play_disk {
    disk_work items[MAX_WORK];
    size_t count;
    disk_work done;  // what it answers just now
} disk_queue;

static void must(gs_status status) {
    if (!status.code) return;
    fprintf(stderr, "play: %s\n", status.message);
    abort();
}

static gs_job_spec *decode_spec(const char *text) {
    gs_json *json = NULL;
    gs_field_errors *errors = calloc(1, sizeof *errors);
    gs_job_spec *spec = calloc(1, sizeof *spec);
    must(gs_json_parse(&json, text, strlen(text)));
    must(gs_job_spec_decode(spec, json, errors));
    gs_json_release(json);
    free(errors);
    return spec;
}

static gs_job_spec *make_spec(void) { return decode_spec(spec_text); }

static gs_param_spec *make_params(size_t *num_params) {
    gs_job_spec *spec = make_spec();
    gs_param_spec *params = NULL;
    must(gs_model_params_of_spec(&params, num_params, spec));
    free(spec);
    return params;
}

static const char *params_digest(void) {
    static char text[GS_DIGEST_TEXT_LEN];
    size_t num_params;
    gs_param_spec *params = make_params(&num_params);
    gs_digest_format(text, gs_param_specs_digest(params, num_params));
    free(params);
    return text;
}

static void ask_disk(disk_queue *disk, const gs_effect *effect, gs_engine_event_kind kind, gs_stored_kind stored) {
    if (disk->count == MAX_WORK) abort();
    disk_work *work = &disk->items[disk->count++];
    *work = (disk_work){.kind = kind, .stored = stored, .ticket = effect->ticket,
                        .job = effect->job ? effect->job->id : effect->job_id,
                        .generation_end = effect->kind == GS_DO_RESERVE_GENERATIONS ? effect->generation_end : 0};
    snprintf(work->directory, sizeof work->directory, "%s", effect->text ? effect->text : "");
}

static gs_play_rank *rank_of(gs_play *play, uint64_t incarnation) {
    for (int i = 0; i < GS_PLAY_RANKS; i++)
        if (play->ranks[i].incarnation == incarnation) return &play->ranks[i];
    return NULL;
}

static void take_order(gs_play *play, const gs_effect *effect) {
    const gs_agent_message *message = &effect->agent_message;
    play->num_adopt_orders += message->order == GS_TELL_ADOPT_RANK;
    play->num_stop_orders += message->order == GS_TELL_STOP_RANK;
    play->num_kill_orders += message->order == GS_TELL_STOP_RANK && (message->kill || message->grace_seconds <= 0);
    play->worker_is_welcome |= message->order == GS_TELL_AGENT_WELCOME;
    if (message->order == GS_TELL_START_RANK) {
        if (play->job && effect->member->job->id != play->job) return;  // a rank of another job: no test speaks for it
        play->ranks[effect->member->slot] = (gs_play_rank){.incarnation = effect->member->incarnation,
                                                           .launch_token = effect->member->launch_token};
    } else if (message->order == GS_TELL_STOP_RANK) {
        gs_play_rank *rank = rank_of(play, message->incarnation);
        if (!rank) return;
        *(message->kill ? &rank->ordered_to_die : &rank->ordered_to_stop) = true;
        rank->ordered_after_welcome = play->worker_is_welcome;
    }
}

static void note_answer(gs_play *play, const gs_effect *effect) {
    int index = play->num_answers++ % 32;
    play->answered_calls[index] = effect->call;
    play->answers[index] = effect->kind == GS_DO_END ? effect->ending : effect->reply.status;
}

bool gs_play_is_answered(const gs_play *play, gs_call call, gs_status *answer) {
    for (int i = 0; i < 32 && i < play->num_answers; i++) {
        if (play->answered_calls[i] != call) continue;
        *answer = play->answers[i];
        return true;
    }
    return false;
}

static void perform(gs_play *play, const gs_effect *effect) {
    disk_queue *disk = play->disk;
    switch (effect->kind) {
    case GS_DO_REPLY:
    case GS_DO_END:
        note_answer(play, effect);
        if (effect->call != play->last_call) break;
        play->answered = true;
        play->answer = effect->kind == GS_DO_END ? effect->ending : effect->reply.status;
        snprintf(play->refusal, sizeof play->refusal, "%s", effect->kind == GS_DO_REPLY && effect->reply.code ? effect->reply.code : "");
        play->settlement_saves = effect->kind == GS_DO_REPLY && effect->reply.save;
        play->settlement_applies = effect->kind == GS_DO_REPLY && effect->reply.apply;
        break;
    case GS_DO_TELL_AGENT: take_order(play, effect); break;
    case GS_DO_TELL_MEMBER:
        if (effect->member_message.order == GS_TELL_WELCOME && rank_of(play, effect->member->incarnation))
            rank_of(play, effect->member->incarnation)->orphan_ns = effect->member_message.orphan_ns;
        play->num_goes += effect->member_message.order == GS_TELL_GO;
        play->num_plans += effect->member_message.plan != NULL;
        play->num_empty_plans += effect->member_message.plan && !effect->member_message.plan->buckets;
        break;
    case GS_DO_COUNT:
        if (play->watched_limit && effect->count.kind == GS_COUNT_LIMIT && !strcmp(effect->count.label, play->watched_limit))
            play->num_limits++;
        break;
    case GS_DO_NOTE:
        if (play->watched_reason && !strcmp(effect->note.reason, play->watched_reason)) play->num_watched++;
        break;
    case GS_DO_WRITE_JOB:
        play->num_job_rows++;
        ask_disk(disk, effect, GS_ON_STORED, GS_STORED_JOB);
        break;
    case GS_DO_DELETE_JOB: ask_disk(disk, effect, GS_ON_STORED, GS_STORED_JOB_DELETED); break;
    case GS_DO_RESERVE_GENERATIONS: ask_disk(disk, effect, GS_ON_STORED, GS_STORED_GENERATIONS); break;
    case GS_DO_WRITE_CHECKPOINT:
        play->num_checkpoint_rows++;
        ask_disk(disk, effect, GS_ON_STORED, GS_STORED_CHECKPOINT);
        break;
    case GS_DO_VERIFY:
        if (!play->verify_waits) ask_disk(disk, effect, GS_ON_VERIFIED, 0);
        break;
    case GS_DO_FIND_DIRECTORIES:
        play->num_finds++;
        ask_disk(disk, effect, GS_ON_DIRECTORIES_FOUND, 0);
        break;
    case GS_DO_PURGE: play->num_purges++; break;
    case GS_DO_REMOVE_CHECKPOINT: play->num_removals++; break;
    case GS_DO_SWEEP: play->num_sweeps++; break;
    case GS_DO_LOOK_FOR_LIFE:
        play->num_looks++;
        play->life = effect->life;
        ask_disk(disk, effect, GS_ON_LIFE_LOOKED, 0);
        break;
    case GS_DO_LOOK_AT_PARTS: ask_disk(disk, effect, GS_ON_PARTS_LOOKED, 0); break;
    case GS_DO_CHECK_CHECKPOINTS:
        play->num_checks++;
        ask_disk(disk, effect, GS_ON_CHECKPOINTS_CHECKED, 0);
        break;
    default: break;
    }
}

static void step(gs_play *play, gs_engine_event *event) {
    event->now_ns = play->now_ns;
    event->wall_ms = play->wall_ms;
    event->random = 1 + (uint64_t)play->now_ns * 7919;
    gs_effects effects = gs_engine_step(play->engine, event);
    for (size_t i = 0; i < effects.count; i++) perform(play, &effects.items[i]);
    gs_engine_event_release(event);
}

static void look_for_life(gs_play *play, gs_completion *done) {
    bool is_fenced = play->fenced == play->life.generation;
    done->life = play->life;
    done->life.stands = !play->fence_is_others && !is_fenced;
    done->life.number = play->ranks_live ? ++play->last_sign : play->last_sign;
    if (play->life_says) done->status = gs_error(play->life_says, "it is away");
    bool is_quiet = done->life.number == play->life.number;
    bool raises = play->life.raises && done->life.stands && is_quiet;
    if (raises && play->raise_is_lost) play->fenced = play->life.generation;
    if (raises && play->raise_is_lost) done->status = gs_error(GS_UNAVAILABLE, "it may be done");
    if (done->status.code || !(raises || is_fenced)) return;
    done->life.is_raised = true;
    play->fenced = play->life.generation;
}

static void take_done(gs_play *play, gs_engine_event *event) {
    disk_queue *disk = play->disk;
    const disk_work *work = &disk->done;
    disk->done = disk->items[0];
    memmove(disk->items, disk->items + 1, --disk->count * sizeof *disk->items);
    event->kind = work->kind;
    event->done = (gs_completion){.stored = work->stored, .ticket = work->ticket, .job = work->job,
                                  .directory = work->directory, .generation_end = work->generation_end};
    if (play->disk_says && work->kind == GS_ON_STORED) event->done.status = gs_error(play->disk_says, "no");
    if (play->verify_says && work->kind == GS_ON_VERIFIED) event->done.status = gs_error(play->verify_says, "no");
    if (work->kind == GS_ON_PARTS_LOOKED) event->done.found = (gs_checkpoint_report){.step = play->found_step, .generation = play->found_generation};
    if (work->kind == GS_ON_LIFE_LOOKED) look_for_life(play, &event->done);
    bool lists = work->job == play->job && (work->kind == GS_ON_DIRECTORIES_FOUND || work->kind == GS_ON_CHECKPOINTS_CHECKED);
    if (work->job == play->job && work->kind == GS_ON_DIRECTORIES_FOUND) event->done.left_by = play->left_by;
    if (play->list_says && lists) event->done.status = gs_error(play->list_says, "it is away");
    else if (play->found && work->kind == GS_ON_DIRECTORIES_FOUND) {
        event->done.names = &play->found;
        event->done.num_names = 1;
    } else if (play->missing && work->kind == GS_ON_CHECKPOINTS_CHECKED) {
        event->done.names = &play->missing;
        event->done.num_names = 1;
    }
}

void gs_play_hear(gs_play *play, gs_engine_event *event) {
    play->now_ns += GS_NS_PER_MS;
    step(play, event);
    for (;;) {
        gs_engine_event next = {.kind = GS_ON_TURN, .from = {.generation = -1}};
        bool is_done = play->disk->count > 0 && (!play->disk_waits || play->disk_does > 0);
        if (is_done && play->disk_does > 0) play->disk_does--;
        if (!is_done && !gs_engine_state(play->engine)->schedule_needed) return;
        if (is_done) take_done(play, &next);
        step(play, &next);
    }
}

static void hear_kind(gs_play *play, gs_engine_event_kind kind) {
    gs_play_hear(play, &(gs_engine_event){.kind = kind, .from = {.generation = -1}});
}

void gs_play_wait(gs_play *play, int64_t ns) {
    int64_t until_ns = play->now_ns + ns, tick_ns = gs_engine_state(play->engine)->timing.tick_ns;
    while (play->now_ns < until_ns) {
        play->now_ns += tick_ns - GS_NS_PER_MS;
        hear_kind(play, GS_ON_TICK);
    }
}

gs_run *gs_play_run(const gs_play *play) {
    const gs_job *job = gs_job_table_get(&gs_engine_state(play->engine)->jobs, play->job);
    return job ? job->run : NULL;
}

gs_engine_event gs_play_message(gs_play *play, int rank, gs_engine_event_kind kind) {
    const gs_run *run = gs_play_run(play);
    const gs_play_rank *self = &play->ranks[rank];
    gs_engine_event event = {.kind = kind};
    size_t num_params;
    event.from = (gs_origin){.call = ++play->last_call, .who.incarnation = self->incarnation, .who.job = play->job,
                             .who.token = play->shows_tokens ? gs_launch_token_show(self->launch_token) : 0,
                             .generation = run ? (int64_t)run->generation : -1};
    play->answered = false;
    if (kind == GS_ON_HEARTBEAT || kind == GS_ON_STEP) event.from.call = 0;
    int64_t step = run ? run->step : 0;
    switch (kind) {
    case GS_ON_HELLO:
        play->rank_streams[rank] = event.from.call;
        event.hello = (gs_trainer_hello){.job = play->job_text, .incarnation = self->incarnation,
                                         .launch_token = self->launch_token, .pid = 1, .host = "h", .boot_id = "b",
                                         .params_digest = params_digest(), .data_digest = "d", .arithmetic = 1};
        break;
    case GS_ON_PARAMS:
        event.from.generation = -1;
        event.params.page.params = make_params(&num_params);
        event.params.page.num_params = num_params;
        break;
    case GS_ON_READY:
        event.ready = (gs_ready_report){.plan_hash = run ? run->plan_hash : "", .state_digest = "s", .applied_step = 0};
        break;
    case GS_ON_EXCHANGE:
        event.exchange.request = (gs_exchange_request){.tag = "world", .bytes = strdup("YQ==")};
        break;
    case GS_ON_COMM_UP: event.comm_up.backend = "play"; break;
    case GS_ON_HEARTBEAT:
        event.heartbeat = (gs_heartbeat_report){.applied_step = step, .rss_bytes = -1, .phase = "reduce"};
        break;
    case GS_ON_STEP: event.step.applied_step = step + 1; break;
    case GS_ON_FAULT: {
        static gs_fault_facts facts;
        facts = gs_fault_facts_of(GS_FAULT_TIMEOUT, 1 - rank);
        event.fault.facts = &facts;
        event.fault.text = "it did not come";
        break;
    }
    case GS_ON_SETTLE: event.settle = (gs_settle_question){.applied_step = step}; break;
    case GS_ON_CHECKPOINTED:
        event.checkpointed = (gs_save_report){.directory = "step-3"};
        event.checkpointed.found = (gs_checkpoint_report){.step = 3, .bytes = 10, .world_size = 2};
        break;
    case GS_ON_BYE:
        event.bye = (gs_bye_report){.reason = GS_BYE_OTHER, .exit_code = 75, .class = "", .error = "", .hint = "",
                                    .applied_step = step};
        break;
    case GS_ON_READY_ORDER: {
        gs_param_spec *params = make_params(&num_params);
        free(params);
        event.ready_order.order = (gs_param_order){malloc(num_params * sizeof(size_t)), num_params};
        for (size_t i = 0; i < num_params; i++) event.ready_order.order.params[i] = num_params - 1 - i;
        event.ready_order.settled = true;
        break;
    }
    case GS_ON_EXITED:
        event.from.who.incarnation = GS_PLAY_AGENT;
        event.exited = (gs_exit_report){.incarnation = self->incarnation, .exit_code = 75};
        break;
    default: abort();
    }
    return event;
}

void gs_play_say(gs_play *play, int rank, gs_engine_event_kind kind) {
    gs_engine_event event = gs_play_message(play, rank, kind);
    gs_play_hear(play, &event);
}

void gs_play_say_all(gs_play *play, gs_engine_event_kind kind) {
    for (int i = 0; i < GS_PLAY_RANKS; i++) gs_play_say(play, i, kind);
}

static void open_engine(gs_play *play) {
    uint32_t epoch = ++play->epoch;
    gs_timing timing = gs_timing_default;
    if (play->orphan_ns) timing.orphan_ns = play->orphan_ns;
    must(gs_engine_create(&play->engine, &(gs_engine_options){.timing = &timing, .checkpoints_dir = "/c",
                                                              .cluster = "c", .epoch = epoch, .life = epoch,
                                                              .first_generation = epoch * GS_GENERATION_BLOCK}));
    for (uint32_t i = 1; i <= epoch; i++) gs_engine_adopt_life(play->engine, i, i);
}

void gs_play_find_worker(gs_play *play) { gs_play_find_worker_of(play, ""); }

void gs_play_find_worker_of(gs_play *play, const char *cluster) {
    gs_engine_event event = {.kind = GS_ON_AGENT_HELLO};
    event.from = (gs_origin){.call = ++play->last_call, .who.incarnation = GS_PLAY_AGENT, .generation = -1};
    play->agent_stream = event.from.call;
    if (play->shows_key_of) event.from.who.principal = (gs_principal){.is_known = true, .name = play->shows_key_of};
    if (play->says_it_is) event.from.who.incarnation = GS_PLAY_AGENT + 1;
    event.agent_hello = (gs_agent_hello){.worker = play->says_it_is ? play->says_it_is : "w", .host = "h", .boot_id = "b", .network = "n", .build = "t", .data_root = "/",
                                         .pid = 1, .cores = 1, .num_slots = GS_PLAY_RANKS};
    event.agent_hello.seen = play->seen_by_worker;
    event.agent_hello.proven_end = play->shows_numbers_below;
    event.agent_hello.looks_out = play->looks_out;
    event.agent_hello.shows_tokens = play->shows_tokens;
    const gs_job *job = gs_job_table_get(&gs_engine_state(play->engine)->jobs, play->job);
    if (job && (job->run || *cluster)) {
        event.agent_hello.running = calloc(GS_PLAY_RANKS, sizeof *event.agent_hello.running);
        for (int i = 0; i < GS_PLAY_RANKS; i++)
            if (!play->ranks[i].is_gone) event.agent_hello.running[event.agent_hello.num_running++] = (gs_running_trainer){
                .slot = i, .pid = 1, .incarnation = play->says_it_runs ? play->says_it_runs + (uint64_t)i : play->ranks[i].incarnation,
                .job = play->job, .rank = i, .cluster = cluster, .generation = job->generation + play->ahead};
    }
    gs_play_hear(play, &event);
}

void gs_play_lose_worker(gs_play *play) {
    gs_engine_event event = {.kind = GS_ON_CALL_GONE, .from = {.generation = -1}};
    event.gone.call = play->agent_stream;
    gs_play_hear(play, &event);
}

static void end_line(gs_play *play, gs_call call, bool was_closed) {
    gs_engine_event event = {.kind = GS_ON_CALL_GONE, .from = {.generation = -1}};
    event.gone.call = call;
    event.gone.was_closed = was_closed;
    gs_play_hear(play, &event);
}

void gs_play_close_line(gs_play *play, gs_call call) { end_line(play, call, true); }

void gs_play_close_lines(gs_play *play) {
    gs_play_close_line(play, play->agent_stream);
    for (int i = 0; i < GS_PLAY_RANKS; i++) gs_play_close_line(play, play->rank_streams[i]);
}

void gs_play_silence_lines(gs_play *play) {
    end_line(play, play->agent_stream, false);
    for (int i = 0; i < GS_PLAY_RANKS; i++) end_line(play, play->rank_streams[i], false);
}

gs_job *gs_play_submit(gs_play *play, const char *spec) {
    gs_engine_event event = {.kind = GS_ON_CREATE_JOB, .from = {.call = ++play->last_call, .generation = -1}};
    event.create = (gs_create_request){.spec = decode_spec(spec), .fingerprint = ""};
    gs_play_hear(play, &event);
    const gs_job_table *jobs = &gs_engine_state(play->engine)->jobs;
    return jobs->items[jobs->count - 1];
}

static void open_with(gs_play *play, const char *spec) {
    *play = (gs_play){.now_ns = GS_NS_PER_SEC, .wall_ms = WALL_MS, .shows_tokens = true, .disk = calloc(1, sizeof *play->disk)};
    if (!play->disk) abort();
    open_engine(play);
    hear_kind(play, GS_ON_START);
    gs_play_find_worker(play);
    const gs_job *job = gs_play_submit(play, spec);
    play->job = job->id;
    snprintf(play->job_text, sizeof play->job_text, "%s", job->id_text);
    hear_kind(play, GS_ON_TURN);
    if (!gs_play_run(play)) abort();
}

void gs_play_open(gs_play *play) { open_with(play, spec_text); }
void gs_play_open_alone(gs_play *play) { open_with(play, alone_text); }

void gs_play_train(gs_play *play) {
    gs_play_say_all(play, GS_ON_HELLO);
    gs_play_say(play, 0, GS_ON_PARAMS);
    gs_play_say_all(play, GS_ON_READY);
    gs_play_say_all(play, GS_ON_COMM_UP);
    gs_play_say_all(play, GS_ON_STEP);
    if (gs_play_run(play)->phase != GS_RUN_TRAINING) abort();
}

int gs_play_set_up_training(void **state) {
    gs_play *play = calloc(1, sizeof *play);
    if (!play) abort();
    gs_play_open(play);
    gs_play_train(play);
    *state = play;
    return 0;
}

int gs_play_tear_down(void **state) {
    gs_play_close(*state);
    free(*state);
    return 0;
}

void gs_play_reopen_without_worker(gs_play *play) {
    gs_job *job = gs_job_table_get(&gs_engine_state(play->engine)->jobs, play->job), *again = NULL;
    gs_job_documents documents = gs_job_documents_of(&job->spec);
    char *text = NULL;
    must(gs_job_to_record(&text, job, &documents, play->now_ns));
    gs_job_documents_release(&documents);
    gs_engine_destroy(play->engine);
    play->disk->count = 0;
    open_engine(play);
    must(gs_job_from_record(&again, &documents, play->job, text, play->now_ns, play->wall_ms));
    gs_job_documents_release(&documents);
    free(text);
    for (int i = 0; i < play->num_ended; i++) {
        gs_job *ended = gs_job_create(1000 + (uint64_t)i, &again->spec);
        if (!ended) abort();
        ended->state = GS_JOB_SUCCEEDED;
        gs_engine_adopt_job(play->engine, ended);
    }
    gs_engine_adopt_job(play->engine, again);
    hear_kind(play, GS_ON_START);
}

void gs_play_reopen(gs_play *play) {
    gs_play_reopen_without_worker(play);
    gs_play_find_worker(play);
}

void gs_play_close(gs_play *play) {
    gs_engine_destroy(play->engine);
    free(play->disk);
}

static void describe_member(gs_strbuf *out, const gs_member *member) {
    gs_strbuf_printf(out,
                     " [%s rank %d step %lld%s%s%s stream %d settles %d listed %zu params %zu bye %d phase %s digest %s]",
                     gs_member_stage_name(member->stage), member->rank, (long long)member->applied_step,
                     member->complete ? " complete" : "", member->kill_sent ? " killed" : "",
                     member->was_up ? " was up" : "", member->stream.call != 0, member->settle.call != 0,
                     member->listed.num_params, member->num_params, (int)member->bye.reason, member->phase,
                     member->state_digest);
}

static void describe_run(gs_strbuf *out, const gs_run *run) {
    gs_strbuf_printf(out, "; %s generation %u base %lld step %lld cause %d by %d plan %s next %llx%s%s",
                     gs_run_phase_name(run->phase), run->generation, (long long)run->base_step, (long long)run->step,
                     run->cause.set, run->cause.member, run->plan_hash, (unsigned long long)run->next.digest,
                     run->draining ? " draining" : "", run->suspicious ? " suspicious" : "");
    for (const gs_exchange_round *round = run->exchanges; round; round = round->next)
        gs_strbuf_printf(out, " round %s %d", round->tag, round->num_arrived);
    for (int i = 0; i < run->num_members; i++) describe_member(out, &run->members[i]);
}

char *gs_play_describe(const gs_play *play) {
    gs_strbuf out = {0};
    const gs_state *state = gs_engine_state(play->engine);
    for (size_t i = 0; i < state->jobs.count; i++) {
        const gs_job *job = state->jobs.items[i];
        gs_strbuf_printf(&out, "job %s %s step %lld restarts %lld generation %u checkpoints", job->id_text,
                         gs_job_state_name(job->state), (long long)job->step, (long long)job->restarts,
                         job->generation);
        for (size_t k = 0; k < job->checkpoints.count; k++)
            gs_strbuf_printf(&out, " %s:%d", job->checkpoints.items[k].directory, (int)job->checkpoints.items[k].state);
        gs_strbuf_printf(&out, " order %zu", job->observed_order.count);
        if (job->run) describe_run(&out, job->run);
    }
    for (size_t i = 0; i < state->agents.count; i++) {
        const gs_agent *agent = state->agents.items[i];
        gs_strbuf_printf(&out, "; worker %s %d", agent->name, gs_agent_is_connected(agent));
        for (int slot = 0; slot < agent->num_slots; slot++)
            gs_strbuf_printf(&out, " %llx", (unsigned long long)agent->slots[slot].incarnation);
    }
    return gs_strbuf_take(&out);
}
