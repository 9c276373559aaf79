"""Atomic replacement of files, locks, files of the cache, and clean-up after killed commands.

A reader sees the old file or the new file, never a half. A writer locks its temporary file
``.xlperf-<16 hex digits>.part.csv`` beside the target; the next command that writes to the folder removes temporary
files without a lock. A lock ends with its process.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

# neither on Windows, which protects open files, nor in Pyodide, which has one process
fcntl = import_module("fcntl") if find_spec("fcntl") else None

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_PART = re.compile(r"\.xlperf-[0-9a-f]{16}\.part(\.[^.]*)?")
_SCRATCH = re.compile(r"xlperf-[0-9a-f]{16}\.scratch")
_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket"}


def cache_folder() -> Path:
    """Cache folder of this user, unusable without a home folder; the client inside hosts has a copy of this."""
    try:
        home = Path.home()
    except RuntimeError:  # neither HOME nor an entry in the list of users
        home = Path(os.devnull)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "xlperf" / "cache"
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "xlperf"
    chosen = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (chosen if chosen.is_absolute() else home / ".cache") / "xlperf"


def stored(path: Path) -> BinaryIO:
    """A file of the cache, open for reading; OSError if there is no regular file of this name."""
    stream = os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)), "rb")
    if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        return stream
    stream.close()
    raise OSError(errno.EINVAL, "is no file", str(path))


def store(path: Path, content: bytes) -> None:
    """Write a file of the cache, private to its owner; OSError if it cannot be written."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    for folder in {path.parent, cache_folder()} & {path.parent, *path.parents}:
        if stat.S_IMODE(folder.stat().st_mode) & 0o077:  # made by an older xlperf, or as a parent folder
            folder.chmod(0o700)
    with replaced(path, private=True) as temporary:
        temporary.write_bytes(content)


def irreplaceable(path: str | os.PathLike[str]) -> str:
    """Reason why a path cannot be replaced by a file, blank if it can be; links are followed.

    >>> irreplaceable(os.devnull) != "", irreplaceable(__file__)
    (True, '')
    """
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"cannot be written: {(error.strerror or str(error)).lower()}"
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFDIR:
        return "is a folder; a file is meant"
    if kind != stat.S_IFREG:
        return f"is {_KINDS.get(kind, 'no file')}; give the name of a regular file"
    target = os.path.realpath(path)
    if not (os.path.exists(target) and os.path.samefile(path, target)):  # such as /proc/self/fd/1
        return "is an open file without a name; give the name of a regular file"
    return ""


@contextmanager
def replaced(path: str | os.PathLike[str], private: bool = False) -> Iterator[Path]:
    """Yield a temporary file beside ``path``, flush it and rename it to ``path`` when the block succeeds. The new file
    gets owner, group and permissions of the old file; ``private`` files are for their owner alone and are not flushed.
    If the block raises (an error, Ctrl-C), the temporary file is removed and the old file is unchanged.
    """
    target = Path(os.path.realpath(path))
    problem = irreplaceable(path)
    if problem:
        raise OSError(errno.EINVAL, problem, str(path))
    _remove_abandoned(target.parent, _PART)
    try:
        descriptor, temporary = _new_part(target)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    name = str(temporary)
    try:
        mode = _given_to_owner(temporary, target, str(path))
        yield temporary
        if private:
            mode = 0o600
        else:
            with temporary.open("rb+") as stream:
                os.fsync(stream.fileno())
        if mode is not None:
            temporary.chmod(mode)
        if sys.platform == "win32":
            os.close(descriptor)
            descriptor = -1
        os.replace(temporary, target)
    except BaseException as error:
        if sys.platform == "win32" and descriptor >= 0:
            os.close(descriptor)
            descriptor = -1
        with suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and (error.filename == name or (error.filename is None and error.errno in _FULL)):
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise
    finally:
        if descriptor >= 0:
            os.close(descriptor)


