// A launch token, as each message of its trainer shows it.
#ifndef RPC_SCHEMA_LAUNCH_TOKEN_H
#define RPC_SCHEMA_LAUNCH_TOKEN_H

#include <stdint.h>

// Trainers of before have a clock in its place, which never comes so far.
#define GS_SHOWN_TOKEN_MARK ((uint64_t)1 << 63)

static inline uint64_t gs_launch_token_show(uint64_t launch_token) { return launch_token | GS_SHOWN_TOKEN_MARK; }

// 0: the sender shows none.
static inline uint64_t gs_launch_token_shown(uint64_t in_header) { return in_header & GS_SHOWN_TOKEN_MARK ? in_header : 0; }

#endif
