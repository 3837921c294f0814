// What ranks that do not see the directory of checkpoints would have saved comes to one that does: every byte, of as many ranks as there
// are, whichever of them sees it, and nothing of a rank that has nothing or says what cannot be. A rank is a letter of the argument: s
// sees it, a does not; x does not and has no snapshot, X sees it and has none; b says that it has elements that there are not, h more
// tensors than any memory has room for.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "core/random.h"
#include "core/thread.h"
#include "tests/support/asserts.h"
#include "tests/support/comm_rank.h"
#include "tests/support/sample.h"
#include "tests/support/soon.h"
#include "tests/support/temp_dir.h"
#include "worker/checkpoint/save_team.h"

// Four pieces; small; empty; and what each rank has of its own.
enum { LARGE, COUNTS, EMPTY, NUM_TENSORS, OWN = NUM_TENSORS, NUM_ALL };
static size_t large_count = 3200001;
#define HUGE_COUNT ((size_t)40000000)
// Pieces that wait for the disk, one on its way, a digest, and what allocators keep; of 107 MB that come.
#define MOST_MEMORY_BYTES ((int64_t)(GS_INTAKE_PIECES * GS_INTAKE_PIECE_BYTES + ((size_t)16 << 20)))
#define OWN_COUNT ((size_t)1234)
#define STEP 7
#define FROZEN_TIMEOUT_SECONDS 3.0
#define MOST_BRINGS 100000
#define NUM_HUNTS 12
#define MOST_LEAD_US 400000
#define NUM_STEPS 50
// Of all of them: one that waited for the disk would take no less than it.
#define MOST_STEPS_SECONDS 10.0
#define SAVE_SECONDS 2.0

static uint8_t byte_of(int rank, size_t tensor, size_t at) { return (uint8_t)(at * 7 + at / 251 + tensor * 31 + (size_t)rank * 101); }

static void describe(gs_state_tensor *tensor, const char *name, gs_dtype dtype, size_t count) {
    *tensor = (gs_state_tensor){.dtype = dtype, .num_dims = 1, .shape = {(int64_t)count}, .bytes = count * gs_dtype_bytes(dtype)};
    snprintf(tensor->name, sizeof tensor->name, "%s", name);
}

// A third of the large one each, by rank; the counts are of the first alone.
static gs_segment part_of(const gs_state_snapshot *it, int rank, size_t tensor, int world_size) {
    size_t count = it->tensors[tensor].bytes / gs_dtype_bytes(it->tensors[tensor].dtype), each = count / (size_t)world_size;
    if (tensor == OWN) return (gs_segment){.tensor = tensor, .first = (size_t)rank * OWN_COUNT, .count = OWN_COUNT};
    if (tensor == LARGE) return (gs_segment){.tensor = tensor, .first = (size_t)rank * each, .count = rank + 1 == world_size ? count - (size_t)rank * each : each};
    return (gs_segment){.tensor = tensor, .count = rank ? 0 : count};
}

static void make_snapshot(gs_state_snapshot *it, int rank, int world_size, bool is_part) {
    *it = (gs_state_snapshot){.num_tensors = NUM_TENSORS, .num_own = 1, .is_part = is_part, .position = {.step = STEP},
                              .shares = {.first = rank, .count = 1, .world_size = world_size}};
    it->tensors = calloc(NUM_ALL, sizeof *it->tensors);
    it->here = calloc(NUM_ALL, sizeof *it->here);
    it->data = calloc(NUM_ALL, sizeof *it->data);
    describe(&it->tensors[LARGE], "large", GS_FP32, large_count);
    describe(&it->tensors[COUNTS], "counts", GS_I64, 5);
    describe(&it->tensors[EMPTY], "empty", GS_FP32, 0);
    describe(&it->tensors[OWN], "own", GS_FP32, OWN_COUNT * (size_t)world_size);
    for (size_t i = 0; i < NUM_ALL; i++) {
        it->here[i] = part_of(it, rank, i, world_size);
        if (!is_part && i < NUM_TENSORS)
            it->here[i] = (gs_segment){.tensor = i, .count = it->tensors[i].bytes / gs_dtype_bytes(it->tensors[i].dtype)};
        it->bytes += it->here[i].count * gs_dtype_bytes(it->tensors[i].dtype);
    }
    uint8_t *at = it->memory = malloc(it->bytes + 1);
    for (size_t i = 0; i < NUM_ALL; i++) {
        size_t bytes = it->here[i].count * gs_dtype_bytes(it->tensors[i].dtype);
        it->data[i] = at;
        for (size_t k = 0; k < bytes; k++) at[k] = byte_of(is_part || i == OWN ? rank : 0, i, k);
        at += bytes;
    }
}

