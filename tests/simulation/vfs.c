#include "tests/simulation/vfs.h"

#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>

#define SECTOR 512
#define MAX_SHARED 8  // regions of 32 KiB: an index of 32,000 frames

typedef struct bytes {
    uint8_t *data;  // owned
    int64_t size, reserved;
} bytes;

typedef struct vfs_file {
    char name[128];  // "": temporary
    bytes now, durable;
    bool exists, exists_durably;
    void *shared[MAX_SHARED];  // owned; the index of a write-ahead log
    struct vfs_file *next;
} vfs_file;

// Not known to be durable. In the order in which they were done.
typedef enum change_kind { CHANGE_WRITE = 0, CHANGE_SIZE, CHANGE_CREATE, CHANGE_DELETE } change_kind;
typedef struct vfs_change {
    change_kind kind;
    vfs_file *file;
    int64_t at, size;
    uint8_t *data;  // owned
    bool was_synced;  // so it was said
    struct vfs_change *next;
} vfs_change;

struct sim_vfs {
    sqlite3_vfs base;
    sim_dice *dice;
    vfs_trouble trouble;
    vfs_file *files;
    vfs_change *changes, **changes_end;
    int operations_left;  // −1: any number
    bool has_ended;
};

typedef struct open_file {
    sqlite3_file base;
    sim_vfs *vfs;
    vfs_file *file;
} open_file;

static void resize(bytes *of, int64_t size) {
    if (size > of->reserved) {
        of->reserved = size * 2 + 8192;
        of->data = realloc(of->data, (size_t)of->reserved);
        if (!of->data) abort();
    }
    if (size > of->size) memset(of->data + of->size, 0, (size_t)(size - of->size));
    of->size = size;
}

static void put_bytes(bytes *of, int64_t at, const uint8_t *data, int64_t size) {
    if (at + size > of->size) resize(of, at + size);
    memcpy(of->data + at, data, (size_t)size);
}

static void copy_bytes(bytes *to, const bytes *from) {
    resize(to, 0);
    if (from->size) put_bytes(to, 0, from->data, from->size);
}

static void note_change(sim_vfs *vfs, vfs_file *file, change_kind kind, int64_t at, int64_t size, const void *data) {
    if (!file->name[0]) return;
    vfs_change *change = calloc(1, sizeof *change);
    *change = (vfs_change){.kind = kind, .file = file, .at = at, .size = size};
    if (data) change->data = memcpy(malloc((size_t)size + 1), data, (size_t)size);
    *vfs->changes_end = change;
    vfs->changes_end = &change->next;
}

static void apply_change(const vfs_change *change) {
    vfs_file *file = change->file;
    switch (change->kind) {
    case CHANGE_WRITE: put_bytes(&file->durable, change->at, change->data, change->size); break;
    case CHANGE_SIZE: resize(&file->durable, change->size); break;
    case CHANGE_CREATE: file->exists_durably = true; break;
    case CHANGE_DELETE:
        file->exists_durably = false;
        resize(&file->durable, 0);
        break;
    }
}

static void free_change(vfs_change *change) {
    free(change->data);
    free(change);
}

static vfs_change *take_change(sim_vfs *vfs, vfs_change **link) {
    vfs_change *change = *link;
    *link = change->next;
    if (!change->next) vfs->changes_end = link;
    return change;
}

// Of a file; a directory is as durable as what is in it. What a lie has kept back goes before: the order stays.
static void make_durable(sim_vfs *vfs, const vfs_file *file) {
    bool has_lied = false;
    for (const vfs_change *change = vfs->changes; change; change = change->next) has_lied |= change->was_synced;
    for (vfs_change **link = &vfs->changes; *link;) {
        if ((*link)->file != file && !has_lied) {
            link = &(*link)->next;
            continue;
        }
        vfs_change *change = take_change(vfs, link);
        apply_change(change);
        free_change(change);
    }
}

static vfs_file *find_file(sim_vfs *vfs, const char *name) {
    for (vfs_file *file = vfs->files; file; file = file->next) {
        if (!strcmp(file->name, name)) return file;
    }
    return NULL;
}

