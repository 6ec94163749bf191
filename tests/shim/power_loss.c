/*
 * Preloaded into a program under test: remembers what a power loss would leave of one directory.
 *
 * The directory is POWER_LOSS_ROOT. Beside it, on the same file system, POWER_LOSS_SHADOW holds what has been
 * flushed, keyed by inode number:
 *
 *   content/INODE   the bytes of a file as at its last fsync or fdatasync
 *   dir/INODE       the entries of a directory as at its last fsync, a line each: type, inode, name
 *   pin/INODE       a hard link, so that no inode number is used again while the shadow speaks of it
 *   trash/INODE     removed directories, kept for the same reason
 *   loaded/PID      says that the shim works in that process
 *
 * The test kills the program and builds the directory anew from this (tests/src/power_loss.rs). Writes, truncations,
 * renames and removals need no watching: what was not flushed is simply not in the shadow. So a way of writing that
 * the shim does not know can only make it lose too much, which a test sees, never too little.
 *
 * A flush takes POWER_LOSS_FLUSH_MS milliseconds before it has any effect, as on a disk: what is acknowledged meanwhile and
 * was not to be is then lost for certain.
 *
 * Flushing twice at once, from threads or processes, is in order: file locks on the shadow serialise it. A copy that
 * a kill interrupts leaves a mixture of the old and the new bytes, as a real disk may. The shadow is the stable
 * storage of the test, so the real fsync is not called. A failure of the shim itself aborts the program.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static char root[PATH_MAX];
static size_t root_len; /* 0: the shim is not in use */
static char shadow[PATH_MAX];
static struct timespec flush_time;

static void check(int ok, const char *what) {
    if (!ok) {
        fprintf(stderr, "power-loss shim: %s: %s\n", what, strerror(errno));
        abort();
    }
}

static void in_shadow(char *out, const char *kind, uintmax_t number) {
    check(snprintf(out, PATH_MAX, "%s/%s/%ju", shadow, kind, number) < PATH_MAX, "path");
}

static int open_checked(int dir, const char *path, int flags) {
    int fd = openat(dir, path, flags | O_CLOEXEC, 0600);
    check(fd >= 0, path);
    return fd;
}

