#include "core/subtrees.h"

int gs_subtree_left(int num_leaves) {
    int left = 1;
    while (left * 2 < num_leaves) left *= 2;
    return left;
}

// Of the node [low, high).
static int count_in(int low, int high, int first, int end) {
    if (first >= end || high <= first || end <= low) return 0;
    if (first <= low && high <= end) return 1;
    int middle = low + gs_subtree_left(high - low);
    return count_in(low, middle, first, end) + count_in(middle, high, first, end);
}

int gs_subtrees_count(int num_leaves, int first, int end) {
    return count_in(0, num_leaves, first, end);
}

int gs_subtrees_most(int num_leaves, int first, int end) {
    int most = 1;
    for (int leaf = first; leaf < end; leaf++) {
        int count = gs_subtrees_count(num_leaves, first, leaf) + 1;
        if (count > most) most = count;
    }
    return most;
}
