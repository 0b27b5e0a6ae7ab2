/* SPDX-License-Identifier: Apache-2.0
 *
 * An OpenMP program of many short parallel regions that follows its cores.
 *
 *     gcc -O2 -fopenmp openmp.c -o openmp
 *     containerhost-guest run -- ./openmp [rigid] [regions=NUMBER] [work=ITERATIONS]
 *
 * Prints each second how many threads it has, how many regions it ran, and the last one's number; it ends after `regions`,
 * or never. With the argument "rigid" it keeps the threads that it was started with. Threads that wait at the end of a
 * region spin (OMP_WAIT_POLICY=active) as in programs that are tuned for cores of their own: with fewer cores than threads
 * each region then costs the kernel's time slices.
 *
 * Each region adds the same to a sum. If the sum is not that of all regions, each counted once, it ends with status 1.
 */
#include "containerhost_resources.h"
#include <omp.h>

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static double part(long i)
{
    return 1.0 / (double)(i + 1);
}

int main(int argc, char **argv)
{
    struct containerhost host = {0};
    double began = now(), sum = 0, of_one = 0;
    long all = 0, work = 2000, regions = 0, before = 0;
    int rigid = 0;

    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "rigid") == 0)
            rigid = 1;
        else if (sscanf(argv[i], "regions=%ld", &all) != 1 && sscanf(argv[i], "work=%ld", &work) != 1)
            return fprintf(stderr, "usage: %s [rigid] [regions=NUMBER] [work=ITERATIONS]\n", argv[0]), 2;
    for (long i = 0; i < work; i++)
        of_one += part(i);
    do {
        int threads = rigid ? 0 : containerhost_poll(&host);
        if (threads) {
            omp_pause_resource_all(omp_pause_soft); /* ends threads that libgomp would keep spinning for a larger team */
            omp_set_num_threads(threads);
            if (containerhost_acknowledge(&host))
                perror("acknowledge");
        }
#pragma omp parallel for reduction(+ : sum) schedule(static)
        for (long i = 0; i < work; i++)
            sum += part(i);
        regions++;
        if (now() - began >= 1 || regions == all) {
            const double counted = sum / of_one - (double)regions;
            printf("%d threads %.0f regions/s region %ld\n", omp_get_max_threads(),
                   (double)(regions - before) / (now() - began), regions);
            fflush(stdout);
            if (counted < -0.5 || counted > 0.5)
                return fprintf(stderr, "the sum has %.1f regions more than were run\n", counted), 1;
            began = now();
            before = regions;
        }
    } while (regions != all);
    return 0;
}
