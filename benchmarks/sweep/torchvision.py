"""One model of every family of torchvision, small classifiers, at image sizes that a CPU takes lightly."""

from __future__ import annotations

from aot import Dim, Input
from sweep.member import Library, Member

batch = Dim("batch", min=1, opt=2, max=5)
height = Dim("height", min=64, opt=96, max=160)
width = Dim("width", min=64, opt=80, max=160)

IMPORT = "from torchvision import models"
# What a detector computes for a batch, before it chooses boxes: how many it keeps depends on the image.
NETWORK = (
    IMPORT
    + """

class Network(torch.nn.Module):
    def __init__(self, detector):
        super().__init__()
        self.backbone = detector.backbone
        self.head = detector.rpn.head if hasattr(detector, "rpn") else detector.head

    def forward(self, images):
        return self.head(list(self.backbone(images).values()))
"""
)


def _classifier(name: str, family: str, size: int = 64, *, free: bool = False, options: str = "") -> Member:
    shape = [batch, 3, height, width] if free else [batch, 3, size, size]
    return Member(name, family, f"models.{name}(num_classes=10{options})", {"x": Input(shape)}, IMPORT)


def _detector(name: str, family: str, size: int = 128) -> Member:
    make = f"Network(models.detection.{name}(weights=None, weights_backbone=None, num_classes=5))"
    return Member(f"{name} network", family, make, {"images": Input([batch, 3, size, size])}, NETWORK)


def _segmenter(name: str, family: str, images: str = "x") -> Member:
    make = f"models.segmentation.{name}(weights=None, weights_backbone=None, num_classes=5)"
    return Member(name, family, make, {images: Input([batch, 3, 64, 64])}, IMPORT)


def _video(name: str, family: str, frames: int, size: int) -> Member:
    make = f"models.video.{name}(num_classes=10)"
    return Member(name, family, make, {"x": Input([batch, 3, frames, size, size])}, IMPORT)


CLASSIFICATION = (
    _classifier("alexnet", "AlexNet"),
    _classifier("convnext_tiny", "ConvNeXt", free=True),
    _classifier("densenet121", "DenseNet", free=True),
    _classifier("efficientnet_b0", "EfficientNet", free=True),
    _classifier("efficientnet_v2_s", "EfficientNetV2"),
    _classifier("googlenet", "GoogLeNet", 96, options=", init_weights=False, aux_logits=False"),
    _classifier("inception_v3", "Inception", 96, options=", init_weights=False, aux_logits=False"),
    _classifier("maxvit_t", "MaxViT", 224),
    _classifier("mnasnet0_5", "MNASNet"),
    _classifier("mobilenet_v2", "MobileNetV2", free=True),
    _classifier("mobilenet_v3_small", "MobileNetV3", free=True),
    _classifier("regnet_y_400mf", "RegNetY", free=True),
    _classifier("regnet_x_400mf", "RegNetX"),
    _classifier("resnet18", "ResNet", free=True),
    _classifier("resnext50_32x4d", "ResNeXt"),
    _classifier("wide_resnet50_2", "WideResNet"),
    _classifier("shufflenet_v2_x0_5", "ShuffleNetV2", free=True),
    _classifier("squeezenet1_1", "SqueezeNet", free=True),
    _classifier("swin_t", "Swin", 64),
    _classifier("swin_v2_t", "SwinV2", 64),
    _classifier("vgg11_bn", "VGG"),
    _classifier("vit_b_16", "ViT", 64, options=", image_size=64"),
)
DETECTION = (
    _detector("fasterrcnn_mobilenet_v3_large_320_fpn", "Faster R-CNN"),
    _detector("fcos_resnet50_fpn", "FCOS"),
    _detector("keypointrcnn_resnet50_fpn", "Keypoint R-CNN"),
    _detector("maskrcnn_resnet50_fpn", "Mask R-CNN"),
    _detector("retinanet_resnet50_fpn", "RetinaNet"),
    _detector("ssd300_vgg16", "SSD", 300),
    _detector("ssdlite320_mobilenet_v3_large", "SSDlite"),
)
SEGMENTATION = (
    _segmenter("deeplabv3_mobilenet_v3_large", "DeepLabV3"),
    _segmenter("fcn_resnet50", "FCN"),
    _segmenter("lraspp_mobilenet_v3_large", "LR-ASPP", "input"),
)
VIDEO = (
    _video("r3d_18", "ResNet3D", 4, 32),
    _video("mc3_18", "MC3", 4, 32),
    _video("r2plus1d_18", "R(2+1)D", 4, 32),
    _video("s3d", "S3D", 13, 209),
    _video("mvit_v1_b", "MViT", 16, 224),
    _video("swin3d_t", "Swin3D", 4, 64),
)
FLOW = (
    Member(
        "raft_small",
        "RAFT",
        "models.optical_flow.raft_small()",
        {"image1": Input([batch, 3, 128, 128], low=-1, high=1), "image2": Input([batch, 3, 128, 128], low=-1, high=1)},
        IMPORT,
    ),
)

LIBRARY = Library("torchvision", (*CLASSIFICATION, *DETECTION, *SEGMENTATION, *VIDEO, *FLOW), ("torchvision",))
