#include "worker/agent/agent.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/boot_clock.h"
#include "core/clock.h"
#include "core/config.h"
#include "core/log.h"
#include "core/random.h"
#include "worker/agent/coordinator_line.h"
#include "worker/agent/host/device_probe.h"
#include "worker/agent/host_agent.h"
#include "worker/exit_code.h"

extern char **environ;

#define MAX_SLOTS 256
// The stream has no descriptor: commands are looked for this often.
#define TURN_MS 10
#define FLUSH_SECONDS 2.0
// Trainers of an agent that hears nobody: their checkpoints are looked at behind so long.
#define ALONE_NS GS_NS_PER_SEC
#define ORPHAN_SECONDS 600.0  // of a coordinator that has not told it
// A driver without its persistence daemon takes seconds for each GPU.
#define PROBE_SECONDS 60.0

static void read_line(char *text, size_t text_bytes, const char *path) {
    FILE *file = fopen(path, "re");
    if (!file) return;
    if (fgets(text, (int)text_bytes, file)) text[strcspn(text, "\n")] = '\0';
    fclose(file);
}

// [A-Za-z0-9._-]{1,63}
static void set_name(gs_host_agent *agent, const char *wanted) {
    size_t length = 0;
    for (const char *c = wanted; *c && length < 63; c++) {
        bool allowed = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') ||
                       (*c >= '0' && *c <= '9') || *c == '.' || *c == '_' || *c == '-';
        agent->name[length++] = allowed ? *c : '-';
    }
    if (length == 0) agent->name[length++] = '-';
    agent->name[length] = '\0';
}

static gs_status identify(gs_host_agent *agent) {
    const gs_agent_options *options = agent->options;
    if (options->slots < 0 || options->slots > MAX_SLOTS) {
        return gs_error(GS_INVALID_ARGUMENT, "slots: %lld is not in 0 to %d",
                        (long long)options->slots, MAX_SLOTS);
    }
    if (gethostname(agent->host, sizeof agent->host - 1) < 0) {
        return gs_error_from_errno(errno, "host name");
    }
    gs_own_key_options key = {.path = options->key, .enrol = options->enrol, .name = options->name, .host = agent->host,
                              .coordinator = options->coordinator, .context = agent->context};
    GS_TRY(gs_own_key_settle(&agent->key, &key));
    set_name(agent, *options->name ? options->name : agent->key.name);
    read_line(agent->boot_id, sizeof agent->boot_id, "/proc/sys/kernel/random/boot_id");
    // Containers of one host may have its name, and each a network of its own.
    ssize_t bytes = readlink("/proc/self/ns/net", agent->network, sizeof agent->network - 1);
    agent->network[bytes > 0 ? bytes : 0] = '\0';
    struct stat facts;
    if (!realpath(options->data_root, agent->data_root) || stat(agent->data_root, &facts) < 0) {
        return gs_error_from_errno(errno, "data_root %s", options->data_root);
    }
    if (!S_ISDIR(facts.st_mode)) {
        return gs_error(GS_INVALID_ARGUMENT, "data_root %s is no directory", options->data_root);
    }
    agent->topology = gs_topology_read();
    agent->incarnation = gs_random_from_system();
    return gs_ok();
}

// A driver is code of others, as trainers are: it sees as much of the worker as they do.
static gs_status ask_for_devices(gs_json **found, const gs_host_agent *agent) {
    gs_rank_environment environment;
    const gs_rank_environment_sources sources = {.own = environ, .passed = agent->options->pass_environment};
    GS_TRY(gs_rank_environment_make(&environment, NULL, &sources));
    const gs_device_asker asker = {.user = &agent->trainer_user, .environment = environment.variables};
    gs_status status = gs_device_probe_ask(found, &asker, gs_deadline_in_seconds(PROBE_SECONDS));
    gs_rank_environment_release(&environment);
    return status;
}

static gs_status find_devices(gs_host_agent *agent) {
    const gs_agent_options *options = agent->options;
    gs_json *probe = NULL;
    gs_status asked = gs_ok();
    bool none = !options->devices || strcmp(options->devices, "none") == 0;
    if (!none) asked = ask_for_devices(&probe, agent);
    gs_status status = gs_host_devices_choose(&agent->devices, options->devices,
                                              options->devices_per_slot, probe, asked);
    gs_json_release(probe);
    if (status.code) return status;
    if (agent->devices.count)
        gs_log_info("devices", "worker=%s gpus=%d per_slot=%d nccl=%s", agent->name,
                    agent->devices.count, agent->devices.per_slot,
                    agent->devices.nccl[0] ? agent->devices.nccl : "none");
    else
        gs_log_info("no devices", "worker=%s reason=\"%s\"", agent->name, agent->devices.reason);
    return gs_ok();
}

