"""What `benchmarks/plugins.py` measures: each plugin's sizes, and what there is to measure it against.

To add a plugin, add an entry to CASES; what is written with torch goes to `peers.py`. A plugin without one is measured
at sizes that follow from its SHAPES, against its reference alone, and its rows say so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from plugins import peers

Sizes = Mapping[str, Any]
Function = Callable[..., Any]
"""Takes the plugin's inputs and then its attributes, all in the order of SCHEMA, and returns what the plugin does."""


@dataclass(frozen=True)
class Op:
    """One plugin.

    sizes: three, small to large, by the names of SHAPES; "..." is a tuple of leading axes; attributes may stand among
    them. types: name of TYPES -> dtype, the first of TYPES where it is left out. eager: what one would write with
    torch, in the inputs' own dtype; the reference, which computes in FP32, where it is None. `torch.compile` compiles
    it, too, unless `compiles` is False. peers: name -> a library's own function. flops: of sizes and attributes, for a
    plugin that multiplies matrices; others are held against a copy of as many bytes as inputs and outputs have.
    sample: random inputs by name made into usual ones, in place of the plugin's own, which has edge cases in mind.
    """

    sizes: Sequence[Sizes]
    types: Mapping[str, str] = field(default_factory=dict)
    eager: Function | None = None
    compiles: bool = True
    peers: Mapping[str, Function] = field(default_factory=dict)
    flops: Callable[[Sizes], float] | None = None
    sample: Callable[[dict[str, Any]], dict[str, Any]] | None = None


def _rows(width: int, *counts: int, **attributes: Any) -> list[Sizes]:
    return [{"...": (count,), "width": width, **attributes} for count in counts]


def _products(**attributes: Any) -> list[Sizes]:
    """The first linear layer of BERT-base's feed-forward part."""
    return [{"...": (rows,), "depth": 768, "width": 3072, **attributes} for rows in (1024, 8192, 32768)]


def _product_flops(s: Sizes) -> float:
    return 2.0 * s["..."][0] * s["depth"] * s["width"]


def _gates(**attributes: Any) -> list[Sizes]:
    """Gate and up projection of Llama 3 8B."""
    return [{"...": (rows,), "doubled": 2 * 14336, **attributes} for rows in (128, 2048, 8192)]


def _attention(batch: int, length: int, heads: int, kv_heads: int, head: int, causal: bool) -> Sizes:
    """Queries and keys of one length."""
    widths = {"width": heads * head, "kv_width": kv_heads * head}
    return {"batch": batch, "queries": length, "keys": length, **widths, "heads": heads, "causal": causal}


def _attention_flops(s: Sizes) -> float:
    return 4.0 * s["batch"] * s["queries"] * s["keys"] * s["width"] / (2 if s["causal"] else 1)


def _pyramid(queries: int, batch: int) -> Sizes:
    """Four levels of a picture of 800 x 1066, at strides of 8 to 64."""
    places = sum(rows * columns for rows, columns in peers.LEVELS)
    sizes = {"batch": batch, "positions": places, "heads": 8, "width": 32, "levels": 4, "points": 4}
    return {**sizes, "queries": queries or places}


def _deformed(batch: int, side: int) -> Sizes:
    channels = {"channels": 256, "out_channels": 256, "kernel_h": 3, "kernel_w": 3, "offsets": 18, "taps": 9}
    place = {"height": side, "width": side, "out_height": side, "out_width": side, "padding_h": 1, "padding_w": 1}
    return {"batch": batch, **channels, **place}


def _volume(batch: int, channels: int, side: int) -> Sizes:
    places = {name: side for name in ("depth", "height", "width", "out_depth", "out_height", "out_width")}
    return {"batch": batch, "channels": channels, **places}


def _flow(batch: int, height: int, width: int) -> Sizes:
    return {"batch": batch, "height": height, "width": width, "rows": height, "columns": width, "channels": 256}


