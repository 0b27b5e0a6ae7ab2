/* SPDX-License-Identifier: Apache-2.0
 *
 * An OpenMP program of many short parallel regions that follows its cores.
 *
 *     gcc -O2 -fopenmp openmp.c -o openmp
 *     containerhost-guest run -- ./openmp [rigid]
 *
 * Prints each second how many threads it has and how many regions it ran. With the argument "rigid" it keeps the threads
 * that it was started with. Threads that wait at the end of a region spin (OMP_WAIT_POLICY=active) as in programs that are
 * tuned for cores of their own: with fewer cores than threads each region then costs the kernel's time slices.
 */
#include "containerhost_resources.h"
#include <omp.h>

enum { WORK = 2000 };

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    const int rigid = argc > 1 && strcmp(argv[1], "rigid") == 0;
    struct containerhost host = {0};
    double began = now(), sum = 0;
    long regions = 0;

    for (;;) {
        int threads = rigid ? 0 : containerhost_poll(&host);
        if (threads) {
            omp_pause_resource_all(omp_pause_soft); /* ends threads that libgomp would keep spinning for a larger team */
            omp_set_num_threads(threads);
            if (containerhost_acknowledge(&host))
                perror("acknowledge");
        }
#pragma omp parallel for reduction(+ : sum) schedule(static)
        for (int i = 0; i < WORK; i++)
            sum += 1.0 / (i + 1.0);
        regions++;
        if (now() - began >= 1) {
            printf("%d threads %.0f regions/s\n", omp_get_max_threads(), (double)regions / (now() - began));
            fflush(stdout);
            began = now();
            regions = 0;
        }
    }
}
