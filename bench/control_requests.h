// How long answers and refusals take, kind by kind.
#ifndef BENCH_CONTROL_REQUESTS_H
#define BENCH_CONTROL_REQUESTS_H

#include <stdbool.h>

#include "bench/control_http.h"

typedef struct control_requests control_requests;

control_requests *control_requests_create(const control_http *http);  // borrows it; NULL: out of memory
void control_requests_destroy(control_requests *requests);
// One request of each kind, one after the other. False: there is no room for more.
bool control_requests_turn(control_requests *requests);
// A line for each kind: how many, p50, p99 and the longest, ms. False: some were other answers than they should be.
bool control_requests_print(control_requests *requests);

#endif