static bool fails(sim_vfs *vfs, double chance) { return chance > 0 && dice_chance(vfs->dice, chance); }

// Whether the process lives to do one more thing that changes the disk.
static bool may_change(sim_vfs *vfs) {
    if (vfs->has_ended) return false;
    if (vfs->operations_left < 0) return true;
    if (vfs->operations_left-- == 0) vfs->has_ended = true;
    return !vfs->has_ended;
}

static int close_file(sqlite3_file *base) {
    open_file *open = (open_file *)base;
    vfs_file *file = open->file;
    if (file->name[0]) return SQLITE_OK;
    free(file->now.data);
    free(file);
    return SQLITE_OK;
}

static int read_file(sqlite3_file *base, void *out, int size, sqlite3_int64 at) {
    open_file *open = (open_file *)base;
    const bytes *of = &open->file->now;
    if (open->vfs->has_ended || fails(open->vfs, open->vfs->trouble.read_fails)) return SQLITE_IOERR_READ;
    int64_t there = of->size - at;
    if (there >= size) {
        memcpy(out, of->data + at, (size_t)size);
        return SQLITE_OK;
    }
    memset(out, 0, (size_t)size);
    if (there > 0) memcpy(out, of->data + at, (size_t)there);
    return SQLITE_IOERR_SHORT_READ;
}

static int write_file(sqlite3_file *base, const void *data, int size, sqlite3_int64 at) {
    open_file *open = (open_file *)base;
    sim_vfs *vfs = open->vfs;
    int64_t grows = at + size - open->file->now.size;
    if (!may_change(vfs) || fails(vfs, vfs->trouble.write_fails)) return SQLITE_IOERR_WRITE;
    if (vfs->trouble.room >= 0 && grows > vfs->trouble.room) return SQLITE_FULL;
    if (vfs->trouble.room >= 0 && grows > 0) vfs->trouble.room -= grows;
    put_bytes(&open->file->now, at, data, size);
    note_change(vfs, open->file, CHANGE_WRITE, at, size, data);
    return SQLITE_OK;
}

static int truncate_file(sqlite3_file *base, sqlite3_int64 size) {
    open_file *open = (open_file *)base;
    if (!may_change(open->vfs)) return SQLITE_IOERR_TRUNCATE;
    resize(&open->file->now, size);
    note_change(open->vfs, open->file, CHANGE_SIZE, 0, size, NULL);
    return SQLITE_OK;
}

static int sync_file(sqlite3_file *base, int flags) {
    (void)flags;
    open_file *open = (open_file *)base;
    sim_vfs *vfs = open->vfs;
    if (!may_change(vfs) || fails(vfs, vfs->trouble.sync_fails)) return SQLITE_IOERR_FSYNC;
    if (!vfs->trouble.lies) make_durable(vfs, open->file);
    for (vfs_change *change = vfs->changes; change; change = change->next) change->was_synced |= change->file == open->file;
    return SQLITE_OK;
}

static int size_of_file(sqlite3_file *base, sqlite3_int64 *size) {
    *size = ((open_file *)base)->file->now.size;
    return SQLITE_OK;
}

// One process, one connection: nobody else holds a lock.
static int lock(sqlite3_file *base, int level) {
    (void)base;
    (void)level;
    return SQLITE_OK;
}

static int check_lock(sqlite3_file *base, int *is_locked) {
    (void)base;
    *is_locked = 0;
    return SQLITE_OK;
}

static int control(sqlite3_file *base, int what, void *value) {
    (void)base;
    (void)what;
    (void)value;
    return SQLITE_NOTFOUND;
}

static int sector_size(sqlite3_file *base) {
    (void)base;
    return SECTOR;
}

static int traits(sqlite3_file *base) {
    (void)base;
    return SQLITE_IOCAP_POWERSAFE_OVERWRITE;  // as SQLite takes a file of Linux to be
}

