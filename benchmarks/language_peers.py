"""Decoding and prompts of a Llama-like model beside llama.cpp and OpenVINO GenAI, same weights and bits.

The model has the sizes of one with 1.1 billion parameters and random weights: levels of 4 or 8 bits with a float16
factor for each 32 of them (Q4_0 and Q8_0 in a GGUF file, which both peers read). Ours has activations in bfloat16, and
once more with `quantise_activations`, which rounds them to 8 bits for products as the peers do. Logits are compared
with llama.cpp's. The last column is the share of memory's bandwidth that a token's weights take, against a sum over a
large array in the same run.

    pip install llama-cpp-python gguf openvino-genai transformers
    python benchmarks/language_peers.py --precisions int4
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from torch import nn

import torch_npu
import torchair
from benchmarks.language_models import bandwidth
from benchmarks.llm import Config, Llama
from benchmarks.measure import console, interleave, milliseconds, new_table, ratio

GROUP = 32
BITS = {"int4": 4, "int8": 8}
OURS = {"npu": False, "npu rounded": True}  # whether activations are rounded to 8 bits
PEERS = ("llama.cpp", "openvino")
PROMPT, LENGTH = 128, 256
TOLERANCE = 8e-2  # peers' activations have 8 bits
SIZES = Config(vocabulary=32000, width=2048, hidden=5632, heads=32, groups=4, layers=22, length=LENGTH)
QUICK = Config(vocabulary=512, width=128, hidden=256, heads=4, groups=2, layers=2, length=LENGTH)


class PackedLinear(nn.Module):
    """A linear layer with random levels and a factor for each group of a row."""

    def __init__(self, depth: int, columns: int, bits: int, rng: np.random.Generator) -> None:
        super().__init__()
        middle = 1 << (bits - 1)
        self.levels = rng.integers(-middle + 1, middle, (columns, depth), dtype=np.int8)
        size = 1.7 / (middle * depth**0.5)  # rows of x of size one give ones
        self.factors = (size * (0.5 + rng.random((columns, depth // GROUP)))).astype(np.float16)
        levels = torch.from_numpy(self.levels)
        packed = torch_npu.npu_convert_weight_to_int4pack(levels.int()) if bits == 4 else levels
        self.register_buffer("weight", packed)
        self.register_buffer("scale", torch.from_numpy(self.factors).float().t().contiguous())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch_npu.npu_weight_quant_batchmatmul(
            x, self.weight.t(), self.scale, antiquant_group_size=GROUP
        )


def model_of(config: Config, bits: int) -> Llama:
    """The model with packed layers, its other numbers in bfloat16."""
    rng = np.random.default_rng(0)
    with torch.device("meta"):
        model = Llama(config)
    linear = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.Linear)]
    for name, m in linear:
        model.set_submodule(name, PackedLinear(m.in_features, m.out_features, bits, rng))
    twin = Llama(Config(config.vocabulary, config.width, 32, config.heads, config.groups, 1, config.length))
    model.register_buffer("cosines", twin.cosines)
    model.register_buffer("sines", twin.sines)
    model.tokens = twin.tokens

    def narrow(value: torch.Tensor) -> torch.Tensor:
        """Weights of norms are ones; caches are written before they are read."""
        return (torch.ones(value.shape) if value.is_meta else value).bfloat16()

    for m in model.modules():
        if not isinstance(m, PackedLinear):
            m._apply(narrow, recurse=False)
    return model.eval().requires_grad_(False)


def turned(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of keys or queries in the order of GGUF files, where the elements that turn together are neighbours."""
    size = len(rows) // heads
    return rows.reshape(heads, 2, size // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def blocks(levels: np.ndarray, factors: np.ndarray, bits: int) -> np.ndarray:
    """Rows of Q4_0 or Q8_0: the factor of each group before its levels."""
    grouped = levels.reshape(len(levels), -1, GROUP)
    if bits == 4:
        high = (grouped + 8).astype(np.uint8)
        stored = high[..., : GROUP // 2] | (high[..., GROUP // 2 :] << 4)
    else:
        stored = grouped.view(np.uint8)
    return np.concatenate([factors[..., None].view(np.uint8), stored], -1).reshape(len(levels), -1)


NAMES = {
    "attention.query": "attn_q", "attention.key": "attn_k", "attention.value": "attn_v",
    "attention.out": "attn_output", "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down",
}  # fmt: skip


def write(path: Path, model: Llama, config: Config, bits: int) -> None:
    """Write the model as a GGUF file."""
    import gguf

    kind = gguf.GGMLQuantizationType.Q4_0 if bits == 4 else gguf.GGMLQuantizationType.Q8_0
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(config.length)
    writer.add_embedding_length(config.width)
    writer.add_block_count(config.layers)
    writer.add_feed_forward_length(config.hidden)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.groups)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e4)
    writer.add_rope_dimension_count(config.width // config.heads)
    writer.add_vocab_size(config.vocabulary)
    writer.add_file_type(2 if bits == 4 else 7)
    _add_tokenizer(writer, config.vocabulary)

    def add(name: str, layer: Any, heads: int = 0) -> None:
        levels, factors = layer.levels, layer.factors
        if heads:
            levels, factors = turned(levels, heads), turned(factors, heads)
        writer.add_tensor(name, blocks(levels, factors, bits), raw_dtype=kind)

    writer.add_tensor("token_embd.weight", model.tokens.weight.float().numpy().astype(np.float16))
    writer.add_tensor("output_norm.weight", np.ones(config.width, np.float32))
    add("output.weight", model.head)
    for i, block in enumerate(model.blocks):
        for ours, theirs in NAMES.items():
            heads = {"attn_q": config.heads, "attn_k": config.groups}.get(theirs, 0)
            add(f"blk.{i}.{theirs}.weight", block.get_submodule(ours), heads)
        for theirs in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{i}.{theirs}.weight", np.ones(config.width, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: Any, count: int) -> None:
    """A vocabulary of bytes and names, which loading asks for; prompts are numbers of tokens."""
    visible = [chr(c) for c in (*range(33, 127), *range(161, 173), *range(174, 256))]
    letters = visible + [chr(256 + i) for i in range(256 - len(visible))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*letters, *(f"token{i}" for i in range(len(letters), count))])
    writer.add_token_types([1] * count)
    writer.add_token_merges(["t o"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)


def write_tokenizer(folder: Path) -> None:
    """A tokenizer of bytes, which a pipeline of OpenVINO asks for."""
    import openvino
    from openvino_tokenizers import convert_tokenizer
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    given = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token=letters[2], bos_token=letters[1])
    for name, model in zip(
        ("tokenizer", "detokenizer"), convert_tokenizer(given, with_detokenizer=True), strict=True
    ):
        openvino.save_model(model, folder / f"openvino_{name}.xml")


