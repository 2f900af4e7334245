"""Checking and tuning on a GPU, up to the driver: a stand-in for it computes on the CPU what the kernel should."""

from __future__ import annotations

import ctypes
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from aot import toolchain
from aot.cli import _main as cli
from aot.errors import EngineError, PluginError, TargetError
from aot.plugins import _gpu, _launching, _tuner, _workers, cases, checking, growing, tuned
from aot.plugins._trying import compared, sizes_that_vary
from aot.plugins._workers import Compilers
from aot.plugins.checking import Checked, check, devices
from aot.plugins.compiling import Job
from aot.plugins.header import read
from aot.plugins.loading import find, load
from aot.runtime.kernels import Compiled
from aot.toolchain import Gpu, Machine
from tests.plugins.projects import write

H200 = Gpu("NVIDIA H200", "sm90", 141 << 30)
FP32 = ("float32 float16", "float32")
TWO = (
    'CONFIGS = [{"block": 16, "num_warps": 1}]',
    'CONFIGS = [{"block": 16, "num_warps": 1}, {"block": 64, "num_warps": 2}]',
)


def array(address: int, count: int) -> np.ndarray[Any, Any]:
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))


class Kernel:
    """Computes y = 3 x on the memory that it is given, as a launch of TRIPLE does."""

    launches: ClassVar[list[tuple[tuple[int, int, int], int]]] = []
    wrong: Callable[[np.ndarray[Any, Any]], None] = staticmethod(lambda y: None)

    @classmethod
    def load(cls, code: str, entry: str, shared: int) -> Kernel:
        assert f".entry {entry}(" in code
        return cls()

    def launch(self, grid: tuple[int, int, int], threads: int, arguments: Sequence[int], stream: int) -> None:
        x, count, y = arguments
        type(self).launches.append((grid, threads))
        if count:
            array(y, count)[:] = 3 * array(x, count)
            type(self).wrong(array(y, count))


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What a process answers; it runs here, on the CPU, and compiles itself."""
    said: list[dict[str, Any]] = []

    class Here(Compilers):
        def __init__(self, count: int | None = None, cache: Path | None = None) -> None: ...

        def begin(self, header: Any, job: Job, config: Any) -> Any: ...

        def result(self, header: Any, job: Job, config: Any, timeout: float | None = None) -> Compiled:
            if timeout == 0:
                raise PluginError("not compiled in the time that there is")
            answer = _workers._answer(header.file, {**vars(job), "config": config})
            if "error" in answer:
                raise PluginError(**answer["error"])
            return Compiled.from_json(answer)

        def close(self) -> None: ...

    class Stream:
        cuda_stream = 7

    Kernel.launches = []
    monkeypatch.setattr(Kernel, "wrong", staticmethod(lambda y: None))
    monkeypatch.setattr(toolchain, "machine", lambda: Machine(H200, "580.159.04", "cpu"))
    monkeypatch.setattr(_launching, "Kernel", Kernel)
    monkeypatch.setattr(_launching, "DEVICE", "cpu")
    for module in (_gpu, _tuner):
        monkeypatch.setattr(module, "Compilers", Here)
        monkeypatch.setattr(module, "say", lambda answer: said.append(json.loads(json.dumps(answer))))
    monkeypatch.setattr(_gpu, "grown", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    return said


def test_every_size_and_config_is_launched_with_the_grid_and_scalars_of_its_shapes(
    tmp_path: Path, answers: list[dict[str, Any]]
) -> None:
    _gpu.main(tmp_path, [write(tmp_path, "triple", FP32, TWO)])

    first, *runs = answers
    assert first["total"] == len(runs)
    assert first["varying"] == ["...", "width"]
    assert first["unchecked"] == [
        "misaligned starts: kernels are compiled for tensors aligned to 16 bytes",
        "more than 2^31 elements: the sizes that may vary do not allow it",
    ]
    assert [(run["what"], run["failures"]) for run in runs if run["failures"]] == []
    assert max(run["relative"] for run in runs) == 0.0
    assert ((math.ceil(3 * 131 / 16), 1, 1), 32) in Kernel.launches
    assert ((math.ceil(3 * 131 / 64), 1, 1), 64) in Kernel.launches  # the other config, by its last size


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda y: y.__setitem__(-1, np.nan), "is not a number in 1 of"),
        (lambda y: y.__imul__(np.float32(1.001)), "differs by 0.001 of its magnitude"),
        (lambda y: array(y.ctypes.data, len(y) + 1).__setitem__(-1, 1.0), "'y' is written beside its end"),
    ],
)
def test_what_a_kernel_does_wrong_on_the_gpu_is_seen(
    wrong: Callable[[Any], None],
    says: str,
    tmp_path: Path,
    answers: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Kernel, "wrong", staticmethod(wrong))
    _gpu.main(tmp_path, [write(tmp_path, "triple", FP32)])
    failures = [failure for run in answers[1:] for failure in run["failures"]]
    assert any(says in failure for failure in failures), failures


@pytest.mark.parametrize("kind", [EngineError, torch.OutOfMemoryError])
def test_a_launch_that_is_refused_is_a_failure_of_its_case_alone(
    kind: type[Exception], tmp_path: Path, answers: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(y: Any) -> None:
        if len(y) == 3 * 131:
            raise kind("the kernel is not launched with the grid")

    monkeypatch.setattr(Kernel, "wrong", staticmethod(refuse))
    _gpu.main(tmp_path, [write(tmp_path, "triple", FP32)])
    failed = [run for run in answers[1:] if run["failures"]]
    assert {run["failures"][0] for run in failed} == {"the kernel is not launched with the grid"}
    assert 0 < len(failed) < len(answers) - 1


def test_a_case_of_more_than_2_to_the_31_elements_is_the_last_and_in_the_narrowest_dtype(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = load(write(tmp_path, "triple"))
    plan = _gpu._planned(plugin, "sm90")
    *_, last = plan.trials
    assert last.huge
    assert last.chosen == {"T": "float16"}
    assert math.prod(last.shapes["x"]) > 2**31
    assert math.prod(last.shapes["x"]) < 2**31 + 16


def test_a_plugin_that_stops_the_gpu_costs_its_own_cases_and_the_next_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = [read(write(tmp_path, name)) for name in ("one", "two")]
    facts = {"varying": ["..."], "fixed": [], "unchecked": []}
    good = {"what": "a", "seconds": 0.1, "relative": 0.0, "failures": []}
    asked: list[list[str]] = []

    def answer(todo: Sequence[Any], device: str, cache: str, told: object) -> Any:
        asked.append([header.name for header in todo])
        if todo[0].name == "one":
            return [[{"total": 3, **facts}, good, {**good, "failures": ["it fails on the GPU: illegal address"]}]], None
        return [[{"total": 2, **facts}, good, {"unchecked": "more than 2^31 elements: no memory", "seconds": 1}]], None

    monkeypatch.setattr(checking, "_asked", answer)
    one, two = check(headers, device="gpu")
    assert asked == [["one", "two"], ["two"]]
    assert (one.passed, len(one.failed), one.missed) == (False, 1, 1)
    assert (two.passed, len(two.cases), two.missed) == (True, 1, 0)
    assert two.unchecked == ("more than 2^31 elements: no memory",)


@pytest.mark.parametrize(
    ("wanted", "gpu", "expected"),
    [
        ("auto", None, ("cpu",)),
        ("auto", H200, ("cpu", "gpu")),
        ("auto", Gpu("Tesla T4", "sm75", 1), ("cpu",)),
        ("cpu", H200, ("cpu",)),
        ("gpu", H200, ("gpu",)),
    ],
)
def test_auto_is_the_interpreter_and_a_gpu_that_kernels_are_compiled_for(
    wanted: str, gpu: Gpu | None, expected: tuple[str, ...]
) -> None:
    assert devices(wanted, gpu) == expected


@pytest.mark.parametrize(
    ("gpu", "says"), [(None, "there is no GPU"), (Gpu("Tesla T4", "sm75", 1), "not compiled for sm75")]
)
def test_without_such_a_gpu_device_gpu_is_refused(gpu: Gpu | None, says: str) -> None:
    with pytest.raises(TargetError, match=says):
        devices("gpu", gpu)


@pytest.mark.parametrize("arguments", [["check", "rotary", "--device", "gpu"], ["tune", "rotary"]])
def test_commands_that_need_a_gpu_say_so(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(toolchain, "machine", lambda: Machine(None, None, "cpu"))
    assert cli.call(["plugin", *arguments]) == 2
    assert "there is no GPU to" in capsys.readouterr().err


class TestTuning:
    def entry(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: float = 60.0) -> tuned.Entry:
        """Of a TRIPLE in which 64 elements a program are faster than 16."""
        plugin = load(write(tmp_path, "triple", FP32, TWO))
        taken = [[2.0, 2.2, 2.1], [1.0, 1.3, 1.1]]
        monkeypatch.setattr(_tuner, "in_turns", lambda runs, hopeless: taken[: len(runs)])
        launcher = _launching.Launcher(_tuner.Compilers(), "sm90")
        trial = cases.Trial({"x": (33, 100)}, {"T": "float32"}, {"shift": 0.0})
        return _tuner.Tuner(launcher, plugin, trial, ["...", "width"], budget=budget).entry()

    def test_the_fastest_config_is_kept_with_all_that_it_was_measured_with(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: list[dict[str, Any]]
    ) -> None:
        entry = self.entry(tmp_path, monkeypatch)
        assert entry.config == {"block": 64, "num_warps": 2}
        assert (entry.ms, entry.tried, entry.measured) == (1.1, 2, 6)
        assert (entry.gpu, entry.target, entry.driver) == ("NVIDIA H200", "sm90", "580.159.04")
        assert entry.bucket == {"...": 64, "width": 128}
        header = read(tmp_path / "plugins/triple.py")
        tuned.write(header, tmp_path / "plugins", [entry])
        assert tuned.best(header, "sm90", ("float32",), {"x": (5, 8, 128)}) == entry.config

    def test_a_config_that_computes_something_else_is_not_taken(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: list[dict[str, Any]]
    ) -> None:
        def wrong(y: Any) -> None:
            if len(Kernel.launches) > 1:
                y *= 1.001

        monkeypatch.setattr(Kernel, "wrong", staticmethod(wrong))
        assert self.entry(tmp_path, monkeypatch).config == {"block": 16, "num_warps": 1}

    def test_where_time_is_over_what_runs_first_is_taken_and_nothing_more_is_waited_for(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: list[dict[str, Any]]
    ) -> None:
        assert self.entry(tmp_path, monkeypatch, budget=0.0).config == {"block": 16, "num_warps": 1}
        assert len(Kernel.launches) == 1

    def test_tasks_are_answered_one_by_one_with_usual_sizes_where_none_are_given(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: list[dict[str, Any]]
    ) -> None:
        import io

        file = write(tmp_path, "triple", FP32)
        tasks = [{"file": str(file), "types": [{"T": "float32"}], "sizes": sizes} for sizes in ({"width": 100}, {})]
        monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(tasks)))
        monkeypatch.setattr(_tuner, "USUAL", 1 << 12)
        monkeypatch.setattr(_tuner, "in_turns", lambda runs, hopeless: [[1.0]] * len(runs))
        _tuner.main()
        assert answers[0] == {"total": 2}
        # Leading axes grow until there are more than 4096 elements; a width that may vary is as it is checked.
        assert [one["entry"]["shapes"]["x"] for one in answers[1:]] == [[41, 100], [1366, 3]]


class TestGrowing:
    def test_the_first_size_grows_as_far_as_a_grid_goes_then_the_next(self) -> None:
        plugin = find("attention", None)
        vary, _ = sizes_that_vary(plugin)
        found = growing.grown(plugin, vary, growing.HUGE)
        assert found is not None
        sizes, _ = found
        assert sizes["batch"] == 65535
        assert 2**31 < 65535 * sizes["queries"] * sizes["width"] <= 2**31 + 65535 * sizes["width"]

    def test_bounds_of_sizes_are_kept_and_none_is_found_where_they_are_too_small(self, tmp_path: Path) -> None:
        few = ("CONFIGS", 'SIZES = {"width": (1, 1000, 4)}\nCONFIGS')
        plugin = load(write(tmp_path, "triple", few))
        assert growing.grown(plugin, ["width"], 1 << 20) is None
        found = growing.grown(plugin, ["width", "..."], 1 << 20)
        assert found is not None
        assert (found[0]["width"], found[0]["..."]) == (1000, (1049,))


class TestComparing:
    def test_bf16_may_be_off_by_one_rounding(self) -> None:
        right = torch.tensor([1.0, 0.5], dtype=torch.bfloat16)
        assert compared(right + torch.tensor([0.0078125, 0.0], dtype=torch.bfloat16), right) == (0.0078125, None)
        error, why = compared(right + torch.tensor([0.015625, 0.0], dtype=torch.bfloat16), right)
        assert error == 0.015625
        assert why == "differs by 0.016 of its magnitude, and 0.01 is allowed"

    def test_fp8_may_be_one_step_off_anywhere_and_no_more(self) -> None:
        right = torch.tensor([448.0, -0.001953125, 16.0, 0.0]).to(torch.float8_e4m3fn)
        step = torch.tensor([416.0, 0.0, 18.0, -0.001953125]).to(torch.float8_e4m3fn)
        assert compared(step, right) == (0.0, None)
        two = torch.tensor([384.0, -0.001953125, 16.0, 0.0]).to(torch.float8_e4m3fn)
        error, why = compared(two, right)
        assert error == pytest.approx(64 / 448)
        assert why is not None

    def test_a_nan_that_should_be_a_number_and_a_number_that_should_be_one_are_seen(self) -> None:
        number, nan = torch.tensor([1.0, 2.0]), torch.tensor([1.0, math.nan])
        assert "is not a number in 1 of 2 places" in str(compared(nan, number)[1])
        assert compared(number, nan)[1] is not None
        assert compared(nan, nan) == (0.0, None)


def test_kernels_compile_side_by_side_each_once_and_errors_come_back(tmp_path: Path) -> None:
    plugin = load(write(tmp_path, "triple", FP32))
    broken = load(write(tmp_path, "broken", FP32, ("value * 3.0", "value * three")))
    job = Job("sm90", {"x": (None, 4)}, ("float32",), {"shift": 0.0})
    compilers = Compilers(1)
    try:
        one = compilers.begin(plugin, job, {"block": 32, "num_warps": 2})  # a config that CONFIGS does not have
        assert compilers.begin(plugin, job, {"block": 32, "num_warps": 2}) is one
        made = compilers.result(plugin, job, {"block": 32, "num_warps": 2})
        assert (made.threads, made.config) == (64, {"block": 32, "num_warps": 2})
        assert made.launched([(10, 4)]) == ((2, 1, 1), (40,))
        with pytest.raises(PluginError, match="not compiled in the time that there is"):
            compilers.result(plugin, job, {"block": 128, "num_warps": 4}, 0.0)
        with pytest.raises(PluginError, match="three"):
            compilers.result(broken, job, broken.configs[0])
    finally:
        compilers.close()


def test_a_check_on_a_gpu_says_where_it_ran(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Checked(
        "aot::rotary", "rotary.py", "rotary.py:9", "gpu", (), 0, ("...",), ("head",), ("misaligned starts",)
    )
    monkeypatch.setattr(checking, "check", lambda headers, told, device, broken: [found])
    monkeypatch.setattr(checking, "devices", lambda wanted, gpu: ("gpu",))
    assert cli.call(["plugin", "check", "rotary", "--device", "gpu"]) == 0
    said = capsys.readouterr().out
    assert "aot::rotary on the GPU: equal in 0 of 0 cases" in said
    assert "not checked here: misaligned starts" in said
