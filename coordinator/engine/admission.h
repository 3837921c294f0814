// Who may say what: one table, one check of identity (base/identity.h). To handlers whoever sends is who he says; what an agent says of
// trainers is compared with its own slots. (What a worker may call itself that nobody knows yet is compared with its key where the
// message comes in, which knows the key's name.)
#ifndef COORDINATOR_ENGINE_ADMISSION_H
#define COORDINATOR_ENGINE_ADMISSION_H

#include "coordinator/engine/base/mind.h"

typedef enum gs_speaker {
    GS_SPEAKER_INSIDE = 0,  // the coordinator's own adapters
    GS_SPEAKER_AGENT,
    GS_SPEAKER_NEWCOMER,  // a trainer that says hello: its handler finds out who it is
    GS_SPEAKER_MEMBER,    // a trainer of a run that lives
    GS_SPEAKER_HERE,      // the same, and it has said hello
    GS_SPEAKER_BOUND,     // the same, it has not said bye, and the message names its generation
    GS_SPEAKER_PEOPLE
} gs_speaker;

typedef struct gs_event_rule {
    gs_speaker speaker;
    gs_role role;  // that its sender needs, where keys are shown: compared where frames come in
} gs_event_rule;

const gs_event_rule *gs_event_rule_of(gs_engine_event_kind kind);

// The member that the event comes from, heard by it; NULL where the rule wants none, or after it was refused (answered
// here). *admitted says which.
gs_member *gs_admit(gs_engine *engine, const gs_engine_event *event, bool *admitted);

#endif
