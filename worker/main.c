// gradsync-worker: the agent of a host; re-executed with --trainer FD, the trainer of one rank.
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/config.h"
#include "core/log.h"
#include "kernels/host_blas.h"
#include "rpc/json/config_file.h"
#include "rpc/schema/job_spec.h"
#include "worker/agent/agent.h"
#include "worker/agent/host/device_probe.h"
#include "worker/data_address.h"
#include "worker/exit_code.h"
#include "worker/trainer/trainer_process.h"

static const gs_config_field fields[] = {
    {"coordinator", GS_CONFIG_STRING, offsetof(gs_agent_options, coordinator),
     "tcp://127.0.0.1:8471", 0, 0, "tcp://HOST:PORT", "Where the coordinator listens."},
    {"key", GS_CONFIG_STRING, offsetof(gs_agent_options, key), "", 0, 0, "FILE",
     "This worker's key, where the coordinator asks for one; read again for each connection."},
    {"enrol", GS_CONFIG_STRING, offsetof(gs_agent_options, enrol), "", 0, 0, "FILE",
     "A one-time token of `gradsync worker token`, to get a key with where --key FILE is not there yet."},
    {"slots", GS_CONFIG_INT, offsetof(gs_agent_options, slots), "0", 0, 256, "N",
     "How many trainers may run here at the same time; 0: one for each GPU, one without."},
    {"devices", GS_CONFIG_STRING, offsetof(gs_agent_options, devices), "auto", 0, 0,
     "auto|none|0,2", "GPUs that trainers get, in order of slots."},
    {"devices_per_slot", GS_CONFIG_INT, offsetof(gs_agent_options, devices_per_slot), "1", 1, 64,
     "N", "GPUs that one trainer has to itself; it computes on the first."},
    {"data_root", GS_CONFIG_STRING, offsetof(gs_agent_options, data_root), ".", 0, 0, "DIR",
     "What data patterns of jobs are relative to."},
    {"data_address", GS_CONFIG_STRING, offsetof(gs_agent_options, data_address), "", 0, 0,
     "ADDRESS",
     "Where ranks on other hosts reach ranks here; unless said, the address that reaches the "
     "coordinator."},
    {"checkpoints", GS_CONFIG_STRING, offsetof(gs_agent_options, checkpoints), "", 0, 0, "DIR",
     "Where checkpoints are written, if not at the coordinator's own path."},
    {"run_as", GS_CONFIG_STRING, offsetof(gs_agent_options, run_as), "", 0, 0, "USER[:GROUP]",
     "Whose trainers are; for a worker that root starts."},
    {"memory_per_slot", GS_CONFIG_STRING, offsetof(gs_agent_options, memory_per_slot), "0", 0, 0, "BYTES",
     "Memory that a trainer may take, as 16GiB; 0: what there is."},
    {"open_files_per_slot", GS_CONFIG_INT, offsetof(gs_agent_options, open_files_per_slot), "0", 0, 1e9, "N",
     "Descriptors that a trainer may have open; 0: what this worker may."},
    {"cgroup", GS_CONFIG_STRING, offsetof(gs_agent_options, cgroup), "", 0, 0, "DIR",
     "A control group to divide among slots, or own; memory is limited there, with all that ranks share."},
    {"secrets", GS_CONFIG_STRING, offsetof(gs_agent_options, secrets), "", 0, 0, "DIR",
     "Files whose contents jobs may name as secrets; unless said, $CREDENTIALS_DIRECTORY."},
    {"pass_environment", GS_CONFIG_STRING, offsetof(gs_agent_options, pass_environment), "", 0, 0, "NAMES",
     "Variables of the worker's environment that its trainers get beside the usual ones, with commas between."},
    {.name = "core_files", .type = GS_CONFIG_BOOL, .offset = offsetof(gs_agent_options, core_files), .default_value = "false",
     .help = "Worker and trainers with keys and secrets may leave core files and be traced, to find out why one crashes."},
    {"name", GS_CONFIG_STRING, offsetof(gs_agent_options, name), "", 0, 0, "NAME",
     "Stable name of this worker; the host's name unless said."},
    {"log_level", GS_CONFIG_STRING, offsetof(gs_agent_options, log_level), "info", 0, 0, "LEVEL",
     "debug, info, warn, error or off."},
    {"grace_seconds", GS_CONFIG_DOUBLE, offsetof(gs_agent_options, grace_seconds), "30", 0, 86400,
     "SECONDS", "How long trainers may take to end when this worker is asked to."},
    {"coordinator_timeout_seconds", GS_CONFIG_DOUBLE,
     offsetof(gs_agent_options, coordinator_timeout_seconds), "300", 0, 1e9, "SECONDS",
     "Idle without a coordinator for this long: exit with 69; 0 is never."},
};

