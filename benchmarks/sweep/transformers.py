"""Architectures of transformers, two layers each, built from small configurations; caches are off."""

from __future__ import annotations

from typing import Any

from aot import Dim, Input
from sweep.member import Library, Member

batch = Dim("batch", min=1, opt=2, max=4)
seq = Dim("seq", min=4, opt=12, max=32)
target = Dim("target", min=2, opt=8, max=24)
time = Dim("time", min=1600, opt=3200, max=6400)
frames = Dim("frames", min=16, opt=64, max=128)
height = Dim("height", min=64, opt=96, max=128)
width = Dim("width", min=64, opt=80, max=128)

VOCABULARY = 99
# What most configurations call their sizes.
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
GROUPED = {**SMALL, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
PATCHES = {"image_size": 64, "patch_size": 16, "num_channels": 3}
VIT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    **PATCHES,
}
SPEECH = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "conv_dim": (16, 16, 16),
    "conv_stride": (5, 4, 4),
    "conv_kernel": (10, 4, 4),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "mask_time_prob": 0.0,
}
COUPLED = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
    "use_cache": False,
    **TOKENS,
    "decoder_start_token_id": 2,
}

IMPORT = "import transformers"
IDS = Input([batch, seq], "int64", low=3, high=VOCABULARY)
MASK = Input([batch, seq], "int64")
TEXT = {"input_ids": IDS, "attention_mask": MASK}
# Some loop over the tokens in Python, or list them: one length, unrolled.
FIXED = {"input_ids": Input([batch, 12], "int64", low=3, high=VOCABULARY)}
IMAGE = {"pixel_values": Input([batch, 3, 64, 64])}
ANY_IMAGE = {"pixel_values": Input([batch, 3, height, width])}
WAVE = {"input_values": Input([batch, time])}


def _member(
    name: str, options: dict[str, Any], inputs: dict[str, Input], model: str = "Model", config: str = "Config"
) -> Member:
    """`name` is what the library's classes begin with; `model` and `config`, what they end with."""
    given = ", ".join(f"{key}={value!r}" for key, value in options.items())
    make = f"transformers.{name}{model}(transformers.{name}{config}({given}))"
    padding = "attention_mask" if "attention_mask" in inputs else None
    return Member(name, name, make, inputs, IMPORT, padding)


def _encoder(name: str, inputs: dict[str, Input] = TEXT, model: str = "Model", **options: Any) -> Member:
    return _member(name, {**SMALL, **options}, inputs, model)


def _decoder(name: str, model: str = "Model", **options: Any) -> Member:
    return _member(name, {**GROUPED, **options, "use_cache": False}, TEXT, model)


def _only(name: str, inputs: dict[str, Input] = TEXT, model: str = "Model", **options: Any) -> Member:
    """A configuration that shares none of the usual names."""
    return _member(name, options, inputs, model)


def _coupled(name: str, **options: Any) -> Member:
    inputs = {**TEXT, "decoder_input_ids": Input([batch, target], "int64", low=3, high=VOCABULARY)}
    return _member(name, {**COUPLED, **options}, inputs)


def _vit(name: str, model: str = "Model", **options: Any) -> Member:
    return _member(name, {**VIT, **options}, IMAGE, model)


def _image(name: str, model: str = "Model", inputs: dict[str, Input] = ANY_IMAGE, **options: Any) -> Member:
    return _member(name, options, inputs, model)


def _speech(name: str, inputs: dict[str, Input] = WAVE, **options: Any) -> Member:
    return _member(name, {**SPEECH, **options}, inputs)


