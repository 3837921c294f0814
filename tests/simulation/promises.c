#include "tests/simulation/promises.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/engine/base/late_answers.h"
#include "tests/simulation/coordinator.h"
#include "tests/simulation/files.h"
#include "tests/simulation/oracle.h"
#include "tests/simulation/rows.h"
#include "tests/simulation/sets.h"

#define MAX_JOBS 512
#define MAX_SAVES_KEPT 64
#define MAX_WRITES 256
#define MAX_NAMED 32
#define SETTLED_NS (3 * SECONDS)  // a save is on the disk that long

// What a row of the disk says of a job.
typedef struct job_facts {
    uint64_t job;
    gs_job_state state;
    int64_t step;
    uint32_t generation;
    uint64_t version;
    bool stop_asked, committed, trains;
} job_facts;

typedef struct acknowledged_save {
    char directory[GS_CHECKPOINT_NAME_LEN];
    int64_t step;
    bool is_damaged;  // nobody has to start from it any more
    char cluster[GS_CLUSTER_NAME_LEN];  // whose coordinator has acknowledged it
} acknowledged_save;

// Ranks of a generation hold a step: what older ones have saved behind that is nobody's any more.
typedef struct job_branch {
    int64_t step;
    uint32_t generation;  // of these; 0: there is none
    int64_t begun_ns;
    uint64_t life, version;  // of the coordinator in which they began; of the job's row that says so first
    char cluster[GS_CLUSTER_NAME_LEN];
    bool is_recorded;  // on the disk, as the coordinator that lives knows
    bool is_lost;      // another life has read a row of before
} job_branch;

typedef struct promised_job {
    uint64_t id;
    char key[24];  // "": it was never accepted as far as people know
    bool is_stopped, is_deleted;
    bool delete_asked;  // by people
    bool may_be_gone;   // that, or retention has begun to forget it
    bool is_anew;       // adopted since its deletion was done
    bool is_excused, is_unreadable;
    bool has_lost_key;
    bool may_start_anywhere;  // by an operator's word its next start does not wait for the disk of its checkpoints
    int64_t ended_ns;   // seen to have ended; 0: not yet
    bool is_stored;
    job_facts stored;      // holds for ever once it is
    uint32_t trained_generation;  // the newest that was ever said to train
    uint32_t left_generation, left_ranks;  // whose ranks were told that their Bye is known, and which
    bool is_left;                          // by all of them
    uint64_t ended_life;   // of the coordinator that shows it ended; 0: none has
    gs_job_state ended_as;
    bool is_told_ended;  // people were told so
    gs_job_state told;
    int64_t named_steps[MAX_NAMED];  // from which people wanted it to go on, the newest
    int num_named;
    job_branch by_word;  // from where people wanted it to
    job_branch newest;   // of whatever reason
    int64_t lost_step;  // the furthest of saves whose files somebody has removed
    acknowledged_save saves[MAX_SAVES_KEPT];
    int num_saves;
} promised_job;

struct sim_promises {
    promised_job *jobs[MAX_JOBS];  // owned
    int num_jobs;
    job_facts writes[MAX_WRITES];  // on their way to the disk, in order
    int num_writes;
};

void promises_create(sim_world *world) { world->promises = calloc(1, sizeof *world->promises); }
void promises_destroy(sim_world *world) {
    for (int i = 0; i < world->promises->num_jobs; i++) free(world->promises->jobs[i]);
    free(world->promises);
}

static promised_job *find(sim_promises *promises, uint64_t id) {
    for (int i = 0; i < promises->num_jobs; i++) {
        if (promises->jobs[i]->id == id) return promises->jobs[i];
    }
    return NULL;
}

static promised_job *know(sim_world *world, uint64_t id) {
    sim_promises *promises = world->promises;
    promised_job *job = find(promises, id);
    if (job) return job;
    if (promises->num_jobs == MAX_JOBS) abort();
    job = promises->jobs[promises->num_jobs++] = calloc(1, sizeof *job);
    job->id = id;
    return job;
}

