// How hook "auto" sends each bucket, and why, as people are shown it in a plan.
#ifndef COORDINATOR_OBSERVE_VIEWS_OFFERS_VIEW_H
#define COORDINATOR_OBSERVE_VIEWS_OFFERS_VIEW_H

#include "rpc/json/json.h"
#include "rpc/plan/offers_message.h"

// Into `view`, of gs_plan_to_view. Nothing where they are of another plan.
void gs_offers_show(gs_json *view, const gs_plan_offers *offers, double error_budget);

#endif
