// What a worker says of which no event is made, and who enrols: the method itself takes it, with a state, a disk and a gate that are played.
// Lines of a log are JSON of that worker's ranks; keys are those of its slots alone; who enrols gets no other name than its token is for;
// and whatever hosts say of themselves, the examination ends in one answer that can be told. The input: lines of a method's name, a space,
// JSON. "from" in it is the worker (1 or 2), "token" which one is shown, and an examined host that does not say what it answers answers
// what it was asked.
#include <stdlib.h>
#include <string.h>

#include "coordinator/model/run.h"
#include "coordinator/observe/hosts/enrolment.h"
#include "coordinator/observe/hosts/examination.h"
#include "coordinator/observe/hosts/rank_keyring.h"
#include "coordinator/observe/job_log.h"
#include "coordinator/observe/job_sight.h"
#include "coordinator/store/log_disk.h"
#include "core/log.h"
#include "tests/fuzz/fuzz.h"

#define NUM_WORKERS 2
#define NUM_SLOTS 3
#define NUM_TOKENS 3
#define GENERATION 4
#define MOST_LINES 64

static const char *const names[NUM_WORKERS] = {"w-1", "w-2"};
static const char *const tokens_for[NUM_TOKENS] = {"", "gpu-1", "pool"};

// The rest lasts from input to input.
static struct {
    gs_state state;
    gs_observer observer;
    gs_agent *agents[NUM_WORKERS];
    gs_job *job;
    gs_rank_keys rank_keys;
    gs_key_list known;
    char token_ids[NUM_TOKENS][GS_KEY_ID_BYTES];
    const gs_agent *speaker;
    int64_t request, stage_number;  // as the examination asked last
    int num_answers;
} it;

static void require(bool holds) {
    if (!holds) abort();
}

static uint64_t incarnation_of(int worker, int slot) { return 100 * (uint64_t)(worker + 1) + (uint64_t)slot; }

// It can be told, and read by whoever reads strictly.
static void require_told(const gs_json *value) {
    char *text = NULL;
    size_t bytes = 0;
    gs_json *again = NULL;
    require(!gs_json_encode(&text, &bytes, value, false).code && !gs_json_parse(&again, text, bytes).code);
    gs_json_release(again);
    free(text);
}

// Calls without a connection: a handle is a counter of answers.
void __wrap_gs_rpc_reply(gs_rpc_call_handle *call, gs_status status, gs_json *body);
void __wrap_gs_rpc_call_set_data(gs_rpc_call_handle *call, void *data);
void __wrap_gs_writer_submit(gs_writer *writer, gs_write *write);
gs_status __wrap_gs_log_disk_append(gs_log_disk *disk, const char *line, uint64_t key);
gs_status __wrap_gs_log_disk_flush(gs_log_disk *disk);
gs_status __wrap_gs_key_store_change(const char *path, gs_key_change change, void *ctx);
void __wrap_gs_key_gate_look(gs_key_gate *gate);
bool __wrap_gs_key_gate_add_rank(gs_key_gate *gate, const gs_rank_key *key);
bool __wrap_gs_key_gate_ranks_are_many(gs_key_gate *gate);
void __wrap_gs_key_gate_sweep_ranks(gs_key_gate *gate, bool (*is_there)(void *ctx, uint64_t incarnation), void *ctx);

void __wrap_gs_rpc_reply(gs_rpc_call_handle *call, gs_status status, gs_json *body) {
    ++*(int *)(void *)call;
    require(memchr(status.message, 0, sizeof status.message) != NULL);
    if (body) require_told(body);
    gs_json_release(body);
}

void __wrap_gs_rpc_call_set_data(gs_rpc_call_handle *call, void *data) {
    (void)call;
    (void)data;
}

void __wrap_gs_writer_submit(gs_writer *writer, gs_write *write) {
    (void)writer;
    gs_status status = write->run(write, NULL);
    write->done(write, status);
}

// In a file from here on: of the worker that sent it, of ranks that it has or had.
gs_status __wrap_gs_log_disk_append(gs_log_disk *disk, const char *line, uint64_t key) {
    gs_json *read = NULL;
    (void)disk;
    (void)key;
    require(!gs_json_parse(&read, line, strlen(line)).code && !strchr(line, '\n'));
    const char *worker = gs_json_string_or(read, "worker", "");
    int64_t rank = gs_json_int_or(read, "rank", -1), generation = gs_json_int_or(read, "generation", -1);
    require(strcmp(worker, it.speaker->name) == 0 && gs_log_level_rank(gs_json_string_or(read, "level", "")) >= 0);
    require(gs_json_string_or(read, "at", NULL) && gs_json_string_or(read, "stream", NULL) && gs_json_string_or(read, "text", NULL));
    require(rank == (it.speaker == it.agents[0] ? 0 : 1));
    require(generation == 0 || generation == GENERATION || (generation == GENERATION - 1 && it.speaker == it.agents[0]));
    gs_json_release(read);
    return gs_ok();
}

