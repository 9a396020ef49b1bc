"""Searches for text inside of a model: GreedySearch, Sampling, BeamSearch and WhisperBeamSearch.

A decoder in GPT-2's form runs on the prompt, then once per step in a loop of fixed shapes. A window of
`max_length - 1` places that fills from the end holds its keys and values; the mask hides empty places, as it hides the
padding of prompts.

A decoder behind an encoder (T5, Whisper) has no mask of its own tokens and knows their places by the size of its
cache. Its steps are therefore unrolled, each with a cache of one more token.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np

from ge.ir.values import desc_of
from ge.ops.builder import GraphBuilder
from ge.ops.flow.control import repeat, unroll
from ge.ops.microsoft.standard import DOMAIN, Writer
from ge.ops.plugins import Node, Results, Unsupported, plugin

MAX_STEPS = 256  # unrolled steps of a decoder behind an encoder
LOWEST = np.float32(np.finfo(np.float32).min)  # the score of a token that may not be chosen
GPT2, T5, WHISPER = 0, 1, 2  # the attribute `model_type`
FIRST_TIMES = 50  # Whisper's first time is one of the first ones
NO_BEAM = np.float32(-1e9)  # the score of beams that repeat the first one


@dataclass(frozen=True)
class Timestamps:
    """Whisper's tokens of times, which start at `first`, and those that never stand among them."""

    first: int
    never: tuple[int, ...]
    at_start_only: tuple[int, ...]


@dataclass(frozen=True)
class Search:
    """What the inputs and attributes of a search say."""

    rows: int  # texts, times beams
    prompt: int
    length: int  # of results
    end: int  # tokens
    padding: int
    least: int  # `min_length`
    penalty: Any  # of tokens that occur already; None without
    ngram: int  # tokens in a row that may not occur again
    vocabulary_mask: Any
    first_mask: Any
    temperature: Any = None
    timestamps: Timestamps | None = None


def _search(n: Node, tokens: Any, penalty: int) -> Search:
    """The parameters; `penalty` is the index of the input `repetition_penalty`, before the masks of the vocabulary."""
    rows, prompt = desc_of(tokens).shape
    length = n.ints(1, "the greatest length")[0]
    if not 0 < prompt < length:
        raise Unsupported(f"a prompt of {prompt} tokens leaves no room in a text of {length}")
    factor = n.maybe_const(penalty)
    one = n.input(penalty) is None or (factor is not None and float(factor.reshape(-1)[0]) == 1)
    return Search(
        rows, prompt, length, int(n.attr("eos_token_id")), int(n.attr("pad_token_id")),
        n.ints(2, "the least length")[0] if n.input(2) is not None else 0,
        None if one else n.input(penalty),
        int(n.attr("no_repeat_ngram_size", 0)), n.input(penalty + 1), n.input(penalty + 2),
    )  # fmt: skip


# -- decoders --------------------------------------------------------------------------------------------------


class Decoder(Protocol):
    """The network that scores the next token, and its state."""

    unrolled: ClassVar[bool]  # whether the shapes of its state change from step to step

    def prompt(self, w: Writer, s: Search, tokens: Any) -> tuple[Any, list[Any]]:
        """The scores of the first token, and the state."""

    def step(self, w: Writer, s: Search, tokens: Any, state: list[Any]) -> tuple[Any, list[Any]]:
        """The scores after one more token, and the new state."""

    def chosen(self, w: Writer, state: list[Any], beams: Any) -> list[Any]:
        """The states of the beams that go on."""


