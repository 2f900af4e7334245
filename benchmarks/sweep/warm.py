"""Imported once, in the process that all workers are forked from: whatever torch loads only when it first exports."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings

import torch


def _once() -> None:
    """Export and translate the smallest model there is, and throw it away."""
    silent = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
    with silent[0], silent[1], warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        x = torch.ones(2, 3)
        shapes = {"input": {0: torch.export.Dim("batch", min=1, max=4)}}
        program = torch.export.export(torch.nn.Linear(3, 3), (), {"input": x}, dynamic_shapes=shapes, strict=False)
        torch.onnx.export(program, dynamo=True, verbose=False)
        logging.disable(logging.NOTSET)


_once()
