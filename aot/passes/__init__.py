"""Every graph rewrite, in the order they run."""

from __future__ import annotations

from aot.graph import Pass
from aot.passes.attention_scale import attention_scale
from aot.passes.cancel_transposes import cancel_transposes
from aot.passes.cleaning import drop_dead, drop_identities
from aot.passes.clip_bounds import clip_bounds
from aot.passes.col2im_transposed import col2im_transposed
from aot.passes.dft_products import dft_products
from aot.passes.drop_expands import drop_expands
from aot.passes.einsum_letters import einsum_letters
from aot.passes.finite_mask import finite_mask
from aot.passes.flat_gemm import flat_gemm
from aot.passes.fold_batch_norm import fold_batch_norm
from aot.passes.fold_constants import fold_constants
from aot.passes.fold_scale import fold_query_scale, fold_scale
from aot.passes.gather_by_ranges import gather_by_ranges
from aot.passes.gelu import erf_gelu, tanh_gelu
from aot.passes.gemm import gemm
from aot.passes.hard_swish import hard_swish
from aot.passes.known_branches import known_branches
from aot.passes.layer_norm import layer_norm
from aot.passes.leaky_relu import leaky_relu
from aot.passes.merge_casts import merge_casts
from aot.passes.merge_clips import merge_clips
from aot.passes.merge_concats import kept_picks, merge_concats
from aot.passes.merge_pads import merge_pads
from aot.passes.merge_projections import merge_gate_up, merge_qkv
from aot.passes.merge_slices import merge_slices
from aot.passes.no_ops import drop_no_ops
from aot.passes.packed_heads import packed_picks, split_heads
from aot.passes.plain_roots import plain_roots
from aot.passes.pointwise_conv import pointwise_conv
from aot.passes.pool_everything import pool_everything
from aot.passes.possible_branches import possible_branches
from aot.passes.repeated_heads import repeated_heads
from aot.passes.resize_scales import resize_scales
from aot.passes.rotary import rotary_form, rotary_scale, rotate_together
from aot.passes.rotary_pairs import rotary_pairs
from aot.passes.rotary_parts import rotary_parts
from aot.passes.sequence_parts import sequence_parts
from aot.passes.shape_arithmetic import shape_arithmetic
from aot.passes.share import share_subexpressions
from aot.passes.sigmoids import sigmoids
from aot.passes.softmax_guard import softmax_guard
from aot.passes.softmax_parts import softmax_parts
from aot.passes.space_to_depth import depth_to_space, patch_merging
from aot.passes.split_slices import split_slices
from aot.passes.strided_views import strided_views
from aot.passes.transpose_through_views import transpose_through_views
from aot.passes.true_masks import true_masks
from aot.passes.unroll_loops import unroll_loops
from aot.passes.view_chains import view_chains

PASSES: tuple[Pass, ...] = (
    # Constants first: most rules ask for them.
    drop_dead,
    fold_constants,
    shape_arithmetic,
    known_branches,
    possible_branches,
    unroll_loops,
    drop_identities,
    share_subexpressions,
    drop_no_ops,
    # Chains of one kind.
    merge_casts,
    merge_slices,
    merge_concats,
    merge_pads,
    kept_picks,
    # Layers.
    plain_roots,
    layer_norm,
    clip_bounds,
    merge_clips,
    erf_gelu,
    tanh_gelu,
    hard_swish,
    sigmoids,
    leaky_relu,
    softmax_parts,
    gemm,
    fold_batch_norm,
    fold_scale,
    fold_query_scale,
    einsum_letters,
    dft_products,
    col2im_transposed,
    pool_everything,
    # Shapes: chains that compute them fall away once nothing asks.
    transpose_through_views,
    repeated_heads,
    flat_gemm,
    patch_merging,
    pointwise_conv,
    cancel_transposes,
    view_chains,
    depth_to_space,
    resize_scales,
    drop_expands,
    # Attention and its masks.
    gather_by_ranges,
    strided_views,
    true_masks,
    finite_mask,
    softmax_guard,
    rotary_parts,
    rotary_pairs,
    rotary_form,
    attention_scale,
    rotary_scale,
    fold_query_scale,
    sequence_parts,
    merge_qkv,
    merge_gate_up,
    packed_picks,
    split_slices,
    split_heads,
    rotate_together,
    # What the rewrites left behind.
    fold_constants,
    drop_no_ops,
    drop_identities,
    share_subexpressions,
    view_chains,
    drop_dead,
)
