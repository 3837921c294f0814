#include "coordinator/observe/timelines.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/model/run.h"
#include "coordinator/observe/events.h"
#include "coordinator/observe/held.h"
#include "coordinator/observe/job_sight.h"
#include "coordinator/observe/recall.h"
#include "core/clock.h"

typedef enum rank_state { RANK_UNWANTED = 0, RANK_WAITED_FOR, RANK_ANSWERED, RANK_AWAY } rank_state;

struct gs_timeline_asker {
    gs_observer *observer;
    gs_rpc_call_handle *call;
    gs_held held;
    uint64_t job;
    uint32_t generation;
    int64_t request, deadline_ns;
    int num_ranks;
    rank_state *ranks;  // owned
    gs_timeline_asker *next;
};

// What a rank left behind when it ended.
struct gs_left_timelines {
    int num_ranks;
    char **pages;  // owned; JSON text of {rank, steps}, NULL: none
    size_t bytes;  // of them
};

static bool read_whole(int64_t *value, const char **text) {
    if (!isdigit((unsigned char)**text)) return false;
    *value = 0;
    int digits = 0;
    for (; isdigit((unsigned char)**text); ++*text) {
        if (++digits > 15) return false;
        *value = *value * 10 + (**text - '0');
    }
    return true;
}

gs_status gs_timeline_range_parse(gs_timeline_range *range, const char *text) {
    *range = (gs_timeline_range){.last = 3};
    if (!text) return gs_ok();
    const char *at = text;
    bool good;
    if (!strncmp(at, "last:", 5)) {
        at += 5;
        good = read_whole(&range->last, &at) && range->last >= 1 && range->last <= 1024;
    } else {
        range->last = 0;
        good = read_whole(&range->from_step, &at);
        range->to_step = range->from_step;
        if (good && *at == '-') {
            at++;
            good = read_whole(&range->to_step, &at) && range->to_step >= range->from_step;
        }
    }
    if (good && !*at) return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT,
                    "steps: \"%.40s\" is neither last:N (1 to 1024) nor FROM-TO nor a step", text);
}

static void remove_asker(gs_timeline_asker *asker) {
    gs_timeline_asker **link = &asker->observer->timeline_askers;
    while (*link != asker) link = &(*link)->next;
    *link = asker->next;
    free(asker->ranks);
    free(asker);
}

static void forget_asker(void *owner, gs_rpc_call_handle *call) {
    (void)call;
    remove_asker(owner);
}

// Of each bucket, how many of its tensors travel as less than they are; nothing where none does.
static void describe_compression(gs_json *plan, const gs_json *buckets) {
    gs_json *list = gs_json_new_array();
    int64_t in_all = 0;
    for (size_t b = 0; b < gs_json_count(buckets); b++) {
        int64_t count = gs_json_int_or(gs_json_at(buckets, b), "compressed_tensors", 0);
        gs_json_push(list, gs_json_new_int(count));
        in_all += count;
    }
    if (in_all > 0) gs_json_set(plan, "compressed_tensors", list);
    else gs_json_release(list);
}

static void describe_plan(gs_json *item, const gs_job *job) {
    const gs_json *shown = job->sight->documents.plan;
    if (!shown) return;
    gs_json *plan = gs_json_new_object();
    const char *hash = gs_json_string_or(shown, "hash", "");
    gs_digest digest;
    gs_json_set_int(plan, "revision", gs_json_int_or(shown, "revision", 0));
    gs_json_set_string(plan, "hash", hash);
    if (gs_digest_parse(&digest, hash)) gs_json_set_u64(plan, "digest", gs_digest_fold(digest));
    gs_json_set_int(plan, "num_buckets", (int64_t)gs_json_count(gs_json_get(shown, "buckets")));
    char hook[48];
    gs_job_spec_hook_name(hook, sizeof hook, &job->spec);
    gs_json_set_string(plan, "hook", hook);
    describe_compression(plan, gs_json_get(shown, "buckets"));
    gs_json_set(item, "plan", plan);
}

static const char *why_missing(rank_state state) {
    return state == RANK_AWAY ? "not connected" : "did not answer in time";
}

static gs_json *describe_rank(const gs_job *job, int rank, rank_state state) {
    gs_json *item = gs_json_new_object();
    gs_json_set_int(item, "rank", rank);
    const gs_json *ended = gs_json_at(job->sight->documents.final_workers, (size_t)rank);
    const gs_member *member = gs_run_member_of_rank(job->run, rank);
    gs_json_set_string(item, "worker", member ? member->worker : gs_json_string_or(ended, "worker", ""));
    gs_json_set_string(item, "host", member ? member->host : gs_json_string_or(ended, "host", ""));
    if (member) gs_json_set_string(item, "boot_id", member->boot_id);
    gs_json_set_bool(item, "answered", state == RANK_ANSWERED);
    if (state != RANK_ANSWERED) gs_json_set_string(item, "reason", why_missing(state));
    return item;
}

