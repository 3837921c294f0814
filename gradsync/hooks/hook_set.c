#include "gradsync/hooks/hook_set.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "gradsync/bucket/grad_squares.h"
#include "gradsync/bucket/main_grad.h"

#define CLEARING_SECONDS 60.0

static size_t round_place(size_t bytes) {
    return gs_round_up(bytes, GS_HOOK_PLACE_BYTES);
}

static const gs_comm_hook *choose_default(gs_dtype wire_dtype) {
    return wire_dtype == GS_FP16   ? &gs_hook_fp16
           : wire_dtype == GS_BF16 ? &gs_hook_bf16
                                   : &gs_hook_allreduce;
}

static const gs_hook_option *find_option(const gs_comm_hook *hook, const char *name) {
    for (size_t i = 0; i < hook->num_options; i++) {
        if (strcmp(hook->options[i].name, name) == 0) return &hook->options[i];
    }
    return NULL;
}

static gs_status check_number(const gs_comm_hook *hook, const gs_hook_choice *choice, size_t index) {
    const gs_hook_number *given = &choice->numbers[index];
    const gs_hook_option *option = given->name ? find_option(hook, given->name) : NULL;
    if (!option)
        return gs_error(GS_INVALID_ARGUMENT, "it has no option \"%.47s\"",
                        given->name ? given->name : "");
    for (size_t i = 0; i < index; i++) {
        if (strcmp(choice->numbers[i].name, given->name) == 0)
            return gs_error(GS_INVALID_ARGUMENT, "option %s: given twice", option->name);
    }
    if (!(given->number >= option->least && given->number <= option->most))
        return gs_error(GS_INVALID_ARGUMENT, "option %s: %g, must be %g to %g", option->name,
                        given->number, option->least, option->most);
    if (option->is_whole && given->number != floor(given->number))
        return gs_error(GS_INVALID_ARGUMENT, "option %s: %g, must be a whole number", option->name,
                        given->number);
    return gs_ok();
}

static gs_status check_choice(const gs_comm_hook *hook, const gs_hook_choice *choice);

static gs_status check_inner(const gs_comm_hook *hook, const gs_hook_choice *choice) {
    if (!hook->wraps && choice->inner)
        return gs_error(GS_INVALID_ARGUMENT, "it wraps no other hook");
    if (!hook->wraps) return gs_ok();
    if (!choice->inner || !choice->inner->hook || !choice->inner->hook->name)
        return gs_error(GS_INVALID_ARGUMENT, "it wraps another hook, and there is none");
    return gs_status_prefix(check_choice(choice->inner->hook, choice->inner), "hook \"%.47s\"",
                            choice->inner->hook->name);
}

static gs_status check_hook(const gs_comm_hook *hook) {
    const char *missing = !hook->measure    ? "measure"
                          : !hook->create   ? "create"
                          : !hook->on_plan  ? "on_plan"
                          : !hook->run      ? "run"
                          : !hook->finish   ? "finish"
                          : !hook->commit   ? "commit"
                          : !hook->rollback ? "rollback"
                          : !hook->tensor   ? "tensor"
                          : !hook->loaded   ? "loaded"
                          : !hook->destroy  ? "destroy"
                                            : NULL;
    if (!missing) return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT, "it has no function \"%s\"", missing);
}

static gs_status check_choice(const gs_comm_hook *hook, const gs_hook_choice *choice) {
    GS_TRY(check_hook(hook));
    for (size_t i = 0; i < choice->num_numbers; i++) GS_TRY(check_number(hook, choice, i));
    return check_inner(hook, choice);
}

static gs_status blame(const gs_set_hook *one, gs_status status) {
    return gs_status_prefix(status, "hook \"%.47s\"", one->choice.hook->name);
}

static gs_hook_setup setup_of(const gs_hook_set *set, const gs_set_hook *one, void *state) {
    const gs_hook_set_options *options = &set->options;
    return (gs_hook_setup){.choice = &one->choice,
                           .params = set->params,
                           .num_params = options->num_params,
                           .wire_dtype = options->wire_dtype,
                           .exact = options->exact,
                           .rank = options->rank,
                           .world_size = options->world_size,
                           .device = options->device,
                           .state = state,
                           .divides_later = options->divides_later};
}

