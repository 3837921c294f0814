// Damage in the write-ahead log of the database, that SQLite does not tell of: from the first frame that is not as it was
// written it takes the rest for what a crash has cut off, and what was committed there is gone without a word.
#ifndef COORDINATOR_STORE_DATABASE_WAL_CHECK_H
#define COORDINATOR_STORE_DATABASE_WAL_CHECK_H

#include "core/status.h"

// Before SQLite opens it. What is cut off can only be the last transaction: each is forced out before the next is written. So a
// frame that was written behind a commit, by the chain of checksums, says that all before it was there.
// DATA_LOSS: something of it is not, and was committed. Of the last transaction nobody can tell damage from a power failure:
// a line in the log tells that some of it is there.
//   path   of the database
GS_NODISCARD gs_status gs_wal_check(const char *path);

#endif
