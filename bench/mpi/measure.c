/* SPDX-License-Identifier: Apache-2.0 */
/* Measure matrix products, memory bandwidth and messages of an MPI job in short samples.
 *
 * usage: measure SAMPLES messages|all
 *
 * Prints "NAME VALUE" for every sample during which the kernel preempted no rank (getrusage(2), ru_nivcsw), so that other
 * programs on a busy machine are not measured with it, and "samples NAME KEPT TAKEN". All ranks work at the same time:
 *   dgemm_GFs       a product of two 256 x 256 matrices, of rank 0
 *   triad_MBs       a = b + s * c (STREAM's triad) over the next 4 MiB of three arrays of 48 MiB, of rank 0
 *   latency_us      half of the round trip of 8 bytes between ranks 0 and 1
 *   bandwidth_MBs   of messages of 1 MiB between ranks 0 and 1
 *   allreduce8_us, allreduce1M_us  MPI_Allreduce of 8 bytes and of 1 MiB of doubles over all ranks
 */
#include <cblas.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define MIB (1 << 20)
#define ARRAY (6 * MIB) /* doubles, 48 MiB */
#define PIECE (MIB / 2)  /* doubles, 4 MiB */
#define MATRIX 256

static int rank;
static double *a, *b, *c;

static double dgemm(int sample)
{
    (void) sample;
    double start = MPI_Wtime();
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, MATRIX, MATRIX, MATRIX, 1, b, MATRIX, c, MATRIX, 0, a,
                MATRIX);
    return 2.0 * MATRIX * MATRIX * MATRIX / (MPI_Wtime() - start) / 1e9;
}

static double triad(int sample)
{
    long from = (long) (sample % (ARRAY / PIECE)) * PIECE;
    double start = MPI_Wtime();
    for (long i = from; i < from + PIECE; i++)
        a[i] = b[i] + 3.0 * c[i];
    return 3.0 * PIECE * sizeof(double) / (MPI_Wtime() - start) / 1e6;
}

static double round_trip(int size, int count)
{
    char *buffer = (char *) a;
    double start = MPI_Wtime();
    for (int i = 0; i < count; i++) {
        if (rank == 0) {
            MPI_Send(buffer, size, MPI_CHAR, 1, 0, MPI_COMM_WORLD);
            MPI_Recv(buffer, size, MPI_CHAR, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else if (rank == 1) {
            MPI_Recv(buffer, size, MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(buffer, size, MPI_CHAR, 0, 0, MPI_COMM_WORLD);
        }
    }
    return (MPI_Wtime() - start) / (2.0 * count);
}

static double latency(int sample)
{
    (void) sample;
    return round_trip(8, 50) * 1e6;
}

static double bandwidth(int sample)
{
    (void) sample;
    return MIB / round_trip(MIB, 2) / 1e6;
}

static double reduced(int numbers, int count)
{
    double start = MPI_Wtime();
    for (int i = 0; i < count; i++)
        MPI_Allreduce(b, a, numbers, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return (MPI_Wtime() - start) / count * 1e6;
}

static double allreduce8(int sample)
{
    (void) sample;
    return reduced(1, 50);
}

static double allreduce1M(int sample)
{
    (void) sample;
    return reduced(MIB / (int) sizeof(double), 1);
}

static long preempted(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_nivcsw;
}

static void measure(const char *name, double (*act)(int), int samples)
{
    int kept = 0;
    act(0); /* warms up */
    for (int sample = 0; sample < samples; sample++) {
        MPI_Barrier(MPI_COMM_WORLD);
        long before = preempted();
        double value = act(sample);
        long mine = preempted() - before, worst;
        MPI_Allreduce(&mine, &worst, 1, MPI_LONG, MPI_MAX, MPI_COMM_WORLD);
        if (rank == 0 && worst == 0) {
            printf("%s %.4f\n", name, value);
            kept++;
        }
    }
    if (rank == 0)
        printf("samples %s %d %d\n", name, kept, samples);
}

int main(int argc, char **argv)
{
    int samples = argc > 1 ? atoi(argv[1]) : 10;
    size_t bytes = ARRAY * sizeof(double);

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    a = malloc(bytes), b = malloc(bytes), c = malloc(bytes);
    for (long i = 0; i < ARRAY; i++)
        a[i] = 0, b[i] = 1, c[i] = 2;
    if (argc > 2 && strcmp(argv[2], "all") == 0) {
        measure("dgemm_GFs", dgemm, samples);
        measure("triad_MBs", triad, samples);
    }
    measure("latency_us", latency, samples);
    measure("bandwidth_MBs", bandwidth, samples);
    measure("allreduce8_us", allreduce8, samples);
    measure("allreduce1M_us", allreduce1M, samples);
    MPI_Finalize();
    return 0;
}
