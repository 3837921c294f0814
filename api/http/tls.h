// The certificate of a server and its key, from files, taken anew when they change: connections that are open go on
// with what they began with, new ones get the new certificate. A thread of its own looks each second. Files that
// cannot be read, or a key of another certificate, as between the two writes of whoever replaces both, change nothing.
//
// TLS 1.2 and 1.3, with forward secrecy and authenticated ciphers alone.
#ifndef API_HTTP_TLS_H
#define API_HTTP_TLS_H

#include <gnutls/abstract.h>

#include "core/status.h"

typedef struct gs_tls gs_tls;  // any thread

// What GnuTLS calls a priority string.
#define GS_TLS_PRIORITIES                                                                                     \
    "SECURE128:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2:-KX-ALL:+ECDHE-ECDSA:+ECDHE-RSA:-CIPHER-ALL:"                   \
    "+AES-256-GCM:+AES-128-GCM:+CHACHA20-POLY1305:%SERVER_PRECEDENCE"

// cert_path: PEM, the server's own first, then those that vouch for it. INVALID_ARGUMENT names the file and what is
// wrong with it; FAILED_PRECONDITION: others than its owner and his group may read the key.
GS_NODISCARD gs_status gs_tls_open(gs_tls **out, const char *cert_path, const char *key_path);
// When no handshake goes on any more; NULL is fine.
void gs_tls_close(gs_tls *tls);
// For a handshake, which is over a minute later: what is given stays that long after it was replaced.
void gs_tls_show(gs_tls *tls, gnutls_pcert_st **chain, unsigned *chain_count, gnutls_privkey_t *key);

#endif
