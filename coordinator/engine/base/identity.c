#include "coordinator/engine/base/identity.h"

#include <stddef.h>

#include "coordinator/model/run.h"
#include "rpc/schema/role.h"

bool gs_principal_covers(const gs_principal *principal, const char *worker) {
    return !principal->is_known || gs_key_name_covers(principal->name, principal->is_pool, worker);
}

gs_agent *gs_identity_find_agent(const gs_state *state, const gs_identity *identity) {
    gs_agent *agent = gs_agent_table_of_incarnation(&state->agents, identity->incarnation);
    return agent && gs_principal_covers(&identity->principal, agent->name) ? agent : NULL;
}

const char *gs_identity_uncovered(const gs_state *state, const gs_identity *identity, const gs_member *member) {
    if (!identity->principal.is_known) return NULL;
    const gs_agent *agent = gs_agent_table_of_incarnation(&state->agents, identity->incarnation);
    const gs_member *sender = gs_state_member(state, identity->incarnation);
    if (agent && !gs_principal_covers(&identity->principal, agent->name)) return agent->name;
    if (sender && !gs_principal_covers(&identity->principal, sender->worker)) return sender->worker;
    return member && !gs_principal_covers(&identity->principal, member->worker) ? member->worker : NULL;
}

gs_identity_verdict gs_identity_find_member(gs_member **out, const gs_state *state, const gs_identity *identity) {
    gs_member *member = gs_state_member(state, identity->incarnation);
    *out = NULL;
    if (member && !gs_principal_covers(&identity->principal, member->worker)) return GS_IDENTITY_UNCOVERED;
    if (!member || member->stage == GS_MEMBER_EXITED || member->job->id != identity->job) return GS_IDENTITY_NOBODYS;
    if (!gs_member_is_shown(member, identity->token)) return GS_IDENTITY_UNSHOWN;
    *out = member;
    return GS_IDENTITY_OWN;
}