// The last item of a stream. `ranks` NULL: of a job that has ended; those that left pages answered.
static gs_json *describe(const gs_job *job, const rank_state *ranks, int num_ranks) {
    gs_json *item = gs_json_new_object(), *list = gs_json_new_array();
    gs_json_set_bool(item, "end", true);
    gs_json_set_string(item, "job", job->id_text);
    gs_json_set_string(item, "state", gs_job_state_name(gs_sight_state(job)));
    gs_json_set_int(item, "generation", job->generation);
    gs_json_set_int(item, "step", job->step);
    describe_plan(item, job);
    for (int i = 0; i < num_ranks; i++) {
        if (ranks[i] != RANK_UNWANTED) gs_json_push(list, describe_rank(job, i, ranks[i]));
    }
    gs_json_set(item, "ranks", list);
    return item;
}

static void finish(gs_timeline_asker *asker) {
    const gs_job *job = gs_job_table_get(&asker->observer->state->jobs, asker->job);
    if (!job) {
        gs_rpc_end(asker->call, gs_error(GS_NOT_FOUND, "the job was deleted"));
    } else {
        gs_rpc_end(asker->call, gs_rpc_item(asker->call, describe(job, asker->ranks, asker->num_ranks)));
    }
    remove_asker(asker);
}

static bool waits(const gs_timeline_asker *asker) {
    for (int i = 0; i < asker->num_ranks; i++) {
        if (asker->ranks[i] == RANK_WAITED_FOR) return true;
    }
    return false;
}

// "0,3"; NULL: all. False: no list of ranks below num_ranks.
static bool choose_ranks(rank_state *ranks, int num_ranks, const char *list) {
    for (int i = 0; i < num_ranks && !list; i++) ranks[i] = RANK_WAITED_FOR;
    if (list && !*list) return false;
    // A job that never had ranks has nothing to show, whichever was asked for.
    while (num_ranks && list && *list) {
        int64_t rank;
        if (!read_whole(&rank, &list) || rank >= num_ranks) return false;
        ranks[rank] = RANK_WAITED_FOR;
        if (*list == ',' && list[1]) list++;
        else if (*list) return false;
    }
    return true;
}

static void ask_ranks(gs_timeline_asker *asker, gs_run *run, const gs_timeline_range *range) {
    int wanted = 0;
    for (int i = 0; i < asker->num_ranks; i++) wanted += asker->ranks[i] == RANK_WAITED_FOR;
    for (int i = 0; i < asker->num_ranks; i++) {
        if (asker->ranks[i] != RANK_WAITED_FOR) continue;
        gs_member *member = gs_run_member_of_rank(run, i);
        gs_json *item = gs_json_new_object();
        gs_json_set_string(item, "type", "send_timeline");
        gs_json_set_int(item, "request", asker->request);
        if (range->last) gs_json_set_int(item, "last", range->last);
        gs_json_set_int(item, "from_step", range->from_step);
        gs_json_set_int(item, "to_step", range->to_step);
        gs_json_set_int(item, "max_rows", GS_TIMELINE_ROWS / wanted);
        if (!member) gs_json_release(item);
        if (!member || !asker->observer->send(asker->observer->send_ctx, member->stream.call, item)) asker->ranks[i] = RANK_AWAY;
    }
}

static gs_status ask(gs_observer *observer, gs_rpc_call_handle *call, gs_job *job,
                     rank_state *ranks, const gs_timeline_range *range) {
    int num_askers = 0;
    for (gs_timeline_asker *at = observer->timeline_askers; at; at = at->next) num_askers++;
    gs_timeline_asker *asker =
        num_askers < GS_TIMELINE_MAX_ASKERS ? calloc(1, sizeof *asker) : NULL;
    if (!asker) observer->limits_reached[GS_LIMIT_TIMELINES]++;
    if (!asker)
        return gs_error(GS_RESOURCE_EXHAUSTED, "timelines: %d are being made already", num_askers);
    *asker = (gs_timeline_asker){.observer = observer,
                                 .call = call,
                                 .job = job->id,
                                 .generation = job->run->generation,
                                 .request = ++observer->timeline_requests,
                                 .deadline_ns = gs_now_ns() + GS_TIMELINE_WAIT_NS,
                                 .num_ranks = job->run->num_members,
                                 .ranks = ranks,
                                 .next = observer->timeline_askers};
    observer->timeline_askers = asker;
    gs_held_keep(&asker->held, call, forget_asker, asker);
    ask_ranks(asker, job->run, range);
    if (!waits(asker)) finish(asker);
    return gs_ok();
}

