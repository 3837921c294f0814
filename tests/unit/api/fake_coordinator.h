// A coordinator that answers what the test told it to, behind the real RPC and the real HTTP API.
#ifndef TESTS_UNIT_API_FAKE_COORDINATOR_H
#define TESTS_UNIT_API_FAKE_COORDINATOR_H

#include "api/api.h"
#include "rpc/schema/messages.h"
#include "rpc/server/rpc_server.h"

typedef struct fake_coordinator fake_coordinator;

//   request_ms  as in gs_api_options
fake_coordinator *fake_start(int64_t request_ms);
//   answer_ms   as in gs_api_options
fake_coordinator *fake_start_with_patience(int64_t request_ms, int64_t answer_ms);
// Whose API asks for the tokens of a file, from the start or as soon as there is one.
fake_coordinator *fake_start_with_tokens(const char *tokens_path, bool are_required);
// At all addresses, as behind a proxy that encrypts.
fake_coordinator *fake_start_behind_proxy(const char *tokens_path);
void fake_stop(fake_coordinator *fake);
const char *fake_address(const fake_coordinator *fake);  // of the API
const char *fake_readonly_address(const fake_coordinator *fake);  // of its second one
gs_api *fake_take_api(fake_coordinator *fake);           // the test stops it itself

// What `method` answers from now on. `body` is JSON text or NULL; with a code other than GS_OK it
// holds details. A second answer is given from the second call on.
void fake_answer(fake_coordinator *fake, gs_method method, gs_code code, const char *message,
                 const char *body);
void fake_answer_then(fake_coordinator *fake, gs_method method, const char *body);
// From now on what is asked for waits, until it is not held any more.
void fake_hold(fake_coordinator *fake, gs_method method, bool holds);
// The last request of that method as JSON text, "" when there was none; valid until the next call.
const char *fake_last_request(fake_coordinator *fake, gs_method method);
int fake_num_calls(fake_coordinator *fake, gs_method method);
// An item to all open Watch streams; with "end" as its event the streams end behind it.
void fake_watch_item(fake_coordinator *fake, const char *item);
void fake_wait_watchers(fake_coordinator *fake, int num_watchers);

#endif