class Ours:
    """Prompts and tokens of our compiled model."""

    def __init__(self, model: Llama, rounded: bool) -> None:
        config = torchair.CompilerConfig()
        config.ge_config.quantise_activations = rounded
        backend = torchair.get_npu_backend(compiler_config=config)
        self.run = torch.compile(model, backend=backend, dynamic=False)
        self.place = PROMPT

    @torch.no_grad()
    def prompt(self) -> np.ndarray:
        """The logits after a prompt."""
        tokens = torch.arange(PROMPT)[None] % 251
        return self.run(tokens, torch.arange(PROMPT)).float().numpy()[0]

    @torch.no_grad()
    def token(self) -> None:
        """One token more."""
        self.place = PROMPT + (self.place + 1) % (LENGTH - PROMPT)
        self.run(torch.tensor([[self.place % 251]]), torch.tensor([self.place]))


class LlamaCpp:
    """The same of llama.cpp."""

    def __init__(self, path: Path, threads: int) -> None:
        from llama_cpp import Llama as Model

        self.model = Model(
            str(path), n_ctx=LENGTH, n_batch=PROMPT, n_threads=threads, n_threads_batch=threads, verbose=False
        )

    def prompt(self) -> np.ndarray:
        """The logits after a prompt."""
        self.model.reset()
        self.model.eval([i % 251 for i in range(PROMPT)])
        logits = self.model._ctx.get_logits()
        return np.ctypeslib.as_array(logits, shape=(self.model.n_vocab(),)).copy()

    def token(self) -> None:
        """One token more."""
        if self.model.n_tokens >= LENGTH - 1:
            self.model.n_tokens = PROMPT
        self.model.eval([self.model.n_tokens % 251])


