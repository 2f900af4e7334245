"""The models, as `aot build` takes them: `latency.models:NAME`. Weights are random and settled (`sweep/settle.py`), the
same wherever they are made, so that nothing large has to be carried; times do not depend on them, and accuracy is that
of rounding alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from sweep.settle import settled

import aot

batch = aot.Dim("batch", min=1, opt=1, max=64)
seq = aot.Dim("seq", min=16, opt=16, max=512)
past = aot.Dim("past", min=16, opt=128, max=512)

TEXT = {
    "input_ids": aot.Input([batch, seq], "int64", low=0, high=30522),
    "attention_mask": aot.Input([batch, seq], "int64", low=1, high=2),
}
IMAGE = {"x": aot.Input([batch, 3, 224, 224])}
MELS = {"mels": aot.Input([batch, 160, 40])}

VOCABULARY, LAYERS, WIDTH, INNER, HEADS, GROUPS, HEAD = 32000, 16, 2048, 8192, 32, 8, 64
"""Of the decoder: 1.04 billion parameters, in the proportions of Llama 3.2 1B with the vocabulary of Llama 2."""
CACHE = [LAYERS, batch, GROUPS, past, HEAD]
STEP = {
    "token": aot.Input([batch, 1], "int64", low=0, high=VOCABULARY),
    "keys": aot.Input(CACHE, "float16"),  # what a cache is kept in, whatever the step computes in
    "values": aot.Input(CACHE, "float16"),
}


class First(torch.nn.Module):
    """A transformers encoder, its last hidden state alone."""

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """FLOAT [batch, seq, width]."""
        hidden: torch.Tensor = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return hidden


class Speaker(torch.nn.Module):
    """Resemblyzer's voice encoder: three LSTM layers over 1.6 s of speech, and a unit-length embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(40, 256, 3, batch_first=True)
        self.linear = torch.nn.Linear(256, 256)

    def forward(self, mels: torch.Tensor) -> torch.Tensor:
        """FLOAT [batch, 256] for mel spectrograms, FLOAT [batch, 160, 40]."""
        _, (hidden, _) = self.lstm(mels)
        raw = torch.relu(self.linear(hidden[-1]))
        return raw / (raw.norm(dim=1, keepdim=True) + 1e-6)


class Block(torch.nn.Module):
    """One layer of the decoder: grouped-query attention over the cache and the new token, then SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        linear = torch.nn.Linear
        self.before, self.after = torch.nn.RMSNorm(WIDTH, eps=1e-5), torch.nn.RMSNorm(WIDTH, eps=1e-5)
        self.query = linear(WIDTH, HEADS * HEAD, bias=False)
        self.key, self.value = (linear(WIDTH, GROUPS * HEAD, bias=False) for _ in range(2))
        self.out = linear(HEADS * HEAD, WIDTH, bias=False)
        self.gate, self.up = (linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.down = linear(INNER, WIDTH, bias=False)

    def forward(
        self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The new x, and what the caches are longer by, FLOAT [batch, GROUPS, 1, HEAD]."""
        h = self.before(x)
        split = [layer(h).unflatten(-1, (-1, HEAD)).transpose(1, 2) for layer in (self.query, self.key, self.value)]
        query, key, value = rotated(split[0], cos, sin), rotated(split[1], cos, sin), split[2]
        attended = torch.nn.functional.scaled_dot_product_attention(
            query, torch.cat([keys.to(x.dtype), key], 2), torch.cat([values.to(x.dtype), value], 2), enable_gqa=True
        )
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        h = self.after(x)
        return x + self.down(torch.nn.functional.silu(self.gate(h)) * self.up(h)), key, value


class Decoder(torch.nn.Module):
    """One step of a Llama-style decoder: a token, and the keys and values of `past` tokens before it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = torch.nn.RMSNorm(WIDTH, eps=1e-5)
        self.register_buffer("rates", 500_000.0 ** (-torch.arange(0, HEAD, 2) / HEAD), persistent=False)
        self.rates: torch.Tensor

    def forward(
        self, token: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logits [batch, 1, VOCABULARY], and what the caches are longer by, [LAYERS, batch, GROUPS, 1, HEAD]."""
        angle = self.rates.repeat(2) * keys.shape[3]
        x = self.embedding(token)
        added = []
        for number, block in enumerate(self.blocks):
            x, key, value = block(x, keys[number], values[number], angle.cos(), angle.sin())
            added.append((key, value))
        logits = torch.nn.functional.linear(self.norm(x), self.embedding.weight)
        new_keys, new_values = (torch.stack(parts).half() for parts in zip(*added, strict=True))
        return logits, new_keys, new_values


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding, halves side by side."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def encoder(**sizes: Any) -> torch.nn.Module:
    """BERT without its pooler."""
    from transformers import BertConfig, BertModel

    return First(BertModel(BertConfig(**sizes), add_pooling_layer=False))


def vision(name: str) -> torch.nn.Module:
    """A model of torchvision."""
    import torchvision

    module: torch.nn.Module = torchvision.models.get_model(name, weights=None)
    return module


def made(module: torch.nn.Module, inputs: Mapping[str, aot.Input]) -> torch.nn.Module:
    """With weights that are worth comparing."""
    return settled(module, inputs)


@aot.model(inputs=TEXT, outputs=["hidden"])
def minilm() -> torch.nn.Module:
    """The proportions of all-MiniLM-L6-v2."""
    small = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    return made(encoder(**small), TEXT)


@aot.model(inputs=TEXT, outputs=["hidden"])
def bert_base() -> torch.nn.Module:
    """BERT-base."""
    return made(encoder(), TEXT)


@aot.model(inputs=IMAGE, outputs=["logits"])
def vit_b_16() -> torch.nn.Module:
    """ViT-B/16."""
    return made(vision("vit_b_16"), IMAGE)


@aot.model(inputs=IMAGE, outputs=["logits"])
def resnet50() -> torch.nn.Module:
    """ResNet-50."""
    return made(vision("resnet50"), IMAGE)


@aot.model(inputs=IMAGE, outputs=["logits"])
def mobilenet_v2() -> torch.nn.Module:
    """MobileNetV2."""
    return made(vision("mobilenet_v2"), IMAGE)


@aot.model(inputs=IMAGE, outputs=["logits"])
def swin_t() -> torch.nn.Module:
    """Swin-T."""
    return made(vision("swin_t"), IMAGE)


@aot.model(inputs=MELS, outputs=["embedding"])
def resemblyzer() -> torch.nn.Module:
    """Resemblyzer's LSTM."""
    return made(Speaker(), MELS)


@aot.model(inputs=STEP, outputs=["logits", "new_keys", "new_values"])
def llama_1b() -> torch.nn.Module:
    """A decoder of a billion parameters, one step."""
    return made(Decoder(), STEP)
