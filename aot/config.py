"""Settings as data: recipes (`calib/*.yaml`), profiles (`profiles/*.yaml`), budgets, and one build's request."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from aot.errors import ProfileError, UsageError

Precision = Literal["fp32", "fp16", "bf16", "int8", "fp8", "int4"]
Route = Literal["onnx", "torch-tensorrt"]
AUTO_PRECISION: Literal["auto"] = "auto"
Hardware = Literal["ampere_plus", "same_compute_capability"]
Quantizable = Literal["MatMul", "Gemm", "Conv", "ConvTranspose"]
PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "bf16", "int8", "fp8", "int4")
QUANTIZED: tuple[Precision, ...] = ("int8", "fp8", "int4")
ROUTES: tuple[Route, ...] = ("onnx", "torch-tensorrt")


class Settings(BaseModel):
    """Frozen, and refuses keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Budget(Settings):
    """What the verification must show for a build to be accepted; None: not asked for.

    cosine: the least cosine similarity over outputs and cases, flattened, padding left out.
    relative_l2: the largest ||got - ref|| / ||ref||.  max_abs: the largest |got - ref|.
    metric: the largest drop of the model's own score, in the score's units.
    """

    cosine: float | None = Field(default=None, ge=-1, le=1)
    relative_l2: float | None = Field(default=None, ge=0)
    max_abs: float | None = Field(default=None, ge=0)
    metric: float | None = Field(default=None, ge=0)


class Placement(Settings):
    """Where Q/DQ goes.

    ops: op types whose inputs are quantized. residual: the skip input of residual adds as well (INT8).
    attention: the two activation-by-activation MatMuls of attention as well. sensitive: layers that suffer
    most as well: whose bias cancels against the product, and depthwise ones that need one weight scale. slow: layers
    as well that kernels take, but are not known to be faster so (`precision/rules.py`: FP8 convolutions).
    min_channels: layers with fewer input or output channels stay wide. keep: node names or module paths (fnmatch)
    that stay wide.
    """

    ops: tuple[Quantizable, ...] = ("MatMul", "Gemm", "Conv")
    residual: bool = False
    attention: bool = False
    depthwise: bool = True
    sensitive: bool = False
    slow: bool = False
    min_channels: int = Field(default=16, ge=0)
    keep: tuple[str, ...] = ()


class Weights(Settings):
    """What is done to weights before they are rounded, and how they are rounded.

    smooth: SmoothQuant's alpha, the share of an input channel's range that moves into the weight of a MatMul or Gemm
    (0: none of it, 1: all); `auto`: for each layer the share with the least expected error; None leaves the ranges
    where they are. equalize: balance the channels of consecutive convolutions (cross-layer equalization).
    bias_correction: take the mean error of a quantized layer's output out through its bias. rounding: `nearest`, or
    `adaptive`: each weight up or down, as the layer's output is closer. block: one scale for so many values along the
    input channels (INT4); None: as `per_channel` says.
    """

    smooth: Annotated[float, Field(ge=0, le=1)] | Literal["auto"] | None = None
    equalize: bool = False
    bias_correction: bool = False
    rounding: Literal["nearest", "adaptive"] = "nearest"
    block: int | None = Field(default=None, gt=0)


