// Where the ranks of other hosts reach a rank: an address of this host, in numbers.
//
// Nobody's name is looked up but the coordinator's, which the worker talks to anyway: what a host
// takes itself to be called leads to the wrong interface too often.
#ifndef WORKER_DATA_ADDRESS_H
#define WORKER_DATA_ADDRESS_H

#include <stdbool.h>

#define GS_DATA_ADDRESS_LEN 48

bool gs_data_address_is_sound(const char *text);  // "10.0.0.2", "fd00::2"

// `configured` where it says something; else the address that packets to the coordinator leave
// from. "": that has none, and the loopback will have to do.
//   coordinator  "tcp://HOST:PORT"
void gs_data_address_find(char text[GS_DATA_ADDRESS_LEN], const char *configured,
                          const char *coordinator);

#endif
