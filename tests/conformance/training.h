// The kinds that have ranks: those that train, clip-scale, hook and powersgd.
#ifndef TESTS_CONFORMANCE_TRAINING_H
#define TESTS_CONFORMANCE_TRAINING_H

#include "tests/conformance/conformance.h"

gs_status conformance_train_mlp(conformance *run, char **args, int num_args);
gs_status conformance_train_mlp_rank(const gs_rank_env *env);

gs_status conformance_zero_train(conformance *run, char **args, int num_args);
gs_status conformance_zero_train_rank(const gs_rank_env *env);

gs_status conformance_gpt2(conformance *run, char **args, int num_args);
gs_status conformance_gpt2_start_rank(const gs_rank_env *env);
gs_status conformance_gpt2_train_rank(const gs_rank_env *env);

gs_status conformance_powersgd(conformance *run, char **args, int num_args);
gs_status conformance_powersgd_rank(const gs_rank_env *env);

gs_status conformance_clip_scale(conformance *run, char **args, int num_args);
gs_status conformance_clip_rank(const gs_rank_env *env);

gs_status conformance_hook(conformance *run, char **args, int num_args);
gs_status conformance_hook_rank(const gs_rank_env *env);

#endif
