#include "worker/checkpoint/manifest.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/failpoint.h"
#include "core/random.h"

// The bytes `,"digest":"xxh3:…"}` and a newline: always as many, always the last.
#define CLOSING_FORMAT ",\"digest\":\"%s\"}\n"
#define CLOSING_BYTES (11 + GS_DIGEST_TEXT_LEN - 1 + 3)
#define MAX_MANIFEST_BYTES (256u * 1024 * 1024)

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

gs_status gs_manifest_part_read(gs_manifest_part *part, const char *path) {
    const char *slash = strrchr(path, '/');
    *part = (gs_manifest_part){.name = slash ? slash + 1 : path};
    gs_status status = gs_error(GS_RESOURCE_EXHAUSTED, "%s: out of memory", part->name);
    void *block = malloc(GS_MANIFEST_BLOCK_BYTES);
    gs_digest_stream *stream = gs_digest_stream_create();
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) status = gs_error_from_errno(errno, "%s", path);
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

static void pick_members(gs_json *out, const gs_json *spec, const char *section,
                         const char *const *names) {
    const gs_json *from = section ? gs_json_get(spec, section) : spec;
    gs_json *to = section ? gs_json_new_object() : out;
    for (; *names; names++) {
        const gs_json *member = gs_json_get(from, *names);
        if (member) gs_json_set(to, *names, gs_json_copy(member));
    }
    if (section) gs_json_set(out, section, to);
}

gs_json *gs_manifest_spec(const gs_job_spec *spec) {
    static const char *const top[] = {"exact", "logical_shards", NULL};
    static const char *const model[] = {"kind", "gpt2", "mlp", "precision", "seed", NULL};
    static const char *const data[] = {"kind",         "train",       "train_labels",
                                       "global_batch", "micro_batch", "shuffle_seed",
                                       "split",        "uneven_inputs", "join_divisor", NULL};
    static const char *const optimizer[] = {"kind",     "lr",           "beta1",
                                            "beta2",    "eps",          "momentum",
                                            "nesterov", "weight_decay", "grad_clip_norm",
                                            "schedule", "zero_grad",    "loss_scale",
                                            NULL};
    static const char *const reducer[] = {"hook", "op", "buffers", "wire_dtype", NULL};
    gs_json *all = gs_job_spec_encode(spec), *out = gs_json_new_object();
    pick_members(out, all, NULL, top);
    pick_members(out, all, "model", model);
    // Tables of the kinds that were not chosen decide nothing.
    gs_json *chosen = (gs_json *)(uintptr_t)gs_json_get(out, "model");
    gs_json_remove(chosen, spec->model.kind == GS_MODEL_GPT2 ? "mlp" : "gpt2");
    pick_members(out, all, "data", data);
    // Without evaluation files a job that evaluates holds samples out of its training data.
    chosen = (gs_json *)(uintptr_t)gs_json_get(out, "data");
    gs_json_set_bool(chosen, "holds_out", spec->data.eval_every_steps > 0 && spec->data.num_eval == 0 &&
                                              spec->data.kind != GS_DATA_SYNTHETIC);
    // Parts are dealt to ranks: a position among them means nothing in another world.
    if (spec->data.split == GS_SPLIT_BY_RANK) gs_json_set_int(chosen, "ranks", spec->world.max);
    pick_members(out, all, "optimizer", optimizer);
    chosen = (gs_json *)(uintptr_t)gs_json_get(out, "optimizer");
    if (spec->model.precision != GS_PRECISION_FP16) gs_json_remove(chosen, "loss_scale");
    pick_members(out, all, "reducer", reducer);
    gs_json_release(all);
    return out;
}

static gs_status compare_values(const char *pointer, const gs_json *ours, const gs_json *theirs,
                                const gs_json *defaults);

typedef struct comparison {
    const char *pointer;
    const gs_json *other, *defaults;
    gs_status status;
} comparison;

