#include "coordinator/engine/requests.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/engine/adoption.h"
#include "coordinator/engine/base/checkpoints.h"
#include "coordinator/engine/base/late_answers.h"
#include "coordinator/engine/base/moves.h"
#include "coordinator/engine/release.h"
#include "coordinator/engine/retention.h"
#include "coordinator/engine/runs/farewells.h"
#include "coordinator/engine/runs/replan.h"
#include "coordinator/engine/runs/run_life.h"
#include "coordinator/engine/stops.h"
#include "core/clock.h"
#include "rpc/schema/job_plan.h"

#define MAX_GRACE_SECONDS 86400
#define LOOK_NS (5 * GS_NS_PER_SEC)  // for a disk; who asks over HTTP is told after 10 s that nobody answers

static void write_job(gs_engine *engine, gs_job *job, uint64_t ticket, const char *key) {
    const gs_request_key *found = key ? gs_request_keys_find(&engine->state.keys, key, 0) : NULL;
    const gs_request_key *kept = found ? gs_mind_copy(engine, found, sizeof *found) : NULL;
    gs_effect *effect = gs_job_write(engine, job);
    effect->ticket = ticket;
    effect->write.key = kept;
}

void gs_records_flush(gs_engine *engine, bool all) {
    for (size_t i = 0; i < engine->state.jobs.count; i++) {
        gs_job *job = engine->state.jobs.items[i];
        bool due = all || engine->state.now_ns - job->dirty_since_ns >= engine->state.timing.flush_ns;
        if (job->dirty && due && !job->held_back) write_job(engine, job, 0, NULL);
    }
}

static void refuse_ambiguous(gs_engine *engine, gs_call call, gs_status status, const char *text) {
    const char *asked = gs_mind_text(engine, "%s", text);
    gs_effect *effect = gs_reply_with(engine, call, GS_REPLY_REFUSAL, NULL);
    effect->reply.status = status;
    effect->reply.code = "ambiguous";
    effect->reply.job_text = asked;
}

static gs_status find_job(gs_engine *engine, gs_job **job, const gs_engine_event *event, const char *text) {
    size_t candidates = 0;
    gs_status status = gs_job_table_find(&engine->state.jobs, job, &candidates, text);
    if (!status.code || !event->from.call) return status;
    if (candidates) refuse_ambiguous(engine, event->from.call, status, text);
    else if (status.code == GS_FAILED_PRECONDITION)
        gs_reply_refusal(engine, event->from.call, status, "unreadable", GS_UNREADABLE_HINT);
    else gs_reply_error(engine, event->from.call, status);
    return status;
}

static void refuse_unrecorded(gs_engine *engine, gs_call call, const gs_job *job) {
    gs_reply_refusal(engine, call, gs_error(GS_FAILED_PRECONDITION, "job %s is not recorded yet", job->id_text),
                     "in_flight", "ask again in a moment");
}

// Answers by itself and returns true when the key has been used.
static bool replay_key(gs_engine *engine, gs_call call, const gs_create_request *request) {
    gs_request_key *known = gs_request_keys_find(&engine->state.keys, request->key, engine->state.now_ns);
    if (!known) return false;
    if (strcmp(known->fingerprint, request->fingerprint) != 0) {
        gs_reply_refusal(engine, call, gs_error(GS_INVALID_ARGUMENT, "idempotency key used with another body"),
                         "idempotency_mismatch", "use a new key for a new request");
        return true;
    }
    if (known->in_flight) {
        gs_reply_refusal(engine, call, gs_error(GS_FAILED_PRECONDITION, "the first request is still in flight"),
                         "in_flight", "ask again in a moment");
        return true;
    }
    gs_job *job = gs_job_table_get(&engine->state.jobs, known->job);
    // Whoever sends a request again does not want a second job. Only an operator's deletion frees the key.
    if (!job && gs_job_table_is_gone(&engine->state.jobs, known->job, true)) {
        char id_text[GS_JOB_ID_LEN];
        gs_job_id_format(id_text, known->job);
        gs_reply_refusal(engine, call,
                         gs_error(GS_FAILED_PRECONDITION, "this key made job %s, which has ended and is forgotten", id_text),
                         "wrong_state", "use a new key for another job");
        return true;
    }
    if (!job) {
        gs_reply_refusal(engine, call,
                         gs_error(GS_FAILED_PRECONDITION, "the record of the job that this key made cannot be read"),
                         "unreadable", "repair the record, or use a new key for another job");
        return true;
    }
    if (gs_job_is_unrecorded(job)) refuse_unrecorded(engine, call, job);  // being adopted
    else gs_reply_with(engine, call, GS_REPLY_JOB, job)->reply.replayed = true;
    return true;
}

