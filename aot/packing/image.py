"""What a container image is built from, by any builder of Dockerfiles:

Dockerfile          two stages: what is installed, and what runs, as a user without rights
requirements.txt    what the server imports, with hashes; tensorrt.txt: TensorRT, where its hashes are not known
aot_engine_runtime-VERSION-py3-none-any.whl     a session and the server (wheel.py)
artifact/           the artifact, whole

docker build --tag NAME DIR && docker run --publish 8000:8000 --publish 8001:8001 NAME
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from aot.packing import wheel
from aot.packing.engines import chosen
from aot.packing.image_requirements import SLIMMING, Requirements, requirements
from aot.packing.output import check_place, replacing
from aot.packing.tar import names
from aot.runtime import manifest as manifests

KIND = "a build context of an image"
DOCKERFILE = "Dockerfile"
FIRST = "# Written by `aot pack --image`."
PYTHON = "docker.io/library/python:3.12.12-slim-bookworm"
"""A digest would pin its bytes, and is not known without asking a registry."""
USER = "10001:10001"
READY = "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/v2/health/ready', timeout=4)"


def check(artifact: Path, to: Path, *, overwrite: bool = False, engine: str | None = None) -> Path:
    """What `write` would put there. Raises UsageError as `write` does, but for what the disk refuses."""
    requirements(chosen(manifests.read(str(artifact)), engine))
    check_place(to, KIND, _is_context, overwrite=overwrite)
    return to


def write(artifact: Path, to: Path, *, overwrite: bool = False, engine: str | None = None) -> list[Path]:
    """Write the build context of an image that serves the artifact over HTTP and gRPC.

    engine: which one it serves, where the artifact has several (see `engines.chosen`). Raises UsageError where it
    cannot be chosen, where `to` cannot be written, or is there already and must not be replaced.
    """
    manifest = manifests.read(str(artifact))
    needed = requirements(chosen(manifest, engine))
    files = {
        "requirements.txt": needed.hashed,
        **({"tensorrt.txt": "".join(f"{one}\n" for one in needed.pinned)} if needed.pinned else {}),
        DOCKERFILE: dockerfile(needed, engine),
        ".dockerignore": "*\n!requirements.txt\n!tensorrt.txt\n!*.whl\n!artifact\n",
    }
    with replacing(to, KIND, _is_context, overwrite=overwrite) as new:
        new.mkdir()
        for name, text in files.items():
            (new / name).write_text(text)
        wheel.write(new)
        for name in names(artifact):
            (new / "artifact" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(artifact / name, new / "artifact" / name)
        _open(new)
    return sorted(path for path in to.rglob("*") if path.is_file())


def dockerfile(needed: Requirements, engine: str | None) -> str:
    """The Dockerfile."""
    pip = "python -m pip --python /opt/aot/bin/python install --no-cache-dir"
    copied = ["requirements.txt", *(["tensorrt.txt"] if needed.pinned else []), wheel.name()]
    steps = [
        "python -m venv --without-pip /opt/aot",
        f"{pip} --no-deps --require-hashes --only-binary :all: --requirement /build/requirements.txt",
        *([f"{pip} --requirement /build/tensorrt.txt"] if needed.pinned else []),
        f"{pip} --no-deps --no-index /build/{wheel.name()}",
        "cd /opt/aot/lib/python3*/site-packages",
        *SLIMMING,
    ]
    server = ["python", "-m", "aot.serving", "/artifact", "--host", "0.0.0.0"]
    if engine is not None:
        server += ["--engine", engine]
    gpu = ["ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility"] if needed.gpu else []
    return _lines(
        FIRST,
        "# The base is pinned by its exact tag. To pin its bytes, add its digest:",
        f"#   docker build --build-arg PYTHON={PYTHON}@sha256:...",
        f"ARG PYTHON={PYTHON}",
        "",
        "FROM ${PYTHON} AS build",
        f"COPY {' '.join(copied)} /build/",
        "RUN " + " \\\n && ".join(steps),
        "",
        "FROM ${PYTHON}",
        "COPY --from=build /opt/aot /opt/aot",
        "COPY artifact /artifact",
        "ENV PATH=/opt/aot/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1",
        "# Official builds of onnxruntime, 1.32 for one, send usage data unless told not to (its Privacy.md).",
        "ENV ORT_DISABLE_TELEMETRY=1",
        *gpu,
        f"USER {USER}",
        "EXPOSE 8000 8001",
        f"HEALTHCHECK --interval=10s --timeout=5s --start-period=120s CMD {json.dumps(['python', '-c', READY])}",
        "# Further options are given behind the image's name: docker run IMAGE --max-batch 8",
        f"ENTRYPOINT {json.dumps(server)}",
    )


def _lines(*lines: str) -> str:
    return "\n".join([*lines, ""])


def _open(folder: Path) -> None:
    """Let everybody read, for the server runs as another user."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def _is_context(path: Path) -> bool:
    file = path / DOCKERFILE
    return file.is_file() and file.read_bytes().startswith(FIRST.encode())
