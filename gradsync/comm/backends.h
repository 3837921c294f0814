// The backends that the library brings, for the table in comm.c. One of an embedder's own comes by pointer.
#ifndef GRADSYNC_COMM_BACKENDS_H
#define GRADSYNC_COMM_BACKENDS_H

#include "gradsync/comm/comm_backend.h"

extern const gs_comm_backend gs_comm_self;
extern const gs_comm_backend gs_comm_shm;
#ifdef GRADSYNC_CUDA
extern const gs_comm_backend gs_comm_nccl;
#endif

#endif