static bool compare_member(void *ctx, const char *key, const gs_json *value) {
    comparison *at = ctx;
    char pointer[160];
    snprintf(pointer, sizeof pointer, "%s/%s", at->pointer, key);
    // A member that the checkpoint's version did not have was what it is by default.
    const gs_json *usual = gs_json_get(at->defaults, key), *other = gs_json_get(at->other, key);
    at->status = compare_values(pointer, value, other ? other : usual, usual);
    return at->status.code == GS_OK;
}

static gs_status compare_texts(const char *pointer, const gs_json *ours, const gs_json *theirs) {
    char *a = NULL, *b = NULL;
    gs_status status = gs_json_encode(&a, NULL, ours, false);
    if (!status.code && theirs) status = gs_json_encode(&b, NULL, theirs, false);
    if (!status.code && (!b || strcmp(a, b) != 0)) {
        status = gs_error(GS_INVALID_ARGUMENT, "%s is %.60s, the checkpoint has %.60s", pointer, a,
                          b ? b : "none");
    }
    free(a);
    free(b);
    return status;
}

static gs_status compare_values(const char *pointer, const gs_json *ours, const gs_json *theirs,
                                const gs_json *defaults) {
    if (gs_json_type_of(ours) != GS_JSON_OBJECT) return compare_texts(pointer, ours, theirs);
    comparison at = {.pointer = pointer, .other = theirs, .defaults = defaults, .status = gs_ok()};
    gs_json_each(ours, compare_member, &at);
    return at.status;
}

gs_status gs_manifest_spec_compare(const gs_json *ours, const gs_json *theirs) {
    gs_job_spec usual = {0};
    gs_fields_set_defaults(&usual, gs_job_spec_fields);
    if (gs_json_get(gs_json_get(ours, "model"), "mlp")) usual.model.kind = GS_MODEL_MLP;
    gs_json *defaults = gs_manifest_spec(&usual);
    gs_status status = compare_values("", ours, theirs, defaults);
    gs_json_release(defaults);
    return status;
}

gs_json *gs_manifest_position(const gs_position *position) {
    gs_json *out = gs_json_new_object();
    gs_json_set_int(out, "step", position->step);
    gs_json_set_int(out, "consumed", position->consumed);
    gs_json_set_int(out, "skipped_steps", position->skipped_steps);
    gs_json_set_int(out, "skipped_in_a_row", position->skipped_in_a_row);
    if (position->loss_scale.scale > 0) {
        gs_json_set_double(out, "loss_scale", (double)position->loss_scale.scale);
        gs_json_set_int(out, "growth_tracker", position->loss_scale.growth_tracker);
    }
    return out;
}

gs_json *gs_manifest_tensors(const gs_state_snapshot *snapshot) {
    gs_json *out = gs_json_new_array();
    for (size_t i = 0; i < snapshot->num_tensors; i++) {
        const gs_state_tensor *tensor = &snapshot->tensors[i];
        gs_json *row = gs_json_new_object(), *shape = gs_json_new_array();
        for (int d = 0; d < tensor->num_dims; d++) {
            gs_json_push(shape, gs_json_new_int(tensor->shape[d]));
        }
        gs_json_set_string(row, "name", tensor->name);
        gs_json_set_string(row, "dtype", gs_dtype_name(tensor->dtype));
        gs_json_set(row, "shape", shape);
        gs_json_set_int(row, "part", 0);
        gs_json_push(out, row);
    }
    return out;
}

static gs_status write_all(int fd, const char *text, size_t bytes, const char *path) {
    while (bytes) {
        ssize_t put = write(fd, text, bytes);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return gs_error_from_errno(errno, "write %s", path);
        text += put;
        bytes -= (size_t)put;
    }
    if (fsync(fd) < 0) return gs_error_from_errno(errno, "sync %s", path);
    return gs_ok();
}