#define LOOK_BYTES ((size_t)1 << 20)

// What is here of a tensor: of one that came it lies in the spill, behind those before it.
static gs_status check_bytes(const gs_state_snapshot *it, const gs_spill *spill, size_t tensor, size_t place, int from) {
    static uint8_t look[LOOK_BYTES];
    size_t total = it->here[tensor].count * gs_dtype_bytes(it->tensors[tensor].dtype);
    for (size_t first = 0; first < total; first += LOOK_BYTES) {
        size_t bytes = total - first < LOOK_BYTES ? total - first : LOOK_BYTES;
        const uint8_t *data = it->data[tensor] ? it->data[tensor] + first : look;
        if (!it->data[tensor]) GS_TRY(gs_spill_read(spill, place + first, look, bytes));
        for (size_t k = 0; k < bytes; k++)
            if (data[k] != byte_of(from, tensor, first + k)) return gs_error(GS_DATA_LOSS, "tensor %zu of rank %d: byte %zu", tensor, from, first + k);
    }
    return gs_ok();
}

static gs_status check_brought(const gs_state_snapshot *it, const gs_spill *spill, int from, int world_size) {
    size_t place = 0;
    for (size_t i = 0; i < NUM_ALL; i++) {
        bool is_common = !it->is_part && i < NUM_TENSORS;
        gs_segment wanted = part_of(it, from, i, world_size);
        if (!is_common && (it->here[i].first != wanted.first || it->here[i].count != wanted.count))
            return gs_error(GS_INTERNAL, "tensor %zu of rank %d: elements %zu + %zu", i, from, it->here[i].first, it->here[i].count);
        GS_TRY(check_bytes(it, spill, i, place, is_common ? 0 : from));
        if (!it->data[i]) place += it->here[i].count * gs_dtype_bytes(it->tensors[i].dtype);
    }
    return it->shares.first == from && it->shares.count == 1 && it->position.step == STEP ? gs_ok() : gs_error(GS_INTERNAL, "of rank %d", it->shares.first);
}

static const gs_brought_part *find_part(gs_part_intake *intake, int rank) {
    for (int i = 0; intake && i < gs_part_intake_count(intake); i++)
        if (gs_part_intake_part(intake, i)->rank == rank) return gs_part_intake_part(intake, i);
    return NULL;
}

// Of each rank that is an `a`, and of no other.
static gs_status check_all(gs_part_intake *intake, const char *letters, int world_size) {
    for (int from = 0; from < world_size; from++) {
        const gs_brought_part *it = find_part(intake, from);
        bool came = it && !it->status.code;
        if (came != (letters[from] == 'a'))
            return gs_error(GS_INTERNAL, "rank %d brought %s: %s", from, came ? "something" : "nothing", it ? it->status.message : "not heard of");
        if (came) GS_TRY(check_brought(&it->snapshot, it->spill, from, world_size));
    }
    return gs_ok();
}

// What a rank that saves has beside its training: the thread that gives to the disk what comes.
typedef struct taking {
    gs_part_intake *intake;  // NULL: this rank does not save
    gs_thread *thread;
} taking;

static void run_intake(void *ctx, const atomic_bool *stopping) {
    (void)stopping;
    gs_part_intake_run(ctx);
}

static gs_status take(taking *it, const gs_save_team *team, const char *directory) {
    *it = (taking){0};
    if (gs_comm_rank(team->comm) != team->saver) return gs_ok();
    GS_TRY(gs_part_intake_create(&it->intake, directory, team->num_apart));
    return gs_thread_start(&it->thread, "test-intake", run_intake, it->intake);
}

static void release(taking *it) {
    gs_thread_stop(it->thread);
    gs_part_intake_destroy(it->intake);
    *it = (taking){0};
}

// All that there is, however long the disk takes. What came is in `it`.
static gs_status bring_all(taking *it, const gs_save_team *team, const gs_state_snapshot *mine, const char *directory, gs_deadline ready) {
    gs_bringing *bringing;
    GS_TRY(take(it, team, directory));
    if (!mine && it->intake) gs_part_intake_end(it->intake, gs_ok());
    gs_status status = gs_save_team_begin(&bringing, team, mine, mine ? it->intake : NULL, ready);
    if (status.code) {
        if (mine && it->intake) gs_part_intake_end(it->intake, status);
        return status;
    }
    status = gs_save_team_finish(bringing, soon());
    if (!status.code) status = gs_save_team_refusal(bringing);
    gs_save_team_part(bringing);
    gs_thread_stop(it->thread);  // all has come: it ends
    it->thread = NULL;
    return status;
}

