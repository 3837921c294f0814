#include "api/http/early_head.h"

#include <string.h>
#include <strings.h>
#include <sys/socket.h>

bool gs_early_head_look(gs_early_head *head, int fd) {
    ssize_t got = recv(fd, head->text, sizeof head->text, MSG_PEEK | MSG_DONTWAIT);
    head->bytes = got > 0 ? (size_t)got : 0;
    return got > 0;
}

bool gs_early_head_find(const gs_early_head *head, char *value, size_t value_bytes, const char *name) {
    size_t name_bytes = strlen(name);
    const char *line = head->text, *past = head->text + head->bytes;
    for (bool is_first = true;; is_first = false) {
        const char *end = memmem(line, (size_t)(past - line), "\r\n", 2);
        if (!end || end == line) return false;  // not all there, or the end of the headers
        size_t bytes = (size_t)(end - line);
        if (!is_first && bytes > name_bytes && line[name_bytes] == ':' && strncasecmp(line, name, name_bytes) == 0) {
            const char *begin = line + name_bytes + 1;
            while (begin < end && (*begin == ' ' || *begin == '\t')) begin++;
            size_t length = (size_t)(end - begin);
            if (length >= value_bytes) return false;
            memcpy(value, begin, length);
            value[length] = '\0';
            return true;
        }
        line = end + 2;
    }
}
