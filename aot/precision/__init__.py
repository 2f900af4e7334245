"""From the FP32 graph after surgery to the graph a strongly typed network is built from.

1. `islands` finds the nodes that must compute in FP32 (`constants`, `chains`: by what they compute; ranges: by
   what was observed; `schemas`: by what ONNX allows).
2. `placement` decides which inputs are quantized (`layers`: what a linear layer is; `rules`: what kernels take).
3. `qdq` inserts QuantizeLinear and DequantizeLinear (`scales`: the arithmetic).
4. `casts` gives everything outside the islands the compute dtype.
"""

from aot.precision.apply import Decision, Outcome, apply

__all__ = ["Decision", "Outcome", "apply"]
