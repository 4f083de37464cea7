/* The small, tight loops of the benchmark: the same program for every file system, so that what it costs cancels out.
 *   tool create DIR N SIZE    N files of SIZE bytes
 *   tool stat DIR N           lstat of each
 *   tool unlink DIR N
 *   tool write FILE MIB       sequentially, in 1 MiB blocks, then fsync
 *   tool read FILE            sequentially, in 128 KiB blocks
 *   tool random FILE N        N accesses of 4 KiB at pseudo-random places, every second one a write; then fsync
 * Ends with 1 and a message on the first error. */
#define _FILE_OFFSET_BITS 64
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char block[1 << 20];

static void fail(const char *what, const char *path) {
    fprintf(stderr, "tool: %s %s: %s\n", what, path, strerror(errno));
    exit(1);
}

static void whole(ssize_t got, size_t wanted, const char *what, const char *path) {
    if (got >= 0 && (size_t)got != wanted)
        errno = EIO;
    if (got < 0 || (size_t)got != wanted)
        fail(what, path);
}

static int opened(const char *path, int flags) {
    int fd = open(path, flags | O_CLOEXEC, 0644);
    if (fd < 0)
        fail("open", path);
    return fd;
}

static void small_files(const char *verb, const char *dir, long n, size_t size) {
    char path[4096];
    struct stat st;
    for (long i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%s/file-%06ld", dir, i);
        if (verb[0] == 'c') {
            int fd = opened(path, O_CREAT | O_EXCL | O_WRONLY);
            whole(write(fd, block, size), size, "write", path);
            if (close(fd) < 0)
                fail("close", path);
        } else if (verb[0] == 's') {
            if (lstat(path, &st) < 0)
                fail("lstat", path);
        } else if (unlink(path) < 0) {
            fail("unlink", path);
        }
    }
}

static void write_file(const char *path, long mib) {
    int fd = opened(path, O_CREAT | O_TRUNC | O_WRONLY);
    for (long i = 0; i < mib; i++)
        whole(write(fd, block, sizeof block), sizeof block, "write", path);
    if (fsync(fd) < 0 || close(fd) < 0)
        fail("fsync", path);
}

static void read_file(const char *path) {
    int fd = opened(path, O_RDONLY);
    ssize_t got;
    while ((got = read(fd, block, 128 << 10)) > 0)
        ;
    if (got < 0)
        fail("read", path);
}

static void random_access(const char *path, long n) {
    int fd = opened(path, O_RDWR);
    struct stat st;
    if (fstat(fd, &st) < 0)
        fail("fstat", path);
    uint64_t blocks = (uint64_t)st.st_size / 4096, seed = 88172645463325252u;
    char mine[4096];
    for (long i = 0; i < n; i++) {
        seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
        off_t at = (off_t)(seed % blocks * 4096);
        if (i % 2)
            whole(pwrite(fd, block + i % 4096, 4096, at), 4096, "pwrite", path);
        else
            whole(pread(fd, mine, 4096, at), 4096, "pread", path);
    }
    if (fsync(fd) < 0 || close(fd) < 0)
        fail("fsync", path);
}

int main(int argc, char **argv) {
    uint64_t seed = 2463534242u;
    for (size_t i = 0; i < sizeof block; i++) {
        seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
        block[i] = (char)seed;
    }
    const char *verb = argc > 2 ? argv[1] : "";
    long n = argc > 3 ? atol(argv[3]) : 0;
    if (!strcmp(verb, "create") || !strcmp(verb, "stat") || !strcmp(verb, "unlink"))
        small_files(verb, argv[2], n, argc > 4 ? (size_t)atol(argv[4]) : 0);
    else if (!strcmp(verb, "write"))
        write_file(argv[2], n);
    else if (!strcmp(verb, "read"))
        read_file(argv[2]);
    else if (!strcmp(verb, "random"))
        random_access(argv[2], n);
    else
        return fprintf(stderr, "usage: tool create|stat|unlink|write|read|random PATH [N [SIZE]]\n"), 2;
    return 0;
}
