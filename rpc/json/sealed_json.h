// A JSON object in a file that says itself whether it is whole: its last member is the digest of all bytes
// before it, so that none can change unseen; and it is written atomically.
#ifndef RPC_JSON_SEALED_JSON_H
#define RPC_JSON_SEALED_JSON_H

#include <stddef.h>
#include <stdint.h>

#include "core/digest.h"
#include "core/directory.h"
#include "core/status.h"
#include "rpc/json/json.h"
#include "rpc/json/sealed_file.h"

// For its owner alone. Adds the closing digest and writes `path` by a temporary name, fsync, rename and fsync of the directory;
// `object` is taken. *digest is of the whole file.
GS_NODISCARD gs_status gs_sealed_json_write(gs_json *object, const char *path, uint64_t *bytes,
                                            gs_digest *digest);
GS_NODISCARD gs_status gs_sealed_json_write_at(gs_json *object, gs_file_place place, uint64_t *bytes, gs_digest *digest);
// The same for everybody to read, as the three below: other users' processes look for it.
GS_NODISCARD gs_status gs_sealed_json_put(gs_json *object, gs_file_place place);
// The bytes of such a file; *text is the caller's.
GS_NODISCARD gs_status gs_sealed_json_text(char **text, gs_json *object);
// The same for those who look now: nothing waits for the disk, and a loss of power may leave anything.
GS_NODISCARD gs_status gs_sealed_json_show(gs_json *object, gs_file_place place);
// In two steps. A draft is whole and on the disk, and under its own name, which nobody has, counts for nothing; a published one
// is at `place`, unless somebody has removed it meanwhile: ABORTED, and `place` is as it was. Where it fails there is no draft left.
GS_NODISCARD gs_status gs_sealed_json_draft(gs_json *object, gs_file_place draft, uint64_t *bytes, gs_digest *digest);
GS_NODISCARD gs_status gs_sealed_json_publish(gs_file_place draft, gs_file_place place);
// DATA_LOSS when the closing digest is not that of the bytes before it, or they are no JSON.
GS_NODISCARD gs_status gs_sealed_json_read(gs_json **out, const char *path);
GS_NODISCARD gs_status gs_sealed_json_read_at(gs_json **out, gs_file_place place);
// Of a file that says who may do what: gs_file_check_guarded of the very file that is read, also where a link leads to it, as
// volumes of secrets have them. *mark (may be NULL) is of it.
GS_NODISCARD gs_status gs_sealed_json_read_guarded(gs_json **out, gs_file_mark *mark, const char *path, unsigned forbidden);
GS_NODISCARD gs_status gs_sealed_json_parse(gs_json **out, const char *text, size_t bytes);

#endif