// Answers by itself and returns false when the job cannot be.
static bool check_new_job(gs_engine *engine, gs_call call, const gs_job_spec *spec) {
    if (engine->state.draining) {
        gs_reply_refusal(engine, call, gs_error(GS_UNAVAILABLE, "the coordinator is going down"), "draining",
                         "the coordinator is going down; try again later");
        return false;
    }
    const gs_job *other = spec->name[0] ? gs_job_table_live_name(&engine->state.jobs, spec->name) : NULL;
    if (!other) return true;
    gs_reply_refusal(engine, call,
                     gs_error(GS_ALREADY_EXISTS, "job %s is called \"%s\" already", other->id_text, spec->name),
                     "conflict", "stop that job or choose another name");
    return false;
}

static gs_job *make_job(gs_engine *engine, gs_job_spec *spec) {
    uint64_t id;
    do id = gs_job_id_make(engine->state.wall_ms, gs_mind_draw(engine));
    while (gs_job_table_get(&engine->state.jobs, id));
    char id_text[GS_JOB_ID_LEN];
    gs_job_id_format(id_text, id);
    if (!spec->name[0]) snprintf(spec->name, sizeof spec->name, "job-%s", id_text + 2);
    gs_job *job = gs_job_create(id, spec);
    if (!job) return NULL;
    job->created_ms = job->state_since_ms = job->waiting_since_ms = engine->state.wall_ms;
    job->waiting_since_ns = job->aged_ns = engine->state.now_ns;
    job->held_back = true;  // not scheduled before it is durable
    job->checkpoints.is_found = true;
    return job;
}

static gs_status create_job(gs_engine *engine, const gs_origin *from, const gs_create_request *request) {
    gs_status no_memory = gs_error(GS_RESOURCE_EXHAUSTED, "create job: out of memory");
    char *key = request->key ? strdup(request->key) : NULL;
    gs_job *job = request->key && !key ? NULL : make_job(engine, request->spec);
    if (!job) {
        free(key);
        return no_memory;
    }
    gs_late_answer *answer = gs_late_answer_add(engine, GS_LATE_CREATE, from->call, job);
    answer->key = key;
    gs_job_table_add(&engine->state.jobs, job);
    if (key) {
        gs_request_keys_add(&engine->state.keys, key, request->fingerprint, job->id,
                            engine->state.now_ns + GS_KEY_LIFE_NS)->in_flight = true;
    }
    gs_mind_do(engine, GS_DO_ADD_JOB)->job = job;
    gs_job_move(engine, job, GS_JOB_QUEUED, "WaitingForWorkers", "accepted");
    gs_note_asker(engine, from, job, "the creation of", job->id_text);
    write_job(engine, job, answer->ticket, key);
    return gs_ok();
}

void gs_on_create_job(gs_engine *engine, gs_engine_event *event) {
    const gs_create_request *request = &event->create;
    gs_call call = event->from.call;
    event->was_admitted = true;
    if (request->key && replay_key(engine, call, request)) return;
    if (!check_new_job(engine, call, request->spec)) return;
    if (request->dry_run) {
        if (call) gs_reply_with(engine, call, GS_REPLY_DRY_RUN, NULL)->reply.spec = request->spec;
        return;
    }
    gs_status status = gs_retention_check(engine, request->key != NULL);
    if (!status.code) status = create_job(engine, &event->from, request);
    if (status.code) gs_reply_error(engine, call, status);
}

