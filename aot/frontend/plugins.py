"""A plugin as an op of torch: its reference to run, its shapes to export with.

Imports torch; import it only where torch is needed.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from aot import content
from aot.errors import PluginError
from aot.plugins import loading
from aot.plugins.header import read
from aot.plugins.loading import Plugin
from aot.sources.loading import current

_made: dict[str, tuple[Plugin, torch.library.Library]] = {}
"""The ops that are ours, by qualified name, with the libraries that hold them."""


def op(name: str) -> torch._ops.OpOverload:
    """The op of a plugin of the project that is being built, or of the built-ins. Raises UsageError, PluginError."""
    return registered(loading.find(name, current()))


def registered(plugin: Plugin) -> torch._ops.OpOverload:
    """The plugin's op, made where it is not there yet.

    An op that the model's own code has made under that name and with that schema is taken as it is. Raises PluginError
    where its schema is another one.
    """
    held = _made.get(plugin.qualified)
    if held is not None and held[0] is not plugin:
        held[1]._destroy()  # type: ignore[no-untyped-call]
        del _made[plugin.qualified]
        held = None
    if held is None and (there := existing(plugin.domain, plugin.name)) is not None:
        _check_same(plugin, there)
        return there
    if held is None:
        _made[plugin.qualified] = plugin, _library(plugin)
    found = existing(plugin.domain, plugin.name)
    assert found is not None
    return found


def register_named_in(path: Path, project: Path | None) -> None:
    """Make the ops of plugins that a saved program names, which torch asks for when it loads one.

    What is no archive, or names ops that no plugin has, is left for torch to refuse. Raises PluginError.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            parts = [
                archive.read(name).decode(errors="replace") for name in archive.namelist() if name.endswith(".json")
            ]
    except (zipfile.BadZipFile, OSError):
        return
    for name, file in content.names("plugins", project).items():
        if any(f".{name}." in part for part in parts):
            domain = read(file).domain
            if any(f"torch.ops.{domain}.{name}." in part for part in parts):
                registered(loading.load(file))


def existing(domain: str, name: str) -> torch._ops.OpOverload | None:
    """torch's op of that name, None where there is none."""
    packet = getattr(getattr(torch.ops, domain), name, None)
    return None if packet is None else packet.default


def plugin_of(target: object, project: Path | None) -> Plugin | None:
    """The plugin that implements an op of a program: the one it was made from, or one of its name in the project.

    Raises PluginError for a plugin of that name that is broken, or whose schema is another one.
    """
    if not isinstance(target, torch._ops.OpOverload):
        return None
    domain, _, name = target._schema.name.partition("::")
    held = _made.get(target._schema.name)
    if held is not None:
        return held[0]
    file = content.names("plugins", project).get(name)
    if file is None or read(file).domain != domain:
        return None
    plugin = loading.load(file)
    _check_same(plugin, target)
    return plugin


def _check_same(plugin: Plugin, there: torch._ops.OpOverload) -> None:
    wanted = torch._C.parse_schema(f"{plugin.qualified}{plugin.schema.torch()}")
    if _signature(wanted) != _signature(there._schema):
        raise plugin.error(
            f"torch has an op {plugin.qualified} already, with another schema: {there._schema}",
            "NAME",
            "give the plugin a domain of its own in NAME, or the same schema",
        )


def _signature(schema: Any) -> Any:
    """What a call depends on; what the outputs are called does not matter."""
    return [(a.name, str(a.type)) for a in schema.arguments], [str(r.type) for r in schema.returns]


