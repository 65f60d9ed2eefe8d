# SPDX-License-Identifier: Apache-2.0
"""Launchers that only g++ compiles, over the driver API and kernels loaded by name. They launch the
same kernel instances, grids and argument bytes as those that nvcc compiles.
"""

import re

import cases
import kflib
import launch_steps
import pytest
import recorded
import selection
import toolkit
from kfgen.entries import spec
from kfgen.render import source
from kfgen.render.render import Selection
from refusals import BUILD, CUDA, DEVICE, NO_KERNEL_IMAGE, NULL_POINTER, PARTS, Call, tensors_of

pytestmark = pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")
STREAM = 0x5EED0
FUNCTIONS = kflib.on("cuda", selection.of_schedules(cases.by_level(("f32", "bf16"), None)))
NOT_FOUND, NO_DRIVER, NO_CONTEXT = 500, 100, 201
ROWS = [(1056, c) for c in (1, 40, 1000, 4096, 10001, 16384, 65536, 131072, 300001, 2**21)] + [
    (3, 8),
    (200000, 64),
]
SHAPES = {
    "flat": [(1,), (1003,), (2**20,), (2**33,)],
    "rows": [(5, 3), (1056, 300), (70000, 4096), (3, 2**22)],
    "planes": [(2, 3, 1), (64, 256, 196), (5, 7, 2500)],
}


@pytest.fixture(scope="module")
def driver():
    return recorded.build(FUNCTIONS, BUILD, flags=PARTS)


@pytest.fixture(scope="module", params=[800, 900, 1200])
def both(request, driver):
    driver.log.architecture = driver.log.image = request.param
    return recorded.build(FUNCTIONS, BUILD, request.param, PARTS), driver


PRODUCTS = [
    (2, 3, 1, 5),
    (1, 64, 1024, 4096),
    (3, 8, 24, 16),
    (1, 130, 136, 72),
    (1, 4096, 4096, 512),
    (1, 70, 37, 2500),
]


def shapes(f):
    if f["family"] == "matmul":
        return PRODUCTS
    if f["family"] == "rows":
        return [sizes for sizes, _ in cases.rows_of(f, [[shape, 0] for shape in ROWS])]
    return (
        [(1, 40, 2), (64, 1000, 1), (3, 300001, 1), (2, 513, 640)]
        if f["family"] == "reduction"
        else cases.of_form(f, SHAPES)
    )


def calls(lib, f):
    """Calls of all shapes with pointers that nobody dereferences: aligned to vectors, to elements,
    and without the summed gradients.
    """
    for sizes in shapes(f):
        for shift, skipped in ((0, False), (1, False), (0, True)):
            call = (
                Call(lib, f)
                .set(**dict(zip(f["sizes"], sizes)))
                .set(workspace_bytes=2**60, workspace=2**60)
            )
            for i, a in enumerate(tensors_of(f)):
                unit = (
                    1
                    if shift and a["dtype"] == "u8"
                    else shift * int(a["dtype"].lstrip("bfiu")) // 8
                )
                call.set(
                    **{
                        a["name"]: None
                        if skipped and a["role"] == "sum"
                        else (i + 1) * 2**52 + unit
                    }
                )
            yield sizes, call


def launches(lib, f, call):
    lib.log.count = 0
    assert lib.call(f, call.values, STREAM) == 0, lib.detail
    assert lib.log.count <= recorded.LAUNCHES, f["name"]
    return [recorded.Launch.from_buffer_copy(one) for one in lib.log.of[: lib.log.count]]


