"""WhisperBeamSearch and BeamSearch over a small encoder and decoder: the tokens of ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ge

onnxruntime = pytest.importorskip("onnxruntime")

VOCABULARY, WIDTH, HEADS, PLACES = 120, 8, 2, 128
FEATURES, FRAMES, LAYERS = 6, 5, 2
END, PADDING, START = 4, 3, 5
SIZE = WIDTH // HEADS

DECODER = """
  c0 = Constant <value = int64[1] {0}> ()
  c1 = Constant <value = int64[1] {1}> ()
  n0 = Constant <value = int64 {0}> ()
  n1 = Constant <value = int64 {1}> ()
  split = Constant <value = int64[4] {0, 0, HEADS, SIZE}> ()
  merge = Constant <value = int64[3] {0, 0, WIDTH}> ()
  scale = Constant <value_float = 0.5> ()
  far = Constant <value_float = -10000.0> ()
  one = Constant <value_float = 1.0> ()
  len0 = Shape <start = 1, end = 2> (TOKENS)
  PAST
  total = Add (past, len0)
  past_ = Squeeze (past, c0)
  total_ = Squeeze (total, c0)
  range = Range (past_, total_, n1)
  places = Gather (place_table, range)
  embedded = Gather (token_table, TOKENS)
  x_0 = Add (embedded, places)
  square = Concat <axis = 0> (len0, total)
  ones = ConstantOfShape <value = float[1] {1}> (square)
  above = Add (past_, n1)
  hidden_places = Trilu <upper = 1> (ones, above)
  causal = Mul (hidden_places, far)
"""
LAYER = """
  q0_I = MatMul (x_I, self_q_I)
  q1_I = Reshape (q0_I, split)
  q_I = Transpose <perm = [0, 2, 1, 3]> (q1_I)
  k0_I = MatMul (x_I, self_k_I)
  k1_I = Reshape (k0_I, split)
  k_I = Transpose <perm = [0, 2, 1, 3]> (k1_I)
  v0_I = MatMul (x_I, self_v_I)
  v1_I = Reshape (v0_I, split)
  v_I = Transpose <perm = [0, 2, 1, 3]> (v1_I)
  CACHE
  kt_I = Transpose <perm = [0, 1, 3, 2]> (present_key_self_I)
  s0_I = MatMul (q_I, kt_I)
  s1_I = Mul (s0_I, scale)
  s_I = Add (s1_I, causal)
  a_I = Softmax (s_I)
  y0_I = MatMul (a_I, present_value_self_I)
  y1_I = Transpose <perm = [0, 2, 1, 3]> (y0_I)
  y2_I = Reshape (y1_I, merge)
  y_I = Add (x_I, y2_I)
  cq0_I = MatMul (y_I, cross_q_I)
  cq1_I = Reshape (cq0_I, split)
  cq_I = Transpose <perm = [0, 2, 1, 3]> (cq1_I)
  ckt_I = Transpose <perm = [0, 1, 3, 2]> (KEYS)
  cs0_I = MatMul (cq_I, ckt_I)
  cs1_I = Mul (cs0_I, scale)
  MASK
  ca_I = Softmax (cs_I)
  cy0_I = MatMul (ca_I, VALUES)
  cy1_I = Transpose <perm = [0, 2, 1, 3]> (cy0_I)
  cy2_I = Reshape (cy1_I, merge)
  x_J = Add (y_I, cy2_I)
"""
CROSS = """
  ck0_I = MatMul (encoder_hidden_states, cross_k_I)
  ck1_I = Reshape (ck0_I, split)
  present_key_cross_I = Transpose <perm = [0, 2, 1, 3]> (ck1_I)
  cv0_I = MatMul (encoder_hidden_states, cross_v_I)
  cv1_I = Reshape (cv0_I, split)
  present_value_cross_I = Transpose <perm = [0, 2, 1, 3]> (cv1_I)
