// What a test orders the stand-in to do wrong.
//
// The variable NCCL_SIM_ORDERS, and the file that NCCL_SIM_ORDERS_FILE names, which is read anew whenever an
// order is looked for, hold entries separated by commas or line ends: name[#rank][@count][=value]. `rank`
// is the variable RANK of the process; `count` the number of the call or collective, from 1.
//
//   version=21300               what ncclGetVersion says
//   fail.ncclAllReduce@3=1      that call returns ncclResult_t 1
//   hang.init                   initialisation goes on for ever
//   hang.collective@5           this rank's collective 5 never starts (1 and 2 are the warm-up's)
//   async@5=6                   as hang.collective, and the communicator's asynchronous error is 6
//   late@5=300                  this rank's collective ends 300 ms late
//   wrong@2                     the first element of the result is wrong
//   settle=50                   calls stay in progress for 50 ms
//   hang.abort · hang.destroy   never return
//   slow.abort=1500             returns 1500 ms late
//   windows · no-windows        symmetric windows between hosts too · none at all
#ifndef TESTS_NCCL_SIM_ORDERS_H
#define TESTS_NCCL_SIM_ORDERS_H

#include <stdbool.h>
#include <stdint.h>

// Whether `name` is ordered for this rank and `count`; an entry without count fits every one. `value` may
// be NULL; 0 when the entry has none.
bool nccl_sim_ordered(const char *name, uint64_t count, long *value);

#endif