static gs_status measure_hook(gs_hook_set *set, gs_set_hook *one) {
    gs_hook_setup setup = setup_of(set, one, NULL);
    gs_hook_needs *needs = &one->needs;
    *needs = (gs_hook_needs){0};
    GS_TRY(one->choice.hook->measure(needs, &setup));
    if (!needs->num_phases) needs->num_phases = 1;
    if (!needs->most_posts) needs->most_posts = GS_HOOK_POSTS;
    if (needs->num_phases < 1 || needs->num_phases > GS_HOOK_MAX_PHASES)
        return gs_error(GS_INVALID_ARGUMENT, "%d phases, at most %d", needs->num_phases,
                        GS_HOOK_MAX_PHASES);
    if (needs->most_posts < 1 || needs->most_posts > GS_HOOK_MAX_POSTS)
        return gs_error(GS_INVALID_ARGUMENT, "%d collectives of a bucket in a phase, at most %d",
                        needs->most_posts, GS_HOOK_MAX_POSTS);
    if (needs->state_bytes > SIZE_MAX / 4 || needs->bucket_bytes > SIZE_MAX / 4)
        return gs_error(GS_RESOURCE_EXHAUSTED, "%zu and %zu bytes do not fit into memory",
                        needs->state_bytes, needs->bucket_bytes);
    return gs_ok();
}

// In front of all state: a hook has one tensor of each parameter that is a rank's own, and none without state.
static gs_status measure_places(gs_hook_set *set) {
    gs_hook_set_needs *total = &set->needs;
    for (size_t i = 0; i < set->num_hooks; i++)
        if (set->hooks[i].needs.state_bytes) total->most_own += set->options.num_params;
    if (!total->most_own) return gs_ok();
    size_t bytes = round_place(gs_own_places_bytes(total->most_own));
    if (!__builtin_add_overflow(total->state_bytes, bytes, &total->state_bytes)) return gs_ok();
    return gs_error(GS_RESOURCE_EXHAUSTED, "the memory of hooks does not fit");
}

static gs_status measure_all(gs_hook_set *set) {
    gs_hook_set_needs *total = &set->needs;
    *total = (gs_hook_set_needs){0};
    for (size_t i = 0; i < set->num_hooks; i++) {
        gs_set_hook *one = &set->hooks[i];
        GS_TRY(blame(one, measure_hook(set, one)));
        const gs_hook_needs *needs = &one->needs;
        if (__builtin_add_overflow(total->state_bytes, round_place(needs->state_bytes),
                                   &total->state_bytes) ||
            __builtin_add_overflow(total->bucket_bytes, round_place(needs->bucket_bytes),
                                   &total->bucket_bytes))
            return blame(one, gs_error(GS_RESOURCE_EXHAUSTED, "its memory does not fit"));
        if (needs->num_phases > total->num_phases) {
            total->num_phases = needs->num_phases;
            total->of_most_phases = (int)i;
        }
        if (needs->most_posts > total->most_posts) total->most_posts = needs->most_posts;
        total->narrows |= needs->narrows;
        total->even_parts |= needs->even_parts;
        if (needs->even_parts && set->num_hooks > 1)
            return blame(one, gs_error(GS_INVALID_ARGUMENT,
                                       "cuts buckets into even parts, so it has all of them: there "
                                       "are %zu hooks",
                                       set->num_hooks));
    }
    return measure_places(set);
}

static void describe_params(gs_hook_set *set) {
    for (size_t i = 0; i < set->options.num_params; i++) {
        const gs_param_spec *spec = &set->options.params[i];
        gs_dtype dtype = gs_main_grad_dtype(spec->dtype);
        set->params[i] = (gs_hook_param){.index = i,
                                         .spec = spec,
                                         .dtype = dtype,
                                         .count = spec->sparse ? 0 : gs_param_spec_count(spec),
                                         .room = gs_bucket_room(spec)};
    }
}

static void list_names(gs_hook_set *set) {
    int used = 0;
    for (size_t i = 0; i < set->num_hooks && used < (int)sizeof set->names; i++)
        used += snprintf(set->names + used, sizeof set->names - (size_t)used, "%s%.47s",
                         i ? "," : "", set->hooks[i].choice.hook->name);
}

