# SPDX-License-Identifier: Apache-2.0
"""Launch steps: the kernel launches of a call, in order.

A step launches one of several kernels. It reads and writes tensors, and buffers of the workspace,
whose names begin with `workspace.`. The tables of kernels in run functions, the workspace
functions, the manifest, NVRTC's name expressions and `kfgen explain` follow from the steps of a
schedule (schedule.Cuda.steps).
"""

from dataclasses import dataclass, replace

OWN = {"act": "kfi_act", "from_state": "kfi_from_state"}  # a run function's own template parameters
NONE = "nullptr"  # empty entry of a table of kernels
# Tables of a run function: the kernels of the family, and those of the second stage of sums.
KERNELS, SUMS = "kfi_kernels", "kfi_sum_kernels"
PARTIALS = "workspace.partials"  # the buffer that the second stage of sums reads


@dataclass(frozen=True)
class Instance:
    """A kernel with its template arguments."""

    kernel: str
    arguments: tuple

    def __str__(self):
        return f"KFI_{'STATE_' if 'from_state' in self.arguments else ''}ADDRESS({self.name(OWN)})"

    def name(self, values=None):
        """Returns kernel<arguments>. values: {parameter of the launcher: text}."""
        values = values or {}
        return f"{self.kernel}<{', '.join(str(values.get(a, a)) for a in self.arguments)}>"


@dataclass(frozen=True)
class Launch:
    """How a step launches some of its kernels.

    grid, block: blocks, and threads per block: comma-separated expressions of the sizes with
    `ceil`, or a description.
    """

    kernels: tuple
    grid: str
    block: str
    cluster: int = 1  # blocks per cluster, at most
    shared: str = ""  # dynamic shared memory of a block, described; empty: none
    maps: tuple = ()  # tensors and buffers that the kernels access through tensor maps
    early: bool | None = True  # programmatic dependent launch; None: it depends on the sizes

    @property
    def present(self):
        """The kernels, without empty entries of a table."""
        return [kernel for kernel in self.kernels if kernel != NONE]


@dataclass(frozen=True)
class Step:
    """A kernel launch of a call: one kernel of `launches`."""

    does: str
    launches: tuple
    reads: tuple  # names of tensors and buffers, as for `writes`
    writes: tuple
    when: str = ""  # condition of the launch; empty: every call that computes something
    per: tuple = ()  # loops around the step, outermost first
    table: str = KERNELS  # table of the run function that has the kernels

    @property
    def kernels(self):
        """All kernels, with empty entries of a table."""
        return [kernel for launch in self.launches for kernel in launch.kernels]


@dataclass(frozen=True)
class Call:
    """A call of another kernel's launcher: its steps are steps of this call.

    names: {tensor or buffer of that kernel: its name here}; buffers that are missing have a name
    of `buffer`, the part of this workspace that the launcher gets.
    """

    kernel: object
    act: object
    names: dict
    buffer: str
    per: tuple = ()

    @property
    def steps(self):
        cuda = self.kernel.cuda
        own = self.names | dict.fromkeys(cuda.buffers, self.buffer)

        def named(names):
            return tuple(dict.fromkeys(own[n] for n in names if n in own))

        return [
            replace(
                step,
                reads=named(step.reads),
                writes=named(step.writes),
                per=(*self.per, *step.per),
                launches=tuple(
                    replace(launch, maps=named(launch.maps)) for launch in step.launches
                ),
            )
            for step in cuda.steps_of(self.act)
        ]


def names(streams):
    """Names of tensors, for `reads` and `writes`."""
    return tuple(s.name for s in streams)


def table(steps, name):
    """Returns the kernels of a run function's table, in the order of the steps."""
    return [kernel for step in steps if step.table == name for kernel in step.kernels]


def described(steps, acts, from_state):
    """Returns the steps for the manifest (docs/manifest.md). acts: numbers of the activation."""
    values = [{"act": str(act), "from_state": str(int(from_state))} for act in acts]

    def launch(one):
        found = [kernel.name(of) for of in values for kernel in one.present]
        return {
            "kernels": list(dict.fromkeys(found)),
            "grid": one.grid,
            "block": one.block,
            "cluster": one.cluster,
            "shared": one.shared,
            "maps": list(one.maps),
            "early": one.early,
        }

    return [
        {
            "does": step.does,
            "when": step.when,
            "per": list(step.per),
            "reads": list(step.reads),
            "writes": list(step.writes),
            "launches": [launch(one) for one in step.launches],
        }
        for step in steps
    ]


def kernel_names(found):
    """Returns all kernels of described steps, each once."""
    return list(
        dict.fromkeys(
            name for step in found for launch in step["launches"] for name in launch["kernels"]
        )
    )