void promises_accepted(sim_world *world, const char *key, uint64_t id) {
    sim_promises *promises = world->promises;
    for (int i = 0; i < promises->num_jobs; i++) {
        const promised_job *other = promises->jobs[i];
        if (!strcmp(other->key, key) && other->id != id && !other->delete_asked && !other->is_excused && !other->has_lost_key)
            oracle_fail(world, "one request (%s) made two jobs", key);
    }
    snprintf(know(world, id)->key, sizeof know(world, id)->key, "%s", key);
}

void promises_stopped(sim_world *world, uint64_t id, gs_job_state state) {
    promised_job *job = know(world, id);
    job->is_stopped = true;
    if (!gs_job_state_terminal(state)) return;
    job->is_told_ended = true;
    job->told = state;
}

void promises_delete_asked(sim_world *world, uint64_t id) {
    promised_job *job = know(world, id);
    job->delete_asked = job->may_be_gone = true;
    job->is_anew = false;
}

void promises_delete_refused(sim_world *world, uint64_t id) { know(world, id)->delete_asked = know(world, id)->may_be_gone = false; }

// Who adopts its trainers before that answer comes has the job again.
void promises_deleted(sim_world *world, uint64_t id) {
    promised_job *job = know(world, id);
    if (!job->is_anew) job->is_deleted = true;
}

bool promises_has_deleted(const sim_world *world, uint64_t id, const char *cluster) {
    const promised_job *job = find(world->promises, id);
    return job && job->is_deleted && !strcmp(cluster, coordinator_state(world)->cluster.id);
}

void promises_can_read(sim_world *world, uint64_t id, bool is_readable) { know(world, id)->is_unreadable = !is_readable; }

bool promises_is_excused(const sim_world *world, uint64_t id) {
    const promised_job *job = find(world->promises, id);
    return job && job->is_excused;
}

static void forget_row(promised_job *job) {
    job->is_stored = job->is_stopped = job->is_deleted = job->is_left = job->is_told_ended = false;
    job->left_ranks = job->trained_generation = 0;
    job->ended_life = 0;
}

// By an operator's word, also where its row could not be read, or was deleted.
static void begin_anew(promised_job *job) {
    job->is_anew |= job->is_deleted;
    forget_row(job);
}

void promises_find_rows(sim_world *world, promised_rows (*find_rows)(const sim_world *world, uint64_t job)) {
    for (int i = 0; i < world->promises->num_jobs; i++) {
        promised_job *job = world->promises->jobs[i];
        const promised_rows rows = find_rows(world, job->id);
        forget_row(job);
        job->is_excused = !rows.has_job && !rows.has_key && !rows.has_tombstone;
        job->has_lost_key = !rows.has_key;
        if (rows.has_tombstone) job->may_be_gone = true;
    }
}

// And the coordinator has taken that word.
static void note_named(promised_job *job, int64_t step) { job->named_steps[job->num_named++ % MAX_NAMED] = step; }

static bool was_named(const promised_job *job, int64_t step) {
    for (int i = 0; i < job->num_named && i < MAX_NAMED; i++) {
        if (job->named_steps[i] == step) return true;
    }
    return false;
}

// Each cluster counts generations for itself: of one that has adopted the ranks before or since they may be higher or lower, and what
// was there before tells.
static bool is_left_behind(const job_branch *branch, const saved_file *file) {
    bool is_same = !strcmp(file->cluster, branch->cluster);
    bool is_older = (is_same && file->generation < branch->generation) || file->saved_ns <= branch->begun_ns;
    return branch->generation && is_older && file->step > branch->step;
}

static void begin_branch(sim_world *world, job_branch *branch, const gs_run *run) {
    bool is_told_again = branch->generation == run->generation && branch->step == run->base_step;
    if (is_told_again) return;
    *branch = (job_branch){.step = run->base_step,
                           .generation = run->generation,
                           .begun_ns = world->now_ns,
                           .life = coordinator_life(world),
                           .version = run->job->version};
    snprintf(branch->cluster, sizeof branch->cluster, "%s", coordinator_state(world)->cluster.id);
}

