"""`aot pack --image`: what an image is built from, and that it is enough.

No image is built here: the packages that it would have are put together from this environment, and slimmed as the
Dockerfile does it. test_image_build.py builds one.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import tomllib
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aot.cli import _main as cli
from aot.errors import UsageError
from aot.packing import image, wheel
from aot.packing.image_requirements import LOCKS, SLIMMING, requirements
from aot.runtime.manifest import Engine
from tests.packing import runtime_site
from tests.packing.artifacts import artifact, files

X = [[1.0, 2.0, 3.0], [0.5, -1.0, 4.0]]
Y = [[8.0, 4.75], [8.0, -3.0]]
"""X times the weight of tests/tiny.py, by hand."""


def engine(backend: str, version: str, compatible: str | None = None) -> Engine:
    return Engine("sm90", backend, version, "engines/sm90.plan", compatible=compatible)


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The build context of an artifact without an engine."""
    folder = tmp_path_factory.mktemp("image")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "store"))
        image.write(artifact(folder / "m.aot"), folder / "context")
    return folder / "context"


@pytest.fixture(scope="module")
def installed(context: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Site-packages of the image, assembled: the packages of requirements.txt and the wheel, slimmed."""
    folder = runtime_site.site(tmp_path_factory.mktemp("site"), (context / "requirements.txt").read_text())
    zipfile.ZipFile(context / wheel.name()).extractall(folder)
    subprocess.run(["sh", "-ec", "\n".join(SLIMMING)], cwd=folder, check=True)
    return folder


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_context_holds_the_artifact_whole(context: Path) -> None:
    assert cli.call(["verify", str(context / "artifact")]) == 0
    assert {path.name for path in context.iterdir()} == {
        ".dockerignore", "Dockerfile", "artifact", "requirements.txt", wheel.name(),
    }  # fmt: skip


def test_the_same_artifact_gives_the_same_bytes(context: Path, tmp_path: Path) -> None:
    image.write(context / "artifact", tmp_path / "again")
    assert files(tmp_path / "again") == files(context)


def test_a_session_runs_with_what_the_image_has(context: Path, installed: Path) -> None:
    text = f"""
import aot, json, numpy as np
with aot.load({str(context / "artifact")!r}) as session:
    y = session(x=np.array({X}, np.float32))["y"]
strange = {{"torch", "onnx", "pydantic", "click", "polygraphy", "triton", "sympy"}} & set(sys.modules)
print(json.dumps([y.tolist(), session.label, sorted(strange), aot.__file__]))
"""
    y, label, strange, where = json.loads(run(runtime_site.code(installed, text)))
    assert y == Y
    assert "onnxruntime" in label
    assert strange == []
    assert where == str(installed / "aot/__init__.py")


def test_every_module_of_the_wheel_is_imported_with_what_the_image_has(installed: Path) -> None:
    gpu = {"aot.runtime.driver", "aot.runtime.plugin_v3"}
    named = [one for one in wheel.modules() if one not in gpu and not one.endswith("__main__")]
    text = f"import importlib\nfor one in {named}: importlib.import_module(one)\nprint('torch' in sys.modules)"
    assert run(runtime_site.code(installed, text)).split() == ["False"]


@pytest.fixture
def server(context: Path, installed: Path) -> Iterator[str]:
    """The address of a server that was started as the image starts it."""
    (entry,) = re.findall(r"^ENTRYPOINT (.*)$", (context / "Dockerfile").read_text(), re.MULTILINE)
    python, dash, module, place, *rest = json.loads(entry)
    assert (python, dash, place) == ("python", "-m", "/artifact")
    given = [str(context / "artifact"), *rest, "--http-port", "0", "--grpc-port", "0", "--json"]
    process = subprocess.Popen(
        runtime_site.command(installed, module, *given), stdout=subprocess.PIPE, text=True, env={}
    )
    assert process.stdout is not None
    line = json.loads(process.stdout.readline())
    yield f"http://127.0.0.1:{re.search(r':([0-9]+)', str(line['http'])).group(1)}"  # type: ignore[union-attr]
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


def answer(url: str, body: Any = None) -> tuple[int, bytes]:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data), timeout=20) as response:
        return response.status, response.read()


def test_the_server_answers_with_what_the_image_has(server: str) -> None:
    assert answer(f"{server}/v2/health/ready")[0] == 200
    tensor = {"name": "x", "datatype": "FP32", "shape": [2, 3], "data": X}
    _, said = answer(f"{server}/v2/models/tiny/infer", {"inputs": [tensor]})
    (output,) = json.loads(said)["outputs"]
    assert (output["name"], output["shape"], output["data"]) == ("y", [2, 2], [value for row in Y for value in row])
    assert b"aot" in answer(f"{server}/metrics")[1]


def test_the_dockerfile_runs_as_a_user_without_rights_and_copies_only_what_runs(context: Path) -> None:
    lines = (context / "Dockerfile").read_text().splitlines()
    stages = [index for index, line in enumerate(lines) if line.startswith("FROM")]
    assert len(stages) == 2
    final = lines[stages[1] :]
    assert "USER 10001:10001" in final
    assert [line for line in final if line.startswith(("RUN", "ADD"))] == []
    assert [line for line in final if line.startswith("COPY")] == [
        "COPY --from=build /opt/aot /opt/aot", "COPY artifact /artifact",
    ]  # fmt: skip
    assert re.search(r"^ARG PYTHON=\S+:\d+\.\d+\.\d+-", "\n".join(lines), re.MULTILINE)


def test_the_health_check_tells_a_server_that_is_ready_from_one_that_is_not(
    context: Path, server: str, installed: Path
) -> None:
    (check,) = re.findall(r"^HEALTHCHECK .* CMD (.*)$", (context / "Dockerfile").read_text(), re.MULTILINE)
    python, dash, text = json.loads(check)
    assert (python, dash) == ("python", "-c")
    run(runtime_site.code(installed, text.replace("http://127.0.0.1:8000", server)))
    free = text.replace("http://127.0.0.1:8000", "http://127.0.0.1:9")
    assert subprocess.run(runtime_site.code(installed, free), capture_output=True, env={}, check=False).returncode


def test_what_is_installed_has_hashes_and_the_versions_of_the_lock(context: Path, root: Path) -> None:
    text = (context / "requirements.txt").read_text()
    packages = re.findall(
        r"^(\S+==\S+)(?: ;.*?)? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text, re.MULTILINE
    )
    assert len(packages) == len(re.findall("^[a-z]", text, re.MULTILINE)) > 10
    locked = (root / "requirements.lock").read_text()
    for package, hashes in packages:
        assert f"\n{package} " in f"\n{locked}"
        assert set(re.findall("sha256:[0-9a-f]+", hashes)) <= set(re.findall("sha256:[0-9a-f]+", locked))
    assert "://" not in "".join(path.read_text() for path in LOCKS.iterdir())


def test_what_the_wheel_requires_is_what_the_project_does(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = {"": project["dependencies"], **project["optional-dependencies"]}
    for extra, packages in wheel.REQUIRES.items():
        assert set(packages) <= set(extras[extra])
    assert set(wheel.REQUIRES["serve"]) == set(extras["serve"])


@pytest.mark.parametrize(
    ("one", "pinned"),
    [
        (engine("tensorrt", "10.6.0"), ("tensorrt-cu12==10.6.0",)),
        (engine("tensorrt", "11.4.0.106"), ("tensorrt-cu13==11.4.0.106",)),
        (engine("tensorrt", "11.4.0.106", compatible="with"), ("tensorrt-lean-cu13==11.4.0.106",)),
        (engine("tensorrt_rtx", "1.3.0.35"), ("tensorrt-rtx-cu13==1.3.0.35",)),
        (engine("tensorrt_rtx", "1.7.1.116"), ()),
    ],
    ids=["10", "11", "version-compatible", "RTX", "RTX of the lock"],
)
def test_an_engine_gets_the_tensorrt_that_built_it(one: Engine, pinned: tuple[str, ...]) -> None:
    found = requirements([one])
    assert found.pinned == pinned
    assert found.gpu
    assert "cuda-bindings==" in found.hashed
    assert "onnxruntime==" not in found.hashed
    assert ("tensorrt-rtx-cu13-libs==1.7.1.116" in found.hashed) == (not pinned)
    text = image.dockerfile(found, "sm90")
    assert ("tensorrt.txt" in text) == bool(pinned)
    assert '"--engine", "sm90"]' in text
    assert "NVIDIA_VISIBLE_DEVICES=all" in text


@pytest.mark.parametrize("version", ["", "10.6.0; rm -rf /", "10.6.0\n--index-url=x", "$(id)"])
def test_a_version_that_is_none_is_refused(version: str) -> None:
    with pytest.raises(UsageError, match="no release of TensorRT is called"):
        requirements([engine("tensorrt", version)])


def test_what_is_there_is_replaced_only_when_told_and_only_if_it_is_one(context: Path, tmp_path: Path) -> None:
    to = tmp_path / "context"
    image.write(context / "artifact", to)
    with pytest.raises(UsageError, match="there is one already"):
        image.write(context / "artifact", to)
    image.write(context / "artifact", to, overwrite=True)
    (to / "Dockerfile").write_text("FROM mine\n")
    with pytest.raises(UsageError, match="will not overwrite"):
        image.write(context / "artifact", to, overwrite=True)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = artifact(tmp_path / "rtx.aot", {"sm89": b"ada", "sm120": b"blackwell"})
    assert cli.call(["pack", str(folder), "--image", str(tmp_path / "context"), "--engine", "sm120", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["forms"]["image"]
    assert str(tmp_path / "context/Dockerfile") in said["files"]
    assert cli.call(["pack", str(folder), "--image", str(tmp_path / "other"), "--engine", "sm70"]) == 2
    assert "unknown engine 'sm70'" in capsys.readouterr().err


def test_the_sizes_of_the_page_are_those_that_were_measured(root: Path) -> None:
    rows = json.loads((root / "benchmarks/results/runtime-size.json").read_text())["rows"]
    sums: dict[str, list[str]] = {}
    for row in (row for row in rows if "sum" in row):
        sums.setdefault(row["flavour"], []).extend(f"{row[key] / 1e6:.0f}" for key in ("bytes", "slim_bytes"))
    table = re.findall(r"^\| [^|]+((?: \| [*0-9]+){4}) \|$", (root / "docs/image.md").read_text(), re.MULTILINE)
    assert [re.findall("[0-9]+", line) for line in table] == list(sums.values())