static gs_status sync_directory_of(const char *path) {
    char directory[PATH_MAX];
    snprintf(directory, sizeof directory, "%s", path);
    char *slash = strrchr(directory, '/');
    if (slash) *slash = '\0';
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return gs_error_from_errno(errno, "%s", directory);
    int failed = fsync(fd);
    int error_number = errno;
    close(fd);
    return failed ? gs_error_from_errno(error_number, "sync %s", directory) : gs_ok();
}

static gs_status rename_file(const char *from, const char *to) {
    GS_FAILPOINT("checkpoint.rename");
    if (rename(from, to) < 0) return gs_error_from_errno(errno, "rename %s", from);
    return gs_ok();
}

// The same road as for part files: a temporary name, synced, closed, renamed, directory synced.
static gs_status write_file(const char *path, const char *text, size_t bytes) {
    char temporary[PATH_MAX];
    snprintf(temporary, sizeof temporary, "%s.tmp.%08x", path, (unsigned)gs_random_from_system());
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) return gs_error_from_errno(errno, "%s", temporary);
    gs_status status = write_all(fd, text, bytes, temporary);
    if (close(fd) < 0 && !status.code) status = gs_error_from_errno(errno, "close %s", temporary);
    if (!status.code) status = rename_file(temporary, path);
    if (status.code) {
        unlink(temporary);
        return status;
    }
    return sync_directory_of(path);
}

gs_status gs_manifest_write(gs_json *object, const char *path, uint64_t *bytes,
                            gs_digest *digest) {
    char *text = NULL, *whole = NULL, digest_text[GS_DIGEST_TEXT_LEN];
    size_t body_bytes;
    gs_status status = gs_json_encode(&text, &body_bytes, object, false);
    gs_json_release(object);
    if (status.code) return status;
    body_bytes--;  // the closing brace comes after the digest
    gs_digest_format(digest_text, gs_digest_of(text, body_bytes));
    int length = asprintf(&whole, "%.*s" CLOSING_FORMAT, (int)body_bytes, text, digest_text);
    free(text);
    if (length < 0) return gs_error(GS_RESOURCE_EXHAUSTED, "manifest: out of memory");
    *bytes = (uint64_t)length;
    *digest = gs_digest_of(whole, (size_t)length);
    status = write_file(path, whole, (size_t)length);
    free(whole);
    return status;
}

static gs_status read_file(char **text, size_t *bytes, const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return gs_error_from_errno(errno, "%s", path);
    struct stat facts;
    gs_status status = gs_ok();
    *text = NULL;
    if (fstat(fd, &facts) < 0) {
        status = gs_error_from_errno(errno, "%s", path);
    } else if (facts.st_size > MAX_MANIFEST_BYTES) {
        status = gs_error(GS_DATA_LOSS, "%s: too large for a manifest", path);
    } else if (!(*text = malloc((size_t)facts.st_size + 1))) {
        status = gs_error(GS_RESOURCE_EXHAUSTED, "%s: out of memory", path);
    } else if (read(fd, *text, (size_t)facts.st_size) != facts.st_size) {
        status = gs_error(GS_DATA_LOSS, "%s: short read", path);
    }
    close(fd);
    if (status.code) {
        free(*text);
        return status;
    }
    *bytes = (size_t)facts.st_size;
    (*text)[*bytes] = '\0';
    return gs_ok();
}

gs_status gs_manifest_read(gs_json **out, const char *path) {
    char *text, wanted[CLOSING_BYTES + 1], digest_text[GS_DIGEST_TEXT_LEN];
    size_t bytes;
    GS_TRY(read_file(&text, &bytes, path));
    gs_status status = gs_error(GS_DATA_LOSS, "%s: its digest is wrong", path);
    if (bytes > CLOSING_BYTES) {
        size_t body_bytes = bytes - CLOSING_BYTES;
        gs_digest_format(digest_text, gs_digest_of(text, body_bytes));
        snprintf(wanted, sizeof wanted, CLOSING_FORMAT, digest_text);
        if (memcmp(wanted, text + body_bytes, CLOSING_BYTES) == 0) {
            status = gs_json_parse(out, text, bytes);
        }
    }
    free(text);
    return status;
}
