"""A stand-in for the module `torch_tensorrt` 2.14, for machines without it: everything up to the vendor's own work.

It takes what the real one takes, by the same names, and holds the caller to what the real one checks: the trees of
names must have the structure that the program was exported with. What the real conversion makes of it is not seen here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch.utils import _pytree as pytree


@dataclass(frozen=True, kw_only=True)
class Input:
    """One shape, or a list of ranges of shapes."""

    dtype: torch.dtype
    name: str
    shape: tuple[int, ...] | None = None
    profiles: Sequence[Mapping[str, tuple[int, ...]]] | None = None

    def __post_init__(self) -> None:
        assert (self.shape is None) != (self.profiles is None)
        assert all(set(one) == {"min_shape", "opt_shape", "max_shape"} for one in self.profiles or ())


def module(refusal: Exception | None = None) -> ModuleType:
    """The module; `asked` of it holds what the conversion was called with. `refusal` is what it raises."""
    made: Any = ModuleType("torch_tensorrt")

    def convert(
        exported_program: torch.export.ExportedProgram,
        *,
        arg_inputs: Sequence[Any],
        kwarg_inputs: Mapping[str, Input],
        kwarg_input_binding_names: Mapping[str, str],
        output_binding_names: Mapping[str, str],
        disable_tf32: bool,
        optimization_level: int | None,
        workspace_size: int,
        timing_cache_path: str,
    ) -> bytes:
        args, kwargs = exported_program.call_spec.in_spec.children()
        assert pytree.tree_structure(tuple(arg_inputs)) == args
        assert pytree.tree_structure(dict(kwarg_inputs)) == kwargs
        assert pytree.tree_structure(dict(kwarg_input_binding_names)) == kwargs
        assert pytree.tree_structure(dict(output_binding_names)) == exported_program.call_spec.out_spec
        if refusal is not None:
            raise refusal
        made.asked = SimpleNamespace(
            inputs=dict(kwarg_inputs),
            names=[*kwarg_input_binding_names.values(), *output_binding_names.values()],
            disable_tf32=disable_tf32,
            level=optimization_level,
            workspace=workspace_size,
            timing=timing_cache_path,
        )
        return b"engine"

    made.Input = Input
    made.dynamo = SimpleNamespace(convert_exported_program_to_serialized_trt_engine=convert)
    return made
