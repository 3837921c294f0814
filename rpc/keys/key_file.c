#include "rpc/keys/key_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "rpc/json/sealed_json.h"
#include "rpc/keys/credential.h"

enum { VERSION = 1, GUARDED = S_IRWXO | S_IWGRP | S_IXGRP };
#define TOKEN_PREFIX "gsk_"
#define PREFIX_LEN 4
#define KEY_DIGITS (2 * GS_CURVE_KEY_BYTES)

// As the file has it.
typedef struct stored_key {
    int64_t version;
    char name[GS_KEY_NAME_BYTES], shown[GS_CURVE_KEY_TEXT_BYTES], secret[GS_CURVE_KEY_TEXT_BYTES], server[GS_CURVE_KEY_TEXT_BYTES];
    bool is_pool;
    char digest[64];  // rpc/json/sealed_json.h looks at it
} stored_key;

#define KEY(member, word, what)                                                                                     \
    {.name = word, .type = GS_FIELD_STRING, .offset = offsetof(stored_key, member), .capacity = GS_CURVE_KEY_TEXT_BYTES, \
     .required = true, .pattern = "^[0-9a-f]{64}$", .help = what}

static const gs_field fields[] = {
    {.name = "version", .type = GS_FIELD_INT, .offset = offsetof(stored_key, version), .required = true,
     .has_range = true, .least = VERSION, .most = VERSION, .help = "Of the file."},
    {.name = "name", .type = GS_FIELD_STRING, .offset = offsetof(stored_key, name), .capacity = GS_KEY_NAME_BYTES,
     .required = true, .pattern = GS_KEY_NAME_PATTERN, .help = "Whose it is."},
    {.name = "pool", .type = GS_FIELD_BOOL, .offset = offsetof(stored_key, is_pool), .default_value = "false",
     .help = "Workers whose names begin with this one and a hyphen share it."},
    KEY(shown, "public", "Everybody may know it."),
    KEY(secret, "secret", "Nobody else may."),
    KEY(server, "server", "The coordinator's public key."),
    {.name = "digest", .type = GS_FIELD_STRING, .offset = offsetof(stored_key, digest), .capacity = 64,
     .default_value = "\"\"", .help = "Of the bytes before it."},
    {0}};

static gs_status check_halves(const gs_key_file *key) {
    gs_curve_pair pair = {.secret = key->pair.secret};
    GS_TRY(gs_curve_pair_complete(&pair));
    bool same = gs_curve_key_equal(&pair.shown, &key->pair.shown);
    explicit_bzero(&pair, sizeof pair);
    return same ? gs_ok() : gs_error(GS_INVALID_ARGUMENT, "public is not that of secret");
}

gs_status gs_key_file_decode(gs_key_file *key, const gs_json *file) {
    stored_key stored = {0};
    *key = (gs_key_file){0};
    gs_status status = gs_credential_file_decode(&stored, fields, file);
    if (!status.code) {
        memcpy(key->name, stored.name, sizeof key->name);
        key->is_pool = stored.is_pool;
        bool parsed = gs_curve_key_parse(&key->pair.shown, stored.shown) && gs_curve_key_parse(&key->pair.secret, stored.secret) &&
                      gs_curve_key_parse(&key->server, stored.server);
        status = parsed ? check_halves(key) : gs_error(GS_INVALID_ARGUMENT, "a key of it is none");
    }
    explicit_bzero(&stored, sizeof stored);
    if (status.code) gs_key_file_wipe(key);
    return status;
}

gs_json *gs_key_file_encode(const gs_key_file *key) {
    stored_key stored = {.version = VERSION, .is_pool = key->is_pool};
    memcpy(stored.name, key->name, sizeof stored.name);
    gs_curve_key_format(stored.shown, &key->pair.shown);
    gs_curve_key_format(stored.secret, &key->pair.secret);
    gs_curve_key_format(stored.server, &key->server);
    gs_json *file = gs_credential_file_encode(&stored, fields);
    explicit_bzero(&stored, sizeof stored);
    return file;
}

