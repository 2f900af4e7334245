"""What in aot's own source could run what others wrote: a short list, each entry with its reason."""

from __future__ import annotations

import ast
from functools import cache

from tests.conftest import ROOT

UNPICKLES = {"pickle", "marshal", "shelve", "dill", "joblib", "cloudpickle"}
RUNS = {
    "aot/sources/loading.py exec": "model.py and batches.py, which the user names",
    "aot/plugins/loading.py exec": "plugins of the user's project and the built-in ones, by name",
    "aot/sources/pt2.py export.load": "x.pt2, which the user names",
    "aot/frontend/program.py export.load": "the program that this build captured",
    "aot/frontend/torch_tensorrt.py export.load": "of an artifact only where --route names it: plan.decide_finish",
    "aot/config.py yaml.load": "with a SafeLoader",
}
"""Where code, or what may hold code, is run."""


def names_of(call: ast.Call) -> str:
    """The last two parts of what is called: `export.load` of `torch.export.load(...)`."""
    parts = []
    node: ast.expr = call.func
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
    return ".".join(reversed(parts[:2]))


@cache
def sources() -> tuple[tuple[str, ast.Module], ...]:
    """Every file of aot and of its plugins."""
    files = sorted([*(ROOT / "aot").rglob("*.py"), *(ROOT / "plugins").rglob("*.py")])
    return tuple((str(path.relative_to(ROOT)), ast.parse(path.read_bytes())) for path in files)


def test_nothing_imports_what_unpickles() -> None:
    for place, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [one.name for one in node.names] if isinstance(node, ast.Import) else [node.module or ""]
                assert not UNPICKLES & {name.partition(".")[0] for name in names}, place


def test_what_runs_code_is_listed() -> None:
    found = {
        f"{place} {name}"
        for place, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and (name := names_of(node))
        in {"exec", "eval", "export.load", "torch.load", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "os.system"}
    }
    assert found == set(RUNS)


def test_arrays_are_read_without_pickle() -> None:
    calls = [
        (place, node)
        for place, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and names_of(node) in ("np.load", "numpy.load", "format.read_array")
    ]
    assert calls
    for place, call in calls:
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        value = given.get("allow_pickle")
        assert isinstance(value, ast.Constant), place
        assert value.value is False, place