CASES: dict[str, Op] = {
    "add_rms_norm": Op(
        sizes=_rows(4096, 128, 2048, 16384),
        types={"T": "bfloat16"},
        peers={"F.rms_norm": peers.add_rms_norm},
    ),
    "add_layer_norm": Op(
        sizes=_rows(768, 512, 8192, 65536),
        types={"T": "float16"},
        peers={"F.layer_norm": peers.add_layer_norm},
    ),
    "add_rms_norm_fp8": Op(sizes=_rows(4096, 128, 2048, 16384, scale=0.02), types={"T": "bfloat16"}),
    "add_rms_norm_int8": Op(sizes=_rows(4096, 128, 2048, 16384, scale=0.02), types={"T": "bfloat16"}),
    "add_layer_norm_fp8": Op(sizes=_rows(768, 512, 8192, 65536, scale=0.02), types={"T": "float16"}),
    "add_layer_norm_int8": Op(sizes=_rows(768, 512, 8192, 65536, scale=0.02), types={"T": "float16"}),
    "rotary": Op(
        sizes=[{"...": (batch, 32), "positions": 2048, "width": 128, "head": 128} for batch in (1, 4, 16)],
        types={"T": "bfloat16", "C": "float32"},
        peers={"rotate_half": peers.rotary},
    ),
    "attention": Op(
        sizes=[
            _attention(8, 128, 12, 12, 64, causal=False),
            _attention(64, 512, 12, 12, 64, causal=False),
            _attention(8, 2048, 32, 8, 128, causal=True),
        ],
        types={"T": "float16"},
        eager=peers.attention,
        peers={"sdpa without mask": peers.attention_without_mask},
        flops=_attention_flops,
        sample=lambda inputs: {**inputs, "mask": inputs["mask"] * 0},
    ),
    "gemm_epilogue": Op(sizes=_products(), types={"T": "float16"}, eager=peers.gemm_epilogue, flops=_product_flops),
    "gemm_residual": Op(
        sizes=[{"...": (rows,), "depth": 3072, "width": 768} for rows in (1024, 8192, 32768)],
        types={"T": "float16"},
        eager=peers.gemm_residual,
        flops=_product_flops,
    ),
    "gemm_quant": Op(
        sizes=_products(),
        types={"Q": "int8", "T": "float16"},
        eager=peers.gemm_quant,
        flops=_product_flops,
        sample=peers.small_scales,
    ),
    "gemm_requant": Op(
        sizes=_products(y_scale=0.02),
        types={"Q": "float8_e4m3fn", "T": "float16"},
        eager=peers.gemm_requant,
        flops=_product_flops,
        sample=peers.small_scales,
    ),
    "swiglu": Op(sizes=_gates(), types={"T": "bfloat16"}, eager=peers.swiglu),
    "swiglu_fp8": Op(sizes=_gates(scale=0.02), types={"T": "bfloat16"}),
    "swiglu_int8": Op(sizes=_gates(scale=0.02), types={"T": "bfloat16"}),
    "deform_conv2d": Op(
        sizes=[_deformed(1, 32), _deformed(2, 64), _deformed(8, 64)],
        types={"T": "float16"},
        peers={"torchvision": peers.deform_conv2d},
        flops=lambda s: 2.0 * s["batch"] * s["out_height"] * s["out_width"] * s["out_channels"] * s["channels"] * 9,
    ),
    "ms_deform_attn": Op(
        sizes=[_pyramid(300, 1), _pyramid(0, 1), _pyramid(0, 4)],
        types={"T": "float16", "I": "int64"},
        peers={"grid_sample": peers.ms_deform_attn},
        sample=peers.pyramid,
    ),
    "grid_sample_3d": Op(
        sizes=[_volume(1, 32, 32), _volume(2, 32, 64), _volume(1, 32, 128)],
        types={"T": "float16"},
        peers={"F.grid_sample": peers.grid_sample_3d},
    ),
    "bev_pool": Op(
        sizes=[
            {"batch": batch, "bins": 6 * 59 * 704, "pixels": 6 * 704, "channels": channels, "points": points,
             "cells_and_1": 128 * 128 + 1}
            for batch, channels, points in ((1, 80, 50_000), (1, 80, 200_000), (4, 128, 200_000))
        ],
        types={"T": "float16"},
        peers={"index_add": peers.bev_pool},
    ),
    "local_correlation": Op(
        sizes=[_flow(1, 30, 64), _flow(1, 55, 128), _flow(4, 55, 128)],
        types={"T": "float16"},
        sample=peers.flow,
    ),
    "selective_scan": Op(
        sizes=[
            {"batch": batch, "length": length, "channels": channels, "states": 16}
            for batch, length, channels in ((1, 512, 1536), (1, 2048, 1536), (8, 2048, 1536))
        ],
        types={"T": "bfloat16"},
        peers={"loop over time": peers.selective_scan},
    ),
    "segment_reduce": Op(
        sizes=[
            {"edges": edges, "width": 128, "bounds": edges // 16 + 1} for edges in (20_000, 320_000, 2_560_000)
        ],
        types={"T": "float32", "I": "int64"},
        peers={"torch.segment_reduce": peers.segment_reduce},
        sample=peers.segments,
    ),
    "scatter_reduce": Op(
        sizes=[
            {"edges": edges, "width": 128, "nodes": edges // 8, "features": 128} for edges in (4_096, 16_384, 65_536)
        ],
        types={"T": "float32", "I": "int64"},
        peers={"index_add": peers.scatter_reduce},
        sample=peers.nodes,
    ),
    "nms": Op(
        sizes=[{"...": (items,), "candidates": count} for items, count in ((1, 1000), (1, 8400), (80, 1000))],
        types={"T": "float32", "S": "float32"},
        peers={"torchvision": peers.nms},
    ),
}  # fmt: skip
