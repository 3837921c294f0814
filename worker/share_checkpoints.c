// Checkpoints and data that lie here as a version left them whose workers were the coordinator's user: they are given to the workers'
// group, so that workers go on with them.
//
//   share-checkpoints [--owner USER] [--group GROUP] [CHECKPOINTS [DATA]]
//
// Trainers may write there meanwhile. So it is done as the coordinator's user, which can give away nothing but its own, and each thing
// is opened where the walk is, without following links, looked at, and changed by its descriptor: what takes its name is not touched.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHECKPOINTS "/var/lib/gradsync/checkpoints"
#define DATA "/var/lib/gradsync/data"
#define MOST_LEVELS 100  // each is a descriptor or two

typedef struct sharing {
    uid_t owner;
    gid_t group;
    mode_t of_directories, of_files;  // what they get
    mode_t nobodys;                   // what they lose
    bool has_failed;
} sharing;

static void complain(sharing *it, const char *name, int error_number) {
    fprintf(stderr, "share-checkpoints: %s: %s\n", name, strerror(error_number));
    it->has_failed = true;
}

// Others than its owner change neither.
static void share(sharing *it, int fd, const struct stat *facts, const char *name) {
    if (facts->st_uid != it->owner) return;
    if (facts->st_gid != it->group && fchown(fd, (uid_t)-1, it->group) != 0) {
        complain(it, name, errno);
        return;
    }
    mode_t mode = facts->st_mode & 07777, wanted = (mode | (S_ISDIR(facts->st_mode) ? it->of_directories : it->of_files)) & ~it->nobodys;
    // A change of its group may have taken bits away.
    if ((wanted != mode || facts->st_gid != it->group) && fchmod(fd, wanted) != 0) complain(it, name, errno);
}

static void share_below(sharing *it, int fd, const char *name, int level);

static void share_entry(sharing *it, int parent, const char *name, int level) {
    struct stat facts;
    // What waits for a writer or a terminal is not waited for.
    int fd = openat(parent, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0) {
        int error_number = errno;
        // Links, sockets, what is gone by now, and others' files have nothing to give; others' directories may.
        bool is_there = fstatat(parent, name, &facts, AT_SYMLINK_NOFOLLOW) == 0;
        if (is_there && (S_ISDIR(facts.st_mode) || (S_ISREG(facts.st_mode) && facts.st_uid == it->owner))) complain(it, name, error_number);
        return;
    }
    if (fstat(fd, &facts) != 0) complain(it, name, errno);
    else if (S_ISREG(facts.st_mode)) share(it, fd, &facts, name);
    else if (S_ISDIR(facts.st_mode)) {
        share(it, fd, &facts, name);
        share_below(it, fd, name, level + 1);
        return;
    }
    close(fd);
}

// Takes the descriptor. What cannot be read keeps nothing else from the group.
static void share_below(sharing *it, int fd, const char *name, int level) {
    DIR *directory = level < MOST_LEVELS ? fdopendir(fd) : NULL;
    if (!directory) {
        complain(it, name, level < MOST_LEVELS ? errno : ELOOP);
        close(fd);
        return;
    }
    for (struct dirent *entry; (errno = 0, entry = readdir(directory));) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) share_entry(it, dirfd(directory), entry->d_name, level);
    }
    if (errno) complain(it, name, errno);
    closedir(directory);
}

// The place itself is the operator's word, and may be a link.
static void share_place(sharing *it, const char *path) {
    struct stat facts;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        if (errno != ENOENT) complain(it, path, errno);
        return;
    }
    if (fstat(fd, &facts) == 0) share(it, fd, &facts, path);
    share_below(it, fd, path, 0);
}

static bool become(const struct passwd *who) {
    if (initgroups(who->pw_name, who->pw_gid) != 0 || setresgid(who->pw_gid, who->pw_gid, who->pw_gid) != 0 ||
        setresuid(who->pw_uid, who->pw_uid, who->pw_uid) != 0)
        return false;
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;
}

int main(int argc, char **argv) {
    const char *owner = "gradsync", *group = "gradsync-worker", *places[2] = {CHECKPOINTS, DATA};
    int at = 1;
    for (; at + 1 < argc && strncmp(argv[at], "--", 2) == 0; at += 2) {
        if (strcmp(argv[at], "--owner") == 0) owner = argv[at + 1];
        else if (strcmp(argv[at], "--group") == 0) group = argv[at + 1];
        else break;
    }
    if (argc - at > 2 || (at < argc && argv[at][0] == '-')) {
        fprintf(stderr, "usage: share-checkpoints [--owner USER] [--group GROUP] [CHECKPOINTS [DATA]]\n");
        return 64;
    }
    for (int i = 0; at + i < argc; i++) places[i] = argv[at + i];
    const struct passwd *user = getpwnam(owner);
    const struct group *theirs = getgrnam(group);
    if (!user || !theirs) {
        fprintf(stderr, "share-checkpoints: there is no %s \"%s\"\n", user ? "group" : "user", user ? group : owner);
        return 66;
    }
    if (geteuid() == 0 && user->pw_uid != 0 && !become(user)) {
        fprintf(stderr, "share-checkpoints: cannot become %s: %s\n", owner, strerror(errno));
        return 77;
    }
    sharing checkpoints = {.owner = geteuid(), .group = theirs->gr_gid, .of_directories = S_IRWXG | S_ISGID, .of_files = S_IRGRP};
    share_place(&checkpoints, places[0]);
    // The group writes nothing there.
    sharing data = {.owner = geteuid(), .group = theirs->gr_gid, .of_directories = S_IRGRP | S_IXGRP | S_ISGID, .of_files = S_IRGRP,
                    .nobodys = S_IWGRP};
    share_place(&data, places[1]);
    return checkpoints.has_failed || data.has_failed;
}