// Nobody can tell its ranks anything but in their checkpoint directory: there it says that they live, and finds out that
// others have taken their place. Who sees neither a coordinator nor that directory takes no step until it does.
static void look_out(gs_host_agent *agent, gs_slot *slot, bool alone, int64_t now_ns) {
    const gs_lookout_place place = {.job = slot->job,
                                    .directory = gs_json_string_or(slot->document, "checkpoints_dir", ""),
                                    .cluster = gs_json_string_or(slot->document, "cluster", ""),
                                    .generation = atomic_load(&slot->page->generation)};
    const gs_lookout_sight sight = gs_lookout_ask(agent->lookout, &place, alone);
    if (alone && sight.is_over) {
        if (!slot->kill_at_ns)
            gs_log_warn("others have taken the place of a trainer", "job=%s slot=%d generation=%u", slot->job, slot->index,
                        place.generation);
        gs_slot_stop(slot, true, 0);
        return;
    }
    bool holds = alone && gs_lookout_holds(&sight, slot->is_held, agent->alone_since_ns, now_ns);
    if (!holds && gs_lookout_leads(&sight, agent->stood_ns, now_ns)) atomic_store(&slot->page->pulse_ns, now_ns);
    if (holds != slot->is_held && !slot->kill_at_ns)
        gs_log_warn(holds ? "a trainer stands still: neither a coordinator nor its checkpoints are seen" : "a trainer goes on",
                    "job=%s slot=%d generation=%u", slot->job, slot->index, place.generation);
    gs_slot_hold(slot, holds);
    double limit = gs_json_double_or(slot->document, "orphan_seconds", ORPHAN_SECONDS);
    if (!gs_slot_held_longer(slot, limit, GS_STAND_MARGIN_SECONDS)) return;
    gs_log_warn("a trainer stood still for too long and is ended", "job=%s slot=%d", slot->job, slot->index);
    gs_slot_stop(slot, false, agent->options->grace_seconds);
}

static void look_out_for_all(gs_host_agent *agent, int64_t now_ns) {
    bool heard = agent->welcomed && gs_rpc_client_connected(agent->client);
    if (heard) agent->alone_since_ns = 0;
    else if (!agent->alone_since_ns) agent->alone_since_ns = now_ns;
    bool alone = !heard && (agent->stood_ns || now_ns - agent->alone_since_ns >= ALONE_NS);
    for (int i = 0; i < agent->num_slots; i++)
        if (gs_slot_busy(&agent->slots[i])) look_out(agent, &agent->slots[i], alone, now_ns);
    gs_lookout_forget_unasked(agent->lookout);
}

static void take_signal(gs_host_agent *agent) {
    struct signalfd_siginfo facts;
    if (read(agent->signal_fd, &facts, sizeof facts) != (ssize_t)sizeof facts) return;
    bool again = agent->draining;
    agent->draining = true;
    // Before any of its trainers has ended: nothing is to be started in its place here.
    agent->next_heartbeat_ns = 0;
    gs_coordinator_line_beat(agent);
    gs_log_info("shutting down", "worker=%s trainers=%d", agent->name, gs_host_agent_count_busy(agent));
    for (int i = 0; i < agent->num_slots; i++) {
        gs_slot_stop(&agent->slots[i], again, agent->options->grace_seconds);
    }
}

// Waits for the signal, for ends and output of trainers, at most one turn.
static void wait_for_events(gs_host_agent *agent, struct pollfd *fds) {
    int count = 1;
    fds[0] = (struct pollfd){.fd = agent->signal_fd, .events = POLLIN};
    for (int i = 0; i < agent->num_slots; i++) {
        const gs_slot *slot = &agent->slots[i];
        fds[count++] = (struct pollfd){.fd = slot->pidfd, .events = POLLIN};
        fds[count++] = (struct pollfd){.fd = slot->outputs[0].fd, .events = POLLIN};
        fds[count++] = (struct pollfd){.fd = slot->outputs[1].fd, .events = POLLIN};
    }
    if (poll(fds, (nfds_t)count, TURN_MS) <= 0) return;
    if (fds[0].revents) take_signal(agent);
    for (int i = 0; i < agent->num_slots; i++) {
        gs_slot *slot = &agent->slots[i];
        const struct pollfd *of = &fds[1 + 3 * i];
        if (of[1].revents) gs_slot_read(slot, &slot->outputs[0]);
        if (of[2].revents) gs_slot_read(slot, &slot->outputs[1]);
        if (of[0].revents) gs_slot_reap(slot, agent->host);
    }
}

