#include "gradsync/hooks/auto_costs.h"

#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "gradsync/hooks/code_message.h"

#define MOST_FLOATS ((size_t)1 << 19)
#define LEAST_FLOATS ((size_t)1 << 12)
#define SIZE_STEP 16          // a size is so many times the one before it
#define NUM_SIZES 3
#define MOST_SECONDS 0.4      // a size that would take longer is left out
#define LEAST_REPEATS 3
#define MOST_REPEATS 10
#define LEAST_SECONDS 1e-7
#define LEAST_DRIFT 0.1
#define MOST_DRIFT 100.0
#define NOTABLE_SECONDS 50e-6  // a shorter collective says nothing of the link

static size_t floats_for(size_t num_elements) {
    size_t count = gs_round_up(num_elements, GS_AUTO_ROW_COUNT);
    return count < LEAST_FLOATS ? LEAST_FLOATS : count > MOST_FLOATS ? MOST_FLOATS : count;
}

static gs_code_message message_of(size_t count) {
    return (gs_code_message){.count = count, .segment_count = GS_AUTO_ROW_COUNT, .dtype = GS_FP32};
}

// Messages of all ranks.
static size_t message_bytes(size_t num_floats, int world_size) {
    const gs_code_message message = message_of(num_floats);
    return world_size > GS_AUTO_MOST_RANKS ? 0 : gs_code_message_bytes(&message) * (size_t)world_size;
}

bool gs_auto_costs_differ(const gs_comm *comm) {
    const char *backend = gs_comm_backend_name(comm);
    return gs_comm_world_size(comm) > 1 && strcmp(backend, "shm") != 0 && strcmp(backend, "self") != 0;
}

typedef struct trial {
    gs_comm *comm;
    float *floats;
    void *messages;
    float *beside;
    size_t beside_count;
    gs_deadline deadline;
} trial;

static gs_collective collective_of(const trial *on, int kind, size_t count) {
    static const gs_dtype wires[GS_NUM_OFFERS] = {[GS_OFFER_FP16] = GS_FP16, [GS_OFFER_BF16] = GS_BF16};
    const gs_code_message message = message_of(count);
    gs_collective out = {.kind = GS_ALLREDUCE,
                         .send = on->floats,
                         .recv = on->floats,
                         .count = count,
                         .dtype = GS_FP32,
                         .op = GS_OP_SUM,
                         .scale = 1};
    if (kind == GS_OFFER_INT8)
        out = gs_code_message_gather(&message, on->messages, gs_comm_rank(on->comm));
    else if (wires[kind]) {
        out.wire_dtype = wires[kind];
        out.wire_scale = 1;
    }
    out.bucket = -1;
    return out;
}

static gs_status agree_on_most(const trial *on, double *number) {
    return gs_comm_run(on->comm,
                       &(gs_collective){.kind = GS_ALLREDUCE,
                                        .send = number,
                                        .recv = number,
                                        .count = 1,
                                        .dtype = GS_FP64,
                                        .op = GS_OP_MAX,
                                        .bucket = -1},
                       on->deadline);
}

// As it goes in a step: one behind the other, and both on their way at a time.
static gs_status post_beside(const trial *on, int kind) {
    gs_work ignored;
    if (kind == GS_OFFER_ALLREDUCE || !on->beside_count) return gs_ok();
    return gs_comm_post(on->comm, &ignored,
                        &(gs_collective){.kind = GS_ALLREDUCE,
                                         .send = on->beside,
                                         .recv = on->beside,
                                         .count = on->beside_count,
                                         .dtype = GS_FP32,
                                         .op = GS_OP_SUM,
                                         .scale = 1,
                                         .bucket = -1});
}

// *seconds: of the slowest rank, behind a barrier.
static gs_status time_one(const trial *on, int kind, size_t count, double *seconds) {
    const gs_collective collective = collective_of(on, kind, count);
    GS_TRY(gs_comm_run(on->comm, &(gs_collective){.kind = GS_BARRIER, .bucket = -1}, on->deadline));
    int64_t begin_ns = gs_now_ns();
    GS_TRY(post_beside(on, kind));
    GS_TRY(gs_comm_run(on->comm, &collective, on->deadline));
    *seconds = gs_seconds_since(begin_ns);
    return agree_on_most(on, seconds);
}

