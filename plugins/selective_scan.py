"""Selective scan of Mamba (Gu and Dao 2023, arXiv:2312.00752, equations 2 and 4), gate and skip in the same pass.

For each channel d, with N states h of its own, in FP32 from h = 0 on:

    dt = softplus(delta + delta_bias)
    h  = exp(dt · A[d]) · h + dt · u · B[t]
    y  = (h · C[t] + D[d] · u) · silu(z)

`softplus` and `gate` leave out what they name. What is left out is not read: z may then be any tensor of its shape, u
say. Zeros as delta_bias or D are none. Tensors are [batch, length, channels], as the projections before and after make
them: neighbours in memory are channels, which are independent, so that every load is of whole lines and nothing has to
be transposed. A is that of the recurrence, negative: -exp(A_log).

A program runs over the whole length for CHANNELS channels. It reads STEPS steps at once, and the tile [step, state,
channel] lies so in registers that each thread has all steps of its states: the scan over them is a chain of fused
multiply-adds in one thread, with nothing exchanged. Channels are spread over a warp's threads, states over warps; only
the sum over states goes through shared memory. So even a batch of 1 has up to channels · states threads, which some
thousand channels make enough of. Bound by the exponentials, one a state and step; by memory where states are few.

The reference is the doubling form of a scan (Hillis and Steele 1986): 16 shifts, so 65536 steps at most.
"""

import math

import torch
import triton
import triton.language as tl

from aot.plugin import Launch, ceil_div, fixed, power_of_two

NAME = "aot::selective_scan"
SCHEMA = """(
    T u, T delta, float32 A, T B, T C, float32 D, T z, float32 delta_bias, bool softplus=True, bool gate=True
) -> (T y)"""
TYPES = {"T": "float32 float16 bfloat16"}
SHAPES = {
    "u": "batch length channels",
    "delta": "batch length channels",
    "A": "channels states",
    "B": "batch length states",
    "C": "batch length states",
    "D": "channels",
    "z": "batch length channels",
    "delta_bias": "channels",
}
SIZES = {"length": (0, 65536), "states": (1, 256)}
# The interpreter takes a step of every program in turn, so few programs are checked.
CASES = [
    {"batch": 2, "length": 19, "channels": 5, "states": 3},
    {"batch": 0, "length": 3, "channels": 5, "states": 3},
    {"batch": 2, "length": 0, "channels": 5, "states": 3},
    {"batch": 1, "length": 1, "channels": 1, "states": 1},
    {"batch": 1, "length": 67, "channels": 7, "states": 16},
    {"batch": 1, "length": 33, "channels": 67, "states": 9},
]
CONFIGS = [
    {"channels": 32, "steps": 16, "num_warps": 4},
    {"channels": 32, "steps": 16, "num_warps": 8},
    {"channels": 16, "steps": 16, "num_warps": 4},
    {"channels": 16, "steps": 32, "num_warps": 8},
    {"channels": 64, "steps": 16, "num_warps": 8},
    {"channels": 32, "steps": 8, "num_warps": 2},
    {"channels": 64, "steps": 8, "num_warps": 4},
]
SHIFTS = 16
LOG2_E = tl.constexpr(math.log2(math.e))


def reference(u, delta, A, B, C, D, z, delta_bias, softplus, gate):
    x = u.float()
    dt = delta.float() + delta_bias
    if softplus:
        dt = torch.nn.functional.softplus(dt)
    length = u.shape[1]
    time = torch.arange(length, device=u.device)
    # No state comes before the first step. With nothing kept of it, a span that reaches it is whole however long it is.
    decay = torch.exp(dt[..., None] * A) * (time > 0)[:, None, None]
    state = (dt * x)[..., None] * B.float()[:, :, None, :]
    for shift in range((length - 1).bit_length() if isinstance(length, int) else SHIFTS):
        before = (time - (1 << shift)).clamp(min=0)
        state = decay * state.index_select(1, before) + state
        decay = decay * decay.index_select(1, before)
    y = (state * C.float()[:, :, None, :]).sum(-1) + D * x
    if gate:
        y = y * torch.nn.functional.silu(z.float())
    return y.to(u.dtype)


def outputs(shapes, attributes):
    return (shapes.u,)


