"""What torch.export and torch.onnx say when they refuse, turned into one sentence with a line and a way out."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from aot.declaration import Dim, ModelSpec
from aot.errors import ExportError
from aot.sources.loading import deepest

T = TypeVar("T")

_SHAPES = "torch.fx.experimental.symbolic_shapes"
_SYMBOL = re.compile(r"create_symbol (\S+) = \S+ for L\['(.+?)'\]\.size\(\)\[(\d+)\]")
_GUARD = re.compile(r"eval (.+?) \[guard added\] \((.+?)\)")
_SUGGESTED = re.compile(r"^  (\w+) = (.+)$", re.MULTILINE)
_USER_LINE = re.compile(r'File "([^"]+)", line (\d+), in (\w+)\n\s*(.+)')


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextlib.contextmanager
def _only(name: str, handlers: list[logging.Handler], level: int) -> Iterator[None]:
    """Send one logger's records to these handlers and nowhere else."""
    logger = logging.getLogger(name)
    held = logger.handlers, logger.level, logger.propagate
    logger.handlers, logger.propagate = handlers, False
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.handlers, logger.propagate = held[0], held[2]
        logger.setLevel(held[1])


def silenced(work: Callable[[], T]) -> T:
    """Run without the chatter of torch and ONNX on both standard streams, in logs and warnings: ours is the one
    message."""
    with _quiet():
        held = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            return work()
        finally:
            logging.disable(held)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


def explained(error: BaseException, spec: ModelSpec, again: Callable[[], object]) -> ExportError:
    """The ExportError for an exception of torch.export. `again` repeats the export, to hear where a guard arose."""
    text = str(error)
    if "Constraints violated" in text:
        return _constraint(text, spec, _guards(again))
    line = _USER_LINE.search(text.partition("The following call raised this error")[2])
    if line and "data-dependent" in text:
        file, number, function, code = line.groups()
        return ExportError(
            "the model branches on the value of a tensor, which an engine cannot",
            where=f"{file}:{number} in {function}: {code.strip()}",
            fix="compute both sides and choose with torch.where, or use torch.cond; "
            "bound a size read with .item() by torch._check",
        )
    foreign = re.search(r"Found <class '([^']+)'> in output", text)
    if foreign:
        return ExportError(
            f"forward returns an object of class {foreign[1]}, not tensors",
            where=f"forward of model '{spec.name}'",
            fix="return tensors only: alone, in a tuple or list, or in a dict; "
            "or register a dataclass with torch.export.register_dataclass",
        )
    said = _first_sentence(text)
    if re.search(r"\bs\d+\b", said):
        for symbol, (tensor, axis) in _symbols(_guards(again)).items():
            dim = _dim_at(spec, tensor, axis)
            said = re.sub(rf"\b{symbol}\b", dim.name if dim else symbol, said)
    return ExportError(
        f"torch.export failed: {type(error).__name__}: {said}",
        where=deepest(error) or f"model '{spec.name}'",
        fix="this is where the model does something that cannot be captured for every size that is declared: "
        "rewrite it, give sizes that must agree one Dim, or declare them fixed",
    )


def _symbols(log: list[str]) -> dict[str, tuple[str, int]]:
    """torch's symbol for a size -> (input, axis)."""
    return {symbol: (tensor, int(axis)) for line in log for symbol, tensor, axis in _SYMBOL.findall(line)}


def _dim_at(spec: ModelSpec, tensor: str, axis: int) -> Dim | None:
    declared = spec.inputs.get(tensor)
    dim = declared.shape[axis] if declared else None
    return dim if isinstance(dim, Dim) else None


def _guards(again: Callable[[], object]) -> list[str]:
    """What torch logs about sizes while it fails once more."""
    kept = _Kept()
    # What is suppressed is the failure that is being explained.
    with (
        contextlib.suppress(Exception),
        _quiet(),
        _only("torch", [logging.NullHandler()], logging.CRITICAL),
        _only(_SHAPES, [kept], logging.INFO),
    ):
        again()
    return kept.lines


def _constraint(text: str, spec: ModelSpec, log: list[str]) -> ExportError:
    suggested = dict(_SUGGESTED.findall(text.partition("Suggested fixes:")[2]))
    dims = spec.dims
    name, advice = next(((n, s) for n, s in suggested.items() if n in dims), ("", ""))
    if not name:
        name = next((n for n in dims if re.search(rf"\b{n}\b", text)), next(iter(dims), ""))
    places = [
        f"input '{tensor}', axis {axis}"
        for tensor, declared in spec.inputs.items()
        for axis, dim in enumerate(declared.shape)
        if isinstance(dim, Dim) and dim.name == name
    ]
    guard = _guard(name, spec, log)
    at = ", ".join(places) + (f"; the code asks for {guard}" if guard else "")
    low, _, high = dims[name].bounds if name else (0, 0, 0)
    if advice.isdigit():
        return ExportError(
            f"Dim '{name}' ({low}..{high}) came out fixed at {advice}: the code works for that size only",
            where=at,
            fix=f"make the code independent of the size, or declare the axis as {advice}",
        )
    if advice in dims:
        return ExportError(
            f"Dims '{name}' and '{advice}' must always be equal",
            where=at,
            fix=f"use one Dim for both: put '{advice}' where '{name}' stands",
        )
    if advice.startswith("Dim("):
        return ExportError(
            f"the code does not treat all sizes of Dim '{name}' ({low}..{high}) alike",
            where=at,
            fix=f"declare {name} = aot.{advice}",
        )
    return ExportError(
        f"Dim '{name}' does not hold: {_first_sentence(text)}",
        where=at,
        fix=f"torch suggests {name} = {advice}" if advice else None,
    )


def _guard(name: str, spec: ModelSpec, log: list[str]) -> str:
    """The first condition on a Dim that the code asked for, with its line; empty where the log holds none."""
    symbols = {s: dim for s, (tensor, axis) in _symbols(log).items() if (dim := _dim_at(spec, tensor, axis))}
    for line in log:
        for condition, where in _GUARD.findall(line):
            for symbol, dim in symbols.items():
                if dim.name == name and re.search(rf"\b{symbol}\b", condition):
                    return re.sub(rf"\b{symbol}\b", name, condition) + f" at {where}"
    return ""


def line_of(node: Any) -> str | None:
    """`file:line in function: text` of the user's code behind a node of an exported program."""
    lines = _USER_LINE.findall(node.meta.get("stack_trace") or "")
    if not lines:
        return None
    file, number, function, code = lines[-1]
    return f"{file}:{number} in {function}: {code.strip()}"


def untranslated(error: BaseException, nodes: Iterable[Any]) -> ExportError:
    """The ExportError for an op among `nodes` that torch.onnx cannot translate."""
    text = f"{error}\n{error.__cause__ or ''}"
    op = re.search(r"No ONNX function found for <OpOverload\(op='([^']+)'", text)
    failed = re.search(r"Error when translating node %(\w+)", text)
    names = {node.name: node for node in nodes}
    at = line_of(names[failed[1]]) if failed and failed[1] in names else None
    if op:
        return ExportError(
            f"there is no ONNX translation of {op.group(1)}",
            where=at,
            fix="write that step with other torch functions, or provide a plugin for it",
        )
    return ExportError(f"torch.onnx failed: {_first_sentence(str(error.__cause__ or error))}", where=at)


def _first_sentence(text: str) -> str:
    """The first non-empty line, without the advertisement for environment variables."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return re.split(r" For more information| \(unhinted", lines[0])[0] if lines else "(no message)"