static gs_status prepare(gs_hook_set *set, const gs_hook_set_options *options) {
    size_t num_params = options->num_params;
    *set = (gs_hook_set){.options = *options};
    set->num_hooks = options->num_choices ? options->num_choices : 1;
    set->hooks = calloc(set->num_hooks, sizeof *set->hooks);
    set->params = calloc(num_params, sizeof *set->params);
    set->members = calloc(num_params, sizeof *set->members);
    set->buckets = calloc(num_params, sizeof *set->buckets);
    if (!set->hooks || !set->params || !set->members || !set->buckets)
        return gs_error(GS_RESOURCE_EXHAUSTED, "hooks: out of memory");
    describe_params(set);
    for (size_t i = 0; i < set->num_hooks; i++) {
        gs_set_hook *one = &set->hooks[i];
        if (options->num_choices) one->choice = options->choices[i];
        if (!one->choice.hook) one->choice.hook = choose_default(options->wire_dtype);
        if (!one->choice.hook->name)
            return gs_error(GS_INVALID_ARGUMENT, "hook %zu: has no name", i);
        GS_TRY(blame(one, check_choice(one->choice.hook, &one->choice)));
    }
    list_names(set);
    return measure_all(set);
}

gs_status gs_hook_set_measure(gs_hook_set_needs *needs, const gs_hook_set_options *options) {
    gs_hook_set set;
    gs_status status = prepare(&set, options);
    *needs = set.needs;
    gs_hook_set_release(&set);
    return status;
}

static gs_status clear(const gs_hook_set *set, void *memory) {
    gs_device *device = set->options.device;
    if (!set->needs.state_bytes) return gs_ok();
    if (gs_device_is_host(device)) {
        memset(memory, 0, set->needs.state_bytes);
        return gs_ok();
    }
    gs_device_kernels(device)->clear(gs_device_stream(device), memory, set->needs.state_bytes);
    return gs_stream_wait(gs_device_stream(device), gs_deadline_in_seconds(CLEARING_SECONDS));
}

static bool tensor_at(gs_hook_tensor *tensor, const gs_set_hook *one, size_t index) {
    *tensor = (gs_hook_tensor){0};
    return one->choice.hook->tensor(one->state, index, tensor);
}

// The next one from *index on that is a rank's own.
static bool next_own(gs_hook_tensor *tensor, const gs_set_hook *one, size_t *index) {
    while (tensor_at(tensor, one, (*index)++))
        if (tensor->is_own) return true;
    return false;
}

// How many tensors are a rank's own.
static gs_status count_own(size_t *num_own, const gs_hook_set *set) {
    *num_own = 0;
    for (size_t i = 0; i < set->num_hooks; i++) {
        const gs_set_hook *one = &set->hooks[i];
        size_t index = 0, count = 0;
        gs_hook_tensor tensor;
        while (next_own(&tensor, one, &index)) count++;
        size_t most = one->needs.state_bytes ? set->options.num_params : 0;
        if (count > most)
            return blame(one, gs_error(GS_INVALID_ARGUMENT,
                                       "%zu tensors that are a rank's own, at most %zu: one of each "
                                       "parameter, in the state",
                                       count, most));
        *num_own += count;
    }
    return gs_ok();
}

static gs_status make_places(gs_hook_set *set, void *memory) {
    size_t num_own;
    GS_TRY(count_own(&num_own, set));
    if (!num_own || !gs_device_is_host(set->options.device)) return gs_ok();
    set->places = memory;
    gs_own_places_init(set->places, num_own);
    return gs_ok();
}

gs_status gs_hook_set_init(gs_hook_set *set, const gs_hook_set_options *options, void *memory) {
    GS_TRY(prepare(set, options));
    GS_TRY(clear(set, memory));
    char *at = memory;
    if (set->needs.most_own) at += round_place(gs_own_places_bytes(set->needs.most_own));
    for (size_t i = 0; i < set->num_hooks; i++) {
        gs_set_hook *one = &set->hooks[i];
        gs_hook_setup setup = setup_of(set, one, at);
        GS_TRY(blame(one, one->choice.hook->create(&one->state, &setup)));
        one->is_made = true;
        at += round_place(one->needs.state_bytes);
    }
    return make_places(set, memory);
}

void gs_hook_set_release(gs_hook_set *set) {
    for (size_t i = 0; set->hooks && i < set->num_hooks; i++) {
        if (set->hooks[i].is_made) set->hooks[i].choice.hook->destroy(set->hooks[i].state);
    }
    free(set->hooks);
    free(set->params);
    free(set->members);
    free(set->buckets);
    *set = (gs_hook_set){0};
}

