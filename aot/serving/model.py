"""The model of a server, as the protocol describes it, and what a request must hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aot import __version__
from aot.errors import InputError, unknown
from aot.runtime.calls import Reader
from aot.runtime.interchange import NUMPY, Array
from aot.runtime.manifest import Manifest
from aot.runtime.state import beginning
from aot.serving import wire
from aot.serving.joining import Joining
from aot.serving.refusals import UnknownModel

VERSION = "1"
SERVER: dict[str, Any] = {"name": "aot", "version": __version__, "extensions": ["binary_tensor_data"]}


@dataclass(frozen=True)
class Request:
    """A request that fits the model.

    inputs: in the model's order. sizes: of its Dims. outputs: those asked for, in that order. timeout: seconds in which
    the answer is of use.
    """

    id: str
    inputs: Mapping[str, Array]
    sizes: Mapping[str, int]
    outputs: Sequence[str]
    timeout: float | None


class Model:
    """Metadata, and the checks of a request that both front ends share.

    States of a model are inputs and outputs like the others: the server keeps none between requests. A request without
    them begins at what the model starts with; the next one sends what the response had.
    Raises TargetError where an input or output has a dtype that the protocol does not.
    """

    def __init__(self, manifest: Manifest, name: str, joining: Joining) -> None:
        self.name, self.joining = name, joining
        self.outputs = wire.metadata(manifest.outputs)
        self.datatypes = {one["name"]: one["datatype"] for one in self.outputs}
        self._manifest = manifest
        self._readers = {name: wire.Reader(name, tensor) for name, tensor in manifest.inputs.items()}
        self._fits = Reader(manifest)

    def metadata(self) -> dict[str, Any]:
        """As HTTP has it; gRPC has no parameters."""
        return {
            "name": self.name,
            "versions": [VERSION],
            "platform": f"aot_{self._manifest.precision}",
            "inputs": wire.metadata(self._manifest.inputs),
            "outputs": self.outputs,
            "parameters": {"batching": self.joining.why, "max_batch": self.joining.most},
        }

    def called(self, name: str, version: str) -> None:
        """Raise UnknownModel for another model or version than this one; an empty version is any."""
        if name != self.name:
            raise UnknownModel(f"no model is called {name[:80]!r}", fix=f"this server has '{self.name}'")
        if version not in ("", VERSION):
            raise UnknownModel(f"the model has no version {version[:80]!r}", fix=f"leave it out, or ask for {VERSION}")

    def request(
        self,
        id: str,
        names: Sequence[str],
        read: Callable[[int, wire.Reader], Array],
        outputs: Sequence[str],
        timeout: object = None,
    ) -> Request:
        """A request held against the model. names: of its inputs; read: the array of one of them, by its place.

        timeout: the parameter of that name, in microseconds; None or 0 for none. Raises InputError for what does not
        fit.
        """
        seconds = _seconds(timeout)
        for name in outputs:
            if name not in self.datatypes:
                said = unknown("output", name[:80], self.datatypes)
                raise InputError(said.what, fix=said.fix)
        if len(set(outputs)) < len(outputs):
            raise InputError("an output is asked for twice", fix="ask for it once")
        inputs: dict[str, Array] = {}
        for place, name in enumerate(names):
            if name in inputs:
                raise InputError(f"input '{name}' comes twice", fix="send it once")
            if name not in self._readers:
                raise InputError(
                    unknown("input", name[:80], self._readers).what, fix=f"the model takes {self._takes()}"
                )
            inputs[name] = read(place, self._readers[name])
        if self._fits.leaves_out(inputs):
            _, sizes = self._fits.read(inputs, {})
            for name, array in beginning(self._manifest, self._fits, sizes).items():
                inputs[name] = NUMPY.made(array, self._manifest.inputs[name].dtype, NUMPY.look(array))
        _, sizes = self._fits.read(inputs)
        ordered = {name: inputs[name] for name in self._readers}
        return Request(id, ordered, sizes, tuple(outputs) or tuple(self.datatypes), seconds)

    def _takes(self) -> str:
        return ", ".join(f"{name} {one.datatype}" for name, one in self._readers.items())


def _seconds(timeout: object) -> float | None:
    """A request's timeout; the parameter has microseconds."""
    if timeout is None or timeout == 0:
        return None
    if type(timeout) is not int or not 0 < timeout < 2**63:
        raise InputError(f"timeout is {str(timeout)[:40]}", fix="give whole microseconds")
    return timeout / 1e6
