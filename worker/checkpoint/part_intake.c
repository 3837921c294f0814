#include "worker/checkpoint/part_intake.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/thread.h"
#include "worker/checkpoint/checkpoint.h"

// A thread that waits looks again so often.
#define LOOK_MS 1000

typedef struct part {
    gs_brought_part is;  // spill and status: of the thread that writes while it runs, but under the lock
    size_t bytes, written;
    bool is_whole;
} part;

typedef struct piece {
    uint8_t *data;  // owned
    size_t bytes;
    int part;
} piece;

struct gs_part_intake {
    char *directory;
    part *parts;
    pthread_mutex_t lock;  // of what follows
    pthread_cond_t changed;
    int num_parts, num_open;
    piece pieces[GS_INTAKE_PIECES];
    uint64_t num_put, num_taken;  // of all time: piece n lies in n % GS_INTAKE_PIECES
    bool ended;
    gs_status why;
};

gs_status gs_part_intake_create(gs_part_intake **out, const char *directory, int most_parts) {
    gs_part_intake *intake = calloc(1, sizeof *intake);
    if (!intake) return gs_error(GS_RESOURCE_EXHAUSTED, "brought parts: out of memory");
    pthread_mutex_init(&intake->lock, NULL);
    gs_cond_init(&intake->changed);
    intake->directory = strdup(directory);
    intake->parts = calloc((size_t)most_parts + 1, sizeof *intake->parts);
    bool has_memory = intake->directory && intake->parts;
    for (int i = 0; i < GS_INTAKE_PIECES; i++) has_memory &= (intake->pieces[i].data = malloc(GS_INTAKE_PIECE_BYTES)) != NULL;
    if (!has_memory) {
        gs_part_intake_destroy(intake);
        return gs_error(GS_RESOURCE_EXHAUSTED, "brought parts: out of memory");
    }
    *out = intake;
    return gs_ok();
}

void gs_part_intake_destroy(gs_part_intake *intake) {
    if (!intake) return;
    for (int i = 0; i < intake->num_parts; i++) gs_part_intake_drop(intake, i);
    for (int i = 0; i < GS_INTAKE_PIECES; i++) free(intake->pieces[i].data);
    pthread_cond_destroy(&intake->changed);
    pthread_mutex_destroy(&intake->lock);
    free(intake->parts);
    free(intake->directory);
    free(intake);
}

static void note_failure(part *of, gs_status status) {
    if (!of->is.status.code) of->is.status = status;
}

void gs_part_intake_begin(gs_part_intake *intake, int rank, gs_state_snapshot *snapshot, size_t bytes, gs_status status) {
    pthread_mutex_lock(&intake->lock);
    intake->parts[intake->num_parts++] = (part){.is = {.rank = rank, .snapshot = *snapshot, .status = status}, .bytes = bytes};
    *snapshot = (gs_state_snapshot){0};
    pthread_cond_broadcast(&intake->changed);
    pthread_mutex_unlock(&intake->lock);
}

// Under the lock.
static part *current(gs_part_intake *intake) { return &intake->parts[intake->num_parts - 1]; }

static int room_in(const gs_part_intake *intake) { return GS_INTAKE_PIECES - (int)(intake->num_put - intake->num_taken); }

int gs_part_intake_room(gs_part_intake *intake, gs_deadline deadline) {
    pthread_mutex_lock(&intake->lock);
    bool in_time = true;
    while (!current(intake)->is.status.code && room_in(intake) == 0 && in_time && !gs_deadline_passed(deadline))
        in_time = gs_cond_wait(&intake->changed, &intake->lock, deadline);
    int room = current(intake)->is.status.code ? -1 : room_in(intake);
    pthread_mutex_unlock(&intake->lock);
    return room;
}

static piece *next_piece(gs_part_intake *intake) { return &intake->pieces[intake->num_put % GS_INTAKE_PIECES]; }

