# SPDX-License-Identifier: Apache-2.0
"""Builds the launchers that a test or a benchmark needs into one shared library and calls them
through ctypes."""

import collections
import concurrent.futures
import contextlib
import ctypes
import fcntl
import functools
import hashlib
import os
import pathlib
import pickle
import re
import shutil
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "gen"))

from kfgen.entries import spec as specs  # noqa: E402
from kfgen.interfaces import manifest as manifests  # noqa: E402
from kfgen.render.render import Renderer, Selection, write_all  # noqa: E402

CTYPES = {
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "size_t": ctypes.c_size_t,
    "kf_activation_t": ctypes.c_int32,
}
SIZE = {"f32": 4, "f16": 2, "bf16": 2, "f64": 8, "i32": 4, "i64": 8, "u8": 1}
CPU_FLAGS = ("-O3", "-march=native", "-fopenmp")
CUDA_FLAGS = ("-O3", "-arch=sm_90")
OBJECTS = ROOT / "build/tests/objects"
MANY = 40  # functions per file
# Minimum functions per file for a host compiler. Headers are half of a file of one op: the
# emulation needs 47 s for 98 files and 27 s for 25.
FEW = 12


@functools.cache
def _generator():
    """Returns a digest of the generator's sources, which determine the headers and the manifest."""
    digest = hashlib.sha256()
    sources = [
        p
        for d in ("gen", "templates")
        for p in (ROOT / d).rglob("*")
        if p.suffix in (".py", ".toml", ".j2")
    ]
    for path in sorted([*sources, ROOT / "include/kf/core/version.h"]):
        digest.update(
            f"{path.relative_to(ROOT)} {len(path.read_bytes())}\n".encode() + path.read_bytes()
        )
    return digest.hexdigest()[:16]


