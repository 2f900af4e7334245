"""From the FP32 graph after surgery to the graph a strongly typed network is built from.

1. `weights.prepare` moves ranges between activations and weights where the recipe wants it.
2. `islands` finds the nodes that must compute in FP32 (`constants`, `chains`: by what they compute; ranges and
   `sensitive`: by what was observed; `schemas`: by what ONNX allows; `patterns`: by what the recipe names).
3. `placement` decides which inputs are quantized (`layers`: what a linear layer is; `attention`, `residual`: what is
   fused; `rules`: what kernels take).
4. `qdq` inserts QuantizeLinear and DequantizeLinear (`scales`: the arithmetic; `weights`: how weights are rounded).
5. `casts` gives everything outside the islands the compute dtype.
"""

from aot.precision.apply import Decision, Outcome, apply

__all__ = ["Decision", "Outcome", "apply"]
