"""A plugin's file, run and held against what it says of itself."""

from __future__ import annotations

import hashlib
import inspect
import linecache
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from aot import content
from aot.errors import AotError, PluginError
from aot.plugin import Launch, Named, Size
from aot.plugins.header import REST, Header, read
from aot.plugins.sizes import Varies, tree_of

OPTIONS = ("num_warps", "num_stages", "maxnreg")
"""What of a config is the compiler's; the rest is for `launch`."""
REFUSED = {
    "num_ctas": "TensorRT launches no clusters",
    "launch_cooperative_grid": "TensorRT launches no kernel cooperatively",
    "launch_pdl": "TensorRT overlaps no kernel with the one before it",
}
"""Options of the compiler for what TensorRT does not do."""
_loaded: dict[tuple[Path, str], Plugin] = {}


@dataclass(frozen=True)
class Plugin(Header):
    """A plugin whose file has been run.

    digest: SHA-256 of the file. space: what `aot plugin tune` tries beyond CONFIGS, by name. scalars, constants: names
    of the kernel's parameters of that kind.
    """

    digest: str
    configs: tuple[Mapping[str, Any], ...]
    space: Mapping[str, tuple[Any, ...]]
    scalars: tuple[str, ...]
    constants: tuple[str, ...]
    reference: Callable[..., Any]
    kernel: Any
    patterns: tuple[Callable[..., Any], ...]
    _outputs: Callable[..., Any]
    _launch: Callable[..., Any]
    _sample: Callable[..., Any] | None

    def outputs(self, shapes: Mapping[str, Sequence[Any]], attributes: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """The outputs' shapes. Raises PluginError where the function does not give one for each."""
        with self.calling("outputs"):
            found = self._outputs(Named("input", shapes), _named(attributes))
        names = [one.name for one in self.schema.outputs]
        if not isinstance(found, list | tuple) or len(found) != len(names):
            count = len(found) if isinstance(found, list | tuple) else type(found).__name__
            raise self.error(
                f"outputs gives {count} shapes, and SCHEMA {len(names)}: {', '.join(names)}",
                "outputs",
                f"return a tuple of shapes, one for each of them: (shapes.{self.schema.inputs[0].name}, ...)",
            )
        for name, shape in zip(names, found, strict=True):
            if not isinstance(shape, list | tuple):
                raise self.error(f"outputs gives {shape!r} for '{name}', which is no shape", "outputs")
        return [tuple(shape) for shape in found]

    def launch(
        self, shapes: Mapping[str, Sequence[Any]], attributes: Mapping[str, Any], config: Mapping[str, Any]
    ) -> Launch:
        """How the kernel is launched; grid of three axes. Raises PluginError for what the kernel does not take."""
        with self.calling("launch"):
            made = self._launch(Named("input", shapes), _named(attributes), dict(config))
        if not isinstance(made, Launch) or not 1 <= len(made.grid) <= 3:
            raise self.error(f"launch gives {made!r}, not a Launch with a grid of 1 to 3 axes", "launch")
        with self.calling("launch"):
            for size in (*made.grid, *made.scalars.values()):
                tree_of(size)
        for kind, given, wanted in (
            ("constants", made.constants, self.constants),
            ("scalars", made.scalars, self.scalars),
        ):
            if set(given) != set(wanted):
                given_names, wanted_names = ", ".join(given) or "none", ", ".join(wanted) or "none"
                raise self.error(
                    f"launch gives the {kind} {given_names}; the kernel takes {wanted_names}",
                    "launch",
                    f"Launch(..., {kind}={{...}}) names each parameter of the kernel that is one, and no other",
                )
        for name, value in made.constants.items():
            if isinstance(value, Size):
                raise Varies(
                    f"plugin {self.name}: launch gives '{name}', a constant, as {value!r}, which varies",
                    where=self.at("launch"),
                    fix="make it a scalar, or take fixed(size)",
                )
        return Launch((*made.grid, 1, 1)[:3], made.constants, {name: made.scalars[name] for name in self.scalars})

    def sample(self, inputs: dict[str, Any], attributes: Mapping[str, Any]) -> dict[str, Any]:
        """Random inputs made into ones that occur."""
        if self._sample is None:
            return inputs
        with self.calling("sample"):
            made = self._sample(inputs, _named(attributes))
        if not isinstance(made, dict):
            raise self.error(f"sample gives {type(made).__name__}, not the inputs", "sample", "return inputs")
        return made

    @contextmanager
    def calling(self, part: str) -> Iterator[None]:
        """Run a function of the file: what it raises becomes a PluginError at its line."""
        with user_code(self.file, f"plugin {self.name}: {part}", self.at(part)):
            yield

    def bind(self, shapes: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        """name of a size -> size; REST -> a tuple. Raises PluginError for shapes unlike SHAPES.

        Sizes that vary are taken as they come: what one name stands for is only compared where both are known.
        """
        found: dict[str, Any] = {}
        for name, axes in self.shapes.items():
            shape = tuple(shapes[name])
            rest = axes[:1] == (REST,)
            inner = axes[1:] if rest else axes
            if len(shape) < len(inner) or (len(shape) > len(inner) and not rest):
                raise self._unlike(name, shape)
            leading = len(shape) - len(inner)
            if rest:
                before = found.setdefault(REST, shape[:leading])
                if len(before) != leading or not all(map(_may_be_same, before, shape[:leading])):
                    raise self._unlike(name, shape, f"'...' is {_text(before)} before")
            for axis, size in zip(inner, shape[leading:], strict=True):
                known = found.setdefault(axis, size) if isinstance(axis, str) else axis
                if not _may_be_same(known, size):
                    raise self._unlike(name, shape, f"'{axis}' is {known} before" if isinstance(axis, str) else "")
                if isinstance(axis, str) and type(size) is int and not self.bound(axis).holds(size):
                    raise self._unlike(name, shape, f"'{axis}' may be {self.bound(axis)}")
        return found

    def _unlike(self, name: str, shape: Sequence[Any], why: str = "") -> PluginError:
        wanted = " ".join(map(str, self.shapes[name]))
        said = f"'{name}' has the shape {_text(shape)}, and SHAPES says [{wanted}]"
        return self.error(f"{said}; {why}" if why else said, "SHAPES")


def _named(attributes: Mapping[str, Any]) -> Named:
    """Attributes as `outputs`, `launch` and `sample` get them: what was a tuple may have been JSON in between."""
    return Named("attribute", {k: tuple(v) if isinstance(v, list) else v for k, v in attributes.items()})


def _may_be_same(a: Any, b: Any) -> bool:
    return type(a) is not int or type(b) is not int or a == b


def _text(shape: Sequence[Any]) -> str:
    return f"[{' '.join(map(str, shape))}]"


def find(name: str, project: Path | None) -> Plugin:
    """The plugin of that name, the project's own before a built-in one. Raises UsageError, PluginError."""
    return load(content.find("plugins", name, project))


def load(file: Path) -> Plugin:
    """Run a plugin's file; once for each content. Raises PluginError with file and line for whatever is wrong in it."""
    file = file.resolve()
    try:
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise PluginError(f"plugin {file.stem} cannot be read: {error.strerror}", where=str(file)) from error
    if (file, digest) not in _loaded:
        _loaded[file, digest] = _load(file, digest)
    return _loaded[file, digest]


def _load(file: Path, digest: str) -> Plugin:
    header = read(file)
    module = ModuleType(f"aot_plugin_{header.domain}_{header.name}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module
    linecache.checkcache(str(file))
    with user_code(file, f"plugin {header.name}", f"{file}:1"):
        # Compiled here rather than by the import system: a cached .pyc of the same second and size is stale.
        exec(compile(file.read_bytes(), str(file), "exec", dont_inherit=True), module.__dict__)
    scalars, constants = _parameters(header, module.kernel)
    return Plugin(
        **{name: getattr(header, name) for name in Header.__dataclass_fields__},
        digest=digest,
        configs=_configs(header, module.CONFIGS),
        space=_space(header, getattr(module, "SPACE", {})),
        scalars=scalars,
        constants=constants,
        reference=module.reference,
        kernel=module.kernel,
        patterns=_patterns(header, getattr(module, "PATTERNS", ())),
        _outputs=module.outputs,
        _launch=module.launch,
        _sample=getattr(module, "sample", None),
    )


def _configs(header: Header, given: Any) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(given, list | tuple) or not given or not all(isinstance(one, dict) for one in given):
        raise header.error("CONFIGS is not a list of dicts", "CONFIGS", 'CONFIGS = [{"num_warps": 4}]')
    for one in given:
        _check_options(header, one)
        for option in sorted(one.keys() & REFUSED.keys()):
            raise header.error(f"CONFIGS sets {option}: {REFUSED[option]}", "CONFIGS", "leave it out")
    return tuple(dict(one) for one in given)


def _space(header: Header, given: Any) -> dict[str, tuple[Any, ...]]:
    fix = 'SPACE = {"num_warps": [4, 8]}'
    if not isinstance(given, dict):
        raise header.error("SPACE is not a dict", "SPACE", fix)
    for name, values in given.items():
        if not isinstance(values, list | tuple) or not values:
            raise header.error(f"SPACE: '{name}' is {values!r}, not the values to try", "SPACE", fix)
        for value in values:
            _check_options(header, {name: value}, "SPACE")
    return {name: tuple(values) for name, values in given.items()}


def _check_options(header: Header, config: Mapping[str, Any], part: str = "CONFIGS") -> None:
    """What of a config is the compiler's must be numbers that it takes."""
    for option in OPTIONS:
        value = config.get(option, 1)
        right = type(value) is int and value >= 1 and (option != "num_warps" or value in (1, 2, 4, 8, 16, 32))
        if not right:
            raise header.error(
                f"{part} sets {option} to {value!r}",
                part,
                "num_warps is 1, 2, 4, 8, 16 or 32; num_stages and maxnreg are integers from 1 on",
            )


def _patterns(header: Header, given: Any) -> tuple[Callable[..., Any], ...]:
    """PATTERNS: functions of every input, and of the attributes that a program may say."""
    if not isinstance(given, list | tuple) or not all(isinstance(one, FunctionType) for one in given):
        raise header.error("PATTERNS is not a list of functions", "PATTERNS", "PATTERNS = [as_written]")
    inputs = [one.name for one in header.schema.inputs]
    attributes = {one.name: one for one in header.schema.attributes}
    for function in given:
        parameters = inspect.signature(function).parameters
        named = [name for name in parameters if name in attributes]
        if sorted(parameters) != sorted([*inputs, *named]):
            raise header.error(
                f"pattern {function.__name__} takes {', '.join(parameters)}",
                function.__name__,
                f"every input, {', '.join(inputs)}, and of the attributes those that it shows",
            )
        for name, one in attributes.items():
            said = name in parameters and parameters[name].default is not inspect.Parameter.empty
            unsettled = one.default is None if name not in parameters else one.kind not in ("int", "float")
            if unsettled and not said:
                raise header.error(
                    f"pattern {function.__name__} does not say what '{name}' is",
                    function.__name__,
                    "give it as a parameter with a default; a number may be one without, and is read from the program",
                )
    return tuple(given)


def _parameters(header: Header, kernel: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The kernel's scalars and constants. Raises PluginError where its parameters are not in the order of the contract.

    A jitted function, compiled or interpreted, knows its Python function as `fn` and its parameters as `params`.
    """
    if not hasattr(kernel, "params") and not hasattr(kernel, "fn"):
        raise header.error("kernel is no Triton kernel", "kernel", "decorate it with @triton.jit")
    constants = tuple(n for n, annotation in kernel.fn.__annotations__.items() if "constexpr" in str(annotation))
    code = kernel.fn.__code__
    names = code.co_varnames[: code.co_argcount]
    given = tuple(name for name in names if name not in constants)
    inputs, outputs = [tuple(one.name for one in part) for part in (header.schema.inputs, header.schema.outputs)]
    scalars = given[len(inputs) : len(given) - len(outputs)]
    if (*inputs, *scalars, *outputs, *constants) != names:
        raise header.error(
            f"the kernel takes {', '.join(names)}",
            "kernel",
            f"{', '.join(inputs)}, then its scalars, then {', '.join(outputs)}, then its constants (tl.constexpr)",
        )
    return scalars, constants


@contextmanager
def user_code(file: Path, doing: str, where: str) -> Iterator[None]:
    """Run code of a plugin: whatever it raises becomes a PluginError at the deepest line of its file."""
    try:
        yield
    except AotError as error:
        if error.where is not None:
            raise
        kind = Varies if isinstance(error, Varies) else PluginError
        raise kind(f"{doing}: {error.what}", where=_line(file, error) or where, fix=error.fix) from error
    except ModuleNotFoundError as error:
        fix = "pip install 'aot-engine[plugins]'" if error.name == "triton" else f"install {error.name}"
        raise PluginError(f"{doing}: {error.msg}", where=_line(file, error) or where, fix=fix) from error
    except (Exception, SystemExit) as error:  # their code may raise anything
        cause = error if error.__cause__ is None else error.__cause__
        said = " ".join(str(cause).split()) or "(no message)"
        at = _line(file, error) or where
        raise PluginError(f"{doing}: {type(cause).__name__}: {said}", where=at) from error


def _line(file: Path, error: BaseException | None) -> str | None:
    """`file:line: text` of the innermost frame in the file, of the first cause that has one."""
    found = None
    while error is not None:
        own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
        found = f"{file}:{own[-1].lineno}: {(own[-1].line or '').strip()}" if own else found
        error = error.__cause__
    return found