// What a rank would offer that is broken, or means harm: of each word the worst.
static gs_status offer_the_worst(gs_comm *comm, int64_t num_tensors) {
    int64_t words[] = {1, STEP, num_tensors, 1, 1, INT64_MIN}, all[8 * sizeof words / sizeof *words];
    return gs_comm_run(comm,
                       &(gs_collective){.kind = GS_ALLGATHER, .send = words, .recv = all, .count = sizeof words / sizeof *words,
                                        .dtype = GS_I64, .step = -1, .bucket = -1},
                       soon());
}

// Memory of this process that no file is behind.
static int64_t anonymous_bytes(void) {
    char line[200];
    int64_t kilobytes = -1;
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        if (strncmp(line, "RssAnon:", 8) == 0) kilobytes = strtoll(line + 8, NULL, 10);
    if (status) fclose(status);
    return kilobytes * 1024;
}

static void limit_files(rlim_t bytes) {
    struct rlimit limit;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    setrlimit(RLIMIT_FSIZE, &limit);
}

// Which of those that bring are refused the first time.
static bool is_refused(const char *letters, int world_size, int rank) {
    bool is_first = strchr(letters, 'a') == &letters[rank];
    return letters[rank] == 'a' && ((letters[world_size] == 'm' && is_first) || letters[world_size] == 'f');
}

// Behind the letters: w of a state that all have whole; l: the saver comes later than a collective may; m: it has no room for the
// first that comes, or cannot write it, and the second time it has; f: its disk is full the first time; y: much comes.
static gs_status bring(const gs_rank_env *env) {
    char *directory = gs_temp_dir_make(), job[PATH_MAX];
    snprintf(job, sizeof job, "%s/checkpoints/job", directory);
    if (env->arg[env->world_size] == 'y') large_count = HUGE_COUNT;
    comm_rank self;
    gs_save_team team = {0};
    taking it = {0};
    gs_state_snapshot mine = {0};
    char letter = env->arg[env->rank];
    int saver = (int)strcspn(env->arg, "sX");
    bool nobody = !strpbrk(env->arg, "sX");
    gs_status status = comm_rank_open(&self, env, 4096, NULL);
    bool comes_late = env->arg[env->world_size] == 'l';
    make_snapshot(&mine, env->rank, env->world_size, env->arg[env->world_size] != 'w');
    if (letter == 'b') mine.here[LARGE] = (gs_segment){.first = large_count - 1, .count = 2};
    if (!status.code) status = gs_save_team_meet(&team, self.comm, letter != 's' && letter != 'X', comes_late ? 3 : 30, soon());
    if (!status.code && (team.saver != (nobody ? 0 : saver) || (team.num_apart == 0) != nobody))
        status = gs_error(GS_INTERNAL, "rank %d saves, %d are apart", team.saver, team.num_apart);
    if (!status.code && letter == 'h') {
        status = offer_the_worst(self.comm, INT64_MAX);
        nobody = true;
    }
    for (int i = 0; i < 2 && !status.code && !nobody; i++) {
        if (comes_late && env->rank == saver) gs_sleep_ns(7 * GS_NS_PER_SEC);
        bool is_ready = letter != 'x' && letter != 'X';
        if (env->arg[env->world_size] == 'f' && env->rank == saver) limit_files(i ? RLIM_INFINITY : 1 << 20);
        int64_t before = anonymous_bytes();
        release(&it);
        gs_status other = bring_all(&it, &team, is_ready ? &mine : NULL, job, comes_late ? soon() : (gs_deadline){0});
        int64_t grown = anonymous_bytes() - before;
        if (env->arg[env->world_size] == 'y' && grown > MOST_MEMORY_BYTES)
            other = gs_error(GS_INTERNAL, "%lld bytes of memory for what is brought", (long long)grown);
        bool no_room = i == 0 && is_refused(env->arg, env->world_size, env->rank);
        // Whose last pieces are on their way to the disk hears of nothing: the saver tells of that.
        if (no_room) {
            if (other.code && other.code != GS_RESOURCE_EXHAUSTED) status = gs_error(GS_INTERNAL, "there was no room, and it says %d", (int)other.code);
            continue;
        }
        bool refused = letter == 'x' || (env->arg[saver] == 'X' && letter == 'a');
        if (refused && !other.code) status = gs_error(GS_INTERNAL, "what is not there was brought");
        else if (!refused || other.code != GS_UNAVAILABLE) status = other;
        const char *letters = env->arg[saver] == 'X' ? "" : env->arg;
        char came[16];
        snprintf(came, sizeof came, "%s", *letters ? letters : "....");
        for (int r = 0; r < env->world_size && i == 0; r++)
            if (is_refused(env->arg, env->world_size, r)) came[r] = '.';
        if (!status.code && env->rank == saver) status = check_all(it.intake, came, env->world_size);
    }
    release(&it);
    gs_state_snapshot_release(&mine);
    gs_save_team_release(&team);
    comm_rank_close(&self);
    gs_temp_dir_remove(directory);
    return status;
}

