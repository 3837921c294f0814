#include "coordinator/engine/base/mind.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/model/memory.h"
#include "core/random.h"

#define TEXT_BLOCK_BYTES 16384
#define LONGEST_TEXT 1024

struct gs_text_block {
    struct gs_text_block *next;
    size_t used, bytes;
    _Alignas(16) char memory[];
};

gs_effect *gs_mind_do(gs_engine *engine, gs_effect_kind kind) {
    engine->effects = gs_model_grow(engine->effects, engine->num_effects, &engine->max_effects,
                                    sizeof *engine->effects);
    gs_effect *effect = &engine->effects[engine->num_effects++];
    *effect = (gs_effect){.kind = kind};
    return effect;
}

static void *reserve(gs_engine *engine, size_t bytes) {
    bytes = (bytes + 15) & ~(size_t)15;
    gs_text_block *block = engine->texts;
    if (!block || block->bytes - block->used < bytes) {
        size_t room = bytes > TEXT_BLOCK_BYTES ? bytes : TEXT_BLOCK_BYTES;
        block = gs_model_alloc(1, sizeof *block + room);
        block->bytes = room;
        block->next = engine->texts;
        engine->texts = block;
    }
    void *place = block->memory + block->used;
    block->used += bytes;
    return place;
}

const void *gs_mind_copy(gs_engine *engine, const void *bytes, size_t num_bytes) {
    return memcpy(reserve(engine, num_bytes), bytes, num_bytes);
}

static const char *keep_text(gs_engine *engine, const char *format, va_list args) {
    char text[LONGEST_TEXT];
    vsnprintf(text, sizeof text, format, args);
    return gs_mind_copy(engine, text, strlen(text) + 1);
}

const char *gs_mind_text(gs_engine *engine, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const char *text = keep_text(engine, format, args);
    va_end(args);
    return text;
}

void gs_mind_bury(gs_engine *engine, void *what, void (*release)(void *what)) {
    if (!what) return;
    engine->graves = gs_model_grow(engine->graves, engine->num_graves, &engine->max_graves,
                                   sizeof *engine->graves);
    engine->graves[engine->num_graves++] = (gs_grave){what, release};
}

void gs_mind_forget_step(gs_engine *engine) {
    engine->num_effects = 0;
    for (size_t i = 0; i < engine->num_graves; i++) engine->graves[i].release(engine->graves[i].what);
    engine->num_graves = 0;
    // One block stays: most steps say little.
    while (engine->texts && engine->texts->next) {
        gs_text_block *block = engine->texts;
        engine->texts = block->next;
        free(block);
    }
    if (engine->texts) engine->texts->used = 0;
}

// From one number of the step none of the others follows: some are secrets, and some are not.
static uint64_t draw_from(uint64_t seed, uint64_t index) {
    gs_random_key key = {.seed = seed};
    while (!gs_random_u64(key, index)) key.stream++;
    return gs_random_u64(key, index);
}

uint64_t gs_mind_draw(gs_engine *engine) {
    size_t index = engine->num_drawn;
    engine->drawn = gs_model_grow(engine->drawn, index, &engine->max_drawn, sizeof *engine->drawn);
    engine->drawn[index] = index < engine->num_draws ? engine->draws[index] : draw_from(engine->random, index);
    return engine->drawn[engine->num_drawn++];
}

void gs_mind_log(gs_engine *engine, gs_severity severity, const char *event, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const char *text = keep_text(engine, format, args);
    va_end(args);
    gs_effect *effect = gs_mind_do(engine, GS_DO_LOG);
    effect->text = text;
    effect->log.event = event;
    effect->log.severity = severity;
}

void gs_mind_count(gs_engine *engine, const gs_job *job, gs_count_kind kind, const char *label,
                   const char *second, double seconds) {
    const char *kept = label ? gs_mind_text(engine, "%s", label) : NULL;
    gs_effect *effect = gs_mind_do(engine, GS_DO_COUNT);
    effect->job = (gs_job *)(uintptr_t)job;
    effect->count = (gs_count){.kind = kind, .label = kept, .second = second, .seconds = seconds};
}

void gs_kept_set(gs_engine *engine, gs_kept_call *kept, gs_call call, gs_call_use use, void *keeper) {
    *kept = (gs_kept_call){call, use, keeper};
    if (call && !gs_u64_map_set(&engine->kept, call, kept)) abort();
}

gs_call gs_kept_take(gs_engine *engine, gs_kept_call *kept) {
    gs_call call = kept->call;
    if (call) gs_u64_map_remove(&engine->kept, call);
    *kept = (gs_kept_call){0};
    return call;
}

gs_effect *gs_reply_with(gs_engine *engine, gs_call call, gs_reply_kind kind, gs_job *job) {
    gs_effect *effect = gs_mind_do(engine, GS_DO_REPLY);
    effect->call = call;
    effect->job = job;
    effect->reply.kind = kind;
    return effect;
}

void gs_reply_ok(gs_engine *engine, gs_call call) {
    if (call) gs_reply_with(engine, call, GS_REPLY_EMPTY, NULL);
}

void gs_reply_error(gs_engine *engine, gs_call call, gs_status status) {
    if (call) gs_reply_with(engine, call, GS_REPLY_NOTHING, NULL)->reply.status = status;
}

void gs_reply_refusal(gs_engine *engine, gs_call call, gs_status status, const char *code, const char *hint) {
    if (!call) return;
    gs_effect *effect = gs_reply_with(engine, call, GS_REPLY_REFUSAL, NULL);
    effect->reply.status = status;
    effect->reply.code = code;
    effect->reply.hint = hint;
}

void gs_reply_status(gs_engine *engine, gs_call call, gs_status status) {
    if (status.code) gs_reply_error(engine, call, status);
    else gs_reply_ok(engine, call);
}

void gs_end_stream(gs_engine *engine, gs_call call, gs_status status) {
    if (!call) return;
    gs_effect *effect = gs_mind_do(engine, GS_DO_END);
    effect->call = call;
    effect->ending = status;
}
