# SPDX-License-Identifier: Apache-2.0
"""Level 2 in many processes (support/level2). Each test must be in exactly one share, and joined
logs must equal one run. Missing tests are named, each machine has its plan, and the longest units
compile first."""

import json
import threading

import promises
import pytest
from conftest import ROOT
from level2 import libraries, logs, plan, plugin, report, run, runs

FILES = plan.cuda_files(ROOT)
MODULE = """import pytest
group = pytest.mark.xdist_group("one")
@pytest.mark.parametrize("n", range(40))
def test_many(n): assert n != 7
@group
@pytest.mark.parametrize("n", range(6))
def test_together(n): pass
@pytest.mark.alone
def test_alone(): pass
@pytest.mark.parametrize("f", ["kf_add_relu_f32", "kf_no_such_f32"])
def test_function(f): pass
def test_out(): pytest.skip("no such thing")
"""
SKIPPED = "import pytest\npytest.skip('no such machine', allow_module_level=True)\n"


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    folder = tmp_path_factory.mktemp("level2")
    (folder / "tests/gen").mkdir(parents=True)
    (folder / "tests/gen/test_some.py").write_text(MODULE)
    (folder / "tests/gen/test_none.py").write_text(SKIPPED)
    (folder / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n    alone: has it for itself\n    xdist_group(name): stays together\n"
    )
    return folder


