// Who did what, and when: a file of lines in JSON, one when a request that changes something begins and one when it is
// answered; and beside it another file of those that were refused, and of those of who may change nothing, so that strangers
// who knock push nothing out of the first, nor does a token of little right. Of requests to the API, and of calls at the control
// port. Any thread; of one process. What is written here is no secret: who writes sees to that.
//
// A line is with the system before the request goes on, so that it outlives the process, and on the disk within about a
// second. A line that a loss of power cut in two stays, and the next begins behind it. Each file is renamed when it is
// full, to FILE.1, and what was FILE.1 to FILE.2, up to a last one that is dropped. `seq` counts the lines of a file
// without a hole, over restarts too.
//
// What cannot be written holds up nobody: an operator whose disk is full has to be able to delete. Such a line goes to the log
// of the process, and is counted.
#ifndef RPC_KEYS_AUDIT_H
#define RPC_KEYS_AUDIT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

typedef struct gs_audit gs_audit;

typedef enum gs_audit_kind {
    GS_AUDIT_ASKED = 0,  // it was let in, and begins
    GS_AUDIT_ANSWERED,   // what came of it, also a refusal of somebody who is known
    GS_AUDIT_REFUSED     // nobody knows whose it was
} gs_audit_kind;

typedef struct gs_audit_line {
    gs_audit_kind kind;
    const char *request_id, *method, *route, *path;
    const char *token, *name, *role;  // "" where nobody was asked, or nobody knows; of the control port: id and name of a key
    const char *by;                   // for whom an API with that key asks, as it says; NULL, "": for itself
    const char *from;                 // "10.0.0.3:51234", "unix uid=1000 pid=77"
    int status;                       // of HTTP; 0: not answered yet
    const char *result;               // of the control port: a code's name; NULL: not answered yet
    uint64_t count;                   // of refusals of one key that are told together; 0: it is one
    const char *made;                 // where what was made is; NULL: nothing was
    double seconds;
    bool is_lesser;  // it goes to the other file
} gs_audit_line;

typedef struct gs_audit_options {
    const char *path;      // "…/audit.jsonl"; those of strangers go to "…/audit.jsonl.refused"
    uint64_t most_bytes;   // of a file before it is renamed; 0: 16 MiB
    unsigned most_files;   // beside the one that is written; 0: 8
} gs_audit_options;

// FAILED_PRECONDITION: what is there is no regular file of this user.
GS_NODISCARD gs_status gs_audit_open(gs_audit **out, const gs_audit_options *options);
void gs_audit_close(gs_audit *audit);  // NULL is fine
void gs_audit_write(gs_audit *audit, const gs_audit_line *line);  // of NULL nothing is written
// The same of a thread that may wait for no disk: another one writes it, in order with others that were posted. What was posted
// when the process is killed may be lost.
void gs_audit_post(gs_audit *audit, const gs_audit_line *line);
uint64_t gs_audit_lost(const gs_audit *audit);  // lines that could not be written

#endif