// All its ranks hold that step. Told by the order to start, or by the first mark on what was saved behind it: a coordinator may die
// between the two.
static void begin(sim_world *world, const gs_run *run) {
    promised_job *job = know(world, run->job->id);
    bool is_by_name = run->base_step && was_named(job, run->base_step);
    if (run->job->go_on_step) return;
    begin_branch(world, &job->newest, run);
    // Nor is it known what lay on a disk that somebody had them start without.
    if (!is_by_name && !job->may_start_anywhere) return;
    begin_branch(world, &job->by_word, run);
    for (int i = 0; i < job->num_saves; i++) {
        const saved_file *file = files_find(world, run->job->id, job->saves[i].directory);
        if (!file || is_left_behind(&job->by_word, file)) job->saves[i].is_damaged = true;
    }
}

// That people have named it is what its coordinator goes by.
static bool is_named(const sim_world *world, const promised_job *job, int64_t step) {
    const gs_state *state = coordinator_state(world);
    const gs_job *known = state ? gs_job_table_get(&state->jobs, job->id) : NULL;
    return known && known->go_on_step == step && was_named(job, step);
}

void promises_saved(sim_world *world, uint64_t id, const char *directory, int64_t step) {
    promised_job *job = know(world, id);
    // It may have rotted, or newer ones have replaced it, before anybody was told.
    const saved_file *file = files_find(world, id, directory);
    for (int i = 0; i < job->num_saves; i++) {
        if (!strcmp(job->saves[i].directory, directory)) return;
    }
    if (job->num_saves == MAX_SAVES_KEPT) {
        memmove(job->saves, job->saves + 1, sizeof job->saves - sizeof job->saves[0]);
        job->num_saves--;
    }
    acknowledged_save *save = &job->saves[job->num_saves++];
    save->is_damaged = !file || file->is_damaged || is_left_behind(&job->by_word, file);
    snprintf(save->directory, sizeof save->directory, "%s", directory);
    snprintf(save->cluster, sizeof save->cluster, "%s", coordinator_is_alive(world) ? coordinator_state(world)->cluster.id : "");
    save->step = step;
}

void promises_left(sim_world *world, uint64_t id, uint32_t generation, int rank, int world_size) {
    promised_job *job = know(world, id);
    if (job->left_generation != generation) job->left_ranks = 0;
    job->left_generation = generation;
    job->left_ranks |= UINT32_C(1) << rank;
    job->is_left |= job->left_ranks == (UINT32_C(1) << world_size) - 1;
}

void promises_damaged(sim_world *world, uint64_t id, const char *directory) {
    promised_job *job = know(world, id);
    for (int i = 0; i < job->num_saves; i++) {
        if (!strcmp(job->saves[i].directory, directory)) job->saves[i].is_damaged = true;
    }
}

void promises_lost(sim_world *world, uint64_t id, const char *directory, int64_t step) {
    promised_job *job = know(world, id);
    promises_damaged(world, id, directory);
    if (step > job->lost_step) job->lost_step = step;
}

// Its tensors rotted behind its verification: until somebody reads them all it counts as good.
static bool is_taken_for_good(const sim_world *world, const saved_file *file) {
    const gs_state *state = coordinator_state(world);
    const gs_job *job = state ? gs_job_table_get(&state->jobs, file->job) : NULL;
    for (size_t i = 0; job && i < job->checkpoints.count; i++) {
        const gs_checkpoint *item = &job->checkpoints.items[i];
        if (item->state == GS_CHECKPOINT_GOOD && !strcmp(item->directory, file->directory)) return true;
    }
    return false;
}