// No lock: the thread that writes has done with a piece before there is room.
uint8_t *gs_part_intake_piece(gs_part_intake *intake) { return next_piece(intake)->data; }

void gs_part_intake_put(gs_part_intake *intake, size_t bytes) {
    pthread_mutex_lock(&intake->lock);
    piece *next = next_piece(intake);
    next->bytes = bytes;
    next->part = intake->num_parts - 1;
    intake->num_put++;
    pthread_cond_broadcast(&intake->changed);
    pthread_mutex_unlock(&intake->lock);
}

void gs_part_intake_complete(gs_part_intake *intake) {
    pthread_mutex_lock(&intake->lock);
    current(intake)->is_whole = true;
    pthread_mutex_unlock(&intake->lock);
}

void gs_part_intake_end(gs_part_intake *intake, gs_status why) {
    pthread_mutex_lock(&intake->lock);
    intake->why = why;
    intake->ended = true;
    // What waits of it goes nowhere any more.
    if (why.code && intake->num_parts > 0 && !current(intake)->is_whole) note_failure(current(intake), why);
    pthread_cond_broadcast(&intake->changed);
    pthread_mutex_unlock(&intake->lock);
}

static gs_status open_spill(gs_spill **out, const gs_part_intake *intake, size_t bytes) {
    gs_directory job;
    GS_TRY(gs_checkpoint_open_directory(&job, intake->directory));
    gs_status status = gs_spill_open(out, &job, bytes);
    gs_directory_close(&job);
    return status;
}

// Under the lock, which is given up while the disk works: a part that began has its room claimed before more of it is asked for.
static void open_next(gs_part_intake *intake) {
    part *next = &intake->parts[intake->num_open];
    gs_spill *spill = NULL;
    gs_status status = next->is.status;
    size_t bytes = next->bytes;
    if (!status.code) {
        pthread_mutex_unlock(&intake->lock);
        status = open_spill(&spill, intake, bytes);
        pthread_mutex_lock(&intake->lock);
    }
    next->is.spill = spill;
    note_failure(next, status);
    intake->num_open++;
}

static void take_piece(gs_part_intake *intake) {
    const piece *first = &intake->pieces[intake->num_taken % GS_INTAKE_PIECES];
    part *of = &intake->parts[first->part];
    if (!of->is.status.code) {
        pthread_mutex_unlock(&intake->lock);
        gs_status status = gs_spill_write(of->is.spill, of->written, first->data, first->bytes);
        pthread_mutex_lock(&intake->lock);
        note_failure(of, status);
        of->written += first->bytes;
    }
    intake->num_taken++;
}

static void judge(part *of, gs_status why) {
    if (of->is_whole && of->written == of->bytes) return;
    note_failure(of, why.code ? why : gs_error(GS_DATA_LOSS, "rank %d has brought %zu of %zu bytes", of->is.rank, of->written, of->bytes));
}

void gs_part_intake_run(gs_part_intake *intake) {
    pthread_mutex_lock(&intake->lock);
    for (;;) {
        if (intake->num_open < intake->num_parts) open_next(intake);
        else if (intake->num_taken < intake->num_put) take_piece(intake);
        else if (intake->ended) break;
        else gs_cond_wait(&intake->changed, &intake->lock, gs_deadline_in_ms(LOOK_MS));
        pthread_cond_broadcast(&intake->changed);
    }
    for (int i = 0; i < intake->num_parts; i++) judge(&intake->parts[i], intake->why);
    pthread_mutex_unlock(&intake->lock);
}

int gs_part_intake_count(const gs_part_intake *intake) { return intake->num_parts; }

gs_brought_part *gs_part_intake_part(gs_part_intake *intake, int index) { return &intake->parts[index].is; }

void gs_part_intake_drop(gs_part_intake *intake, int index) {
    gs_brought_part *it = &intake->parts[index].is;
    gs_state_snapshot_release(&it->snapshot);
    gs_spill_close(it->spill);
    it->spill = NULL;
}
