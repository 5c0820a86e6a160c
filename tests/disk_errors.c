/* Lets reads, writes or syncs of files that fit a pattern fail with EIO, in a command and in all that it starts.
   It never changes a byte: a call that does not fail is the system's own. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static const char *const NAMES[] = {"LD_PRELOAD", "DISK_ERROR_CALL", "DISK_ERROR_FILES"};
enum { NUM_NAMES = 3 };

static int fails(int fd, const char *call)
{
    const char *wanted = getenv("DISK_ERROR_CALL"), *files = getenv("DISK_ERROR_FILES");
    char link[64], path[PATH_MAX];
    if (!wanted || !files || strcmp(wanted, call))
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    if (fnmatch(files, path, 0))
        return 0;
    errno = EIO;
    return 1;
}

#define FAILING(type, name, call, parameters, arguments)          \
    type name parameters                                          \
    {                                                             \
        static type(*next) parameters;                            \
        if (!next)                                                \
            next = (type(*) parameters)dlsym(RTLD_NEXT, #name);   \
        return fails(fd, call) ? -1 : next arguments;             \
    }

FAILING(int, fsync, "sync", (int fd), (fd))
FAILING(int, fdatasync, "sync", (int fd), (fd))
FAILING(ssize_t, read, "read", (int fd, void *to, size_t size), (fd, to, size))
FAILING(ssize_t, pread, "read", (int fd, void *to, size_t size, off_t at), (fd, to, size, at))
FAILING(ssize_t, pread64, "read", (int fd, void *to, size_t size, off_t at), (fd, to, size, at))
FAILING(ssize_t, write, "write", (int fd, const void *from, size_t size), (fd, from, size))
FAILING(ssize_t, pwrite, "write", (int fd, const void *from, size_t size, off_t at), (fd, from, size, at))
FAILING(ssize_t, pwrite64, "write", (int fd, const void *from, size_t size, off_t at), (fd, from, size, at))
FAILING(ssize_t, sendfile, "write", (int fd, int from, off_t *at, size_t size), (fd, from, at, size))

/* The desk gives its children a listed environment only: these names go along all the same. */
int execve(const char *program, char *const arguments[], char *const environment[])
{
    static int (*next)(const char *, char *const[], char *const[]);
    if (!next)
        next = (int (*)(const char *, char *const[], char *const[]))dlsym(RTLD_NEXT, "execve");
    static char kept[NUM_NAMES][PATH_MAX];
    static char *whole[4096];
    int count = 0;
    for (; environment && environment[count] && count < 4096 - NUM_NAMES - 1; count++)
        whole[count] = environment[count];
    for (int number = 0; number < NUM_NAMES; number++) {
        const char *value = getenv(NAMES[number]);
        if (!value)
            continue;
        snprintf(kept[number], PATH_MAX, "%s=%s", NAMES[number], value);
        whole[count++] = kept[number];
    }
    whole[count] = NULL;
    return next(program, arguments, whole);
}
