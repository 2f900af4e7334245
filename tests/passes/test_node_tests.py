"""Node tests of ONNX give the same outputs after `aot optimize` as before; `make sweep` tries all of them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"

# Of ops that the passes look for: tests that pass through more than one of them, or are their edge cases.
NAMES = """
attention_4d attention_3d_gqa_expanded attention_4d_attn_mask_bool_expanded attention_4d_diff_heads_sizes_expanded
averagepool_2d_default averagepool_2d_precomputed_pads basic_conv_with_padding batchnorm_epsilon batchnorm_example
batchnorm_epsilon_training_mode cast_FLOAT_to_DOUBLE cast_DOUBLE_to_FLOAT16 clip_default_inbounds_expanded
clip_min_greater_than_max clip_default_int8_min concat_3d_axis_negative_1 constant constantofshape_int_zeros
convtranspose_autopad_same convtranspose_pads depthtospace_crd_mode_example div_int32_trunc div_uint8
dropout_default_mask einsum_batch_diagonal elu_expanded_ver18 equal_bcast expand_dim_changed flatten_negative_axis1
flexattention_causal_mask flexattention_soft_cap
gather_negative_indices gathernd_example_int32_batch_dim1 gelu_default_1_expanded gelu_tanh_2_expanded
gemm_all_attributes gemm_default_scalar_bias group_normalization_example_expanded hardsigmoid_expanded_ver18
hardswish_expanded identity_sequence if if_opt if_seq instancenorm_epsilon layer_normalization_2d_axis0_expanded
layer_normalization_4d_axis_negative_2_expanded_ver18 leakyrelu_expanded logsoftmax_axis_0_expanded_ver18 loop11
loop13_seq matmul_4d max_float16 mish_expanded mod_mixed_sign_int32 mvn_expanded mvn nonzero_example pow_bcast_scalar
prelu_broadcast_expanded range_float_type_positive_delta_expanded reduce_mean_keepdims_random
reduce_sum_empty_axes_input_noop reduce_max_bool_inputs relu_expanded_ver18 reshape_allowzero_reordered
reshape_zero_and_negative_dim reshape_zero_dim resize_upsample_scales_nearest rms_normalization_4d_axis1_expanded
rotary_embedding_interleaved_expanded scan9_sum shape_clip_end shape_start_greater_than_end slice_neg_steps
slice_start_out_of_bounds slice_end_out_of_bounds softmax_large_number_expanded split_zero_size_splits_opset18
split_variable_parts_2d_opset18 squeeze_negative_axes swish_expanded tile_precomputed transpose_all_permutations_4
unsqueeze_unsorted_axes where_long_example xor_bcast4v2d
"""


@pytest.fixture(scope="module")
def sweep() -> Iterator[ModuleType]:
    """`benchmarks/sweep/optimize_nodes.py`, whose verdict this is."""
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module("sweep.optimize_nodes")
    sys.path.remove(str(BENCHMARKS))


@pytest.mark.parametrize("name", NAMES.split())
def test_gives_the_same_after_as_before(name: str, sweep: ModuleType) -> None:
    known = sweep.cases()
    if f"test_{name}" not in known:
        pytest.skip("this onnx has no test of that name")
    assert sweep.outcome(known[f"test_{name}"]) == ("equal", None)
