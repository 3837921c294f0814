// The keys of a coordinator, in its data directory: its own pair in control.key, and who it knows in keys.json. Any process
// of its user may change them, one at a time; a change is on the disk before it is told.
#ifndef RPC_KEYS_KEY_STORE_H
#define RPC_KEYS_KEY_STORE_H

#include "core/status.h"
#include "rpc/json/sealed_file.h"
#include "rpc/keys/key_file.h"
#include "rpc/keys/key_list.h"

// Room for what comes behind a data directory.
#define GS_KEY_PATH_BYTES 1200
void gs_key_store_path(char path[GS_KEY_PATH_BYTES], const char *data_dir);  // of keys.json

// The server's own pair; made, with an empty list beside it, when there is none. *made (may be NULL): it was. DATA_LOSS:
// the file is damaged.
GS_NODISCARD gs_status gs_key_store_server(gs_key_file *key, const char *data_dir, bool *made);
// `list` is {0}. A list that is not there is an empty one. FAILED_PRECONDITION: others than its owner may change it.
GS_NODISCARD gs_status gs_key_store_read(gs_key_list *list, gs_file_mark *mark, const char *path);
// Reads, changes, and writes what has changed. An error of `change` leaves all as it was, and is returned.
typedef gs_status (*gs_key_change)(gs_key_list *list, void *ctx);
GS_NODISCARD gs_status gs_key_store_change(const char *path, gs_key_change change, void *ctx);
// A new pair that the list knows from now on; `file` gets all that its holder needs but the server's key.
GS_NODISCARD gs_status gs_key_store_make(const char *path, gs_known_key *made, gs_key_file *file);

#endif