// Retention leaves a newer one, and only who deletes a job deletes all.
void promises_removed(sim_world *world, uint64_t id, const char *directory) {
    promised_job *job = know(world, id);
    if (!directory) {
        if (!job->delete_asked) oracle_fail(world, "the files of a job that nobody deleted are removed");
        job->num_saves = 0;
        return;
    }
    int i = 0;
    while (i < job->num_saves && strcmp(job->saves[i].directory, directory) != 0) i++;
    if (i == job->num_saves || job->saves[i].is_damaged) return;
    int64_t left = -1;
    for (int k = 0; k < job->num_saves; k++) {
        if (k != i && job->saves[k].step > left) left = job->saves[k].step;
    }
    // Of some only the row was written, and nobody was told.
    for (const saved_file *file = world->files; file; file = file->next) {
        bool stays = file->job == id && strcmp(file->directory, directory) != 0 && (!file->is_damaged || is_taken_for_good(world, file));
        if (stays && file->step > left) left = file->step;
    }
    if (left < job->saves[i].step)
        oracle_fail(world, "checkpoint %s is removed, though the newest that is left is of step %" PRId64, directory, left);
    job->saves[i].is_damaged = true;
}

int64_t promises_newest_save(const sim_world *world, uint64_t id) {
    const promised_job *job = find(world->promises, id);
    int64_t newest = job ? job->lost_step : 0;
    for (int i = 0; job && i < job->num_saves; i++) {
        if (job->saves[i].step > newest) newest = job->saves[i].step;
    }
    for (const saved_file *file = world->files; file; file = file->next) {
        if (file->job == id && file->step > newest) newest = file->step;
    }
    return newest;
}

// What is on the disk, for long enough. What older generations have left there, and nobody told of, is not the job's.
static bool is_there(const sim_world *world, const promised_job *job, const saved_file *file) {
    const gs_state *state = coordinator_state(world);
    const gs_job *known = state ? gs_job_table_get(&state->jobs, job->id) : NULL;
    const gs_job_savers savers = known ? gs_job_savers_of(known) : (gs_job_savers){0};
    bool is_old = known && !gs_job_savers_include(&savers, file->generation, file->step, file->directory);
    return file->job == job->id && !is_old && !file->is_damaged && !file->is_retired && !is_left_behind(&job->by_word, file) && world->now_ns - file->saved_ns > SETTLED_NS;
}

// What another cluster was told of is known to this one as what lay there when it adopted the job; behind that each counts its own
// generations, and none can tell which of two is later.
static bool is_known_here(const sim_world *world, uint64_t id, const acknowledged_save *save) {
    const gs_state *state = coordinator_state(world);
    const gs_job *job = state ? gs_job_table_get(&state->jobs, id) : NULL;
    if (!job || !save->cluster[0] || !strcmp(save->cluster, state->cluster.id)) return true;
    return job->generation < job->least_generation && save->step <= job->step;
}

void promises_check_resume(sim_world *world, uint64_t id, int64_t step) {
    const promised_job *job = know(world, id);
    bool may_start_anywhere = job->may_start_anywhere || is_named(world, job, step);
    for (int i = 0; i < job->num_saves && !may_start_anywhere; i++) {
        if (job->saves[i].step <= step || job->saves[i].is_damaged || !is_known_here(world, id, &job->saves[i])) continue;
        oracle_fail(world, "a rank starts from step %" PRId64 " though %s was saved and acknowledged", step, job->saves[i].directory);
    }
    for (const saved_file *file = world->files; file; file = file->next) {
        if (!may_start_anywhere && is_there(world, job, file) && file->step > step)
            oracle_fail(world, "a rank starts from step %" PRId64 " though %s is on the disk", step, file->directory);
    }
    if (job->is_stored && gs_job_state_terminal(job->stored.state))
        oracle_fail(world, "a rank starts for a job that was %s on the disk", gs_job_state_name(job->stored.state));
    if (job->is_left) oracle_fail(world, "a rank starts for a job whose ranks have all heard that its end is known");
}

void promises_check_told(sim_world *world, const gs_job *job) {
    const promised_job *known = know(world, job->id);
    if (gs_job_state_terminal(job->state) && !(known->is_stored && known->stored.state == job->state))
        oracle_fail(world, "people are told that job %s is %s, which is not on the disk", job->id_text, gs_job_state_name(job->state));
}

