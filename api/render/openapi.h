// The OpenAPI 3.1 document out of the route table and the field tables.
//
// It stays in the subset that is valid 3.0 too: no null, no lists of types, nothing beside a
// reference.
#ifndef API_RENDER_OPENAPI_H
#define API_RENDER_OPENAPI_H

#include <stddef.h>

#include "api/http/router.h"
#include "rpc/json/json.h"

gs_json *gs_openapi_document(const gs_route *routes, size_t num_routes);

#endif