@dataclass(frozen=True)
class _Gpt2:
    """A decoder alone; its state is position, mask, keys and values."""

    mask: Any = None
    unrolled: ClassVar[bool] = False

    def prompt(self, w: Writer, s: Search, tokens: Any) -> tuple[Any, list[Any]]:
        shown = w.cast(w.op("Not", w.op("Equal", tokens, np.int32(s.padding))), "int32")
        mask = shown if self.mask is None else self.mask
        counted = w.op("CumSum", shown, np.int64(1))
        places = w.op("Mul", w.op("Sub", counted, np.int32(1)), shown)
        graph = w.node.attr("init_decoder") or w.node.attr("decoder")
        pasts = [_empty(w, port, 5, (2, s.rows)) for port in graph.input[3:]]
        logits, *keys = w.body(graph, [tokens, places, mask, *pasts])
        window = s.length - 1
        kept = [w.op("Pad", k, np.array([0, 0, 0, window - s.prompt, 0] + [0] * 5)) for k in keys]
        mask = w.op("Pad", mask, np.array([0, window - s.prompt, 0, 0]))
        position = w.part(counted, 1, s.prompt - 1, s.prompt)
        return _last(w, logits), [position, mask, *kept]

    def step(self, w: Writer, s: Search, tokens: Any, state: list[Any]) -> tuple[Any, list[Any]]:
        position, mask, *keys = state
        one = w.builder.constant(np.ones((s.rows, 1), np.int32))
        mask = w.op("Concat", mask, one, axis=1)
        logits, *present = w.body(w.node.attr("decoder"), [tokens, position, mask, *keys])
        kept = [w.part(k, 3, 1, s.length) for k in present]
        position = w.op("Add", position, np.int32(1))
        return _last(w, logits), [position, w.part(mask, 1, 1, s.length), *kept]

    def chosen(self, w: Writer, state: list[Any], beams: Any) -> list[Any]:
        return [w.op("Gather", v, beams, axis=1 if i >= 2 else 0) for i, v in enumerate(state)]


@dataclass
class _Behind:
    """A decoder behind an encoder; its state is the keys and values of its own tokens.

    Those of the encoder's places belong to a text of the batch, not to a beam, and stay as they are.
    """

    source: Any  # text or sound, for each text of the batch
    mask: Any  # of the source; None for sound
    beams: int
    fixed: dict[str, Any] = field(default_factory=dict)  # other inputs of the decoder, for each beam
    unrolled: ClassVar[bool] = True

    def prompt(self, w: Writer, s: Search, tokens: Any) -> tuple[Any, list[Any]]:
        encoder, ports = w.node.attr("encoder"), _behind_ports(w)
        own = [name for name in ports if "_self_" in name]
        given = [self.source] if self.mask is None else [self.source, self.mask]
        if self.mask is not None:
            self.fixed["encoder_attention_mask"] = self._beamed(w, self.mask)
        first = len(encoder.input) > len(given)  # whether the encoder holds the first pass of the decoder
        prompt = w.op("Gather", tokens, np.arange(0, s.rows, self.beams), axis=0)
        results = w.body(encoder, [*given, prompt] if first else given)
        if first:
            logits, hidden, *results = results
            self.fixed["encoder_hidden_states"] = self._beamed(w, hidden)
        kept = [self._beamed(w, v) for v in (results[: len(own)] if first else ())]
        across = [name for name in ports if "_cross_" in name]
        results = results[len(kept) :]
        if len(results) != len(across):
            raise Unsupported(f"an encoder with {len(results)} caches for a decoder that reads {len(across)}")
        self.fixed |= {name: self._beamed(w, v) for name, v in zip(across, results, strict=True)}
        if first:
            return self._beamed(w, _last(w, logits)), kept
        pasts = [_empty(w, ports[name], 4, (s.rows,)) for name in own]
        return self._run(w, s, tokens, pasts)

    def step(self, w: Writer, s: Search, tokens: Any, state: list[Any]) -> tuple[Any, list[Any]]:
        ids = _behind_ports(w)["input_ids"].type.tensor_type.shape.dim
        if len(ids) != 2 or ids[1].dim_value != 1:
            raise Unsupported(
                "a decoder that reads the whole text", "export its input_ids with the shape (batch, 1)"
            )
        return self._run(w, s, tokens, state)

    def chosen(self, w: Writer, state: list[Any], beams: Any) -> list[Any]:
        return [w.op("Gather", v, beams, axis=0) for v in state]

    def _run(self, w: Writer, s: Search, tokens: Any, state: list[Any]) -> tuple[Any, list[Any]]:
        ports = _behind_ports(w)
        values = self.fixed | {"input_ids": tokens}
        values |= dict(zip((name for name in ports if "_self_" in name), state, strict=True))
        if missing := [name for name in ports if name not in values]:
            raise Unsupported(f"a decoder with the input {missing[0]}")
        logits, *present = w.body(w.node.attr("decoder"), [values[name] for name in ports])
        return _last(w, logits), present

    def _beamed(self, w: Writer, x: Any) -> Any:
        """x of every text of the batch, for every beam."""
        rows = np.arange(desc_of(x).shape[0]).repeat(self.beams)
        return x if self.beams == 1 else w.op("Gather", x, rows, axis=0)


