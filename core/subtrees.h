// The tree over numbered leaves in which sums are added up, whoever has which leaf: a node of n
// leaves has as many to its left as the largest power of two below n.
#ifndef CORE_SUBTREES_H
#define CORE_SUBTREES_H

#include "core/abi.h"

GS_BEGIN_DECLS

int gs_subtree_left(int num_leaves);  // of at least 2
// How few whole subtrees make up the leaves [first, end) of num_leaves.
int gs_subtrees_count(int num_leaves, int first, int end);
// The most of them that are there at once while the leaves [first, end) come one by one, and are
// merged when they can be; the one that has just come is one. At least 1.
int gs_subtrees_most(int num_leaves, int first, int end);

GS_END_DECLS

#endif
