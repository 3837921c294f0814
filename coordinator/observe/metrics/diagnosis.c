#include "coordinator/observe/metrics/diagnosis.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "core/status.h"

// From this share of a step on something is worth a verdict; half of it, a finding.
#define DATA_SHARE 0.15
#define EXPOSED_SHARE 0.15
#define CHECKPOINT_SHARE 0.10
#define MISMATCH_SHARE 0.10
#define SKIPPED_SHARE 0.05
#define MOST_BUCKETS_NAMED 3

typedef struct diagnosis {
    const gs_diagnosis_facts *facts;
    gs_json *findings;
    const char *verdict;
    char summary[400];
} diagnosis;

// "40 ms", "1.25 s", "310 us"
static const char *duration(char text[32], double seconds) {
    if (seconds >= 1) snprintf(text, 32, "%.2f s", seconds);
    else if (seconds >= 0.001) snprintf(text, 32, "%.3g ms", seconds * 1e3);
    else snprintf(text, 32, "%.3g us", seconds * 1e6);
    return text;
}

static const char *size(char text[32], int64_t bytes) {
    if (bytes >= 1 << 20) snprintf(text, 32, "%.3g MiB", (double)bytes / (1 << 20));
    else if (bytes >= 1 << 10) snprintf(text, 32, "%.3g KiB", (double)bytes / (1 << 10));
    else snprintf(text, 32, "%lld bytes", (long long)bytes);
    return text;
}

static gs_json *add_finding(diagnosis *of, const char *kind, const char *suggest, const char *format,
                            ...) GS_PRINTF(4, 5);
static gs_json *add_finding(diagnosis *of, const char *kind, const char *suggest, const char *format,
                            ...) {
    char detail[400];
    va_list args;
    va_start(args, format);
    vsnprintf(detail, sizeof detail, format, args);
    va_end(args);
    gs_json *finding = gs_json_new_object();
    gs_json_set_string(finding, "kind", kind);
    gs_json_set_string(finding, "detail", detail);
    gs_json_set_string(finding, "suggest", suggest);
    gs_json_push(of->findings, finding);
    return finding;
}

static double share(const gs_diagnosis_facts *facts, double seconds) {
    return facts->step_seconds > 0 ? seconds / facts->step_seconds : 0;
}

static bool is_set(const char *text) {
    return text && *text;
}

static void find_failure(diagnosis *of) {
    const gs_diagnosis_facts *facts = of->facts;
    const gs_diagnosis_failure *failure = &facts->failure;
    if (!facts->failed_once) return;
    const char *suggest = is_set(failure->hint) ? failure->hint : "read the last lines of its log";
    gs_json *finding;
    if (failure->rank < 0) {
        finding = add_finding(of, "first_failure", suggest, "at step %lld: %s",
                              (long long)failure->step, is_set(failure->message) ? failure->message : "?");
    } else {
        finding = add_finding(of, "first_failure", suggest, "rank %lld on %s failed first, at step %lld: %s",
                              (long long)failure->rank, is_set(failure->host) ? failure->host : "?",
                              (long long)failure->step, is_set(failure->message) ? failure->message : "?");
        gs_json_set_int(finding, "rank", failure->rank);
    }
    gs_json_set_string(finding, "class", failure->class);
    if (is_set(failure->kind)) gs_json_set_string(finding, "fault", failure->kind);
    if (failure->accused) gs_json_set(finding, "accused", gs_json_copy(failure->accused));
    if (failure->reporter >= 0) gs_json_set_int(finding, "reporter", failure->reporter);
    if (failure->restarts > 0) gs_json_set_int(finding, "restarts", failure->restarts);
}

static void find_slots(diagnosis *of) {
    const gs_diagnosis_facts *facts = of->facts;
    char waited[32];
    if (facts->slots_needed == 0) return;
    gs_json *finding = add_finding(
        of, "queue", facts->slots_free < facts->slots_needed
                         ? "start more workers, stop another job, or lower world.min"
                         : "slots are free: it starts when world.join_window_seconds has passed",
        "%d slots are needed and %d are free; it has waited for %s", facts->slots_needed,
        facts->slots_free, duration(waited, facts->waiting_seconds));
    gs_json_set_int(finding, "slots_needed", facts->slots_needed);
    gs_json_set_int(finding, "slots_free", facts->slots_free);
}

