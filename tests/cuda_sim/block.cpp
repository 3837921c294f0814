#include "tests/cuda_sim/block.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "tests/cuda_sim/device_syntax.h"
#include "tests/cuda_sim/fiber.h"

__thread gs_sim_position gs_sim_here __attribute__((tls_model("initial-exec")));

namespace sim {

enum lane_state { NOT_STARTED = 0, RUNNING, AT_BARRIER, AT_MEETING, ENDED };

struct lane {  // a thread of the block
    lane_state state;
    fiber *on;
    const gs_sim_place *place;  // where it waits; on its own stack
};

struct meeting {  // of lanes of a warp
    unsigned mask, arrived;
    gs_sim_place place;
    void *brought[32];
    bool open;
};

struct warp {
    unsigned ended;
    std::vector<meeting> meetings;  // one for each mask that lanes wait with
};

struct barrier {
    unsigned arrived;
    gs_sim_place place;
    gs_sim_vote vote;
    int count;   // of the threads that voted for it
    int result;  // of the last round; the next one ends when all have read it and come again
};

// One for each host thread that runs kernels.
struct executor {
    const grid_launch *launch = nullptr;
    fiber scheduler;
    std::vector<std::unique_ptr<fiber>> fibers;
    std::vector<fiber *> idle;
    std::vector<lane> lanes;
    std::vector<warp> warps;
    std::deque<unsigned> ready;  // lanes that may go on
    barrier sync = {};
    std::vector<char> shared;
    unsigned num_threads = 0, num_started = 0, num_ended = 0, now = 0;
    bool descending = false;
    char failure[512] = "";

