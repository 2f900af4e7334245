"""Complex numbers as pairs of real tensors: no engine and no ONNX operator has a complex dtype.

`paired` rewrites a program node by node: whatever is complex becomes two real values, a complex buffer one real tensor
with a last axis of two. Composite operations (the `fft` functions, `einsum`) are taken apart by torch first, until only
operations of the table below touch complex numbers; one that is not there is refused by its name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from aot.errors import ExportError
from aot.frontend import lines
from aot.frontend.bridge import fourier, graft

_aten = torch.ops.aten
_REAL = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}


class Pair(NamedTuple):
    """A complex tensor: two real ones of its shape, or two numbers."""

    re: Any
    im: Any


def touches(program: torch.export.ExportedProgram) -> bool:
    """Whether anything in the program is complex."""
    return any(_complex(node) for node in program.graph.nodes)


def paired(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Rewrite a program of ours (its graph is changed in place) without complex numbers; its outputs are real.

    Raises ExportError for an operation on complex numbers that is not covered, naming it and its line.
    """
    program = _taken_apart(program)
    made: dict[torch.fx.Node, Any] = {}
    graph = program.graph
    for node in list(graph.nodes):
        if node.op == "placeholder":
            if _complex(node):
                made[node] = _parts(node)
        elif node.op == "call_function" and _touching(node):
            made[node] = _rewritten(node, made)
    graph.eliminate_dead_code()
    _realize(program)
    program.graph_module.recompile()
    return program


def _complex(node: Any) -> bool:
    leaves = pytree.tree_leaves(node.meta.get("val"))
    return any(isinstance(leaf, torch.Tensor) and leaf.is_complex() for leaf in leaves)


def _touching(node: torch.fx.Node) -> bool:
    return _complex(node) or any(_complex(before) for before in node.all_input_nodes)


