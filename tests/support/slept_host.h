// A host that was suspended for a while, as a time namespace shows it: for a child CLOCK_BOOTTIME is ahead, CLOCK_MONOTONIC is
// not, and what the test has written down before is from before the sleep.
#ifndef TESTS_SUPPORT_SLEPT_HOST_H
#define TESTS_SUPPORT_SLEPT_HOST_H

#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80  // older headers
#endif

#define SLEPT_SECONDS 1000
#define SLEPT_CANNOT 77  // this machine lets nobody make such a namespace

static inline void write_for_sleep(const char *path, const char *text) {
    int file = open(path, O_WRONLY | O_CLOEXEC);
    ssize_t written = file >= 0 ? write(file, text, strlen(text)) : -1;
    if (written != (ssize_t)strlen(text)) _exit(SLEPT_CANNOT);
    close(file);
}

// As root, or as whoever may be that in a namespace of his own.
static inline void fall_asleep(void) {
    char text[64];
    unsigned user = getuid();
    if (unshare(CLONE_NEWTIME) != 0) {
        if (unshare(CLONE_NEWUSER | CLONE_NEWTIME) != 0) _exit(SLEPT_CANNOT);
        snprintf(text, sizeof text, "0 %u 1", user);
        write_for_sleep("/proc/self/uid_map", text);
    }
    snprintf(text, sizeof text, "boottime %d 0\n", SLEPT_SECONDS);
    write_for_sleep("/proc/self/timens_offsets", text);
}

// What `check` returns behind the sleep, in a process of its own; SLEPT_CANNOT; -1: that process died.
static inline int behind_sleep(int (*check)(void *ctx), void *ctx) {
    int how = 0;
    pid_t outer = fork();
    if (outer == 0) {
        fall_asleep();
        pid_t inner = fork();
        if (inner == 0) _exit(check(ctx));
        bool is_over = inner > 0 && waitpid(inner, &how, 0) == inner;
        _exit(is_over && WIFEXITED(how) ? WEXITSTATUS(how) : 255);
    }
    bool is_over = outer > 0 && waitpid(outer, &how, 0) == outer && WIFEXITED(how) && WEXITSTATUS(how) != 255;
    return is_over ? WEXITSTATUS(how) : -1;
}

#endif