class Recipe(Settings):
    """A calibration recipe: how ranges are found, what is quantized, what stays wide.

    extends: the recipe whose settings hold where this one says nothing; None once that is settled (`recipes.py`).
    compute: the dtype of everything that is not quantized. percentile: of the calibrator of that name. activations:
    False quantizes weights only. gelu: `tanh` gives a GELU whose result is quantized its tanh form, `exact` leaves it
    as it is. strict: every node of `placement.ops` is quantized, or the build is refused.
    keep: node names or module paths (fnmatch) kept in FP32; keep_fp32: op types kept in FP32 whatever the range.
    budget: the default budget of builds that use the recipe.
    """

    extends: str | None = None
    precision: Precision
    compute: Literal["fp32", "fp16", "bf16"] = "fp16"
    calibrator: str = "max"
    percentile: float = Field(default=99.99, gt=0, le=100)
    per_channel: bool = True
    activations: bool = True
    gelu: Literal["exact", "tanh"] = "exact"
    weights: Weights = Weights()
    placement: Placement = Placement()
    strict: bool = False
    keep: tuple[str, ...] = ()
    keep_fp32: tuple[str, ...] = ()
    budget: Budget = Budget()

    @model_validator(mode="before")
    @classmethod
    def _compute_follows(cls, data: Any) -> Any:
        """Where nothing is quantized, everything is computed in the precision asked for."""
        if isinstance(data, dict) and data.get("precision") in ("fp32", "fp16", "bf16"):
            return {"compute": data["precision"], **data}
        return data

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        from aot.contradictions import contradiction

        wrong = contradiction(self)
        if wrong is not None:
            raise PydanticCustomError("contradiction", "{what}", {**wrong})
        return self


class EngineOptions(Settings):
    """Options of the vendor's builder.

    optimization_level: 0 (builds fastest) to 5 (searches longest). workspace_mib: the limit of scratch memory,
    None for the vendor's default. timing_cache: use and keep the timings of earlier builds on this machine.
    tf32: let FP32 matrix work round its inputs to TF32's 10 bits, which is faster; off, FP32 means FP32.
    strip: leave the weights out of the plan; they lie beside it and are put in when it is loaded (docs/slim.md).
    version_compatible: the plan runs on later TensorRT too, kernels that need the full library left out. lean_runtime:
    such a plan holds the small library that runs it; without, a process loads one of the version that built it.
    hardware_compatible: which other GPUs the plan runs on (`aot/offers.py`).
    """

    optimization_level: int = Field(default=3, ge=0, le=5)
    workspace_mib: int | None = Field(default=None, gt=0)
    timing_cache: bool = True
    tf32: bool = False
    strip: bool = False
    version_compatible: bool = False
    lean_runtime: bool = True
    hardware_compatible: Hardware | None = None


class Verify(Settings):
    """Sizes to compare at, beside the minimum, optimum and maximum of every Dim and one size never used before.

    sizes: mappings from Dim name to size. flop_limit: the all-maximum case is replaced by one Dim at
    its maximum at a time where one forward pass would cost more floating-point operations than this.
    """

    sizes: tuple[dict[str, Annotated[int, Field(ge=0)]], ...] = ()
    flop_limit: float = Field(default=4e11, gt=0)


class Surgery(Settings):
    """Which rewrites of the graph are left out, by name; and whether the whole graph is run before and after each."""

    without: tuple[str, ...] = ()
    verify: bool = False


class Patterns(Settings):
    """Which ops of plugins take the place of what a model computes without them.

    plugins: those used wherever a pattern of theirs occurs. measured: others too, where a measurement says that they
    are faster.
    """

    plugins: tuple[str, ...] = ()
    measured: bool = True


class ProfileFile(Settings):
    """A file of `profiles/`: shape ranges per optimization profile, target, build options, budget.

    profiles: each a mapping from Dim name to [min, opt, max]; empty: one profile from the Dims.
    """

    profiles: tuple[dict[str, tuple[int, int, int]], ...] = ()
    backend: str | None = None
    targets: tuple[str, ...] = ()
    engine: EngineOptions = EngineOptions()
    budget: Budget = Budget()
    verify: Verify = Verify()


