#include "rpc/checkpoint/manifest_part.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static gs_status read_blocks(gs_manifest_part *part, int fd, void *block,
                             gs_digest_stream *stream) {
    for (;;) {
        size_t have = 0;
        while (have < GS_MANIFEST_BLOCK_BYTES) {
            ssize_t got = read(fd, (char *)block + have, GS_MANIFEST_BLOCK_BYTES - have);
            if (got < 0 && errno == EINTR) continue;
            if (got < 0) return gs_error_from_errno(errno, "%s", part->name);
            if (got == 0) break;
            have += (size_t)got;
        }
        if (have == 0) return gs_ok();
        if (part->num_crcs % 64 == 0) {
            uint32_t *more = realloc(part->crcs, (part->num_crcs + 64) * sizeof *more);
            if (!more) return gs_error(GS_RESOURCE_EXHAUSTED, "%s: out of memory", part->name);
            part->crcs = more;
        }
        part->crcs[part->num_crcs++] = gs_crc32c(0, block, have);
        gs_digest_stream_add(stream, block, have);
        part->bytes += have;
    }
}

gs_status gs_manifest_part_read(gs_manifest_part *part, gs_file_place place) {
    const char *slash = strrchr(place.name, '/');
    *part = (gs_manifest_part){.name = slash ? slash + 1 : place.name};
    gs_status status = gs_error(GS_RESOURCE_EXHAUSTED, "%s: out of memory", part->name);
    void *block = malloc(GS_MANIFEST_BLOCK_BYTES);
    gs_digest_stream *stream = gs_digest_stream_create();
    int fd = openat(gs_file_place_fd(place), place.name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);  // of a pipe: no bytes
    if (fd < 0) status = gs_error_from_errno(errno, GS_PLACE, GS_PLACE_OF(place));
    if (fd >= 0 && block && stream) status = read_blocks(part, fd, block, stream);
    if (stream) part->digest = gs_digest_stream_value(stream);
    if (fd >= 0) close(fd);
    gs_digest_stream_destroy(stream);
    free(block);
    if (status.code) gs_manifest_part_release(part);
    return status;
}

void gs_manifest_part_release(gs_manifest_part *part) {
    free(part->crcs);
    *part = (gs_manifest_part){0};
}

gs_json *gs_manifest_part_to_json(const gs_manifest_part *part) {
    gs_json *row = gs_json_new_object(), *crcs = gs_json_new_array();
    char digest[GS_DIGEST_TEXT_LEN];
    gs_digest_format(digest, part->digest);
    for (size_t i = 0; i < part->num_crcs; i++) {
        gs_json_push(crcs, gs_json_new_int((int64_t)part->crcs[i]));
    }
    gs_json_set_string(row, "name", part->name);
    gs_json_set_int(row, "bytes", (int64_t)part->bytes);
    gs_json_set_string(row, "digest", digest);
    gs_json_set_int(row, "block_bytes", GS_MANIFEST_BLOCK_BYTES);
    gs_json_set(row, "crc32c", crcs);
    return row;
}

gs_status gs_manifest_part_check(const gs_manifest_part *found, const gs_json *entry) {
    const gs_json *crcs = gs_json_get(entry, "crc32c");
    for (size_t i = 0; i < found->num_crcs && i < gs_json_count(crcs); i++) {
        int64_t wanted = 0;
        if (!gs_json_int(&wanted, gs_json_at(crcs, i)) || wanted != (int64_t)found->crcs[i]) {
            return gs_error(GS_DATA_LOSS, "%s: block %zu (of 1 MiB) has check sum %08x, not %08llx",
                            found->name, i, found->crcs[i], (unsigned long long)wanted);
        }
    }
    int64_t bytes = gs_json_int_or(entry, "bytes", -1);
    if (bytes != (int64_t)found->bytes) {
        return gs_error(GS_DATA_LOSS, "%s: has %llu bytes, not %lld", found->name,
                        (unsigned long long)found->bytes, (long long)bytes);
    }
    gs_digest digest;
    if (!gs_digest_parse(&digest, gs_json_string_or(entry, "digest", "")) ||
        !gs_digest_equal(digest, found->digest)) {
        return gs_error(GS_DATA_LOSS, "%s: its digest is not what the manifest says", found->name);
    }
    return gs_ok();
}