def test_the_same_launches(both):
    """Launchers request only kernels that the generator lists, so `kfgen source` names everything
    that a program must compile ahead.
    """
    runtime, driver = both
    listed = {
        launcher.name: source.kernel_names(launcher)
        for k in Selection(spec.load()).all_kernels()
        for launcher in k.launchers
    }
    for f in FUNCTIONS:
        seen = 0
        for sizes, call in calls(runtime, f):
            wanted = launches(runtime, f, call)
            for i, one in enumerate(wanted):
                driver.log.of[i].parameters, driver.log.of[i].sizes = one.parameters, one.sizes
            got = launches(driver, f, call)
            where = f"{f['name']} {sizes}: "
            assert [g.kernel.decode() for g in got] == [w.name() for w in wanted], where
            assert {w.name() for w in wanted} <= set(listed[f["name"]]), where
            for g, w in zip(got, wanted):
                assert g.shape() == w.shape(), where + w.name()
                assert g.arguments() == w.arguments(), where + w.name()
            seen += len(got)
        assert seen, f["name"]


def check_launch(step, launch, one, sizes, overlaps):
    """Compares a recorded launch with the manifest's; returns how many extents were compared."""
    where = f"{one.name()} {sizes}: "
    assert max(one.cluster, 1) <= launch["cluster"], where + "cluster"
    assert not one.shared or launch["shared"], where + "dynamic shared memory"
    if launch["early"] is not None:
        assert one.early == (launch["early"] and overlaps), where + "early"
    found = [
        (launch_steps.extents(launch[word], sizes), getattr(one, word))
        for word in ("grid", "block")
    ]
    for wanted, got in found:
        assert wanted is None or tuple(got) == (*wanted, 1, 1)[:3], where + step["does"]
    return sum(wanted is not None for wanted, _ in found)


def test_launches_are_the_steps(both):
    """Kernels, their order and the configuration of all launches are those of the manifest."""
    runtime, driver = both
    overlaps, compared, seen = driver.log.architecture >= 900, 0, set()
    for f in FUNCTIONS:
        for sizes, call in calls(runtime, f):
            got = launches(runtime, f, call)
            found = launch_steps.matched(f, got) if got else []  # nothing to compute: no launch
            assert found is not None, f"{f['name']} {sizes}: {[one.name() for one in got]}"
            for step, launch, one in found:
                sizes_of = dict(zip(f["sizes"], sizes))
                compared += check_launch(step, launch, one, sizes_of, overlaps)
                seen.add((f["family"], step["does"]))
    assert compared > 1000 and len(seen) > 20, (compared, sorted(seen))


def test_other_launches_are_seen():
    """The pattern of the steps refuses launches that are missing, repeated or out of order."""
    step = {"per": [], "when": ""}
    of = [step, step | {"when": "wanted"}, step | {"per": ["digit"]}, step | {"per": ["digit"]}]
    pattern = re.compile(launch_steps.pattern(list(enumerate(of))))
    for text in ("0;", "0;1;", "0;2;3;", "0;1;2;3;2;3;"):
        assert pattern.fullmatch(text), text
    for text in ("", "1;", "1;0;", "0;0;", "0;2;", "0;3;2;", "0;1;1;"):
        assert not pattern.fullmatch(text), text
    sizes = {"cols": 40, "rows": 7}
    assert launch_steps.extents("ceil(cols / 32), rows", sizes) == (2, 7)
    for words in ("by the sizes", "rows / rows of a block", "tiles x cluster", "rows / 2"):
        assert launch_steps.extents(words, sizes) is None


def test_the_record_has_something_of_everything(both):
    """The comparison above covers clusters, shared memory beyond 48 KiB, early launches and second
    stages.
    """
    runtime, driver = both
    seen = [
        one
        for f in FUNCTIONS
        for _, call in calls(runtime, f)
        for one in launches(runtime, f, call)
    ]
    assert all(one.stream == STREAM and all(any(b) for b in one.arguments()[:1]) for one in seen)
    late = driver.log.architecture < 900
    assert any(one.grid[1] > 1 for one in seen) and any(not one.early for one in seen)
    allowed = {
        (one.name(), one.raised) for one in seen if one.raised
    }  # matrix products use it on any device, clusters of rows from 9.0 on
    assert allowed and len(allowed) == len(dict(allowed)), sorted(
        allowed
    )  # the same for all launches of a kernel, because other threads launch it too
    for word in ("early", "cluster"):
        assert any(getattr(one, word) for one in seen) != late, word
    for word in ("_wgmma<", "_skinny<"):  # products in code for sm_90a
        assert any(word in one.name() for one in seen) == (driver.log.architecture == 900), word