static gs_status being_deleted(const gs_job *job) {
    return gs_error(GS_FAILED_PRECONDITION, "job %s is being deleted", job->id_text);
}

void gs_on_stop_job(gs_engine *engine, gs_engine_event *event) {
    const gs_stop_request *request = &event->stop;
    gs_call call = event->from.call;
    gs_job *job = NULL;
    double grace_seconds = request->grace_seconds;
    if (grace_seconds < 0) grace_seconds = gs_seconds_of(engine->state.timing.drain_ns);
    if (find_job(engine, &job, event, request->job).code) return;
    // Until it is known whether there is such a job at all, nothing else may be written of it.
    if (gs_job_is_unrecorded(job)) {
        refuse_unrecorded(engine, call, job);
        return;
    }
    if (!(grace_seconds <= MAX_GRACE_SECONDS)) {
        gs_reply_error(engine, call, gs_error(GS_INVALID_ARGUMENT, "grace_seconds: must be between 0 and %d",
                                              MAX_GRACE_SECONDS));
        return;
    }
    event->was_admitted = true;
    if (gs_job_is_being_deleted(job)) {
        gs_reply_error(engine, call, being_deleted(job));
        return;
    }
    // Idempotent; that it has ended is told when the disk knows it.
    gs_late_answer *answer = gs_late_answer_add(engine, GS_LATE_STOP, call, job);
    if (!gs_job_state_terminal(job->state) && (!job->stop_asked || request->now)) gs_note_asker(engine, &event->from, job, "a stop of", job->id_text);
    if (!gs_job_state_terminal(job->state))
        gs_job_stop(engine, job, request->now, request->outcome, "StoppedByUser", grace_seconds);
    answer->shows_end = gs_job_state_terminal(job->state);
    write_job(engine, job, answer->ticket, NULL);
}

void gs_on_delete_job(gs_engine *engine, gs_engine_event *event) {
    const gs_delete_request *request = &event->remove;
    gs_call call = event->from.call;
    gs_job *job = NULL;
    if (find_job(engine, &job, event, request->job).code) return;
    if (!gs_job_state_terminal(job->state)) {
        gs_reply_refusal(engine, call, gs_error(GS_FAILED_PRECONDITION, "job %s is %s", job->id_text,
                                                gs_job_state_name(job->state)),
                         "wrong_state", "stop the job first");
        return;
    }
    // Asked again, for its answer was lost, a name would delete the next one that had it.
    size_t candidates = 0;
    gs_status sole = gs_job_table_check_sole(&engine->state.jobs, &candidates, request->job);
    if (sole.code) {
        refuse_ambiguous(engine, call, sole, request->job);
        return;
    }
    gs_job_delete(engine, job, call, request->purge, GS_FORGET_ASKED);
    event->was_admitted = true;
    gs_note_asker(engine, &event->from, NULL, "the deletion of", job->id_text);  // its own events go with it
}

static void refuse_replan(gs_engine *engine, gs_call call, gs_status status, const char *hint) {
    gs_reply_refusal(engine, call, status, "wrong_state", hint);
}

