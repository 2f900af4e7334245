"""`@aot.model`: a function that builds a module, with what aot needs to know of it. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from aot import structure
from aot.declaration import Input, ModelSpec
from aot.errors import DeclarationError

if TYPE_CHECKING:
    import torch

    Builder = TypeVar("Builder", bound=Callable[[], torch.nn.Module])
else:
    Builder = TypeVar("Builder")

Batches = Callable[[], Iterable[Mapping[str, Any]]]
Metric = Callable[[Callable[..., Mapping[str, Any]]], float]
C = TypeVar("C", bound=Batches)
M = TypeVar("M", bound=Metric)


@dataclass
class Declaration(Generic[Builder]):
    """What `@aot.model` makes of a function: the function, its spec, and what was attached to it.

    Calling it builds the module, as calling the plain function would. `inputs` are the tensors by flat name, `trees`
    how forward's parameters hold them, `states` the attributes to lift, with the input to lift them to where given.
    """

    build: Builder
    inputs: Mapping[str, Input]
    outputs: tuple[str, ...] = ()
    padding: str | None = None
    files: tuple[str, ...] = ()
    trees: Mapping[str, structure.Tree] = field(default_factory=dict)
    states: Mapping[str, Input | None] = field(default_factory=dict)
    batches: Batches | None = field(default=None, repr=False)
    score: Metric | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The function's name: it names the artifact."""
        return str(getattr(self.build, "__name__", "model"))

    def __call__(self) -> torch.nn.Module:
        """Build the module."""
        return self.build()

    def calibration(self, function: C) -> C:
        """Attach a generator of batches: tensors or arrays by flat input name, or nested as `forward` takes them."""
        self.batches = function
        return function

    def metric(self, function: M) -> M:
        """Attach the task's own score (higher is better); it gets `run(**inputs) -> {output: array}`.

        The inputs are those of a calibration batch.
        """
        self.score = function
        return function

    def spec(self) -> ModelSpec:
        """The declaration as data, without the states, whose shapes the module knows.

        Raises DeclarationError where two Dims clash.
        """
        plain = all(tree == {"input": name} for name, tree in self.trees.items())
        spec = ModelSpec(
            name=self.name,
            inputs=dict(self.inputs),
            outputs=self.outputs,
            padding=self.padding,
            has_calibration=self.batches is not None,
            has_metric=self.score is not None,
            structure={} if plain else dict(self.trees),
        )
        _ = spec.dims
        return spec


def model(
    *,
    inputs: Mapping[str, Any],
    outputs: Sequence[str] = (),
    padding: str | None = None,
    files: Sequence[str] = (),
    states: Sequence[str] | Mapping[str, Input | None] = (),
) -> Callable[[Builder], Declaration[Builder]]:
    """Declare the decorated function as the builder of a model.

    `inputs` maps the names of `forward`'s parameters to what they take: an `Input`, None or another constant, or a
    dict, list, tuple or dataclass of these, as deep as `forward` wants it. The engine takes the tensors under flat
    names, `cond_gain` for `cond["gain"]` or `cond.gain` and `images_0` for `images[0]`. `outputs` names the outputs.
    `padding` names the mask input whose zeros mark padding. `files` lists files that the model reads in a way that
    Python cannot see, relative to the declaring file.

    `states` names tensors that the module keeps between calls, by attribute (`peak`, `lstm.h`): each becomes an input
    `state_peak` and an output `state_peak_out`, which is the input of the next call. Shape and dtype are the
    tensor's; `states={"peak": aot.Input([batch, 4])}` gives another shape, where all elements start alike.
    """
    _check_kinds(inputs, outputs, files)
    tensors, trees = structure.flattened(inputs)
    if not tensors:
        raise DeclarationError("a model needs at least one input: an aot.Input", where="@aot.model")
    for name in outputs:
        if name in tensors or list(outputs).count(name) > 1:
            other = "an input" if name in tensors else "another output"
            raise DeclarationError(f"output '{name}' has the name of {other}", where="@aot.model")
    if padding is not None and padding not in tensors:
        raise DeclarationError(
            f"padding names '{padding}', which is not an input",
            where="@aot.model",
            fix=f"the inputs are {', '.join(tensors)}",
        )
    kept = _states(states)

    def declare(build: Builder) -> Declaration[Builder]:
        return Declaration(build, tensors, tuple(outputs), padding, tuple(files), trees, kept)

    return declare


def _states(given: object) -> dict[str, Input | None]:
    """The states by attribute. Raises DeclarationError unless they are names, with an Input each in a mapping."""
    if isinstance(given, Mapping):
        kept = dict(given)
    else:
        listed = isinstance(given, Sequence) and not isinstance(given, str | bytes)
        kept = dict.fromkeys(given) if listed else {None: None}  # type: ignore[call-overload]
    for name, tensor in kept.items():
        if not isinstance(name, str) or not (tensor is None or isinstance(tensor, Input)):
            raise DeclarationError(
                f"states= is a list of attributes, not {given!r}",
                where="@aot.model",
                fix='states=["peak"], or states={"peak": aot.Input([batch, 4])}',
            )
    return kept


def _check_kinds(inputs: object, outputs: object, files: object) -> None:
    """Raise DeclarationError unless `inputs` is a mapping and the others are lists of strings."""
    if not isinstance(inputs, Mapping):
        raise DeclarationError(
            f"inputs= is a mapping from the names of forward's parameters to aot.Input, not a {type(inputs).__name__}",
            where="@aot.model",
            fix='inputs={"x": aot.Input([batch, 3, 224, 224])}',
        )
    for option, given, example in (("outputs", outputs, "y"), ("files", files, "weights.bin")):
        listed = isinstance(given, Sequence) and not isinstance(given, str | bytes)
        if not listed or not all(isinstance(name, str) for name in given):  # type: ignore[attr-defined]
            alone = f'{option}=["{given}"]' if isinstance(given, str) else f'{option}=["{example}"], or leave it out'
            raise DeclarationError(f"{option}= is a list of names, not {given!r}", where="@aot.model", fix=alone)
