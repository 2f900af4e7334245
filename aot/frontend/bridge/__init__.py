"""Translations of our own, for ops that torch.onnx translates wrongly, not at all, or into a form that TensorRT builds
badly; one file each. A file offers `TRANSLATION`, a table from the torch op to the function that writes it in ONNX."""

from __future__ import annotations

from typing import Any

from aot.frontend.bridge import sdpa

TRANSLATIONS: dict[Any, Any] = {**sdpa.TRANSLATION}
