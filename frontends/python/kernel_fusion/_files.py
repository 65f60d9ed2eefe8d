# SPDX-License-Identifier: Apache-2.0
"""Cache files made at run time, safe against concurrent processes."""

import contextlib
import os
import pathlib
import threading
from collections.abc import Iterator


def cache() -> pathlib.Path:
    """Returns the directory of files made at run time: KF_CACHE_DIR, or the user's cache
    directory.
    """
    own = os.environ.get("KF_CACHE_DIR")
    if own:
        # ctypes looks a library without a folder up elsewhere.
        return pathlib.Path(own).absolute()
    # The system does not know the user.
    try:
        return (
            pathlib.Path(
                os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
            ).absolute()
            / "kernel_fusion"
        )
    except RuntimeError:
        raise OSError("no home directory was found for the cache: set KF_CACHE_DIR") from None


def offline() -> bool:
    """True if KF_OFFLINE forbids compilation."""
    return os.environ.get("KF_OFFLINE", "0") not in ("", "0")


@contextlib.contextmanager
def locked(path: pathlib.Path) -> Iterator[None]:
    """Holds the lock of a file that is about to be made, so that concurrent processes make it once.

    A process that ends releases its lock. On a file system without locks several processes make
    the file, which is correct, since each renames a temporary one.

    Raises:
        OSError: the directory is not writable.
    """
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f".{path.name}.lock")
    with lock.open("wb") as held:
        with contextlib.suppress(OSError):
            fcntl.flock(held, fcntl.LOCK_EX)
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def write(path: pathlib.Path, data: bytes) -> None:
    """Writes a temporary file, then renames it, so that readers see complete files."""
    new = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        new.write_bytes(data)
        os.replace(new, path)
    finally:
        with contextlib.suppress(OSError):
            new.unlink()
