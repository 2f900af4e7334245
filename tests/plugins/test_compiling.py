"""Kernels to PTX without a GPU: what TensorRT launches, and what it could not."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from triton.compiler.errors import CompilationError

from aot.cli import _main as cli
from aot.cli.plugin import DEFAULT_TARGETS
from aot.errors import PluginError, TargetError
from aot.plugins import _compiler, ptx
from aot.plugins.compiling import Job, compile_all, jobs
from aot.plugins.header import read
from aot.runtime.kernels import Compiled
from tests.plugins.projects import line_of, write

BUILT_IN = Path(__file__).parent.parent.parent / "plugins"


@pytest.fixture(scope="module")
def compiled() -> dict[tuple[str, str], Compiled]:
    """add_rms_norm for every target in FP16, and in every dtype for one; by target and dtype."""
    header = read(BUILT_IN / "add_rms_norm.py")
    wanted = [
        job for target in DEFAULT_TARGETS for job in jobs(header, target, {"width": 1024}) if "float16" in job.dtypes
    ]
    wanted += [job for job in jobs(header, "sm90", {"width": 1024}) if "float16" not in job.dtypes]
    made = compile_all(header, wanted)
    return {(one.target, one.dtypes[0]): one for one in made}


def test_one_ptx_for_each_architecture_in_the_least_isa_that_has_it(compiled: dict[tuple[str, str], Compiled]) -> None:
    found = {}
    for (target, dtype), one in compiled.items():
        if dtype == "float16":
            version = re.search(r"^\.version (.*)$", one.code, re.M)
            assert version is not None
            found[target] = (ptx.architecture(one.code), version[1])
    assert found == {
        "sm80": ("sm_80", "8.1"),
        "sm86": ("sm_86", "8.1"),
        "sm89": ("sm_89", "8.1"),
        "sm90": ("sm_90a", "8.1"),
        "sm100": ("sm_100a", "8.6"),
        "sm120": ("sm_120a", "8.7"),
    }


def test_a_kernel_takes_its_inputs_scalars_and_outputs_and_nothing_more(
    compiled: dict[tuple[str, str], Compiled],
) -> None:
    code = compiled["sm90", "float16"].code
    entry = re.search(r"\.entry kernel\((.*?)\)", code, re.S)
    assert entry is not None
    kinds = re.findall(r"\.param \.(\w+)", entry[1])
    assert kinds == ["u64", "u64", "u64", "u32", "u64", "u64"]  # x, residual, weight, rows, y, total


def test_every_load_is_of_16_bytes(compiled: dict[tuple[str, str], Compiled]) -> None:
    """1024 values of FP16 over 128 threads are 8 a thread."""
    loads = re.findall(r"ld\.global\S*", compiled["sm90", "float16"].code)
    assert [load.endswith(".v4.b32") for load in loads] == [True] * 3  # x, residual, weight


def test_grid_scalars_and_shapes_are_expressions_of_the_sizes(compiled: dict[tuple[str, str], Compiled]) -> None:
    one = Compiled.from_json(compiled["sm90", "bfloat16"].to_json())
    assert one.launched([(7, 1024), (7, 1024), (1024,)]) == ((7, 1, 1), (7,))
    assert one.launched([(0, 1024), (0, 1024), (1024,)]) == ((0, 1, 1), (0,))
    assert one.output_dtypes == ("bfloat16", "bfloat16")
    assert list(one.outputs) == [[["size", "x", 0], 1024], [["size", "x", 0], 1024]]


def test_the_digest_is_the_codes_and_a_changed_code_is_refused(compiled: dict[tuple[str, str], Compiled]) -> None:
    one = compiled["sm90", "float32"]
    assert one.digest == hashlib.sha256(one.code.encode()).hexdigest()
    assert len({kernel.digest for kernel in compiled.values()}) == len(compiled)
    with pytest.raises(PluginError, match="is not the one that was compiled"):
        Compiled.from_json(replace(one, code=one.code + " ").to_json())


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile in this process: what a compiler answers is the same, and importing torch once is enough."""

    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "1")
    started = subprocess.run

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if "aot.plugins._compiler" not in command:
            return started(command, **options)
        _compiler.main(Path(command[3]), Path(command[4]))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(_compiler, "_assembled", lambda code, capability: (1, 0))


def test_the_same_source_in_another_process_and_folder_gives_the_same_code(
    tmp_path: Path, compiled: dict[tuple[str, str], Compiled], here: None
) -> None:
    file = tmp_path / "deeper" / "plugins" / "add_rms_norm.py"
    file.parent.mkdir(parents=True)
    file.write_text((BUILT_IN / "add_rms_norm.py").read_text())
    header = read(file)
    (again,) = compile_all(header, [job for job in jobs(header, "sm90", {"width": 1024}) if "float16" in job.dtypes])
    assert again.code == compiled["sm90", "float16"].code


SCRATCH = (
    "    value = tl.load(x + at",
    "    block = tl.make_tensor_descriptor(x, [count], [1], [BLOCK])\n"
    "    block.store([0], block.load([0]))\n"
    "    value = tl.load(x + at",
)


