"""Files that are replaced whole: a reader sees the old one or the new one, never half of one."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def cache_folder() -> Path:
    """Where this user's computer keeps files that can be made again, for xlperf.

    The client that spreadsheet hosts run has the same function of its own, as it imports nothing of xlperf.
    """
    home = Path.home()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "xlperf" / "cache"
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "xlperf"
    chosen = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (chosen if chosen.is_absolute() else home / ".cache") / "xlperf"


@contextmanager
def replaced(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary file beside ``path`` to write, and put it in its place when the block ends well.

    The temporary file keeps the suffix of ``path`` and is flushed to disk before it takes the name. When the block
    raises (an error, Ctrl-C) it is removed and the old file stands as it was.

    Parameters
    ----------
    path : path-like
        File to write or to replace; a link is followed, so that it stays a link.

    Yields
    ------
    Path
        Where to write.

    Raises
    ------
    OSError
        Naming ``path``, where the folder cannot be written or the disk is full.
    """
    import tempfile

    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder; a file is meant", str(path))
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.stem}-", suffix=target.suffix, dir=target.parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as stream:
            os.fsync(stream.fileno())
        temporary.chmod(_mode(target))
        os.replace(temporary, target)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and (error.filename == name or (error.filename is None and error.errno in _FULL)):
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def _mode(target: Path) -> int:
    """Permissions of the file that is replaced, or those that a new file gets."""
    with suppress(FileNotFoundError):
        return target.stat().st_mode & 0o7777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
