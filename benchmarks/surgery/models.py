"""The models: exported by `torch.onnx.export` as its documentation has it, or as they lie in a public package.

`python -m surgery.models NAME FILE` writes one. Weights of exported models are random but settled
(`sweep/settle.py`), so that no constant is one or zero throughout and no rewrite is right by chance.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot import Dim, Input
from surgery import samples

if TYPE_CHECKING:
    import torch

batch = Dim("batch", min=1, opt=3, max=64)
seq = Dim("seq", min=2, opt=24, max=512)
VOCABULARY = 1024
"""Rows of an embedding that has nothing to do with what is measured."""
IMAGE = Input([batch, 3, 224, 224])
TEXT = {
    "input_ids": Input([batch, seq], "int64", low=0, high=VOCABULARY),
    "attention_mask": Input([batch, seq], "int64", low=1, high=2),  # a row that is masked throughout means nothing
}


@dataclass(frozen=True)
class Packaged:
    """An ONNX file with trained weights. path: within the folder of the package that is imported as `package`.

    samples: inputs, by name, that noise would say nothing about; a function makes one of a shape.
    """

    package: str
    path: str
    inputs: Mapping[str, Input]
    samples: Mapping[str, Callable[[Sequence[int]], Any]] = field(default_factory=dict)

    def write(self, file: Path) -> None:
        """Copy it. Raises ImportError where the package is not installed."""
        found = importlib.util.find_spec(self.package)
        if found is None or not found.submodule_search_locations:
            raise ImportError(f"no package '{self.package}'")
        file.write_bytes(Path(found.submodule_search_locations[0], self.path).read_bytes())


@dataclass(frozen=True)
class Exported:
    """A module and the inputs it is exported with. dynamo: False for the exporter that traces with TorchScript."""

    make: Callable[[], torch.nn.Module]
    inputs: Mapping[str, Input]
    dynamo: bool = True
    settle: bool = True
    samples: Mapping[str, Callable[[Sequence[int]], Any]] = field(default_factory=dict)

    def write(self, file: Path) -> None:
        """Export it, every Dim dynamic. Raises ImportError where its library is missing."""
        import torch
        from sweep.settle import settled

        from aot.batches import generated
        from aot.declaration import ModelSpec

        torch.manual_seed(0)
        module = settled(self.make(), self.inputs) if self.settle else self.make()
        spec = ModelSpec(file.stem, self.inputs)
        sizes = {name: dim.bounds[1] for name, dim in spec.dims.items()}
        given = {name: torch.from_numpy(values) for name, values in generated(spec, sizes, seed=0).items()}
        axes = {
            name: {axis: dim for axis, dim in enumerate(tensor.shape) if isinstance(dim, Dim)}
            for name, tensor in self.inputs.items()
        }
        options: dict[str, Any] = {"input_names": list(given)}
        if self.dynamo:
            dims = {name: torch.export.Dim(name, min=d.bounds[0], max=d.bounds[2]) for name, d in spec.dims.items()}
            options["dynamic_shapes"] = {name: {a: dims[d.name] for a, d in of.items()} for name, of in axes.items()}
        else:
            options["dynamic_axes"] = {name: {a: d.name for a, d in of.items()} for name, of in axes.items()}
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            torch.onnx.export(module, kwargs=given, f=str(file), dynamo=self.dynamo, verbose=False, **options)


def vision(name: str) -> Callable[[], torch.nn.Module]:
    """A model of torchvision."""

    def make() -> torch.nn.Module:
        import torchvision

        module: torch.nn.Module = torchvision.models.get_model(name, weights=None)
        return module

    return make


def transformer(name: str, config: str, **options: Any) -> Callable[[], torch.nn.Module]:
    """A model of transformers, by the names of its class and its configuration's."""

    def make() -> torch.nn.Module:
        import transformers

        module: torch.nn.Module = getattr(transformers, name)(getattr(transformers, config)(**options))
        return module

    return make


def minilm() -> torch.nn.Module:
    """The example's sentence encoder with its trained weights."""
    import runpy

    example = runpy.run_path(str(Path(__file__).resolve().parents[2] / "examples/minilm/model.py"))
    module: torch.nn.Module = example["minilm"]()
    return module


def whisper_encoder() -> torch.nn.Module:
    """The encoder of Whisper base, over its 30 seconds."""
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    return WhisperEncoder(WhisperConfig(d_model=512, encoder_layers=6, encoder_attention_heads=8, encoder_ffn_dim=2048))