// The rank that lags most of those flagged; −1: none.
static int find_straggler(diagnosis *of) {
    const gs_diagnosis_facts *facts = of->facts;
    int worst = -1;
    for (int i = 0; i < facts->num_ranks; i++) {
        const gs_straggler_view *view = &facts->ranks[i];
        if (!view->flagged) continue;
        const char *phase = is_set(view->phase) ? view->phase : "compute";
        char suggest[160], lag[32], whatif[32];
        bool data = phase[0] == 'd', network = phase[0] == 'n';
        snprintf(suggest, sizeof suggest, "%s%d%s", data ? "rank " : "look at the host of rank ", i,
                 data      ? " waits for data: check its disk"
                 : network ? ": its links move bytes slower than those of the others"
                           : ": other load, clock or temperature; or place the rank elsewhere");
        gs_json *finding =
            add_finding(of, "straggler", suggest,
                        "the others wait %s a step for rank %d (%s), which was last in %.0f %% of the last "
                        "steps; without it a step would take %s",
                        duration(lag, view->median_lag_seconds), i, phase, view->share_last * 100,
                        duration(whatif, facts->whatif_step_seconds));
        gs_json_set_int(finding, "rank", i);
        gs_json_set_double(finding, "lag_seconds", view->median_lag_seconds);
        gs_json_set_double(finding, "share_of_steps_last", view->share_last);
        gs_json_set_string(finding, "phase", phase);
        gs_json_set_double(finding, "blame_seconds", view->blame_seconds);
        if (worst < 0 || view->median_lag_seconds > facts->ranks[worst].median_lag_seconds) worst = i;
    }
    return worst;
}

// What of a bucket's time lies behind the backward pass and behind the bucket before.
static double exposure_of(const gs_diagnosis_facts *facts, size_t index) {
    double from = facts->backward_seconds;
    for (size_t i = 0; i < index; i++) {
        if (facts->buckets[i].finished > from) from = facts->buckets[i].finished;
    }
    double exposed = facts->buckets[index].finished - from;
    return exposed > 0 ? exposed : 0;
}

static void describe_bucket(diagnosis *of, size_t index) {
    const gs_diagnosis_facts *facts = of->facts;
    const gs_diagnosis_bucket *bucket = &facts->buckets[index];
    double early = facts->backward_seconds - bucket->launched, exposed = exposure_of(facts, index);
    double queued = bucket->launched - bucket->ready;
    char bytes[32], start[32], end[32], held[32];
    bool late = queued > exposed / 2;
    gs_json *finding = add_finding(
        of, "exposed_bucket",
        late && facts->plan_is_fixed
            ? "it was ready earlier and held back by its place in the plan, which is that of registration"
        : late ? "it was ready earlier and held back by its place in the plan: POST replan"
        : early < 0
            ? "it is ready only when backward has ended: a smaller last bucket would be exposed shorter"
        : facts->plan_is_fixed
            ? "it starts too late to be hidden: smaller buckets start earlier"
            : "it starts too late to be hidden: smaller buckets start earlier; POST replan puts them in "
              "the order in which gradients come",
        "bucket %lld (%s) starts %s %s backward ends and is exposed for %s; it was ready %s before it started",
        (long long)bucket->index, size(bytes, bucket->bytes), duration(start, fabs(early)),
        early >= 0 ? "before" : "after", duration(end, exposed), duration(held, queued > 0 ? queued : 0));
    gs_json_set_int(finding, "bucket", bucket->index);
    gs_json_set_double(finding, "exposed_seconds", exposed);
    gs_json_set_double(finding, "starts_before_backward_ends_seconds", early);
}

// The buckets that are exposed longest. Returns the worst; −1: none.
static int find_exposed_buckets(diagnosis *of) {
    const gs_diagnosis_facts *facts = of->facts;
    int worst = -1;
    double below = HUGE_VAL;
    for (int named = 0; named < MOST_BUCKETS_NAMED; named++) {
        double largest = 0;
        int chosen = -1;
        for (size_t i = 0; i < facts->num_buckets; i++) {
            double exposed = exposure_of(facts, i);
            if (exposed <= largest || exposed >= below) continue;
            largest = exposed;
            chosen = (int)i;
        }
        if (chosen < 0 || share(facts, largest) < EXPOSED_SHARE / 10) break;
        describe_bucket(of, (size_t)chosen);
        if (worst < 0) worst = chosen;
        below = largest;
    }
    return worst;
}

