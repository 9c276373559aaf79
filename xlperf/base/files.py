"""Files that are replaced whole, locks, the files of the cache, and what a killed command leaves behind.

A reader sees the old file or the new one, never half of one. What is not finished yet lies beside the file under a
hidden name, ``.xlperf-<16 hex digits>.part.csv``, which its writer holds a lock on as long as it lives; the next
command that writes to the folder removes those that nobody holds. A lock ends with the process that holds it.
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

# not on Windows, where an open file cannot be removed anyway, nor in Pyodide, where there is one process
fcntl = import_module("fcntl") if find_spec("fcntl") else None

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_PART = re.compile(r"\.xlperf-[0-9a-f]{16}\.part(\.[^.]*)?")
_SCRATCH = re.compile(r"xlperf-[0-9a-f]{16}\.scratch")
_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket"}


def cache_folder() -> Path:
    """Where this user's computer keeps files that can be made again, for xlperf.

    Without a home folder it is below the null device, where no file can be made: every writer does without then. The
    client that spreadsheet hosts run has the same function of its own, as it imports nothing of xlperf.
    """
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
    """A file of the cache, open for reading.

    Raises OSError if there is none, or if something else has its name: a pipe is not waited for.
    """
    stream = os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)), "rb")
    if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        return stream
    stream.close()
    raise OSError(errno.EINVAL, "is no file", str(path))


def store(path: Path, content: bytes) -> None:
    """Write a file of the cache that its owner alone may read, in a folder of his own.

    Raises OSError where it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    for folder in {path.parent, cache_folder()} & {path.parent, *path.parents}:
        if stat.S_IMODE(folder.stat().st_mode) & 0o077:  # made by an older xlperf, or on the way to a folder within
            folder.chmod(0o700)
    with replaced(path, private=True) as temporary:
        temporary.write_bytes(content)


def irreplaceable(path: str | os.PathLike[str]) -> str:
    """Why what stands at a path cannot be replaced by a file, in words; blank where it can, or where nothing stands.

    Links are followed: a link to a device is a device.

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
    """Give a temporary file beside ``path`` to write, and put it in its place when the block ends well.

    The temporary file keeps the suffix of ``path`` and is flushed to disk before it takes the name. It has the owner,
    the group and the permissions of the file that it replaces. When the block raises (an error, Ctrl-C) it is removed
    and the old file stands as it was.
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
    """Hold a file as a lock while the block runs; a lock whose process has died holds nobody up.

    ``path``: the lock, in a folder that is made if there is none. ``output``: what the lock protects, for the message.
    Raises OSError if another process holds it: which one, and since when.
    """
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
    """Descriptor of an empty lock file that this process holds; None if another process does."""
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


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder in the temporary folder, removed when the block ends, or by the next one where its owner was killed."""
    import tempfile

    base = Path(tempfile.gettempdir())
    _remove_abandoned(base, _SCRATCH)
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
    """An empty file beside a target, open and locked; only its owner may read it where it replaces another one."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    while True:
        part = target.parent / f".xlperf-{os.urandom(8).hex()}.part{target.suffix}"
        descriptor = os.open(part, flags, 0o600 if target.exists() else 0o666)
        mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
        if mode & 0o600 != 0o600:  # a mask that leaves a file to nobody, or a system that has none and says 0o777
            os.chmod(part, mode | 0o600)
        if _held(descriptor, part):
            return descriptor, part
        os.close(descriptor)


def _held(descriptor: int, path: Path) -> bool:
    """Lock a new file; False where another process has removed it as abandoned before that."""
    if fcntl is None:
        return True
    with suppress(OSError):  # a file system without locks: nobody can take it for abandoned either
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    return _same(descriptor, path)


def _same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except OSError:
        return False


def _given_to_owner(temporary: Path, target: Path, path: str) -> int | None:
    """Give a file the owner and group of the one that it replaces; its permissions then, None where it replaces none.

    Where the group cannot be kept, its members are treated as everybody else is.
    """
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
    """Remove temporary files of killed commands: those with such a name that no process locks."""
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
