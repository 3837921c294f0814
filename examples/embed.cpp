// The reducer in a C++ program: one rank, trained to y = 3 x - 1. More ranks: embed_reducer.c.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>

#include "gradsync/extras.h"
#include "gradsync/gradsync.h"

namespace {

void check(const gs_status &status) {
    if (status.code != GS_OK) throw std::runtime_error(status.message);
}

template <typename T, void (*destroy)(T *)> struct Destroy {
    void operator()(T *object) const { destroy(object); }
};
template <typename T, void (*destroy)(T *)> using Owned = std::unique_ptr<T, Destroy<T, destroy>>;

// Destroyed in reverse order: reducer, optimizer, communicator, arena, device.
class Trainer {
  public:
    Trainer() {
        gs_device *device = nullptr;
        gs_device_options device_options{};
        check(gs_device_open(&device, "cpu", &device_options));
        device_.reset(device);
        const gs_param_spec params[] = {gs_param_spec_make(GS_FP32, 1, 0, "slope"),
                                        gs_param_spec_make(GS_FP32, 1, 0, "offset")};
        gs_bucket_plan plan{};
        check(gs_bucket_plan_one_host(&plan, params, 2, nullptr));
        std::unique_ptr<gs_bucket_plan, Destroy<gs_bucket_plan, gs_bucket_plan_release>> held(
            &plan);

        gs_reducer_options options{};
        options.params = params;
        options.num_params = 2;
        options.plan = &plan;
        options.shards.num_shards = options.shards.world_size = 1;
        size_t bytes = 0;
        check(gs_reducer_arena_bytes(&bytes, &options));
        gs_arena *arena = nullptr;
        check(gs_arena_create(&arena, bytes));
        arena_.reset(arena);

        gs_comm_options comm_options{};
        comm_options.world_size = 1;
        comm_options.arena = arena;
        comm_options.device = device;
        gs_comm *comm = nullptr;
        check(gs_comm_create(&comm, &comm_options, gs_deadline_in_seconds(10)));
        comm_.reset(comm);

        gs_optimizer *optimizer = nullptr;
        gs_optimizer_options sgd{};
        sgd.kind = "sgd";
        const bool decays[] = {false, false};
        check(gs_optimizer_create(&optimizer, &sgd, params, decays, 2, device));
        optimizer_.reset(optimizer);

        options.arena = arena;
        options.device = device;
        gs_reducer *reducer = nullptr;
        check(gs_reducer_create(&reducer, &options, comm, gs_deadline_in_seconds(10)));
        reducer_.reset(reducer);
    }

    void take_step(int64_t step) {
        gs_reducer_pass pass;
        gs_reduce_result result;
        check(gs_reducer_begin(reducer_.get(), step));
        check(gs_reducer_begin_pass(reducer_.get(), &pass, num_samples));
        float *slope = static_cast<float *>(pass.grads[0]);
        float *offset = static_cast<float *>(pass.grads[1]);
        *slope = *offset = 0;
        for (int i = 0; i < num_samples; i++) {
            float x = draw_(random_), apart = (slope_ - 3) * x + offset_ + 1;
            *slope += 2 * apart * x / num_samples;
            *offset += 2 * apart / num_samples;
        }
        check(gs_reducer_mark_ready(reducer_.get(), 1));
        check(gs_reducer_mark_ready(reducer_.get(), 0));
        check(gs_reducer_end_pass(reducer_.get()));
        check(gs_reducer_finish(reducer_.get(), &result, gs_deadline_in_seconds(30)));
        void *params[] = {&slope_, &offset_};
        check(gs_optimizer_step(optimizer_.get(), params, gs_reducer_grads(reducer_.get()),
                                result.used, 0.1f, 1));
    }

    float slope() const { return slope_; }
    float offset() const { return offset_; }

  private:
    static constexpr int num_samples = 16;
    Owned<gs_device, gs_device_close> device_;
    Owned<gs_arena, gs_arena_destroy> arena_;
    Owned<gs_comm, gs_comm_destroy> comm_;
    Owned<gs_optimizer, gs_optimizer_destroy> optimizer_;
    Owned<gs_reducer, gs_reducer_destroy> reducer_;
    float slope_ = 0, offset_ = 0;
    std::mt19937 random_{7};
    std::uniform_real_distribution<float> draw_{-1, 1};
};

}  // namespace

int main() try {
    Trainer trainer;
    for (int64_t step = 0; step < 300; step++) trainer.take_step(step);
    std::printf("slope %.3f, offset %.3f with gradsync %s\n", static_cast<double>(trainer.slope()),
                static_cast<double>(trainer.offset()), gs_version());
    bool learned =
        std::fabs(trainer.slope() - 3) < 1e-3f && std::fabs(trainer.offset() + 1) < 1e-3f;
    return learned ? 0 : 1;
} catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
