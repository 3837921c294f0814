// How often each of many may do something: a bucket for each that fills at a steady rate. Any thread.
//
// Of those that are not heard of for long the place is used again, the longest unheard one first: then its bucket is full again.
#ifndef API_ACCESS_RATES_H
#define API_ACCESS_RATES_H

#include <stdint.h>

typedef struct gs_rates gs_rates;

enum { GS_RATES_KEY_BYTES = 48, GS_RATES_MOST = 256 };

gs_rates *gs_rates_create(double per_second, double burst);  // NULL: out of memory
void gs_rates_destroy(gs_rates *rates);                      // NULL is fine
// 0: he may, and has. Else: in how many seconds he may again. now_ns: of gs_now_ns.
double gs_rates_take(gs_rates *rates, const char *key, int64_t now_ns);

#endif