gs_status gs_hook_set_resize(gs_hook_set *set, int rank, int world_size) {
    set->options.rank = rank;
    set->options.world_size = world_size;
    for (size_t i = 0; i < set->num_hooks; i++) {
        gs_set_hook *one = &set->hooks[i];
        size_t before = one->needs.state_bytes;
        GS_TRY(blame(one, measure_hook(set, one)));
        if (one->needs.state_bytes != before)
            return blame(one, gs_error(GS_FAILED_PRECONDITION,
                                       "its state needs %zu bytes in a world of %d, not %zu",
                                       one->needs.state_bytes, world_size, before));
    }
    return measure_all(set);
}

static void describe_plan(gs_hook_set *set, const gs_grad_layout *layout) {
    gs_hook_param *next = set->members;
    for (size_t b = 0; b < layout->plan.num_buckets; b++) {
        const gs_bucket *bucket = &layout->buckets[b];
        set->buckets[b] = (gs_hook_layout){.hook = bucket->hook,
                                           .dtype = bucket->dtype,
                                           .count = bucket->grad_count,
                                           .reserved_count = bucket->reserved_count,
                                           .params = next,
                                           .num_params = bucket->num_params};
        for (size_t i = 0; i < bucket->num_params; i++) {
            size_t param = bucket->params[i];
            *next = set->params[param];
            next->first =
                (layout->offset_bytes[param] - bucket->offset_bytes) / bucket->element_bytes;
            next++;
        }
    }
}

gs_status gs_hook_set_place(gs_hook_set *set, const gs_grad_layout *layout, gs_comm *comm,
                            void *memory, gs_deadline deadline) {
    char *at = memory;
    describe_plan(set, layout);
    for (size_t i = 0; i < set->num_hooks; i++) {
        gs_set_hook *one = &set->hooks[i];
        one->memory = (gs_hook_memory){.data = at, .bytes = round_place(one->needs.bucket_bytes)};
        const gs_hook_plan plan = {.comm = comm,
                                   .hook = (int)i,
                                   .buckets = set->buckets,
                                   .num_buckets = layout->plan.num_buckets,
                                   .memory = &one->memory,
                                   .deadline = deadline};
        GS_TRY(blame(one, one->choice.hook->on_plan(one->state, &plan)));
        at += one->memory.bytes;
    }
    return gs_ok();
}

// What holds, or what a commit would make hold, follows `step` applied steps.
static void note_places(gs_hook_set *set, int64_t step, bool beside) {
    size_t own = 0;
    gs_own_places_forget(set->places, step);
    for (size_t i = 0; i < set->num_hooks; i++) {
        size_t index = 0;
        gs_hook_tensor tensor;
        while (next_own(&tensor, &set->hooks[i], &index))
            gs_own_places_set(set->places, step, own++,
                              beside && tensor.beside ? tensor.beside : tensor.data);
    }
    gs_own_places_know(set->places, step);
}

// It was noted when the step before was finished, and nobody has loaded anything since.
static bool knows_held(const gs_hook_set *set, int64_t step) {
    size_t own = 0, num_own = (size_t)set->places->num_tensors;
    for (size_t i = 0; i < set->num_hooks; i++) {
        size_t index = 0;
        gs_hook_tensor tensor;
        for (; next_own(&tensor, &set->hooks[i], &index); own++) {
            const void *known =
                gs_own_places_find(set->places, set->needs.state_bytes, num_own, step, own, 0);
            if (known != tensor.data) return false;
        }
    }
    return true;
}

void gs_hook_set_note(gs_hook_set *set, int64_t step) {
    if (!set->places) return;
    if (!knows_held(set, step)) note_places(set, step, false);
    gs_own_places_forget(set->places, step + 1);
}

void gs_hook_set_finish(gs_hook_set *set, int64_t step, bool will_count) {
    if (set->places) note_places(set, step + 1, will_count);
}

void gs_hook_set_commit(gs_hook_set *set) {
    for (size_t i = 0; i < set->num_hooks; i++)
        if (set->hooks[i].is_made) set->hooks[i].choice.hook->commit(set->hooks[i].state);
}

void gs_hook_set_rollback(gs_hook_set *set) {
    for (size_t i = 0; i < set->num_hooks; i++)
        if (set->hooks[i].is_made) set->hooks[i].choice.hook->rollback(set->hooks[i].state);
}