def _library(plugin: Plugin) -> torch.library.Library:
    library: Any = torch.library.Library(plugin.domain, "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define(f"{plugin.name}{plugin.schema.torch()}")
    library.impl(plugin.name, partial(run_reference, plugin), "CompositeExplicitAutograd")
    torch.library.register_fake(plugin.qualified, partial(_fake, plugin), lib=library)
    return library  # type: ignore[no-any-return]


def arguments(plugin: Plugin, given: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(inputs, attributes) by name, of the arguments of a call; defaults filled in."""
    count = len(plugin.schema.inputs)
    inputs = {one.name: value for one, value in zip(plugin.schema.inputs, given[:count], strict=True)}
    attributes = {one.name: one.default for one in plugin.schema.attributes}
    attributes.update(
        (name, tuple(value) if isinstance(value, list) else value)
        for name, value in zip(attributes, given[count:], strict=False)
    )
    return inputs, attributes


def dtype_of(tensor: torch.Tensor) -> str:
    """A tensor's dtype as SCHEMA writes it."""
    return str(tensor.dtype).removeprefix("torch.")


def expected(
    plugin: Plugin, inputs: Mapping[str, torch.Tensor], attributes: Mapping[str, Any]
) -> list[tuple[tuple[Any, ...], torch.dtype]]:
    """Shape and dtype of each output. Raises PluginError for inputs that the op does not take."""
    shapes = {name: tuple(tensor.shape) for name, tensor in inputs.items()}
    plugin.bind(shapes)
    try:
        chosen = plugin.schema.chosen([dtype_of(tensor) for tensor in inputs.values()])
    except PluginError as error:
        raise plugin.error(error.what, "SCHEMA", error.fix) from error
    dtypes = [getattr(torch, dtype) for dtype in plugin.schema.dtypes(plugin.schema.outputs, chosen)]
    return list(zip(plugin.outputs(shapes, attributes), dtypes, strict=True))


def _fake(plugin: Plugin, *given: Any) -> Any:
    inputs, attributes = arguments(plugin, given)
    first = next(iter(inputs.values()))
    made = [first.new_empty(shape, dtype=dtype) for shape, dtype in expected(plugin, inputs, attributes)]
    return made[0] if len(made) == 1 else tuple(made)


def run_reference(plugin: Plugin, *given: Any) -> Any:
    """The reference, its results held against `outputs` and made contiguous tensors of their own."""
    inputs, attributes = arguments(plugin, given)
    wanted = expected(plugin, inputs, attributes)
    with plugin.calling("reference"):
        given_back = plugin.reference(*inputs.values(), *attributes.values())
    made = results(plugin, given_back)
    for one, tensor, (shape, dtype) in zip(plugin.schema.outputs, made, wanted, strict=True):
        if tuple(tensor.shape) != tuple(shape) or tensor.dtype != dtype:
            raise plugin.error(
                f"reference gives '{one.name}' as {_described(tensor.dtype, tensor.shape)}, "
                f"and outputs and SCHEMA say {_described(dtype, shape)}",
                "reference",
                f"correct what is wrong of the two; a result in FP32 is cast at the end: {one.name}.to(x.dtype)",
            )
    own = [tensor.clone() if any(_shares(tensor, other) for other in inputs.values()) else tensor for tensor in made]
    own = [tensor.contiguous() for tensor in own]
    return own[0] if len(own) == 1 else tuple(own)


def results(plugin: Plugin, made: Any) -> tuple[torch.Tensor, ...]:
    """What a reference returned, as a tuple. Raises PluginError where it is not a tensor for each output."""
    found = tuple(made) if isinstance(made, tuple | list) else (made,)
    if len(found) != len(plugin.schema.outputs) or not all(isinstance(one, torch.Tensor) for one in found):
        raise plugin.error(
            f"reference returns {len(found)} values, and SCHEMA {len(plugin.schema.outputs)} tensors: "
            + ", ".join(one.name for one in plugin.schema.outputs),
            "reference",
            f"return {', '.join(one.name for one in plugin.schema.outputs)}",
        )
    return found


def _described(dtype: torch.dtype, shape: Sequence[Any]) -> str:
    return f"{str(dtype).removeprefix('torch.')} [{', '.join(map(str, shape))}]"


def _shares(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(a.untyped_storage()._cdata == b.untyped_storage()._cdata)
