// Something that requests have together and give back: memory, or turns. Any thread.
#ifndef API_ACCESS_BUDGET_H
#define API_ACCESS_BUDGET_H

#include <stdbool.h>
#include <stdint.h>

#include "core/clock.h"

typedef struct gs_budget gs_budget;

gs_budget *gs_budget_create(uint64_t all);  // NULL: out of memory
void gs_budget_destroy(gs_budget *budget);  // NULL is fine
// Waits until so much is left. False: it was not until the deadline, or there is less than that in all.
bool gs_budget_take(gs_budget *budget, uint64_t amount, gs_deadline deadline);
void gs_budget_give(gs_budget *budget, uint64_t amount);  // back

#endif