static gs_status open_signals(gs_host_agent *agent) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    agent->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return agent->signal_fd < 0 ? gs_error_from_errno(errno, "signalfd") : gs_ok();
}

// What trainers that are another user are kept from, and what they need.
static gs_status check_reach(gs_host_agent *agent) {
    const gs_agent_options *options = agent->options;
    const gs_trainer_user *user = &agent->trainer_user;
    const char *const kept[] = {agent->key.path, options->enrol ? options->enrol : ""};
    bool may = false;
    if (!user->is_another) return gs_ok();
    for (int i = 0; i < 2; i++) {
        if (!*kept[i]) continue;
        GS_TRY(gs_trainer_user_may(&may, user, kept[i], R_OK));
        if (may)
            return gs_error(GS_FAILED_PRECONDITION, "%s: trainers (%s) may read it: chmod 600 mends it", kept[i], options->run_as);
    }
    GS_TRY(gs_trainer_user_may(&may, user, agent->data_root, X_OK));
    if (!may) gs_log_warn("trainers do not reach the data", "run_as=%s data_root=%s", options->run_as, agent->data_root);
    if (!options->checkpoints || !*options->checkpoints) return gs_ok();
    GS_TRY(gs_trainer_user_may(&may, user, options->checkpoints, W_OK | X_OK));
    if (!may) gs_log_warn("trainers cannot save", "run_as=%s checkpoints=%s", options->run_as, options->checkpoints);
    return gs_ok();
}

// systemd says by a variable where it has put credentials.
static gs_status confine(gs_host_agent *agent) {
    const gs_agent_options *options = agent->options;
    const char *credentials = getenv("CREDENTIALS_DIRECTORY");
    gs_confinement_options confinement = {.user = &agent->trainer_user,
                                          .cgroup = options->cgroup ? options->cgroup : "",
                                          .secrets = options->secrets ? options->secrets : "",
                                          .pass_environment = options->pass_environment,
                                          .open_files = options->open_files_per_slot,
                                          .core_files = options->core_files};
    // The worker's key speaks for all of its ranks: no trainer of the same user reads it here.
    if (*agent->key.path && !options->core_files) prctl(PR_SET_DUMPABLE, 0);
    if (!*confinement.secrets && credentials) confinement.secrets = credentials;
    int num_withheld = 0;
    if (*agent->key.path) confinement.withheld[num_withheld++] = agent->key.path;
    if (options->enrol && *options->enrol) confinement.withheld[num_withheld++] = options->enrol;
    bool has_limit = options->memory_per_slot && *options->memory_per_slot;
    if (has_limit && !gs_parse_bytes(&confinement.memory_bytes, options->memory_per_slot))
        return gs_error(GS_INVALID_ARGUMENT, "--memory-per-slot: \"%s\" is no size", options->memory_per_slot);
    GS_TRY(gs_confinement_open(&agent->confinement, &confinement));
    GS_TRY(check_reach(agent));
    // A trainer of another user is one of those who may connect from this machine; without keys nobody asks who does.
    if (agent->trainer_user.is_another && !*agent->key.path)
        gs_log_warn("trainers may ask the coordinator for anything: --require-key and --require-token there, --key here", "run_as=%s", options->run_as);
    return gs_ok();
}

