// In place of pthread_create() in a unit test that is said to have one thread
// (tests/threads.cmake).
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *),
                          void *arg);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *),
                          void *arg) {
    (void)thread, (void)attr, (void)start, (void)arg;
    fputs("this test starts a thread: name it in tests/threads.cmake, for ThreadSanitizer\n",
          stderr);
    abort();
}
