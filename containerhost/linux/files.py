# SPDX-License-Identifier: Apache-2.0
"""Operate on files safely: atomic writes, and access below directories that other users can write.

Names are relative to an open directory and never resolved as paths, so that replacing a component cannot redirect an
operation. All errors are ``OSError``; those of this module (a name with a slash, a file of the wrong type or owner)
have ``errno.EPERM``.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

UNFINISHED = ".unfinished-"  # prefix of temporary files; :meth:`Directory.names` omits them
LIMIT = 1 << 20  # bytes; maximum result of :meth:`Directory.read`


def atomic_write(path: str | Path, content: bytes, mode: int = 0o600, owner: tuple[int, int] | None = None,
                 unfinished: str | None = None) -> None:
    """Create or replace a file atomically and durably: after a crash it has the old content or the new.

    The parent directory must be trusted: links among its components are followed.

    :param mode: exact, whatever the umask; the temporary file has 0600
    :param owner: user and group id; None keeps the process's own
    :param unfinished: as for :func:`replacing`; None for a unique name
    """
    path = Path(path)
    with Directory(path.parent) as directory:
        directory.write(path.name, content, mode, owner, unfinished)


def write_output(path: Path, content: bytes) -> None:
    """Write a file that an operator named: atomically, but in place through a link or to a device (``/dev/stdout``)."""
    if is_replaceable(path):
        atomic_write(path, content, 0o644)
    else:
        path.write_bytes(content)


def is_replaceable(path: Path) -> bool:
    """Return whether a path is free or a regular file, which may be replaced or removed."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return True


@contextlib.contextmanager
def replacing(path: Path, unfinished: str | None = None) -> Iterator[Path]:
    """Yield the path of a new file that atomically becomes ``path`` when the block ends without an error.

    For output of programs; :func:`atomic_write` is for short content.

    The parent directory must not be writable by other users.

    :param unfinished: its name until then; a file of that name left by a killed process is removed, so only one
        process at a time may do this. None for a unique name
    """
    new = path.with_name(unfinished or f".{path.name}.{os.getpid()}")
    new.unlink(missing_ok=True)
    try:
        yield new
        sync(new)
        os.replace(new, path)
        sync(path.parent)
    finally:
        new.unlink(missing_ok=True)


