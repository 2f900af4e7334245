"""The smallest squared error of what the layers that read the tensor put out.

A layer y = W x turns an error e of its input into W e. Where errors of different channels are independent, its square
is the sum over channels of |w_c|^2 e_c^2 on average, w_c the weights that read channel c. So each value counts as much
as its channel's weights do, summed over all layers that read it: an outlier in a channel that hardly matters does not
widen the range, one in a channel that does is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot.calibrator import Calibrator
from aot.statistics import Level, Tensor

if TYPE_CHECKING:
    from aot.precision.formats import Quantized


class OutputError(Calibrator):
    """amax = argmin sum_c |w_c|^2 E (x_c - Q(x_c; amax))^2; that of `mse` where no layer has weights for channels."""

    name = "output_error"
    needs = Level.WEIGHTED

    def amax(self, tensor: Tensor, form: Quantized) -> float:
        """Found by search, coarse and then fine."""
        from aot.calibrators._error import best

        histogram = tensor.weighted or tensor.histogram
        return tensor.amax if histogram is None else best(histogram, tensor.amax, form)


CALIBRATOR = OutputError
