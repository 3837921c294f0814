// The coordinator's engine alone, on a clock that a test turns: one worker, one job of two ranks, and a disk that does at
// once what it is asked, unless it is told otherwise. The test speaks for the ranks.
#ifndef TESTS_UNIT_COORDINATOR_ENGINE_PLAY_H
#define TESTS_UNIT_COORDINATOR_ENGINE_PLAY_H

#include "coordinator/engine/engine.h"

#define GS_PLAY_RANKS 2
#define GS_PLAY_AGENT 7  // its incarnation

typedef struct gs_play_rank {
    uint64_t incarnation, launch_token;
    int64_t orphan_ns;  // that it may go on alone, as its last welcome said
    bool ordered_to_stop, ordered_to_die, ordered_after_welcome;
    bool is_gone;  // ended, and its agent has not told it: one that comes back does not list it
} gs_play_rank;

typedef struct gs_play {
    gs_engine *engine;
    int64_t now_ns, wall_ms;
    uint64_t job;
    char job_text[GS_JOB_ID_LEN];
    gs_play_rank ranks[GS_PLAY_RANKS];
    gs_call last_call;
    gs_call answered_calls[32];  // the newest, behind each other
    gs_status answers[32];
    int num_answers;
    // Of the last event from outside: how its call was answered.
    bool answered;
    gs_status answer;
    char refusal[24];  // its code for people; "": none
    bool settlement_saves, settlement_applies;
    // The disk: what it says, whether it keeps what it is asked for later, and how many rows of jobs it got.
    gs_code disk_says, verify_says;  // of rows; of what it reads whole
    gs_code list_says;               // of what lies there, of the first job
    const char *found;               // a directory that it has and nobody knows; NULL: none
    int64_t found_step;              // what it says of one that it looks at
    uint32_t found_generation;
    const char *missing;             // a directory of which it says, when it is asked, that it is gone; NULL: none
    bool disk_waits, verify_waits;
    int disk_does;                   // so much of what it was asked, also while it waits
    int num_job_rows;
    // What people are told: how many notes have this reason (NULL: none is looked for); plans without buckets in orders.
    const char *watched_reason;
    const char *watched_limit;  // how often this bound was said to be reached
    int num_limits;
    int num_watched, num_plans, num_empty_plans, num_checkpoint_rows, num_checks, num_finds, num_purges, num_sweeps;
    int num_goes;  // that ranks were told
    int num_removals;  // of checkpoints' files
    int num_adopt_orders, num_stop_orders, num_kill_orders;  // that agents were given; of stops, those that give no time to save
    bool worker_is_welcome;  // an agent was told so
    bool shows_tokens;               // trainers of the worker do, from its next hello on
    bool looks_out;                  // the worker does, from its next hello on
    bool ranks_live;                 // they leave signs where their checkpoints lie
    bool fence_is_others;            // nobody of them has raised it
    bool raise_is_lost;              // a fence is raised, and nobody hears of it
    gs_code life_says;               // of looks at these
    int64_t last_sign;
    uint32_t fenced;                 // up to which generation the directory is closed
    int num_looks;
    gs_life_look life;               // as it was asked last
    gs_call agent_stream, rank_streams[GS_PLAY_RANKS];  // of their last hello
    uint32_t epoch;                // of the coordinator; its life has the same number
    gs_seen_life seen_by_worker;   // as it says at each hello
    const char *shows_key_of;      // whose key the worker shows at its hello; NULL: nobody asks for one
    const char *says_it_is;        // the name that a worker has then; NULL: "w", whose ranks there are
    int64_t shows_numbers_below;   // that another life has reserved; 0: it shows nothing
    uint64_t says_it_runs;         // the incarnation of all that it runs then, which is none of its own; 0: what was started
    uint32_t ahead;                // of the generation that is known here, as what it runs then
    uint32_t left_by;              // a generation, which has left its fence among the job's checkpoints
    int64_t orphan_ns;             // the setting of the next life; 0: the usual
    int num_ended;  // jobs that the next life finds besides, before its own
    struct gs_play_disk *disk;  // owned
} gs_play;

// A job that waits for nothing but its trainers' Hello.
void gs_play_open(gs_play *play);
void gs_play_open_alone(gs_play *play);  // the same of one rank, which is rank 0
// The way from there to the first step of all ranks.
void gs_play_train(gs_play *play);
// For cmocka: *state becomes a gs_play whose job trains, and is closed again.
int gs_play_set_up_training(void **state);
int gs_play_tear_down(void **state);
// The same job, of which another life of the coordinator left that it trains.
void gs_play_reopen(gs_play *play);
void gs_play_reopen_without_worker(gs_play *play);
void gs_play_close(gs_play *play);

// A message of a rank, bound to its job's generation, with members as a healthy rank has them.
gs_engine_event gs_play_message(gs_play *play, int rank, gs_engine_event_kind kind);
// Takes the event, and performs what it leads to.
void gs_play_hear(gs_play *play, gs_engine_event *event);
void gs_play_say(gs_play *play, int rank, gs_engine_event_kind kind);  // both
void gs_play_say_all(gs_play *play, gs_engine_event_kind kind);         // of every rank
bool gs_play_is_answered(const gs_play *play, gs_call call, gs_status *answer);  // by any event so far
void gs_play_wait(gs_play *play, int64_t ns);                          // in ticks

gs_job *gs_play_submit(gs_play *play, const char *spec);  // one more job, by its specification
void gs_play_lose_worker(gs_play *play);
void gs_play_close_line(gs_play *play, gs_call call);  // a connection, as when its process ends; or when a network does that
void gs_play_close_lines(gs_play *play);               // the worker's and its ranks'
void gs_play_silence_lines(gs_play *play);             // the same, and nothing is closed: a network, or a loss of power
void gs_play_find_worker(gs_play *play);  // it says hello, again
// The same with the ranks of the job's last generation, which another cluster has adopted.
void gs_play_find_worker_of(gs_play *play, const char *cluster);
gs_run *gs_play_run(const gs_play *play);  // NULL: none
// All that decides, as text: equal texts are equal states. Owned by the caller.
char *gs_play_describe(const gs_play *play);

#endif
