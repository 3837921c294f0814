// The route table: what the API is. A new route is a row; /openapi.json and 405 follow from it.
#ifndef API_ROUTES_ROUTES_H
#define API_ROUTES_ROUTES_H

#include "api/http/router.h"

extern const gs_route gs_routes[];
extern const size_t gs_num_routes;

#endif