static gs_status open_agent(gs_host_agent *agent) {
    // While there is one thread, and nobody has been spoken to.
    GS_TRY(gs_trainer_user_choose(&agent->trainer_user, agent->options->run_as));
    GS_TRY(gs_rpc_context_create(&agent->context));
    GS_TRY(identify(agent));
    GS_TRY(confine(agent));
    GS_TRY(find_devices(agent));
    GS_TRY(open_signals(agent));
    gs_rpc_client_options options = {.endpoint = agent->options->coordinator,
                                     .incarnation = agent->incarnation,
                                     .key_path = agent->key.path};
    GS_TRY(gs_rpc_client_open(&agent->client, agent->context, &options));
    GS_TRY(gs_agent_reports_create(&agent->reports, agent->client, 0));
    GS_TRY(gs_lookout_start(&agent->lookout));
    GS_TRY(gs_shared_place_start(&agent->place));
    GS_TRY(gs_examination_start(&agent->examination, agent->client,
                                &(gs_examined_host){.data_address = agent->options->data_address ? agent->options->data_address : "",
                                                    .coordinator = agent->options->coordinator,
                                                    .data_root = agent->data_root,
                                                    .place = agent->place}));
    int num_slots = (int)agent->options->slots;
    if (num_slots == 0) num_slots = gs_host_devices_slots(&agent->devices);
    agent->slots = calloc((size_t)num_slots, sizeof *agent->slots);
    if (!agent->slots) return gs_error(GS_RESOURCE_EXHAUSTED, "slots: out of memory");
    agent->num_slots = num_slots;
    for (int i = 0; i < agent->num_slots; i++) gs_slot_init(&agent->slots[i], i, agent->reports, &agent->confinement);
    agent->retry_ns = GS_FIRST_RETRY_NS;
    agent->heartbeat_ns = 100 * GS_NS_PER_MS;
    agent->heard_ns = gs_now_ns();
    agent->turned_ns = gs_boot_ns();
    return gs_ok();
}

static void close_agent(gs_host_agent *agent) {
    for (int i = 0; i < agent->num_slots; i++) gs_slot_stop(&agent->slots[i], true, 0);
    if (agent->reports) {
        gs_agent_reports_flush(agent->reports, gs_deadline_in_seconds(
                                                 agent->welcomed ? FLUSH_SECONDS : 0));
    }
    gs_rpc_stream_close(agent->stream);
    gs_examination_stop(agent->examination);
    gs_shared_place_stop(agent->place);
    gs_lookout_stop(agent->lookout);
    gs_agent_reports_destroy(agent->reports);
    gs_rpc_client_close(agent->client);
    gs_rpc_context_destroy(agent->context);
    gs_key_file_wipe(&agent->key.key);
    free(agent->slots);
    gs_confinement_close(&agent->confinement);
    gs_host_devices_release(&agent->devices);
    if (agent->signal_fd >= 0) close(agent->signal_fd);
}

// Its trainers may not be able to read the file.
static void pass_key_on(gs_host_agent *agent, int64_t now_ns) {
    if (!gs_own_key_has_changed(&agent->key, now_ns)) return;
    gs_status status = check_reach(agent);
    if (status.code) gs_log_error("another key that is not the worker's alone", "error=\"%s\"", status.message);
    gs_log_info("another key", "worker=%s name=%s", agent->name, agent->key.key.name);
    gs_coordinator_line_give_keys(agent);
}

// The time is read before anything that is looked at: who is suspended amid a turn gives its trainers no newer pulse.
static void turn(gs_host_agent *agent, struct pollfd *fds) {
    int64_t now_ns = gs_boot_ns();
    if (now_ns - agent->turned_ns >= GS_STOOD_NS) gs_coordinator_line_ask_again(agent, now_ns);
    agent->turned_ns = now_ns;
    gs_coordinator_line_say_hello(agent);
    gs_coordinator_line_read(agent);
    gs_coordinator_line_beat(agent);
    gs_coordinator_line_watch(agent);
    pass_key_on(agent, gs_now_ns());
    wait_for_events(agent, fds);
    look_out_for_all(agent, now_ns);
    for (int i = 0; i < agent->num_slots; i++) gs_slot_tick(&agent->slots[i]);
    if (agent->draining && gs_host_agent_count_busy(agent) == 0) gs_host_agent_stop(agent, GS_EXIT_DONE);
}

int gs_agent_run(const gs_agent_options *options) {
    gs_host_agent agent = {.options = options, .signal_fd = -1};
    struct pollfd *fds = NULL;
    gs_status status = open_agent(&agent);
    if (!status.code) {
        fds = calloc(1 + 3 * (size_t)agent.num_slots, sizeof *fds);
        if (!fds) status = gs_error(GS_RESOURCE_EXHAUSTED, "agent: out of memory");
    }
    if (status.code) {
        gs_log_error("worker does not start", "error=\"%s\"", status.message);
        agent.exit_code = (int)gs_exit_reason_of(status).exit_code;
    }
    while (!status.code && !agent.stopped) turn(&agent, fds);
    close_agent(&agent);
    free(fds);
    return agent.exit_code;
}