static const gs_config_program program = {
    .name = "gradsync-worker",
    .synopsis = "[--coordinator tcp://HOST:8471] [--slots N] [--data-root DIR]",
    .description = "Offers slots to a coordinator and runs one trainer process in each.\n"
                   "gradsync-worker devices: prints the GPUs of this host, or why there are none.",
    .fields = fields,
    .num_fields = sizeof fields / sizeof fields[0],
    .read_file = gs_config_file_read,
};

static int run_agent(int argc, char **argv) {
    gs_agent_options options = {0};
    gs_config_outcome outcome;
    gs_log_level level;
    gs_status status = gs_config_parse(&options, &outcome, &program, argc, argv);
    int exit_code = GS_EXIT_DONE;
    if (!status.code && outcome == GS_CONFIG_RUN &&
        !gs_log_level_from_name(&level, options.log_level)) {
        status =
            gs_error(GS_INVALID_ARGUMENT, "--log-level: there is no \"%s\"", options.log_level);
    }
    if (!status.code && outcome == GS_CONFIG_RUN && *options.data_address &&
        !gs_data_address_is_sound(options.data_address)) {
        status = gs_error(GS_INVALID_ARGUMENT, "--data-address: \"%s\" is no numeric address",
                          options.data_address);
    }
    int64_t bytes;
    if (!status.code && outcome == GS_CONFIG_RUN && !gs_parse_bytes(&bytes, options.memory_per_slot)) {
        status = gs_error(GS_INVALID_ARGUMENT, "--memory-per-slot: \"%s\" is no size", options.memory_per_slot);
    } else if (!status.code && outcome == GS_CONFIG_RUN && bytes && bytes < GS_SPEC_LEAST_MEMORY) {
        status = gs_error(GS_INVALID_ARGUMENT, "--memory-per-slot: must be 0 or at least 64MiB");
    } else if (!status.code && outcome == GS_CONFIG_RUN && options.open_files_per_slot &&
               options.open_files_per_slot < GS_SPEC_LEAST_OPEN_FILES) {
        status = gs_error(GS_INVALID_ARGUMENT, "--open-files-per-slot: must be 0 or at least %d", GS_SPEC_LEAST_OPEN_FILES);
    }
    if (status.code) {
        fprintf(stderr, "gradsync-worker: %s\n", status.message);
        exit_code = GS_EXIT_USAGE;
    } else if (outcome == GS_CONFIG_RUN) {
        gs_log_set_level(level);
        exit_code = gs_agent_run(&options);
    }
    gs_config_release(&options, &program);
    return exit_code;
}

static int print_devices(void) {
    gs_json *found = gs_device_probe_here();
    char *text;
    size_t bytes;
    gs_status status = gs_json_encode(&text, &bytes, found, false);
    gs_json_release(found);
    if (status.code) {
        fprintf(stderr, "gradsync-worker: %s\n", status.message);
        return GS_EXIT_SYSTEM;
    }
    bool printed = printf("%s\n", text) > 0 && fflush(stdout) == 0;
    free(text);
    return printed ? GS_EXIT_DONE : GS_EXIT_SYSTEM;
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "devices") == 0) return print_devices();
    if (argc == 3 && strcmp(argv[1], "--trainer") == 0) {
        gs_host_blas_own();  // nobody else computes in this process
        return gs_trainer_process_run((int)strtol(argv[2], NULL, 10));
    }
    return run_agent(argc, argv);
}