DECODER = {"vocab_size": VOCABULARY, "num_hidden_layers": 2, "use_cache": False, "pad_token_id": 0}
LLAMA = {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8}
QWEN = {"hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 8}
DETR = {"use_pretrained_backbone": False, "backbone": "resnet50", "use_timm_backbone": True}
SEGFORMER = {"num_labels": 150, "decoder_hidden_size": 256}
SPEECH = {
    "input": Input([batch, 576]),
    "state": Input([2, batch, 128]),
    "sr": Input([], "int64", low=16000, high=16001),
}
TYPES = {**TEXT, "token_type_ids": Input([batch, seq], "int64", low=0, high=2)}
height = Dim("height", min=64, opt=96, max=640, multiple_of=32)
width = Dim("width", min=64, opt=128, max=640, multiple_of=32)
length = Dim("length", min=160, opt=320, max=640, multiple_of=8)

MODELS: dict[str, Exported | Packaged] = {
    "resnet50": Exported(vision("resnet50"), {"x": IMAGE}),
    "vit_b_16": Exported(vision("vit_b_16"), {"x": IMAGE}),
    "convnext_tiny": Exported(vision("convnext_tiny"), {"x": IMAGE}),
    "swin_t": Exported(vision("swin_t"), {"x": IMAGE}),
    "swin_t-torchscript": Exported(vision("swin_t"), {"x": IMAGE}, dynamo=False),
    "minilm": Exported(minilm, TYPES, settle=False),
    "bert-base": Exported(transformer("BertModel", "BertConfig", vocab_size=VOCABULARY), TYPES),
    "llama-layers": Exported(transformer("LlamaModel", "LlamaConfig", **LLAMA, **DECODER), TEXT),
    "qwen-layers": Exported(transformer("Qwen3Model", "Qwen3Config", **QWEN, head_dim=128, **DECODER), TEXT),
    "whisper-encoder": Exported(whisper_encoder, {"input_features": Input([batch, 80, 3000])}),
    "detr": Exported(
        transformer("DetrForObjectDetection", "DetrConfig", **DETR), {"pixel_values": Input([batch, 3, 256, 256])}
    ),
    "segformer-b0": Exported(
        transformer("SegformerForSemanticSegmentation", "SegformerConfig", **SEGFORMER),
        {"pixel_values": Input([batch, 3, 224, 224])},
    ),
    "efficientnet_b0": Exported(vision("efficientnet_b0"), {"x": IMAGE}),
    "mobilenet_v2": Exported(vision("mobilenet_v2"), {"x": IMAGE}),
    "mobilenet_v3_large": Exported(vision("mobilenet_v3_large"), {"x": IMAGE}),
    "pp-ocr-v4-det": Packaged(
        "rapidocr_onnxruntime",
        "models/ch_PP-OCRv4_det_infer.onnx",
        {"x": Input([batch, 3, height, width])},
        {"x": samples.text},
    ),
    "pp-ocr-v4-rec": Packaged(
        "rapidocr_onnxruntime",
        "models/ch_PP-OCRv4_rec_infer.onnx",
        {"x": Input([batch, 3, 48, length])},
        {"x": samples.text},
    ),
    "silero": Packaged("silero_vad", "data/silero_vad.onnx", SPEECH, {"input": samples.voice}),
    "silero-op15": Packaged("silero_vad", "data/silero_vad_16k_op15.onnx", SPEECH, {"input": samples.voice}),
    "silero-op18": Packaged("silero_vad", "data/silero_vad_op18_ifless.onnx", SPEECH, {"input": samples.voice}),
    "magika": Packaged(
        "magika", "models/standard_v3_3/model.onnx", {"bytes": Input([batch, 2048], "int32", low=0, high=257)}
    ),
    "basic-pitch": Packaged(
        "basic_pitch", "saved_models/icassp_2022/nmp.onnx", {"serving_default_input_2:0": Input([batch, 43844, 1])}
    ),
    "dnsmos": Packaged("speechmos", "dnsmos_models/sig_bak_ovr.onnx", {"input_1": Input([batch, 144160])}),
    "dnsmos-p808": Packaged("speechmos", "dnsmos_models/model_v8.onnx", {"input_1": Input([batch, 900, 120])}),
}


if __name__ == "__main__":
    MODELS[sys.argv[1]].write(Path(sys.argv[2]))