void gs_on_replan_job(gs_engine *engine, gs_engine_event *event) {
    gs_call call = event->from.call;
    gs_job *job = NULL;
    if (find_job(engine, &job, event, event->replan.job).code) return;
    if (gs_job_plan_is_fixed(&job->spec)) {
        refuse_replan(engine, call,
                      gs_error(GS_FAILED_PRECONDITION,
                               "job %s is sharded: who owns what follows from its plan, which stays while it trains",
                               job->id_text),
                      "it keeps the plan that it began with");
        return;
    }
    if (!job->run || job->run->phase != GS_RUN_TRAINING) {
        refuse_replan(engine, call, gs_error(GS_FAILED_PRECONDITION, "job %s is %s: %s", job->id_text,
                                             gs_job_state_name(job->state), job->reason),
                      "a plan changes while ranks train");
        return;
    }
    if (!job->observed_order.params && !job->ready_order.params) {
        refuse_replan(engine, call,
                      gs_error(GS_FAILED_PRECONDITION, "job %s: no order of gradients has been observed yet",
                               job->id_text),
                      "the order is known after the first step");
        return;
    }
    event->was_admitted = true;
    gs_note_asker(engine, &event->from, job, "a new plan of", job->id_text);
    gs_status status = gs_replan_by_operator(engine, job);
    if (status.code) gs_reply_error(engine, call, status);
    else write_job(engine, job, gs_late_answer_add(engine, GS_LATE_REPLAN, call, job)->ticket, NULL);
}

// Of trainers of a job that is not known here (NULL), nothing is recorded.
static void answer_release(gs_engine *engine, gs_call call, gs_job *job) {
    if (job) write_job(engine, job, gs_late_answer_add(engine, GS_LATE_RELEASE, call, job)->ticket, NULL);
    else gs_reply_ok(engine, call);
}

static void refuse_release(gs_engine *engine, gs_call call, gs_status status) {
    if (status.code == GS_FAILED_PRECONDITION)
        gs_reply_refusal(engine, call, status, "wrong_state", "stop the job to end ranks that are heard");
    else gs_reply_error(engine, call, status);
}

// Later checkpoints are lost for it: not those of a run that goes on.
static gs_status check_go_back(const gs_engine *engine, const gs_job *job, int64_t step) {
    if (gs_job_is_being_deleted(job)) return being_deleted(job);
    GS_TRY(gs_checkpoints_find_step(job, step));
    if (job->run && !gs_release_fails(engine, job->run))
        return gs_error(GS_FAILED_PRECONDITION, "job %s is %s, and goes on with the ranks that are heard", job->id_text,
                        gs_job_state_name(job->state));
    if (!job->run && gs_job_state_terminal(job->state))
        return gs_error(GS_FAILED_PRECONDITION, "job %s is %s", job->id_text, gs_job_state_name(job->state));
    return gs_ok();
}

// Nor are they for one that has gone: the disk is asked first.
static void ask_to_go_back(gs_engine *engine, gs_engine_event *event, gs_job *job) {
    gs_call call = event->from.call;
    gs_status status = check_go_back(engine, job, event->release.step);
    if (status.code) {
        refuse_release(engine, call, status);
        return;
    }
    gs_late_answer *answer = gs_late_answer_add(engine, GS_LATE_GO_BACK, call, job);
    event->was_admitted = true;
    gs_note_asker(engine, &event->from, job, "going back of", job->id_text);
    answer->step = event->release.step;
    answer->until_ns = engine->state.now_ns + LOOK_NS;
    gs_checkpoints_check(engine, job);
}

static void go_back(gs_engine *engine, gs_late_answer *answer, gs_status status) {
    gs_job *job = gs_job_table_get(&engine->state.jobs, answer->job);
    gs_call call = gs_kept_take(engine, &answer->held);
    int64_t step = answer->step;
    gs_late_answer_bury(engine, answer);
    if (!call) return;  // nobody waits for it any more
    if (!status.code) status = job ? check_go_back(engine, job, step) : gs_error(GS_NOT_FOUND, "the job has been deleted");
    if (status.code) {
        refuse_release(engine, call, status);
        return;
    }
    if (job->run) gs_release_members(engine, job->run);
    gs_checkpoints_go_back(job, step);
    engine->state.schedule_needed = true;
    gs_note_add(engine, job, NULL, GS_SEVERITY_WARNING, "Released",
                "an operator has job %s go on from step %lld; later checkpoints are removed once its ranks hold that", job->id_text, (long long)step);
    answer_release(engine, call, job);
}