@pytest.fixture(scope="module")
def call(tree):
    """call(log, *words) runs pytest with the plugin and returns the Counts of a Recorder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tree)
        patch.setattr(
            plugin,
            "began",
            lambda config: {
                "begin": [],
                "time": len(list(tree.glob("*.jsonl"))),
                "commit": "c",
                "kind": "cpu",
                "level": 2,
                "machine": "m",
                "processor": "p",
                "families": {"elementwise": {"functions": 1}},
            },
        )

        def of(log, *words):
            recorder = promises.Recorder()
            recorder.pytest_sessionfinish = None  # the test compares what it would write
            pytest.main(
                [
                    "-p",
                    "no:cacheprovider",
                    "-p",
                    "no:xdist",
                    "-p",
                    "no:terminal",
                    "--outcomes",
                    log,
                    *words,
                    "tests/gen",
                ],
                plugins=[plugin, recorder],
            )
            return recorder.counts

        yield of


@pytest.fixture(scope="module")
def logged(tree, call):
    """(counts of a Recorder in one process, the parts of two shares)"""
    whole = call("whole.jsonl")
    for i in (0, 1):
        call(f"share{i}.jsonl", "--share", f"{i}/2")
    return whole, logs.parts(sorted(tree.glob("share?.jsonl")))


def test_shares(logged):
    _, (first, second) = logged
    assert len(first.ids) == 50 and first.ids == second.ids
    assert not set(first.tests) & set(second.tests) and set(first.tests) | set(second.tests) == set(
        first.ids
    )
    assert min(len(first.tests), len(second.tests)) > 15
    assert "tests/gen/test_some.py::test_alone" in first.tests
    assert {sum("test_together" in name for name in p.tests) for p in (first, second)} == {0, 6}
    assert [p.collected for p in (first, second)] == [
        len(first.tests),
        len(second.tests),
    ] and first.end is not None


def test_joined_as_one_run_is_recorded(logged):
    whole, parts = logged
    run_, left = runs.joined("cpu", parts)
    assert (
        run_["tests"] == whole.tests()
        and ["gen/test_some.py::test_function", "elementwise", 1, 0, 0] in run_["tests"]
    )
    assert ["gen/test_some.py::test_many", "all", 39, 1, 0] in run_["tests"] and [
        "gen/test_none.py",
        "all",
        0,
        0,
        1,
    ] in run_["tests"]
    assert run_["files"] == ["gen/test_none.py", "gen/test_some.py"] and not left
    assert {k: run_[k] for k in ("kind", "machine", "level", "families")} == {
        "kind": "cpu",
        "machine": "p",
        "level": 2,
        "families": {"elementwise": {"functions": 1}},
    }


def test_of_one_share_the_rest_is_missing(logged):
    _, (first, second) = logged
    run_, left = runs.joined("cpu", [first])
    assert run_["files"] == ["gen/test_none.py"] and left == {"gen/test_some.py": len(second.tests)}
    text = report.report([first], ["share0", "share1"])
    assert (
        f"missing {len(second.tests)} of tests/gen/test_some.py\n" in text
        and "no log: share1\n" in text
        and "skipped 1: " in text
    )
    assert {name for name, word in report.again([first]).items() if word == "none"} == set(
        second.tests
    )


def test_what_failed_is_run_again(tree, call, logged):
    """A list of ids must run again, and the later outcome counts, unless it is a skip."""
    _, parts = logged
    failed = "tests/gen/test_some.py::test_many[7]"
    assert report.again(parts) == {failed: "failed"}
    assert report.again(parts, skips=True) == {
        failed: "failed",
        "tests/gen/test_none.py": "skipped",
        "tests/gen/test_some.py::test_out": "skipped",
    }
    assert f"FAILED {failed} (call) E " in report.report(parts)
    (tree / "ids").write_text(failed + "\n")
    call("again.jsonl", "--only", "ids")
    [again] = logs.parts([tree / "again.jsonl"])
    assert list(again.tests) == [failed] and again.tests[failed]["outcome"] == "failed"
    again.tests[failed]["outcome"] = "skipped"
    assert report.again([*parts, again]) == {failed: "failed"}
    again.tests[failed]["outcome"] = "passed"
    assert report.again([*parts, again]) == {}


def line(name, outcome, when="call"):
    return json.dumps(
        {"id": name, "when": when, "outcome": outcome, "seconds": 1, "reason": "", "first": ""}
    )


def a_log(name, kind, *lines, ids=(), commit="c", processor="p"):
    begin = {
        "begin": [],
        "time": 0,
        "commit": commit,
        "kind": kind,
        "machine": "GPU",
        "processor": processor,
        "level": 2,
        "families": {},
    }
    return logs.Part(name, "\n".join([json.dumps(begin), *lines, '{"end": 0, "cut']), ids)


def test_each_kind_of_machine_has_its_tests():
    """tests/cuda on a GPU is one run. All others, and tests/cuda skipped without a GPU, are
    another."""
    ids = ["tests/cuda/test_x.py::a", "tests/cuda/test_x.py::b"]

    def parts():
        return [
            a_log("on", "gpu", line(ids[0], "passed"), line(ids[0], "failed", "teardown"), ids=ids),
            a_log("emu", "gpu", line("tests/emu/a.py::c", "passed")),
            a_log("without", "cpu", line("tests/cuda/test_x.py", "skipped", "collect")),
        ]

    assert [runs.joined(kind, parts())[0]["tests"] for kind in ("gpu", "cpu")] == [
        [["cuda/test_x.py::a", "all", 0, 1, 0]],
        [["cuda/test_x.py", "all", 0, 0, 1], ["emu/a.py::c", "all", 1, 0, 0]],
    ]
    assert runs.joined("gpu", parts())[1] == {"cuda/test_x.py": 1}
    for skips in (False, True):  # skipping the file on another machine is no outcome
        assert report.again(parts(), skips) == {ids[0]: "failed", ids[1]: "none"}
    assert runs.joined("gpu", parts())[0]["machine"] == "GPU"
    assert (
        runs.joined(
            "cpu",
            [*parts(), a_log("here", "cpu", line("tests/emu/a.py::d", "passed"), processor="q")],
        )[0]["machine"]
        == "p, q"
    )
    with pytest.raises(SystemExit, match="several: commit"):
        runs.joined(
            "cpu", [*parts(), a_log("old", "cpu", line("tests/emu/a.py::c", "passed"), commit="d")]
        )


@pytest.mark.parametrize(("gpus", "cores"), [(4, 64), (2, 32), (1, 8), (0, 16)])
def test_the_plan(gpus, cores):
    parts = plan.plan(gpus, cores, FILES)
    assert len({p.name for p in parts}) == len(parts)
    on_gpu = [p for p in parts if p.needs or p.nice == 0]
    assert {need for p in on_gpu for need in p.needs} <= {*libraries.LIBRARIES, "helpers"}
    for file in FILES:  # each GPU has a share, or one GPU has all
        shares = sorted(p.share for p in on_gpu if file in p.paths)
        assert (
            shares in ([""], [f"{i}/{len(shares)}" for i in range(len(shares))])
            if gpus
            else not shares
        )
    [robust] = [
        p for p in on_gpu if "tests/cuda/test_robust.py" in p.paths and p.share[:2] in ("", "0/")
    ] or [None] * (not gpus)
    assert not gpus or robust.gpus == "0"  # together with the test marked `alone`
    assert all(0 < p.workers <= max(1, cores // gpus // 2) for p in on_gpu)
    others = [p for p in parts if p not in on_gpu]
    tests = [p.relative_to(ROOT).parts[1] for p in (ROOT / "tests").glob("**/test_*.py")]
    assert {path.split("/")[1] for p in others for path in p.paths} == set(tests)
    [without] = [p for p in others if p.name == "cuda_without"]
    assert without.gpus == "" and {*without.paths[1:]} == {f for f in FILES if "families/" in f}
    [families] = [p for p in others if p.paths == ("tests/families",)]
    assert set(families.ignored) == {*without.paths[1:]}
    assert all(
        (p.gpus != "0" if gpus > 1 else p.gpus == "0" * gpus) and p.nice > 0
        for p in others
        if p != without
    )
    assert cores <= sum(p.workers for p in others) <= 1.5 * cores + 4


def test_two_gpus_of_a_pair():
    def seen(gpus):
        return [
            p.gpus for p in plan.plan(gpus, 8, FILES) if "tests/cuda/test_devices.py" in p.paths
        ]

    assert [seen(n) for n in (1, 2, 4)] == [["0"], ["0,1"], ["0,1", "2,3"]]


def test_parts_by_name():
    emu, one, fuzz = plan.plan(
        4, 64, FILES, ["emu:14", "tests/emu/test_sanitizers.py:8", "fuzz:2"], cuda=False
    )
    assert (
        emu == plan.Part("emu", ("tests/emu",), 14, "1", 10, ignored=one.paths)
        and one.name == "emu_sanitizers"
        and one.workers == 8
    )
    assert "--ignore=tests/emu/test_sanitizers.py" in run.command(emu, ROOT / "build")
    assert plan.of_list([emu, one, fuzz], ["tests/emu/test_sanitizers.py::a[b]"]) == [one]
    assert plan.of_list(
        [emu, one, fuzz], ["tests/emu/test_seeded.py::a", "tests/fuzz/test_maps.py"]
    ) == [emu, fuzz]


def test_a_part_waits_for_its_libraries(tmp_path):
    """A part must wait for its own libraries only, and for none if nothing compiles them."""
    started = []

    class Dry(run.Runner):
        def start(self, name, words, gpus):
            started.append(name)

    class Process:
        ended = None

        def poll(self):
            return self.ended

    parts = plan.with_gpu(1, 8, [*map(plan.file_of, ("rows/few_rows", "chosen", "hopper", "new"))])
    runner, process = Dry(tmp_path, parts), Process()
    runner.running = {"libraries": process}
    assert runner.step() and started == ["hopper", "new"]
    runner.ready.mkdir()
    for name in ("few", "odd_rows", "gemm", "subnormal"):
        assert runner.step() and "rows_few_rows" not in started
        (runner.ready / name).touch()
    assert runner.step() and started == ["hopper", "new", "rows_few_rows"]
    process.ended = 1
    assert not runner.step() and started[-1] == "chosen"


def test_the_longest_units_first():
    """Units that would delay the last library come first. Otherwise libraries follow in order, so
    that the first one's tests start while others compile."""

    def unit(library, name, size):
        return libraries.Unit(library, (library, name), name, "." * size, None)

    units = [
        unit("a", "detail", 1),
        unit("a", "add", 50),
        unit("b", "long", 90),
        unit("b", "detail", 2),
        unit("b", "any_add", 10),
    ]
    names = {
        cores: [(u.library, u.name) for u in libraries.order(units, cores)] for cores in (1, 4)
    }
    assert names[4] == [
        ("b", "any_add"),
        ("b", "long"),
        ("a", "add"),
        ("a", "detail"),
        ("b", "detail"),
    ]
    assert names[1] == [
        ("b", "any_add"),
        ("a", "add"),
        ("a", "detail"),
        ("b", "long"),
        ("b", "detail"),
    ]


