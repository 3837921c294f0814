#include "gradsync/comm/futex_event.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

void gs_futex_event_notify(gs_futex_event *event) {
    // Pairs with the fence of a sleeper: either it sees what was stored before, or it is seen here.
    __sync_synchronize();
    if (__atomic_load_n(&event->sleepers, __ATOMIC_RELAXED) == 0) return;
    __atomic_fetch_add(&event->word, 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, &event->word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