def _behind_ports(w: Writer) -> dict[str, Any]:
    return {port.name: port for port in w.node.attr("decoder").input}


def _empty(w: Writer, port: Any, rank: int, rows: tuple[int, ...]) -> Any:
    """No keys or values; their shape is (rows, heads, places, size)."""
    kind = port.type.tensor_type
    dims = [d.dim_value for d in kind.shape.dim]
    if len(dims) != rank or not (dims[-3] and dims[-1]):
        raise Unsupported(
            f"input {port.name} of the decoder does not tell its heads and their size",
            f"export it with the shape ({'2, ' if rank == 5 else ''}batch, heads, past, size)",
        )
    import onnx

    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
    return w.builder.constant(np.zeros((*rows, dims[-3], 0, dims[-1]), dtype))


def _last(w: Writer, logits: Any) -> Any:
    """The scores of the last place, in float32."""
    rows, places, size = desc_of(logits).shape
    size = min(size, known) if (known := int(w.node.attr("vocab_size", -1))) > 0 else size
    return w.cast(w.reshape(w.part(w.part(logits, 1, places - 1, places), 2, 0, size), rows, size), "float32")


# -- scores ----------------------------------------------------------------------------------------------------


def _allowed(w: Writer, s: Search, scores: Any, text: Any, length: Any, first: bool) -> Any:
    """The scores under the rules of the search, for texts of `length` tokens."""
    size = desc_of(scores).shape[1]
    none = w.builder.constant(np.zeros((s.rows, size), np.int32))
    places = np.arange(s.length)
    if s.penalty is not None:
        there = w.cast(w.op("Less", places[None].repeat(s.rows, 0), length), "int32")
        seen = w.cast(w.op("ScatterElements", none, text, there, axis=1, reduction="max"), "bool")
        lowered = w.op("Mul", scores, s.penalty), w.op("Div", scores, s.penalty)
        lowered = w.op("Where", w.op("Less", scores, np.float32(0)), *lowered)
        scores = w.op("Where", seen, lowered, scores)
    if 0 < s.ngram <= s.length:
        banned = _repeated(w, s, text, length, none)
        scores = w.op("Where", banned, LOWEST, scores)
    for mask in (s.vocabulary_mask, s.first_mask if first else None):
        if mask is not None:
            texts = desc_of(mask).size // size  # one, or a row for each text
            mask = w.op("Expand", w.reshape(mask, texts, 1, size), np.array([texts, s.rows // texts, size]))
            mask = w.reshape(mask, s.rows, size)
            scores = w.op("Where", w.op("Equal", mask, np.int32(0)), LOWEST, scores)
    if s.least > 0:
        ended = w.builder.constant(np.arange(size)[None] == s.end)
        short = w.op("Less", length, np.int64(s.least))
        scores = w.op("Where", w.op("And", ended, short), LOWEST, scores)
    if s.temperature is not None:
        scores = w.op("Div", scores, s.temperature)
    return scores if s.timestamps is None else _timed(w, s, s.timestamps, scores, text, length)


def _timed(w: Writer, s: Search, t: Timestamps, scores: Any, text: Any, length: Any) -> Any:
    """The scores under the rules of times: they come in pairs, do not decrease, and the first one is early."""
    size = desc_of(scores).shape[1]
    token, place = np.arange(size)[None], np.arange(s.length)[None]
    there = w.op("Less", place, length)
    times = w.op("And", w.op("GreaterOrEqual", text, np.int32(t.first)), there)
    begun = w.op("ReduceMin", w.op("Where", times, place + 1, length), np.array([1]), keepdims=1)
    at_start = w.op("Equal", begun, length)
    last, before = (
        w.reshape(
            w.op("Gather", times, w.op("Max", w.op("Sub", length, np.int64(back)), np.int64(0)), axis=1),
            s.rows,
            1,
        )
        for back in (1, 2)
    )
    before = w.op("Or", before, at_start)
    lone = w.op("And", last, w.op("Not", before))
    latest = w.op("ReduceMax", w.op("Where", times, place, np.int64(-1)), np.array([1]), keepdims=1)
    latest_token = w.op("GatherElements", text, w.op("Max", latest, np.int64(0)), axis=1)
    least = w.op("Add", w.cast(latest_token, "int64"), w.cast(w.op("Not", lone), "int64"))
    least = w.op("Where", w.op("Less", latest, np.int64(0)), np.int64(t.first), least)
    constant = w.builder.constant
    is_time, low = constant(token >= t.first), w.op("Less", token, least)
    banned = [
        constant(np.isin(token, t.never)),
        w.op("And", constant(np.isin(token, t.at_start_only)), w.op("Not", at_start)),
        w.op("And", is_time, w.op("And", last, before)),
        w.op("And", constant(token < s.end), lone),
        w.op("And", is_time, low),
        w.op("And", constant(token > t.first + FIRST_TIMES), at_start),
    ]
    for mask in banned:
        scores = w.op("Where", mask, LOWEST, scores)
    # a time, if times together are more probable than every word
    together = w.op("ReduceLogSumExp", w.part(scores, 1, t.first, size), np.array([1]), keepdims=1)
    word = w.op("ReduceMax", w.part(scores, 1, 0, t.first), np.array([1]), keepdims=1)
    return w.op("Where", w.op("And", w.op("Less", word, together), constant(token < t.first)), LOWEST, scores)


def _repeated(w: Writer, s: Search, text: Any, length: Any, none: Any) -> Any:
    """The tokens that would complete a row of tokens that occurs already."""
    count = s.length - s.ngram + 1  # places where a row may start
    start = w.op("Sub", length, np.int64(s.ngram - 1))
    fits = w.op("LessOrEqual", np.arange(count)[None], w.op("Sub", length, np.int64(s.ngram)))
    same = w.op("Expand", fits, np.array([s.rows, count]))
    for index in range(s.ngram - 1):
        place = w.op("Max", w.op("Add", start, np.int64(index)), np.int64(0))
        wanted = w.op("Gather", text, w.reshape(place, 1), axis=1)
        same = w.op("And", same, w.op("Equal", w.part(text, 1, index, index + count), wanted))
    final = w.part(text, 1, s.ngram - 1, s.length)
    found = w.op("ScatterElements", none, final, w.cast(same, "int32"), axis=1, reduction="max")
    return w.cast(found, "bool")


def _written(w: Writer, s: Search, text: Any, place: Any, tokens: Any) -> Any:
    """The texts with a token (rows, 1) at a place."""
    return w.op("Where", w.op("Equal", np.arange(s.length)[None], place), tokens, text)


def _started(w: Writer, s: Search, tokens: Any) -> Any:
    return w.op("Pad", tokens, np.array([0, 0, 0, s.length - s.prompt]), np.int32(s.padding))


# -- the loop ---------------------------------------------------------------------------------------------------

# (writer, scores, states, length of the texts, whether it is the first step) -> next tokens, their beams, states
Choose = Callable[[Writer, Any, list[Any], Any, bool], tuple[Any, Any, list[Any]]]


def _run(n: Node, s: Search, decoder: Decoder, tokens: Any, states: list[Any], choose: Choose) -> list[Any]:
    """The states of the search after the last step; the first one is the text."""
    w = Writer(n, n.builder)
    steps = s.length - s.prompt - 1
    if decoder.unrolled and steps > MAX_STEPS:
        raise Unsupported(
            f"a text of {s.length} tokens: the steps of a decoder behind an encoder are unrolled, {MAX_STEPS} at most",
            "lower max_length",
        )
    scores, state = decoder.prompt(w, s, tokens)
    count = len(state)

    def chosen(
        w: Writer, scores: Any, state: list[Any], states: list[Any], length: Any, first: bool
    ) -> list[Any]:
        tokens, beams, states = choose(w, scores, states, length, first)
        return [tokens, *(state if beams is None else decoder.chosen(w, state, beams)), *states]

    def step(builder: GraphBuilder, counter: Any, values: list[Any]) -> tuple[list[Any], list[Any]]:
        inner = Writer(n, builder)
        states = values[1 + count :]
        scores, state = decoder.step(inner, s, values[0], values[1 : 1 + count])
        length = inner.op("Add", counter, np.int64(s.prompt + 1))
        return chosen(inner, scores, state, states, length, False), []

    begun = chosen(w, scores, state, states, n.builder.constant(np.int64(s.prompt)), True)
    ended, _ = (unroll if decoder.unrolled else repeat)(n.builder, steps, begun, step)
    return ended[1 + count :]


# (writer, allowed scores, states) -> the next tokens (rows, 1), states
Pick = Callable[[Writer, Any, list[Any]], tuple[Any, list[Any]]]


def _single(n: Node, s: Search, pick: Pick, states: list[Any]) -> Any:
    """The texts of a search without beams; a text that has ended goes on with padding."""
    w = Writer(n, n.builder)

    def choose(
        w: Writer, scores: Any, states: list[Any], length: Any, first: bool
    ) -> tuple[Any, Any, list[Any]]:
        text, done, *own = states
        token, own = pick(w, _allowed(w, s, scores, text, length, first), own)
        done = w.op("Or", done, w.op("Equal", token, np.int32(s.end)))
        tokens = w.op("Where", done, np.int32(s.padding), token)
        return tokens, None, [_written(w, s, text, length, tokens), done, *own]

    done = n.builder.constant(np.zeros((s.rows, 1), bool))
    begun = [_started(w, s, n.inputs[0]), done, *states]
    return _run(n, s, _Gpt2(n.input(6)), n.inputs[0], begun, choose)[0]


def _alone(n: Node) -> Search:
    """The parameters of a search without beams, over a decoder without encoder."""
    if int(n.attr("model_type", GPT2)) != GPT2 or n.attr("encoder") is not None:
        raise Unsupported(f"{n.type} over an encoder and a decoder", "use BeamSearch with one beam")
    return _search(n, n.inputs[0], 3)


@plugin(onnx="GreedySearch", domain=DOMAIN)
def _greedy(n: Node) -> Results:
    """The best token of every step."""

    def pick(w: Writer, scores: Any, states: list[Any]) -> tuple[Any, list[Any]]:
        return w.cast(w.op("ArgMax", scores, axis=1, keepdims=1), "int32"), states

    return _single(n, _alone(n), pick, [])


@plugin(onnx="Sampling", domain=DOMAIN)
def _sampling(n: Node) -> Results:
    """A token of every step, drawn from the most probable ones. The seed decides the numbers of every run."""
    if n.outputs > 1:
        raise Unsupported("the filtered scores", "leave out the output `filtered_logits`")
    temperature, top = float(n.attr("temperature", 1.0)), float(n.attr("top_p", 0.0))
    if temperature <= 0:
        raise Unsupported(f"a temperature of {temperature:g}", "use GreedySearch for the best tokens")
    least, custom = int(n.attr("min_tokens_to_keep", 0)), bool(n.attr("custom", 0))
    if least < 0 or (top <= 0 and not least and not custom):
        raise Unsupported(f"top_p {top:g} and min_tokens_to_keep {least} leave no token", "raise top_p")
    penalty = float(n.attr("presence_penalty", 0.0))
    lowered = None
    if penalty and n.input(7) is not None:
        lowered = n.op("Mul", n.op("Cast", n.input(7), to="float32"), penalty)
    nucleus = _Nucleus(top, least, float(n.attr("filter_value", -1e20)), custom)

    def pick(w: Writer, scores: Any, states: list[Any]) -> tuple[Any, list[Any]]:
        scores = w.op("Div", scores, np.float32(temperature))
        return nucleus.draw(w, scores if lowered is None else w.op("Sub", scores, lowered), states[0])

    return _single(n, _alone(n), pick, [_random_state(n)])


def _random_state(n: Node) -> Any:
    """Key and counter of the first draw; the key is the seed, or 0 as in ONNX Runtime."""
    if n.input(8) is None:
        return n.builder.constant(np.zeros(2, np.int64))
    given = n.maybe_const(8)
    if given is not None and int(given.reshape(-1)[0]) < 0:
        raise Unsupported(f"the seed {int(given.reshape(-1)[0])} is negative")
    seed = n.op("Reshape", n.op("Cast", n.input(8), to="int64"), shape=[1])
    return n.op("Concat", seed, np.zeros(1, np.int64), axis=0)


@dataclass(frozen=True)
class _Nucleus:
    """The most probable tokens of a share `top`, at least `least` of them; the others get the score `filler`.

    Of equal scores the last one counts as the more probable, with `custom` the first one. `custom` knows no `least`.
    """

    top: float
    least: int
    filler: float
    custom: bool

    def draw(self, w: Writer, scores: Any, state: Any) -> tuple[Any, list[Any]]:
        rows, size = desc_of(scores).shape
        if self.least >= size:
            raise Unsupported(f"min_tokens_to_keep {self.least} of a vocabulary of {size}", "lower it")
        tokens = np.arange(size) if self.custom else np.arange(size)[::-1].copy()
        scores = w.op("Gather", scores, tokens, axis=1)
        scores, order = w.ops("TopK", scores, np.array([size]), outputs=2, axis=1)
        if self.top < 1:
            better = w.op("CumSum", w.op("Softmax", scores, axis=1), np.int64(1), exclusive=1)
            if self.custom:
                dropped = w.op("Greater", better, np.float32(max(self.top, 0)))
            else:
                late = np.broadcast_to(np.arange(size) >= self.least, (rows, size)).copy()
                dropped = w.op("And", w.op("GreaterOrEqual", better, np.float32(self.top)), late)
            scores = w.op("Where", dropped, np.float32(self.filler), scores)
        place, after = w.builder.ops("Multinomial", [scores, state], samples=1, dtype="int64")
        token = w.op("Gather", tokens, w.op("GatherElements", order, place, axis=1), axis=0)
        return w.cast(token, "int32"), [after]


# -- beams -----------------------------------------------------------------------------------------------------


@plugin(onnx="BeamSearch", domain=DOMAIN)
def _beams(n: Node) -> Results:
    """The best texts by the sum of their tokens' logarithms over their length to the power of a penalty."""
    if n.input(10) is not None or n.input(11) is not None:
        raise Unsupported("forced tokens and processors of scores are not supported")
    beams, w = _number_of_beams(n), Writer(n, n.builder)
    if n.attr("encoder") is None:
        rows = np.arange(n.desc().shape[0]).repeat(beams)
        tokens = n.op("Gather", n.inputs[0], rows, axis=0)
        mask = None if n.input(9) is None else n.op("Gather", n.input(9), rows, axis=0)
        return _best_texts(n, _search(n, tokens, 6), _Gpt2(mask), tokens, beams)
    mask = n.input(9)
    if mask is None:
        words = w.op("Not", w.op("Equal", n.inputs[0], np.int32(n.attr("pad_token_id"))))
        counted = w.op("CumSum", w.cast(words, "int32"), np.int64(1))
        mask = w.op(
            "Min", counted, np.int32(1)
        )  # as in ONNX Runtime, which hides padding before the first word
    tokens = _start(n, beams)
    return _best_texts(n, _search(n, tokens, 6), _Behind(n.inputs[0], mask, beams), tokens, beams)


@plugin(onnx="WhisperBeamSearch", domain=DOMAIN)
def _whisper(n: Node) -> Results:
    """The texts of a sound, whose tokens may be times."""
    if n.outputs > 2:
        raise Unsupported(
            "the scores of every step, cross attention and the probability of silence", "leave them out"
        )
    if n.input(13) is not None or n.attr("decoder_output_cross_qk", 0):
        raise Unsupported("the products of cross attention", "export without collect_cross_qk")
    beams = _number_of_beams(n)
    rows = np.arange(n.desc().shape[0]).repeat(beams)
    tokens = _start(n, beams) if n.input(10) is None else n.op("Gather", n.input(10), rows, axis=0)
    s = dataclasses.replace(
        _search(n, tokens, 6), temperature=n.input(14), timestamps=_timestamps(n) if _with_times(n) else None
    )
    return _best_texts(n, s, _Behind(n.inputs[0], None, beams), tokens, beams)


def _with_times(n: Node) -> bool:
    return n.input(11) is not None and n.ints(11, "the processor of scores")[0] == 1


def _timestamps(n: Node) -> Timestamps:
    def token(name: str) -> int:
        if (value := int(n.attr(name, -1))) < 0:
            raise Unsupported(f"times without the attribute {name}")
        return value

    return Timestamps(
        token("beginning_timestamp_token_id"),
        (token("no_timestamps_token_id"), token("start_of_lm_token_id")),
        tuple(map(token, ("decoder_start_token_id", "translate_token_id", "transcribe_token_id"))),
    )


def _number_of_beams(n: Node) -> int:
    return n.ints(3, "the number of beams")[0]


def _start(n: Node, beams: int) -> Any:
    """The token that begins a text behind an encoder."""
    token = int(n.attr("decoder_start_token_id", -1))
    if token < 0:
        raise Unsupported("an encoder without the attribute decoder_start_token_id")
    return n.builder.constant(np.full((n.desc().shape[0] * beams, 1), token, np.int32))


def _best_texts(n: Node, s: Search, decoder: Decoder, tokens: Any, beams: int) -> Results:
    if n.outputs > 2:
        raise Unsupported("the scores of every step", "leave out the output `scores`")
    wanted = n.ints(4, "the number of texts")[0]
    if not 1 <= wanted <= beams:
        raise Unsupported(f"{wanted} texts of {beams} beams")
    w = Writer(n, n.builder)
    power = n.input(5) if n.input(5) is not None else n.builder.constant(np.float32(1))
    score = _Scorer(s, s.rows // beams, beams, power, bool(n.attr("early_stopping", 0)))
    ended = _run(n, s, decoder, tokens, score.begin(w, tokens), score.choose)
    return score.finish(w, ended, wanted)[: n.outputs]


@dataclass(frozen=True)
class _Scorer:
    """Beams and the best texts that have ended.

    Its states are the beams' texts and scores; texts that have ended, their scores, how many there are, and whether
    the search is over, for every text of the batch.
    """

    search: Search
    batch: int
    beams: int
    power: Any
    early: bool

    def begin(self, w: Writer, tokens: Any) -> list[Any]:
        shape = (self.batch, self.beams)
        first = np.full(shape, NO_BEAM, np.float32)
        first[:, 0] = 0
        constant = w.builder.constant
        text = np.full((*shape, self.search.length), self.search.padding, np.int32)
        return [
            _started(w, self.search, tokens), constant(first), constant(text), constant(np.full(shape, LOWEST)),
            constant(np.zeros((self.batch, 1), np.int32)), constant(np.zeros((self.batch, 1), bool)),
        ]  # fmt: skip

    def _weighed(self, w: Writer, scores: Any, length: Any) -> Any:
        return w.op("Div", scores, w.op("Pow", w.cast(length, "float32"), self.power))

    def choose(
        self, w: Writer, scores: Any, states: list[Any], length: Any, first: bool
    ) -> tuple[Any, Any, list[Any]]:
        """The best tokens that do not end their text are the next ones; those that do are kept as texts."""
        s, batch, beams = self.search, self.batch, self.beams
        text, sums, ended, ended_scores, count, done = states
        size = desc_of(scores).shape[1]
        scores = _allowed(w, s, w.op("LogSoftmax", scores, axis=1), text, length, first)
        scores = w.op("Add", w.reshape(scores, batch, beams, size), w.reshape(sums, batch, beams, 1))
        best, places = w.ops(
            "TopK", w.reshape(scores, batch, beams * size), np.array([2 * beams]), outputs=2, axis=1
        )
        beam, token = w.op("Div", places, np.int64(size)), w.op("Mod", places, np.int64(size))
        ends = w.op("Equal", token, np.int64(s.end))
        # texts that have ended
        open_ = w.op("Not", done)
        ranked = w.op("And", ends, np.arange(2 * beams)[None] < beams)
        new = w.part(w.op("And", ranked, open_), 1, 0, beams)
        marks = w.op("Where", new, self._weighed(w, w.part(best, 1, 0, beams), length), LOWEST)
        lines = w.op("Add", w.part(beam, 1, 0, beams), np.arange(batch)[:, None] * beams)
        texts = w.op("Gather", text, lines, axis=0)
        ended, ended_scores = self._best(w, [ended, texts], [ended_scores, marks], beams)
        added = w.op("ReduceSum", w.cast(new, "int32"), np.array([1]), keepdims=1)
        count = w.op("Min", w.op("Add", count, added), np.int32(beams))
        over = w.op("Equal", count, np.int32(beams))
        if not self.early:
            worst = w.part(ended_scores, 1, beams - 1, beams)
            hope = self._weighed(w, w.part(best, 1, 0, 1), length)
            over = w.op("And", over, w.op("GreaterOrEqual", worst, hope))
        # the next tokens
        order = w.op("Where", ends, np.float32(-4 * beams), -np.arange(2 * beams, dtype=np.float32)[None])
        _, kept = w.ops("TopK", order, np.array([beams]), outputs=2, axis=1)
        best, beam, token = (w.op("GatherElements", v, kept, axis=1) for v in (best, beam, token))
        best = w.op("Where", done, np.float32(0), best)
        beam = w.op("Where", done, np.int64(0), beam)
        token = w.op("Where", done, np.int64(s.padding), token)
        lines = w.reshape(w.op("Add", beam, np.arange(batch)[:, None] * beams), s.rows)
        tokens = w.reshape(w.cast(token, "int32"), s.rows, 1)
        text = _written(w, s, w.op("Gather", text, lines, axis=0), length, tokens)
        return tokens, lines, [text, best, ended, ended_scores, count, w.op("Or", done, over)]

    def _best(self, w: Writer, texts: list[Any], scores: list[Any], count: int) -> tuple[Any, Any]:
        """The best of earlier and new texts, by their scores."""
        scores_, order = w.ops("TopK", w.op("Concat", *scores, axis=1), np.array([count]), outputs=2, axis=1)
        order = w.op("Expand", w.reshape(order, self.batch, count, 1), np.array([1, 1, self.search.length]))
        return w.op("GatherElements", w.op("Concat", *texts, axis=1), order, axis=1), scores_

    def finish(self, w: Writer, states: list[Any], wanted: int) -> tuple[Any, Any]:
        """The best texts, of those that have ended and the beams of searches that are not over."""
        text, sums, ended, ended_scores, _, done = states
        last = self._weighed(w, sums, w.builder.constant(np.int64(self.search.length)))
        last = w.op("Where", done, LOWEST, last)
        texts = w.reshape(text, self.batch, self.beams, self.search.length)
        return self._best(w, [ended, texts], [ended_scores, last], wanted)