void promises_check_accepted(sim_world *world, const gs_job *job) {
    if (!know(world, job->id)->is_stored)
        oracle_fail(world, "people are told that job %s is accepted, which is not on the disk", job->id_text);
}

static job_facts facts_of(const gs_job *job) {
    return (job_facts){.job = job->id,
                       .state = job->state,
                       .step = job->step,
                       .generation = job->generation,
                       .version = job->version,
                       .stop_asked = job->stop_asked,
                       .committed = job->committed,
                       .trains = job->run && gs_run_is_kept(job->run)};
}

// Ranks train on where no row can be written, and a disk that lied loses rows: then another life knows of none of it, and its own
// generations begin from what it knows.
static void note_recorded(const sim_world *world, job_branch *branch, const job_facts *facts, bool is_read) {
    if (!branch->generation || strcmp(branch->cluster, coordinator_state(world)->cluster.id) != 0) return;
    bool has_it = facts->version >= branch->version;
    if (is_read) branch->is_lost |= !has_it;
    if (is_read || branch->life == coordinator_life(world)) branch->is_recorded = has_it && !branch->is_lost;
}

static void store(const sim_world *world, promised_job *job, const job_facts *facts, bool is_read) {
    job->is_stored = true;
    job->stored = *facts;
    note_recorded(world, &job->by_word, facts, is_read);
    note_recorded(world, &job->newest, facts, is_read);
    if (facts->trains) job->trained_generation = facts->generation;
}

static size_t count_ended(const gs_state *state) {
    size_t count = 0;
    for (size_t i = 0; i < state->jobs.count; i++) count += gs_job_state_terminal(state->jobs.items[i]->state);
    return count;
}

// Of too many those go first that ended first.
static void check_order(sim_world *world, const gs_job *job) {
    const gs_state *state = coordinator_state(world);
    for (size_t i = 0; i < state->jobs.count; i++) {
        const gs_job *other = state->jobs.items[i];
        // Somebody waits to be told of it, or what became of it is not written yet: it goes later.
        bool is_awaited = other->dirty || gs_late_answer_waits(coordinator_engine(world), other);
        bool may_go = gs_job_state_terminal(other->state) && !other->held_back && !is_awaited && !other->run;
        if (may_go && other->ended_ns < job->ended_ns && state->now_ns - other->ended_ns >= state->timing.series_keep_ns)
            oracle_fail(world, "job %s is forgotten, and job %s ended before it", job->id_text, other->id_text);
    }
}

// Without being asked the coordinator forgets what has ended, once there is more of it than is kept, or it is too old.
static void check_deletion(sim_world *world, const gs_job *job) {
    const gs_state *state = coordinator_state(world);
    promised_job *known = know(world, job->id);
    if (!gs_job_state_terminal(job->state)) oracle_fail(world, "job %s is deleted, and is %s", job->id_text, gs_job_state_name(job->state));
    if (known->delete_asked) return;
    int64_t age_ns = world->now_ns - known->ended_ns;
    bool is_old = state->retention.ended_ns > 0 && age_ns >= state->retention.ended_ns;
    bool are_many = state->retention.ended_jobs > 0 && count_ended(state) > state->retention.ended_jobs;
    if (age_ns < state->timing.series_keep_ns || (!is_old && !are_many))
        oracle_fail(world, "job %s is forgotten, which has ended %.1f s ago", job->id_text, (double)age_ns / 1e9);
    if (!is_old) check_order(world, job);
    known->may_be_gone = true;
}

static void see_deleted(sim_world *world, const gs_completion *done) {
    promised_job *job = know(world, done->job);
    if (done->status.code) return;
    job->is_deleted = true;
    job->is_anew = false;
}

static bool is_from_behind(const job_branch *branch, const saved_file *file) {
    return branch->is_recorded && is_left_behind(branch, file);
}

