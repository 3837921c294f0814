#include "api/access/rates.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"

typedef struct bucket {
    char key[GS_RATES_KEY_BYTES];
    double left;
    int64_t at_ns;  // 0: this place was never used
} bucket;

struct gs_rates {
    double per_second, burst;
    pthread_mutex_t lock;
    bucket items[GS_RATES_MOST];
};

gs_rates *gs_rates_create(double per_second, double burst) {
    gs_rates *rates = calloc(1, sizeof *rates);
    if (!rates) return NULL;
    rates->per_second = per_second;
    rates->burst = burst;
    pthread_mutex_init(&rates->lock, NULL);
    return rates;
}

void gs_rates_destroy(gs_rates *rates) {
    if (!rates) return;
    pthread_mutex_destroy(&rates->lock);
    free(rates);
}

static bucket *find(gs_rates *rates, const char *key, int64_t now_ns) {
    bucket *oldest = rates->items;
    for (bucket *it = rates->items; it < rates->items + GS_RATES_MOST; it++) {
        if (it->at_ns && strncmp(it->key, key, sizeof it->key - 1) == 0) return it;
        if (it->at_ns < oldest->at_ns) oldest = it;
    }
    *oldest = (bucket){.left = rates->burst, .at_ns = now_ns};
    snprintf(oldest->key, sizeof oldest->key, "%s", key);
    return oldest;
}

double gs_rates_take(gs_rates *rates, const char *key, int64_t now_ns) {
    double wait_seconds = 0;
    pthread_mutex_lock(&rates->lock);
    bucket *it = find(rates, key, now_ns);
    it->left += (double)(now_ns - it->at_ns) / (double)GS_NS_PER_SEC * rates->per_second;
    if (it->left > rates->burst) it->left = rates->burst;
    it->at_ns = now_ns;
    if (it->left >= 1) it->left -= 1;
    else wait_seconds = (1 - it->left) / rates->per_second;
    pthread_mutex_unlock(&rates->lock);
    return wait_seconds;
}
