"""Small functions of torch, one op or two each, by what they are given.

x: [batch, 4, height, width] and s: [batch, time, 8] are FP32; i: [batch, time] int64 from -50 to 49; k: the same from 0
to 3; m: the same, bool.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Table = dict[str, Callable[..., Any]]


def z(s: Any) -> Any:
    """A complex tensor."""
    return torch.complex(s, s.flip(1))


def zeros_put(s: Any, m: Any) -> Any:
    t = s.clone()
    t[m] = -1.0
    t[:, 1:, ::2] = t[:, :-1, 1::2]
    return t


WHOLE_NUMBERS: Table = {
    "floor division": lambda i: i // -7,
    "floor division of tensors": lambda i, k: i // (k - 5),
    "truncated division": lambda i, k: torch.div(i, k - 5, rounding_mode="trunc"),
    "remainder": lambda i: i % -7,
    "remainder of tensors": lambda i, k: torch.remainder(i, k - 5),
    "fmod": lambda i, k: torch.fmod(i, k - 5),
    "true division": lambda i: i / 3,
    "and": lambda i: i & 6,
    "xor": lambda i, k: i ^ k,
    "not": lambda i: ~i,
    "shift left": lambda i, k: i << k,
    "shift right": lambda i: i >> 2,
    "bool sum": lambda m: m.sum(1),
    "bool cumsum": lambda m: m.cumsum(1),
    "bool product": lambda m: m.cumprod(1),
    "product": lambda k: (k % 2 + 1).cumprod(1),
    "mean in another dtype": lambda i: i.mean(1, dtype=torch.float32),
    "clamp by floats": lambda i: torch.clamp(i, 0.5, 9.5),
    "clamp by a tensor": lambda i, k: torch.clamp(i, max=k),
    "half to even": lambda i: torch.round(i / 2),
    "float to bool": lambda i: (i * 0.3).bool(),
    "power": lambda k: 2**k,
    "where of int and float": lambda i, m: torch.where(m, i, 0.5),
    "where of float and int": lambda i, m: torch.where(m, 0.5, i),
    "where of bool and int": lambda m: torch.where(m, m, 3),
    "where of two numbers": lambda m: torch.where(m, 1, 0.5),
    "where of int and a fraction of a size": lambda i, m: torch.where(m, i, i.shape[1] / 3),
    "first of equal maxima": lambda k: k.argmax(1),
    "stable sort": lambda k: torch.sort(k, dim=1, stable=True)[1],
    "stable sort downwards": lambda k: torch.sort(k, dim=1, stable=True, descending=True)[1],
    "sort of bool": lambda m: torch.sort(m, dim=1, stable=True)[0],
    "running maximum": lambda i: torch.cummax(i, 1)[0],
    "place of the running minimum": lambda k: torch.cummin(k, 1)[1],
    "bucketize": lambda i: torch.bucketize(i, torch.tensor([-10, 0, 10]), right=True),
    "tril of bool": lambda m: torch.tril(m),
    "extremes": lambda i: torch.stack(torch.aminmax(i)),
    "mode": lambda k: torch.mode(k, 1)[0],
    "mode of columns": lambda k: torch.mode(k, 0, keepdim=True)[0],
    "one hot": lambda k: F.one_hot(k, 4),
    "triangle's indices": lambda i: torch.tril_indices(i.shape[1], i.shape[1]),
    "nonzero": lambda m: torch.nonzero(m).sum(0),
}

SIZES: Table = {
    "division rounded up": lambda s: -(-s.shape[1] // 4) * s,
    "negative size": lambda s: (-s.shape[1] // 4) * s,
    "remainder by a size": lambda s: torch.arange(40) % s.shape[1],
    "power of a size": lambda s: (s.abs() + 0.5) ** (s.shape[1] / 8),
    "size to a power": lambda s: s.shape[1] ** s,
    "and with a size": lambda s: torch.arange(40) & s.shape[1],
    "weighted by a size": lambda s: torch.addcmul(s, s, s, value=s.shape[1]),
    "slope of a size": lambda s: F.leaky_relu(s, 1 / s.shape[1]),
    "scatter of a size": lambda s: torch.zeros_like(s).scatter(2, torch.arange(3).expand(1, 1, 3), s.shape[1]),
    "roll by a size": lambda s: torch.roll(s, s.shape[1] // 2, 1),
    "linspace": lambda s: torch.linspace(-1, 1, s.shape[1]),
    "linspace to a size": lambda s: torch.linspace(0.5, s.shape[1] - 0.5, s.shape[1]),
    "k of a size": lambda s: s.topk(s.shape[1] // 2, dim=1)[0],
    "kron": lambda s: torch.kron(s[0], torch.ones(2, 2)),
    "halves": lambda s: torch.cat(s.chunk(2, 1)[::-1], 1),
    "parts of a size": lambda s: torch.cat(s.split((s.shape[1] + 1) // 2, 1)[::-1], 1),
    "parts of sizes": lambda s: torch.cat(s.split([s.shape[1] - 3, 3], 1)[::-1], 1),
    "chunks of the batch": lambda s: torch.stack(torch.cat([s, s * 2, s * 3]).chunk(3)),
    "fraction less whole numbers": lambda k: 1.0 - k,
    "whole numbers less a fraction, twice": lambda k: torch.sub(k, 0.3, alpha=2),
    "fraction of a size less whole numbers": lambda k: k.shape[1] / 3 - k,
    "whole numbers less a fraction of a size": lambda k: k - k.shape[1] / 3,
    "whole numbers times a fraction of a size": lambda k: k.int() * (k.shape[1] / 3),
    "whole numbers by a fraction, rounded down": lambda i: i // 0.75,
    "fraction by whole numbers, rounded down": lambda k: 7.5 // (k + 1),
    "number by whole numbers, rounded down": lambda k: 7 // (k - 5),
    "number by floats, rounded down": lambda s: 7.5 // s,
    "size by floats, rounded down": lambda s: s.shape[1] // s,
    "remainder of a size": lambda k: k.shape[1] % (k + 1),
    "remainder of a fraction of a size": lambda s: (s.shape[1] / 3) % (s.abs() + 0.5),
    "whole numbers to the power of a fraction of a size": lambda k: k ** (k.shape[1] / 8),
    "mask of a size": lambda s: torch.triu(torch.full((s.shape[1], s.shape[1]), -9.0), 1),
}

FLOATS: Table = {
    "remainder": lambda s: torch.remainder(s, -0.7),
    "fmod": lambda s: torch.fmod(s, 0.7),
    "floor division": lambda s: s // 0.3,
    "nan to num": lambda s: torch.nan_to_num(1 / s.round(), nan=1.0, posinf=5.0, neginf=-7.0),
    "isnan": lambda s: torch.isnan(torch.sqrt(s)),
    "clamp crossed": lambda s: torch.clamp(s, 0.5, -0.5),
    "clamp keeps nan": lambda s: torch.nan_to_num(torch.sqrt(s).clamp(min=0.5), nan=-3.0),
    "round": lambda s: torch.round(s, decimals=1),
    "fmax": lambda s: torch.fmax(torch.sqrt(s), s),
    "fmin": lambda s: torch.fmin(s, torch.sqrt(s)),
    "hypot": lambda s: torch.hypot(s, s.flip(1)),
    "copysign": lambda s: torch.copysign(s.abs(), s.flip(1)),
    "signbit": lambda s: torch.signbit(s),
    "cumsum": lambda s: s.cumsum(1),
    "cumprod": lambda s: s.cumprod(1),
    "running maximum": lambda s: torch.cummax(s, 1)[0],
    "median": lambda s: s.median(1)[0],
    "median without nan": lambda s: torch.nanmedian(torch.sqrt(s + 2), 1)[0],
    "k-th value": lambda s: s.kthvalue(2, 1)[0],
    "quantile": lambda s: torch.quantile(s, 0.3, dim=1),
    "logsumexp": lambda s: torch.logsumexp(s, (0, 1), keepdim=True),
    "var and mean": lambda s: torch.cat(torch.var_mean(s, 1)),
    "quantiles, kept": lambda s: s.quantile(torch.tensor([0.0, 0.3, 1.0]), -2, keepdim=True),
    "quantile of all": lambda s: torch.quantile(torch.sqrt(s + 9), 0.9),
    "quantile of nan": lambda s: torch.nan_to_num(torch.quantile(torch.sqrt(s + 2), 0.5, dim=1), nan=-3.0),
    "extremes": lambda s: torch.stack(torch.aminmax(s)),
    "norm of order 1": lambda s: torch.linalg.vector_norm(s, ord=1, dim=1),
    "norm of order 3": lambda s: torch.linalg.vector_norm(s, ord=3, dim=1),
    "distances": lambda s: torch.cdist(s, s.flip(1) * 2),
    "distances of order 1": lambda s: torch.cdist(s, s.flip(1) * 2, p=1.0),
    "pairwise distances": lambda s: F.pdist(s[0]),
    "einsum": lambda s: torch.einsum("btc,bud->btud", s, s),
    "einsum diagonal": lambda s: torch.einsum("bii->bi", s @ s.transpose(1, 2)),
    "searchsorted": lambda s: torch.searchsorted(s.sort(-1)[0], s.flip(1)),
    "searchsorted right": lambda s: torch.searchsorted(torch.arange(-2.0, 3.0), s.round(), right=True),
    "take along": lambda s: torch.take_along_dim(s, s.argsort(1), 1),
    "repeat interleave": lambda s: torch.repeat_interleave(s, torch.tensor([1, 0, 2, 1, 3, 0, 1, 1]), dim=2),
    "scatter from more": lambda s, k: torch.zeros_like(s).scatter(2, k[..., None], s),
    "scatter add": lambda s, k: s.scatter_add(2, k[..., None].expand(-1, -1, 3), s),
    "scatter maximum": lambda s, k: s.scatter_reduce(2, k[..., None].expand(-1, -1, 3), s, "amax"),
    "scatter mean": lambda s, k: s.scatter_reduce(2, k[..., None].expand(-1, -1, 3), s, "mean"),
    "put by mask": zeros_put,
    "masked scatter": lambda s, m: s.masked_scatter(m[..., None].expand_as(s), s.flip(2)),
    "masked select": lambda s, m: torch.masked_select(s, m[..., None]).sum(),
    "causal attention": lambda s: F.scaled_dot_product_attention(s, s, s, is_causal=True),
    "group norm": lambda s: F.group_norm(s.transpose(1, 2), 2),
    "random leaky relu": lambda s: F.rrelu(s),
    "branch that keeps": lambda s: torch.cond(s.mean() > 0, lambda a: a * 2, lambda a: a, (s,)),
    "branches that keep": lambda s: torch.cat(torch.cond(s.mean() < 0, lambda a: (a + 1, a), lambda a: (a, a), (s,))),
    "branch": lambda s: torch.cond(s.mean() > 0, lambda a: a * 2, lambda a: a - 1, (s,)),
    "float64": lambda s: (s.double() * math.pi).sin(),
}


def square(s: Any) -> Any:
    """Matrices [.., 3, 3] of any sign, whose pivots do not lie on the diagonal."""
    return torch.tanh(s[..., :3, None] - s[..., None, 3:6]) + 3 * torch.eye(3).flip(0)


MATRICES: Table = {
    "inverse": lambda s: torch.linalg.inv(square(s)),
    "solve": lambda s: torch.linalg.solve(square(s), s[..., :3]),
    "determinant": lambda s: torch.linalg.det(square(s)),
    "cholesky": lambda s: torch.linalg.cholesky(square(s) @ square(s).mT),
    "exponential": lambda s: torch.matrix_exp(square(s)),
}

SPECIAL: Table = {
    "lgamma": lambda s: torch.lgamma(s * 4),
    "lgamma of large": lambda s: torch.lgamma(torch.exp(s * 3) + 1),
    "lgamma of whole numbers": lambda i: torch.lgamma(i),
    "digamma": lambda s: torch.digamma(s.abs() * 4 + 1e-2),
    "digamma of negative": lambda s: torch.digamma(s.clamp(-0.9, -0.1) - 3),
    "erfinv": lambda s: torch.erfinv(torch.tanh(s)),
    "erfinv of the tails": lambda s: torch.erfinv((1 - torch.exp(s - 6)).clamp(-1, 1)),
    "bessel function": lambda s: torch.i0(s * 5),
}

IMAGES: Table = {
    "nearest by a fraction": lambda x: F.interpolate(x, scale_factor=0.6),
    "nearest exact": lambda x: F.interpolate(x, scale_factor=0.6, mode="nearest-exact"),
    "nearest to a size": lambda x: F.interpolate(x, size=(7, 13)),
    "bilinear": lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"),
    "bilinear, corners": lambda x: F.interpolate(x, size=(7, 13), mode="bilinear", align_corners=True),
    "bilinear antialiased": lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear", antialias=True),
    "position grid": lambda x: F.interpolate(
        torch.arange(64.0).reshape(1, 1, 8, 8), size=(x.shape[2], x.shape[3]), mode="bicubic"
    ),
    "area": lambda x: F.interpolate(x, size=(3, 5), mode="area"),
    "scale of a size": lambda x: F.interpolate(x, scale_factor=16 / x.shape[2], mode="bilinear"),
    "adaptive average": lambda x: F.adaptive_avg_pool2d(x, (3, 5)),
    "adaptive average of one axis": lambda x: F.adaptive_avg_pool2d(x, (None, 3)),
    "adaptive maximum": lambda x: F.adaptive_max_pool2d(x, (3, 5)),
    "average with a divisor": lambda x: F.avg_pool2d(x, 2, divisor_override=3),
    "ceil, maximum": lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True),
    "ceil, padded maximum": lambda x: F.max_pool2d(x, 2, 2, 1, ceil_mode=True),
    "ceil, padded average": lambda x: F.avg_pool2d(x, 3, 3, 1, ceil_mode=True),
    "ceil, average without padding": lambda x: F.avg_pool2d(x, 2, 2, 1, ceil_mode=True, count_include_pad=False),
    "affine grid": lambda x: F.affine_grid(
        torch.eye(2, 3)[None].expand(x.shape[0], -1, -1), x.shape, align_corners=False
    ),
    "grid sample": lambda x: F.grid_sample(
        x, x[:, :2].permute(0, 2, 3, 1), padding_mode="reflection", align_corners=False
    ),
    "roll": lambda x: torch.roll(x, (-1, -2), (2, 3)),
    "unfold": lambda x: F.unfold(x, 3, padding=1),
    "fold": lambda x: F.fold(F.unfold(x, 3, padding=1), x.shape[2:], 3, padding=1),
    "pixel unshuffle": lambda x: F.pixel_unshuffle(F.interpolate(x, scale_factor=2), 2),
    "circular": lambda x: F.pad(x, (1, 2, 2, 1), mode="circular"),
    "reflect": lambda x: F.pad(x, (1, 2, 2, 1), mode="reflect"),
    "same": lambda x: F.conv2d(x, torch.arange(64.0).reshape(1, 4, 4, 4) / 64, padding="same"),
    "transposed": lambda x: F.conv_transpose2d(x, torch.ones(4, 2, 3, 3), stride=2, padding=1, output_padding=1),
    "instance norm": nn.InstanceNorm2d(4),
    "variance": lambda x: x.var((2, 3)),
}

COMPLEX: Table = {
    "arithmetic": lambda s: torch.view_as_real(torch.exp(1j * s) / (z(s) + 3) - z(s).conj() * 2),
    "absolute and angle": lambda s: z(s).abs() + z(s).angle() + z(s).real * z(s).imag,
    "polar": lambda s: torch.view_as_real(torch.polar(s.abs(), s)).flatten(2),
    "power and logarithm": lambda s: torch.view_as_real(z(s) ** 3 + torch.log(torch.complex(s.abs() + 1, s))),
    "joined with real": lambda s: torch.view_as_real(torch.cat([z(s), s.to(torch.complex64)], 1).sum(1)),
    "product": lambda s: torch.view_as_real(z(s) @ z(s).transpose(1, 2)),
    "einsum": lambda s: torch.einsum("btc,buc->btu", z(s), z(s)).abs(),
    "made of ones": lambda s: torch.view_as_real(torch.ones(3, dtype=torch.complex64) * s[0, 0, 0]),
    "rfft over time": lambda s: torch.view_as_real(torch.fft.rfft(s, dim=1)),
    "there and back": lambda s: torch.fft.irfft(torch.fft.rfft(s, dim=-1), n=8, dim=-1),
    "ifft": lambda s: torch.fft.ifft(torch.fft.fft(s, dim=1), dim=1).real,
    "spectrogram": lambda s: torch.stft(s.flatten(1), 16, 4, window=torch.hann_window(16), return_complex=True).abs(),
}

# These take seconds each to export.
LONG: Table = {
    "scale of a size, bicubic": lambda x: F.interpolate(x, scale_factor=16 / x.shape[2], mode="bicubic"),
    "spectrogram and back": lambda s: torch.istft(
        torch.stft(s.flatten(1), 16, 5, 12, torch.hamming_window(12), return_complex=True),
        16,
        5,
        12,
        torch.hamming_window(12),
        length=28,
    ),
    "filter": lambda s: torch.fft.irfft2(torch.fft.rfft2(s[:, :4], norm="ortho") * (1 + 2j), s=(4, 8), norm="ortho"),
    "fft2": lambda s: torch.fft.fft2(s).abs(),
    "bicubic antialiased": lambda x: F.interpolate(x, size=(5, 3), mode="bicubic", antialias=True),
    "adaptive in three dimensions": lambda x: F.adaptive_avg_pool3d(x[:, None], (2, 3, 3)),
    "scale of a size, antialiased": lambda x: F.interpolate(
        x, scale_factor=16 / x.shape[2], mode="bilinear", antialias=True
    ),
}
