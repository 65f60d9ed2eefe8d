# SPDX-License-Identifier: Apache-2.0
"""The library of the op KernelFusionCall (native/tf_op.cpp), compiled at the first call."""

import ctypes
import functools
import pathlib
import threading
from typing import Any

import tensorflow as tf
from kernel_fusion import _cxx_library, _resolver

FILE = pathlib.Path(__file__).resolve().parent / "native/tf_op.cpp"


def _source() -> _cxx_library.Source:
    return _cxx_library.Source(
        "kernel_fusion_tensorflow",
        FILE,
        f"{tf.version.VERSION} {tf.version.GIT_VERSION}",
        tf.sysconfig.get_compile_flags(),
        tf.sysconfig.get_link_flags(),
    )


@functools.cache
def _loaded() -> Any:
    path = str(_cxx_library.find(_source()))
    module = tf.load_op_library(path)
    ctypes.CDLL(path).kf_tf_set_resolver(_resolver.CALLBACK)
    return module.kernel_fusion_call


def register_op() -> None:
    """Registers the op with TensorFlow, as the first call of a function does.

    Call it before tf.saved_model.load in a program that has called no function.

    Raises:
        RuntimeError: there is no C++ compiler, it failed, or KF_OFFLINE forbids it.
    """
    op()


_lock = threading.Lock()


def op() -> Any:
    """Returns the Python function of the op; the first call compiles and loads the library."""
    with _lock:
        return _loaded()