def sync(path: str | Path) -> None:
    """Wait until a file's content, or a directory's list of names, is on the disk."""
    with closing(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as fd:
        os.fsync(fd)


def write_attribute(path: str, text: str) -> None:
    """Write to a file of the kernel, without creating a missing one."""
    with closing(os.open(path, os.O_WRONLY | os.O_CLOEXEC)) as fd:
        os.write(fd, text.encode())


@contextlib.contextmanager
def closing(fd: int) -> Iterator[int]:
    """Close an fd when the block ends."""
    try:
        yield fd
    finally:
        os.close(fd)


class Directory:
    """Hold an open directory, as a context manager that closes it.

    :param path: a trusted path: links are followed. Directories that other users can write are opened by
        :meth:`child`
    :param owner: refuse the directory unless it belongs to this user id and is not writable by other users
    :ivar fd: open for reading, closed on exec
    :ivar path: for messages only
    """

    def __init__(self, path: str | Path, owner: int | None = None) -> None:
        self.path = Path(path)
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        found = os.fstat(self.fd)
        if owner is not None and (found.st_uid != owner or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
            self.close()
            raise _refused(self.path, f"belongs to user {found.st_uid} with mode {stat.S_IMODE(found.st_mode):o}; it "
                                      f"must belong to user {owner} and be writable by no other")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        os.close(self.fd)

    @property
    def owner(self) -> tuple[int, int]:
        """Return the user and group ids for files that root creates for the service that owns the directory."""
        found = os.fstat(self.fd)
        return found.st_uid, found.st_gid

    def child(self, *names: str, create: bool = False, mode: int = 0o700) -> "Directory":
        """Open a directory below, component by component, without following a link.

        :param create: create missing components, each with this exact mode
        :raises OSError: NotADirectoryError for a link or a file, FileNotFoundError without ``create``
        """
        found: Directory | None = None
        for name in names:
            parent = found or self
            try:
                found = parent._child(name, create, mode)
            finally:
                if parent is not self:
                    parent.close()
        if found is None:
            raise _refused(self.path, "needs the name of a directory below it")
        return found

    def _child(self, name: str, create: bool, mode: int) -> "Directory":
        self._checked(name)
        made = False
        if create:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=self.fd)
                made = True
        child = object.__new__(type(self))
        child.path = self.path / name
        child.fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.fd)
        if made:
            os.fchmod(child.fd, mode)
            os.fsync(self.fd)
        return child

    def open(self, name: str, flags: int = os.O_RDONLY, mode: int = 0o600, owner: int | None = None) -> int:
        """Open a regular file without following a link or waiting at a FIFO.

        :param mode: of a file that ``O_CREAT`` creates, minus the umask
        :param owner: refuse the file unless it belongs to this user id
        :returns: an fd, which the caller closes
        :raises OSError: ELOOP for a link; EPERM, ENXIO or EISDIR if it is not a regular file, or has the wrong owner
        """
        fd = os.open(self._checked(name), flags & ~os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode,
                     dir_fd=self.fd)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise _refused(self.path / name, "is not a regular file")
            if owner is not None and found.st_uid != owner:
                raise _refused(self.path / name, f"belongs to user {found.st_uid}, not {owner}")
            if flags & os.O_TRUNC:
                os.ftruncate(fd, 0)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def read(self, name: str, limit: int = LIMIT, owner: int | None = None) -> bytes:
        """Read a regular file.

        :param limit: bytes
        :raises OSError: as :meth:`open`; EFBIG for a larger file
        """
        with open(self.open(name, owner=owner), "rb") as file:
            content = file.read(limit + 1)
        if len(content) > limit:
            raise OSError(errno.EFBIG, f"has more than the {limit} bytes that are read of it", str(self.path / name))
        return content

    def write(self, name: str, content: bytes, mode: int = 0o600, owner: tuple[int, int] | None = None,
              unfinished: str | None = None) -> None:
        """Create or replace a file as :func:`atomic_write` does; a link of that name is replaced, not followed."""
        self.write_all({name: content}, mode, owner, unfinished)

    def write_all(self, contents: Mapping[str, bytes], mode: int = 0o600, owner: tuple[int, int] | None = None,
                  unfinished: str | None = None, *, durable: bool = True) -> None:
        """Create or replace files one after another, each as :meth:`write` does; then all are on the disk.

        :param durable: False for what may be lost, or empty, after a crash of the host
        """
        for name, content in contents.items():
            with self._replacing(name, unfinished, durable) as fd:
                with open(fd, "wb", closefd=False) as file:
                    file.write(content)
                if owner is not None:
                    os.fchown(fd, *owner)
                os.fchmod(fd, mode)
        if durable:
            os.fsync(self.fd)

    @contextlib.contextmanager
    def replacing(self, name: str, unfinished: str | None = None) -> Iterator[int]:
        """Yield the fd of a new file, mode 0600, that becomes ``name`` when the block ends without an error.

        It is then complete and durable. A link of that name is replaced, not followed.

        :param unfinished: as for the function :func:`replacing`
        """
        with self._replacing(name, unfinished, True) as fd:
            yield fd
        os.fsync(self.fd)

    @contextlib.contextmanager
    def _replacing(self, name: str, unfinished: str | None, durable: bool) -> Iterator[int]:
        """Replace as :meth:`replacing` does, but for the directory, which the caller syncs."""
        if unfinished is not None:
            self.unlink(unfinished)
        new = unfinished or UNFINISHED + os.urandom(8).hex()
        fd = self.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            yield fd
            if durable:
                os.fsync(fd)
            os.rename(new, self._checked(name), src_dir_fd=self.fd, dst_dir_fd=self.fd)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(new, dir_fd=self.fd)
            raise
        finally:
            os.close(fd)

    def create(self, name: str, owner: tuple[int, int] | None = None) -> None:
        """Create an empty file with mode 0600 and its owner from the beginning. Idempotent."""
        unfinished = UNFINISHED + os.urandom(8).hex()
        fd = self.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            if owner is not None:
                os.fchown(fd, *owner)
            with contextlib.suppress(FileExistsError):
                os.link(unfinished, self._checked(name), src_dir_fd=self.fd, dst_dir_fd=self.fd)
        finally:
            os.close(fd)
            os.unlink(unfinished, dir_fd=self.fd)

    def has(self, name: str) -> bool:
        try:
            self.stat(name)
        except FileNotFoundError:
            return False
        return True

    def rename(self, old: str, new: str) -> None:
        """Rename within the directory, replacing ``new``, durably."""
        os.rename(self._checked(old), self._checked(new), src_dir_fd=self.fd, dst_dir_fd=self.fd)
        os.fsync(self.fd)

    def unlink(self, name: str) -> None:
        """Remove a file. Idempotent: does nothing if the file is absent."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._checked(name), dir_fd=self.fd)
            os.fsync(self.fd)

    def stat(self, name: str) -> os.stat_result:
        """Return the status of an entry, not following a link."""
        return os.stat(self._checked(name), dir_fd=self.fd, follow_symlinks=False)

    def names(self) -> list[str]:
        """Return the sorted entries, without temporary files of pending or killed writes."""
        return sorted(name for name in os.listdir(self.fd) if not name.startswith(UNFINISHED))

    def _checked(self, name: str) -> str:
        if not name or "/" in name or "\0" in name or name in (".", ".."):
            raise _refused(self.path, f"has no entry {name!r}: that is not a file name")
        return name


def _refused(path: Any, reason: str) -> OSError:
    return PermissionError(errno.EPERM, reason, str(path))