def launch(shapes, attributes, config):
    batch, length, channels = shapes.u
    states = shapes.A[1]
    block = power_of_two(states, "the number of states")
    # No thread holds more than 64 values of the tile, however many states there are.
    steps = max(1, min(config["steps"], 64 * 32 * config["num_warps"] // (config["channels"] * block)))
    return Launch(
        grid=(ceil_div(channels, config["channels"]), batch),
        scalars={"length": length},
        constants={
            "WIDTH": fixed(channels, "the number of channels"),
            "STATES": states,
            "BLOCK": block,
            "CHANNELS": config["channels"],
            "STEPS": steps,
            "SOFTPLUS": attributes.softplus,
            "GATE": attributes.gate,
        },
    )


def sample(inputs, attributes):
    """States that fade, and steps in time that are forward."""
    inputs["A"] = -inputs["A"].abs()
    if not attributes.softplus:
        inputs["delta"] = inputs["delta"].abs()
        inputs["delta_bias"] = inputs["delta_bias"].abs()
    return inputs


@triton.jit
def _softplus(x):
    """log(1 + exp(x)), small values as exact as large ones: log(1 + e) is e · log(w) / (w - 1) for w = 1 + e, rounded
    (Goldberg 1991, theorem 4)."""
    e = tl.exp(-tl.abs(x))
    w = 1.0 + e
    return tl.maximum(x, 0.0) + tl.where(w == 1.0, e, tl.log(w) * e / tl.where(w == 1.0, 1.0, w - 1.0))


@triton.jit
def _tiles(
    u,
    delta,
    B,
    C,
    z,
    first,
    left,
    channel,
    state,
    step,
    WIDTH: tl.constexpr,
    STATES: tl.constexpr,
    GATE: tl.constexpr,
):
    """u, delta, B, C and z of the steps from `first` on, `left` of which there are."""
    row = (first + step)[:, None]
    inside = (step < left)[:, None]
    at = row * WIDTH + channel[None, :]
    there = inside & (channel < WIDTH)[None, :]
    shared = row * STATES + state[None, :]
    known = inside & (state < STATES)[None, :]
    x = tl.load(u + at, mask=there, other=0.0)
    dt = tl.load(delta + at, mask=there, other=0.0)
    b = tl.load(B + shared, mask=known, other=0.0)
    c = tl.load(C + shared, mask=known, other=0.0)
    return x, dt, b, c, tl.load(z + at, mask=there, other=0.0) if GATE else x


@triton.jit
def kernel(
    u,
    delta,
    A,
    B,
    C,
    D,
    z,
    delta_bias,
    length,
    y,
    WIDTH: tl.constexpr,
    STATES: tl.constexpr,
    BLOCK: tl.constexpr,
    CHANNELS: tl.constexpr,
    STEPS: tl.constexpr,
    SOFTPLUS: tl.constexpr,
    GATE: tl.constexpr,
):
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    state = tl.arange(0, BLOCK)
    step = tl.arange(0, STEPS)
    ours = channel < WIDTH
    # exp(dt · A) is 2 to the power of dt · rate. A state beyond STATES stays 0.
    held = (state[:, None] < STATES) & ours[None, :]
    rate = tl.load(A + channel[None, :] * STATES + state[:, None], mask=held, other=0.0) * LOG2_E
    skip = tl.load(D + channel, mask=ours, other=0.0)
    bias = tl.load(delta_bias + channel, mask=ours, other=0.0)
    carried = tl.zeros([BLOCK, CHANNELS], tl.float32)
    begin = tl.program_id(1).to(tl.int64) * length
    tiles = _tiles(u, delta, B, C, z, begin, length, channel, state, step, WIDTH, STATES, GATE)
    for start in range(0, length, STEPS):
        x, dt, b, c, turned = tiles
        # The next steps are on their way while these are computed.
        after = start + STEPS
        tiles = _tiles(u, delta, B, C, z, begin + after, length - after, channel, state, step, WIDTH, STATES, GATE)
        x = x.to(tl.float32)
        dt = dt.to(tl.float32) + bias[None, :]
        if SOFTPLUS:
            dt = _softplus(dt)
        decay = tl.exp2(dt[:, None, :] * rate[None, :, :])
        added = (dt * x)[:, None, :] * b.to(tl.float32)[:, :, None]
        states = added
        for i in tl.static_range(STEPS):
            # To pick one step of all costs nothing: they are registers, and -0.0 may be added to anything unseen.
            now = (step == i)[:, None, None]
            carried = tl.sum(tl.where(now, decay, -0.0), 0) * carried + tl.sum(tl.where(now, added, -0.0), 0)
            states = tl.where(now, carried[None, :, :], states)
        result = tl.sum(states * c.to(tl.float32)[:, :, None], 1) + skip[None, :] * x
        if GATE:
            turned = turned.to(tl.float32)
            result *= turned * tl.sigmoid(turned)
        at = (begin + start + step)[:, None] * WIDTH + channel[None, :]
        tl.store(y + at, result.to(y.dtype.element_ty), mask=(start + step < length)[:, None] & ours[None, :])