// Brings over and over between ranks that share no memory, until somebody is gone or frozen: what is taken is whole and right, and of what
// was cut off nothing is kept.
static gs_status bring_until_the_end(const gs_rank_env *env) {
    comm_rank self;
    gs_save_team team = {0};
    taking it = {0};
    gs_state_snapshot mine = {0};
    char *directory = gs_temp_dir_make(), job[PATH_MAX];
    snprintf(job, sizeof job, "%s/job", directory);
    gs_status status = comm_rank_open(&self, env, 4096, &(gs_comm_options){.backend = "net", .generation = 1});
    make_snapshot(&mine, env->rank, env->world_size, true);
    if (!status.code) status = gs_save_team_meet(&team, self.comm, env->rank != 0, FROZEN_TIMEOUT_SECONDS, soon());
    if (!status.code) gs_rank_note(env, "begins");
    for (int i = 0; i < MOST_BRINGS && !status.code; i++) {
        release(&it);
        status = bring_all(&it, &team, &mine, job, (gs_deadline){0});
        if (env->rank != 0 || !it.intake) continue;
        gs_thread_stop(it.thread);
        it.thread = NULL;
        char came[] = "s..";
        for (int from = 1; from < 3; from++)
            if (find_part(it.intake, from) && !find_part(it.intake, from)->status.code) came[from] = 'a';
        gs_status whole = check_all(it.intake, status.code ? came : "saa", env->world_size);
        if (whole.code) status = gs_error(GS_INTERNAL, "taken for whole: %s", whole.message);
    }
    release(&it);
    gs_state_snapshot_release(&mine);
    gs_save_team_release(&team);
    comm_rank_close(&self);
    gs_temp_dir_remove(directory);
    return status.code ? status : gs_error(GS_INTERNAL, "%d times brought, and nobody was hit", MOST_BRINGS);
}

// Steps of a training, whose ranks wait for each other in each, beside a save that gets nowhere.
static gs_status step_beside(gs_bringing *bringing, gs_comm *comm) {
    int64_t begin_ns = gs_now_ns();
    for (int i = 0; i < NUM_STEPS; i++) {
        GS_TRY(gs_comm_run(comm, &(gs_collective){.kind = GS_BARRIER, .bucket = -1}, soon()));
        GS_TRY(gs_save_team_go_on(bringing));
        if (gs_save_team_is_done(bringing)) return gs_error(GS_INTERNAL, "all came, and no disk has it");
    }
    double seconds = gs_seconds_since(begin_ns);
    return seconds < MOST_STEPS_SECONDS ? gs_ok() : gs_error(GS_INTERNAL, "%d steps beside a disk that hangs took %.1f s", NUM_STEPS, seconds);
}

// A disk that hangs is a thread that does not come to its work. In the end it does: then all is there.
static gs_status hang_a_while(taking *it, const gs_save_team *team, const gs_state_snapshot *mine, const char *directory) {
    gs_bringing *bringing;
    bool saves = gs_comm_rank(team->comm) == team->saver;
    if (saves) GS_TRY(gs_part_intake_create(&it->intake, directory, team->num_apart));
    GS_TRY(gs_save_team_begin(&bringing, team, mine, it->intake, (gs_deadline){0}));
    gs_status status = step_beside(bringing, team->comm);
    if (!status.code && saves) status = gs_thread_start(&it->thread, "test-intake", run_intake, it->intake);
    if (!status.code) status = gs_save_team_finish(bringing, soon());
    if (!status.code) status = gs_save_team_refusal(bringing);
    gs_save_team_part(bringing);
    gs_thread_stop(it->thread);
    it->thread = NULL;
    return !status.code && saves ? check_all(it->intake, "saa", 3) : status;
}

