"""Data for calibration and, apart from it, for judging: real pictures, sentences, scans and files; sounds are made.

Each function returns (calibration batches, held-out batches), every batch a mapping from input name to array. Those of
calibration are all of one shape, which onnxruntime's histograms need.
"""

from __future__ import annotations

import random
import runpy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]
Batches = tuple[list[Arrays], list[Arrays]]
EVERY = 4
"""Of pictures, lines and files, every fourth is held out."""
TOKENS = 64


def example(name: str) -> dict[str, Any]:
    """What examples/NAME/model.py defines."""
    return runpy.run_path(str(ROOT / "examples" / name / "model.py"))


def sentences(_: Path) -> Batches:
    """64 windows of 64 tokens over consecutive sentences of the example; the last 100 sentences, padded, are held out.

    Windows hold no padding, since a mask's -3.4e38 has no histogram in onnxruntime and ModelOpt.
    """
    model = example("minilm")
    texts = (ROOT / "examples/minilm/sentences.txt").read_text().splitlines()
    random.Random(0).shuffle(texts)
    held = [model["tokenize"](texts[start : start + 10]) for start in range(100, 200, 10)]
    model["tokenizer"]().enable_truncation(max_length=TOKENS)
    windows = [" ".join(texts[start : start + 30]) for start in range(64)]
    return [model["tokenize"](windows[start : start + 8]) for start in range(0, 64, 8)], held


def pictures(name: str) -> Callable[[Path], Batches]:
    """32 views of scikit-image's pictures as input `name`, four at a time; every fourth picture is held out."""

    def made(_: Path) -> Batches:
        model = example("mobilenet")
        kept: list[Array] = []
        held: list[Array] = []
        for index, picture in enumerate(model["PICTURES"]):
            pixels = model["picture"](picture)
            into = held if index % EVERY == EVERY - 1 else kept
            into += [model["prepare"](view) for view in model["views"](pixels)]
        return _stacked(name, kept[:32], 4), _stacked(name, held, 4)

    return made


def scans(_: Path) -> Batches:
    """Windows of 320 x 320 of a scanned page to calibrate on, of another one to judge, BGR as PP-OCR normalises it."""
    windows = [list(_windows(_scan(name), 320)) for name in ("page", "text")]
    return _stacked("x", windows[0], 2), _stacked("x", windows[1], 2)


