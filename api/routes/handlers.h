// The handlers of the route table. Most routes need none of their own: gs_handle_forward passes
// their arguments on and answers with what comes back.
#ifndef API_ROUTES_HANDLERS_H
#define API_ROUTES_HANDLERS_H

#include "api/routes/route_call.h"

void gs_handle_forward(gs_route_call *call);  // args → RPC → body
void gs_handle_stop_job(gs_route_call *call);
void gs_handle_create_job(gs_route_call *call);
void gs_handle_delete_job(gs_route_call *call);
void gs_handle_preview_plan(gs_route_call *call);
void gs_handle_index(gs_route_call *call);
void gs_handle_livez(gs_route_call *call);
void gs_handle_readyz(gs_route_call *call);
void gs_handle_metrics(gs_route_call *call);
void gs_handle_openapi(gs_route_call *call);
void gs_handle_problem_page(gs_route_call *call);

// streams.c
void gs_handle_logs(gs_route_call *call);
void gs_handle_stream(gs_route_call *call);
void gs_handle_events(gs_route_call *call);

// tokens.c
void gs_handle_whoami(gs_route_call *call);
void gs_handle_list_tokens(gs_route_call *call);
void gs_handle_create_token(gs_route_call *call);
void gs_handle_revoke_token(gs_route_call *call);

// session.c
void gs_handle_begin_session(gs_route_call *call);
void gs_handle_end_session(gs_route_call *call);

// timeline.c
void gs_handle_timeline(gs_route_call *call);

#endif