def test_a_unit_of_two_libraries_is_compiled_once():
    """A shared unit is compiled once, and a library is linked as soon as its own units exist, even
    if others fail."""
    reported, made = {}, []

    def unit(library, key, name, text, fails=False):
        return libraries.Unit(
            library, key, name, text, lambda: made.append(key) if not fails else 1 / 0
        )

    units = [
        unit("a", 1, "detail.cu", "."),
        unit("a", 2, "add.cu", "." * 90),
        unit("b", 1, "detail.cu", "."),
        unit("b", 3, "any_add.cu", "." * 10),
        unit("c", 4, "bad.cu", "..", fails=True),
    ]
    finish = {name: lambda name=name: made.append(name) for name in ("a", "b", "c", "none")}

    def say(name, seconds, error):
        reported[name] = error

    libraries.Builder(units, finish, say).run(1)
    assert made == ["none", 3, 2, 1, "a", "b"]  # any_add.cu takes more than half of all
    assert (
        {name for name, error in reported.items() if error} == {"c"}
        and "ZeroDivisionError" in reported["c"]
        and len(reported) == 4
    )


def test_libraries_do_not_wait_for_each_other():
    there, done = threading.Event(), []
    units = [
        libraries.Unit("slow", 1, "a.cu", "..", lambda: there.wait(10)),
        libraries.Unit("fast", 2, "b.cu", ".", lambda: None),
    ]
    finish = {
        "slow": lambda: done.append("slow"),
        "fast": lambda: (done.append("fast"), there.set()),
    }
    libraries.Builder(units, finish, lambda *reported: None).run(2)
    assert done == ["fast", "slow"]


def test_what_is_compiled_ahead_is_what_a_library_is_made_of(monkeypatch, tmp_path):
    import kflib

    functions = kflib.on("cuda", kflib.manifest()["functions"])[:3]
    calls = libraries.recorded(
        lambda: kflib.build(
            "cuda", functions, tmp_path, ("-O0",), extra={"more.cu": "int more;\n"}, link=("-lm",)
        )
    )
    asked = []

    def objects(command, files, include, jobs=None):
        asked.append((command, files, include))
        raise StopIteration

    monkeypatch.setattr(kflib, "objects", objects)
    units = libraries.units_of("some", calls)
    for make in (*(u.make for u in units), lambda: kflib.library(*calls[0][0], **calls[0][1])):
        with pytest.raises(StopIteration):
            make()
    *each, whole = asked
    assert {k: v for _, files, _ in each for k, v in files.items()} == whole[
        1
    ] and "more.cu" in whole[1]
    assert all((command, include) == (whole[0], whole[2]) for command, _, include in each)
