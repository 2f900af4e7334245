"""Inputs for models with trained weights that say nothing at all about noise: outputs of 1e-5 are no comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def text(shape: Sequence[int]) -> Any:
    """Lines of dark letters on white, float32 [batch, 3, height, width] in [-1, 1]."""
    from PIL import Image, ImageDraw

    batch, _, height, width = shape
    pages = []
    for index in range(batch):
        page = Image.new("L", (width, height), 255)
        draw = ImageDraw.Draw(page)
        for line in range(0, height, 32):
            draw.text((4 + index, line + 4), f"Line {line} of page {index}", fill=0, font_size=24)
        pages.append(np.asarray(page, np.float32) / 127.5 - 1)
    return np.repeat(np.stack(pages)[:, None], 3, axis=1)


def voice(shape: Sequence[int]) -> Any:
    """A vowel at 16 kHz, another pitch in every row: harmonics near three formants, float32 [batch, samples]."""
    batch, samples = shape
    time, rows = np.arange(samples) / 16000, []
    for index in range(batch):
        harmonics = (120 + 20 * index) * np.arange(1, 30)
        near = np.exp(-(((harmonics[:, None] - np.array([700, 1200, 2500])) / 150) ** 2))
        rows.append(((near.sum(1) + 0.02)[:, None] * np.sin(2 * np.pi * harmonics[:, None] * time)).sum(0))
    sound = np.stack(rows)
    return (0.3 * sound / np.abs(sound).max()).astype(np.float32)