static gs_status measure_residuals(double *squares, const gs_hook_set *set, const gs_set_hook *one) {
    gs_device *device = set->options.device;
    gs_hook_tensor tensor;
    size_t index = 0;
    while (next_own(&tensor, one, &index)) {
        double own = 0;
        if (tensor.is_on_host || gs_device_is_host(device))
            gs_grad_squares_main(&own, tensor.data, tensor.dtype, tensor.count, device);
        else
            GS_TRY(gs_grad_squares_fetch(&own, tensor.data, tensor.dtype, tensor.count, device));
        *squares += own;
    }
    return gs_ok();
}

gs_status gs_hook_set_report(gs_hook_report *report, gs_hook_set *set, bool measures) {
    *report = (gs_hook_report){0};
    for (size_t i = 0; i < set->num_hooks; i++) {
        const gs_set_hook *one = &set->hooks[i];
        gs_hook_report own = {0};
        if (!one->choice.hook->report) continue;
        one->choice.hook->report(one->state, &own);
        if (own.carries && measures && own.residual_squares == 0)
            GS_TRY(blame(one, measure_residuals(&own.residual_squares, set, one)));
        report->elements += own.elements;
        report->elements_sent += own.elements_sent;
        report->carries |= own.carries;
        report->residual_squares += own.residual_squares;
    }
    return gs_ok();
}

// "powersgd/error/fc1.weight"; of a second hook of that name "powersgd#1/…".
static void name_tensor(gs_hook_state_tensor *out, const gs_hook_set *set, size_t hook) {
    const char *name = set->hooks[hook].choice.hook->name;
    const gs_hook_tensor *tensor = &out->tensor;
    char number[16] = "";
    for (size_t i = 0; i < hook && !*number; i++) {
        if (strcmp(set->hooks[i].choice.hook->name, name) == 0)
            snprintf(number, sizeof number, "#%zu", hook);
    }
    bool of_param = tensor->param >= 0 && (size_t)tensor->param < set->options.num_params;
    snprintf(out->name, sizeof out->name, "%.*s%s/%.*s%s%.*s", GS_HOOK_NAME_LEN - 1, name, number,
             GS_HOOK_NAME_LEN - 1, tensor->name, of_param ? "/" : "", GS_PARAM_NAME_LEN - 1,
             of_param ? set->options.params[tensor->param].name : "");
}

bool gs_hook_set_tensor(gs_hook_state_tensor *out, gs_hook_set *set, size_t index) {
    for (size_t i = 0; i < set->num_hooks; i++) {
        gs_set_hook *one = &set->hooks[i];
        size_t own = 0;
        *out = (gs_hook_state_tensor){0};
        for (; one->choice.hook->tensor(one->state, own, &out->tensor); own++) {
            if (own == index) {
                name_tensor(out, set, i);
                return true;
            }
        }
        index -= own;
    }
    return false;
}

// Which one of a rank's own tensors it is, as places count them; false: none.
static bool find_own(size_t *own, size_t *bytes, const gs_hook_set *set, size_t index) {
    *own = 0;
    for (size_t i = 0; i < set->num_hooks; i++) {
        gs_hook_tensor tensor;
        for (size_t k = 0; tensor_at(&tensor, &set->hooks[i], k); k++, index--) {
            *bytes = tensor.count * gs_dtype_bytes(tensor.dtype);
            if (!index) return tensor.is_own;
            *own += tensor.is_own;
        }
    }
    return false;
}

const void *gs_hook_set_peer_data(gs_hook_set *set, size_t index, const gs_comm *comm, int rank,
                                  int64_t step) {
    size_t own, bytes, arena_bytes;
    const void *arena = set->places ? gs_comm_peer_arena(comm, rank, &arena_bytes) : NULL;
    if (!arena || !find_own(&own, &bytes, set, index)) return NULL;
    return gs_own_places_find(arena, arena_bytes, (size_t)set->places->num_tensors, step, own,
                              bytes);
}

gs_status gs_hook_set_loaded(gs_hook_set *set) {
    for (size_t i = 0; i < set->num_hooks; i++)
        GS_TRY(blame(&set->hooks[i], set->hooks[i].choice.hook->loaded(set->hooks[i].state)));
    return gs_ok();
}
