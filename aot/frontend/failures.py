"""An exception of torch.export as one sentence: what the model does there, at which line, and what to write instead.

Imports torch; import it only where torch is needed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from aot.breaks import Break
from aot.declaration import Dim, ModelSpec
from aot.errors import AotError
from aot.frontend import lines

OTHER = "other"
"""The kind of a failure that may be of the example's sizes alone: the model's own code raised it."""

PLUGIN_FIX = "correct it there, or what the model calls it with here"
_RAISED = re.compile(r"The following call raised this error:(.+)", re.DOTALL)
_FAKELESS = re.compile(r"no fake impl registered for (?:<CustomOpDef\(([\w:.]+)\)>|([\w:.]+))")
_SYMBOL = re.compile(r"\bs\d+\b")
_EITHER = re.compile(r"\bif\b.+\belse\b")
_ASKS_SIZE = re.compile(r"\.(?:numel|size)\(|\.shape\b|\blen\(")

BRANCH = (
    "branch on values",
    "the model branches on the value of a tensor, which an engine cannot",
    "compute both sides and choose with torch.where(condition, a, b), or put them into two functions and use "
    "torch.cond(condition, one, other, (inputs,))",
)
ASSERT = (
    "assert on values",
    "an assert asks for the value of a tensor, which an engine does not stop for",
    "remove it, or check the values outside of forward",
)
LOOP = (
    "loop on values",
    "how often the loop runs depends on the value of a tensor, which an engine cannot follow",
    "run a fixed number of rounds and keep finished rows with torch.where, or leave the loop outside of the model",
)
NUMBER = (
    "number from a tensor",
    "the model takes a Python number from a tensor and decides by it",
    "take sizes from x.shape, and compute with tensors; for a size that must come from a tensor use .item(), "
    "bound it with torch._check(n >= 0) and torch._check(n <= LIMIT), and do not branch on it",
)


GPU = (
    "device",
    "the model moves a tensor to a GPU in forward",
    "leave tensors where they are, and make new ones with device=x.device; an engine runs on its GPU anyway",
)
SIZE = (
    "size from values",
    "a size here depends on the data, as where rows are chosen by a mask, and the code behind needs to know it",
    "keep a fixed number of rows (top-k, padded) or all of them with a mask; or export the model up to this step, and "
    "choose after the engine",
)
SCALE = (
    "scale from a size",
    "the factor of a resize is computed from a size of the input",
    "give interpolate size=(height, width) instead of scale_factor=",
)


def explained(error: BaseException, spec: ModelSpec, sizes: Mapping[str, int] | None = None) -> Break:
    """The Break for an exception of torch.export at `sizes`."""
    text = str(error)
    raised = _RAISED.search(text)
    at = (lines.of_text(raised[1]) if raised else None) or lines.of_error(error)
    kind, what, fix = _sorted(error, text, at, spec, sizes or {})
    return at_line(kind, what, fix, at)


def own(error: BaseException, shapes: Mapping[str, list[int]]) -> Break:
    """The Break for what the model raises when it is called, without any export."""
    called = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
    if isinstance(error, AotError):  # of a plugin that it calls, which says itself what is wrong, and where
        return at_line(OTHER, told(error), error.fix or PLUGIN_FIX, lines.of_error(error))
    return at_line(
        OTHER,
        f"the model's own code raises on {called}, without any export: {type(error).__name__}: {first_sentence(error)}",
        "call the model on such inputs in Python, and correct it, or the shapes and dtypes in inputs=",
        lines.of_error(error),
    )


def told(error: AotError) -> str:
    """What an error says and its place, to stand in a message whose place is the line that it came from."""
    return error.what if error.where is None else f"{error.what}, at {error.where}"


def at_line(kind: str, what: str, fix: str | None, at: lines.Line | None) -> Break:
    """A Break at a line that may be unknown."""
    if at is None:
        return Break(kind, what, fix=fix)
    return Break(kind, what, at.file, at.line, at.function, at.code, fix)


def decides(code: str) -> bool:
    """Whether code asks for the value of something."""
    return (
        code.startswith(("if ", "elif ", "while ", "assert "))
        or bool(_EITHER.search(code))
        or on_values(code) == NUMBER
    )


def on_values(code: str) -> tuple[str, str, str]:
    """(kind, what, fix) for code that decides by the value of a tensor."""
    if code.startswith("while "):
        return LOOP
    if code.startswith("assert "):
        return ASSERT
    if code.startswith(("if ", "elif ")) or _EITHER.search(code):
        return BRANCH
    if re.search(r"\.item\(|\bint\(|\bfloat\(|\bbool\(|\.tolist\(|\brange\(|\[.*:.*\]", code):
        return NUMBER
    return BRANCH


def by_code(code: str) -> tuple[str, str, str]:
    """(kind, what, fix) for a line from which on the capture goes another way than a call."""
    if re.search(r"is_(?:exporting|compiling|tracing|scripting|torchdynamo\w*)\(", code):
        return (
            "branch on the export",
            "forward does something else here while it is exported, and the results differ",
            "let both ways compute the same, or leave out the branch",
        )
    found = ((kind, what, fix) for marks, kind, what, fix in _KINDS if any(mark in code for mark in marks))
    return next(found, None) or on_values(code)


def fakeless(op: str) -> tuple[str, str, str]:
    """(kind, what, fix) for a custom op that torch cannot run on shapes alone; `op` as `ns::name` or `ns.name`."""
    name = "::".join(re.split(r"::|\.", op)[:2])
    return (
        "op without fake",
        f"the custom op {name} does not say what its output looks like",
        f'register it: @torch.library.register_fake("{name}") on a function that returns torch.empty of the '
        "output's shape and dtype; one that is made of torch functions is then expanded, any other needs a plugin",
    )


def _sorted(
    error: BaseException, text: str, at: lines.Line | None, spec: ModelSpec, sizes: Mapping[str, int]
) -> tuple[str, str, str]:
    """(kind, what, fix)."""
    code = at.code if at else ""
    name = type(error).__name__
    if "data-dependent" in text or name.startswith("GuardOnDataDependent"):
        # A decision by a size that is the same for all data would have been made: this one is not.
        return on_values(code) if decides(code) and not _ASKS_SIZE.search(code) else SIZE
    if name == "TraceError" and ("interpolate" in code or "scale_factor" in code):
        return SCALE
    unregistered = _FAKELESS.search(text)
    if unregistered:
        return fakeless(unregistered[1] or unregistered[2])
    for marks, kind, what, fix in _KINDS:
        if any(mark in text or mark in code for mark in marks):
            return kind, what, fix
    foreign = re.search(r"Found <class '([^']+)'> in output", text)
    if foreign:
        if foreign[1].startswith("transformers.") and foreign[1].endswith("Cache"):
            return (
                "output that is no tensor",
                f"forward returns a cache of transformers, {foreign[1]}, not tensors alone",
                'turn it off with "use_cache": False in inputs=, or in the config of the model',
            )
        return (
            "output that is no tensor",
            f"forward returns an object of class {foreign[1]}, not tensors",
            "return tensors only: alone, in a tuple or list, or in a dict; "
            "or register a dataclass with torch.export.register_dataclass",
        )
    at_sizes = ", ".join(f"{dim}={size}" for dim, size in sizes.items())
    said = _named(first_sentence(text), error, spec)
    return (
        OTHER,
        f"torch.export failed{f' at {at_sizes}' if at_sizes else ''}: {name}: {said}",
        "this line raises when the model is captured: make it accept every size that is declared, "
        "give sizes that must agree one Dim, or declare them fixed",
    )


_KINDS = (
    (
        (".numpy()", "np.", "numpy."),
        "numpy",
        "the model computes with numpy, which leaves the graph",
        "use the torch function of the same name",
    ),
    (
        ("pack_padded_sequence", "pad_packed_sequence", "PackedSequence"),
        "packed sequence",
        "a packed sequence has sizes that depend on values",
        "run the recurrent layer on the padded batch and take each row's last valid step with gather, "
        "or mask what lies behind it",
    ),
    (
        (".to_sparse", "torch.sparse", "aten._to_sparse", "Sparse"),
        "sparse tensor",
        "the model makes a sparse tensor, which no engine has",
        "compute with dense tensors: gather and scatter, or a mask",
    ),
    (
        ("dequantize", "quantize_per", "quantized::", "QuantizedCPU"),
        "quantized tensor",
        "the model holds quantized tensors, which torch.export cannot capture",
        "export the float model: aot quantizes it itself, with --precision",
    ),
    ((".cuda(", "Found no NVIDIA driver", "Torch not compiled with CUDA"), *GPU),
    (
        ("is not on the expected device", "found two different devices", "Unhandled FakeTensor Device Propagation"),
        "device",
        "the model mixes tensors of two devices",
        "keep all weights and tensors on the CPU: create new ones with device=x.device",
    ),
    (
        ("open(", "FileNotFoundError", "urllib", "requests."),
        "file",
        "forward reads a file",
        "read it in __init__ and keep it in a buffer",
    ),
)


def _named(said: str, error: BaseException, spec: ModelSpec) -> str:
    """The message with Dims in place of torch's symbols, as far as they are known."""
    if not _SYMBOL.search(said):
        return said
    from aot.frontend import guards

    env = guards.env_of_error(error)
    known: dict[str, Dim] = guards.symbols(env, spec) if env is not None else {}
    return _SYMBOL.sub(lambda match: known[match[0]].name if match[0] in known else match[0], said)


def first_sentence(text: Any) -> str:
    """The first non-empty line, without the advertisement for environment variables."""
    found = [line.strip() for line in str(text).splitlines() if line.strip()]
    return re.split(r" For more information| \(unhinted", found[0])[0] if found else "(no message)"