static void find_order(diagnosis *of) {
    const gs_diagnosis_facts *facts = of->facts;
    double part = (double)facts->order_mismatches / (double)facts->steps;
    if (part < MISMATCH_SHARE) return;
    gs_json *finding = add_finding(
        of, "ready_order_mismatch",
        !facts->could_be_static ? "nothing: ranks use other parameters from step to step, and no order "
                                  "suits all steps"
        : facts->plan_is_fixed ? "nothing: the plan of a sharded job is fixed, along the order of registration"
        : facts->rebuild_after_steps == 0 ? "POST replan, or set reducer.rebuild_after_steps to 1"
                                          : "POST replan: the order changed after the plan was made",
        "the observed order differs from plan revision %lld in %lld of %lld steps",
        (long long)facts->plan_revision, (long long)facts->order_mismatches, (long long)facts->steps);
    gs_json_set_double(finding, "share_of_steps", part);
}

static void find_unused(diagnosis *of) {
    const gs_diagnosis_facts *facts = of->facts;
    char bytes[32];
    if (facts->unused_parameters == 0) return;
    bool advise = facts->could_be_static && !facts->static_graph;
    gs_json *finding = add_finding(
        of, "unused_parameters",
        advise ? "each rank used the same parameters in every step: reducer.static_graph would leave "
                 "buckets that nobody uses at home"
               : "nothing, if the model means it: they cost nothing but their bytes on the way",
        "%lld parameters (%s) were used by no rank in the last step",
        (long long)facts->unused_parameters, size(bytes, facts->unused_bytes));
    gs_json_set_int(finding, "parameters", facts->unused_parameters);
    gs_json_set_bool(finding, "could_be_static", facts->could_be_static);
}

static void find_numerics(diagnosis *of) {
    const gs_diagnosis_facts *facts = of->facts;
    double part = (double)facts->skipped_steps / (double)facts->steps;
    // A scale that looks for its place skips some steps at the start: that is its work.
    if (facts->skipped_steps > 0 && (facts->loss_scale == 0 || part > SKIPPED_SHARE))
        add_finding(of, "skipped_steps",
                    "lower optimizer.lr or set optimizer.grad_clip_norm; look at the data of these steps",
                    "%lld of %lld steps were left out: their gradients were not finite",
                    (long long)facts->skipped_steps, (long long)facts->steps);
    if (facts->loss_scale > 0 && facts->loss_scale < 1)
        add_finding(of, "loss_scale",
                    "gradients overflow whatever the scale: lower optimizer.lr, or use bf16",
                    "the loss scale has fallen to %g", facts->loss_scale);
    if (!isfinite(facts->loss))
        add_finding(of, "loss", "start from an earlier checkpoint with a lower optimizer.lr",
                    "the loss is %s", isnan(facts->loss) ? "NaN" : "infinite");
}

static void find_shares(diagnosis *of) {
    const gs_diagnosis_facts *facts = of->facts;
    char time[32], step[32];
    duration(step, facts->step_seconds);
    if (share(facts, facts->data) >= DATA_SHARE / 2)
        add_finding(of, "data", "put the data on a faster disk, or give the loader a core of its own",
                    "ranks wait %s of %s a step for data (%.0f %%)", duration(time, facts->data), step,
                    100 * share(facts, facts->data));
    if (share(facts, facts->checkpoint) >= CHECKPOINT_SHARE / 2)
        add_finding(of, "checkpoint", "save less often (checkpoint.every_steps) or to a faster disk",
                    "saving takes %s a step from rank 0 (%.0f %%)", duration(time, facts->checkpoint),
                    100 * share(facts, facts->checkpoint));
    if (facts->checkpoint_failures > 0)
        add_finding(of, "checkpoint_failures", "look at the free space and the events of the job",
                    "%lld checkpoints could not be saved", (long long)facts->checkpoint_failures);
    if (share(facts, facts->copies) >= 0.05)
        add_finding(of, "copies", "let gradients be views into their buckets",
                    "copying gradients into buckets and out takes %s a step (%.0f %%)",
                    duration(time, facts->copies), 100 * share(facts, facts->copies));
}

// Much waiting without one rank to blame.
static bool find_unevenness(diagnosis *of, int straggler) {
    const gs_diagnosis_facts *facts = of->facts;
    char time[32];
    if (straggler >= 0 || facts->num_ranks < 2) return false;
    if (share(facts, facts->waiting) < EXPOSED_SHARE / 2 || facts->waiting < facts->exposed / 2) {
        return false;
    }
    add_finding(of, "uneven_ranks",
                "ranks take turns in being late: pin them to cores, or look for other load on their hosts",
                "ranks wait %s a step for each other (%.0f %%), and no single one is to blame",
                duration(time, facts->waiting), 100 * share(facts, facts->waiting));
    return true;
}

static void conclude(diagnosis *of, const char *verdict, const char *format, ...) GS_PRINTF(3, 4);
static void conclude(diagnosis *of, const char *verdict, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(of->summary, sizeof of->summary, format, args);
    va_end(args);
    of->verdict = verdict;
}

