/*
 * Takes cores away from every other program of this machine, as the host of a virtual machine does: a tenth of the
 * time, for 0.5 to 150 ms at a time, short thefts more often than long ones (their logarithm is uniform).
 *
 * Each core is taken by two threads that are pinned to it. One has a schedule of its own and takes 7.5 % of the time;
 * the other takes 2.5 %, and all cores have its schedule in common, so that all of them are away at once now and then.
 * Both spin in SCHED_FIFO, or at nice -20 where that is not permitted. The schedules follow from the seed; when a thread
 * really gets its core is the kernel's.
 *
 * Usage: disturb SEED. Prints what it was permitted to be, runs until SIGTERM or SIGINT, and prints its thefts.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static const double SHORTEST = 0.0005, LONGEST = 0.150;
static const double OWN_SHARE = 0.075, COMMON_SHARE = 0.025;
enum { CORES_MAX = 1024 };

struct thief {
    pthread_t thread;
    int core;
    double share;
    uint64_t random;
    unsigned long thefts;
    double stolen, longest;
};

static struct thief thieves[2 * CORES_MAX];
static atomic_int over;
static double begin;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* SplitMix64; a number in (0, 1). */
static double draw(uint64_t *state) {
    uint64_t word = *state += 0x9e3779b97f4a7c15u;
    word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9u;
    word = (word ^ word >> 27) * 0x94d049bb133111ebu;
    word ^= word >> 31;
    return ((double)(word >> 11) + 0.5) / 9007199254740992.0;
}

/* In short steps, so that the end is not slept through. */
static void sleep_until(double time) {
    for (double left; !over && (left = time - now()) > 0;) {
        double step = left < 0.05 ? left : 0.05;
        struct timespec length = {0, (long)(step * 1e9)};
        nanosleep(&length, NULL);
    }
}

static void *steal(void *argument) {
    struct thief *thief = argument;
    const double mean = (LONGEST - SHORTEST) / log(LONGEST / SHORTEST);
    const double pause_mean = mean * (1 - thief->share) / thief->share;
    double due = begin;
    while (!over) {
        due += -log(draw(&thief->random)) * pause_mean;
        double length = SHORTEST * pow(LONGEST / SHORTEST, draw(&thief->random));
        sleep_until(due);
        due += length;
        double from = now(), last = from;
        while (!over && last < due) {
            last = now();
        }
        if (last > from) {
            thief->thefts++;
            thief->stolen += last - from;
            thief->longest = last - from > thief->longest ? last - from : thief->longest;
        }
    }
    return NULL;
}

/* Takes the highest priority that is permitted, which the threads made later inherit; its name, or NULL. */
static const char *be_first(void) {
    struct sched_param priority = {.sched_priority = 50};
    if (sched_setscheduler(0, SCHED_FIFO, &priority) == 0) {
        return "SCHED_FIFO";
    }
    return setpriority(PRIO_PROCESS, 0, -20) == 0 ? "nice -20" : NULL;
}

int main(int count, char **words) {
    if (count != 2) {
        fprintf(stderr, "usage: disturb SEED\n");
        return 2;
    }
    uint64_t seed = strtoull(words[1], NULL, 10);
    const char *what = be_first();
    cpu_set_t cores;
    if (!what || sched_getaffinity(0, sizeof cores, &cores)) {
        fprintf(stderr, "disturb: neither SCHED_FIFO nor nice -20: %s\n", strerror(errno));
        return 3;
    }
    /* Blocked in all threads; taken by this one alone. */
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    sigprocmask(SIG_BLOCK, &ends, NULL);
    begin = now();
    size_t many = 0;
    for (int core = 0; core < CORES_MAX && core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, &cores)) {
            continue;
        }
        for (int common = 0; common < 2; common++) {
            struct thief *thief = &thieves[many++];
            thief->core = core;
            thief->share = common ? COMMON_SHARE : OWN_SHARE;
            thief->random = seed ^ (common ? 0xc0ffee : (uint64_t)core + 1) * 0x2545f4914f6cdd1du;
            pthread_attr_t attributes;
            cpu_set_t one;
            CPU_ZERO(&one);
            CPU_SET(core, &one);
            pthread_attr_init(&attributes);
            pthread_attr_setaffinity_np(&attributes, sizeof one, &one);
            if (pthread_create(&thief->thread, &attributes, steal, thief)) {
                fprintf(stderr, "disturb: no thread for core %d\n", core);
                return 3;
            }
        }
    }
    printf("disturb: seed %llu, %s, %zu cores\n", (unsigned long long)seed, what, many / 2);
    fflush(stdout);
    int signal;
    sigwait(&ends, &signal);
    over = 1;
    for (size_t at = 0; at < many; at++) {
        pthread_join(thieves[at].thread, NULL);
    }
    double ran = now() - begin;
    for (size_t at = 0; at < many; at += 2) {
        const struct thief *own = &thieves[at], *common = &thieves[at + 1];
        double longest = own->longest > common->longest ? own->longest : common->longest;
        printf("disturb: core %d: %lu thefts, %lu of all cores at once; %.1f s of %.1f s (%.1f %%), the longest %.0f ms\n",
               own->core, own->thefts, common->thefts, own->stolen + common->stolen, ran,
               100 * (own->stolen + common->stolen) / ran, longest * 1e3);
    }
    return 0;
}