// The quickest of some, until they get no quicker by a tenth: connections begin slowly. All ranks hear the same times.
static gs_status time_size(const trial *on, int kind, size_t count, double *seconds) {
    double total = 0;
    for (int i = 0; i < MOST_REPEATS && total < MOST_SECONDS; i++) {
        double last;
        GS_TRY(time_one(on, kind, count, &last));
        bool is_quicker = i == 0 || last < 0.9 * *seconds;
        if (i == 0 || last < *seconds) *seconds = last;
        if (i + 1 >= LEAST_REPEATS && !is_quicker) break;
        total += last;
    }
    return gs_ok();
}

static gs_status measure_link(gs_auto_cost *cost, const trial *on, int kind, size_t num_floats) {
    double bytes[NUM_SIZES], seconds[NUM_SIZES];
    int num_timed = 0;
    for (int s = 0; s < NUM_SIZES; s++) {
        size_t count = num_floats;
        for (int i = s + 1; i < NUM_SIZES; i++) count /= SIZE_STEP;
        count = gs_round_up(count ? count : 1, GS_AUTO_ROW_COUNT);
        if (num_timed && (double)(count * sizeof(float)) <= bytes[num_timed - 1]) continue;
        if (num_timed && seconds[num_timed - 1] * SIZE_STEP > MOST_SECONDS * 4) break;
        GS_TRY(time_size(on, kind, count, &seconds[num_timed]));
        bytes[num_timed++] = (double)(count * sizeof(float));
    }
    // The two largest say what a byte takes, the smallest what a start does.
    int most = num_timed - 1, other = num_timed > 1 ? num_timed - 2 : 0;
    double width = bytes[most] - bytes[other];
    cost->byte_seconds = width > 0 ? (seconds[most] - seconds[other]) / width : 0;
    if (!(cost->byte_seconds > 0)) cost->byte_seconds = seconds[most] / bytes[most];
    cost->start_seconds = seconds[0] - cost->byte_seconds * bytes[0];
    if (!(cost->start_seconds > LEAST_SECONDS)) cost->start_seconds = LEAST_SECONDS;
    return gs_ok();
}

// As much as a bucket has to go through: what is owed is added, codes are made, what they lose is kept, and the codes of all
// are read.
static void work_once(const trial *on, size_t count) {
    gs_device *device = gs_comm_device(on->comm);
    const gs_kernels *kernels = gs_device_kernels(device);
    gs_stream *stream = gs_device_stream(device);
    const gs_code_message message = message_of(count);
    const int world_size = gs_comm_world_size(on->comm);
    const gs_quantized own = gs_code_message_at(&message, on->messages, gs_comm_rank(on->comm));
    const gs_quantized first = gs_code_message_at(&message, on->messages, 0);
    kernels->axpy(stream, on->floats, on->floats, 0, count);
    kernels->quantize(stream, &own, on->floats, 0x1p-100);
    kernels->dequantize(stream, on->floats, &own, 1, gs_code_message_bytes(&message), 1);
    kernels->axpy(stream, on->floats, on->floats, 0, count);
    kernels->dequantize(stream, on->floats, &first, (size_t)world_size, gs_code_message_bytes(&message), 1);
}

static gs_status measure_work(gs_auto_cost *cost, const trial *on, size_t num_floats) {
    double best = 0;
    // What has been gathered is of the last size that was timed, and read as of this one.
    memset(on->messages, 0, message_bytes(num_floats, gs_comm_world_size(on->comm)));
    for (int i = 0; i < LEAST_REPEATS; i++) {
        int64_t begin_ns = gs_now_ns();
        work_once(on, num_floats);
        double seconds = gs_seconds_since(begin_ns);
        if (i == 0 || seconds < best) best = seconds;
    }
    cost->work_byte_seconds = best / (double)(num_floats * sizeof(float));
    return agree_on_most(on, &cost->work_byte_seconds);
}

static gs_status measure_all(gs_auto_costs *costs, const trial *on, size_t num_floats) {
    for (int kind = 0; kind < GS_NUM_OFFERS; kind++) {
        if (kind == GS_OFFER_INT8 && gs_comm_world_size(on->comm) > GS_AUTO_MOST_RANKS) continue;
        costs->is_offered[kind] = true;
        if (kind == GS_OFFER_INT8) GS_TRY(measure_work(&costs->kinds[kind], on, num_floats));
        GS_TRY(measure_link(&costs->kinds[kind], on, kind, num_floats));
    }
    return gs_ok();
}

