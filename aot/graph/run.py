"""Two small graphs that should compute the same, run on the same random inputs and compared."""

from __future__ import annotations

import ast
import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from aot.errors import EngineError
from aot.graph.sites import Part

if TYPE_CHECKING:
    import onnx

_LIMITS = {"float64": 1e-6, "float32": 2e-5, "float16": 2e-2, "bfloat16": 1.5e-1}
"""The largest difference that counts as rounding, as a share of an output's largest magnitude."""
_SIZES = ((2, 3, 5, 4, 7, 6), (3, 2, 4, 5, 6, 7), (16, 24), (8, 16), (32,), (64,), (224,), (1,))
"""What symbolic dims are given, in turn; the first two that the graph before takes."""
_TOPS = (255, 1)
"""The largest integer given, in turn: as in bytes and letters, and where the part does not take that, as in masks."""
_ULPS = 2
"""Units in the last place that numbers move by, to see what rounding can do."""
_LARGE = 1 << 22
"""Elements of the inputs of a part, together."""
_PERIOD = 8191
_PARTLY = frozenset(("Attention",))
"""Ops that onnxruntime takes in some forms only, which it says when it runs them: 1.32 broadcasts no mask."""
_RANDOM = {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"}

Run = Callable[[Mapping[str, Any]], list[Any]]


class Unable(Exception):
    """The part cannot be run by itself; the message says why."""


@dataclass(frozen=True, order=True)
class Difference:
    """The largest difference of two results.

    over: how many times what counts as rounding for its dtype. relative: of the output's largest magnitude.
    absolute: in the output's unit. l2: relative to its norm. Of integers and bools, which must be equal, all are the
    share of the elements that differ. what: in words, where it is not a number. noise: more than rounding, but no more
    than what the last digits of what the results are computed from make of them.
    """

    over: float = 0.0
    relative: float = 0.0
    absolute: float = 0.0
    l2: float = 0.0
    what: str = ""
    noise: bool = False

    @property
    def within(self) -> bool:
        """Whether it is rounding."""
        return self.over <= 1

    def __str__(self) -> str:
        return self.what or f"largest difference {self.relative:.2g} of the output's magnitude ({self.absolute:.2g})"


@dataclass(frozen=True)
class Trials:
    """What a part made of random inputs: at one or two sizes of the symbolic dims, and of wide and narrow integers."""

    part: Part
    run: Run
    given: list[dict[str, Any]]
    made: list[list[Any]]


def differ(before: Part, after: Part) -> Difference:
    """The largest difference of the targets of two parts, at the sizes of `attempt`. Raises Unable."""
    return compare(attempt(before, after), after)[0]


def attempt(part: Part, other: Part | None = None) -> Trials:
    """Run `part`, on inputs that `other` takes as well. Raises Unable, with the reason at the last size tried."""
    if any(node.op_type in _RANDOM for node in part.nodes):
        raise Unable("it draws random numbers")
    parts = (part,) if other is None else (part, other)
    symbols = sorted({name for one in parts for name in _symbols(one)})
    wide = any(_is_wide(one.state.values[key]) for one in parts for key in one.free)
    trials = Trials(part, _evaluator(part.model()), [], [])
    reason = "it cannot be run"
    for seed, sizes in enumerate(_SIZES):
        # Wide integers at one size, narrow ones at the other; both at the only one where there are no symbols.
        for top in _TOPS if wide and not trials.made else _TOPS[-1:]:
            try:
                given = _inputs(parts, dict(zip(symbols, itertools.cycle(sizes), strict=False)), seed, top)
                made = trials.run(_of(given, part))
            except Unable as error:
                reason = str(error)
                continue
            if top != _TOPS[-1] and not _finite(made):
                continue  # such as a mask times a large number, where there is nothing left to compare
            trials.made.append(made)
            trials.given.append(given)
            if symbols:
                break
        if len(trials.made) == 2 or not symbols:
            break
    if not trials.made:
        raise Unable(reason)
    return trials


def compare(before: Trials, after: Part) -> tuple[Difference, Trials]:
    """The largest difference of what `after` makes of the same inputs, and what it makes."""
    try:
        run = _evaluator(after.model())
        made = [run(_of(given, after)) for given in before.given]
    except Unable as error:
        return Difference(np.inf, np.inf, np.inf, np.inf, f"what it left does not run: {error}"), before
    again = Trials(after, run, before.given, made)
    return difference(before, again), again


def difference(before: Trials, after: Trials) -> Difference:
    """The largest difference of two runs on the same inputs; it may be no more than rounding in the first."""
    largest = Difference()
    for given, expected, got in zip(before.given, before.made, after.made, strict=True):
        found = _largest(expected, got)
        if not found.within:
            found = _unless_noise(found, expected, before, _of(given, before.part))
        largest = max(largest, found)
    return largest


def _of(given: Mapping[str, Any], part: Part) -> dict[str, Any]:
    return {key: given[key] for key in part.free} | {key: tensor.numpy() for key, tensor in part.weights.items()}


def _unless_noise(found: Difference, expected: list[Any], before: Trials, given: Mapping[str, Any]) -> Difference:
    """The difference, measured by how far the results move when all they are computed from moves in its last digit."""
    moved = {key: _moved(array) for key, array in given.items()}
    try:
        made = _evaluator(_shaken(before.part))(moved)
    except Unable:
        made = before.run(moved)
    noise = _largest(expected, made)
    if found.what or noise.what or noise.over == 0:
        return found
    over = min(found.over, found.over / (4 * noise.over))
    return replace(found, over=over, noise=over <= 1)


def _shaken(part: Part) -> onnx.ModelProto:
    values = part.state.values
    return shaken(part.model(), lambda key: values[key].dtype if key in values else None)


def shaken(model: onnx.ModelProto, dtype_of: Callable[[str], ir.DataType | None]) -> onnx.ModelProto:
    """`model`, edited: every result in FP32 and FP64 that is no whole number is moved as by `_moved`.

    Inputs alone are not enough: integers cannot move, and a sum of what is computed from them in one way may cancel
    what it does not when each term is rounded by itself. Whole numbers stay: sizes, indices and masks in floats are
    exact, and steps are taken at them. Results inside bodies stay, too.
    """
    import onnx

    nodes = list(model.graph.node)
    del model.graph.node[:]
    for seed, node in enumerate(nodes):
        after: list[onnx.NodeProto] = []
        for place, key in enumerate(list(node.output)):
            dtype = dtype_of(key)
            if dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
                continue
            most = _ULPS * float(np.finfo(dtype.numpy()).eps)
            exact, share, step, moved, floor, whole = (f"{key}/shaken/{number}" for number in range(6))
            node.output[place] = exact
            after += [
                onnx.helper.make_node("RandomUniformLike", [exact], [share], low=-most, high=most, seed=float(seed)),
                onnx.helper.make_node("Mul", [exact, share], [step]),
                onnx.helper.make_node("Add", [exact, step], [moved]),
                onnx.helper.make_node("Floor", [exact], [floor]),
                onnx.helper.make_node("Equal", [exact, floor], [whole]),
                onnx.helper.make_node("Where", [whole, exact, moved], [key]),
            ]
        model.graph.node.extend([node, *after])
    return model


def _moved(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Each number by at most two units in its last place, either way."""
    if array.dtype.kind != "f":
        return array
    shares = np.random.default_rng(0).uniform(-_ULPS, _ULPS, array.shape)
    # An array again where it has no dims, of which numpy makes a scalar.
    return np.asarray(array * (1 + np.finfo(array.dtype).eps * shares), array.dtype)


def _largest(expected: list[Any], got: list[Any]) -> Difference:
    return max((_difference(a, b) for a, b in zip(expected, got, strict=True)), default=Difference())


def _difference(expected: Any, got: Any) -> Difference:
    expected, got = (np.asarray(value) for value in (expected, got))
    for what, a, b in (("dtype", expected.dtype, got.dtype), ("shape", expected.shape, got.shape)):
        if a != b:
            return Difference(np.inf, np.inf, np.inf, np.inf, f"its {what} was {a} and is {b}")
    if np.array_equal(expected, got):
        return Difference()
    limit = _LIMITS.get(expected.dtype.name)
    if limit is None:
        wrong = int((expected != got).sum())
        share = wrong / max(expected.size, 1)
        return Difference(1e9 * share, share, share, share)
    a, b = expected.astype(np.float64), got.astype(np.float64)
    if not a.size:
        return Difference()
    finite = np.isfinite(a)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(b[finite]).all():
        return Difference(np.inf, np.inf, np.inf, np.inf, "infinities or NaN that were not there, or are no longer")
    gap, a = np.abs(a[finite] - b[finite]), a[finite]
    if not gap.size:
        return Difference()
    absolute, scale, norm = float(gap.max()), float(np.abs(a).max()), float(np.linalg.norm(a))
    relative = absolute / scale if scale else absolute
    return Difference(relative / limit, relative, absolute, float(np.linalg.norm(gap)) / norm if norm else absolute)


def _symbols(part: Part) -> Iterator[str]:
    """The names that sizes of the free values depend on."""
    for key in part.free:
        for axis, size in enumerate(part.state.values[key].shape or ()):
            if not isinstance(size, int):
                names = _names(size.value) if size.value is not None else None
                yield from names if names is not None else [size.value or _unnamed(key, axis)]


def _unnamed(key: str, axis: int) -> str:
    """A dim without a name is unlike every other."""
    return f"? {axis} of {key}"


def _names(text: str) -> list[str] | None:
    """The names in a size such as `2*seq + 1`; None where it is not of that form."""
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError):
        return None
    nodes = list(ast.walk(tree.body))
    known = (ast.BinOp, ast.Name, ast.Constant, ast.Load, *_OPERATORS)
    return (
        [node.id for node in nodes if isinstance(node, ast.Name)] if all(isinstance(n, known) for n in nodes) else None
    )


_OPERATORS: dict[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


def _size(text: str, sizes: Mapping[str, int]) -> int:
    def value(node: ast.AST) -> int:
        if isinstance(node, ast.Name):
            return sizes[node.id]
        if isinstance(node, ast.BinOp):
            return _OPERATORS[type(node.op)](value(node.left), value(node.right))
        assert isinstance(node, ast.Constant)
        return int(str(node.value))

    return sizes[text] if text in sizes else value(ast.parse(text, mode="eval").body)


def _inputs(parts: Sequence[Part], sizes: Mapping[str, int], seed: int, top: int) -> dict[str, Any]:
    """Random numbers for every free value: floats around 0, bools, and integers of 0 to `top`, of 0 and 1 where they
    may be sizes. Raises Unable."""
    rng = np.random.default_rng(seed)
    given: dict[str, Any] = {}
    total = 0
    for part in parts:
        for key in part.free:
            if key in given:
                continue
            value = part.state.values[key]
            if value.shape is None or value.dtype is None or not isinstance(value.type, ir.TensorType):
                raise Unable("dtype or shape of what it reads is not known")
            shape = []
            for axis, size in enumerate(value.shape):
                shape.append(size if isinstance(size, int) else _size(size.value or _unnamed(key, axis), sizes))
            if any(size < 0 for size in shape):
                raise Unable("a size of what it reads would be negative")
            total += int(np.prod(shape))
            if total > _LARGE:
                raise Unable("what it reads is too large")
            given[key] = _draw(rng, shape, value.dtype, top if _is_wide(value) else 1)
    return given


def _is_wide(value: ir.Value) -> bool:
    """Whether a value holds integers that are no sizes or axes, which are lists or single numbers."""
    return value.dtype is not None and value.dtype.is_integer() and value.shape is not None and len(value.shape) > 1


def _finite(made: Sequence[Any]) -> bool:
    arrays = (np.asarray(one) for one in made)
    return all(bool(np.isfinite(one).all()) for one in arrays if one.dtype.kind == "f")


def _draw(rng: np.random.Generator, shape: list[int], dtype: ir.DataType, top: int) -> Any:
    if dtype.is_floating_point() and dtype.bitwidth >= 16:
        # A prime number of values, again and again: no size is a multiple of it, and drawing them all takes longer.
        return np.resize(rng.standard_normal(_PERIOD).astype(dtype.numpy()), shape)
    if not (dtype.is_integer() or dtype == ir.DataType.BOOL) or dtype.bitwidth < 8:
        raise Unable(f"it reads {dtype.name.lower()}")
    if top > 1:
        top = min(top, int(np.iinfo(dtype.numpy()).max))
    drawn = rng.integers(0, top + 1, shape)
    if drawn.ndim:
        drawn[..., :1] = 1  # no row of a mask is empty
    return drawn.astype(dtype.numpy())


def _evaluator(model: onnx.ModelProto) -> Run:
    """onnxruntime where it is installed and takes the model, else onnx's own evaluator. Raises Unable."""
    refused = "onnxruntime is not installed"
    try:
        from aot.backends import onnxruntime

        if _PARTLY.isdisjoint([node.op_type for node in model.graph.node]):
            return _guarded(onnxruntime.evaluator(model), EngineError)
        refused = "onnxruntime takes some forms only of an op in it"
    except EngineError as error:
        refused = str(error)
    except ImportError:
        pass
    from onnx.reference import ReferenceEvaluator

    try:
        evaluator = ReferenceEvaluator(model)
    except Exception as error:  # it looks every op up, and raises whatever their makers do
        raise Unable(refused) from error

    def run(given: Mapping[str, Any]) -> list[Any]:
        # Its ops overflow on the way to a right result, as in 1 / (1 + exp(-x)), and numpy warns of it.
        with np.errstate(all="ignore"):
            return list(evaluator.run(None, dict(given)))

    return _guarded(run, Exception)  # its ops raise whatever numpy raises


def _guarded(run: Run, error: type[Exception]) -> Run:
    def guarded(given: Mapping[str, Any]) -> list[Any]:
        try:
            return run(given)
        except error as said:
            raise Unable(str(said)) from said

    return guarded
