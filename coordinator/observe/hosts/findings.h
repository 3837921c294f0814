// What an operator should know of what workers said of themselves and of each other: a pure function of the answer's `hosts`,
// `links` and `sums`.
#ifndef COORDINATOR_OBSERVE_HOSTS_FINDINGS_H
#define COORDINATOR_OBSERVE_HOSTS_FINDINGS_H

#include <stdbool.h>

#include "rpc/json/json.h"

// The caller's: [{severity: "error"|"warning"|"info", kind, worker?, peer?, detail, suggest?}…], the worst first. *healthy: none is
// an error.
//   sums  NULL: there were none
gs_json *gs_findings_of(bool *healthy, const gs_json *hosts, const gs_json *links, const gs_json *sums, const char *version);

#endif
