/* Preloaded, a clock of the day that can be stepped while a process runs: by the seconds in the file $CDC_TEST_CLOCK.
   Waits are not changed: what waits well does so by the monotonic clock. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *step;

__attribute__((constructor)) static void open_step(void) {
    const char *path = getenv("CDC_TEST_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *found = mmap(NULL, sizeof *step, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (found != MAP_FAILED) step = found;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    long failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && step && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += *step;
    return (int)failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec found;
    if (clock_gettime(CLOCK_REALTIME, &found)) return -1;
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *into) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (into) *into = now.tv_sec;
    return now.tv_sec;
}