// A job without running ranks: what they left behind.
static void show_left(gs_rpc_call_handle *call, const gs_job *job, rank_state *ranks, int num_ranks) {
    const gs_left_timelines *left = job->sight->left;
    gs_status kept = gs_ok();
    for (int i = 0; i < num_ranks && !kept.code; i++) {
        const char *text = left && i < left->num_ranks ? left->pages[i] : NULL;
        gs_json *page = NULL;
        if (ranks[i] == RANK_UNWANTED) continue;
        ranks[i] = RANK_AWAY;
        gs_status status = text ? gs_json_parse(&page, text, strlen(text)) : gs_error(GS_NOT_FOUND, "none");
        if (status.code) continue;
        ranks[i] = RANK_ANSWERED;
        kept = gs_rpc_item(call, page);
    }
    if (!kept.code) kept = gs_rpc_item(call, describe(job, ranks, num_ranks));
    gs_rpc_end(call, kept);
}

void gs_get_job_timeline(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                         const gs_json *request) {
    (void)peer;
    gs_observer *observer = ctx;
    gs_job *job = NULL;
    gs_json *details = NULL;
    gs_timeline_range range;
    gs_status status = gs_observer_find_job(observer, &job, &details, request);
    if (!status.code && gs_recall_record(observer, job, gs_get_job_timeline, call, request)) return;
    if (!status.code)
        status = gs_timeline_range_parse(&range, gs_json_string_or(request, "steps", NULL));
    bool live = !status.code && job->run && job->run->phase == GS_RUN_TRAINING;
    int num_ranks = 0;
    if (live) num_ranks = job->run->num_members;
    else if (!status.code) num_ranks = (int)gs_json_count(job->sight->documents.final_workers);
    if (!status.code && !live && job->sight->left && job->sight->left->num_ranks > num_ranks)
        num_ranks = job->sight->left->num_ranks;
    rank_state *ranks = calloc((size_t)num_ranks + 1, sizeof *ranks);
    if (!status.code && !ranks)
        status = gs_error(GS_RESOURCE_EXHAUSTED, "timelines: out of memory");
    if (!status.code && !choose_ranks(ranks, num_ranks, gs_json_string_or(request, "ranks", NULL)))
        status = gs_error(GS_INVALID_ARGUMENT, "ranks: numbers from 0 to %d, separated by commas",
                          num_ranks - 1);
    if (!status.code && live) {
        status = ask(observer, call, job, ranks, &range);
        if (!status.code) return;
    } else if (!status.code) {
        show_left(call, job, ranks, num_ranks);
        free(ranks);
        return;
    }
    free(ranks);
    gs_json_release(details);
    gs_rpc_end(call, status);
}

// Of all jobs together: ranks end by the thousand, and a page may be as large as a message.
static bool has_room(gs_observer *observer, const gs_left_timelines *left, int rank, size_t bytes) {
    const char *before = rank < left->num_ranks ? left->pages[rank] : NULL;
    if (observer->left_timeline_bytes - (before ? strlen(before) : 0) + bytes <= GS_TIMELINES_MAX_LEFT_BYTES) return true;
    observer->limits_reached[GS_LIMIT_LEFT_TIMELINES]++;
    return false;
}

static void keep_left(gs_observer *observer, gs_job *job, int rank, gs_json *page) {
    if (!job->sight->left) job->sight->left = calloc(1, sizeof *job->sight->left);
    gs_left_timelines *left = job->sight->left;
    char *text = NULL;
    size_t bytes = 0;
    gs_status status = gs_json_encode(&text, &bytes, page, false);
    gs_json_release(page);
    if (!left || status.code || !has_room(observer, left, rank, bytes)) {
        free(text);
        return;
    }
    if (rank >= left->num_ranks) {
        char **pages = realloc(left->pages, ((size_t)rank + 1) * sizeof *pages);
        if (!pages) {
            free(text);
            return;
        }
        for (int i = left->num_ranks; i <= rank; i++) pages[i] = NULL;
        left->pages = pages;
        left->num_ranks = rank + 1;
    }
    size_t before = left->pages[rank] ? strlen(left->pages[rank]) : 0;
    free(left->pages[rank]);
    left->pages[rank] = text;
    left->bytes += bytes - before;
    observer->left_timeline_bytes += bytes - before;
}

static gs_timeline_asker *find_asker(gs_observer *observer, const gs_job *job, int64_t request) {
    for (gs_timeline_asker *asker = observer->timeline_askers; asker; asker = asker->next) {
        if (asker->request == request && asker->job == job->id) return asker;
    }
    return NULL;
}

