#include "gradsync/comm/net/message.h"

void gs_net_failure_sanitize(gs_net_failure *heard, int world_size, int num_lanes) {
    gs_status *status = &heard->status;
    gs_comm_failure said = heard->failure, *known = &heard->failure;
    status->message[sizeof status->message - 1] = '\0';
    if (status->code <= GS_OK || status->code >= GS_NUM_CODES) status->code = GS_ABORTED;
    bool has_kind = said.kind > GS_COMM_FAILURE_NONE && said.kind <= GS_COMM_FAILURE_ABORTED;
    *known = (gs_comm_failure){.kind = has_kind ? said.kind : GS_COMM_FAILURE_ABORTED,
                               .reporter = -1,
                               .sequence = said.sequence,
                               .step = said.step > 0 ? said.step : 0,
                               .bucket = said.bucket >= 0 ? said.bucket : -1};
    if (said.reporter >= 0 && said.reporter < world_size) known->reporter = said.reporter;
    if (said.lane >= 0 && said.lane < num_lanes) known->lane = said.lane;
    for (int i = 0; i < world_size; i++) {
        if (gs_comm_failure_names(&said, i)) gs_comm_failure_accuse(known, i);
    }
}