"""
FIRST = "present_key_self_I = Identity (k_I)\n present_value_self_I = Identity (v_I)"
LATER = """present_key_self_I = Concat <axis = 2> (past_key_self_I, k_I)
  present_value_self_I = Concat <axis = 2> (past_value_self_I, v_I)"""
MASKED = """m0_I = Cast <to = 1> (encoder_attention_mask)
  m1_I = Sub (one, m0_I)
  m2_I = Mul (m1_I, far)
  m3_I = Unsqueeze (m2_I, c1)
  m4_I = Unsqueeze (m3_I, c1)
  cs_I = Add (cs1_I, m4_I)"""


def caches(kind: str, place: str, length: str) -> list[str]:
    return [
        f"float[b, {HEADS}, {length}, {SIZE}] {kind}_{part}_{place}_{i}"
        for i in range(LAYERS)
        for part in ("key", "value")
    ]


def weights(seed: int, sharpness: float, text: bool) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    made = {
        "token_table": rng.standard_normal((VOCABULARY, WIDTH)),
        "place_table": rng.standard_normal((PLACES, WIDTH)),
        "back": rng.standard_normal((WIDTH, VOCABULARY)) * sharpness,
        "hear": rng.standard_normal((VOCABULARY if text else FEATURES, WIDTH)),
    }
    for i in range(LAYERS):
        for name in ("self_q", "self_k", "self_v", "cross_q", "cross_k", "cross_v"):
            made[f"{name}_{i}"] = rng.standard_normal((WIDTH, WIDTH)) * 0.6
    return {name: np.asarray(value, np.float32) for name, value in made.items()}


def graphs(
    text: bool, stored: dict[str, np.ndarray], length: str = "1"
) -> tuple[onnx.GraphProto, onnx.GraphProto]:
    """The encoder with the first pass of the decoder, and the decoder; of words if `text`, else of frames."""
    hidden = f"float[b, e, {WIDTH}] encoder_hidden_states"
    mask = "int32[b, e] encoder_attention_mask"

    def layers(cache: str, keys: str, values: str, before: str = "") -> str:
        masked = MASKED if text else "cs_I = Identity (cs1_I)"
        rows = []
        for i in range(LAYERS):
            row = before + LAYER.replace("CACHE", cache).replace("KEYS", keys).replace("VALUES", values)
            rows.append(row.replace("MASK", masked).replace("_I", f"_{i}").replace("_J", f"_{i + 1}"))
        rows.append(f"logits = MatMul (x_{LAYERS}, back)")
        return "\n".join(rows)

    def parsed(header: str, body: str) -> onnx.GraphProto:
        for name, value in (("HEADS", HEADS), ("SIZE", SIZE), ("WIDTH", WIDTH)):
            body = body.replace(name, str(value))
        graph = onnx.parser.parse_graph(f"g {header} {{ {body} }}")
        used = {name for node in graph.node for name in node.input}
        graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in stored.items() if k in used)
        return graph

    inputs = (
        ["int32[b, e] encoder_input_ids", mask] if text else [f"float[b, {FEATURES}, f] encoder_input_ids"]
    )
    inputs.append("int32[b, s] decoder_input_ids")
    heard = "encoder_hidden_states = Gather (hear, encoder_input_ids)"
    if not text:
        heard = """heard = Transpose <perm = [0, 2, 1]> (encoder_input_ids)
          encoder_hidden_states = MatMul (heard, hear)"""
    outputs = [f"float[b, s, {VOCABULARY}] logits", hidden]
    outputs += caches("present", "self", "s") + caches("present", "cross", "e")
    body = DECODER.replace("TOKENS", "decoder_input_ids").replace("PAST", "past = Identity (c0)") + heard
    body += layers(FIRST, "present_key_cross_I", "present_value_cross_I", CROSS)
    encoder = parsed(f"({', '.join(inputs)}) => ({', '.join(outputs)})", body)

    inputs = [f"int32[b, {length}] input_ids", *([mask] if text else []), hidden]
    inputs += caches("past", "self", "p") + caches("past", "cross", "e")
    outputs = [f"float[b, {length}, {VOCABULARY}] logits", *caches("present", "self", "t")]
    shape = "past = Shape <start = 2, end = 3> (past_key_self_0)"
    body = DECODER.replace("TOKENS", "input_ids").replace("PAST", shape)
    body += layers(LATER, "past_key_cross_I", "past_value_cross_I")
    return encoder, parsed(f"({', '.join(inputs)}) => ({', '.join(outputs)})", body)


def integers(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def real(value: float) -> np.ndarray:
    return np.array([value], np.float32)


NAMES = {
    "max_length": 1, "min_length": 2, "num_beams": 3, "num_return_sequences": 4, "length_penalty": 5,
    "repetition_penalty": 6, "vocab_mask": 7, "prefix_vocab_mask": 8, "attention_mask": 9,
    "decoder_input_ids": 10, "logits_processor": 11, "temperature": 14,
}  # fmt: skip
DEFAULTS = {
    "max_length": integers(9), "min_length": integers(0), "num_beams": integers(3),
    "num_return_sequences": integers(2), "length_penalty": real(1), "repetition_penalty": real(1),
}  # fmt: skip


def model_of(
    operator: str, features: np.ndarray, seed: int = 0, sharpness: float = 1.0,
    outputs: tuple[str, ...] = ("y", "scores"), length: str = "1", **given: Any,
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:  # fmt: skip
    """A model of one search; `given` are operands and attributes, those of `open` are inputs of the model."""
    text = operator == "BeamSearch"
    values = DEFAULTS | {name: given.pop(name) for name in list(given) if name in NAMES}
    opened = given.pop("open", ())
    inputs = ["features"] + [""] * max(NAMES[name] for name in values)
    for name in values:
        inputs[NAMES[name]] = name
    encoder, decoder = graphs(text, weights(seed, sharpness, text), length)
    node = helper.make_node(
        operator, inputs, list(outputs), domain="com.microsoft", encoder=encoder, decoder=decoder,
        eos_token_id=END, pad_token_id=PADDING, decoder_start_token_id=START, model_type=1 if text else 2, **given,
    )  # fmt: skip
    feeds = {"features": features} | {name: values[name] for name in opened}
    ports = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for k, v in feeds.items()
    ]
    results = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT if i else TensorProto.INT32, None)
        for i, name in enumerate(outputs)
        if name
    ]
    stored = [numpy_helper.from_array(v, k) for k, v in values.items() if k not in feeds]
    whole = helper.make_graph([node], "search", ports, results, stored)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(whole, opset_imports=opsets, ir_version=9), feeds


def both(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> tuple[list[Any], list[Any]]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = ge.compile(model)(**feeds)
    return session.run(None, feeds), list(found) if isinstance(found, tuple) else [found]


WHISPER, T5 = "WhisperBeamSearch", "BeamSearch"
SOUND = np.random.default_rng(1).standard_normal((2, FEATURES, FRAMES)).astype(np.float32)
WORDS = np.array([[9, 17, 8, 30, 55], [40, 11, 7, PADDING, PADDING]], np.int32)
TIMES = {
    "translate_token_id": 20, "transcribe_token_id": 21, "start_of_lm_token_id": 22, "no_timestamps_token_id": 23,
    "beginning_timestamp_token_id": 60, "logits_processor": integers(1),
}  # fmt: skip
RULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "one beam": {"num_beams": integers(1), "num_return_sequences": integers(1)},
    "early, many beams": {"num_beams": integers(5), "early_stopping": 1, "length_penalty": real(0.5)},
    "repetition": {"repetition_penalty": real(1.6), "no_repeat_ngram_size": 2},
    "least length": {"min_length": integers(6), "length_penalty": real(2)},
    "vocabulary": {
        "vocab_mask": (np.arange(VOCABULARY) % 3 != 0).astype(np.int32),
        "prefix_vocab_mask": (np.arange(2 * VOCABULARY).reshape(2, -1) % 5 == 1).astype(np.int32),
    },
}
SPEECH: dict[str, dict[str, Any]] = {
    "a prompt": {"decoder_input_ids": np.array([[5, 7, 9], [5, 8, 2]], np.int32)},
    "temperature": {"temperature": real(3), "decoder_input_ids": np.array([[5], [6]], np.int32)},
    "times": TIMES,
    "times, a prompt": TIMES | {"decoder_input_ids": np.array([[5, 64], [5, 21]], np.int32)},
    "other processors": {"logits_processor": integers(0)},
}


def compare(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> None:
    wanted, found = both(model, feeds)
    np.testing.assert_array_equal(found[0], wanted[0])
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-4)


@pytest.mark.parametrize("rule", RULES | SPEECH)
def test_whisper_gives_the_texts_of_onnx_runtime(rule: str) -> None:
    compare(*model_of(WHISPER, SOUND, 1, 0.6, **(RULES | SPEECH)[rule]))


@pytest.mark.parametrize("rule", RULES)
def test_a_decoder_behind_an_encoder_of_words_gives_the_texts_of_onnx_runtime(rule: str) -> None:
    compare(*model_of(T5, WORDS, 2, 0.6, **RULES[rule]))


def test_the_mask_of_words_may_be_given() -> None:
    mask = np.array([[1, 1, 0, 1, 1], [1, 1, 1, 1, 0]], np.int32)
    compare(*model_of(T5, WORDS, 2, 0.6, attention_mask=mask, open=("attention_mask",)))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"outputs": ("y", "scores", "all")}, "the scores of every step"),
        ({"length": "s"}, "reads the whole text"),
        ({"max_length": integers(1)}, "leaves no room"),
        ({"max_length": integers(400)}, "unrolled"),
        ({"num_return_sequences": integers(4)}, "4 texts of 3 beams"),
    ],
)
def test_whisper_that_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ge.GeError, match=message):
        ge.compile(model_of(WHISPER, SOUND, **given)[0])