def kfgen(*arguments):
    """Runs the generator; returns the finished process, with its output as text."""
    command = [sys.executable, ROOT / "gen/bin/kfgen", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _old(paths):
    """Returns the paths that no test run can be using any more: a day without change."""
    return [path for path in paths if time.time() - path.stat().st_mtime > 86400]


@functools.cache
def _own_manifest():
    """Returns kf's manifest, built once per content of the generator and cached on disk.

    Building it takes as long as rendering, and every process needs it.
    """
    path = ROOT / "build/tests/manifests" / f"{_generator()}.pickle"
    with locked(path.parent):
        if path.exists():
            return pickle.loads(path.read_bytes())
        for old in _old(path.parent.glob("*.pickle")):
            old.unlink()
        found = manifests.build(Selection(specs.load()))
        temporary = path.with_suffix(".tmp")
        temporary.write_bytes(pickle.dumps(found))
        temporary.replace(path)
        return found


def manifest(specs_=(), together=False):
    """Returns the manifest. together: user specs as part of kf; otherwise as `kfgen render --spec`
    writes them beside installed headers."""
    if not specs_:
        return _own_manifest()
    return manifests.build(
        Selection(specs.load(specs_)), None if together else specs.user_stem(specs_)
    )


def of_tensors():
    """Returns kf's functions of single tensors. Functions over lists have tests of their own."""
    return [f for f in manifest()["functions"] if not over_lists(f)]


def of_lists():
    """Returns kf's functions over lists of tensors."""
    return [f for f in manifest()["functions"] if over_lists(f)]


def over_lists(f):
    """True if a function has lists of tensors among its arguments."""
    return any(a.get("list") for a in f["arguments"])


def write(selection, out, user=None):
    """Renders a selection into the folder `out` and returns the functions. user: stem of user
    specs; only their entries are rendered."""
    write_all(Renderer(selection, user).render(), out, [])
    return manifests.build(selection, user)["functions"]


@contextlib.contextmanager
def locked(folder):
    """Holds a folder's lock: test workers may build the same thing at the same time."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@functools.cache
def rendered():
    """Returns the folder of kf's generated headers, rendered once per content of the generator."""
    folder = ROOT / "build/tests/headers"
    out = folder / _generator()
    with locked(folder):
        if not (out / "whole").exists():
            for old in _old(folder.glob("*/whole")):
                shutil.rmtree(old.parent)
            write_all(Renderer(Selection(specs.load())).render(), out, [])
            (out / "whole").touch()
    return out


def render(build_dir, spec_files=(), together=False):
    """Returns the include directories of kf: core, generated headers, and the headers of user
    specs, which are rendered below build_dir."""
    if not spec_files:
        return [ROOT / "include", rendered()]
    if together:
        write(Selection(specs.load(spec_files)), pathlib.Path(build_dir) / "include")
        return [ROOT / "include", pathlib.Path(build_dir) / "include"]
    users = pathlib.Path(build_dir) / "include_user"
    write(Selection(specs.load(spec_files)), users, specs.user_stem(spec_files))
    return [ROOT / "include", rendered(), users]


def files():
    """Returns {path: text} of kf's own generated files."""
    return {
        p.relative_to(rendered()).as_posix(): p.read_text()
        for p in sorted((rendered() / "kf").rglob("*"))
        if p.is_file()
    }


def on(backend, functions):
    """Returns the functions that a backend (cpu, cuda or emu) has."""
    word = "c" if backend == "cpu" else "cuda"
    return [f for f in functions if word in f["backends"]]


def has_gpu():
    """True if a CUDA device is available."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return (
        cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
    )


def capability():
    """Returns the compute capability of the first CUDA device."""
    cuda, numbers = ctypes.CDLL("libcuda.so.1"), [ctypes.c_int(), ctypes.c_int()]
    for number, attribute in zip(
        numbers, (75, 76)
    ):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
        if cuda.cuDeviceGetAttribute(ctypes.byref(number), attribute, 0) != 0:
            return None
    return tuple(number.value for number in numbers)


def _wrapper(f, backend):
    """Returns a function with C linkage around one launcher. It has another name, since the
    launcher's would win overload resolution."""
    cuda = backend != "cpu"
    name = f["name"] if cuda else f["cpu_name"]
    signature = f["signature" if cuda else "cpu_signature"].replace(
        f"kf_result_t {name}(", f"int kft_{name}(", 1
    )
    if cuda:
        signature = signature.replace("cudaStream_t stream", "void *stream")
    words = [a["name"] for a in f["arguments"]] + (["(cudaStream_t)stream"] if cuda else [])
    return f"{signature}\n{{\n    return (int){name}({', '.join(words)});\n}}\n"


def _workspace_wrapper(f, backend):
    name = f["cpu_workspace" if backend == "cpu" else "workspace"]
    types = {a["name"]: a["ctype"] for a in f["arguments"] if "ctype" in a}
    parameters = ", ".join(f"{types[s]} {s}" for s in f["workspace_arguments"])
    passed = ", ".join(f["workspace_arguments"])
    return f"size_t kft_{name}({parameters})\n{{\n    return {name}({passed});\n}}\n"


def shape_struct(f, values):
    """Returns the shape struct of a call, or None if its sizes are arguments. values: {field:
    value}; fields without one are 0."""
    for a in f["arguments"]:
        if a["role"] == "shape":
            fields = [field["name"] for field in a["fields"]]
            return (ctypes.c_int64 * len(fields))(*[int(values.get(n, 0)) for n in fields])
    return None


def sources(backend, functions, few=0):
    """Returns {file name: text}, one file per header so that files compile in parallel.

    A header with more than MANY functions has a file per dtypes. Files with fewer than `few`
    functions are joined within a family. emu: CUDA headers through g++.
    """
    of_header = collections.Counter(f["header"] for f in functions)
    groups = {}
    for f in functions:
        groups.setdefault(
            (f["header"], "_".join(f["dtypes"]) if of_header[f["header"]] > MANY else "all"), []
        ).append(f)
    ext, link, header = {
        "cuda": ("cu", 'extern "C" ', ".cuh"),
        "emu": ("cpp", 'extern "C" ', ".cuh"),
        "cpu": ("c", "", ".h"),
    }[backend]
    first = "#include <cuda_runtime.h>\n" if backend == "emu" else ""
    files, last = {}, {}
    for (op, dtypes), members in groups.items():
        text = [f'{first}#include "{op}{header}"\n']
        text += [link + _wrapper(f, backend) for f in members]
        text += [
            link + w
            for w in dict.fromkeys(
                _workspace_wrapper(f, backend) for f in members if f["workspace"]
            )
        ]
        folder = pathlib.Path(op).parent.name
        name = f"{'any_' if folder == 'any' else ''}{pathlib.Path(op).name}_{dtypes}.{ext}"
        open_, there = last.get(members[0]["family"], ("", few))
        name, there = (open_, there) if there < few else (name, 0)
        last[members[0]["family"]] = name, there + len(members)
        files[name] = files.get(name, "") + "\n".join(text)
    details = 'extern "C" const char *kft_detail(void);\n' if link else ""
    files[f"detail.{ext}"] = (
        f'{first}#include "kf/core/result.h"\n{details}'
        "const char *kft_detail(void) { return kf_get_last_error_detail(); }\n"
        f"{link}const char *kft_string(int r) {{ return kf_get_error_string((kf_result_t)r); }}\n"
    )
    return files


def build(backend, *arguments, **options):
    """Compiles the launchers of `functions` and loads them."""
    return Lib(backend, library(backend, *arguments, **options))


INCLUDED = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', re.M)


@functools.cache
def _read(path, when):
    """Returns (digest of a file, names that it includes). when: modification time, the cache
    key."""
    text = pathlib.Path(path).read_bytes()
    return hashlib.sha256(text).hexdigest(), INCLUDED.findall(text.decode(errors="replace"))


def closure(text, include):
    """Returns {name: digest} of all headers below `include` that a text includes, ignoring
    preprocessor conditions."""
    found, left = {}, INCLUDED.findall(text)
    while left:
        name = left.pop()
        if name not in found:
            path = next(
                (p for p in (os.path.join(d, name) for d in include) if os.path.isfile(p)), None
            )
            found[name], more = _read(path, os.stat(path).st_mtime_ns) if path else ("", [])
            left += more
    return found


@functools.cache
def _version(compiler):
    return subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout


def _forced_includes(command):
    """Returns (texts of the files that the command force-includes, the command with their texts
    instead of their paths)."""
    forced = [path for word, path in zip(command, command[1:]) if word == "-include"]
    texts = [pathlib.Path(path).read_text() for path in forced]
    return texts, [c for c in command if c not in forced] + texts


def _digest(command, text, include):
    """Returns a digest of everything that determines the compiler's output for a text."""
    texts, whole = _forced_includes(command)
    seen = sorted(closure("".join([text, *texts]), include).items())
    return hashlib.sha256(repr((whole, _version(command[0]), text, seen)).encode()).hexdigest()[:24]


def _run(made):
    done = subprocess.run(made, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(made)}\n{done.stderr[-4000:]}")


def precompiled(command, text, include):
    """Precompiles the headers that `text` includes and returns flags for the command of `objects`,
    a g++ with the same flags and headers."""
    # With linker flags g++ would link.
    command = [*(str(c) for c in command if not str(c).startswith("-Wl,")), "-x", "c++-header"]
    header = OBJECTS / f"{_digest(command, text, include)}.h"
    with locked(OBJECTS):
        if not header.exists():
            made = header.with_suffix(".new.h")
            made.write_text(text)
            _run([*command, *(f"-I{d}" for d in include), str(made), "-o", f"{header}.gch"])
            made.replace(header)
    for path in (header, f"{header}.gch"):
        os.utime(path)
    return ["-include", str(header)]


def objects(command, files, include, jobs=None):
    """Compiles each {name: text} with `command` and returns the objects. An object for the same
    command, text and headers is reused."""
    OBJECTS.mkdir(parents=True, exist_ok=True)
    command = [str(c) for c in command]

    def compile_one(item):
        name, text = item
        digest = _digest(command, text, include)
        # Threads that build libraries with the same file do not share its copy.
        own = f"{digest}.{os.getpid()}.{threading.get_ident()}.{name}"
        source, out = OBJECTS / own, OBJECTS / f"{digest}.o"
        if out.exists():
            os.utime(out)
        else:
            source.write_text(text)
            _run([*command, *(f"-I{d}" for d in include), "-c", str(source), "-o", f"{source}.o"])
            os.replace(f"{source}.o", out)
            source.unlink()
        return out

    # Longest first, so that no core waits for one file at the end.
    order = sorted(files.items(), key=lambda item: -len(item[1]))
    with concurrent.futures.ThreadPoolExecutor(jobs or os.cpu_count()) as pool:
        return [*pool.map(compile_one, order)]


def forget_old_objects(days=7):
    for path in OBJECTS.glob("*"):
        if time.time() - path.stat().st_mtime > 86400 * days:
            path.unlink()


def compilation(backend, functions, build_dir, flags=None, include=None, compiler=None, extra=None):
    """Returns (command, {file name: text}, include directories) of a library, the arguments of
    `objects`."""
    flags = list(flags if flags is not None else CUDA_FLAGS if backend == "cuda" else CPU_FLAGS)
    compiler = (
        compiler or {"cuda": "nvcc", "emu": "g++", "cpu": os.environ.get("CC", "gcc")}[backend]
    )
    cuda = ["-fPIC"] if compiler == "g++" else ["-Xcompiler", "-fPIC"]
    fpic = {"cuda": cuda, "emu": ["-fPIC", "-std=c++17"], "cpu": ["-fPIC", "-std=c11"]}[backend]
    files = sources(backend, functions, 0 if compiler == "nvcc" else FEW) | (extra or {})
    return [compiler, *flags, *fpic], files, include or render(build_dir)


def library(
    backend,
    functions,
    build_dir,
    flags=None,
    jobs=None,
    include=None,
    compiler=None,
    extra=None,
    link=(),
    objects_=(),
    first="",
):
    """Builds a shared library of the launchers of `functions`, unless it exists, and returns its
    path.

    extra: further files {name: text}. link: further linker flags. objects_: further objects to
    link. first: includes that g++ precompiles for all files.
    """
    build_dir = pathlib.Path(build_dir)
    command, files, include = compilation(
        backend, functions, build_dir, flags, include, compiler, extra
    )
    more = [w for w in command if w == "-fopenmp"][:1] + [
        w for w in command[1:] if str(w).startswith(("-fsanitize", "-static-", "-Wl,"))
    ]
    with locked(build_dir):  # test workers may build the same library at the same time
        made = objects(
            [*command, *(precompiled(command, first, include) if first else [])],
            files,
            include,
            jobs,
        )
        command = [command[0], "-shared", *more, *link, *map(str, [*made, *objects_])]
        library = (
            build_dir
            / f"libkft_{backend}_{hashlib.sha256(repr(command).encode()).hexdigest()[:16]}.so"
        )
        if not library.exists():
            subprocess.run([*command, "-o", f"{library}.tmp", "-lm"], check=True)
            os.replace(f"{library}.tmp", library)
    return library


class Lib:
    def __init__(self, backend, path):
        self.backend, self.path, self.dll, self._bound = backend, path, ctypes.CDLL(str(path)), {}
        self.dll.kft_detail.restype = ctypes.c_char_p
        self.dll.kft_string.restype = ctypes.c_char_p

    def _function(self, f):
        name = f["cpu_name" if self.backend == "cpu" else "name"]
        if name not in self._bound:
            fn = getattr(self.dll, f"kft_{name}")
            fn.argtypes = [
                ctypes.c_void_p if "kind" in a else CTYPES.get(a["ctype"], ctypes.c_void_p)
                for a in f["arguments"]
            ]
            if self.backend != "cpu":
                fn.argtypes = [*fn.argtypes, ctypes.c_void_p]
            fn.restype = ctypes.c_int
            self._bound[name] = fn
        return self._bound[name]

    def bind(self, f, values, stream=0):
        """Returns a call with converted arguments, for timing loops."""
        fn, shape = self._function(f), shape_struct(f, values)
        # Kept alive by the call.
        values = {"shape": ctypes.addressof(shape)} | values if shape else values
        arguments = [
            kind(values.get(a["name"]) if a["role"] == "strides" else values[a["name"]])
            for kind, a in zip(fn.argtypes, f["arguments"])
        ]
        if self.backend != "cpu":
            arguments.append(ctypes.c_void_p(stream))
        return lambda keep=shape: fn(*arguments)

    def call(self, f, values, stream=0):
        return self.bind(f, values, stream)()

    def workspace_bytes(self, f, sizes):
        name = f["cpu_workspace" if self.backend == "cpu" else "workspace"]
        if not name:
            return 0
        fn = getattr(self.dll, f"kft_{name}")
        fn.restype = ctypes.c_size_t
        if shape := shape_struct(f, dict(zip(f["sizes"], sizes))):
            fn.argtypes, sizes = [ctypes.c_void_p], [ctypes.addressof(shape)]
        else:
            fn.argtypes = [ctypes.c_int64] * len(sizes)
        return fn(*sizes)

    @property
    def detail(self):
        return self.dll.kft_detail().decode()

    def string(self, result):
        return self.dll.kft_string(result).decode()
