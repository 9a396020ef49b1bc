"""The declarations of all options, group by group: data for `ge.options.table`, which says what the columns mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ge.options import values as v
from ge.options.values import Implementation, Parser, PrecisionMode

__all__ = ["IDLE", "OPTIONS", "SECTIONS"]

_EVERYWHERE = "ge atc tf npu_device v1"
# fmt: off

# Name, parser, default, what it decides, doors (in brackets: accepted there without effect), what it does, the rest.
OPTIONS: dict[str, list[tuple[Any, ...]]] = {
    "Model": [
        ("soc_version", v.soc, "cpu", "means", "ge atc",
         "Name of the target; cpu and Ascend names mean this machine",
         {"code": "E12006"}),
        ("model", v.text, "", "door", "atc", "Model file (.onnx, .pb, .air) or SavedModel folder"),
        ("output", v.text, "", "door", "atc", "File to write, .om is added; a folder with --singleop"),
        ("framework", v.count, None, "door", "atc",
         "1 MINDIR and AIR, 3 TensorFlow, 5 ONNX, 6 PaddlePaddle, 7 TensorFlow Lite; found from the file when left out",
         {"code": "E12004"}),
        ("mode", v.one_of(0, 1, 3, 6), 0, "door", "atc",
         "0 compile, 1 write --json, 3 check only, 6 show what an .om file is",
         {"code": "E12004"}),
        ("om", v.text, "", "door", "atc", "Model file for --mode=1 and 6"),
        ("json", v.text, "", "door", "atc", "File to write with --mode=1"),
        ("singleop", v.text, "", "door", "atc", "Description of single operators to compile (JSON)"),
    ],
    "Inputs and outputs": [
        ("input_shape", v.shapes, {}, "means", "ge atc (npu_device) (v1)",
         'Shapes: "x:1,3,224,224;y:1,10"; -1 where gears vary, 1~8 for a gear of each',
         {"ignored": "models are compiled for the shapes that come", "code": "E12004"}),
        ("input_shapes", v.shapes, {}, "compile", "ge", "Shapes by input", {"field": "input_shapes"}),
        ("out_nodes", v.nodes, (), "means", "ge atc", 'What to compute: "node:0;other:1"'),
        ("output_nodes", v.nodes, (), "compile", "ge", "What to compute", {"field": "output_nodes"}),
        ("signature", v.text, "", "compile", "ge atc", "Signature of a SavedModel or a TensorFlow Lite file to compile",
         {"field": "signature"}),
        ("output_type", v.output_types, {}, "door", "atc",
         "Element type of all outputs (FP32, FP16, UINT8, …), or 'name:0:FP16'",
         {"code": "E12004"}),
        ("input_format", v.one_of("", "NCHW", "NHWC", "ND", "NCDHW", "NDHWC"), "", "door", "atc",
         "Order of the axes of images: NCHW, NHWC or ND",
         {"code": "E12004"}),
        ("dynamic_batch_size", v.text, "", "door", "atc", 'Batches to compile for: "1,4,8"'),
        ("dynamic_image_size", v.text, "", "door", "atc", 'Image sizes to compile for: "224,224;448,448"'),
        ("dynamic_dims", v.text, "", "door", "atc (npu_device) (v1)",
         'All dimensions of -1, a set a gear: "1,128;8,128"',
         {"ignored": "models are compiled for the shapes that come"}),
        ("input_fp16_nodes", v.nodes, (), "door", "atc", 'Inputs that take float16: "x;y"'),
        ("insert_op_conf", v.path, None, "door", "atc", "AIPP configuration: images as bytes"),
    ],
    "Precision and fusion": [
        ("precision_mode", v.precision, PrecisionMode.KEEP, "compile", _EVERYWHERE,
         "How far element types may be lowered",
         {"variable": "NPU_PRECISION_MODE", "field": "precision_mode"}),
        ("precision_mode_v2", v.precision, None, "means", "ge atc npu_device v1",
         "The same as precision_mode, and wins over it"),
        ("op_precision", v.precisions, {}, "compile", "ge tf",
         "Precision modes by operator or node",
         {"variable": "NPU_OP_PRECISION", "field": "op_precision"}),
        ("op_precision_mode", v.existing_file, None, "compile", _EVERYWHERE,
         "File of precision modes and implementations by operator or node (ini)"),
        ("keep_dtype", v.existing_file, None, "compile", "ge atc",
         "File of nodes that keep their precision, one per line"),
        ("modify_mixlist", v.existing_file, None, "compile", _EVERYWHERE,
         "File that moves operators between the lists of mixed precision (JSON)",
         {"variable": "NPU_MODIFY_MIXLIST"}),
        ("op_select_implmode", v.implementation, Implementation.FAST, "compile", _EVERYWHERE,
         "high_performance, or high_precision: no products that save arithmetic (Winograd, Strassen)",
         {"variable": "NPU_OP_SELECT_IMPLMODE", "field": "implementation"}),
        ("optypelist_for_implmode", v.names, frozenset(), "compile", _EVERYWHERE,
         'Operators that op_select_implmode is for ("Conv2D,MatMul"); none: all',
         {"variable": "NPU_OPTYPELIST_FOR_IMPLMODE"}),
        ("quantise_activations", v.boolean, False, "compile", "ge atc tf torchair",
         "Products with packed constant weights round x to 8 bits, each 32 elements apart, on targets with avx512_vnni",
         {"variable": "NPU_QUANTISE_ACTIVATIONS", "field": "quantise_activations"}),
        ("op_implementation", v.implementations, {}, "compile", "ge",
         "Implementations by operator or node",
         {"field": "op_implementation"}),
        ("fusion_switch_file", v.existing_file, None, "compile", _EVERYWHERE,
         "File that switches passes off (JSON)",
         {"variable": "NPU_FUSION_SWITCH_FILE"}),
        ("disabled_passes", v.names, frozenset(), "compile", "ge tf",
         "Passes that do not run",
         {"variable": "NPU_DISABLE_PASSES", "field": "disabled_passes"}),
    ],
    "Devices": [
        ("recompute", v.one_of(*v.RECOMPUTE), "light", "compile", _EVERYWHERE,
         "What a training step computes again rather than keep in memory",
         {"variable": "NPU_RECOMPUTE", "field": "recompute"}),
        ("target", v.target, "host", "compile", "ge tf",
         "The device that is compiled for: this machine (host), portable (any x86-64), or another",
         {"variable": "NPU_TARGET", "field": "target"}),
        ("allow_host_fallback", v.boolean, True, "compile", "tf",
         "Operators that the NPU lacks run on the host (mixed computing); otherwise they are errors",
         {"variable": "NPU_ALLOW_HOST_FALLBACK"}),
        ("mix_compile_mode", v.boolean, False, "door", "npu_device v1",
         "Operators that the NPU lacks run on the host"),
        ("use_off_line", v.boolean, True, "door", "v1", "Sessions run on the NPU; False leaves them to TensorFlow"),
        ("memory_limit", v.size, 0, "run", "tf",
         'Bytes that a device may use ("2G"); 0: the memory of the machine',
         {"variable": "NPU_MEMORY_LIMIT"}),
        ("variable_memory_max_size", v.size, None, "means", "npu_device (v1) (ge)",
         "Set memory_limit to their sum, once both sizes are known",
         {"ignored": "NPU_MEMORY_LIMIT limits the memory of a device"}),
        ("graph_memory_max_size", v.size, None, "means", "npu_device (v1) (ge)",
         "Set memory_limit to their sum, once both sizes are known",
         {"ignored": "NPU_MEMORY_LIMIT limits the memory of a device"}),
        ("num_threads", v.count, 0, "run", "tf",
         "Threads of a device; 0: its share of the cores",
         {"variable": "NPU_NUM_THREADS"}),
        ("prefetch", v.count, 2, "run", "tf",
         "Batches that iterators over datasets prepare ahead; the saved state of an iterator belongs to one setting",
         {"variable": "NPU_PREFETCH"}),
        ("loop_size", v.positive, 1, "run", "tf",
         "Steps in one call of Keras models whose compile() does not name steps_per_execution",
         {"variable": "NPU_LOOP_SIZE"}),
        ("iterations_per_loop", v.positive, 1, "means", "npu_device v1",
         "The same as loop_size; for sessions, how often a run is repeated"),
        ("device_count", v.positive, 1, "start", "tf",
         "Devices that share this machine",
         {"variable": "NPU_DEVICE_COUNT"}),
        ("as_default", v.boolean, True, "start", "tf",
         "The first NPU is the default device once tf_adapter is imported",
         {"variable": "NPU_AS_DEFAULT"}),
        ("eager_threshold", v.count, 3, "run", "tf",
         "Calls after which an eager operator is compiled",
         {"variable": "NPU_EAGER_THRESHOLD"}),
    ],
    "Dumps, profiles and caches": [
        ("dump", v.names, frozenset(), "run", "ge tf",
         "Stages of a compile whose graphs are written: names, or all",
         {"variable": "NPU_DUMP", "field": "dump_stages"}),
        ("dump_dir", v.path, Path("npu_dump"), "run", "ge tf",
         "Where graphs are written",
         {"variable": "NPU_DUMP_DIR", "field": "dump_dir"}),
        ("debug_dir", v.path, None, "means", "ge atc (v1)",
         "Write the graph after every stage there",
         {"ignored": "use NPU_DUMP and NPU_DUMP_DIR"}),
        ("enable_dump", v.boolean, False, "run", "ge tf v1",
         "Write the tensors of every operator as it runs, to dump_path"),
        ("dump_path", v.path, None, "run", "ge tf v1", "Folder of enable_dump and enable_dump_debug; None: npu_dump"),
        ("dump_step", v.steps, "", "run", "ge tf v1", "Runs of a program whose tensors are written"),
        ("dump_mode", v.one_of("input", "output", "all"), "output", "run", "ge tf v1",
         "Whether what operators read, what they make, or both is written"),
        ("dump_data", v.one_of("tensor", "stats"), "tensor", "run", "ge tf v1",
         "stats: least, greatest, mean and values that are not finite, instead of the tensors"),
        ("dump_layer", v.text, "", "run", "ge tf v1",
         "Nodes whose tensors are written, with spaces between them; none: all"),
        ("enable_dump_debug", v.boolean, False, "run", "ge tf v1",
         "Name the operators that overflow, and write what they read and make to dump_path"),
        ("dump_debug_mode", v.one_of("aicore_overflow", "atomic_overflow", "all"), "all", "run", "ge tf v1",
         "Operators that enable_dump_debug watches: those of AI Core and vector engine, "
         "those that add atomically (there are none), all"),
        ("profiling", v.boolean, False, "run", "tf",
         "Times of calls and tasks are written to files",
         {"variable": "NPU_PROFILING"}),
        ("profiling_dir", v.path, Path("npu_profile"), "run", "tf",
         "Where profiles are written",
         {"variable": "NPU_PROFILING_DIR"}),
        ("profiling_mode", v.boolean, False, "means", "v1 (ge)",
         "The same as profiling",
         {"ignored": "NPU_PROFILE=1 times the tasks of a model"}),
        ("profiling_options", v.text, None, "means", "v1 (ge)",
         'JSON whose "output" is profiling_dir',
         {"ignored": "NPU_PROFILE=1 times the tasks of a model"}),
        ("explain", v.boolean, False, "run", "tf",
         "Every compile says which node runs where, and why",
         {"variable": "NPU_EXPLAIN"}),
        ("progress", v.boolean, False, "run", "ge", "Show a bar while a model is compiled", {"field": "progress"}),
        ("cache_dir", v.path, None, "run", "tf",
         "Folder of compiled models and kernels kept between processes; None: the user's cache folder; off: none",
         {"variable": "NPU_CACHE_DIR"}),
        ("op_compiler_cache_dir", v.path, None, "means", "npu_device v1 (ge) (atc)",
         "The same as cache_dir",
         {"ignored": "NPU_CACHE_DIR names the folder of compiled kernels"}),
        ("op_compiler_cache_mode", v.one_of("enable", "disable", "force"), "enable", "means",
         "npu_device v1 (ge) (atc)",
         "disable: cache_dir is off",
         {"ignored": "NPU_CACHE_DIR names the folder of compiled kernels"}),
    ],
    "PyTorch's graphs": [
        ("graph_dump_type", v.one_of(None, "txt", "pbtxt", "py"), None, "door", "",
         "Form in which FX graphs are written"),
        ("fx_summary_type", v.one_of(None, "csv"), None, "door", "", "Form in which calls of FX graphs are counted"),
        ("data_dump_type", v.one_of(None, "npy"), None, "door", "", "Run on ATen and write every tensor"),
        ("graph_dump_path", v.text, "./", "door", "", "Where graph_dump is written"),
        ("fx_summary_path", v.text, "./", "door", "", "Where fx_summary is written"),
        ("data_dump_path", v.text, "./", "door", "", "Where data_dump is written"),
        ("run_eagerly", v.boolean, False, "door", "", "Leave graphs to ATen"),
        ("export_mode", v.boolean, False, "door", "", "Write compiled graphs as model files"),
        ("export_path_dir", v.text, "./", "door", "", "Where model files are written"),
        ("export_name", v.text, "export", "door", "", "Name of the model files"),
    ],
    "Other": [
        ("opp_path", v.directories, (), "compile", "ge atc",
         "Directories with custom operators, separated by ':'",
         {"field": "opp_path"}),
        ("custom_opp_path", v.directories, (), "means", "ge", "The same as opp_path"),
        ("log", v.one_of("", "debug", "info", "warning", "error", "null"), "", "door", "atc",
         "debug, info, warning, error or null",
         {"code": "E12004"}),
        ("display_model_info", v.boolean, False, "door", "atc", "1: show what was compiled"),
        ("profile", v.path, None, "door", "atc", "Run the model on zeros and write the trace of its tasks there"),
        ("unsupported_report", v.path, None, "door", "atc", "Write operators without support there (JSON)"),
    ],
    "Without effect": [
        ("deterministic", v.boolean, False, "idle", _EVERYWHERE,
         "the same inputs always give the same bits, with the same number of threads",
         {"variable": "NPU_DETERMINISTIC"}),
        ("graph_mode", v.one_of("max-autotune", "reduce-overhead", "default"), "max-autotune", "idle", "",
         "graphs are always compiled whole"),
        ("gears_merge_policy", v.one_of("zip", "product"), "zip", "idle", "",
         "graphs are compiled for the combinations of sizes that come"),
    ],
}

# Why options have no effect, and their names by kind of value. All doors with plain names accept them.
IDLE: dict[str, dict[Parser, str]] = {
    "the same inputs always give the same bits, with the same number of threads": {
        v.anything: "deterministic_level",
    },
    "tasks run in one order, each on all cores; there are no queues to schedule": {
        v.boolean:
            "hcom_parallel hcom_multi_mode enable_single_stream cc_parallel_enable "
            "is_tailing_optimization input_batch_cpy",
        v.anything:
            "stream_max_parallel_num ac_parallel_enable auto_multistream_parallel_mode "
            "topo_sorting_mode",
    },
    "kernels are generated for the shapes at hand": {
        v.anything:
            "jit_compile tiling_schedule_optimize static_model_ops_lower_limit dynamic_compatible "
            "shape_generalization shape_generalized_build_mode compile_hybrid_mode "
            "dynamic_node_type input_hint_shape dynamic_inputs_shape_range",
        v.boolean: "dynamic_input compile_dynamic_mode",
        v.one_of("lazy_recompile", "dynamic_execute"): "dynamic_graph_execute_mode",
    },
    "implementations are chosen when a model is compiled": {
        v.anything:
            "auto_tune_mode aoe_config_file mstune_mode op_tune_mode mdl_bank_path op_bank_path "
            "op_bank_update virtual_type op_name_map",
        v.one_of(None, "1", "2", ""): "aoe_mode",
        v.text: "work_path",
    },
    "memory is planned for every model": {
        v.anything:
            "memory_optimization_policy static_memory_policy memory_efficiency "
            "disable_reuse_memory atomic_clean_policy separate_atomic_clean jobgraph_memory "
            "external_weight buffer_optimize variable_format_optimize",
    },
    "NPU_DISABLE_PASSES and fusion_switch_file switch passes off; all others run": {
        v.anything:
            "oo_level oo_constant_folding oo_dead_code_elimination optimization_switch "
            "pattern_fusion_pass remove_noop_ops enable_scope_fusion_passes lower_functional_ops "
            "min_group_size enable_small_channel input_fusion_size do_npu_optimizer "
            "enable_view_optimize",
    },
    "a run that fails names its node; enable_dump writes tensors as they are": {
        v.anything: "enable_exception_dump quant_dumpable",
    },
    "there is no device compiler with debug levels": {
        v.one_of(0, 1, 2, 3, 4): "op_debug_level",
        v.anything: "op_debug_config status_check",
    },
    "NPU_NUM_THREADS and NPU_DEVICE_COUNT divide the machine": {
        v.anything:
            "aicore_num core_type device_type session_device_id local_device_list soc_config "
            "ddk_version device_id cluster_config execute_placement",
    },
    "the launcher of the processes says which ranks there are": {
        v.anything:
            "rank_id local_rank_id task_index job job_id distribute_config "
            "distributed_cluster_build HCCL_algorithm graph_slice enable_graph_parallel "
            "graph_parallel_option_path model_relation_config logical_device_cluster_deploy_mode "
            "experimental_logical_device_cluster_deploy_mode experimental_logical_device_id",
    },
    "nothing waits on a queue of the device": {
        v.anything:
            "event_sync_timeout op_execute_timeout op_wait_timeout stream_sync_timeout "
            "hccl_timeout",
    },
    "weights are packed for their primitives, never compressed": {
        v.anything:
            "compress_weight_conf compression_optimize_conf enable_compress_weight "
            "enable_sparse_matrix_weight sparsity use_internal_format_weight",
    },
    "element types are those of the model and of precision_mode": {
        v.anything: "customize_dtypes allow_hf32 allow_mix_precision",
    },
    "models of frameworks are read as they are": {
        v.anything:
            "weight net_format is_input_adjust_hw_layout is_output_adjust_hw_layout "
            "save_original_model insert_op_file check_report export_compile_stat host_env_cpu "
            "host_env_os enable_record_nn_module_stack",
    },
    "training and inference are compiled alike": {
        v.anything:
            "graph_run_mode enable_online_inference is_var_init_graph frozen_variable "
            "frozen_parameter variable_placement enable_data_pre_proc "
            "aot_config_enable_joint_graph keep_inference_input_mutations",
    },
    "NPU_CACHE_DIR names the folder of compiled kernels": {
        v.anything: "graph_compiler_cache_dir",
    },
    "programs are captured whole already": {
        v.boolean:
            "disable_reinplace_inplaceable_ops_pass disable_reinplace_input_mutated_ops_pass "
            "disable_mempool_reuse_in_same_fx enable_output_clone clone_input clone_output",
    },
}

# Sections of the doors that are trees: the options in them, as name or name=option.
SECTIONS: dict[str, dict[str, str]] = {
    "npu_device": {
        "dump_config":
            "enable_dump dump_path dump_step dump_mode enable_dump_debug dump_debug_mode "
            "dump_data dump_layer",
        "profiling_config": "enable_profiling=profiling_mode profiling_options",
        "experimental.multi_branches_config": "input_shape dynamic_dims dynamic_node_type",
    },
    "torchair": {
        "": "mode=graph_mode",
        "debug": "run_eagerly",
        "debug.graph_dump": "type=graph_dump_type path=graph_dump_path",
        "debug.fx_summary": "type=fx_summary_type path=fx_summary_path",
        "debug.data_dump": "type=data_dump_type path=data_dump_path",
        "debug.aclgraph":
            "disable_reinplace_inplaceable_ops_pass disable_reinplace_input_mutated_ops_pass "
            "disable_mempool_reuse_in_same_fx enable_output_clone clone_input clone_output",
        "experimental_config":
            "cc_parallel_enable frozen_parameter jit_compile tiling_schedule_optimize "
            "enable_single_stream enable_view_optimize remove_noop_ops pattern_fusion_pass "
            "aot_config_enable_joint_graph static_model_ops_lower_limit memory_efficiency "
            "separate_atomic_clean keep_inference_input_mutations",
        "inference_config": "dynamic_gears_merge_policy=gears_merge_policy use_internal_format_weight",
        "ge_config":
            "enable_single_stream oo_level oo_constant_folding oo_dead_code_elimination "
            "aicore_num optimization_switch export_compile_stat precision_mode op_select_implmode "
            "optypelist_for_implmode quantise_activations",
        "fusion_config": "fusion_switch_file",
        "dump_config": "enable_dump dump_path dump_mode dump_step dump_layer",
        "export": "export_mode export_path_dir export_name enable_record_nn_module_stack",
        "aoe_config": "aoe_mode work_path",
    },
}
