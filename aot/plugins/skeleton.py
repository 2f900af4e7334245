"""The file that `aot plugin new` writes: a whole plugin that works, to be changed."""

from __future__ import annotations

import keyword
import os
from pathlib import Path
from string import Template

from aot import content
from aot.errors import UsageError
from aot.plugins.header import TORCHS_OWN

_TEXT = Template('''"""What the op computes, in one sentence: y = silu(a · slope) · b."""

import math

import torch
import triton
import triton.language as tl

from aot.plugin import Launch, ceil_div

NAME = "$domain::$name"
SCHEMA = "(T a, T b, float slope=1.0) -> (T y)"
TYPES = {"T": "float32 float16 bfloat16"}
SHAPES = {"a": "... width", "b": "... width"}
ATTRIBUTES = {"slope": [0.5]}  # checked beside the default
CONFIGS = [{"block": 1024, "num_warps": 4}, {"block": 2048, "num_warps": 8}]


def reference(a, b, slope):
    """What is right, in FP32, for any size."""
    y = torch.nn.functional.silu(a.float() * slope) * b.float()
    return y.to(a.dtype)


def outputs(shapes, attributes):
    return (shapes.a,)


def launch(shapes, attributes, config):
    *leading, width = shapes.a
    blocks = ceil_div(width, config["block"])
    return Launch(
        grid=(math.prod(leading) * blocks,),
        scalars={"width": width, "blocks": blocks},
        constants={"SLOPE": attributes.slope, "BLOCK": config["block"]},
    )


@triton.jit
def kernel(a, b, width, blocks, y, SLOPE: tl.constexpr, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    row = (program // blocks).to(tl.int64)  # a tensor may have more than 2^31 elements
    column = program % blocks * BLOCK + tl.arange(0, BLOCK)
    at = row * width + column
    inside = column < width
    gate = tl.load(a + at, mask=inside, other=0.0).to(tl.float32) * SLOPE
    value = tl.load(b + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + at, (gate * tl.sigmoid(gate) * value).to(y.dtype.element_ty), mask=inside)
''')


def write(name: str, domain: str, folder: Path) -> Path:
    """Write `folder/NAME.py` and return it. Raises UsageError for a name that no op can have, or that is taken."""
    for word, what in ((name, "an op"), (domain, "a domain")):
        if not word.isidentifier() or keyword.iskeyword(word) or word.startswith("_"):
            raise UsageError(f"'{word}' cannot be the name of {what}", fix="letters, digits and underscores: my_op")
    if domain in TORCHS_OWN or domain.startswith("onnx"):
        raise UsageError(f"the domain '{domain}' is taken", fix="--domain mine")
    if name in content.names("plugins"):
        raise UsageError(
            f"'{name}' is a built-in plugin, which yours would hide",
            where=str(content.names("plugins")[name]),
            fix="take another name",
        )
    file = folder / f"{name}.py"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "w") as written:
            written.write(_TEXT.substitute(name=name, domain=domain))
    except FileExistsError as error:
        if not folder.is_dir():
            raise UsageError(
                f"'{folder}' is no folder, and plugins are files in one", where=str(folder), fix="move that file away"
            ) from error
        raise UsageError(f"there is a plugin '{name}' already", where=str(file), fix="take another name") from error
    except OSError as error:
        raise UsageError(f"the plugin cannot be written: {error.strerror}", where=str(file)) from error
    return file
