"""Small configurations for transformers: two layers each, and how a member of the sweep is made of one."""

from __future__ import annotations

from typing import Any

from aot import Dim, Input
from sweep.member import Member

batch = Dim("batch", min=1, opt=2, max=4)
seq = Dim("seq", min=4, opt=12, max=32)
target = Dim("target", min=2, opt=8, max=24)
time = Dim("time", min=1600, opt=3200, max=6400)
frames = Dim("frames", min=16, opt=64, max=128)
height = Dim("height", min=64, opt=96, max=128)
width = Dim("width", min=64, opt=80, max=128)

VOCABULARY = 99
# What most configurations call their sizes.
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
GROUPED = {**SMALL, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
PATCHES = {"image_size": 64, "patch_size": 16, "num_channels": 3}
VIT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    **PATCHES,
}
SPEECH = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "conv_dim": (16, 16, 16),
    "conv_stride": (5, 4, 4),
    "conv_kernel": (10, 4, 4),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "mask_time_prob": 0.0,
}
LAYERS = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}
COUPLED = {
    "vocab_size": VOCABULARY,
    **LAYERS,
    "max_position_embeddings": 64,
    "use_cache": False,
    **TOKENS,
    "decoder_start_token_id": 2,
}

IMPORT = "import transformers"
IDS = Input([batch, seq], "int64", low=3, high=VOCABULARY)
DECODED = Input([batch, target], "int64", low=3, high=VOCABULARY)
MASK = Input([batch, seq], "int64")
TEXT = {"input_ids": IDS, "attention_mask": MASK}
# Some loop over the tokens in Python, or list them: one length, unrolled.
FIXED = {"input_ids": Input([batch, 12], "int64", low=3, high=VOCABULARY)}
IMAGE = {"pixel_values": Input([batch, 3, 64, 64])}
ANY_IMAGE = {"pixel_values": Input([batch, 3, height, width])}
WAVE = {"input_values": Input([batch, time])}


def member(
    name: str, options: dict[str, Any], inputs: dict[str, Input], model: str = "Model", config: str = "Config"
) -> Member:
    """`name` is what the library's classes begin with; `model` and `config`, what they end with."""
    given = ", ".join(f"{key}={value!r}" for key, value in options.items())
    make = f"transformers.{name}{model}(transformers.{name}{config}({given}))"
    padding = "attention_mask" if "attention_mask" in inputs else None
    return Member(name, name, make, inputs, IMPORT, padding)


def encoder(name: str, inputs: dict[str, Input] = TEXT, model: str = "Model", **options: Any) -> Member:
    """An architecture with the usual names."""
    return member(name, {**SMALL, **options}, inputs, model)


def decoder(name: str, model: str = "Model", **options: Any) -> Member:
    """A decoder with grouped heads, without a cache."""
    return member(name, {**GROUPED, **options, "use_cache": False}, TEXT, model)


def only(name: str, inputs: dict[str, Input] = TEXT, model: str = "Model", **options: Any) -> Member:
    """A configuration that shares none of the usual names."""
    return member(name, options, inputs, model)


def coupled(name: str, **options: Any) -> Member:
    """An encoder and a decoder."""
    inputs = {**TEXT, "decoder_input_ids": DECODED}
    return member(name, {**COUPLED, **options}, inputs)


def vit(name: str, model: str = "Model", **options: Any) -> Member:
    """Patches of one size of image."""
    return member(name, {**VIT, **options}, IMAGE, model)


def image(name: str, model: str = "Model", inputs: dict[str, Input] = ANY_IMAGE, **options: Any) -> Member:
    """Images of any size."""
    return member(name, options, inputs, model)


def speech(name: str, inputs: dict[str, Input] = WAVE, **options: Any) -> Member:
    """Raw waves."""
    return member(name, {**SPEECH, **options}, inputs)