gs_status gs_key_file_read(gs_key_file *key, gs_file_mark *mark, const char *path) {
    gs_json *file = NULL;
    *key = (gs_key_file){0};
    GS_TRY(gs_sealed_json_read_guarded(&file, mark, path, GUARDED));
    gs_status status = gs_key_file_decode(key, file);
    gs_json_release(file);
    if (status.code == GS_INVALID_ARGUMENT) status.code = GS_DATA_LOSS;
    return gs_status_prefix(status, "%s", path);
}

gs_status gs_key_file_write(const gs_key_file *key, const char *path) {
    gs_json *file = gs_key_file_encode(key);
    if (!file) return gs_error(GS_RESOURCE_EXHAUSTED, "%s: out of memory", path);
    uint64_t bytes;
    gs_digest digest;
    char here[PATH_MAX];
    snprintf(here, sizeof here, "%s%s", strchr(path, '/') ? "" : "./", path);
    return gs_sealed_json_write(file, here, &bytes, &digest);
}

gs_status gs_key_file_print(char **text, const gs_key_file *key) {
    gs_json *file = gs_key_file_encode(key);
    return file ? gs_sealed_json_text(text, file) : gs_error(GS_RESOURCE_EXHAUSTED, "key: out of memory");
}

bool gs_key_name_is_sound(const char *name) {
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    return name[0] && !strchr("._-", name[0]) && strlen(name) < GS_KEY_NAME_BYTES && !name[strspn(name, allowed)];
}

void gs_key_file_wipe(gs_key_file *key) {
    explicit_bzero(key, sizeof *key);
}

void gs_enrol_token_format(char text[GS_ENROL_TOKEN_BYTES], const gs_curve_key *server, const gs_curve_key *secret) {
    memcpy(text, TOKEN_PREFIX, PREFIX_LEN);
    gs_curve_key_format(text + PREFIX_LEN, server);
    gs_curve_key_format(text + PREFIX_LEN + KEY_DIGITS, secret);
}

gs_status gs_enrol_token_parse(gs_key_file *key, const char *text, size_t len) {
    char half[GS_CURVE_KEY_TEXT_BYTES] = {0};
    *key = (gs_key_file){.name = "token"};
    bool parsed = len == GS_ENROL_TOKEN_BYTES - 1 && memcmp(text, TOKEN_PREFIX, PREFIX_LEN) == 0;
    if (parsed) memcpy(half, text + PREFIX_LEN, KEY_DIGITS);
    parsed = parsed && gs_curve_key_parse(&key->server, half);
    if (parsed) memcpy(half, text + PREFIX_LEN + KEY_DIGITS, KEY_DIGITS);
    parsed = parsed && gs_curve_key_parse(&key->pair.secret, half);
    explicit_bzero(half, sizeof half);
    if (!parsed) return gs_error(GS_INVALID_ARGUMENT, "no token to enrol with (gsk_ and 128 hexadecimal digits)");
    return gs_curve_pair_complete(&key->pair);
}

gs_status gs_enrol_token_read(gs_key_file *key, const char *path) {
    char text[GS_ENROL_TOKEN_BYTES + 16] = "";
    struct stat facts;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return gs_error_from_errno(errno, "%s", path);
    // As of a key: with it somebody else enrols.
    gs_status status = fstat(fd, &facts) == 0 ? gs_file_check_guarded(&facts, path, GUARDED) : gs_error_from_errno(errno, "%s", path);
    if (!status.code && read(fd, text, sizeof text - 1) < 0) status = gs_error_from_errno(errno, "%s", path);
    close(fd);
    if (!status.code) status = gs_status_prefix(gs_enrol_token_parse(key, text, strcspn(text, " \r\n")), "%s", path);
    explicit_bzero(text, sizeof text);
    return status;
}
