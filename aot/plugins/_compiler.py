"""The process that compiles: `python -m aot.plugins._compiler JOBS ANSWERS`, one line of JSON an answer."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aot.errors import AotError, PluginError
from aot.plugins import ptx
from aot.plugins.loading import OPTIONS, Plugin, load
from aot.plugins.sizes import Varies, tree_of, varying

_TRITON = {
    "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float8_e4m3fn": "fp8e4nv", "int8": "i8", "uint8": "u8",
    "int32": "i32", "int64": "i64", "bool": "i1",
}  # fmt: skip


def main(question: Path, answers: Path) -> None:
    """Compile job after job; what was answered before the process ends counts."""
    asked = json.loads(question.read_text())
    with answers.open("w") as file:
        for job in asked["jobs"]:
            try:
                answer = _answer(load(Path(asked["file"])), job)
            except AotError as error:
                said = {"what": error.what, "where": error.where, "fix": error.fix}
                answer = {"error": said, "varies": isinstance(error, Varies)}
            file.write(json.dumps(answer) + "\n")
            file.flush()


def _answer(plugin: Plugin, job: Mapping[str, Any]) -> dict[str, Any]:
    wanted = job["config"]
    configs = plugin.configs if wanted is None else [plugin.configs[wanted] if isinstance(wanted, int) else wanted]
    return {"kernels": [compiled(plugin, job, config) for config in configs]}


def compiled(plugin: Plugin, job: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """One kernel, as plain data: `Compiled`."""
    shapes = {
        name: tuple(varying(name, axis) if size is None else size for axis, size in enumerate(shape))
        for name, shape in job["shapes"].items()
    }
    plugin.bind(shapes)
    launch = plugin.launch(shapes, job["attributes"], config)
    chosen = plugin.schema.chosen(job["dtypes"])
    made = plugin.schema.dtypes(plugin.schema.outputs, chosen)
    pointers = dict(zip([one.name for one in plugin.schema.inputs], job["dtypes"], strict=True))
    pointers |= dict(zip([one.name for one in plugin.schema.outputs], made, strict=True))
    types = {name: f"*{_TRITON[dtype]}" for name, dtype in pointers.items()}
    types |= dict.fromkeys(plugin.scalars, "i32")
    capability = int(job["target"].removeprefix("sm"))
    kernel = _kernel(plugin, types, pointers, launch.constants, capability, config)
    metadata = kernel.metadata._asdict()
    reason = ptx.refusal(metadata)
    if reason is not None:
        fix = "load and store through the kernel's own pointers, without descriptors; let each program do its own work"
        raise plugin.error(f"the kernel cannot be launched by TensorRT: {reason}", "kernel", fix)
    code = ptx.launchable(kernel.asm["ptx"], len(types))
    registers, spilled = _assembled(code, capability)
    return {
        "plugin": plugin.qualified,
        "target": job["target"],
        "entry": ptx.entry_name(code),
        "code": code,
        "threads": ptx.threads(code),
        "shared": int(metadata["shared"]),
        "registers": registers,
        "spilled": spilled,
        "inputs": list(shapes),
        "dtypes": list(job["dtypes"]),
        "output_dtypes": list(made),
        "grid": [tree_of(size) for size in launch.grid],
        "scalars": {name: tree_of(size) for name, size in launch.scalars.items()},
        "outputs": [[tree_of(size) for size in shape] for shape in plugin.outputs(shapes, job["attributes"])],
        "config": dict(config),
        "digest": hashlib.sha256(code.encode()).hexdigest(),
        "source": plugin.digest,
    }


def _kernel(
    plugin: Plugin,
    types: Mapping[str, str],
    pointers: Mapping[str, str],
    constants: Mapping[str, Any],
    capability: int,
    config: Mapping[str, Any],
) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler.errors import CompilationError, UnsupportedLanguageConstruct
    from triton.runtime.errors import PTXASError

    names = plugin.kernel.arg_names
    source = ASTSource(
        fn=plugin.kernel,
        signature={name: types.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        # TensorRT aligns tensors to 256 bytes, so that loads of 16 are possible.
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in pointers},
    )
    options = {name: config[name] for name in OPTIONS if name in config}
    # Said in so many words, for its default is not the same in every version.
    options |= {"enable_fp_fusion": True, "ptx_version": ptx.ISA[capability]}
    target = GPUTarget("cuda", capability, 32)
    try:
        try:
            return triton.compile(source, target=target, options=options)
        except PTXASError as error:
            needed = ptx.needed_isa(str(error))
            if needed is None:
                raise
            return triton.compile(source, target=target, options=options | {"ptx_version": needed})
    except (CompilationError, UnsupportedLanguageConstruct) as error:
        line = plugin.lines["kernel"] + max((error.node.lineno if error.node is not None else 1) - 1, 0)
        raise PluginError(
            f"plugin {plugin.name}: the kernel does not compile{_with(config)}: {reason_of(error)}",
            where=f"{plugin.file}:{line}",
            fix=_FIX,
        ) from error
    except (PTXASError, RuntimeError, AssertionError, ValueError, TypeError, KeyError) as error:
        said = " ".join(str(error).split())[:500]
        raise plugin.error(
            f"the kernel does not compile{_with(config)}: {type(error).__name__}: {said}", "kernel", _FIX
        ) from error


_FIX = "correct the kernel, or the config and what launch makes of it; `aot plugin check` runs it, sizes and all"


def _with(config: Mapping[str, Any]) -> str:
    return f" with {', '.join(f'{name}={value}' for name, value in config.items())}" if config else ""


def reason_of(error: BaseException) -> str:
    """What the compiler says, or its first cause; where that says nothing, as a bare assertion does, the line of it.

    Triton's errors are of nested calls, with the message apart from the text, which is a piece of the kernel.
    """
    while error.__cause__ is not None:
        error = error.__cause__
    said = " ".join(str(getattr(error, "error_message", None) or error).split())
    if said:
        return said[:500]
    line = traceback.extract_tb(error.__traceback__)[-1].line or "(no message)"
    return f"{type(error).__name__}: {line.strip()}"


def _assembled(code: str, capability: int) -> tuple[int, int]:
    """(registers, spilled bytes) a thread; raises PluginError where the assembler refuses what is left of the text."""
    from triton.backends.nvidia.compiler import get_ptxas

    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "kernel.ptx"
        text.write_text(code)
        command = [
            get_ptxas(capability).path,
            "-v",
            f"--gpu-name={ptx.architecture(code)}",
            str(text),
            "-o",
            "/dev/null",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PluginError(f"the assembler refuses the kernel: {' '.join(done.stderr.split())}")
    used, spilled = re.search(r"Used (\d+) registers", done.stderr), re.search(r"(\d+) bytes spill stores", done.stderr)
    return int(used[1]) if used else 0, int(spilled[1]) if spilled else 0


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
