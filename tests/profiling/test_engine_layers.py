"""What is asked of the vendor's profiler and inspector, with a stand-in for the engine and its context."""

from __future__ import annotations

import json
from types import ModuleType, SimpleNamespace
from typing import Any

from aot.backend import LayerTime
from aot.backends import _engine_layers

LAYERS = [
    {"Name": "conv1 + relu1", "Metadata": "[ONNX Layer: conv1]\x1e[ONNX Layer: relu1]"},
    {"Name": "__myl_Fc_myl0_1", "Metadata": "[ONNX Layer: fc | call (aot::rotary)]\x1f[ONNX Layer: bias]"},
    {"Name": "_gemm_mha_v2_myl0_2", "Metadata": "[ONNX Layer: softmax][matmul_1][matmul_0]"},
    {"Name": "copy", "Metadata": ""},
    "a layer of an engine without details",
]
NODES = {
    "conv1 + relu1": ("conv1", "relu1"),
    "__myl_Fc_myl0_1": ("fc", "bias"),
    "_gemm_mha_v2_myl0_2": ("softmax", "matmul_1", "matmul_0"),
    "copy": (),
}


class Engine:
    def create_engine_inspector(self) -> Any:
        # The vendor writes the separators as they are, which JSON does not allow.
        text = json.dumps({"Layers": LAYERS}).replace("\\u001e", "\x1e").replace("\\u001f", "\x1f")
        return SimpleNamespace(get_engine_information=lambda form: {"json": text}[form])


class Profiler:
    def __init__(self) -> None:
        self.made = True


class Context:
    """Reports two layers a run, of which one runs twice in it."""

    profiler: Any = None
    enqueue_emits_profile = False

    def __init__(self) -> None:
        self.times = iter([(9.0, 0.5, 0.5), (1.0, 0.25, 0.5), (3.0, 0.25, 0.25)])

    def run(self, times: int) -> float:
        assert (times, self.enqueue_emits_profile, self.profiler.made) == (1, True, True)
        conv, first, second = next(self.times)
        self.profiler.report_layer_time("conv1 + relu1", conv)
        self.profiler.report_layer_time("__myl_Fc_myl0_1 [profile 1]", first)
        self.profiler.report_layer_time("__myl_Fc_myl0_1 [profile 1]", second)
        return 0.0


def vendor() -> ModuleType:
    trt: Any = ModuleType("tensorrt")
    trt.IProfiler, trt.LayerInformationFormat = Profiler, SimpleNamespace(JSON="json")
    return trt  # type: ignore[no-any-return]


def test_layers_say_which_nodes_they_are_made_of() -> None:
    assert _engine_layers.nodes_by_layer(vendor(), Engine()) == NODES


def test_each_layer_has_the_median_of_its_runs_in_whatever_profile() -> None:
    context = Context()
    found = _engine_layers.layer_times(vendor(), Engine(), context, context.run, 3)
    assert found == [
        LayerTime("conv1 + relu1", 3.0, ("conv1", "relu1")),
        LayerTime("__myl_Fc_myl0_1 [profile 1]", 0.75, ("fc", "bias")),
    ]
