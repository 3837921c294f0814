// Workers that train nothing: simulated agents (control_workers.h; one) whose trainers take the steps that their jobs ask for and end,
// until they are told to end themselves. For runs of very many jobs, of which the coordinator is what is looked at.
//
//   bench_control_worker tcp://HOST:PORT SLOTS STEP_SECONDS [AGENTS]
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "bench/control_workers.h"

int main(int argc, char **argv) {
    char host[64] = "";
    control_workers_options options = {.host = host, .num_agents = 1, .ends_jobs = true};
    const char *address = argc >= 4 && strncmp(argv[1], "tcp://", 6) == 0 ? argv[1] + 6 : "", *colon = strrchr(address, ':');
    if (!colon || (size_t)(colon - address) >= sizeof host) {
        fprintf(stderr, "usage: bench_control_worker tcp://HOST:PORT SLOTS STEP_SECONDS [AGENTS]\n");
        return 64;
    }
    memcpy(host, address, (size_t)(colon - address));
    options.port = atoi(colon + 1);
    options.slots = atoi(argv[2]);
    options.step_seconds = atof(argv[3]);
    if (argc > 4) options.num_agents = atoi(argv[4]);
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    sigprocmask(SIG_BLOCK, &ends, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    control_workers *workers = NULL;
    gs_status status = control_workers_start(&workers, &options);
    if (status.code) {
        fprintf(stderr, "control_worker: %s\n", status.message);
        return 1;
    }
    int number;
    sigwait(&ends, &number);
    control_workers_stop(workers);
    return 0;
}