@contextmanager
def held(path: Path, output: str) -> Iterator[None]:
    """Lock a file while the block runs; an OSError about ``output`` names another process with the lock."""
    descriptor = _taken(path)
    if descriptor is None:
        holder = "another process"
        with suppress(OSError), stored(path) as stream:
            holder = stream.read(100).decode("ascii", "replace") or holder
        words = f"is being written by {holder}"
        raise OSError(errno.EBUSY, f"{words}; wait until it ends, or give the output another name", output)
    try:
        os.write(descriptor, f"process {os.getpid()} since {time.strftime('%Y-%m-%d %H:%M:%S')}".encode())
        yield
    finally:
        if sys.platform == "win32":
            os.close(descriptor)
        with suppress(OSError):
            path.unlink()
        if sys.platform != "win32":
            os.close(descriptor)


def _taken(path: Path) -> int | None:
    """Descriptor of an empty lock file of this process; None if another process has the lock."""
    if fcntl is None:  # on Windows nobody can remove a file that is open
        path.parent.mkdir(exist_ok=True)
        try:
            path.unlink(missing_ok=True)
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        except (PermissionError, FileExistsError):
            return None
    while True:
        path.parent.mkdir(exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        except FileNotFoundError:  # its holder has just removed the folder
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:  # a file system without locks
            pass
        if _same(descriptor, path):
            os.ftruncate(descriptor, 0)
            return descriptor
        os.close(descriptor)  # its holder has just removed the file


def clear_scratch() -> Path:
    """Remove the temporary folders of killed processes; the folder that they lie in."""
    import tempfile

    base = Path(tempfile.gettempdir())
    _remove_abandoned(base, _SCRATCH)
    return base


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A temporary folder, removed when the block ends, or by :func:`clear_scratch` if its owner was killed."""
    base = clear_scratch()
    while True:
        folder = base / f"xlperf-{os.urandom(8).hex()}.scratch"
        folder.mkdir(mode=0o700)
        descriptor = os.open(folder, os.O_RDONLY) if fcntl is not None else -1
        if descriptor < 0 or _held(descriptor, folder):
            break
        os.close(descriptor)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if descriptor >= 0:
            os.close(descriptor)


def _new_part(target: Path) -> tuple[int, Path]:
    """An empty file beside a target, open and locked; private to its owner if it replaces a file."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    while True:
        part = target.parent / f".xlperf-{os.urandom(8).hex()}.part{target.suffix}"
        descriptor = os.open(part, flags, 0o600 if target.exists() else 0o666)
        mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
        if mode & 0o600 != 0o600:  # a mask without owner access, or a system without modes
            os.chmod(part, mode | 0o600)
        if _held(descriptor, part):
            return descriptor, part
        os.close(descriptor)


def _held(descriptor: int, path: Path) -> bool:
    """Lock a new file; False if another process removed it as abandoned first."""
    if fcntl is None:
        return True
    with suppress(OSError):  # a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    return _same(descriptor, path)


def _same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except OSError:
        return False


def _given_to_owner(temporary: Path, target: Path, path: str) -> int | None:
    """Give a temporary file the owner and group of its target; the permissions of the target, None without one."""
    try:
        old = target.stat()
    except FileNotFoundError:
        return None
    mode = stat.S_IMODE(old.st_mode)
    new = temporary.stat()
    if sys.platform != "win32" and (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
        try:
            os.chown(temporary, old.st_uid, old.st_gid)
        except OSError:
            if old.st_uid != new.st_uid:
                problem = "belongs to another user, who would no longer own it; give another name"
                raise PermissionError(errno.EPERM, problem, path) from None
            mode = (mode & 0o1707) | (mode & 0o007) << 3
    return mode


def _remove_abandoned(folder: Path, names: re.Pattern[str]) -> None:
    """Remove temporary files with such a name and without a lock."""
    if fcntl is None and sys.platform != "win32":
        return
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if "xlperf-" in entry.name and names.fullmatch(entry.name):
                with suppress(OSError):
                    _remove_if_abandoned(Path(entry.path))


def _remove_if_abandoned(path: Path) -> None:
    if fcntl is None:
        path.unlink()  # refused while its writer has it open
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _same(descriptor, path):
            return
        if stat.S_ISREG(status.st_mode):
            path.unlink()
        elif stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(descriptor)
