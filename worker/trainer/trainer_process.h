// The process of one rank: launch document in, exit code out.
#ifndef WORKER_TRAINER_TRAINER_PROCESS_H
#define WORKER_TRAINER_TRAINER_PROCESS_H

// `launch_fd` is the descriptor of the launch document (taken). Returns the exit code.
int gs_trainer_process_run(int launch_fd);

#endif
