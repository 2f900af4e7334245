"""Whole detectors of torchvision, boxes chosen inside: what they return has a size that depends on the image."""

from __future__ import annotations

from aot import Input
from sweep.member import Library, Member

# A detector takes a list of images, and returns a dict of tensors for each.
SETUP = """
from torchvision import models

class Detector(torch.nn.Module):
    def __init__(self, detector):
        super().__init__()
        self.detector = detector.eval()

    def forward(self, image):
        return self.detector([image])[0]
"""
SMALL = ", min_size=128, max_size=160"


def _detector(name: str, family: str, options: str = "") -> Member:
    make = f"Detector(models.detection.{name}(weights=None, weights_backbone=None, num_classes=5{options}))"
    return Member(name, family, make, {"image": Input([3, 128, 128], low=0, high=1)}, SETUP, settle=False)


LIBRARY = Library(
    "detectors",
    (
        _detector("fasterrcnn_mobilenet_v3_large_320_fpn", "Faster R-CNN", SMALL),
        _detector("fcos_resnet50_fpn", "FCOS", f"{SMALL}, score_thresh=0.001"),
        _detector("keypointrcnn_resnet50_fpn", "Keypoint R-CNN", SMALL),
        _detector("maskrcnn_resnet50_fpn", "Mask R-CNN", SMALL),
        _detector("retinanet_resnet50_fpn", "RetinaNet", f"{SMALL}, score_thresh=0.001"),
        _detector("ssd300_vgg16", "SSD"),
        _detector("ssdlite320_mobilenet_v3_large", "SSDlite"),
    ),
    ("torchvision",),
)