gs_status __wrap_gs_log_disk_flush(gs_log_disk *disk) {
    (void)disk;
    return gs_ok();
}

// A change that fails leaves the list as it was. What is written of one, and read again, is fuzz_keys'.
gs_status __wrap_gs_key_store_change(const char *path, gs_key_change change, void *ctx) {
    (void)path;
    gs_key_list before = {.items = malloc((it.known.count + 1) * sizeof *before.items), .count = it.known.count};
    require(before.items != NULL);
    memcpy(before.items, it.known.items, before.count * sizeof *before.items);
    gs_status status = change(&it.known, ctx);
    gs_key_list_release(status.code ? &it.known : &before);
    if (status.code) it.known = before;
    return status;
}

void __wrap_gs_key_gate_look(gs_key_gate *gate) { (void)gate; }

bool __wrap_gs_key_gate_add_rank(gs_key_gate *gate, const gs_rank_key *key) {
    int worker = it.speaker == it.agents[1];
    (void)gate;
    require(strcmp(key->worker, names[worker]) == 0 && !strcmp(key->owner, "k-00000001"));
    require(key->incarnation >= incarnation_of(worker, 0) && key->incarnation < incarnation_of(worker, NUM_SLOTS));
    bool is_taken = gs_rank_keys_add(&it.rank_keys, key);
    const gs_rank_key *found = gs_rank_keys_find_rank(&it.rank_keys, key->incarnation);
    if (is_taken) require(found && gs_curve_key_equal(&found->shown, &key->shown) && gs_rank_keys_find(&it.rank_keys, &key->shown) == found);
    if (is_taken) require(gs_rank_keys_find_id(&it.rank_keys, found->id) == found);
    require(it.rank_keys.count <= NUM_WORKERS * NUM_SLOTS);
    return is_taken;
}

bool __wrap_gs_key_gate_ranks_are_many(gs_key_gate *gate) {
    (void)gate;
    return true;
}

// All that were taken are in slots.
void __wrap_gs_key_gate_sweep_ranks(gs_key_gate *gate, bool (*is_there)(void *ctx, uint64_t incarnation), void *ctx) {
    size_t count = it.rank_keys.count;
    (void)gate;
    gs_rank_keys_sweep(&it.rank_keys, is_there, ctx);
    require(it.rank_keys.count == count);
}

static bool ask(void *ctx, gs_call stream, gs_json *item) {
    (void)ctx;
    require(stream > 0);
    require_told(item);
    it.request = gs_json_int_or(item, "request", it.request);
    it.stage_number = gs_json_int_or(item, "stage_number", it.stage_number);
    gs_json_release(item);
    return true;
}

static gs_agent *add_agent(int worker) {
    gs_agent *agent = gs_agent_table_add(&it.state.agents, names[worker]);
    require(agent && gs_agent_table_rename(&it.state.agents, agent, (uint64_t)worker + 1));
    agent->stream.call = (gs_call)worker + 1;
    agent->num_slots = NUM_SLOTS;
    agent->slots = calloc(NUM_SLOTS, sizeof *agent->slots);
    require(agent->slots != NULL);
    for (int i = 0; i < NUM_SLOTS; i++) agent->slots[i].incarnation = incarnation_of(worker, i);
    return agent;
}

static void begin(void) {
    gs_log_set_level(GS_LOG_ERROR);
    it.observer = (gs_observer){.state = &it.state, .data_dir = "/nonexistent", .send = ask, .gate = (gs_key_gate *)(void *)&it};
    for (int i = 0; i < NUM_WORKERS; i++) it.agents[i] = add_agent(i);
    it.job = gs_job_create(gs_job_id_make(1, 1), &(gs_job_spec){0});
    require(it.job && (it.job->run = gs_run_create(it.job, NUM_WORKERS, 0)));
    require((it.job->sight = calloc(1, sizeof *it.job->sight)) && (it.job->sight->log = gs_job_log_create(&it.observer, it.job)));
    gs_job_table_add(&it.state.jobs, it.job);
    it.job->run->generation = GENERATION;
    for (int i = 0; i < NUM_WORKERS; i++) memcpy(it.job->run->members[i].worker, names[i], strlen(names[i]) + 1);
    gs_past_ranks_add(&it.job->sight->past, names[0], 0, GENERATION - 1);
}

static void know(const char *name, gs_role role, bool is_pool, uint8_t shown, char id[GS_KEY_ID_BYTES]) {
    gs_known_key key = {.role = role, .is_pool = is_pool, .created_ms = 1, .shown.bytes = {shown}};
    memcpy(key.name, name, strlen(name) + 1);
    require(!gs_key_list_add(&it.known, &key, 2).code);
    if (id) memcpy(id, key.id, sizeof key.id);
}

static void begin_keys(void) {
    gs_key_list_release(&it.known);
    know("taken", GS_ROLE_AGENT, false, 1, NULL);
    for (int i = 0; i < NUM_TOKENS; i++) know(tokens_for[i], GS_ROLE_ENROL, i == 2, (uint8_t)(2 + i), it.token_ids[i]);
    gs_rank_keys_release(&it.rank_keys);
    gs_rank_keys_init(&it.rank_keys, 1);
}