def test_the_workspace_is_enough_for_any_device(driver):
    """The driver's workspace query asks no device: no device needs more, by nvcc's launchers."""
    own = {a: recorded.build(FUNCTIONS, BUILD, a, PARTS) for a in (800, 900, 1200)}
    driver.log.architecture = 0
    for f in FUNCTIONS:
        for sizes in shapes(f) if f["workspace"] else []:
            wanted = max(lib.workspace_bytes(f, sizes) for lib in own.values())
            assert driver.workspace_bytes(f, sizes) == wanted, f"{f['name']} {sizes}"


@pytest.fixture
def device(driver):
    driver.log.architecture = driver.log.image = 900
    for one in driver.log.of:
        one.parameters = 0
    yield driver
    driver.log.loaded = driver.log.launched = driver.log.threads = driver.log.current = (
        driver.log.own
    ) = driver.log.capturing = 0


def test_kernels_without_wgmma(device):
    """Kernels that a loader compiles for sm_90 are empty there, and allow one warp of threads."""
    products = [f for f in FUNCTIONS if f["family"] == "matmul" and f["dtypes"][0] == "bf16"]
    assert products
    for threads in (32, 0):
        device.log.threads, found = threads, set()
        for f in products:
            for _, call in calls(device, f):
                found |= {one.kernel.decode() for one in launches(device, f, call)}
        assert any("_wgmma<" in name or "_skinny<" in name for name in found) == (threads == 0)


@pytest.mark.parametrize(
    ("status", "code"), [(NOT_FOUND, NO_KERNEL_IMAGE), (209, NO_KERNEL_IMAGE), (NO_CONTEXT, CUDA)]
)
def test_a_kernel_that_is_not_loaded(device, status, code):
    device.log.loaded = status
    for f in FUNCTIONS:
        device.log.count = 0
        assert device.call(f, Call(device, f).values) == code and device.log.count == 0, f["name"]
        assert device.detail.startswith(f"{f['name']}: kernel kfk_"), device.detail
        assert (
            f"was not loaded: CUDA error {status} (as the test asked for)" in device.detail
            or len(device.detail) == 511
        ), device.detail


def test_a_kernel_of_another_generation(device):
    """Such a kernel would not wait for the previous one: it is refused before the launch."""
    device.log.image = 860
    f = FUNCTIONS[0]
    device.log.count = 0
    assert device.call(f, Call(device, f).values) == NO_KERNEL_IMAGE and device.log.count == 0
    assert "was compiled for 8.6, expected the device's 9.0" in device.detail, device.detail
    device.log.architecture = 890
    assert device.call(f, Call(device, f).values) == 0


def test_the_launchs_own_status(device):
    device.log.launched = NO_DRIVER
    for f in FUNCTIONS:
        device.log.count = 0
        assert device.call(f, Call(device, f).values) == CUDA and device.log.count == 1, f["name"]
        assert (
            device.detail.startswith(f"{f['name']}: launch of ")
            and f"CUDA error {NO_DRIVER} (as the test" in device.detail
        ), device.detail


def test_the_streams_device(device):
    f = FUNCTIONS[0]
    device.log.own, device.log.count = 1, 0
    assert device.call(f, Call(device, f).values, STREAM) == DEVICE and device.log.count == 0
    assert (
        device.detail == f"{f['name']}: stream is of device 1, expected the current one, device 0"
    )
    device.log.capturing = 1
    assert device.call(f, Call(device, f).values, STREAM) == 0, "a captured stream is not asked"


def test_arguments_are_checked(device):
    for f in FUNCTIONS:
        name = next(
            a["name"]
            for a in tensors_of(f)
            if a["role"] == "in" and not a.get("null") and not a.get("unread")
        )
        Call(device, f).set(**{name: None}).refuses(NULL_POINTER, name)