def lines(_: Path) -> Batches:
    """Lines of text of two scans, 48 x 320; every fourth is held out."""
    found = [line for name in ("page", "text") for line in _lines(_scan(name))]
    held = found[EVERY - 1 :: EVERY]
    kept = [line for index, line in enumerate(found) if index % EVERY != EVERY - 1]
    return _stacked("x", kept[: len(kept) // 2 * 2], 2), _stacked("x", held, 2)


def files(_: Path) -> Batches:
    """The first and last 1024 bytes of files of many kinds, as magika takes them: 64 to calibrate on, 64 held out."""
    import onnx
    import skimage

    suffixes = ("py", "md", "yaml", "json", "toml", "txt", "svg", "png", "jpg", "h", "so", "onnx", "css", "html", "tsv")
    roots = [ROOT, Path(onnx.__file__).parents[1] / "numpy", Path(onnx.__file__).parent, Path(skimage.__file__).parent]
    found: list[Path] = []
    for suffix in suffixes:
        for root in roots:
            paths = (
                path for path in sorted(root.glob(f"**/*.{suffix}")) if ".venv" not in path.relative_to(root).parts
            )
            found += [path for path, _ in zip(paths, range(8), strict=False) if path.stat().st_size >= 8]
    random.Random(0).shuffle(found)
    rows = [_ends(path) for path in found[:128]]
    half = len(rows) // 2
    return _stacked("bytes", rows[: half // 8 * 8], 8), _stacked("bytes", rows[half:], 8)


def sounds(name: str, samples: int, batch: int, count: int, trailing: bool = False) -> Callable[[Path], Batches]:
    """Made speech of 16 kHz as input `name`, [batch, samples] (`trailing`: and 1); another voice each row."""

    def made(_: Path) -> Batches:
        rows = [speech(seed, samples) for seed in range(2 * count)]
        rows = [row[:, None] for row in rows] if trailing else rows
        return _stacked(name, rows[:count], batch), _stacked(name, rows[count:], batch)

    return made


def frames(_: Path) -> Batches:
    """Frames of 1024 samples of made speech at 16 kHz, as torchcrepe normalises them."""
    rows = []
    for seed in range(8):
        for frame in speech(seed, 16 * 1024).reshape(16, 1024):
            rows.append((frame - frame.mean()) / max(float(frame.std()), 1e-10))
    return _stacked("x", rows[:64], 16), _stacked("x", rows[64:], 16)


def mels(_: Path) -> Batches:
    """Mel spectrograms as Resemblyzer makes them, 160 frames of 40, of made speech."""
    from resemblyzer.audio import wav_to_mel_spectrogram

    rows = [wav_to_mel_spectrogram(speech(seed, 16000 * 2))[:160] for seed in range(32)]
    return _stacked("mels", rows[:16], 4), _stacked("mels", rows[16:], 4)


def chunks(file: Path) -> Batches:
    """Chunks of 576 samples in sequence, with the state that the model itself has reached before each."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    h = c = np.zeros((4, 128), np.float32)
    long, batches = np.stack([speech(seed, 64 + 48 * 512) for seed in range(4)]), []
    for step in range(48):
        batches.append({"samples": long[:, step * 512 : step * 512 + 576], "h": h, "c": c})
        _, h, c = session.run(None, batches[-1])
    return batches[:24], batches[24:]


def speech(seed: int, samples: int) -> Array:
    """Vowels and pauses in one voice, with noise at 10 to 40 dB below, float32 [samples], within [-0.5, 0.5].

    Harmonics of a gliding pitch of 90 to 260 Hz, weighted by three formants of a vowel (Peterson and Barney, 1952).
    """
    drawn = np.random.default_rng(seed)
    vowels = np.array([[730, 1090, 2440], [270, 2290, 3010], [300, 870, 2240], [530, 1840, 2480], [570, 840, 2410]])
    pitch, sound, start = drawn.uniform(90, 260), np.zeros(samples), 0
    while start < samples:
        length = int(drawn.integers(1600, 6400))
        time = np.arange(min(length, samples - start)) / 16000
        phase = 2 * np.pi * (pitch * time + drawn.uniform(-40, 40) * time**2)
        harmonics = np.arange(1, int(7500 // pitch))
        near = np.exp(-(((harmonics[:, None] * pitch - vowels[drawn.integers(5)]) / 150) ** 2)).sum(1) + 0.01
        envelope = np.sin(np.pi * (np.arange(len(time)) + 1) / (length + 1))
        voiced = drawn.random() > 0.25
        sound[start : start + len(time)] = (
            voiced * envelope * (near[:, None] * np.sin(harmonics[:, None] * phase)).sum(0)
        )
        start += length
    sound = sound / max(float(np.abs(sound).max()), 1e-6)
    sound += drawn.standard_normal(samples) * 10 ** (-drawn.uniform(10, 40) / 20)
    return (0.5 * sound / np.abs(sound).max()).astype(np.float32)


def _stacked(name: str, rows: Sequence[Array], batch: int) -> list[Arrays]:
    return [{name: np.stack(rows[start : start + batch])} for start in range(0, len(rows), batch)]


def _scan(name: str) -> Array:
    """A scanned page of scikit-image, float32 [height, width] in [0, 1]."""
    from skimage import data

    return np.asarray(getattr(data, name)(), np.float32) / 255


def _resized(pixels: Array, height: int, width: int) -> Array:
    from skimage.transform import resize

    return np.asarray(resize(pixels, (height, width), anti_aliasing=True), np.float32)


def _windows(scan: Array, side: int) -> Iterator[Array]:
    """Overlapping windows at two sizes, normalised as PP-OCR's detector is fed, float32 [3, side, side]."""
    mean, deviation = np.array([0.485, 0.456, 0.406], np.float32), np.array([0.229, 0.224, 0.225], np.float32)
    for zoom in (2, 3):
        large = _resized(scan, scan.shape[0] * zoom, scan.shape[1] * zoom)
        for top in range(0, large.shape[0] - side + 1, 100):
            for left in range(0, large.shape[1] - side + 1, 160):
                window = large[top : top + side, left : left + side, None]
                yield ((window - mean) / deviation).transpose(2, 0, 1)


def _lines(scan: Array) -> Iterator[Array]:
    """The lines of a scan, each as PP-OCR's recogniser is fed, float32 [3, 48, 320] in [-1, 1]."""
    from scipy.ndimage import gaussian_filter

    flat = scan - gaussian_filter(scan, 15)  # the light differs over the page
    ink = (flat < -0.1).sum(axis=1) > 4
    starts = np.flatnonzero(ink & ~np.roll(ink, 1))
    for start in starts:
        end = start + int(np.argmin(np.append(ink[start:], False)))
        if not 8 <= end - start <= 60:
            continue
        strip = scan[max(start - 3, 0) : end + 3]
        width = round(strip.shape[1] * 48 / strip.shape[0])
        large = _resized(strip, 48, width) * 2 - 1
        for left in range(0, max(width - 160, 1), 320):
            part = large[:, left : left + 320]
            part = np.pad(part, ((0, 0), (0, 320 - part.shape[1])), mode="edge")
            yield np.repeat(part[None], 3, axis=0)


def _ends(path: Path) -> Array:
    """int32 [2048]: 1024 bytes of the beginning and of the end without white space around, 256 where there are none."""
    content = path.read_bytes()
    head, tail = content[:4096].lstrip()[:1024], content[-4096:].rstrip()[-1024:]
    row = np.full(2048, 256, np.int32)
    row[: len(head)] = list(head)
    row[2048 - len(tail) :] = list(tail)
    return row
