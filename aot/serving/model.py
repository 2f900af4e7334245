"""The model of a server, as the protocol describes it, and what a request must hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aot import __version__
from aot.errors import InputError, unknown
from aot.runtime.calls import Reader
from aot.runtime.interchange import Array
from aot.runtime.manifest import Manifest
from aot.serving import wire
from aot.serving.joining import Joining
from aot.serving.refusals import UnknownModel

VERSION = "1"
SERVER: dict[str, Any] = {"name": "aot", "version": __version__, "extensions": ["binary_tensor_data"]}


@dataclass(frozen=True)
class Request:
    """A request that fits the model. sizes: of its Dims. outputs: those asked for, in that order."""

    id: str
    inputs: Mapping[str, Array]
    sizes: Mapping[str, int]
    outputs: Sequence[str]


class Model:
    """Metadata, and the checks of a request that both front ends share.

    Raises TargetError where an input or output has a dtype that the protocol does not.
    """

    def __init__(self, manifest: Manifest, name: str, joining: Joining) -> None:
        self.name, self.joining = name, joining
        self.platform = f"aot_{manifest.precision}"
        self.inputs, self.outputs = wire.metadata(manifest.inputs), wire.metadata(manifest.outputs)
        self.readers = {name: wire.Reader(name, tensor) for name, tensor in manifest.inputs.items()}
        self.results = tuple(manifest.outputs)
        self._fits = Reader(manifest)
        self._states = manifest.states

    def metadata(self) -> dict[str, Any]:
        """As HTTP has it; gRPC has the same without the parameters."""
        return {
            "name": self.name,
            "versions": [VERSION],
            "platform": self.platform,
            "inputs": self.inputs,
            "outputs": self.outputs,
            "parameters": {"batching": self.joining.why, "max_batch": self.joining.largest},
        }

    def called(self, name: str, version: str) -> None:
        """Raise UnknownModel for another model or version than this one; an empty version is any."""
        if name != self.name:
            raise UnknownModel(f"no model is called {name[:80]!r}", fix=f"this server has '{self.name}'")
        if version not in ("", VERSION):
            raise UnknownModel(f"the model has no version {version[:80]!r}", fix=f"leave it out, or ask for {VERSION}")

    def request(
        self, id: str, names: Sequence[str], read: Callable[[int, wire.Reader], Array], outputs: Sequence[str]
    ) -> Request:
        """A request held against the model. names: of its inputs; read: the array of one of them, by its place.

        Raises InputError for what does not fit.
        """
        inputs: dict[str, Array] = {}
        for place, name in enumerate(names):
            if name in inputs:
                raise InputError(f"input '{name}' comes twice", fix="send it once")
            if name not in self.readers:
                raise InputError(unknown("input", name[:80], self.readers).what, fix=f"the model takes {self._takes()}")
            inputs[name] = read(place, self.readers[name])
        for name in outputs:
            if name not in self.results:
                raise unknown_output(name, self.results)
        if len(set(outputs)) < len(outputs):
            raise InputError("an output is asked for twice", fix="ask for it once")
        ordered = {name: inputs[name] for name in self.readers if name in inputs}
        _, sizes = self._fits.read(ordered)
        return Request(id, ordered, sizes, tuple(outputs) or self.results)

    def _takes(self) -> str:
        return ", ".join(f"{one['name']} {one['datatype']} {one['shape']}" for one in self.inputs)


def unknown_output(name: str, known: Sequence[str]) -> InputError:
    """The error for an output that the model does not have."""
    said = unknown("output", name[:80], known)
    return InputError(said.what, fix=said.fix)
