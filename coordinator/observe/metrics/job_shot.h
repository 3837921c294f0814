// What the metrics page shows of a job, as it was at one moment: plain numbers and texts of their own, so that another
// thread can write them down while the job goes on.
#ifndef COORDINATOR_OBSERVE_METRICS_JOB_SHOT_H
#define COORDINATOR_OBSERVE_METRICS_JOB_SHOT_H

#include <stdbool.h>
#include <stdint.h>

#include "coordinator/model/job.h"
#include "coordinator/observe/job_sight.h"

typedef struct gs_member_shot {
    char worker[64], host[128], device[8], device_uuid[100];
    bool is_up;
    double silent_seconds, rss_bytes;
} gs_member_shot;

typedef struct gs_bucket_shot {
    double bytes, tensors;
} gs_bucket_shot;

typedef struct gs_job_shot {
    struct gs_job_shot *next;
    char id[GS_JOB_ID_LEN], name[GS_SPEC_NAME_LEN], model[32], optimizer[32], hook[48];
    gs_job_state state;
    int64_t created_ms, started_ms, ended_ms, wall_ms;  // the last: of the moment
    double generation, world_min, world_max, waiting, control_path_degraded, step, lost_steps, target_steps;
    double forming_seconds, recovering_seconds, queued_seconds;
    double rebuilds_ready_order, rebuilds_link, rebuilds_operator;
    gs_link_model link;      // num_samples 0: not known
    int buckets_by_offer[GS_NUM_OFFERS];  // of hook "auto"; zeros: another hook, or nothing was told
    gs_link_pair worst_pair;
    gs_bucket_shot *buckets;  // owned; of the plan
    int num_buckets;
    double num_elements;
    gs_save_facts saves;
    gs_job_metrics *metrics;  // owned
    gs_member_shot *members;  // owned
    int num_members, ranks_shown;
    int num_taken;  // of ranks, so far
    bool shows_ranks;  // each for itself; set by whoever knows how many the page has
} gs_job_shot;

// All but its ranks. NULL: out of memory. Loop thread.
gs_job_shot *gs_job_shot_begin(const gs_job *job);
// The next ones, so that a job of ten thousand holds nobody up. True: that was all. Ranks that have gone meanwhile have said
// nothing.
bool gs_job_shot_take_ranks(gs_job_shot *shot, const gs_job *job, int most);
void gs_job_shots_release(gs_job_shot *shots);     // and those behind it

#endif
