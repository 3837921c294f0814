// What rank 1 has otherwise than the others: told before the first step, by comparing what all ranks have.
#include <stdio.h>

#include "tests/multiprocess/wrong_program.h"

static void change_shape(grad_case *model) {
    model->params[2].shape[1] = 99;
}
static void swap_dimensions(grad_case *model) {
    model->params[2].shape[0] = 100;
    model->params[2].shape[1] = 12;
}
static void change_name(grad_case *model) {
    snprintf(model->params[2].name, sizeof model->params[2].name, "head.weight");
}
static void change_dtype(grad_case *model) {
    model->params[2].dtype = GS_BF16;
}
static void swap_params(grad_case *model) {
    gs_param_spec swapped = model->params[1];
    model->params[1] = model->params[2];
    model->params[2] = swapped;
}
static void leave_param_out(grad_case *model) {
    model->num_params--;
}
static void add_param(grad_case *model) {
    model->params[model->num_params++] = gs_param_spec_make(GS_FP32, 5, 0, "extra.bias");
}
static void make_sparse(grad_case *model) {
    model->params[2].sparse = true;
}
static void change_op(grad_case *model) {
    model->op = GS_SUM;
}
static void change_divisor(grad_case *model) {
    model->num_shards = 2 * WORLD;
}
static void make_exact(grad_case *model) {
    model->exact = true;
}
static void make_unused_an_error(grad_case *model) {
    model->unused_is_error = true;
}
static void send_bf16(grad_case *model) {
    model->wire_dtype = GS_BF16;
}
static void change_hook(grad_case *model) {
    static gs_comm_hook other_hook;
    other_hook = gs_hook_allreduce;
    other_hook.name = "allreduce_of_my_own";
    model->hook.hook = &other_hook;
}
static const gs_hook_option hook_options[] = {
    {.name = "rank", .fallback = 2, .least = 1, .most = 64, .is_whole = true}};
static void use_options(grad_case *model) {
    static gs_comm_hook hook;
    hook = gs_hook_allreduce;
    hook.name = "ranked";
    hook.options = hook_options;
    hook.num_options = 1;
    model->hook.hook = &hook;
}
static void change_option(grad_case *model) {
    static const gs_hook_number number = {"rank", 3};
    model->hook.numbers = &number;
    model->hook.num_numbers = 1;
}
static void change_buckets(grad_case *model) {
    plan_again(model, 4, NULL);
}
static void change_order_of_buckets(grad_case *model) {
    const size_t order[] = {1, 0, 3, 2};
    plan_again(model, 8000, order);
}
static void lose_a_bucket(grad_case *model) {
    plan_again(model, 8000, NULL);
    model->plan.num_buckets--;  // a plan that does not hold all parameters
}

static const wrong_program programs[] = {
    {"another shape", .culprit = change_shape,
     .words = "rank 1 against rank 0: parameter 2 \"fc2.weight\": shape [12,99] against [12,100]"},
    {"dimensions swapped", .culprit = swap_dimensions,
     .words = "parameter 2 \"fc2.weight\": shape [100,12] against [12,100]"},
    {"another name", .culprit = change_name,
     .words = "rank 1 against rank 0: parameter 2: name \"head.weight\" against \"fc2.weight\""},
    {"another dtype", .culprit = change_dtype,
     .words = "rank 1 against rank 0: parameter 2 \"fc2.weight\": dtype bf16 against fp32"},
    {"parameters in another order", .culprit = swap_params,
     .words = "rank 1 against rank 0: parameter 1: name \"fc2.weight\" against \"fc1.weight\""},
    {"a parameter less", .culprit = leave_param_out, .words = "rank 1 against rank 0",
     .more_words = "3 parameters against 4"},
    {"a parameter more", .culprit = add_param, .words = "rank 1 against rank 0",
     .more_words = "5 parameters against 4"},
    {"a sparse gradient", .culprit = make_sparse,
     .words = "rank 1 against rank 0: parameter 2 \"fc2.weight\": gradient sparse against dense"},
    {"other buckets", .culprit = change_buckets, .words = "rank 1 against rank 0: bucket plan"},
    {"buckets in another order", .culprit = change_order_of_buckets,
     .words = "rank 1 against rank 0: bucket plan: place 0 holds parameter"},
    {"another hook", .culprit = change_hook,
     .words = "rank 1 against rank 0: communication hook \"allreduce_of_my_own\""},
    {"another option of a hook", .everywhere = use_options, .culprit = change_option,
     .words = "rank 1 against rank 0: communication hook \"ranked\": option rank 3 against 2"},
    {"sum against mean", .culprit = change_op, .words = "rank 1 against rank 0: reduction"},
    {"another divisor", .culprit = change_divisor,
     .words = "rank 1 against rank 0: logical shards 6 against 3"},
    {"more accumulation", .culprit = change_passes,
     .words = "rank 1 against rank 0: passes per shard 2 against 1"},
    {"exact mode alone", .culprit = make_exact, .words = "rank 1 against rank 0: exact mode"},
    {"strict about unused ones alone", .culprit = make_unused_an_error,
     .words = "rank 1 against rank 0: unused_is_error"},
    {"static graph alone", .culprit = make_static, .words = "rank 1 against rank 0: static graph"},
    {"another wire dtype", .culprit = send_bf16, .words = "rank 1 against rank 0: wire dtype"},
    {"a plan without all parameters", .culprit = lose_a_bucket, .words = "rank 1",
     .culprit_words = "plan"},
};

int main(int argc, char **argv) {
    return wrong_programs_main(argc, argv, programs, sizeof programs / sizeof programs[0]);
}
