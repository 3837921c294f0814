#include "core/failpoint.h"

#ifdef GRADSYNC_FAILPOINTS

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"

#define MAX_FAILPOINTS 16

typedef struct failpoint {
    char name[64];
    char action[32];
    long first, last, passes;
} failpoint;

// Debug builds only; the environment is read once.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static failpoint points[MAX_FAILPOINTS];
static int num_points = -1;

static void parse_entry(const char *text) {
    failpoint point = {.first = 1, .last = 1};
    const char *equals = strchr(text, '=');
    if (!equals || equals == text || num_points == MAX_FAILPOINTS) return;
    size_t name_len = (size_t)(equals - text);
    if (name_len >= sizeof point.name) return;
    memcpy(point.name, text, name_len);
    char *rank = strchr(point.name, '#');
    if (rank) {
        *rank++ = '\0';
        const char *own = getenv("RANK");
        if (!own || strcmp(own, rank) != 0) return;
    }
    snprintf(point.action, sizeof point.action, "%s", equals + 1);
    char *at = strchr(point.action, '@');
    if (at) {
        *at++ = '\0';
        point.first = point.last = strtol(at, &at, 10);
        if (*at == '-') point.last = strtol(at + 1, NULL, 10);
    }
    points[num_points++] = point;
}

static void parse_environment(void) {
    num_points = 0;
    const char *text = getenv("GRADSYNC_FAILPOINTS");
    if (!text) return;
    char *copy = strdup(text), *next = NULL;
    if (!copy) return;
    for (char *entry = strtok_r(copy, ",", &next); entry; entry = strtok_r(NULL, ",", &next)) {
        parse_entry(entry);
    }
    free(copy);
}

static bool take_action(char action[32], const char *name) {
    bool triggered = false;
    pthread_mutex_lock(&lock);
    if (num_points < 0) parse_environment();
    for (int i = 0; i < num_points; i++) {
        failpoint *point = &points[i];
        if (strcmp(point->name, name) != 0) continue;
        point->passes++;
        if (triggered || point->passes < point->first || point->passes > point->last) continue;
        memcpy(action, point->action, sizeof point->action);
        triggered = true;
    }
    pthread_mutex_unlock(&lock);
    return triggered;
}

gs_status gs_failpoint_pass(const char *name) {
    char action[32];
    if (!take_action(action, name)) return gs_ok();
    if (strcmp(action, "kill") == 0) kill(getpid(), SIGKILL);
    if (strcmp(action, "stop") == 0) kill(getpid(), SIGSTOP);
    if (strncmp(action, "sleep:", 6) == 0) gs_sleep_ns(strtol(action + 6, NULL, 10) * GS_NS_PER_MS);
    if (strcmp(action, "error") == 0) return gs_error(GS_INTERNAL, "failpoint %s", name);
    return gs_ok();
}

#else
typedef int gs_failpoint_unused;  // a translation unit may not be empty
#endif
