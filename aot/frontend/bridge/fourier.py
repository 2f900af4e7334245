"""Discrete Fourier transforms as matrix products: no backend takes ONNX's DFT or STFT.

X[k] = sum over n of x[n] e^(-2 pi i k n / N). The matrices are computed in the graph from N, which may be dynamic; k n
is reduced modulo N in whole numbers first, so that the angles keep all their digits. Normalization is torch's: 0 none,
1 by the root of N, 2 by N.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

# A matrix of this many rows takes 64 MiB.
LONGEST = 4096

Parts = tuple[torch.Tensor, torch.Tensor]


def _waves(rows: Any, columns: Any, period: Any, dtype: torch.dtype) -> Parts:
    """cos and sin of 2 pi k n / period, k < rows, n < columns."""
    if isinstance(period, int) and period > LONGEST:
        raise NotImplementedError(f"a Fourier transform of length {period}, beyond {LONGEST}, as a matrix product")
    turns = torch.remainder(torch.arange(rows)[:, None] * torch.arange(columns), torch.full((), period))
    angle = turns.to(dtype) * (2.0 * math.pi / period)
    return torch.cos(angle), torch.sin(angle)


def _along(x: torch.Tensor, dim: int, matrix: torch.Tensor) -> torch.Tensor:
    """Multiply along one axis: [.., N, ..] with [K, N]."""
    return torch.matmul(x.transpose(dim, -1), matrix.t()).transpose(dim, -1)


def _scale(sizes: Sequence[Any], normalization: int) -> Any:
    count = math.prod(sizes)
    return (1.0, count**-0.5, 1.0 / count)[normalization]


def real_to_complex(x: torch.Tensor, dims: Sequence[int], normalization: int, onesided: bool) -> Parts:
    """aten::_fft_r2c: the last of `dims` is transformed first, to N // 2 + 1 values where `onesided`."""
    sizes = [x.shape[dim] for dim in dims]
    last, length = dims[-1], sizes[-1]
    cos, sin = _waves(length // 2 + 1 if onesided else length, length, length, x.dtype)
    re, im = _along(x, last, cos), -_along(x, last, sin)
    re, im = complex_to_complex(re, im, dims[:-1], 0, True)
    factor = _scale(sizes, normalization)
    return re * factor, im * factor


def complex_to_complex(
    re: torch.Tensor, im: torch.Tensor, dims: Sequence[int], normalization: int, forward: bool
) -> Parts:
    """aten::_fft_c2c: forward with e^(-i), else with e^(+i)."""
    factor = _scale([re.shape[dim] for dim in dims], normalization)
    for dim in dims:
        length = re.shape[dim]
        cos, sin = _waves(length, length, length, re.dtype)
        sin = -sin if forward else sin
        re, im = _along(re, dim, cos) - _along(im, dim, sin), _along(re, dim, sin) + _along(im, dim, cos)
    return re * factor, im * factor


def complex_to_real(re: torch.Tensor, im: torch.Tensor, dims: Sequence[int], normalization: int, length: Any) -> Any:
    """aten::_fft_c2r: half a spectrum along the last of `dims` to `length` real values."""
    sizes = [*(re.shape[dim] for dim in dims[:-1]), length]
    re, im = complex_to_complex(re, im, dims[:-1], 0, False)
    last, half = dims[-1], length // 2 + 1
    re, im = re.narrow(last, 0, half), im.narrow(last, 0, half)
    cos, sin = _waves(length, half, length, re.dtype)
    # All but the first and, of an even length, the middle stand for two conjugate values.
    place = torch.arange(half)
    twice = 2.0 - ((place == 0) | (place * 2 == length)).to(re.dtype)
    return (_along(re, last, cos * twice) - _along(im, last, sin * twice)) * _scale(sizes, normalization)


def _window(window: torch.Tensor | None, short: int, length: int, dtype: torch.dtype) -> torch.Tensor:
    """The window in the middle of a frame."""
    made = torch.ones(short, dtype=dtype) if window is None else window
    before = (length - short) // 2
    return torch.nn.functional.pad(made, (before, length - short - before))


def stft(
    x: torch.Tensor,
    n_fft: int,
    hop: int | None = None,
    win: int | None = None,
    window: torch.Tensor | None = None,
    *rest: Any,
) -> Any:
    """aten::stft without and with `center`; x [B, T] or [T] to [.., frequency, frame]."""
    center, mode, normalized, onesided, as_complex, align = rest if len(rest) == 6 else (False, "", *rest)
    if align:
        raise NotImplementedError("torch.stft with align_to_window")
    if center:
        pad = (n_fft // 2, n_fft // 2)
        x = torch.nn.functional.pad(x.unsqueeze(-2), pad, mode=mode).squeeze(-2)
    frames = x.unfold(-1, n_fft, hop or n_fft // 4) * _window(window, win or n_fft, n_fft, x.dtype)
    re, im = real_to_complex(frames, [frames.dim() - 1], 1 if normalized else 0, onesided is not False)
    re, im = re.transpose(-1, -2), im.transpose(-1, -2)
    from aot.frontend.bridge.pairs import Pair

    return Pair(re, im) if as_complex else torch.stack([re, im], -1)


def istft(
    re: torch.Tensor,
    im: torch.Tensor,
    n_fft: int,
    hop: int | None = None,
    win: int | None = None,
    window: torch.Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: Any = None,
    as_complex: bool = False,
) -> Any:
    """aten::istft of [.., frequency, frame]: frames added where they overlap, divided by the windows' squares."""
    if as_complex or onesided is False:
        raise NotImplementedError("torch.istft of a two-sided spectrum")
    step = hop or n_fft // 4
    shape = _window(window, win or n_fft, n_fft, re.dtype)
    re, im = re.transpose(-1, -2), im.transpose(-1, -2)
    frames = complex_to_real(re, im, [re.dim() - 1], 1 if normalized else 2, n_fft) * shape
    weight = _overlapped((shape * shape).expand(frames.shape[-2], -1), n_fft, step)
    whole = _overlapped(frames, n_fft, step)
    start = n_fft // 2 if center else 0
    end = start + length if length is not None else whole.shape[-1] - start
    return whole[..., start:end] / weight[start:end]


def _overlapped(frames: torch.Tensor, n_fft: int, step: int) -> Any:
    """[.., frame, n_fft] to [.., (frames - 1) * step + n_fft], each frame `step` after the one before."""
    pieces = -(-n_fft // step)
    padded = torch.nn.functional.pad(frames, (0, pieces * step - n_fft))
    lead = frames.shape[:-2]
    total: Any = 0
    for piece in range(pieces):
        part = padded[..., piece * step : (piece + 1) * step].reshape(*lead, -1)
        total = total + torch.nn.functional.pad(part, (piece * step, (pieces - 1 - piece) * step))
    return total[..., : (frames.shape[-2] - 1) * step + n_fft]