static gs_rpc_peer peer_of(int worker) {
    gs_rpc_peer peer = {.connection = 1, .incarnation = (uint64_t)worker + 1,
                        .caller = {.is_known = true, .role = GS_ROLE_AGENT, .id = "k-00000001"}};
    memcpy(peer.caller.name, names[worker], strlen(names[worker]) + 1);
    it.speaker = it.agents[worker];
    return peer;
}

// A token makes one key, of a worker, under the name that it is for; the one that was there stays whose it was.
static void check_enrolled(int token, size_t count) {
    require(it.known.count == count || it.known.count == count + 1);
    require(gs_key_list_find(&it.known, &(gs_curve_key){.bytes = {1}}) == &it.known.items[0]);
    if (it.known.count == count) return;
    const gs_known_key *made = &it.known.items[count];
    require(made->role == GS_ROLE_AGENT && gs_key_name_is_sound(made->name) && made->is_pool == (token == 2));
    require(*tokens_for[token] ? !strcmp(made->name, tokens_for[token]) : strcmp(made->name, "taken") != 0);
    require(gs_key_list_find_id(&it.known, it.token_ids[token])->revoked_ms != 0);
}

static void enrol(const gs_json *request) {
    int64_t token = gs_json_int_or(request, "token", 0);
    gs_rpc_peer peer = {.connection = 1, .caller = {.is_known = true, .role = GS_ROLE_ENROL}};
    int num_answers = 0;
    if (token < 0 || token >= NUM_TOKENS) return;
    size_t count = it.known.count;
    memcpy(peer.caller.id, it.token_ids[token], sizeof peer.caller.id);
    gs_enrol(&it.observer, (gs_rpc_call_handle *)(void *)&num_answers, &peer, request);
    require(num_answers == 1);
    check_enrolled((int)token, count);
}

static void log_lines(const gs_rpc_peer *peer, const gs_json *request) {
    int num_answers = 0;
    gs_json *of_job = gs_json_copy(request);
    if (gs_json_type_of(of_job) == GS_JSON_OBJECT && !gs_json_get(of_job, "job")) gs_json_set_string(of_job, "job", it.job->id_text);
    gs_log_records(&it.observer, (gs_rpc_call_handle *)(void *)&num_answers, peer, of_job);
    require(num_answers == 1);
    gs_json_release(of_job);
}

static void examined(const gs_rpc_peer *peer, const gs_json *request) {
    gs_json *answer = gs_json_copy(request);
    if (gs_json_type_of(answer) == GS_JSON_OBJECT) {
        if (!gs_json_get(answer, "request")) gs_json_set_int(answer, "request", it.request);
        if (!gs_json_get(answer, "stage_number")) gs_json_set_int(answer, "stage_number", it.stage_number);
    }
    gs_examined(&it.observer, NULL, peer, answer);
    gs_json_release(answer);
}

static void take_line(const char *line, size_t bytes) {
    const char *space = memchr(line, ' ', bytes);
    gs_json *request = NULL;
    if (!space || gs_json_parse_foreign(&request, space + 1, bytes - (size_t)(space - line) - 1).code) return;
    size_t name_len = (size_t)(space - line);
    gs_rpc_peer peer = peer_of(gs_json_int_or(request, "from", 1) == 2);
    if (name_len == 3 && memcmp(line, "Log", 3) == 0) log_lines(&peer, request);
    if (name_len == 5 && memcmp(line, "Enrol", 5) == 0) enrol(request);
    if (name_len == 8 && memcmp(line, "RankKeys", 8) == 0)
        gs_rank_keyring_take(it.observer.gate, &it.state, &peer, request);
    if (name_len == 8 && memcmp(line, "Examined", 8) == 0) examined(&peer, request);
    gs_json_release(request);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    const gs_rpc_peer asker = {.connection = 2};  // shows no key: nothing is noted of him
    gs_json *thoroughly = gs_json_new_object();
    if (!it.job) begin();
    begin_keys();
    gs_json_set_bool(thoroughly, "measure", true);
    gs_json_set_bool(thoroughly, "force", true);
    it.num_answers = 0;
    gs_examine_workers(&it.observer, (gs_rpc_call_handle *)(void *)&it.num_answers, &asker, thoroughly);
    require(it.observer.examination && !it.num_answers);
    const char *line = (const char *)data, *end = line + bytes;
    for (int i = 0; i < MOST_LINES && line < end; i++) {
        const char *stop = memchr(line, '\n', (size_t)(end - line));
        if (!stop) stop = end;
        take_line(line, (size_t)(stop - line));
        line = stop + 1;
    }
    if (it.observer.examination) gs_examination_end(&it.observer);
    require(it.num_answers == 1 && !it.observer.examination);
    gs_json_release(thoroughly);
    gs_key_list_release(&it.known);
    gs_rank_keys_release(&it.rank_keys);
    return 0;
}