static void check_branch(sim_world *world, const gs_effect *effect) {
    const gs_checkpoint *resume = effect->agent_message.resume;
    const promised_job *job = know(world, effect->job->id);
    const saved_file *file = resume ? files_find(world, job->id, resume->directory) : NULL;
    if (!file || is_named(world, job, resume->step)) return;
    if (is_from_behind(&job->by_word, file))
        oracle_fail(world, "ranks are started from %s, and people have gone back to step %" PRId64, resume->directory, job->by_word.step);
    if (is_from_behind(&job->newest, file))
        oracle_fail(world, "ranks are started from %s, and those of generation %u began at step %" PRId64, resume->directory,
                    job->newest.generation, job->newest.step);
}

void promises_see_effect(sim_world *world, const gs_effect *effect) {
    sim_promises *promises = world->promises;
    if (effect->kind == GS_DO_DELETE_JOB) check_deletion(world, effect->job);
    // It is judged by what there is now: somebody may remove that while the files of this one wait for their turn.
    if (effect->kind == GS_DO_REMOVE_CHECKPOINT) {
        promises_removed(world, effect->job_id, effect->text);
        files_retire(world, effect->job_id, effect->text);
    }
    if (effect->kind == GS_DO_ADD_JOB && !strcmp(effect->job->reason, "Adopted")) begin_anew(know(world, effect->job->id));
    bool is_released = effect->kind == GS_DO_NOTE && effect->job && !strcmp(effect->note.reason, "Released");
    if (is_released && !effect->job->run && effect->job->checkpoints.is_given_up)
        know(world, effect->job->id)->may_start_anywhere = true;
    // Not of ranks that are on their way.
    bool is_there_again = effect->kind == GS_DO_NOTE && effect->job && !effect->job->run && !strcmp(effect->note.reason, "CheckpointsAvailable");
    if (effect->kind == GS_DO_END_RUN || is_there_again) know(world, effect->job->id)->may_start_anywhere = false;
    if (effect->kind == GS_DO_TELL_MEMBER && effect->member_message.order == GS_TELL_START) begin(world, effect->run);
    if (is_released && effect->job->go_on_step)
        note_named(know(world, effect->job->id), effect->job->go_on_step);
    const gs_run *run = effect->kind == GS_DO_WRITE_CHECKPOINT ? effect->job->run : NULL;
    bool has_begun = run && run->phase == GS_RUN_CONNECTING && effect->checkpoint->state == GS_CHECKPOINT_DELETING;
    if (has_begun && effect->checkpoint->step > run->base_step) begin(world, run);
    if (effect->kind == GS_DO_TELL_AGENT && effect->agent_message.order == GS_TELL_START_RANK) check_branch(world, effect);
    if (effect->kind == GS_DO_SHOW_CHECKPOINT)
        promises_saved(world, effect->job->id, effect->checkpoint->directory, effect->checkpoint->step);
    if (effect->kind != GS_DO_WRITE_JOB || promises->num_writes == MAX_WRITES) return;
    const gs_job *job = effect->job;
    promises->writes[promises->num_writes++] = facts_of(job);
}

void promises_see_event(sim_world *world, const gs_engine_event *event) {
    sim_promises *promises = world->promises;
    if (event->kind == GS_ON_STORED && event->done.stored == GS_STORED_JOB_DELETED) see_deleted(world, &event->done);
    if (event->kind != GS_ON_STORED || event->done.stored != GS_STORED_JOB) return;
    int i = 0;
    while (i < promises->num_writes && promises->writes[i].job != event->done.job) i++;
    if (i == promises->num_writes) return;
    const job_facts facts = promises->writes[i];
    promises->num_writes--;
    memmove(&promises->writes[i], &promises->writes[i + 1], (size_t)(promises->num_writes - i) * sizeof facts);
    if (event->done.status.code) return;
    promised_job *job = know(world, facts.job);
    job->is_excused = false;
    store(world, job, &facts, false);
}

