"""What is asked: sentences of random tokens for MiniLM, as whole HTTP requests; and what the answers should be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import aot

Array = np.ndarray[Any, Any]
TOLERANCE = 1e-5
"""Of each of the 384 numbers of a unit-length embedding: a batch adds in another order than a single row."""
HEADER_LENGTH = b"Inference-Header-Content-Length: %d"


def feeds(count: int, length: int, seed: int = 0) -> list[dict[str, Array]]:
    """Inputs of that many sentences, each int64 [1, length]: random tokens between [CLS] and [SEP]."""
    random = np.random.default_rng(seed)
    ids = random.integers(1000, 30000, (count, 1, length))
    ids[:, :, 0], ids[:, :, -1] = 101, 102
    return [
        {"input_ids": one, "attention_mask": np.ones_like(one), "token_type_ids": np.zeros_like(one)} for one in ids
    ]


def direct(artifact: Path, given: list[dict[str, Array]]) -> list[Array]:
    """The embedding of each, by a session of its own, one by one."""
    with aot.load(artifact) as session:
        return [session(one)["embedding"][0] for one in given]


def as_http(model: str, feed: dict[str, Array]) -> bytes:
    """A whole request, tensors as bytes in both directions."""
    inputs = [
        {"name": n, "shape": a.shape, "datatype": "INT64", "parameters": {"binary_data_size": a.nbytes}}
        for n, a in feed.items()
    ]
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    body = head + b"".join(array.tobytes() for array in feed.values())
    lines = [
        f"POST /v2/models/{model}/infer HTTP/1.1".encode(),
        b"Host: localhost",
        b"Content-Length: %d" % len(body),
        HEADER_LENGTH % len(head),
    ]
    return b"\r\n".join([*lines, b"", body])


def right(answer: bytes, wanted: Array) -> bool:
    """Whether a whole HTTP response carries this embedding."""
    if not answer.startswith(b"HTTP/1.1 200 "):
        return False
    found = np.frombuffer(answer[-wanted.nbytes :], wanted.dtype)
    return bool(np.abs(found - wanted).max() <= TOLERANCE)
