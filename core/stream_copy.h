// Copies of what is read no more before it has left the caches.
#ifndef CORE_STREAM_COPY_H
#define CORE_STREAM_COPY_H

#include <stddef.h>

// As memcpy, past the caches: no line of `to` is read in to be written over, and none that is there
// is driven out; what is read stays as it would. Stored before whatever this thread stores next.
void gs_stream_copy(void *to, const void *from, size_t bytes);

#endif
