#include "coordinator/engine/base/generations.h"

// A life or two fit above it: what starts count on.
#define LAST_END (UINT32_MAX - 4 * GS_GENERATION_BLOCK)

static bool is_low(const gs_generation_numbers *numbers) {
    return numbers->durable_end <= numbers->next || numbers->durable_end - numbers->next <= GS_GENERATION_BLOCK / 2;
}

static void ask(gs_engine *engine) {
    gs_generation_numbers *numbers = &engine->state.generations;
    if (!is_low(numbers) || numbers->asked_end != numbers->durable_end) return;
    uint32_t from = numbers->next > numbers->durable_end ? numbers->next : numbers->durable_end;
    if (from >= LAST_END) return;  // there are no more
    numbers->asked_end = from < LAST_END - GS_GENERATION_BLOCK ? from + GS_GENERATION_BLOCK : LAST_END;
    gs_mind_do(engine, GS_DO_RESERVE_GENERATIONS)->generation_end = numbers->asked_end;
}

uint32_t gs_generations_take(gs_engine *engine) {
    gs_generation_numbers *numbers = &engine->state.generations;
    uint32_t generation = numbers->next < numbers->durable_end ? numbers->next++ : 0;
    if (generation) numbers->leapt_from = 0;
    ask(engine);
    return generation;
}

void gs_generations_raise(gs_engine *engine, uint32_t least) {
    gs_generation_numbers *numbers = &engine->state.generations;
    if (numbers->next >= least) return;
    numbers->next = least;
    ask(engine);
}

bool gs_generations_leap(gs_engine *engine, uint32_t used, uint32_t *least) {
    if (used >= UINT32_MAX / 2) return false;
    *least = used + GS_GENERATION_LEAP;
    gs_generations_raise(engine, *least);
    return true;
}

void gs_generations_stored(gs_engine *engine, uint32_t end, gs_status status) {
    gs_generation_numbers *numbers = &engine->state.generations;
    if (status.code) numbers->asked_end = numbers->durable_end;
    else if (end > numbers->durable_end) numbers->durable_end = end;
}

void gs_generations_tick(gs_engine *engine) { ask(engine); }