    ~executor() {
        for (auto &each : fibers) fiber_destroy(each.get());
    }
};

static thread_local std::unique_ptr<executor> owned;
static __thread executor *machine;  // what the calling thread owns, once it has run a kernel

const char *running_kernel() {
    return machine && machine->launch ? machine->launch->name.c_str() : "";
}

static void set_failure(executor *self, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void set_failure(executor *self, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int used = snprintf(self->failure, sizeof self->failure,
                        "kernel %s<<<(%u, %u, %u), (%u, %u, %u)>>>, block (%u, %u, %u): ",
                        self->launch->name.c_str(), self->launch->grid.x, self->launch->grid.y,
                        self->launch->grid.z, self->launch->block.x, self->launch->block.y,
                        self->launch->block.z, gs_sim_here.block.x, gs_sim_here.block.y,
                        gs_sim_here.block.z);
    size_t at = static_cast<size_t>(used) < sizeof self->failure ? static_cast<size_t>(used)
                                                                 : sizeof self->failure - 1;
    vsnprintf(self->failure + at, sizeof self->failure - at, format, arguments);
    va_end(arguments);
}

static void place_thread(unsigned index) {
    const uint3 &block = gs_sim_here.block_dim;
    machine->now = index;
    if (block.x == machine->num_threads) {
        gs_sim_here.thread.x = index;
        return;
    }
    gs_sim_here.thread.x = index % block.x;
    gs_sim_here.thread.y = index / block.x % block.y;
    gs_sim_here.thread.z = index / (block.x * block.y);
}

static void wake(unsigned index) {
    machine->lanes[index].state = RUNNING;
    if (machine->descending)
        machine->ready.push_front(index);
    else
        machine->ready.push_back(index);
}

// The first of those who may go on, in place.
static fiber *take_ready() {
    unsigned index = machine->ready.front();
    machine->ready.pop_front();
    place_thread(index);
    return machine->lanes[index].on;
}

// A fiber takes threads that have not started, one after the other, for as long as none of them
// waits.
static void run_threads(void *ctx) {
    fiber *self = static_cast<fiber *>(ctx);
    for (;;) {
        while (machine->num_started < machine->num_threads) {
            unsigned turn = machine->num_started++;
            unsigned index = machine->descending ? machine->num_threads - 1 - turn : turn;
            place_thread(index);
            machine->lanes[index].state = RUNNING;
            machine->lanes[index].on = self;
            machine->launch->body();
            machine->lanes[machine->now].state = ENDED;
            machine->warps[machine->now / 32].ended |= 1u << (machine->now % 32);
            machine->num_ended++;
            // After a wait others have started in the meantime, and some may be ready to go on.
            if (!machine->ready.empty()) break;
        }
        machine->idle.push_back(self);
        fiber_switch(self, machine->ready.empty() ? &machine->scheduler : take_ready());
    }
}

static fiber *take_fiber() {
    if (!machine->idle.empty()) {
        fiber *taken = machine->idle.back();
        machine->idle.pop_back();
        return taken;
    }
    auto made = std::make_unique<fiber>();
    if (!fiber_create(made.get(), static_cast<unsigned>(machine->fibers.size()))) return nullptr;
    fiber_prepare(made.get(), run_threads, made.get());
    machine->fibers.push_back(std::move(made));
    return machine->fibers.back().get();
}

// Whoever may run next, in place; nullptr: nobody, all have ended or are stuck.
static fiber *choose_next() {
    if (!machine->ready.empty()) return take_ready();
    if (machine->num_started == machine->num_threads) return nullptr;
    fiber *next = take_fiber();
    if (!next) set_failure(machine, "no memory for the stacks of its threads");
    return next;
}

// Gives the host thread to somebody else, until this thread is woken.
static void wait_here(lane_state state, const gs_sim_place *place) {
    lane *self = &machine->lanes[machine->now];
    self->state = state;
    self->place = place;
    fiber *next = choose_next();
    fiber_switch(self->on, next ? next : &machine->scheduler);
}

// Ends the launch from inside a thread: nobody of this block goes on.
[[noreturn]] static void leave_forever() {
    fiber_switch(machine->lanes[machine->now].on, &machine->scheduler);
    abort();
}

static void describe_stuck(executor *self) {
    unsigned at_barrier = 0, at_meeting = 0, example = 0;
    for (unsigned i = 0; i < self->num_threads; i++) {
        at_barrier += self->lanes[i].state == AT_BARRIER;
        at_meeting += self->lanes[i].state == AT_MEETING;
        if (self->lanes[i].state == AT_BARRIER || self->lanes[i].state == AT_MEETING) example = i;
    }
    const gs_sim_place *place = self->lanes[example].place;
    if (!at_meeting) {
        set_failure(
            self,
            "%u of %u threads wait at %s (%s:%d), the other %u have ended without reaching it",
            at_barrier, self->num_threads, place->what, place->file, place->line, self->num_ended);
        return;
    }
    for (unsigned i = 0; i < self->num_threads; i++) {
        if (self->lanes[i].state == AT_MEETING) example = i;
    }
    place = self->lanes[example].place;
    for (const meeting &each : self->warps[example / 32].meetings) {
        if (!each.open) continue;
        set_failure(
            self,
            "warp %u: lanes %08x of mask %08x wait at %s (%s:%d); of the others %08x have ended, "
            "%u threads of the block wait at a barrier",
            example / 32, each.arrived, each.mask, place->what, place->file, place->line,
            each.mask & self->warps[example / 32].ended, at_barrier);
        return;
    }
}

static void start_block(executor *self) {
    for (unsigned i = 0; i < self->num_threads; i++) self->lanes[i] = lane();
    for (warp &each : self->warps) {
        each.ended = 0;
        each.meetings.clear();
    }
    self->ready.clear();
    self->sync = barrier();
    self->num_started = self->num_ended = 0;
    // A device does not clear it.
    if (!self->shared.empty()) memset(self->shared.data(), 0xff, self->shared.size());
}

static bool run_block(executor *self) {
    start_block(self);
    while (self->num_ended < self->num_threads) {
        fiber *next = choose_next();
        if (!next && !self->failure[0]) describe_stuck(self);
        if (next) fiber_switch(&self->scheduler, next);
        if (self->failure[0]) return false;
    }
    return true;
}

// A failed block leaves fibers in the middle of nowhere.
static void forget_fibers(executor *self) {
    self->idle.clear();
    for (auto &each : self->fibers) {
        fiber_prepare(each.get(), run_threads, each.get());
        self->idle.push_back(each.get());
    }
}

static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

std::string run_grid(const grid_launch &launch, uint64_t seed) {
    if (!owned) owned = std::make_unique<executor>();
    executor *self = machine = owned.get();
    self->launch = &launch;
    self->failure[0] = 0;
    self->num_threads = launch.block.x * launch.block.y * launch.block.z;
    self->lanes.resize(self->num_threads);
    self->warps.resize((self->num_threads + 31) / 32);
    self->shared.resize(launch.shared_bytes ? launch.shared_bytes + 128 : 0);
    gs_sim_here.grid_dim = make_uint3(launch.grid.x, launch.grid.y, launch.grid.z);
    gs_sim_here.block_dim = make_uint3(launch.block.x, launch.block.y, launch.block.z);
    gs_sim_here.thread = make_uint3(0, 0, 0);
    fiber_adopt_thread(&self->scheduler);

    uint64_t num_blocks = uint64_t(launch.grid.x) * launch.grid.y * launch.grid.z;
    bool backwards = mix(seed) & 1;
    for (uint64_t turn = 0; turn < num_blocks && !self->failure[0]; turn++) {
        uint64_t index = backwards ? num_blocks - 1 - turn : turn;
        gs_sim_here.block.x = static_cast<unsigned>(index % launch.grid.x);
        gs_sim_here.block.y = static_cast<unsigned>(index / launch.grid.x % launch.grid.y);
        gs_sim_here.block.z =
            static_cast<unsigned>(index / (uint64_t(launch.grid.x) * launch.grid.y));
        self->descending = mix(seed + turn) & 2;
        run_block(self);
    }
    if (self->failure[0]) forget_fibers(self);
    fiber_release_thread(&self->scheduler);
    self->launch = nullptr;
    return self->failure;
}

static bool same_place(const gs_sim_place &a, const gs_sim_place &b) {
    if (a.line != b.line) return false;
    return (a.file == b.file || strcmp(a.file, b.file) == 0) &&
           (a.what == b.what || strcmp(a.what, b.what) == 0);
}

static void name_thread(char *text, size_t text_bytes) {
    snprintf(text, text_bytes, "thread (%u, %u, %u)", gs_sim_here.thread.x, gs_sim_here.thread.y,
             gs_sim_here.thread.z);
}

}  // namespace sim

using namespace sim;

void gs_sim_refuse(const char *why, gs_sim_place place) {
    char who[64];
    name_thread(who, sizeof who);
    set_failure(machine, "%s at %s (%s:%d): %s", who, place.what, place.file, place.line, why);
    leave_forever();
}

void gs_sim_trap(gs_sim_place place) {
    gs_sim_refuse("trapped", place);
}

void *gs_sim_dynamic_shared() {
    if (machine->shared.empty())
        gs_sim_refuse("the launch gave no dynamic shared memory", {"shared memory", "", 0});
    uintptr_t at = reinterpret_cast<uintptr_t>(machine->shared.data());
    return reinterpret_cast<void *>((at + 127) & ~uintptr_t(127));
}

unsigned gs_sim_lane() {
    return machine->now % 32;
}

unsigned gs_sim_alive_mask() {
    unsigned first = machine->now / 32 * 32, left = machine->num_threads - first;
    unsigned all = left >= 32 ? 0xffffffffu : (1u << left) - 1;
    return all & ~machine->warps[machine->now / 32].ended;
}

int gs_sim_barrier(gs_sim_vote vote, int predicate, gs_sim_place place) {
    barrier *sync = &machine->sync;
    if (!sync->arrived) {
        sync->place = place;
        sync->count = 0;
    } else if (!same_place(sync->place, place)) {
        char why[256];
        snprintf(why, sizeof why, "other threads of the block wait at %s (%s:%d)", sync->place.what,
                 sync->place.file, sync->place.line);
        gs_sim_refuse(why, place);
    }
    sync->count += predicate != 0;
    if (++sync->arrived < machine->num_threads) {
        wait_here(AT_BARRIER, &place);
        return sync->result;
    }
    sync->arrived = 0;
    sync->result = vote == GS_SIM_COUNT ? sync->count
                   : vote == GS_SIM_AND ? sync->count == static_cast<int>(machine->num_threads)
                                        : sync->count > 0;
    for (unsigned i = 0; i < machine->num_threads; i++) {
        if (machine->lanes[i].state == AT_BARRIER) wake(i);
    }
    return sync->result;
}

static meeting *find_meeting(unsigned mask, gs_sim_place place) {
    std::vector<meeting> &meetings = machine->warps[machine->now / 32].meetings;
    meeting *unused = nullptr;
    for (meeting &each : meetings) {
        if (each.open && each.mask == mask) return &each;
        if (!each.open) unused = &each;
    }
    if (!unused) {
        meetings.emplace_back();
        unused = &meetings.back();
    }
    *unused = meeting();
    unused->mask = mask;
    unused->place = place;
    unused->open = true;
    return unused;
}

void gs_sim_meet(unsigned mask, void *mine,
                 void (*together)(void *const *lanes, unsigned mask, void (*with)()),
                 void (*with)(), gs_sim_place place) {
    unsigned self = gs_sim_lane(), first = machine->now - self;
    if (!(mask >> self & 1)) gs_sim_refuse("the mask does not name the lane that calls", place);
    unsigned gone = mask & ~gs_sim_alive_mask();
    if (gone) {
        char why[96];
        snprintf(why, sizeof why, "mask %08x names lanes %08x, which have ended or never were",
                 mask, gone);
        gs_sim_refuse(why, place);
    }
    meeting *here = find_meeting(mask, place);
    if (!same_place(here->place, place)) {
        char why[256];
        snprintf(why, sizeof why, "lanes %08x of the mask wait at %s (%s:%d)", here->arrived,
                 here->place.what, here->place.file, here->place.line);
        gs_sim_refuse(why, place);
    }
    here->arrived |= 1u << self;
    here->brought[self] = mine;
    if (here->arrived != mask) {
        wait_here(AT_MEETING, &place);
        return;
    }
    if (together) together(here->brought, mask, with);
    here->open = false;
    for (unsigned i = 0; i < 32; i++) {
        if (i != self && mask >> i & 1) wake(first + i);
    }
}
