#include "api/access/budget.h"

#include <pthread.h>
#include <stdlib.h>

#include "core/thread.h"

struct gs_budget {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t all, left;
};

gs_budget *gs_budget_create(uint64_t all) {
    gs_budget *budget = calloc(1, sizeof *budget);
    if (!budget) return NULL;
    budget->all = budget->left = all;
    pthread_mutex_init(&budget->lock, NULL);
    gs_cond_init(&budget->changed);
    return budget;
}

void gs_budget_destroy(gs_budget *budget) {
    if (!budget) return;
    pthread_cond_destroy(&budget->changed);
    pthread_mutex_destroy(&budget->lock);
    free(budget);
}

bool gs_budget_take(gs_budget *budget, uint64_t amount, gs_deadline deadline) {
    pthread_mutex_lock(&budget->lock);
    while (amount <= budget->all && amount > budget->left && gs_cond_wait(&budget->changed, &budget->lock, deadline)) continue;
    bool is_taken = amount <= budget->left;
    if (is_taken) budget->left -= amount;
    pthread_mutex_unlock(&budget->lock);
    return is_taken;
}

void gs_budget_give(gs_budget *budget, uint64_t amount) {
    pthread_mutex_lock(&budget->lock);
    budget->left += amount;
    pthread_cond_broadcast(&budget->changed);
    pthread_mutex_unlock(&budget->lock);
}