// Until the deadline of the save, or of the ranks.
static gs_status hang_for_ever(taking *it, const gs_save_team *team, const gs_state_snapshot *mine, const char *directory, bool part) {
    gs_bringing *bringing;
    bool saves = gs_comm_rank(team->comm) == team->saver;
    if (saves) GS_TRY(gs_part_intake_create(&it->intake, directory, team->num_apart));
    GS_TRY(gs_save_team_begin(&bringing, team, mine, it->intake, (gs_deadline){0}));
    int64_t begin_ns = gs_now_ns();
    gs_status status = part ? gs_save_team_go_on(bringing) : gs_save_team_finish(bringing, gs_deadline_in_seconds(SAVE_SECONDS));
    double seconds = gs_seconds_since(begin_ns);
    gs_status refusal = gs_save_team_refusal(bringing);
    gs_save_team_part(bringing);
    if (!status.code && !part && (seconds < 0.5 * SAVE_SECONDS || seconds > SAVE_SECONDS + 5))
        status = gs_error(GS_INTERNAL, "given up behind %.1f s", seconds);
    if (!status.code && !part && team->is_apart && refusal.code != GS_RESOURCE_EXHAUSTED)
        status = gs_error(GS_INTERNAL, "given up, and says %d", (int)refusal.code);
    if (!saves || status.code) return status;
    gs_part_intake_run(it->intake);
    GS_TRY(check_all(it->intake, "s..", 3));
    const gs_brought_part *first = find_part(it->intake, 1);
    gs_code wanted = part ? GS_ABORTED : GS_DEADLINE_EXCEEDED;
    return first && first->status.code == wanted ? gs_ok() : gs_error(GS_INTERNAL, "the saver says: %s", first ? first->status.message : "nothing");
}

static gs_status hang(const gs_rank_env *env) {
    char *directory = gs_temp_dir_make(), job[PATH_MAX];
    snprintf(job, sizeof job, "%s/job", directory);
    comm_rank self;
    gs_save_team team = {0};
    taking it = {0};
    gs_state_snapshot mine = {0};
    large_count = HUGE_COUNT;
    gs_status status = comm_rank_open(&self, env, 4096, NULL);
    make_snapshot(&mine, env->rank, env->world_size, true);
    if (!status.code) status = gs_save_team_meet(&team, self.comm, env->rank != 0, 30, soon());
    if (!status.code) status = hang_a_while(&it, &team, &mine, job);
    for (int i = 0; i < 2 && !status.code; i++) {
        release(&it);
        status = hang_for_ever(&it, &team, &mine, job, i == 1);
    }
    release(&it);
    gs_state_snapshot_release(&mine);
    gs_save_team_release(&team);
    comm_rank_close(&self);
    gs_temp_dir_remove(directory);
    return status;
}

static const gs_rank_body bodies[] = {{"bring", bring}, {"bring_until_the_end", bring_until_the_end}, {"hang", hang}, {0}};

static gs_status run(const char *letters) {
    print_message("%s\n", letters);
    return gs_ranks_run("bring", (int)strcspn(letters, "wlmfy"), letters, gs_deadline_in_seconds(120));
}

static void every_byte_comes_to_the_lowest_rank_that_sees_the_directory(void **state) {
    (void)state;
    assert_ok(run("saa"));
    assert_ok(run("aas"));
    assert_ok(run("assa"));
}

static void of_a_whole_state_only_what_is_each_ranks_own(void **state) {
    (void)state;
    assert_ok(run("asaw"));
}

static void where_nobody_sees_it_each_writes_where_it_is(void **state) {
    (void)state;
    assert_ok(run("aaa"));
}

static void who_has_nothing_keeps_nobody_waiting(void **state) {
    (void)state;
    assert_ok(run("sxa"));
    assert_ok(run("aXs"));
}

static void who_saves_for_others_may_come_later_than_a_collective_may(void **state) {
    (void)state;
    assert_ok(run("sal"));
}

// A save that fails stops no training: the next one is as if nothing had been.
static void run_with_failpoint(const char *failpoint) {
#ifdef GRADSYNC_FAILPOINTS
    setenv("GRADSYNC_FAILPOINTS", failpoint, 1);
    gs_status status = run("saam");
    unsetenv("GRADSYNC_FAILPOINTS");
    assert_ok(status);
#else
    print_message("a build without failpoints: not %s\n", failpoint);
    skip();
#endif
}

