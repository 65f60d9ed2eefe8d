# SPDX-License-Identifier: Apache-2.0
"""Files that are made at run time: where they are kept, and how, since several processes may make one at the same time."""

import contextlib
import os
import pathlib
import threading


def cache() -> pathlib.Path:
    """Where files are kept that are made at run time: KF_CACHE_DIR, or the user's cache directory."""
    own = os.environ.get("KF_CACHE_DIR")
    if own:
        return pathlib.Path(
            own
        ).absolute()  # a library's name without a folder would be looked for elsewhere
    try:
        return (
            pathlib.Path(
                os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
            ).absolute()
            / "kernel_fusion"
        )
    except RuntimeError:  # of a user whom the system does not know
        raise OSError(
            "there is no home directory for what is made at run time: KF_CACHE_DIR chooses another"
        ) from None


def offline() -> bool:
    """Whether nothing may be compiled: KF_OFFLINE."""
    return os.environ.get("KF_OFFLINE", "0") not in ("", "0")


def write(path: pathlib.Path, data: bytes) -> None:
    """Into a file beside it, which then gets its name: whoever finds it finds all of it."""
    new = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        new.write_bytes(data)
        os.replace(new, path)
    finally:
        with contextlib.suppress(OSError):
            new.unlink()