class Request(Settings):
    """One call of `aot build`, as the user gave it. search: look for nodes to keep wide where the budget is missed.

    engine: options that hold in the place of the profile file's. lock: where the lock is written besides the artifact,
    or read. locked: rebuild what the lock says, or fail.
    """

    model: str
    precision: Precision | Literal["auto"] | None = None
    route: Route | None = None
    backend: str | None = None
    targets: tuple[str, ...] = ()
    profile: str = "default"
    calibration: str | None = None
    dims: dict[str, tuple[int, int, int]] = {}
    budget: Budget = Budget()
    search: bool = True
    surgery: Surgery = Surgery()
    patterns: Patterns = Patterns()
    engine: dict[str, Any] = {}
    until: Literal["graph"] | None = None
    output: Path | None = None
    fresh: bool = False
    lock: Path | None = None
    locked: bool = False
    workers: int = Field(default=1, ge=1)


_MOST = 1 << 20
"""Bytes that a file of settings may have."""

S = TypeVar("S", bound=Settings)


def load(kind: type[S], path: Path) -> S:
    """Read a YAML file into settings. Raises UsageError that names the file, the key and the nearest known key.

    A recipe that extends another one is read together with it.
    """
    data = read(path)
    if kind is not Recipe:
        return parse(kind, data, str(path))
    from aot.recipes import check_calibrator, extended

    whole = extended(data, path)
    found = parse(kind, whole.data, str(path), whole.inherited)
    if isinstance(found, Recipe):
        check_calibrator(found.calibrator, path)
    return found


def read(path: Path) -> dict[str, Any]:
    """The settings of a YAML file as plain data. Raises UsageError where it is no mapping of settings."""
    import yaml

    class Loader(yaml.SafeLoader):
        """Refuses a key that is given twice, of which YAML would silently take the last, and references: a few of them
        in each other stand for more than any memory holds."""

        def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
            if self.check_event(yaml.AliasEvent):
                line = self.peek_event().start_mark.line + 1  # type: ignore[no-untyped-call]
                raise yaml.YAMLError(f"line {line}: a reference to what stands elsewhere; write it out")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen: dict[str, int] = {}
            for key, _ in node.value:
                line = key.start_mark.line + 1
                if isinstance(key.value, str) and key.value in seen:
                    raise UsageError(
                        f"the key '{key.value}' is given twice, in lines {seen[key.value]} and {line}",
                        where=f"{path}:{line}",
                        fix="remove one of the two",
                    )
                if isinstance(key.value, str):
                    seen[key.value] = line
            return super().construct_mapping(node, deep)

    try:
        if path.stat().st_size > _MOST:
            raise yaml.YAMLError(f"it has more than {_MOST:,} bytes")
        data = yaml.load(path.read_text(), Loader) or {}
    except (OSError, yaml.YAMLError, ValueError, TypeError, RecursionError, LookupError, AttributeError) as error:
        # Beside YAMLError: dates and numbers that are none, keys that are lists, depth, tags of unknown kinds.
        raise UsageError(
            "cannot read the settings",
            where=f"{path}: {' '.join(str(error).split())}",
            fix="a settings file is YAML: one 'key: value' a line",
        ) from error
    if not isinstance(data, dict):
        raise UsageError(
            f"expected a mapping of settings, found {type(data).__name__}",
            where=str(path),
            fix="write one 'key: value' a line",
        )
    return data


def parse(kind: type[S], data: dict[str, Any], where: str, inherited: Mapping[str, str] | None = None) -> S:
    """Check plain data against settings. Raises UsageError for the first thing that is wrong.

    inherited: the keys that come from another recipe, each with its name.
    """
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        from aot.refusals import refused

        raise refused(kind, error, where, inherited or {}) from error


def merged(*budgets: Budget) -> Budget:
    """Later budgets override earlier ones, limit by limit."""
    limits: dict[str, float] = {}
    for budget in budgets:
        limits.update(budget.model_dump(exclude_none=True))
    return Budget(**limits)


def check_triple(name: str, low: int, opt: int, high: int, where: str) -> None:
    """Raise ProfileError unless 0 <= low <= opt <= high."""
    if not 0 <= low <= opt <= high:
        raise ProfileError(
            f"'{name}': need 0 <= min <= opt <= max, got min={low} opt={opt} max={high}",
            where=where,
            fix="put opt between min and max",
        )
