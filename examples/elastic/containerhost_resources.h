/* SPDX-License-Identifier: Apache-2.0
 *
 * Follow the resources that the host gives a container and takes: one header for C on Linux, without a library. Include it
 * before any other, or compile with -D_GNU_SOURCE.
 *
 *     struct containerhost host = {0};
 *     for (;;) {
 *         int threads = containerhost_poll(&host);
 *         if (threads) {
 *             omp_pause_resource_all(omp_pause_soft);
 *             omp_set_num_threads(threads);
 *             containerhost_acknowledge(&host);
 *         }
 *         #pragma omp parallel
 *         ...
 *     }
 *
 * containerhost_poll returns how many threads can run at once when that has changed since its last call, else 0. It looks
 * once in 20 ms: between two calls it costs a read of the clock. While the host announces that something will go, it tells
 * what will be left; the host waits, for a limited time, until containerhost_acknowledge says that the program lets go. A
 * program that starts before the host has written the file is to be started by `containerhost-guest run -- PROGRAM`, which
 * tells it the generation. What the host writes: doc/source/inside.md.
 */
#ifndef CONTAINERHOST_RESOURCES_H
#define CONTAINERHOST_RESOURCES_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

struct containerhost {
    long looked;     /* when, in steps of 20 ms; 0 is never */
    long generation; /* to be acknowledged; -1 is none */
    long allowed;    /* CPUs that the calling thread may run on */
    struct stat file;
};

/* Return where the value of an object's own key begins; NULL if `at` is no object or has no such key. */
static const char *containerhost_value(const char *at, const char *key)
{
    const size_t length = strlen(key);
    int depth = 0;

    if (!at || *at != '{')
        return NULL;
    for (; *at; at++) {
        if (*at == '{' || *at == '[') {
            depth++;
        } else if (*at == '}' || *at == ']') {
            if (--depth == 0)
                return NULL;
        } else if (*at == '"') {
            const char *text = ++at, *after;
            while (*at && *at != '"')
                at += *at == '\\' && at[1] ? 2 : 1;
            if (!*at)
                return NULL;
            after = at + 1 + strspn(at + 1, " \t\n\r");
            if (depth == 1 && *after == ':' && (size_t)(at - text) == length && !memcmp(text, key, length))
                return after + 1 + strspn(after + 1, " \t\n\r");
        }
    }
    return NULL;
}

static long containerhost_number(const char *at, long otherwise)
{
    return at && *at >= '0' && *at <= '9' ? strtol(at, NULL, 10) : otherwise;
}

static void containerhost_path(char *path, size_t size, const char *file)
{
    const char *directory = getenv("CONTAINERHOST_DIRECTORY");
    snprintf(path, size, "%s/%s", directory ? directory : "/run/containerhost", file);
}

/* Read what is announced, or else what is. Return the number of cores; `cores` if the host tells none. */
static long containerhost_read(struct containerhost *host, const char *path, long cores)
{
    static char text[(64 << 10) + 1]; /* the host writes no more */
    const char *resources = text, *announced;
    FILE *file = fopen(path, "re");

    if (!file)
        return cores;
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    announced = containerhost_value(resources, "announced");
    if (announced && *announced == '{')
        resources = announced;
    host->generation = containerhost_number(containerhost_value(resources, "generation"), host->generation);
    return containerhost_number(containerhost_value(containerhost_value(resources, "cpus"), "count"), cores);
}

static inline int containerhost_poll(struct containerhost *host)
{
    const char *told = getenv("CONTAINERHOST_GENERATION");
    const struct stat before = host->file;
    const long allowed_before = host->allowed;
    const int first = host->looked == 0;
    struct timespec now;
    cpu_set_t allowed;
    char path[4096];
    long count;

    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    if (!first && now.tv_sec * 50 + now.tv_nsec / 20000000 == host->looked)
        return 0;
    host->looked = now.tv_sec * 50 + now.tv_nsec / 20000000;
    if (first)
        host->generation = told ? atol(told) : -1;
    containerhost_path(path, sizeof path, "resources.json");
    if (stat(path, &host->file))
        memset(&host->file, 0, sizeof host->file);
    host->allowed = sched_getaffinity(0, sizeof allowed, &allowed) ? 1024 : CPU_COUNT(&allowed);
    if (!first && host->allowed == allowed_before && host->file.st_ino == before.st_ino
        && host->file.st_mtim.tv_sec == before.st_mtim.tv_sec && host->file.st_mtim.tv_nsec == before.st_mtim.tv_nsec)
        return 0;
    count = containerhost_read(host, path, host->allowed);
    return count < 1 ? 1 : count < host->allowed ? (int)count : (int)host->allowed;
}

/* Say that the program can live with what is announced, or knows what it has. Return 0, or -1 with errno. */
static inline int containerhost_acknowledge(const struct containerhost *host)
{
    char path[4096], unfinished[4096];
    FILE *file;

    if (host->generation < 0)
        return 0; /* the host has told none */
    containerhost_path(path, sizeof path, "");
    mkdir(path, 0755);
    containerhost_path(path, sizeof path, "ack.json");
    containerhost_path(unfinished, sizeof unfinished, "ack.json.new");
    file = fopen(unfinished, "we");
    if (!file || fprintf(file, "{\"generation\": %ld}", host->generation) < 0) {
        if (file)
            fclose(file);
        return -1;
    }
    return fclose(file) || rename(unfinished, path) ? -1 : 0;
}
#endif
