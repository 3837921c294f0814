#include "tests/simulation/oracle.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/simulation/coordinator.h"
#include "tests/simulation/files.h"
#include "tests/simulation/people.h"
#include "tests/simulation/trainer.h"

#define MAX_PROMISES 64
#define MAX_GENERATIONS 4096

typedef struct known_save {
    char directory[80];
    int64_t step;
} known_save;

// What is known of a job, whoever tells of it.
typedef struct known_job {
    uint64_t id;
    char key[24];
    bool is_promised, may_be_deleted;
    bool was_terminal;
    uint32_t generation;  // the newest that has committed
    int64_t step;         // the furthest that was committed or settled
    bool is_excused;      // its record was lost by a disk that lied
    bool is_unreadable;   // in this life
    known_save *saves;    // owned; that a rank was told are saved, as long as they must be there
    size_t num_saves, max_saves;
} known_job;

struct sim_oracle {
    char finding[400];
    known_job jobs[MAX_PROMISES];
    int num_jobs;
    struct {
        uint32_t generation;
        uint64_t job, incarnations[8];
    } generations[MAX_GENERATIONS];
    int num_generations;
};

void oracle_create(sim_world *world) { world->oracle = calloc(1, sizeof *world->oracle); }

void oracle_destroy(sim_world *world) {
    for (int i = 0; i < world->oracle->num_jobs; i++) free(world->oracle->jobs[i].saves);
    free(world->oracle);
}

void oracle_fail(sim_world *world, const char *format, ...) {
    if (world->oracle->finding[0]) return;
    va_list args;
    va_start(args, format);
    vsnprintf(world->oracle->finding, sizeof world->oracle->finding, format, args);
    va_end(args);
    world_tell(world, "WRONG: %s", world->oracle->finding);
}

const char *oracle_finding(const sim_world *world) {
    return world->oracle->finding[0] ? world->oracle->finding : NULL;
}

static known_job *know(sim_world *world, uint64_t id) {
    sim_oracle *oracle = world->oracle;
    for (int i = 0; i < oracle->num_jobs; i++) {
        if (oracle->jobs[i].id == id) return &oracle->jobs[i];
    }
    if (oracle->num_jobs == MAX_PROMISES) abort();
    known_job *job = &oracle->jobs[oracle->num_jobs++];
    job->id = id;
    return job;
}

void oracle_promised(sim_world *world, const char *key, uint64_t id) {
    for (int i = 0; i < world->oracle->num_jobs; i++) {
        const known_job *other = &world->oracle->jobs[i];
        if (other->is_promised && !strcmp(other->key, key) && other->id != id && !other->may_be_deleted)
            oracle_fail(world, "one request (%s) made two jobs", key);
    }
    known_job *job = know(world, id);
    job->is_promised = true;
    snprintf(job->key, sizeof job->key, "%s", key);
}

void oracle_may_be_deleted(sim_world *world, uint64_t id) { know(world, id)->may_be_deleted = true; }

void oracle_answered_job(sim_world *world, const gs_job *job) {
    known_job *known = know(world, job->id);
    known->was_terminal |= gs_job_state_terminal(job->state) && !job->dirty;
}

static int64_t saved_step(const known_job *job) {
    int64_t step = -1;
    for (size_t i = 0; i < job->num_saves; i++) {
        if (job->saves[i].step > step) step = job->saves[i].step;
    }
    return step;
}

void oracle_acknowledged_save(sim_world *world, uint64_t id, const char *directory, int64_t step) {
    known_job *job = know(world, id);
    const saved_file *file = files_find(world, id, directory);
    // One that rotted, or that newer ones replaced, before its rank was told.
    if (!file || file->is_damaged) return;
    if (job->num_saves == job->max_saves) {
        job->max_saves = job->max_saves ? job->max_saves * 2 : 8;
        job->saves = realloc(job->saves, job->max_saves * sizeof *job->saves);
    }
    known_save *save = &job->saves[job->num_saves++];
    snprintf(save->directory, sizeof save->directory, "%s", directory);
    save->step = step;
}

