// Generation numbers: handed out once, from blocks that are durable before their first number is used.
#ifndef COORDINATOR_ENGINE_BASE_GENERATIONS_H
#define COORDINATOR_ENGINE_BASE_GENERATIONS_H

#include "coordinator/engine/base/mind.h"

#define GS_GENERATION_LEAP 1000000

// 0: none is reserved, since the store does not answer or cannot be written; it has been asked again.
uint32_t gs_generations_take(gs_engine *engine);
// Numbers up to and with `used` are another coordinator's, which may go on counting: those that are given here from now on are
// GS_GENERATION_LEAP above, from *least on. False: they are of the upper half of all numbers, which is for those that are given out one by one, so that
// nobody uses them up by what he says; nothing has changed.
bool gs_generations_leap(gs_engine *engine, uint32_t used, uint32_t *least);
// The next one is `least` or above.
void gs_generations_raise(gs_engine *engine, uint32_t least);
// What the store answered.
void gs_generations_stored(gs_engine *engine, uint32_t end, gs_status status);
// A reservation that failed is tried again.
void gs_generations_tick(gs_engine *engine);

#endif