void gs_releases_checked(gs_engine *engine, const gs_completion *done) {
    gs_status status = done->status;
    if (status.code)
        status = gs_error(GS_UNAVAILABLE, "the disk of its checkpoints does not answer, and nothing is removed: %s", done->status.message);
    for (gs_late_answer *answer; (answer = gs_late_answer_take_held(engine, done->job));) go_back(engine, answer, status);
}

void gs_releases_tick(gs_engine *engine) {
    gs_status status = gs_error(GS_UNAVAILABLE, "no answer from the disk of its checkpoints, and nothing is removed");
    for (gs_late_answer *answer; (answer = gs_late_answer_take_held(engine, 0));) go_back(engine, answer, status);
}

void gs_on_release_job(gs_engine *engine, gs_engine_event *event) {
    gs_call call = event->from.call;
    uint64_t id = 0;
    const char *text = event->release.job ? event->release.job : "";
    bool goes_back = event->release.step != 0;  // of a job that is known here
    int count = !goes_back && gs_job_id_parse(&id, text) ? gs_release_unknown(engine, id) : 0;
    gs_job *job = NULL;
    if (count == 0 && find_job(engine, &job, event, text).code) return;
    if (job && gs_job_is_unrecorded(job)) {
        refuse_unrecorded(engine, call, job);
        return;
    }
    if (job && gs_job_is_being_deleted(job)) {
        gs_reply_error(engine, call, being_deleted(job));
        return;
    }
    if (goes_back) {
        ask_to_go_back(engine, event, job);
        return;
    }
    if (job && job->run) count = gs_release_members(engine, job->run);
    bool gives_up_disk = job && gs_checkpoints_give_up_disk(job);
    if (count == 0 && !gives_up_disk) {
        refuse_release(engine, call,
                       gs_error(GS_FAILED_PRECONDITION, "job %s has no rank that is out of reach, and waits for no checkpoints",
                                job->id_text));
        return;
    }
    event->was_admitted = true;
    gs_note_asker(engine, &event->from, job, "a release of", job ? job->id_text : text);
    if (gives_up_disk) {
        engine->state.schedule_needed = true;
        gs_note_add(engine, job, NULL, GS_SEVERITY_WARNING, "Released",
                    "an operator has job %s start from step %lld (-1: the beginning), whatever the disk of its checkpoints has besides",
                    job->id_text, (long long)gs_checkpoints_newest_step(&job->checkpoints));
    } else {
        gs_note_add(engine, job, NULL, GS_SEVERITY_WARNING, "Released", "an operator released %d trainers of job %s", count,
                    job ? job->id_text : text);
    }
    answer_release(engine, call, job);
}

static void drop_job(gs_engine *engine, gs_job *job, bool purges) {
    gs_job_table_unlink(&engine->state.jobs, job);
    if (job->run) gs_run_release(engine, job->run);
    gs_effect *effect;
    if (purges) {
        effect = gs_mind_do(engine, GS_DO_PURGE);
        effect->job = job;
        effect->job_id = job->id;
    }
    effect = gs_mind_do(engine, GS_DO_DROP_JOB);
    effect->job = job;
    effect->job_id = job->id;
    gs_mind_bury(engine, job, (void (*)(void *))gs_job_destroy);
}

// What the request changed is written behind, as soon as the store can be written.
static void write_again(gs_engine *engine, gs_job *job) {
    int64_t since_ns = engine->state.now_ns + GS_NS_PER_SEC;
    if (job->dirty && job->dirty_since_ns <= since_ns) return;
    job->dirty = true;
    job->dirty_since_ns = since_ns;
}