__attribute__((constructor)) static void start(void) {
    const char *r = getenv("POWER_LOSS_ROOT"), *s = getenv("POWER_LOSS_SHADOW");
    if (!r || !s)
        return;
    check(strlen(r) < sizeof root && strlen(s) < sizeof shadow, "path");
    strcpy(root, r);
    strcpy(shadow, s);
    root_len = strlen(root);
    const char *millis = getenv("POWER_LOSS_FLUSH_MS");
    long ms = millis ? strtol(millis, NULL, 10) : 0;
    flush_time = (struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    char mark[PATH_MAX];
    in_shadow(mark, "loaded", (uintmax_t)getpid());
    close(open_checked(AT_FDCWD, mark, O_WRONLY | O_CREAT));
}

static void proc_path(char out[64], int fd) { snprintf(out, 64, "/proc/self/fd/%d", fd); }

/* Whether the open file lies below the root, or is the root. */
static int tracked(int fd) {
    char link[64], path[PATH_MAX];
    if (root_len == 0)
        return 0;
    proc_path(link, fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < (ssize_t)root_len)
        return 0;
    path[n] = 0;
    return memcmp(path, root, root_len) == 0 && (path[root_len] == 0 || path[root_len] == '/');
}

/* One lock over all directory snapshots and all changes of names, in every process that shares the shadow. */
static int lock_names(void) {
    char path[PATH_MAX];
    in_shadow(path, "dir", 0);
    int fd = open_checked(AT_FDCWD, path, O_RDWR | O_CREAT);
    check(flock(fd, LOCK_EX) == 0, "lock names");
    return fd;
}

static void pin(int dir, const char *path, ino_t inode, int flags) {
    char pinned[PATH_MAX];
    in_shadow(pinned, "pin", inode);
    /* There already: pinned before. Gone: removed before it was ever pinned, so nothing speaks of it. */
    check(linkat(dir, path, AT_FDCWD, pinned, flags) == 0 || errno == EEXIST || errno == ENOENT, "pin");
}

static void flush_file(int fd, ino_t inode) {
    char link[64], path[PATH_MAX];
    proc_path(link, fd);
    pin(AT_FDCWD, link, inode, AT_SYMLINK_FOLLOW);
    in_shadow(path, "content", inode);
    int to = open_checked(AT_FDCWD, path, O_RDWR | O_CREAT);
    check(flock(to, LOCK_EX) == 0, "lock content");
    int from = open_checked(AT_FDCWD, link, O_RDONLY);
    off_t length = 0;
    for (;;) {
        ssize_t n = copy_file_range(from, NULL, to, NULL, 1 << 30, 0);
        check(n >= 0 || errno == EINTR, "copy");
        if (n == 0)
            break;
        length += n > 0 ? n : 0;
    }
    check(ftruncate(to, length) == 0, "truncate");
    close(from);
    close(to);
}

static void flush_dir(int fd, ino_t inode) {
    char link[64], path[PATH_MAX], fresh[PATH_MAX];
    int lock = lock_names();
    proc_path(link, fd);
    in_shadow(path, "dir", inode);
    in_shadow(fresh, "dir", UINTMAX_MAX); /* no inode has this number; the lock makes it ours */
    FILE *out = fopen(fresh, "we");
    DIR *dir = fdopendir(open_checked(AT_FDCWD, link, O_RDONLY | O_DIRECTORY));
    check(out && dir, "open directory");
    struct dirent *entry;
    while (errno = 0, (entry = readdir(dir)) != NULL) {
        const char *name = entry->d_name;
        struct stat st;
        if (!strcmp(name, ".") || !strcmp(name, ".."))
            continue;
        check(!strchr(name, '\n'), "a name with a line break");
        if (fstatat(dirfd(dir), name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !(S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)))
            continue;
        if (S_ISREG(st.st_mode))
            pin(dirfd(dir), name, st.st_ino, 0);
        fprintf(out, "%c %ju %s\n", S_ISREG(st.st_mode) ? 'f' : 'd', (uintmax_t)st.st_ino, name);
    }
    check(errno == 0 && fclose(out) == 0, "write directory");
    check(syscall(SYS_renameat2, AT_FDCWD, fresh, AT_FDCWD, path, 0) == 0, "replace directory");
    closedir(dir);
    close(lock);
}

static int flush(int fd, long number) {
    struct stat st;
    if (!tracked(fd) || fstat(fd, &st) != 0)
        return (int)syscall(number, fd);
    nanosleep(&flush_time, NULL);
    if (S_ISDIR(st.st_mode))
        flush_dir(fd, st.st_ino);
    else if (S_ISREG(st.st_mode))
        flush_file(fd, st.st_ino);
    return 0;
}

int fsync(int fd) { return flush(fd, SYS_fsync); }
int fdatasync(int fd) { return flush(fd, SYS_fdatasync); }

/* Names change under the lock, so that a snapshot of a directory sees each change whole. */
static int renaming(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
    int lock = root_len ? lock_names() : -1;
    int result = (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, flags), error = errno;
    if (lock >= 0)
        close(lock);
    errno = error;
    return result;
}

int rename(const char *from, const char *to) { return renaming(AT_FDCWD, from, AT_FDCWD, to, 0); }
int renameat(int from_dir, const char *from, int to_dir, const char *to) {
    return renaming(from_dir, from, to_dir, to, 0);
}
int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
    return renaming(from_dir, from, to_dir, to, flags);
}

static int is_empty(int fd) {
    DIR *dir = fdopendir(open_checked(fd, ".", O_RDONLY | O_DIRECTORY));
    check(dir != NULL, "open directory");
    int entries = 0;
    while (readdir(dir))
        entries++;
    closedir(dir);
    return entries == 2; /* itself and its parent */
}

/* An empty directory moves to the trash instead of being removed, which keeps its inode number from being used again. */
static int removing(int dir, const char *path, int flags) {
    if (root_len == 0)
        return (int)syscall(SYS_unlinkat, dir, path, flags);
    int lock = lock_names(), result = -1, error = 0;
    struct stat st;
    char trash[PATH_MAX];
    int fd = flags & AT_REMOVEDIR ? openat(dir, path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
    if (fd >= 0 && tracked(fd) && fstat(fd, &st) == 0) {
        in_shadow(trash, "trash", st.st_ino);
        if (is_empty(fd))
            result = (int)syscall(SYS_renameat2, dir, path, AT_FDCWD, trash, 0), error = errno;
        else
            error = ENOTEMPTY;
    } else {
        result = (int)syscall(SYS_unlinkat, dir, path, flags), error = errno;
    }
    if (fd >= 0)
        close(fd);
    close(lock);
    errno = error;
    return result;
}

int unlink(const char *path) { return removing(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return removing(AT_FDCWD, path, AT_REMOVEDIR); }
int unlinkat(int dir, const char *path, int flags) { return removing(dir, path, flags); }