void gs_timeline_page(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                      const gs_json *request) {
    gs_observer *observer = ctx;
    gs_identity who = gs_identity_of_peer(peer);
    gs_member *member = NULL;
    gs_identity_verdict verdict = gs_identity_find_member(&member, observer->state, &who);
    if (verdict == GS_IDENTITY_UNSHOWN || verdict == GS_IDENTITY_UNCOVERED) {
        gs_rpc_reply(call, gs_error(GS_PERMISSION_DENIED, "this shows no launch token, or not that of this trainer"), NULL);
        return;
    }
    bool known = verdict == GS_IDENTITY_OWN && member->rank >= 0 &&
                 gs_json_int_or(request, "generation", -1) == (int64_t)member->job->run->generation;
    if (!known) {
        gs_rpc_reply(call, gs_error(GS_ABORTED, "this trainer belongs to no generation"), NULL);
        return;
    }
    gs_rpc_reply(call, gs_ok(), gs_json_new_object());
    gs_json *page = gs_json_new_object();
    const gs_json *steps = gs_json_get(request, "steps");
    gs_json_set_int(page, "rank", member->rank);
    gs_json_set(page, "steps", gs_json_retain((gs_json *)steps));
    int64_t number = gs_json_int_or(request, "request", 0);
    if (number == 0) {
        keep_left(observer, member->job, member->rank, page);
        return;
    }
    gs_timeline_asker *asker = find_asker(observer, member->job, number);
    if (!asker || member->rank >= asker->num_ranks || asker->ranks[member->rank] != RANK_WAITED_FOR) {
        gs_json_release(page);  // too late, or sent again
        return;
    }
    gs_status status = gs_rpc_item(asker->call, page);
    if (status.code) {
        gs_rpc_end(asker->call, status);
        remove_asker(asker);
        return;
    }
    if (gs_json_bool_or(request, "more", false)) return;
    asker->ranks[member->rank] = RANK_ANSWERED;
    if (!waits(asker)) finish(asker);
}

void gs_trace_job(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                  const gs_json *request) {
    gs_observer *observer = ctx;
    gs_job *job = NULL;
    gs_json *body = NULL;
    gs_status status = gs_observer_find_job(observer, &job, &body, request);
    bool live = !status.code && job->run && job->run->phase == GS_RUN_TRAINING;
    if (!status.code && !live) {
        status = gs_error(GS_FAILED_PRECONDITION, "job %s does not train now", job->id_text);
        body = gs_json_new_object();
        gs_json_set_string(body, "code", "wrong_state");
    }
    if (!status.code) {
        bool on = gs_json_bool_or(request, "on", true);
        int64_t told = 0;
        for (int i = 0; i < job->run->num_members; i++) {
            gs_json *item = gs_json_new_object();
            gs_json_set_string(item, "type", "trace");
            gs_json_set_bool(item, "on", on);
            told += observer->send(observer->send_ctx, job->run->members[i].stream.call, item);
        }
        body = gs_json_new_object();
        gs_json_set_string(body, "job", job->id_text);
        gs_json_set_bool(body, "on", on);
        gs_json_set_int(body, "ranks_told", told);
        char what[100];
        snprintf(what, sizeof what, "%s of timelines of job %s", on ? "a recording" : "no recording", job->id_text);
        gs_events_note_asker(observer, peer, request, what);
    }
    gs_rpc_reply(call, status, body);
}

void gs_timelines_tick(gs_observer *observer) {
    int64_t now_ns = gs_now_ns();
    gs_timeline_asker *next;
    for (gs_timeline_asker *asker = observer->timeline_askers; asker; asker = next) {
        next = asker->next;
        const gs_job *job = gs_job_table_get(&observer->state->jobs, asker->job);
        bool over = !job || !job->run || job->run->generation != asker->generation;
        if (over || now_ns >= asker->deadline_ns) finish(asker);
    }
}

void gs_timelines_end_all(gs_observer *observer) {
    while (observer->timeline_askers) {
        gs_rpc_end(observer->timeline_askers->call,
                   gs_error(GS_UNAVAILABLE, "the coordinator stops"));
        remove_asker(observer->timeline_askers);
    }
}

void gs_timelines_forget(gs_observer *observer, gs_job *job) {
    gs_left_timelines *left = job->sight->left;
    if (!left) return;
    observer->left_timeline_bytes -= left->bytes;
    for (int i = 0; i < left->num_ranks; i++) free(left->pages[i]);
    free(left->pages);
    free(left);
    job->sight->left = NULL;
}