static int map_shared(sqlite3_file *base, int region, int size, int extend, void volatile **out) {
    vfs_file *file = ((open_file *)base)->file;
    *out = NULL;
    if (region >= MAX_SHARED) return SQLITE_IOERR_SHMMAP;
    if (!file->shared[region] && extend) file->shared[region] = calloc(1, (size_t)size);
    *out = file->shared[region];
    return SQLITE_OK;
}

static int lock_shared(sqlite3_file *base, int offset, int count, int flags) {
    (void)base;
    (void)offset;
    (void)count;
    (void)flags;
    return SQLITE_OK;
}

static void barrier(sqlite3_file *base) { (void)base; }

static void drop_shared(vfs_file *file) {
    for (int i = 0; i < MAX_SHARED; i++) {
        free(file->shared[i]);
        file->shared[i] = NULL;
    }
}

static int unmap_shared(sqlite3_file *base, int removes) {
    if (removes) drop_shared(((open_file *)base)->file);
    return SQLITE_OK;
}

static const sqlite3_io_methods methods = {
    .iVersion = 2,
    .xClose = close_file,
    .xRead = read_file,
    .xWrite = write_file,
    .xTruncate = truncate_file,
    .xSync = sync_file,
    .xFileSize = size_of_file,
    .xLock = lock,
    .xUnlock = lock,
    .xCheckReservedLock = check_lock,
    .xFileControl = control,
    .xSectorSize = sector_size,
    .xDeviceCharacteristics = traits,
    .xShmMap = map_shared,
    .xShmLock = lock_shared,
    .xShmBarrier = barrier,
    .xShmUnmap = unmap_shared,
};

static vfs_file *make_file(sim_vfs *vfs, const char *name) {
    vfs_file *file = calloc(1, sizeof *file);
    if (!file) abort();
    if (!name) return file;
    strncpy(file->name, name, sizeof file->name - 1);
    file->next = vfs->files;
    vfs->files = file;
    return file;
}

static int open_named(sqlite3_vfs *base, const char *name, sqlite3_file *out, int flags, int *out_flags) {
    sim_vfs *vfs = (sim_vfs *)base;
    open_file *open = (open_file *)out;
    open->base.pMethods = NULL;
    if (vfs->has_ended) return SQLITE_CANTOPEN;
    vfs_file *file = name ? find_file(vfs, name) : NULL;
    if (!file) file = make_file(vfs, name);
    if (!file->exists) {
        file->exists = true;
        note_change(vfs, file, CHANGE_CREATE, 0, 0, NULL);
    }
    *open = (open_file){.base.pMethods = &methods, .vfs = vfs, .file = file};
    if (out_flags) *out_flags = flags;
    return SQLITE_OK;
}

static int delete_named(sqlite3_vfs *base, const char *name, int syncs) {
    (void)syncs;
    sim_vfs *vfs = (sim_vfs *)base;
    vfs_file *file = find_file(vfs, name);
    if (!may_change(vfs)) return SQLITE_IOERR_DELETE;
    if (!file || !file->exists) return SQLITE_IOERR_DELETE_NOENT;
    file->exists = false;
    resize(&file->now, 0);
    note_change(vfs, file, CHANGE_DELETE, 0, 0, NULL);
    if (!vfs->trouble.lies) make_durable(vfs, file);
    return SQLITE_OK;
}

static int access_named(sqlite3_vfs *base, const char *name, int flags, int *answer) {
    (void)flags;
    const vfs_file *file = find_file((sim_vfs *)base, name);
    *answer = file && file->exists;
    return SQLITE_OK;
}

static int full_name(sqlite3_vfs *base, const char *name, int size, char *out) {
    (void)base;
    sqlite3_snprintf(size, out, "%s", name);
    return SQLITE_OK;
}

static int draw(sqlite3_vfs *base, int size, char *out) {
    for (int i = 0; i < size; i++) out[i] = (char)dice_roll(((sim_vfs *)base)->dice);
    return size;
}

static int sleep_for(sqlite3_vfs *base, int microseconds) {
    (void)base;
    return microseconds;
}