class GenAi:
    """The same of OpenVINO GenAI, which times its own parts."""

    def __init__(self, path: Path, threads: int) -> None:
        import openvino
        import openvino_genai

        # Version 2026.4 writes the model of a GGUF file, but does not compile the tokenizer it makes of such a file.
        with contextlib.suppress(RuntimeError):
            openvino_genai.LLMPipeline(str(path), "CPU", enable_save_ov_model=True)
        write_tokenizer(path.parent)
        self.pipe = openvino_genai.LLMPipeline(str(path.parent), "CPU", INFERENCE_NUM_THREADS=threads)
        self.tensor, self.rng = openvino.Tensor, np.random.default_rng(0)

    def times(self, tokens: int = 16) -> tuple[float, float]:
        """Seconds of a prompt, another one each time, since those that begin alike share a cache, and of a token."""
        ids = self.tensor(self.rng.integers(3, 251, (1, PROMPT)))
        made = self.pipe.generate(ids, max_new_tokens=tokens, ignore_eos=True, do_sample=False)
        metrics = made.perf_metrics
        return metrics.get_ttft().mean / 1e3, metrics.get_tpot().mean / 1e3


def rows_of(precision: str, options: argparse.Namespace, folder: Path) -> list[list[str]]:
    """The lines of one precision: a token, and a prompt."""
    config, bits = QUICK if options.quick else SIZES, BITS[precision]
    if options.layers:
        config = Config(**{**vars(config), "layers": options.layers})
    model = model_of(config, bits)
    path = folder / f"{precision}.gguf"
    if options.peers:
        write(path, model, config, bits)
    weights = [m for m in model.modules() if isinstance(m, PackedLinear)]
    read = sum(m.weight.nbytes + m.factors.nbytes for m in weights)
    for m in weights:
        del m.levels, m.factors
    contenders: dict[str, Any] = {name: Ours(model, rounded) for name, rounded in OURS.items()}
    logits = {name: contenders[name].prompt() for name in OURS}
    if "llama.cpp" in options.peers:
        contenders["llama.cpp"] = LlamaCpp(path, options.threads)
        wanted = contenders["llama.cpp"].prompt()
        for name, found in logits.items():
            error = float(np.abs(found - wanted).max() / np.abs(wanted).max())
            console.print(
                f"{precision}, {name}: logits differ from llama.cpp's by {error:.1e} of the largest"
            )
            if not error <= TOLERANCE:
                raise SystemExit("the answers do not agree")
    calls: dict[str, dict[str, Callable[[], Any]]] = {
        part: {n: getattr(c, part) for n, c in contenders.items()} for part in ("token", "prompt")
    }
    times = {
        part: {n: statistics.median(t) for n, t in interleave(c, options.rounds, options.burst).items()}
        for part, c in calls.items()
    }
    if "openvino" in options.peers:
        genai = GenAi(path, options.threads)
        genai.times()
        found = [genai.times() for _ in range(options.rounds)]
        for at, part in enumerate(("prompt", "token")):
            times[part]["openvino"] = statistics.median(t[at] for t in found)
    share = read / min(times["token"][name] for name in OURS) / bandwidth(options.quick)
    lines = []
    for part, known in times.items():
        best = min((t for n, t in known.items() if n not in OURS), default=float("nan"))
        shown = [milliseconds(known[n]) if n in known else "–" for n in (*OURS, *PEERS)]
        ratios = [ratio(best / known[name]) for name in OURS]
        last = f"{share:.2f}" if part == "token" else "–"
        lines.append([f"{precision}, {part}", f"{read / 2**20:.0f} MiB", *shown, *ratios, last])
    return lines


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--precisions", nargs="+", default=list(BITS), choices=list(BITS))
    parser.add_argument("--peers", nargs="*", default=PEERS, choices=PEERS)
    parser.add_argument("--layers", type=int, default=0, help="fewer layers than 22")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--burst", type=float, default=0.5, help="seconds of a contender in a round")
    parser.add_argument("--quick", action="store_true", help="a tiny model, for checking the script")
    options = parser.parse_args()
    table = new_table(
        f"A Llama-like model, milliseconds a token and a prompt of {PROMPT}",
        ["", "weights", *OURS, *PEERS, "over the best", "rounded", "of memory"],
    )
    for precision in options.precisions:
        with tempfile.TemporaryDirectory() as folder:
            for line in rows_of(precision, options, Path(folder)):
                table.add_row(*line)
    console.print(table)


if __name__ == "__main__":
    main()
