"""What a build will do, decided from the request, the declaration and the machine before any work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from aot import content, offers, placing, routes, toolchain
from aot.config import (
    PRECISIONS,
    ROUTES,
    Budget,
    EngineOptions,
    Patterns,
    Precision,
    ProfileFile,
    Recipe,
    Request,
    Route,
    Surgery,
    Verify,
    load,
    merged,
)
from aot.declaration import ModelSpec
from aot.errors import ArtifactError, TargetError, UsageError, unknown
from aot.profile import Profile, Triple, as_json, resolve

if TYPE_CHECKING:
    from aot.artifact import Prepared

ATTENTION = "attention"
"""The plugin that is looked for in the final graph and not in the model, so that any graph can have it."""
Attention = Literal["asked", "measured", "never"]


@dataclass(frozen=True)
class Plan:
    """Every decision of a build. profiles: one mapping from Dim name to (min, opt, max) per optimization profile.

    backend None and targets empty: nothing here can build an engine, so the result is a prepared artifact.
    meant: where nothing is built, the targets that kernels of plugins are compiled for all the same; None for a backend
    that launches none.
    attention: whether the engine launches the kernel of plugin `attention`: wherever it can, where that was measured to
    be faster, or never.
    project: the folder whose `plugins/` are looked up first; it belongs to this machine, so it is not kept.
    """

    precision: Precision
    recipe: Recipe
    profiles: tuple[Profile, ...]
    backend: str | None
    targets: tuple[str, ...]
    engine: EngineOptions
    budget: Budget
    verify: Verify
    route: Route = "onnx"
    project: Path | None = None
    surgery: Surgery = field(default_factory=Surgery)
    meant: tuple[str, ...] | None = ()
    attention: Attention = "measured"

    def to_json(self) -> dict[str, Any]:
        """Plain data; `from_json` restores an equal plan, without its project."""
        return {
            "precision": self.precision,
            "recipe": self.recipe.model_dump(mode="json"),
            "profiles": as_json(self.profiles),
            "backend": self.backend,
            "targets": list(self.targets),
            "engine": self.engine.model_dump(mode="json"),
            "budget": self.budget.model_dump(mode="json"),
            "verify": self.verify.model_dump(mode="json"),
            "route": self.route,
            "surgery": self.surgery.model_dump(mode="json"),
            "attention": self.attention,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        """The inverse of `to_json`. Raises ArtifactError for data that is no plan."""
        try:
            profiles = [{str(dim): _triple(sizes) for dim, sizes in profile.items()} for profile in data["profiles"]]
            if data["precision"] not in PRECISIONS:
                raise ValueError(f"precision {data['precision']!r}")
            if data.get("route", "onnx") not in ROUTES:
                raise ValueError(f"route {data['route']!r}")
            return cls(
                precision=data["precision"],
                recipe=Recipe.model_validate(data["recipe"]),
                profiles=tuple(profiles),
                backend=data["backend"],
                targets=tuple(data["targets"]),
                engine=EngineOptions.model_validate(data["engine"]),
                budget=Budget.model_validate(data["budget"]),
                verify=Verify.model_validate(data["verify"]),
                route=data.get("route", "onnx"),
                surgery=Surgery.model_validate(data.get("surgery", {})),
                attention=data.get("attention", "measured"),
            )
        except (KeyError, TypeError, ValueError, AttributeError, ValidationError) as error:
            raise ArtifactError(
                f"the artifact's plan cannot be read: {' '.join(str(error).split())}",
                fix="it was made by another version of aot, or changed since: build it again",
            ) from error


def _triple(sizes: Any) -> Triple:
    low, opt, high = (int(size) for size in sizes)
    return low, opt, high


@dataclass(frozen=True)
class Choices:
    """What the request alone settles, before the model is opened: a mistyped name costs no waiting."""

    recipe: Recipe
    precision: Precision
    file: ProfileFile
    path: Path
    backend: str | None
    targets: tuple[str, ...]
    project: Path
    meant: tuple[str, ...] | None = ()


def choose(request: Request, project: Path) -> Choices:
    """Read the recipe and the profile file, settle backend and targets. Raises UsageError or TargetError.

    The names of `request` that are not paths are looked up in `project` first, then among the built-ins.
    """
    read = settings(request, project)
    backend, targets = placing.place(
        read.precision,
        request.backend or read.file.backend,
        request.targets or read.file.targets,
        toolchain.machine(),
        build=_builds(request),
        route=request.route or "onnx",
    )
    named = request.targets or read.file.targets
    meant = () if targets else placing.meant(request.backend or read.file.backend, named, toolchain.machine())
    offers.check(read.file.engine, read.precision, backend, request.route or "onnx")
    return replace(read, backend=backend, targets=targets, meant=meant)


def settings(request: Request, project: Path) -> Choices:
    """The recipe and the profile file of a request, nothing said of backend and targets yet.

    Raises UsageError, also for a pass that does not exist, and TargetError for what the route does not take.
    """
    recipe, precision = _recipe(request, project)
    if request.surgery.without:
        from aot.optimize import chosen

        chosen(narrow=True, without=request.surgery.without)
    if request.route == routes.TORCH_TENSORRT:
        routes.check_model(request.model, precision)
        routes.check_patterns(request.patterns.plugins)
    path = content.find("profiles", request.profile, project)
    file = load(ProfileFile, path)
    file = file.model_copy(update={"engine": offers.engine_options(file.engine, request)})
    return Choices(recipe, precision, file, path, None, (), project)


def decide(request: Request, choices: Choices, spec: ModelSpec) -> Plan:
    """Settle the rest, which the model has a say in.

    Raises ProfileError, and UsageError for a limit on a metric that the model does not have.
    """
    budget = merged(choices.recipe.budget, choices.file.budget, request.budget)
    _check_metric(budget, spec, "add @MODEL.metric to the model, or leave the limit away")
    return Plan(
        precision=choices.precision,
        recipe=choices.recipe,
        profiles=_profiles(choices.file, spec, choices.path),
        backend=choices.backend,
        targets=choices.targets,
        engine=choices.file.engine,
        budget=budget,
        verify=choices.file.verify,
        route=request.route or "onnx",
        project=choices.project,
        surgery=request.surgery,
        meant=choices.meant,
        attention=_attention(request.patterns, "measured"),
    )


def decide_finish(request: Request, prepared: Prepared) -> Plan:
    """The plan of the second half: the prepared one, with this machine's backend and targets and the request's
    overrides. Raises UsageError where the request contradicts what was prepared (another precision).
    """
    plan = prepared.plan
    if request.precision not in (None, plan.precision):
        raise UsageError(
            f"the artifact was prepared in {plan.precision}, not {request.precision}",
            where=request.model,
            fix=f"leave --precision away, or build from the model with --precision {request.precision}",
        )
    if request.route not in (None, plan.route):
        raise UsageError(
            f"the artifact was prepared for the route {plan.route}, not {request.route}",
            where=request.model,
            fix=f"leave --route away, or build from the model with --route {request.route}",
        )
    if plan.route != routes.ONNX and request.route is None:
        raise UsageError(
            "the artifact holds a program of torch's, and loading one may run code that is in it",
            where=request.model,
            fix=f"where you trust who built it: aot build {request.model} --route {plan.route}",
        )
    if request.calibration is not None:
        raise UsageError(
            "the artifact is calibrated already",
            where=f"--calibration {request.calibration}",
            fix="leave it away, or build from the model",
        )
    others = [name for name in request.patterns.plugins if name != ATTENTION]
    if others:
        raise UsageError(
            "the artifact is exported already, and patterns are looked for in the model",
            where=f"--plugin {others[0]}",
            fix="leave it away, or build from the model",
        )
    project = Path.cwd()
    given = request.profile != Request.model_fields["profile"].default
    path = content.find("profiles", request.profile, project)
    file = load(ProfileFile, path)
    budget = merged(plan.budget, file.budget if given else Budget(), request.budget)
    _check_metric(budget, prepared.spec, "leave the limit away, or build from a model that has @MODEL.metric")
    profiles = _profiles(file, prepared.spec, path) if given else plan.profiles
    if request.dims:
        profiles = tuple(resolve(prepared.spec, {**profile, **request.dims}, "--dim") for profile in profiles)
    backend, targets = request.backend or file.backend, request.targets or file.targets
    machine = toolchain.machine()
    meant = placing.meant(backend, targets, machine)
    if not backend and not targets and machine.gpu is None:
        backend, targets = plan.backend, plan.targets
    backend, targets = placing.place(
        plan.precision, backend, targets, machine, build=_builds(request), route=plan.route
    )
    if not targets and _builds(request):
        raise TargetError(
            "nothing here can build an engine from the prepared artifact: no GPU, and no --target",
            where=request.model,
            fix="run this command on the machine with the GPU, or build for another one here: --target sm89",
        )
    engine = offers.engine_options(file.engine if given else plan.engine, request)
    offers.check(engine, plan.precision, backend, plan.route)
    return replace(
        plan,
        profiles=profiles,
        backend=backend,
        targets=targets,
        engine=engine,
        budget=budget,
        verify=file.verify if given else plan.verify,
        project=project,
        meant=() if targets else meant,
        attention=_attention(request.patterns, plan.attention),
    )


def _attention(asked: Patterns, otherwise: Attention) -> Attention:
    if ATTENTION in asked.plugins:
        return "asked"
    return otherwise if asked.measured else "never"


def _recipe(request: Request, project: Path) -> tuple[Recipe, Precision]:
    """The recipe and its precision: --calibration names it, else --precision does, else it is FP16."""
    if request.precision is not None and request.precision not in PRECISIONS:
        raise unknown("precision", request.precision, PRECISIONS)
    if request.calibration is not None and not request.calibration.strip():
        raise UsageError(
            "--calibration names no recipe", where='--calibration ""', fix="give a name or a file, or leave it out"
        )
    name = request.calibration or request.precision or "fp16"
    path = content.find("calib", name, project)
    recipe = load(Recipe, path)
    if request.precision not in (None, recipe.precision):
        raise UsageError(
            f"--precision {request.precision} contradicts the recipe, which is for {recipe.precision}",
            where=str(path),
            fix=f"--precision {recipe.precision}, or another --calibration",
        )
    return recipe, recipe.precision


def _profiles(file: ProfileFile, spec: ModelSpec, path: Path) -> tuple[Profile, ...]:
    """One profile from the Dims where the file gives none; else the file's, each completed from the Dims."""
    given = file.profiles or ({},)
    return tuple(resolve(spec, profile, f"{path}: profile {number}") for number, profile in enumerate(given, 1))


def _check_metric(budget: Budget, spec: ModelSpec, fix: str) -> None:
    if budget.metric is not None and not spec.has_metric:
        raise UsageError(
            f"the budget limits the metric, and model '{spec.name}' declares none",
            where=f"budget metric={budget.metric:g}",
            fix=fix.replace("MODEL", spec.name),
        )


def _builds(request: Request) -> bool:
    return request.until != "graph"
