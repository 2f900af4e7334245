"""The smallest model of every family of timm, shallower where its builder allows it, at the smallest image it takes."""

from __future__ import annotations

from typing import Any

from aot import Dim, Input
from sweep.member import Library, Member

batch = Dim("batch", min=1, opt=2, max=4)
height = Dim("height", min=64, opt=96, max=160)
width = Dim("width", min=64, opt=80, max=160)


def _family(
    module: str, model: str, size: int = 64, *, sized: bool = False, free: bool = False, **options: Any
) -> Member:
    """`module` is timm's file. `sized`: the builder has to know the image's size. `free`: height and width vary."""
    if sized:
        options["img_size"] = size
    given = "".join(f", {name}={value!r}" for name, value in options.items())
    shape = [batch, 3, height, width] if free else [batch, 3, size, size]
    make = f'timm.create_model("{model}", num_classes=8{given})'
    return Member(model, module, make, {"x": Input(shape)}, "import timm")


FAMILIES = (
    _family("beit", "beit_base_patch16_224", sized=True, depth=2),
    _family("byoanet", "halonet_h1", size=256),
    _family("byobnet", "test_byobnet", free=True),
    _family("cait", "cait_xxs24_224", sized=True, depth=3),
    _family("coat", "coat_tiny", sized=True),
    _family("convit", "convit_tiny", sized=True, depth=4, local_up_to_layer=2),
    _family("convmixer", "convmixer_768_32"),
    _family("convnext", "test_convnext", free=True),
    _family("cpubone", "cpubone_nano"),
    _family("crossvit", "crossvit_tiny_240", size=240),
    _family("csatv2", "csatv2", size=96, depths=(2, 2, 2, 2)),
    _family("cspnet", "cs3darknet_focus_s"),
    _family("cspnext", "cspnext_tiny"),
    _family("davit", "davit_tiny", depths=(1, 1, 2, 1)),
    _family("deepseek_vit", "deepseek_vit_412m", size=126, depth=2),
    _family("deit", "deit_tiny_patch16_224", sized=True, depth=2),
    _family("densenet", "densenet121", free=True),
    _family("dla", "dla46x_c"),
    _family("dpn", "dpn48b"),
    _family("edgenext", "edgenext_xx_small"),
    _family("efficientformer", "efficientformer_l1", size=224, depths=(1, 1, 2, 1)),
    _family("efficientformer_v2", "efficientformerv2_s0", sized=True),
    _family("efficientnet", "test_efficientnet", free=True),
    _family("efficientvim", "efficientvim_m1"),
    _family("efficientvit_mit", "efficientvit_b0"),
    _family("efficientvit_msra", "efficientvit_m0", sized=True),
    _family("eva", "vit_tiny_patch16_dinov3_qkvb", sized=True, depth=2),
    _family("fasternet", "fasternet_t0"),
    _family("fastvit", "fastvit_t8"),
    _family("focalnet", "focalnet_tiny_srf"),
    _family("gcvit", "gcvit_xxtiny", sized=True),
    _family("gemma4_vit", "gemma4_vit_167m_enc", size=96, depth=2),
    _family("ghostnet", "ghostnet_050", free=True),
    _family("hardcorenas", "hardcorenas_b"),
    _family("hgnet", "hgnetv2_b0", free=True),
    _family("hiera", "hiera_tiny_224", sized=True, stages=(1, 1, 2, 1)),
    _family("hieradet_sam2", "sam2_hiera_tiny", size=96, stages=(1, 2, 3, 2)),
    _family("hrnet", "hrnet_w18_small"),
    _family("iformer", "iformer_t"),
    _family("inception_next", "inception_next_atto"),
    _family("inception_resnet_v2", "inception_resnet_v2", size=96),
    _family("inception_v3", "inception_v3", size=96),
    _family("inception_v4", "inception_v4", size=96),
    _family("lcnetv2", "lcnetv2_small"),
    _family("levit", "levit_128s", sized=True),
    _family("lowformer", "lowformer_b0"),
    _family("mambaout", "test_mambaout"),
    _family("maxxvit", "test_coatnet", sized=True),
    _family("metaformer", "poolformerv2_s12"),
    _family("mlp_mixer", "gmlp_ti16_224", sized=True),
    _family("mobilenetv3", "lcnet_035", free=True),
    _family("mobilenetv5", "mobilenetv5_300m", size=96, channel_multiplier=0.25),
    _family("mobilevit", "mobilevit_xxs"),
    _family("mvitv2", "mvitv2_tiny", sized=True),
    _family("naflexvit", "naflexvit_base_patch16_parfac_gap", depth=2),
    _family("nasnet", "nasnetalarge"),
    _family("nest", "nest_tiny", sized=True),
    _family("nextvit", "nextvit_small"),
    _family("nfnet", "test_nfnet", free=True),
    _family("pit", "pit_ti_224", sized=True),
    _family("pnasnet", "pnasnet5large"),
    _family("pvt_v2", "pvt_v2_b0"),
    _family("qwen3_vit", "qwen3_vit_88m", size=96, depth=2),
    _family("rdnet", "rdnet_tiny"),
    _family("regnet", "regnetx_002", free=True),
    _family("repghost", "repghostnet_050", free=True),
    _family("repvit", "repvit_m1"),
    _family("res2net", "res2next50", layers=(1, 1, 1, 1)),
    _family("resnest", "resnest14d"),
    _family("resnet", "test_resnet", free=True),
    _family("resnetv2", "resnetv2_18", layers=(1, 1, 1, 1)),
    _family("rexnet", "rexnet_100"),
    _family("selecsls", "selecsls42"),
    _family("senet", "legacy_seresnet18", layers=(1, 1, 1, 1)),
    _family("sequencer", "sequencer2d_s", sized=True, layers=(1, 1, 1, 1)),
    _family("shvit", "shvit_s1"),
    _family("sknet", "skresnet18", layers=(1, 1, 1, 1)),
    _family("starnet", "starnet_s050"),
    _family("swiftformer", "swiftformer_xs", sized=True),
    _family("swin_transformer", "swin_tiny_patch4_window7_224", sized=True, depths=(2, 2, 2, 2)),
    _family("swin_transformer_v2", "swinv2_tiny_window8_256", sized=True, depths=(2, 2, 2, 2)),
    _family("swin_transformer_v2_cr", "swinv2_cr_tiny_224", sized=True, depths=(2, 2, 2, 2)),
    _family("tiny_vit", "tiny_vit_5m_224", depths=(1, 1, 2, 1)),
    _family("tnt", "tnt_s_legacy_patch16_224", sized=True, depth=2),
    _family("tresnet", "tresnet_m", layers=(1, 1, 1, 1)),
    _family("twins", "twins_svt_small", sized=True, depths=(1, 1, 2, 1)),
    _family("vgg", "vgg11", mlp_ratio=0.1),
    _family("visformer", "visformer_tiny", sized=True, depth=2),
    _family("vision_transformer", "test_vit", sized=True),
    _family("vision_transformer_hybrid", "vit_tiny_r_s16_p8_224", sized=True, depth=2),
    _family("vision_transformer_relpos", "test_vit_relpos", sized=True),
    _family("vision_transformer_sam", "samvit_base_patch16_224", sized=True, depth=3, global_attn_indexes=(2,)),
    _family("vitamin", "vitamin_small_224", sized=True, depth=2),
    _family("volo", "volo_d1_224", sized=True),
    _family("vovnet", "ese_vovnet19b_slim_dw"),
    _family("xception", "legacy_xception"),
    _family("xception_aligned", "xception41p"),
    _family("xcit", "xcit_nano_12_p8_224", sized=True),
)

LIBRARY = Library("timm", FAMILIES, ("timm",))
