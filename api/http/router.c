#include "api/http/router.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

// One path against one template; fills params.
static bool match_path(gs_route_match *match, const char *pattern, const char *path) {
    match->num_params = 0;
    while (*pattern) {
        if (*pattern != '{') {
            if (*pattern++ != *path++) return false;
            continue;
        }
        size_t name_len = strcspn(pattern + 1, "}"), value_len = strcspn(path, "/");
        if (value_len == 0 || value_len >= GS_ROUTE_PARAM_LEN ||
            match->num_params == GS_ROUTE_MAX_PARAMS)
            return false;
        snprintf(match->params[match->num_params].name, sizeof match->params[0].name, "%.*s",
                 (int)name_len, pattern + 1);
        snprintf(match->params[match->num_params].value, GS_ROUTE_PARAM_LEN, "%.*s", (int)value_len,
                 path);
        match->num_params++;
        pattern += name_len + 2;
        path += value_len;
    }
    return *path == '\0';
}

static void allow_verb(gs_route_match *match, const char *verb) {
    size_t used = strlen(match->allow);
    snprintf(match->allow + used, sizeof match->allow - used, "%s%s", used ? ", " : "", verb);
    if (strcmp(verb, "GET") == 0) allow_verb(match, "HEAD");
}

void gs_route_find(gs_route_match *match, const gs_route *routes, size_t num_routes,
                   const char *verb, const char *path) {
    const char *wanted = strcmp(verb, "HEAD") == 0 ? "GET" : verb;
    *match = (gs_route_match){0};
    gs_route_match found = {0};
    for (size_t i = 0; i < num_routes; i++) {
        gs_route_match attempt = {0};
        if (!match_path(&attempt, routes[i].path, path)) continue;
        match->path_known = true;
        allow_verb(match, routes[i].verb);
        if (!found.route && strcmp(routes[i].verb, wanted) == 0) {
            found = attempt;
            found.route = &routes[i];
        }
    }
    if (match->path_known) allow_verb(match, "OPTIONS");
    match->route = found.route;
    memcpy(match->params, found.params, sizeof found.params);
    match->num_params = found.num_params;
}

const char *gs_route_param(const gs_route_match *match, const char *name) {
    for (int i = 0; i < match->num_params; i++)
        if (strcmp(match->params[i].name, name) == 0) return match->params[i].value;
    return "";
}

// How much one range of an Accept header likes `offer`: -1 does not match, else specificity and q.
static double rate_offer(const char *range, size_t range_len, const char *offer, int *specificity) {
    size_t type_len = strcspn(range, ";, \t");
    if (type_len > range_len) type_len = range_len;
    size_t slash = strcspn(offer, "/");
    if (type_len == strlen(offer) && strncasecmp(range, offer, type_len) == 0)
        *specificity = 3;
    else if (type_len == slash + 2 && strncasecmp(range, offer, slash + 1) == 0 &&
             range[slash + 1] == '*')
        *specificity = 2;
    else if (type_len == 3 && strncmp(range, "*/*", 3) == 0)
        *specificity = 1;
    else
        return -1;
    for (const char *at = range; at < range + range_len; at++) {
        if (*at != ';') continue;
        const char *name = at + 1 + strspn(at + 1, " \t");
        if ((name[0] == 'q' || name[0] == 'Q') && name[1] == '=') return strtod(name + 2, NULL);
    }
    return 1;
}

int gs_accept_best(const char *accept, const char *const *offers, int num_offers) {
    if (!accept || !*accept) return 0;
    int best = -1;
    double best_quality = 0;
    for (int i = 0; i < num_offers; i++) {
        double quality = 0;  // of the most specific range that matches
        int most_specific = 0;
        for (const char *range = accept; *range;) {
            range += strspn(range, " \t,");
            size_t range_len = strcspn(range, ",");
            int specificity = 0;
            double liked = range_len ? rate_offer(range, range_len, offers[i], &specificity) : -1;
            if (liked >= 0 && specificity > most_specific) {
                most_specific = specificity;
                quality = liked;
            }
            range += range_len;
        }
        if (quality > best_quality) {
            best = i;
            best_quality = quality;
        }
    }
    return best;
}
