#include "tests/support/ranks.h"