static int tell_time(sqlite3_vfs *base, double *days) {
    (void)base;
    *days = 2460000.5;
    return SQLITE_OK;
}

static int last_error(sqlite3_vfs *base, int size, char *out) {
    (void)base;
    (void)size;
    (void)out;
    return 0;
}

sim_vfs *vfs_create(sim_dice *dice) {
    sim_vfs *vfs = calloc(1, sizeof *vfs);
    vfs->base = (sqlite3_vfs){.iVersion = 1,
                              .szOsFile = sizeof(open_file),
                              .mxPathname = 120,
                              .zName = "simulation",
                              .xOpen = open_named,
                              .xDelete = delete_named,
                              .xAccess = access_named,
                              .xFullPathname = full_name,
                              .xRandomness = draw,
                              .xSleep = sleep_for,
                              .xCurrentTime = tell_time,
                              .xGetLastError = last_error};
    vfs->dice = dice;
    vfs->changes_end = &vfs->changes;
    vfs->operations_left = -1;
    vfs->trouble.room = -1;
    sqlite3_vfs_register(&vfs->base, 1);
    sqlite3_randomness(0, NULL);  // what it draws comes from these dice, from now on
    return vfs;
}

static void drop_changes(sim_vfs *vfs) {
    while (vfs->changes) free_change(take_change(vfs, &vfs->changes));
}

void vfs_destroy(sim_vfs *vfs) {
    sqlite3_vfs_unregister(&vfs->base);
    drop_changes(vfs);
    while (vfs->files) {
        vfs_file *file = vfs->files;
        vfs->files = file->next;
        drop_shared(file);
        free(file->now.data);
        free(file->durable.data);
        free(file);
    }
    free(vfs);
}

vfs_trouble *vfs_trouble_of(sim_vfs *vfs) { return &vfs->trouble; }
void vfs_end_soon(sim_vfs *vfs, int operations) { vfs->operations_left = operations; }
void vfs_end(sim_vfs *vfs) { vfs->has_ended = true; }
bool vfs_has_ended(const sim_vfs *vfs) { return vfs->has_ended; }

// Sectors of a write in any order, as long as the power lasts.
static void apply_torn(sim_vfs *vfs, const vfs_change *change) {
    if (change->kind != CHANGE_WRITE) return;
    for (int64_t at = 0; at < change->size; at += SECTOR) {
        int64_t size = change->size - at < SECTOR ? change->size - at : SECTOR;
        if (dice_chance(vfs->dice, 0.5)) put_bytes(&change->file->durable, change->at + at, change->data + at, size);
    }
}

// An order was kept: the end is missing.
static bool lose_end(sim_vfs *vfs) {
    int64_t count = 0;
    for (const vfs_change *change = vfs->changes; change; change = change->next) count++;
    bool lost_synced = false;
    int64_t kept = dice_between(vfs->dice, 0, count);
    for (const vfs_change *change = vfs->changes; change; change = change->next) {
        if (kept-- > 0) apply_change(change);
        else lost_synced |= change->was_synced;
    }
    return lost_synced;
}

static void lose_any(sim_vfs *vfs) {
    for (const vfs_change *change = vfs->changes; change; change = change->next) {
        int64_t fate = dice_between(vfs->dice, 0, 3);
        if (fate < 2) apply_change(change);
        else if (fate == 2) apply_torn(vfs, change);
    }
}

bool vfs_begin(sim_vfs *vfs, bool power_failed) {
    bool lied = false, lost = false;
    for (const vfs_change *change = vfs->changes; change; change = change->next) lied |= change->was_synced;
    if (power_failed && lied) lost = lose_end(vfs);
    else if (power_failed) lose_any(vfs);
    if (power_failed) drop_changes(vfs);
    for (vfs_file *file = vfs->files; file; file = file->next) {
        drop_shared(file);
        if (!power_failed) continue;
        copy_bytes(&file->now, &file->durable);
        file->exists = file->exists_durably;
    }
    vfs->operations_left = -1;
    vfs->has_ended = false;
    return lost;
}
