"""What is measured: models, their precisions and sizes, in the order of what matters most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

NARROW = ("fp16", "int8", "fp8")
PRECISIONS: Mapping[str, tuple[str, ...]] = {
    "bert_base": NARROW,
    "resnet50": ("fp16", "int8"),
    "vit_b_16": NARROW,
    "minilm": NARROW,
    "llama_1b": ("fp16", "fp8"),
    "swin_t": NARROW,
    "mobilenet_v2": ("fp16", "int8"),
    "resemblyzer": ("fp16",),
}
"""FP8 convolutions are slower than FP16 ones in TensorRT 10.6, and an LSTM is left alone by every recipe."""
LENGTHS: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "bert_base": ("seq", (128, 512, 16)),
    "minilm": ("seq", (128, 512, 16)),
    "llama_1b": ("past", (128, 512, 16)),
}
"""The Dim of a length, and its sizes."""
BATCHES = (1, 64, 8)


@dataclass(frozen=True)
class Cell:
    """A model at one size."""

    model: str
    sizes: Mapping[str, int]

    @property
    def batch(self) -> int:
        """Samples in a call."""
        return self.sizes["batch"]

    @property
    def length(self) -> int | None:
        """Tokens of a sample, or of the past; None for pictures and speech of one length."""
        dim, _ = LENGTHS.get(self.model, ("", ()))
        return self.sizes.get(dim)

    @property
    def dims(self) -> list[str]:
        """The range of each Dim as `--dim` takes it, tuned for this size: kernels chosen for one batch size lose at
        another. From the smallest on, for the reference cases that travel are small."""
        return [f"{name}={LOWEST[name]}:{size}:{size}" for name, size in self.sizes.items()]

    @property
    def label(self) -> str:
        """`bert_base 64 x 512`."""
        return f"{self.model} {self.batch}" + ("" if self.length is None else f" x {self.length}")


LOWEST = {"batch": 1, "seq": 16, "past": 16}
"""The smallest size of each Dim in `models.py`."""


def cells() -> list[Cell]:
    """Every model at batch 1 and its first length, then the other batches, then the other lengths."""
    found = []
    for rank in range(3):
        for size in BATCHES:
            for model in PRECISIONS:
                dim, lengths = LENGTHS.get(model, ("", ()))
                if dim:
                    found.append(Cell(model, {"batch": size, dim: lengths[rank]}))
                elif rank == 0:
                    found.append(Cell(model, {"batch": size}))
    return found
