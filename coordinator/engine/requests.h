// What people ask for: jobs made, stopped, deleted, planned anew. An answer leaves after what it says is durable.
#ifndef COORDINATOR_ENGINE_REQUESTS_H
#define COORDINATOR_ENGINE_REQUESTS_H

#include "coordinator/engine/base/mind.h"

void gs_on_create_job(gs_engine *engine, gs_engine_event *event);
void gs_on_stop_job(gs_engine *engine, gs_engine_event *event);
void gs_on_delete_job(gs_engine *engine, gs_engine_event *event);
void gs_on_replan_job(gs_engine *engine, gs_engine_event *event);
void gs_on_release_job(gs_engine *engine, gs_engine_event *event);

// Releases that name a step wait until the disk has said that it is there, or has said nothing for long.
void gs_releases_checked(gs_engine *engine, const gs_completion *done);
void gs_releases_tick(gs_engine *engine);

void gs_on_job_stored(gs_engine *engine, const gs_completion *done);
void gs_on_job_deleted(gs_engine *engine, const gs_completion *done);
// Records that are due are written behind.
void gs_records_flush(gs_engine *engine, bool all);

#endif
