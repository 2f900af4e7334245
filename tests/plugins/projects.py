"""Plugins and projects that tests write."""

from __future__ import annotations

from pathlib import Path

TRIPLE = '''"""y = 3 x + shift."""
import math
import torch
import triton
import triton.language as tl
from aot.plugin import Launch, ceil_div

NAME = "mine::triple"
SCHEMA = "(T x, float shift=0.0) -> (T y)"
TYPES = {"T": "float32 float16"}
SHAPES = {"x": "... width"}
CONFIGS = [{"block": 16, "num_warps": 1}]


def reference(x, shift):
    return (x.float() * 3.0 + shift).to(x.dtype)


def outputs(shapes, attributes):
    return (shapes.x,)


def launch(shapes, attributes, config):
    count = math.prod(shapes.x)
    return Launch(
        grid=(ceil_div(count, config["block"]),),
        scalars={"count": count},
        constants={"SHIFT": attributes.shift, "BLOCK": config["block"]},
    )


@triton.jit
def kernel(x, count, y, SHIFT: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < count, other=0.0).to(tl.float32)
    tl.store(y + at, (value * 3.0 + SHIFT).to(y.dtype.element_ty), mask=at < count)
'''


def write(folder: Path, name: str = "triple", *changes: tuple[str, str], text: str = TRIPLE) -> Path:
    """`folder/plugins/NAME.py`: TRIPLE, with each (old, new) of its text changed once."""
    text = text.replace("mine::triple", f"mine::{name}")
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new, 1)
    (folder / "plugins").mkdir(exist_ok=True, parents=True)
    file = folder / "plugins" / f"{name}.py"
    file.write_text(text)
    return file


def line_of(file: Path, text: str) -> str:
    """`file:line` of the first line that holds the text."""
    number = next(i for i, line in enumerate(file.read_text().splitlines(), 1) if text in line)
    return f"{file}:{number}"