static void forget_save(known_job *job, const char *directory) {
    size_t kept = 0;
    for (size_t i = 0; i < job->num_saves; i++) {
        if (strcmp(job->saves[i].directory, directory) != 0) job->saves[kept++] = job->saves[i];
    }
    job->num_saves = kept;
}

void oracle_damaged(sim_world *world, uint64_t id, const char *directory) { forget_save(know(world, id), directory); }

void oracle_removed(sim_world *world, uint64_t id, const char *directory) {
    known_job *job = know(world, id);
    if (!directory) {
        if (!job->may_be_deleted) oracle_fail(world, "the files of a job that nobody deleted are removed");
        job->num_saves = 0;
        return;
    }
    size_t before = job->num_saves;
    int64_t step = saved_step(job), left = -1;
    forget_save(job, directory);
    for (const saved_file *file = world->files; file; file = file->next) {
        bool stays = file->job == id && !file->is_damaged && strcmp(file->directory, directory) != 0;
        if (stays && file->step > left) left = file->step;
    }
    if (job->num_saves < before && left < step)
        oracle_fail(world, "checkpoint %s is removed, though the newest that is left is of step %" PRId64, directory, left);
}

void oracle_excuse_job(sim_world *world, uint64_t id) { know(world, id)->is_excused = true; }

void oracle_can_read(sim_world *world, uint64_t id, bool is_readable) { know(world, id)->is_unreadable = !is_readable; }

// Every job that was promised is there, in each life.
static void check_promises(sim_world *world) {
    const gs_state *state = coordinator_state(world);
    for (int i = 0; state && i < world->oracle->num_jobs; i++) {
        const known_job *known = &world->oracle->jobs[i];
        if (!known->is_promised || known->may_be_deleted || known->is_excused || known->is_unreadable) continue;
        const gs_job *job = gs_job_table_get(&state->jobs, known->id);
        if (!job) oracle_fail(world, "a job that was accepted (%s) is lost", known->key);
    }
}

void oracle_check_recovery(sim_world *world) { check_promises(world); }

void oracle_prepared(sim_world *world, uint64_t job, uint32_t generation, int rank, uint64_t incarnation) {
    sim_oracle *oracle = world->oracle;
    int i = 0;
    while (i < oracle->num_generations && oracle->generations[i].generation != generation) i++;
    if (i == MAX_GENERATIONS || rank < 0 || rank >= 8) return;
    if (i == oracle->num_generations) {
        oracle->num_generations++;
        oracle->generations[i].generation = generation;
        oracle->generations[i].job = job;
    }
    uint64_t *known = &oracle->generations[i].incarnations[rank];
    if (oracle->generations[i].job != job || (*known && *known != incarnation))
        oracle_fail(world, "generation %u is handed out twice", generation);
    *known = incarnation;
}

void oracle_started(sim_world *world, uint64_t id, int64_t step) {
    known_job *job = know(world, id);
    if (step < saved_step(job))
        oracle_fail(world, "a rank starts from step %" PRId64 " though step %" PRId64 " was saved and acknowledged", step,
                    saved_step(job));
}

void oracle_committed(sim_world *world, uint64_t id, uint32_t generation, int64_t step) {
    known_job *job = know(world, id);
    if (generation < job->generation)
        oracle_fail(world, "generation %u commits step %" PRId64 " behind generation %u: two sets of ranks train", generation,
                    step, job->generation);
    job->generation = generation;
    if (step > job->step) job->step = step;
}

void oracle_settled(sim_world *world, uint64_t id, uint32_t generation, int64_t step) {
    known_job *job = know(world, id);
    if (generation >= job->generation && step > job->step) job->step = step;
}

// A slot is taken by one trainer, and each member has its own.
static void check_slots(sim_world *world, const gs_state *state) {
    for (size_t i = 0; i < state->agents.count; i++) {
        const gs_agent *agent = state->agents.items[i];
        for (int a = 0; a < agent->num_slots; a++) {
            for (int b = a + 1; b < agent->num_slots; b++) {
                uint64_t incarnation = agent->slots[a].incarnation;
                if (incarnation && incarnation == agent->slots[b].incarnation)
                    oracle_fail(world, "one trainer is in two slots of %s", agent->name);
            }
        }
    }
}