@pytest.mark.parametrize(
    ("change", "says", "at"),
    [
        (SCRATCH, "it needs scratch memory, which TensorRT does not give", "@triton.jit"),
        (("value * 3.0 + SHIFT", "value * 3.0 + SHIFTED"), "SHIFTED is not defined", "tl.store(y"),
        (
            ("count = math.prod(shapes.x)", "count = power_of_two(shapes.x[0])"),
            "must be fixed, and x[0] varies",
            "power_of",
        ),
    ],
    ids=["scratch", "name", "size"],
)
def test_a_kernel_that_cannot_be_had_is_refused_with_the_reason_and_the_line(
    change: tuple[str, str], says: str, at: str, tmp_path: Path, here: None
) -> None:
    file = write(tmp_path, "triple", change, ("Launch, ceil_div", "Launch, ceil_div, power_of_two"))
    header = read(file)
    with pytest.raises(PluginError) as caught:
        compile_all(header, jobs(header, "sm90")[:1])
    assert says in str(caught.value)
    assert "for sm90, float32" in str(caught.value)
    expected = int(line_of(file, at).rpartition(":")[2])
    if at == "power_of":
        expected = int(line_of(file, "count = power_of").rpartition(":")[2])
    number = int(str(caught.value.where).removeprefix(f"{file}:").partition(":")[0])
    assert abs(number - expected) <= 1  # the decorator, or the function below it


def test_a_reason_is_the_compilers_words_or_the_line_that_asserts() -> None:
    def refused(raised: Exception) -> str:
        try:
            try:
                raise raised
            except Exception as cause:
                raise CompilationError("    total = dot(a, b)", None, None) from cause
        except CompilationError as error:
            return _compiler.reason_of(error)

    assert refused(ValueError("both operands\nmust be INT8")) == "both operands must be INT8"
    assert refused(CompilationError("", None, "shapes differ")) == "shapes differ"
    assert refused(AssertionError()) == "AssertionError: raise raised"


def test_compile_writes_code_and_launch_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], here: None
) -> None:
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert cli.call(["plugin", "compile", "triple", "--target", "sm89", "-o", "kernels", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["kernels"]
    assert [(one["plugin"], one["target"], one["dtypes"]) for one in found] == [
        ("mine::triple", "sm89", ["float32"]),
        ("mine::triple", "sm89", ["float16"]),
    ]
    described = json.loads((tmp_path / "kernels" / "triple.sm89.float16.json").read_text())
    assert described["code"] == (tmp_path / "kernels" / "triple.sm89.float16.ptx").read_text()
    assert described["digest"] == found[1]["digest"]


def test_a_compiler_that_dies_is_told_with_its_last_words(tmp_path: Path) -> None:
    file = write(tmp_path, "triple", ("import math", "import math, os; os._exit(7)"))
    header = read(file)
    with pytest.raises(PluginError, match="the compiler ended: exit code 7"):
        compile_all(header, jobs(header, "sm90")[:1])


def test_a_target_that_kernels_are_not_compiled_for_is_refused() -> None:
    header = read(BUILT_IN / "add_rms_norm.py")
    with pytest.raises(TargetError, match="not for sm75"):
        compile_all(header, [Job("sm75", {}, (), {})])


PTX = """.version 8.1
.target sm_90a
.visible .entry kernel(
	.param .u64 .ptr .global .align 1 kernel_param_0,
	.param .u64 .ptr .global .align 1 kernel_param_1,
	.param .u64 .ptr .global .align 1 kernel_param_2
)
.reqntid 128
{
	ld.param.b64 %rd1, [kernel_param_0];
	ret;
}
"""


def test_hidden_parameters_are_taken_out_where_nothing_reads_them() -> None:
    assert "kernel_param_1" not in ptx.launchable(PTX, 1)
    assert ptx.launchable(PTX, 1).count(".param") == 2  # declared, read
    assert (ptx.threads(PTX), ptx.architecture(PTX), ptx.entry_name(PTX)) == (128, "sm_90a", "kernel")
    with pytest.raises(PluginError, match="reads kernel_param_2"):
        ptx.launchable(PTX.replace("ret;", "ld.param.b64 %rd2, [kernel_param_2];"), 1)
    with pytest.raises(PluginError, match="3 parameters in PTX, and 4 in its file"):
        ptx.launchable(PTX, 4)


def test_a_later_isa_is_taken_only_where_the_assembler_asks_for_it() -> None:
    said = "error : 'x' requires PTX ISA .version 8.6 or later\nerror : 'y' requires PTX ISA .version 8.3 or later"
    assert (ptx.needed_isa(said), ptx.needed_isa("error : unknown opcode")) == (86, None)


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({"num_ctas": 2}, "clusters"),
        ({"num_ctas": 1, "launch_cooperative_grid": True}, "cooperatively"),
        ({"global_scratch_size": 128}, "scratch memory"),
        ({"launch_pdl": True}, "PDL"),
        ({"tensordesc_meta": [1]}, "tensor descriptors"),
        ({"num_ctas": 1, "shared": 1024, "tensordesc_meta": []}, None),
    ],
)
def test_what_tensorrt_cannot_launch_has_a_reason(metadata: dict[str, object], says: str | None) -> None:
    found = ptx.refusal(metadata)
    assert (found is None) if says is None else says in str(found)