static void conclude_communication(diagnosis *of, int bucket) {
    const gs_diagnosis_facts *facts = of->facts;
    double part = 100 * share(facts, facts->exposed);
    if (bucket < 0) {
        conclude(of, "communication",
                 "%.0f %% of step time is exposed communication; ranks wait %.0f %% of it for each other",
                 part, 100 * share(facts, facts->waiting));
        return;
    }
    const gs_diagnosis_bucket *worst = &facts->buckets[bucket];
    double early = facts->backward_seconds - worst->launched;
    char bytes[32], time[32];
    conclude(of, "communication",
             "%.0f %% of step time is exposed communication; bucket %lld (%s) starts %s %s backward ends",
             part, (long long)worst->index, size(bytes, worst->bytes), duration(time, fabs(early)),
             early >= 0 ? "before" : "after");
}

static void conclude_running(diagnosis *of, int straggler, int bucket) {
    const gs_diagnosis_facts *facts = of->facts;
    double data = share(facts, facts->data), exposed = share(facts, facts->exposed);
    double checkpoint = share(facts, facts->checkpoint);
    double compute = share(facts, facts->forward + facts->backward + facts->optimizer);
    char time[32], step[32];
    duration(step, facts->step_seconds);
    if (straggler >= 0) {
        // Both of the last steps, as a usual one was: means have the rare long ones in them.
        const gs_straggler_view *view = &facts->ranks[straggler];
        duration(step, facts->whatif_step_seconds + view->median_lag_seconds);
        conclude(of, "straggler",
                 "rank %d holds the others up by %s in a step of %s; it was last in %.0f %% of the last steps",
                 straggler, duration(time, view->median_lag_seconds), step, view->share_last * 100);
    } else if (checkpoint >= CHECKPOINT_SHARE && checkpoint >= data && checkpoint >= exposed) {
        conclude(of, "checkpoint", "saving takes %s of %s a step (%.0f %%)",
                 duration(time, facts->checkpoint), step, 100 * checkpoint);
    } else if (data >= DATA_SHARE && data >= exposed) {
        conclude(of, "data", "ranks wait %s of %s a step for data (%.0f %%)",
                 duration(time, facts->data), step, 100 * data);
    } else if (exposed >= EXPOSED_SHARE) {
        conclude_communication(of, bucket);
    } else if (gs_json_count(of->findings) > 0) {
        conclude(of, "compute",
                 "%.0f %% of a step of %s is computing and %.0f %% exposed communication; see the findings",
                 100 * compute, step, 100 * exposed);
    } else {
        conclude(of, "healthy",
                 "%.0f %% of a step of %s is computing, %.0f %% exposed communication, %.0f %% data; "
                 "nothing to improve was found",
                 100 * compute, step, 100 * exposed, 100 * data);
    }
}

static void diagnose_steps(diagnosis *of) {
    int straggler = find_straggler(of);
    // Who waits for ranks would wait with any plan.
    bool waits = straggler >= 0 || find_unevenness(of, straggler);
    bool exposed = share(of->facts, of->facts->exposed) >= EXPOSED_SHARE / 2;
    int bucket = exposed && !waits ? find_exposed_buckets(of) : -1;
    find_shares(of);
    find_order(of);
    find_numerics(of);
    find_unused(of);
    conclude_running(of, straggler, bucket);
}

gs_json *gs_diagnose(const gs_diagnosis_facts *facts) {
    diagnosis of = {.facts = facts, .findings = gs_json_new_array()};
    const char *message = is_set(facts->message) ? facts->message : "no reason was given";
    bool running = facts->state == GS_JOB_RUNNING, measured = facts->steps > 0;
    find_failure(&of);
    if (measured) diagnose_steps(&of);  // of a job that does not run: how its last steps were
    if (facts->state == GS_JOB_FAILED) {
        conclude(&of, "failed", "failed at step %lld: %s", (long long)facts->failure.step, message);
    } else if (gs_job_state_terminal(facts->state) || facts->state == GS_JOB_STOPPING) {
        conclude(&of, "not_running", "%s: %s", gs_job_state_name(facts->state), message);
    } else if (!running) {
        find_slots(&of);
        conclude(&of, "waiting", "%s: %s", gs_job_state_name(facts->state), message);
    } else if (!measured) {
        conclude(&of, "waiting", "the ranks train, and none has reported a step yet");
    }
    gs_json *out = gs_json_new_object();
    gs_json_set_string(out, "verdict", of.verdict);
    gs_json_set_string(out, "summary", of.summary);
    gs_json_set(out, "findings", of.findings);
    return out;
}
