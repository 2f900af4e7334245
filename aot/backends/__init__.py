"""The backends there are. Each module holds one `BACKEND`; importing it imports no vendor library."""

from __future__ import annotations

NAMES = ("tensorrt", "tensorrt_rtx", "onnxruntime")