def _taken_apart(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    table = torch.export.default_decompositions()
    for _ in range(8):  # each round may bring composites of its own
        touching = [n for n in program.graph.nodes if n.op == "call_function" and _touching(n)]
        due = {n.target: table[n.target] for n in touching if _rule(n.target) is None and n.target in table}
        if not due:
            break
        program = program.run_decompositions(due)
    return program


def _parts(node: torch.fx.Node) -> Pair:
    """The two halves of a buffer that will hold a last axis of two."""
    value = node.meta["val"]
    node.meta["val"] = torch.view_as_real(value)
    after = node.next
    while after.op == "placeholder":
        after = after.next
    halves = graft.grafted(after, lambda both: (both.select(-1, 0), both.select(-1, 1)), [node])
    return Pair(*halves)


def _realize(program: torch.export.ExportedProgram) -> None:
    """Store complex buffers and constants as real tensors under the same names."""
    for spec in program.graph_signature.input_specs:
        if spec.kind in (InputKind.BUFFER, InputKind.CONSTANT_TENSOR, InputKind.PARAMETER) and spec.target:
            for held in (program.state_dict, program.constants):
                values = held.get(spec.target)
                if isinstance(values, torch.Tensor) and values.is_complex():
                    held[spec.target] = torch.view_as_real(values.resolve_conj()).contiguous()


def _rewritten(node: torch.fx.Node, made: dict[torch.fx.Node, Any]) -> Any:
    rule = _rule(node.target)
    if rule is None:
        raise ExportError(
            f"there is no translation of {node.target} on complex numbers",
            where=str(lines.of_node(node) or "") or None,
            fix="write that step with real and imaginary part (torch.view_as_real)",
        )
    args = pytree.tree_map_only(torch.fx.Node, lambda n: made.get(n, n), graft.bound(node))
    result = graft.grafted(node, rule, args)
    if _complex(node):
        return result
    node.replace_all_uses_with(result)
    return None


def _rule(op: Any) -> Callable[..., Any] | None:
    schema = getattr(op, "_schema", None)
    name = schema.name.removeprefix("aten::") if schema is not None else ""
    if name in _RULES:
        return _RULES[name]
    if name in _STRUCTURAL:
        return lambda *args: _apart(op, args)
    return None


def pair(x: Any) -> Pair:
    """Anything as a pair; a real tensor with zeros."""
    if isinstance(x, Pair):
        return x
    if isinstance(x, torch.Tensor):
        return Pair(x, torch.zeros_like(x))
    return Pair(complex(x).real, complex(x).imag) if isinstance(x, complex) else Pair(x, 0.0)


def _apart(op: Any, args: Any) -> Any:
    """The same operation on both halves; where complex tensors are joined with real ones, those have no other half."""
    halves = []
    for index in range(2):

        def half(x: Any, index: int = index) -> Any:
            return x[index] if isinstance(x, Pair) else _REAL.get(x, x) if isinstance(x, torch.dtype) else x

        halves.append(_call(op, pytree.tree_map(half, args, is_leaf=lambda x: isinstance(x, Pair))))
    if isinstance(halves[0], tuple | list):
        return [Pair(*both) for both in zip(*halves, strict=True)]
    return Pair(*halves)


def _call(op: Any, args: Any) -> Any:
    schema = op._schema.arguments
    return op(
        *(value for value, a in zip(args, schema, strict=True) if not a.kwarg_only),
        **{a.name: value for value, a in zip(args, schema, strict=True) if a.kwarg_only},
    )


def _mul(a: Any, b: Any) -> Pair:
    if not isinstance(a, Pair) and not isinstance(a, complex):
        a, b = b, a
    a = pair(a)
    if not isinstance(b, Pair) and not isinstance(b, complex):
        return Pair(a.re * b, a.im * b)
    b = pair(b)
    return Pair(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re)


def _reciprocal(x: Any) -> Pair:
    square = x.re * x.re + x.im * x.im
    return Pair(x.re / square, -x.im / square)


def _div(a: Any, b: Any) -> Pair:
    if isinstance(b, Pair):
        return _mul(_reciprocal(b), a)
    if isinstance(b, complex):
        return _mul(a, 1.0 / b)
    a = pair(a)
    return Pair(a.re / b, a.im / b)


def _added(sign: int) -> Callable[..., Pair]:
    def rule(a: Any, b: Any, alpha: Any = 1) -> Pair:
        real = not isinstance(b, Pair | complex)
        a, b, factor = pair(a), pair(b), sign * alpha
        if _tensor(b.re) and real:  # no work for the half that is not there, but its shape
            return Pair(a.re + factor * b.re, a.im + b.im)
        return Pair(a.re + factor * b.re, a.im + factor * b.im)

    return rule


def _tensor(x: Any) -> bool:
    return isinstance(x, torch.Tensor)


def _product(op: Callable[[Any, Any], Any]) -> Callable[..., Pair]:
    """A product that is linear in both operands."""

    def rule(a: Any, b: Any) -> Pair:
        if not isinstance(b, Pair):
            return Pair(op(a.re, b), op(a.im, b))
        if not isinstance(a, Pair):
            return Pair(op(a, b.re), op(a, b.im))
        return Pair(op(a.re, b.re) - op(a.im, b.im), op(a.re, b.im) + op(a.im, b.re))

    return rule


def _abs(x: Pair) -> torch.Tensor:
    return torch.sqrt(x.re * x.re + x.im * x.im)


def _polar(radius: Any, angle: Any) -> Pair:
    return Pair(radius * torch.cos(angle), radius * torch.sin(angle))


def _exp(x: Pair) -> Pair:
    return _polar(torch.exp(x.re), x.im)


def _log(x: Pair) -> Pair:
    return Pair(torch.log(_abs(x)), _angle(x))


def _angle(x: Pair) -> torch.Tensor:
    return torch.atan2(x.im, x.re)


def _pow(x: Any, exponent: Any) -> Pair:
    """Whole powers by multiplication, others by the logarithm."""
    if isinstance(exponent, int | float) and float(exponent).is_integer() and 1 <= exponent <= 8:
        result = pair(x)
        for _ in range(int(exponent) - 1):
            result = _mul(result, x)
        return result
    power = _mul(_log(pair(x)), exponent)
    return _exp(power)


def _to(x: Any, *rest: Any) -> Any:
    """A change of dtype, to complex, from it, or between two."""
    wanted = next((value for value in rest if isinstance(value, torch.dtype)), None)
    if wanted is None:
        return x
    if wanted in _REAL:
        both = pair(x)
        return Pair(both.re.to(_REAL[wanted]), both.im.to(_REAL[wanted]))
    return x.re.to(wanted)


def _joined(op: Callable[..., Any]) -> Callable[..., Pair]:
    def rule(parts: Any, dim: int = 0) -> Pair:
        both = [pair(part) for part in parts]
        return Pair(op([x.re for x in both], dim), op([x.im for x in both], dim))

    return rule


def _where(condition: Any, a: Any, b: Any) -> Pair:
    a, b = pair(a), pair(b)
    return Pair(torch.where(condition, a.re, b.re), torch.where(condition, a.im, b.im))


def _filled(op: Callable[..., torch.Tensor], value: Any = None) -> Callable[..., Pair]:
    """A new tensor of one value."""

    def rule(like: Any, *rest: Any) -> Pair:
        dtype = next((_REAL.get(option, option) for option in rest if isinstance(option, torch.dtype)), torch.float32)
        shape = like.re.shape if isinstance(like, Pair) else like.shape if _tensor(like) else like
        number = pair(rest[0] if value is None else value)
        return Pair(torch.full(shape, number.re, dtype=dtype), torch.full(shape, number.im, dtype=dtype))

    return rule


def _pad(x: Pair, pad: Any, value: Any = 0) -> Pair:
    number = pair(value)
    return Pair(_aten.constant_pad_nd(x.re, pad, number.re), _aten.constant_pad_nd(x.im, pad, number.im))


# What does the same to both halves.
_STRUCTURAL = frozenset(
    [
        "view",
        "reshape",
        "_unsafe_view",
        "unsqueeze",
        "squeeze",
        "slice",
        "select",
        "narrow",
        "index",
        "index_select",
        "gather",
        "expand",
        "permute",
        "transpose",
        "t",
        "clone",
        "alias",
        "detach",
        "contiguous",
        "flip",
        "roll",
        "repeat",
        "split",
        "split_with_sizes",
        "chunk",
        "unbind",
        "flatten",
        "unflatten",
        "movedim",
        "swapaxes",
        "sum",
        "mean",
        "cumsum",
        "neg",
        "diagonal",
        "tril",
        "triu",
        "lift_fresh_copy",
        "unfold",
        "tile",
        "repeat_interleave",
        "resolve_neg",
    ]
)

_RULES: dict[str, Callable[..., Any]] = {
    "view_as_complex": lambda x: Pair(x.select(-1, 0), x.select(-1, 1)),
    "view_as_real": lambda x: torch.stack([x.re, x.im], -1),
    "complex": lambda re, im: Pair(re, im),
    "polar": _polar,
    "real": lambda x: x.re,
    "imag": lambda x: x.im,
    "_conj": lambda x: Pair(x.re, -x.im),
    "conj": lambda x: Pair(x.re, -x.im),
    "conj_physical": lambda x: Pair(x.re, -x.im),
    "_conj_physical": lambda x: Pair(x.re, -x.im),
    "resolve_conj": lambda x: x,
    "abs": _abs,
    "angle": _angle,
    "add": _added(1),
    "sub": _added(-1),
    "rsub": lambda a, b, alpha=1: _added(-1)(b, a, alpha),
    "mul": _mul,
    "div": _div,
    "reciprocal": _reciprocal,
    "exp": _exp,
    "log": _log,
    "pow": _pow,
    "square": lambda x: _mul(x, x),
    "mm": _product(torch.mm),
    "bmm": _product(torch.bmm),
    "matmul": _product(torch.matmul),
    "to": _to,
    "_to_copy": _to,
    "cat": _joined(torch.cat),
    "stack": _joined(torch.stack),
    "where": _where,
    "constant_pad_nd": _pad,
    "zeros": _filled(torch.full, 0.0),
    "ones": _filled(torch.full, 1.0),
    "full": _filled(torch.full),
    "zeros_like": _filled(torch.full, 0.0),
    "ones_like": _filled(torch.full, 1.0),
    "full_like": _filled(torch.full),
    "_fft_r2c": lambda *args: Pair(*fourier.real_to_complex(*args)),
    "_fft_c2c": lambda x, *args: Pair(*fourier.complex_to_complex(x.re, x.im, *args)),
    "_fft_c2r": lambda x, *args: fourier.complex_to_real(x.re, x.im, *args),
    "stft": lambda *args: fourier.stft(*args),
    "istft": lambda x, *args: fourier.istft(x.re, x.im, *args),
}
