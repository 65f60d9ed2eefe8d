# SPDX-License-Identifier: Apache-2.0
"""Libraries compressed with xz, as in a wheel for many machines.

xz needs less than half of the bytes of a wheel's deflate (bench/NOTES/python.md). The first process
that uses a library unpacks it into the user's cache directory, where later processes find it.
"""

import atexit
import hashlib
import pathlib
import shutil
import tempfile

from kernel_fusion import _files

SUFFIX = ".xz"


def _beside(path: pathlib.Path) -> pathlib.Path:
    return path.with_name(path.name + SUFFIX)


def compress(path: pathlib.Path) -> None:
    """Replaces a library by its compressed file."""
    import lzma

    _beside(path).write_bytes(lzma.compress(path.read_bytes(), preset=9 | lzma.PRESET_EXTREME))
    path.unlink()


def exists(path: pathlib.Path) -> bool:
    return path.exists() or _beside(path).exists()


def find(path: pathlib.Path) -> pathlib.Path:
    """Returns the path a library can be loaded from, after unpacking it if need be."""
    return path if path.exists() or not _beside(path).exists() else _unpacked(path)


def _unpacked(path: pathlib.Path) -> pathlib.Path:
    data = _beside(path).read_bytes()
    # Without a writable cache directory, each process unpacks into a temporary one.
    try:
        folder = _files.cache() / f"{path.stem}-{hashlib.sha256(data).hexdigest()[:24]}"
        if not (folder / path.name).exists():
            _files.write(folder / path.name, _decompressed(path, data))
        return folder / path.name
    except OSError:
        own = pathlib.Path(tempfile.mkdtemp(prefix="kernel_fusion-"))
        atexit.register(shutil.rmtree, own, ignore_errors=True)
        _files.write(own / path.name, _decompressed(path, data))
        return own / path.name


def _decompressed(path: pathlib.Path, data: bytes) -> bytes:
    try:
        import lzma
    except ImportError:
        raise ImportError(
            f"{_beside(path)} is compressed, and this Python was built without lzma: run pip "
            f"install . in a checkout of kf, "
            "which compiles uncompressed libraries"
        ) from None
    return lzma.decompress(data)