ENCODERS = (
    _encoder("Bert"),
    _encoder("Roberta"),
    _only(
        "DistilBert", vocab_size=VOCABULARY, dim=32, n_layers=2, n_heads=4, hidden_dim=64, max_position_embeddings=64
    ),
    _encoder("Albert", embedding_size=16),
    _encoder("Electra", embedding_size=16),
    _encoder("Deberta", relative_attention=True, pos_att_type=["c2p", "p2c"]),
    _encoder("DebertaV2", relative_attention=True, pos_att_type=["c2p", "p2c"], position_buckets=8),
    _encoder("MPNet"),
    _encoder("XLMRoberta"),
    _encoder("Camembert"),
    _encoder("ModernBert", **TOKENS, cls_token_id=1, sep_token_id=2),
    _encoder("ConvBert", embedding_size=16, head_ratio=2, num_groups=1),
    _only("Funnel", FIXED, vocab_size=VOCABULARY, block_sizes=[1, 1], n_head=4, d_head=8, d_model=32, d_inner=64),
    _member("FNet", {key: value for key, value in SMALL.items() if key != "num_attention_heads"}, {"input_ids": IDS}),
    _encoder("RoFormer", embedding_size=16),
    _encoder("MobileBert", embedding_size=16, intra_bottleneck_size=16, true_hidden_size=16),
    _encoder("SqueezeBert", embedding_size=32),
    _encoder("Nystromformer", num_landmarks=64, segment_means_seq_len=64),
    _encoder("IBert", quant_mode=False),
    _encoder("MegatronBert"),
    _encoder("Ernie"),
    _encoder("RemBert", input_embedding_size=16, output_embedding_size=16),
    _encoder("Data2VecText"),
    _encoder("Esm", pad_token_id=0, mask_token_id=1, token_dropout=False, position_embedding_type="rotary"),
    _encoder("LayoutLM"),
    _encoder("BigBird", attention_type="original_full"),
    _only("XLM", vocab_size=VOCABULARY, emb_dim=32, n_layers=2, n_heads=4, max_position_embeddings=64),
    _only("XLNet", vocab_size=VOCABULARY, d_model=32, n_layer=2, n_head=4, d_inner=64),
)
DECODERS = (
    _only("GPT2", vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=64, use_cache=False),
    _only(
        "GPTNeo",
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        window_size=4,
        max_position_embeddings=64,
        use_cache=False,
    ),
    _encoder("GPTNeoX", use_cache=False),
    _only("GPTJ", vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=64, rotary_dim=4, use_cache=False),
    _only("GPTBigCode", vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=64, use_cache=False),
    _decoder("Llama"),
    _decoder("Mistral", sliding_window=8),
    _decoder("Mixtral", num_local_experts=4, num_experts_per_tok=2),
    _decoder("Qwen2"),
    _decoder("Qwen3"),
    _decoder("Qwen2Moe", moe_intermediate_size=16, shared_expert_intermediate_size=16, num_experts=4),
    _decoder("Gemma"),
    _decoder("Gemma2", sliding_window=8),
    _member("Gemma3Text", {**GROUPED, "sliding_window": 8, "use_cache": False}, TEXT, "Model"),
    _encoder("Phi", use_cache=False, pad_token_id=0),
    _decoder("Phi3"),
    _only(
        "OPT",
        vocab_size=VOCABULARY,
        hidden_size=32,
        word_embed_proj_dim=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=64,
        max_position_embeddings=64,
        use_cache=False,
        **TOKENS,
    ),
    _only("Bloom", vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4, use_cache=False),
    _encoder("Falcon", use_cache=False),
    _only("Mpt", vocab_size=VOCABULARY, d_model=32, n_layers=2, n_heads=4, max_seq_len=64, use_cache=False),
    _only("Mamba", FIXED, vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, use_cache=False),
    _member(
        "Rwkv",
        {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "attention_hidden_size": 32},
        FIXED,
    ),
    _decoder("StableLm"),
    _decoder("Starcoder2"),
    _decoder("Cohere"),
    _decoder("Olmo"),
    _decoder("Olmo2"),
    _decoder("Granite"),
    _only(
        "CodeGen", vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=64, rotary_dim=4, use_cache=False
    ),
    _encoder("BioGpt", use_cache=False),
    _encoder("Persimmon", use_cache=False),
    _decoder("SmolLM3"),
    _decoder("Helium"),
    _decoder("Nemotron"),
)
COUPLES = (
    _only(
        "T5",
        {**TEXT, "decoder_input_ids": Input([batch, target], "int64", low=3, high=VOCABULARY)},
        vocab_size=VOCABULARY,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        use_cache=False,
    ),
    _coupled("Bart"),
    _coupled("MBart"),
    _coupled("Pegasus"),
    _coupled("Marian"),
    _coupled("M2M100"),
    _coupled("Blenderbot"),
    _coupled("BigBirdPegasus", attention_type="original_full"),
)
VISION = (
    _vit("ViT"),
    _vit("DeiT"),
    _vit("Beit", use_relative_position_bias=True, use_mask_token=False),
    _vit("Dinov2"),
    _vit("Dinov2WithRegisters"),
    _vit("ViTMSN"),
    _vit("IJepa"),
    _vit("Data2VecVision", use_relative_position_bias=True),
    _vit("Yolos", model="ForObjectDetection", image_size=[64, 64], num_detection_tokens=5),
    _vit(
        "DPT",
        model="ForSemanticSegmentation",
        num_labels=4,
        num_hidden_layers=4,
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[8, 8, 16, 16],
    ),
    _image(
        "Swin", inputs=IMAGE, image_size=64, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 2], window_size=4
    ),
    _image(
        "Swinv2",
        inputs=IMAGE,
        image_size=64,
        patch_size=4,
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 2],
        window_size=4,
    ),
    _image("ConvNext", hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1]),
    _image("ConvNextV2", hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1]),
    _image("ResNet", embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], layer_type="basic"),
    _image("RegNet", embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], groups_width=8),
    _image("Bit", embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], num_groups=1),
    _image(
        "Segformer",
        model="ForSemanticSegmentation",
        inputs=IMAGE,
        depths=[1, 1, 1, 1],
        hidden_sizes=[8, 16, 16, 32],
        num_attention_heads=[1, 1, 2, 2],
        decoder_hidden_size=16,
    ),
    _image(
        "MobileViT",
        inputs=IMAGE,
        image_size=64,
        hidden_sizes=[16, 24, 32],
        neck_hidden_sizes=[8, 8, 16, 16, 24, 24, 64],
    ),
    _image("MobileViTV2", inputs=IMAGE, image_size=64, width_multiplier=0.25),
    _image("MobileNetV1", inputs=IMAGE, depth_multiplier=0.25, min_depth=8, image_size=64),
    _image("MobileNetV2", inputs=IMAGE, depth_multiplier=0.25, image_size=64),
    _image("EfficientNet", inputs=IMAGE, image_size=64, width_coefficient=0.25, depth_coefficient=0.25, hidden_dim=320),
    _image("PoolFormer", hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1]),
    _image(
        "Pvt",
        inputs=IMAGE,
        image_size=64,
        depths=[1, 1, 1, 1],
        hidden_sizes=[8, 16, 16, 32],
        num_attention_heads=[1, 1, 2, 2],
    ),
    _image("Cvt", inputs=IMAGE, embed_dim=[8, 16, 32], num_heads=[1, 2, 2], depth=[1, 2, 3]),
    _image(
        "Levit",
        inputs={"pixel_values": Input([batch, 3, 64, 64])},
        image_size=64,
        hidden_sizes=[16, 32, 48],
        num_attention_heads=[2, 2, 2],
        depths=[1, 1, 1],
        key_dim=[8, 8, 8],
    ),
    _image(
        "FocalNet", embed_dim=16, depths=[1, 1], focal_levels=[2, 2], focal_windows=[3, 3], inputs=IMAGE, image_size=64
    ),
    _image("SwiftFormer", inputs=IMAGE, image_size=64, depths=[1, 1, 1, 1], embed_dims=[8, 16, 24, 32]),
    _image(
        "Hiera",
        inputs=IMAGE,
        image_size=[64, 64],
        embed_dim=16,
        depths=[1, 1],
        num_heads=[1, 1],
        embed_dim_multiplier=2.0,
        num_query_pool=1,
        masked_unit_size=[4, 4],
    ),
    _image(
        "GLPN",
        model="ForDepthEstimation",
        inputs=IMAGE,
        depths=[1, 1, 1, 1],
        hidden_sizes=[8, 16, 16, 32],
        num_attention_heads=[1, 1, 2, 2],
        decoder_hidden_size=8,
    ),
)
AUDIO = (
    _speech("Wav2Vec2"),
    _speech("Hubert"),
    _speech("WavLM"),
    _speech("UniSpeech"),
    _speech("SEW", {"input_values": Input([batch, 3200])}, squeeze_factor=2),
    _speech("Data2VecAudio"),
    _only(
        "Whisper",
        {
            "input_features": Input([batch, 16, 64]),
            "decoder_input_ids": Input([batch, target], "int64", low=3, high=VOCABULARY),
        },
        vocab_size=VOCABULARY,
        num_mel_bins=16,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_source_positions=32,
        max_target_positions=32,
        use_cache=False,
        **TOKENS,
        decoder_start_token_id=1,
    ),
    _member(
        "AST",
        {**{k: v for k, v in VIT.items() if k not in PATCHES}, "patch_size": 8, "max_length": 64, "num_mel_bins": 16},
        {"input_values": Input([batch, 64, 16])},
    ),
    _only(
        "Speech2Text",
        {
            "input_features": Input([batch, frames, 16]),
            "decoder_input_ids": Input([batch, target], "int64", low=3, high=VOCABULARY),
        },
        vocab_size=VOCABULARY,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        conv_channels=32,
        input_feat_per_channel=16,
        use_cache=False,
        **TOKENS,
        decoder_start_token_id=2,
    ),
    _member(
        "ClapAudio",
        {
            "spec_size": 64,
            "num_mel_bins": 16,
            "patch_size": 4,
            "patch_stride": [4, 4],
            "window_size": 4,
            "hidden_size": 32,
            "patch_embeds_hidden_size": 16,
            "depths": [2, 2],
            "num_attention_heads": [2, 2],
            "enable_fusion": False,
        },
        {"input_features": Input([batch, 1, 128, 16])},
    ),
    _only(
        "Encodec",
        {"input_values": Input([batch, 1, 640])},
        num_filters=4,
        hidden_size=16,
        codebook_size=16,
        codebook_dim=16,
        num_lstm_layers=1,
    ),
)
_TEXT_TOWER = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
    **TOKENS,
}
_TOWERS = {"text_config": _TEXT_TOWER, "vision_config": VIT, "projection_dim": 16}
MULTIMODAL = (
    _member("CLIP", _TOWERS, {**TEXT, **IMAGE}),
    _member("Siglip", _TOWERS, {"input_ids": IDS, **IMAGE}),
    _member("Blip", _TOWERS, {**TEXT, **IMAGE}),
    _member("ChineseCLIP", _TOWERS, {**TEXT, **IMAGE}),
    _member("CLIPSeg", {**_TOWERS, "reduce_dim": 16, "extract_layers": [0, 1]}, {**TEXT, **IMAGE}),
    _member(
        "OwlViT",
        {**_TOWERS, "vision_config": {**VIT, "image_size": 64}},
        {"input_ids": Input([batch, 16], "int64", low=3, high=VOCABULARY), **IMAGE},
    ),
    _encoder("Vilt", {**TEXT, **IMAGE}, **PATCHES, max_image_length=-1),
    _encoder("VisualBert", {**TEXT, "visual_embeds": Input([batch, 5, 16])}, visual_embedding_dim=16),
    _encoder(
        "Lxmert",
        {**TEXT, "visual_feats": Input([batch, 5, 16]), "visual_pos": Input([batch, 5, 4], low=0, high=1)},
        l_layers=1,
        x_layers=1,
        r_layers=1,
        visual_feat_dim=16,
    ),
    _encoder(
        "LayoutLMv3",
        {"input_ids": IDS, "bbox": Input([batch, seq, 4], "int64", low=0, high=32), "attention_mask": MASK, **IMAGE},
        input_size=64,
        patch_size=16,
        coordinate_size=4,
        shape_size=8,
        max_2d_position_embeddings=64,
        **TOKENS,
    ),
    _encoder("Git", {**TEXT, **IMAGE}, vision_config=VIT, use_cache=False, num_image_with_embedding=None),
)
SERIES = (
    _only(
        "PatchTST",
        {"past_values": Input([batch, 32, 3])},
        num_input_channels=3,
        context_length=32,
        patch_length=8,
        patch_stride=8,
        d_model=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        ffn_dim=32,
    ),
    _only(
        "PatchTSMixer",
        {"past_values": Input([batch, 32, 3])},
        num_input_channels=3,
        context_length=32,
        patch_length=8,
        patch_stride=8,
        d_model=16,
        num_layers=2,
    ),
    _only(
        "DecisionTransformer",
        {
            "states": Input([batch, seq, 5]),
            "actions": Input([batch, seq, 2]),
            "rewards": Input([batch, seq, 1]),
            "returns_to_go": Input([batch, seq, 1]),
            "timesteps": Input([batch, seq], "int64", low=0, high=20),
            "attention_mask": MASK,
        },
        state_dim=5,
        act_dim=2,
        hidden_size=32,
        n_layer=2,
        n_head=4,
        max_ep_len=32,
    ),
)

LIBRARY = Library(
    "transformers",
    (*ENCODERS, *DECODERS, *COUPLES, *VISION, *AUDIO, *MULTIMODAL, *SERIES),
    ("transformers.masking_utils", "transformers.modeling_layers"),
)