static void what_there_is_no_room_for_is_left_out(void **state) {
    (void)state;
    run_with_failpoint("save_team.room#0=error");
}

static void what_cannot_be_kept_is_left_out(void **state) {
    (void)state;
    run_with_failpoint("spill.write#0=error");
}

static void a_full_disk_takes_nothing_and_the_next_time_all(void **state) {
    (void)state;
    assert_ok(run("saaf"));
}

static void much_that_comes_is_not_kept_in_memory(void **state) {
    (void)state;
    assert_ok(run("saay"));
}

static void a_part_that_cannot_be_is_refused_before_room_is_made(void **state) {
    (void)state;
    gs_status status = run("sha");  // or ABORTED by who was the first to see it
    assert_non_null(strstr(status.message, "rank 1 offers a part of a state that cannot be"));
}

static void elements_that_there_are_not_are_refused(void **state) {
    (void)state;
    gs_status status = run("sba");
    assert_int_equal(status.code, GS_DATA_LOSS);
    assert_non_null(strstr(status.message, "rank 1 brings elements of tensor \"large\" that there are not"));
}

static void a_disk_that_hangs_holds_up_no_step(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("hang", 3, "saa", gs_deadline_in_seconds(120)));
}

// One rank of three, at a drawn moment of many brings.
static void hunt(uint64_t seed, uint64_t number) {
    gs_random_key key = {seed, number};
    int victim = (int)(gs_random_uniform(key, 0) * 3);
    bool freezes = number % 3 == 2;
    int64_t lead_us = (int64_t)(gs_random_uniform(key, 1) * MOST_LEAD_US);
    gs_status statuses[3];
    gs_ranks *ranks;
    print_message("rank %d is %s behind %lld us\n", victim, freezes ? "frozen" : "killed", (long long)lead_us);
    assert_ok(gs_ranks_start(&ranks, "bring_until_the_end", 3, "saa", NULL));
    for (int rank = 0; rank < 3; rank++) assert_ok(gs_ranks_wait_note(ranks, rank, "begins", gs_deadline_in_seconds(60)));
    gs_sleep_ns(lead_us * 1000);
    gs_ranks_signal(ranks, victim, freezes ? SIGSTOP : SIGKILL);
    if (freezes) {  // wakes up when the others have given it up
        gs_sleep_ns((int64_t)(3 * FROZEN_TIMEOUT_SECONDS * 1e9));
        gs_ranks_signal(ranks, victim, SIGCONT);
    }
    gs_status ended = gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(120));
    gs_ranks_destroy(ranks);
    assert_ok(ended);
    for (int rank = 0; rank < 3; rank++) {
        if (statuses[rank].code != GS_ABORTED && statuses[rank].code != GS_DEADLINE_EXCEEDED)
            fail_msg("seed %llu, hunt %llu: rank %d: %s", (unsigned long long)seed, (unsigned long long)number, rank, statuses[rank].message);
    }
}

static void of_what_was_cut_off_nothing_is_taken_for_whole(void **state) {
    (void)state;
    uint64_t seed = sample_seed("hunts");
    for (uint64_t number = 0; number < NUM_HUNTS; number++) hunt(seed, number);
}

int main(int argc, char **argv) {
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    // Ranks that are killed leave theirs behind.
    char *directory = gs_temp_dir_make();
    setenv("TMPDIR", directory, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_comes_to_the_lowest_rank_that_sees_the_directory),
        cmocka_unit_test(of_a_whole_state_only_what_is_each_ranks_own),
        cmocka_unit_test(where_nobody_sees_it_each_writes_where_it_is),
        cmocka_unit_test(who_has_nothing_keeps_nobody_waiting),
        cmocka_unit_test(who_saves_for_others_may_come_later_than_a_collective_may),
        cmocka_unit_test(what_there_is_no_room_for_is_left_out),
        cmocka_unit_test(what_cannot_be_kept_is_left_out),
        cmocka_unit_test(a_full_disk_takes_nothing_and_the_next_time_all),
        cmocka_unit_test(much_that_comes_is_not_kept_in_memory),
        cmocka_unit_test(a_disk_that_hangs_holds_up_no_step),
        cmocka_unit_test(a_part_that_cannot_be_is_refused_before_room_is_made),
        cmocka_unit_test(elements_that_there_are_not_are_refused),
        cmocka_unit_test(of_what_was_cut_off_nothing_is_taken_for_whole),
    };
    exit_code = cmocka_run_group_tests(tests, NULL, NULL);
    gs_temp_dir_remove(directory);
    return exit_code;
}