const gs_job *promises_find_unwritten(const sim_world *world, const gs_state *state) {
    for (size_t i = 0; i < state->jobs.count; i++) {
        const gs_job *job = state->jobs.items[i];
        const promised_job *known = find(world->promises, job->id);
        bool was_ended = known && known->is_stored && known->stored.state == job->state;
        if (!was_ended && job->started_ms && known && known->is_stored) return job;
    }
    return NULL;
}

bool promises_stored_set(const sim_world *world, uint64_t id, uint32_t generation) {
    const promised_job *job = find(world->promises, id);
    return job && job->trained_generation == generation;
}

void promises_begin_life(sim_world *world, const gs_state *state) {
    for (size_t i = 0; i < state->jobs.count; i++) {
        promised_job *known = know(world, state->jobs.items[i]->id);
        const job_facts facts = facts_of(state->jobs.items[i]);
        store(world, known, &facts, true);
    }
}

// What was on its way may be on the disk or not.
void promises_end_life(sim_world *world) { world->promises->num_writes = 0; }

static void check_stored(sim_world *world, const promised_job *known, const gs_job *job) {
    const job_facts *stored = &known->stored;
    if (gs_job_state_terminal(stored->state) && job->state != stored->state)
        oracle_fail(world, "job %s was %s on the disk, and is %s", job->id_text, gs_job_state_name(stored->state),
                    gs_job_state_name(job->state));
    if (job->step < stored->step && !sets_have_liar(world, job->id))
        oracle_fail(world, "job %s stood at step %" PRId64 " on the disk, and at %" PRId64 " now", job->id_text, stored->step,
                    job->step);
    if (job->generation < stored->generation)
        oracle_fail(world, "job %s had generation %u on the disk, and has %u now", job->id_text, stored->generation,
                    job->generation);
    if (stored->stop_asked && !job->stop_asked) oracle_fail(world, "that job %s was asked to stop is forgotten", job->id_text);
    if (stored->committed && !job->committed) oracle_fail(world, "that job %s has committed is forgotten", job->id_text);
}

static void check_end(sim_world *world, promised_job *known, const gs_job *job) {
    uint64_t life = coordinator_life(world);
    bool ended = gs_job_state_terminal(job->state);
    if (known->ended_life == life && job->state != known->ended_as)
        oracle_fail(world, "job %s had ended, %s, and is %s", job->id_text, gs_job_state_name(known->ended_as),
                    gs_job_state_name(job->state));
    if (!ended) known->ended_ns = 0;
    if (!ended) return;
    if (!known->ended_ns) known->ended_ns = world->now_ns;
    known->ended_life = life;
    known->ended_as = job->state;
    if (job->run) oracle_fail(world, "job %s has ended and has a run", job->id_text);
}

void promises_check(sim_world *world, const gs_state *state) {
    sim_promises *promises = world->promises;
    for (size_t i = 0; i < state->jobs.count; i++) {
        const gs_job *job = state->jobs.items[i];
        promised_job *known = know(world, job->id);
        if (known->is_deleted) oracle_fail(world, "job %s was deleted, and is there", job->id_text);
        if (known->is_stored) check_stored(world, known, job);
        check_end(world, known, job);
        if (known->is_told_ended && job->state != known->told)
            oracle_fail(world, "people were told that job %s is %s, and it is %s", job->id_text, gs_job_state_name(known->told),
                        gs_job_state_name(job->state));
        if (known->is_stopped && !job->stop_asked && !gs_job_state_terminal(job->state))
            oracle_fail(world, "job %s was stopped, and that was answered, and it is %s", job->id_text,
                        gs_job_state_name(job->state));
    }
    for (int i = 0; i < promises->num_jobs; i++) {
        promised_job *known = promises->jobs[i];
        if (known->is_excused || known->is_unreadable) continue;
        if (known->key[0] && !known->may_be_gone && !gs_job_table_get(&state->jobs, known->id))
            oracle_fail(world, "a job that was accepted (%s) is lost", known->key);
    }
}