static void check_jobs(sim_world *world, const gs_state *state) {
    for (size_t i = 0; i < state->jobs.count; i++) {
        const gs_job *job = state->jobs.items[i];
        bool ended = gs_job_state_terminal(job->state);
        if (ended && job->run) oracle_fail(world, "job %s has ended and has a run", job->id_text);
        if (i > 0 && state->jobs.items[i - 1]->id >= job->id && state->jobs.items[i - 1]->created_ms <= job->created_ms)
            continue;  // ids follow the wall clock, which may jump
        const gs_run *run = job->run;
        for (int m = 0; run && m < run->num_members; m++) {
            const gs_member *member = &run->members[m];
            if (gs_state_member(state, member->incarnation) != member)
                oracle_fail(world, "rank %d of job %s is not found by its incarnation", m, job->id_text);
            if (run->generation > state->generations.durable_end)
                oracle_fail(world, "generation %u is used before it is reserved", run->generation);
        }
    }
}

void oracle_check_state(sim_world *world) {
    const gs_state *state = coordinator_state(world);
    if (!state) return;
    check_slots(world, state);
    check_jobs(world, state);
    check_promises(world);
}

void oracle_see_effect(sim_world *world, const gs_effect *effect) {
    if (effect->kind == GS_DO_TELL_MEMBER && effect->member_message.order == GS_TELL_GO && effect->run->phase != GS_RUN_TRAINING &&
        effect->run->phase != GS_RUN_RELOADING)
        oracle_fail(world, "go to a generation that is %s", gs_run_phase_name(effect->run->phase));
}

// Of a job that nobody knows any more: an operator lets its trainers go.
static bool is_excused(const sim_world *world, uint64_t job) {
    for (int i = 0; i < world->oracle->num_jobs; i++) {
        if (world->oracle->jobs[i].id == job) return world->oracle->jobs[i].is_excused;
    }
    return false;
}

static bool all_ended(const sim_world *world) {
    const gs_state *state = coordinator_state(world);
    if (!state) return false;
    for (int i = 0; i < world->people->num_wishes; i++) {
        if (!world->people->wishes[i].job) return false;
    }
    for (size_t i = 0; i < state->jobs.count; i++) {
        if (!gs_job_state_terminal(state->jobs.items[i]->state)) return false;
    }
    for (const sim_trainer *trainer = world->trainers; trainer; trainer = trainer->next) {
        if (trainer_lives(trainer) && !is_excused(world, trainer->peer.job)) return false;
    }
    return true;
}

bool oracle_is_done(const sim_world *world) {
    return world->oracle->finding[0] || (world->is_calm && all_ended(world));
}

static void judge_trainers(sim_world *world, const gs_state *state) {
    for (const sim_trainer *trainer = world->trainers; trainer; trainer = trainer->next) {
        if (!trainer_lives(trainer) || is_excused(world, trainer->peer.job)) continue;
        const gs_job *job = gs_job_table_get(&state->jobs, trainer->peer.job);
        oracle_fail(world, "trainer %d (state %d, rank %d of generation %u) still runs for a job that is %s", trainer->number,
                    (int)trainer->state, trainer->rank, trainer->generation, job ? gs_job_state_name(job->state) : "gone");
    }
}

void oracle_judge_end(sim_world *world) {
    if (oracle_finding(world) || (world->is_calm && all_ended(world))) return;
    const gs_state *state = coordinator_state(world);
    if (!state) {
        oracle_fail(world, "the coordinator does not come back");
        return;
    }
    for (size_t i = 0; i < state->jobs.count; i++) {
        const gs_job *job = state->jobs.items[i];
        if (gs_job_state_terminal(job->state)) continue;
        oracle_fail(world, "job %s never ends: it is %s (%s: %s)%s%s", job->id_text, gs_job_state_name(job->state), job->reason,
                    job->message, job->run ? ", its run is " : "", job->run ? gs_run_phase_name(job->run->phase) : "");
    }
    judge_trainers(world, state);
    for (int i = 0; i < world->people->num_wishes; i++) {
        if (!world->people->wishes[i].job) oracle_fail(world, "a request is never answered");
    }
}
