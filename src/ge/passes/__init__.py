"""The pass pipeline: named stages of named passes, in execution order."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ge.dump import dump_graph
from ge.options import CompileOptions
from ge.passes.base import History, Pass, run_passes, to_fixpoint
from ge.passes.cleanup.common_subexpressions import CommonSubexpressions
from ge.passes.cleanup.dead_code import DeadCode
from ge.passes.cleanup.fold_constants import FoldConstants
from ge.passes.cleanup.inline_branches import InlineBranches
from ge.passes.cleanup.merge_movements import MergeMovements
from ge.passes.cleanup.remove_identities import RemoveIdentities
from ge.passes.cleanup.simplify_algebra import SimplifyAlgebra
from ge.passes.cleanup.verify import Verify
from ge.passes.fusion.broadcast_matmuls import BroadcastMatmuls
from ge.passes.fusion.decompose import Decompose
from ge.passes.fusion.fold_pads import FoldPads
from ge.passes.fusion.fold_weights import FoldWeights
from ge.passes.fusion.fuse_activations import FuseActivations
from ge.passes.fusion.fuse_attention import FuseAttention
from ge.passes.fusion.fuse_chains import FuseChains
from ge.passes.fusion.fuse_gates import FuseGates
from ge.passes.fusion.fuse_normalisation import FuseNormalisation
from ge.passes.fusion.fuse_post_ops import FusePostOps
from ge.passes.fusion.fuse_quantised import FuseQuantised
from ge.passes.fusion.fuse_quantised_sums import FuseQuantisedSums
from ge.passes.fusion.fuse_softmax import FuseSoftmax
from ge.passes.fusion.merge_matmuls import MergeMatmuls
from ge.passes.fusion.one_pass_moments import OnePassMoments
from ge.passes.fusion.split_reductions import SplitReductions
from ge.passes.fusion.tabulate import Tabulate
from ge.passes.layout.align_products import AlignProducts
from ge.passes.layout.channels_last import ChannelsLast
from ge.passes.layout.fold_strides import FoldStrides
from ge.passes.layout.row_factors import RowFactors
from ge.passes.layout.sink_slices import SinkSlices
from ge.passes.layout.sink_transposes import SinkTransposes
from ge.passes.layout.split_batch import SplitBatch
from ge.passes.layout.split_scales import SplitScales
from ge.passes.layout.weights_last import WeightsLast
from ge.passes.memory.recompute import Recompute
from ge.passes.precision.hoist_casts import HoistCasts
from ge.passes.precision.lower_precision import LowerPrecision
from ge.passes.precision.sink_casts import SinkCasts
from ge.passes.precision.store_narrow import StoreNarrow
from ge.passes.precision.widen_unsupported import WidenUnsupported
from ge.passes.recurrence.fission import Fission
from ge.passes.recurrence.fuse_recurrent import FuseRecurrent
from ge.passes.recurrence.fuse_recurrent_training import FuseRecurrentTraining
from ge.passes.recurrence.raise_loops import LowerScans, RaiseLoops

__all__ = ["STAGES", "Stage", "fusion_names", "optimize", "pass_names", "switch_names", "switched_off"]

_log = logging.getLogger(__name__)
_BUILD_SWITCHES = (
    "strided_views",
    "vector_fusion",
    "in_place",
)  # switches of the build stages that follow the passes


@dataclass(frozen=True)
class Stage:
    """Passes that run together, once or to a fixpoint."""

    name: str
    passes: Sequence[Pass]
    fixpoint: bool = True


_IDENTITIES, _DEAD_CODE, _ALGEBRA = RemoveIdentities(), DeadCode(), SimplifyAlgebra()
_SCANS = RaiseLoops()
_TIDY = (_IDENTITIES, MergeMovements(), CommonSubexpressions(), _DEAD_CODE)

STAGES: tuple[Stage, ...] = (
    Stage("verify", (Verify(),), fixpoint=False),
    Stage("quantised", (_IDENTITIES, FuseQuantised(), _DEAD_CODE)),
    Stage("clean", (_DEAD_CODE, Decompose(), InlineBranches(), FoldConstants(), _ALGEBRA, *_TIDY)),
    Stage(
        "patterns",
        (
            _SCANS,
            FuseRecurrent(),
            FuseSoftmax(),
            FuseNormalisation(),
            FuseActivations(),
            _ALGEBRA,
            *_TIDY,
        ),
    ),
    Stage("weights", (FoldPads(), FoldWeights(), *_TIDY)),
    Stage("attention", (FuseAttention(), *_TIDY), fixpoint=False),
    Stage("loops", (_SCANS, Fission(), FuseRecurrentTraining(), _ALGEBRA, *_TIDY)),
    Stage("merge", (SinkSlices(), MergeMatmuls(), BroadcastMatmuls(), LowerScans(), *_TIDY), fixpoint=False),
    Stage("format", (ChannelsLast(), SinkTransposes(), *_TIDY)),
    Stage("moments", (OnePassMoments(),), fixpoint=False),
    Stage(
        "post_ops", (FusePostOps(), FuseGates(), FuseQuantisedSums(), Tabulate(), SplitReductions(), *_TIDY)
    ),
    Stage("precision", (LowerPrecision(), WidenUnsupported()), fixpoint=False),
    Stage("tidy", (HoistCasts(), SinkCasts(), *_TIDY)),
    Stage("factors", (RowFactors(), _DEAD_CODE), fixpoint=False),
    Stage("chains", (FuseChains(), _DEAD_CODE), fixpoint=False),
    Stage("weight_format", (WeightsLast(), *_TIDY)),
    Stage("alignment", (SplitScales(), FoldStrides(), AlignProducts(), *_TIDY), fixpoint=False),
    Stage("recompute", (Recompute(), _DEAD_CODE), fixpoint=False),
    Stage("storage", (StoreNarrow(),), fixpoint=False),
    Stage("batch", (SplitBatch(),), fixpoint=False),
)


def optimize(graph: ir.Graph, options: CompileOptions, name: str = "") -> None:
    """Run all stages on a graph, in place; the graph after each stage can be dumped."""
    history = History()
    for stage in STAGES:
        start, nodes = time.perf_counter(), len(graph)
        if stage.fixpoint:
            to_fixpoint(graph, stage.passes, options, history)
        else:
            run_passes(graph, stage.passes, options, history)
        taken = (time.perf_counter() - start) * 1e3
        _log.info("%s: stage %s, %d nodes to %d, %.1f ms", name, stage.name, nodes, len(graph), taken)
        dump_graph(graph, stage.name, options, name)


def pass_names() -> list[str]:
    """The names of passes that can be disabled."""
    return list(dict.fromkeys(p.name for stage in STAGES for p in stage.passes))


def switch_names() -> list[str]:
    """All names that can be disabled: passes, and the optimisations of the build stages."""
    return [*pass_names(), *_BUILD_SWITCHES]


def fusion_names() -> frozenset[str]:
    """The switches that only control fusion."""
    return frozenset(name for name in switch_names() if "fus" in name or name.startswith("merge_matmuls"))


def switched_off(names: frozenset[str]) -> frozenset[str]:
    """The names to disable, with ALL expanded to every fusion that is not named itself ("+name" keeps it enabled).

    >>> "fuse_gelu" in switched_off(frozenset({"ALL", "+fuse_gelu"}))
    False
    """
    if "ALL" not in names:
        return names
    off = frozenset(name for name in names if name != "ALL" and not name.startswith("+"))
    return off | (fusion_names() - {name[1:] for name in names if name.startswith("+")})