static void answer_create(gs_engine *engine, gs_late_answer *answer, gs_job *job, gs_status status) {
    gs_request_key *key = answer->key ? gs_request_keys_find(&engine->state.keys, answer->key, 0) : NULL;
    if (key) key->in_flight = false;
    if (status.code) {
        if (answer->key) gs_request_keys_remove(&engine->state.keys, answer->key);
        if (job) drop_job(engine, job, false);
    } else if (job) {
        job->held_back = false;
        engine->state.schedule_needed = true;
    }
}

// As a creation that is refused: its trainers are whose they were.
static gs_status answer_adopt(gs_engine *engine, gs_job *job, gs_status status) {
    if (!status.code) return gs_adoption_stored(engine, job);
    gs_note_add(engine, NULL, NULL, GS_SEVERITY_WARNING, "NotAdopted", "job %s: %s", job->id_text, status.message);
    drop_job(engine, job, false);
    return status;
}

// It has ended since it was written: who asked is told so, and that has to be durable, too.
static bool ends_since(const gs_late_answer *answer, const gs_job *job) {
    bool shows_job = answer->kind == GS_LATE_STOP || answer->kind == GS_LATE_ADOPT_AGAIN;
    return job && shows_job && !answer->shows_end && gs_job_state_terminal(job->state);
}

// False: nothing of it is written any more.
static bool write_end(gs_engine *engine, gs_late_answer *answer, gs_job *job) {
    if (gs_job_is_being_deleted(job)) return false;
    answer->shows_end = true;
    gs_late_answer_wait_again(engine, answer);
    write_job(engine, job, answer->ticket, NULL);
    return true;
}

void gs_on_job_stored(gs_engine *engine, const gs_completion *done) {
    gs_job *job = gs_job_table_get(&engine->state.jobs, done->job);
    gs_late_answer *answer = done->ticket ? gs_late_answer_take(engine, done->ticket) : NULL;
    if (job && job->run && !done->status.code) gs_run_recorded(engine, job->run);
    if (!answer) {
        if (done->status.code && job) write_again(engine, job);
        if (job) gs_farewells_stored(engine, job, done);
        return;
    }
    gs_status status = done->status;
    if (!status.code && ends_since(answer, job)) {
        if (write_end(engine, answer, job)) return;
        status = being_deleted(job);
    }
    gs_call call = gs_kept_take(engine, &answer->held);
    if (answer->kind == GS_LATE_CREATE) answer_create(engine, answer, job, done->status);
    else if (answer->kind == GS_LATE_ADOPT && job) status = answer_adopt(engine, job, status);
    else if (done->status.code && job) write_again(engine, job);
    if (status.code) gs_reply_not_stored(engine, call, status);
    else if (answer->kind == GS_LATE_RELEASE) gs_reply_ok(engine, call);
    else if (call) gs_reply_with(engine, call, answer->kind == GS_LATE_REPLAN ? GS_REPLY_REPLAN : GS_REPLY_JOB, job);
    gs_late_answer_bury(engine, answer);
}

void gs_on_job_deleted(gs_engine *engine, const gs_completion *done) {
    gs_job *job = gs_job_table_get(&engine->state.jobs, done->job);
    gs_late_answer *answer = gs_late_answer_take(engine, done->ticket);
    if (!answer) return;
    gs_call call = gs_kept_take(engine, &answer->held);
    if (done->status.code) {
        if (job) {
            job->held_back = gs_late_answer_waits(engine, job);  // another deletion is on its way
            write_again(engine, job);
        }
        gs_reply_not_stored(engine, call, done->status);
    } else {
        if (answer->why == GS_FORGET_ASKED) gs_request_keys_remove_job(&engine->state.keys, done->job);
        if (job) {
            const gs_tombstone tombstone = gs_job_tombstone(engine, job);
            gs_job_table_bury(&engine->state.jobs, &tombstone);
            drop_job(engine, job, answer->purges);
            if (answer->why != GS_FORGET_ASKED) gs_retention_forgot(engine, answer->why);
        }
        gs_reply_ok(engine, call);
    }
    gs_late_answer_bury(engine, answer);
}