gs_status gs_auto_costs_measure(gs_auto_costs *costs, gs_comm *comm, size_t num_elements, size_t beside_count, gs_deadline deadline) {
    size_t num_floats = floats_for(num_elements), bytes = message_bytes(num_floats, gs_comm_world_size(comm));
    *costs = (gs_auto_costs){.link.agreed = 1, .work.agreed = 1};
    if (!gs_auto_costs_differ(comm)) return gs_ok();
    trial on = {.comm = comm, .beside_count = beside_count, .deadline = deadline};
    on.floats = gs_alloc_aligned(num_floats * sizeof *on.floats, 64);
    on.messages = gs_alloc_aligned(bytes + 1, 64);
    on.beside = gs_alloc_aligned((beside_count + 1) * sizeof *on.beside, 64);
    gs_status status = gs_ok();
    if (on.floats && on.messages && on.beside) {
        memset(on.floats, 0, num_floats * sizeof *on.floats);
        memset(on.beside, 0, (beside_count + 1) * sizeof *on.beside);
        status = measure_all(costs, &on, num_floats);
    } else {
        status = gs_error(GS_RESOURCE_EXHAUSTED, "times of the link: out of memory");
        gs_comm_abort(comm, status.message);  // the others measure
    }
    free(on.floats);
    free(on.messages);
    free(on.beside);
    return status;
}

static double link_seconds(const gs_auto_costs *costs, int kind, size_t bytes) {
    const gs_auto_cost *cost = &costs->kinds[kind];
    return cost->start_seconds + cost->byte_seconds * (double)bytes;
}

void gs_auto_costs_forecast(const gs_auto_costs *costs, double seconds[GS_NUM_OFFERS], size_t bytes) {
    for (int kind = 0; kind < GS_NUM_OFFERS; kind++) {
        seconds[kind] = 0;
        if (!costs->is_offered[kind]) continue;
        seconds[kind] = costs->link.agreed * link_seconds(costs, kind, bytes) +
                        costs->work.agreed * costs->kinds[kind].work_byte_seconds * (double)bytes;
    }
}

static void note(gs_auto_drift *drift, double expected, double seconds) {
    if (expected < NOTABLE_SECONDS || !(seconds > 0)) return;
    drift->took += seconds;
    drift->expected += expected;
}

void gs_auto_costs_note_link(gs_auto_costs *costs, int kind, size_t bytes, double seconds) {
    if (costs->is_offered[kind]) note(&costs->link, link_seconds(costs, kind, bytes), seconds);
}

void gs_auto_costs_note_work(gs_auto_costs *costs, int kind, size_t bytes, double seconds) {
    note(&costs->work, costs->kinds[kind].work_byte_seconds * (double)bytes, seconds);
}

static void close_drift(gs_auto_drift *drift, bool counts) {
    if (counts && drift->expected > 0) drift->ratios[drift->num_ratios++ % GS_AUTO_RING] = drift->took / drift->expected;
    drift->took = drift->expected = 0;
}

void gs_auto_costs_close_step(gs_auto_costs *costs, bool counts) {
    close_drift(&costs->link, counts);
    close_drift(&costs->work, counts);
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// The usual step of the last ones: some are held up by something else.
double gs_auto_drift_now(const gs_auto_drift *drift) {
    int count = drift->num_ratios < GS_AUTO_RING ? drift->num_ratios : GS_AUTO_RING;
    double sorted[GS_AUTO_RING];
    if (count < GS_AUTO_RING / 2) return drift->agreed;
    memcpy(sorted, drift->ratios, sizeof sorted);
    qsort(sorted, (size_t)count, sizeof *sorted, compare_doubles);
    return sorted[count / 2];
}

void gs_auto_drift_agree(gs_auto_drift *drift, double agreed) {
    if (!(agreed > 0)) return;
    drift->agreed = agreed < LEAST_DRIFT ? LEAST_DRIFT : agreed > MOST_DRIFT ? MOST_DRIFT : agreed;
}
