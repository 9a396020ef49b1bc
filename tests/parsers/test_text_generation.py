"""GreedySearch and BeamSearch over a small decoder: the tokens of ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ge

onnxruntime = pytest.importorskip("onnxruntime")

VOCABULARY, WIDTH, HEADS, PLACES = 24, 8, 2, 16
END, PADDING = 23, 22


def decoder(seed: int, sharpness: float) -> onnx.GraphProto:
    """One layer of attention over the tokens so far; `sharpness` scales the scores."""
    rng = np.random.default_rng(seed)
    weights = {
        "tokens": rng.standard_normal((VOCABULARY, WIDTH)),
        "places": rng.standard_normal((PLACES, WIDTH)),
        "qkv": rng.standard_normal((WIDTH, 3 * WIDTH)),
        "back": rng.standard_normal((WIDTH, VOCABULARY)) * sharpness,
        "one": np.float32(1),
        "far": np.float32(-10000),
        "scale": np.float32((WIDTH // HEADS) ** -0.5),
    }
    size = WIDTH // HEADS
    constants = {
        "split": np.array([0, 0, HEADS, size]),
        "merge": np.array([0, 0, WIDTH]),
        "c1": np.array([1]),
        "c2": np.array([2]),
        "c0": np.array([0]),
    }
    text = """
      t = Gather (tokens, input_ids)
      p = Gather (places, position_ids)
      x = Add (t, p)
      all = MatMul (x, qkv)
      q0, k0, v0 = Split <axis = 2, num_outputs = 3> (all)
      q1 = Reshape (q0, split)
      k1 = Reshape (k0, split)
      v1 = Reshape (v0, split)
      q = Transpose <perm = [0, 2, 1, 3]> (q1)
      k2 = Transpose <perm = [0, 2, 1, 3]> (k1)
      v2 = Transpose <perm = [0, 2, 1, 3]> (v1)
      kv0 = Unsqueeze (k2, c0)
      kv1 = Unsqueeze (v2, c0)
      new = Concat <axis = 0> (kv0, kv1)
      present_0 = Concat <axis = 3> (past_0, new)
      k3 = Gather <axis = 0> (present_0, zero)
      v = Gather <axis = 0> (present_0, first)
      kt = Transpose <perm = [0, 1, 3, 2]> (k3)
      s0 = MatMul (q, kt)
      s1 = Mul (s0, scale)
      m0 = Cast <to = 1> (attention_mask)
      m1 = Sub (one, m0)
      m2 = Mul (m1, far)
      m3 = Unsqueeze (m2, c1)
      m4 = Unsqueeze (m3, c2)
      s2 = Add (s1, m4)
      shape = Shape (s0)
      tri0 = ConstantOfShape <value = float[1] {1}> (shape)
      past = Shape <start = 3, end = 4> (past_0)
      past1 = Add (past, c1)
      past2 = Squeeze (past1, c0)
      tri = Trilu <upper = 1> (tri0, past2)
      s3 = Mul (tri, far)
      s4 = Add (s2, s3)
      a = Softmax <axis = -1> (s4)
      y0 = MatMul (a, v)
      y1 = Transpose <perm = [0, 2, 1, 3]> (y0)
      y2 = Reshape (y1, merge)
      y = Add (x, y2)
      logits = MatMul (y, back)
    """
    header = "g (int32[b, s] input_ids, int32[b, s] position_ids, int32[b, t] attention_mask, "
    header += f"float[2, b, {HEADS}, o, {size}] past_0) => (float[b, s, {VOCABULARY}] logits, "
    header += f"float[2, b, {HEADS}, t, {size}] present_0) {{ {text} }}"
    graph = onnx.parser.parse_graph(header)
    for name, value in weights.items():
        graph.initializer.append(numpy_helper.from_array(np.asarray(value, np.float32), name))
    for name, value in constants.items():
        graph.initializer.append(numpy_helper.from_array(value, name))
    graph.initializer.append(numpy_helper.from_array(np.array(0), "zero"))
    graph.initializer.append(numpy_helper.from_array(np.array(1), "first"))
    return graph


def model_of(
    operator: str,
    prompt: np.ndarray,
    values: list[Any],
    graph: onnx.GraphProto,
    open_: tuple[int, ...] = (),
    **attrs: Any,
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of one search; `open_` are the operands that are inputs of the model."""
    names = [f"x{i}" if v is not None else "" for i, v in enumerate([prompt, *values])]
    arrays = dict(zip(names, [prompt, *values], strict=True))
    feeds = {name: arrays[name] for i, name in enumerate(names) if i == 0 or i in open_}
    outputs = ["y", "scores"] if operator == "BeamSearch" else ["y"]
    node = helper.make_node(
        operator, names, outputs, domain="com.microsoft", decoder=graph, eos_token_id=END, pad_token_id=PADDING,
        **attrs,
    )  # fmt: skip
    ports = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for k, v in feeds.items()
    ]
    results = [helper.make_tensor_value_info("y", TensorProto.INT32, None)]
    if operator == "BeamSearch":
        results.append(helper.make_tensor_value_info("scores", TensorProto.FLOAT, None))
    stored = [numpy_helper.from_array(v, k) for k, v in arrays.items() if k and k not in feeds]
    whole = helper.make_graph([node], "search", ports, results, stored)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(whole, opset_imports=opsets, ir_version=9), feeds


def both(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> tuple[list[Any], list[Any]]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = ge.compile(model)(**feeds)
    return session.run(None, feeds), list(found) if isinstance(found, tuple) else [found]


def integers(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def real(value: float) -> np.ndarray:
    return np.array([value], np.float32)


PROMPTS = np.array([[3, 5, 7], [PADDING, 4, 9], [1, 1, 1]], np.int32)
RULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "least length and repetition": {"least": integers(9), "penalty": real(1.7)},
    "rows of tokens": {"no_repeat_ngram_size": 2},
    "vocabulary": {
        "mask": (np.arange(VOCABULARY) % 3 != 0).astype(np.int32),
        "first": (np.arange(3 * VOCABULARY).reshape(3, -1) % 5 == 1).astype(np.int32),
    },
    "a mask": {"attention": integers(1, 1, 1, 0, 1, 1, 0, 0, 1).reshape(3, 3), "no_repeat_ngram_size": 1},
}
BEAMS = [(3, 3, 1.0, 0), (1, 1, 1.0, 0), (4, 2, 0.5, 1), (3, 2, 2.0, 0), (2, 1, 0.0, 1)]


@pytest.mark.parametrize("rule", RULES)
def test_greedy_search_gives_the_tokens_of_onnx_runtime(rule: str) -> None:
    given = dict(RULES[rule])
    values = [integers(12), *(given.pop(k, None) for k in ("least", "penalty", "mask", "first", "attention"))]
    wanted, found = both(*model_of("GreedySearch", PROMPTS, values, decoder(0, 1), **given))
    np.testing.assert_array_equal(found[0], wanted[0])


@pytest.mark.parametrize(("rule", "beams"), list(zip(RULES, BEAMS, strict=True)))
def test_beam_search_gives_the_texts_of_onnx_runtime(rule: str, beams: tuple[int, int, float, int]) -> None:
    given = dict(RULES[rule])
    least = given.pop("least", integers(1))  # which ONNX Runtime demands
    number, texts, power, early = beams
    values = [integers(10), least, integers(number), integers(texts), real(power)]
    values += [given.pop(k, None) for k in ("penalty", "mask", "first", "attention")]
    made = model_of("BeamSearch", PROMPTS, values, decoder(2, 0.5), early_stopping=early, **given)
    wanted, found = both(*made)
    np.testing.assert_array_equal(found[0], wanted[0])
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-4)


def test_a_search_is_saved_and_its_lengths_may_be_inputs(tmp_path: Path) -> None:
    graph = decoder(3, 1)
    fixed, feeds = model_of("GreedySearch", PROMPTS, [integers(8)], graph)
    opened, more = model_of("GreedySearch", PROMPTS, [integers(8)], graph, open_=(1,))
    wanted, found = both(opened, more)
    loaded = ge.load(ge.compile(fixed).save(tmp_path / "search.om"))
    np.testing.assert_array_equal(loaded(**feeds), wanted[0])
    np.testing.assert_array_equal(found[0], wanted[0])
    with pytest.raises(ge.GeError, match="leaves no room"):
        ge.compile(model_of("GreedySearch", PROMPTS, [integers(3)], graph)[0])


# -- drawn tokens ------------------------------------------------------------------------------------------------

NAMES = ("least", "penalty", "mask", "first", "attention", "presence", "seed")


def sampling(
    prompt: np.ndarray, length: int, graph: onnx.GraphProto, open_: tuple[int, ...] = (), **given: Any
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    values = [integers(length), *(given.pop(k, None) for k in NAMES)]
    while values[-1] is None:
        values.pop()
    return model_of("Sampling", prompt, values, graph, open_, **given)


@pytest.mark.parametrize(
    ("rule", "limit"),
    [
        ("least length and repetition", {"top_p": 0.001}),
        ("vocabulary", {"top_p": 0.0, "custom": 1}),
        ("a mask", {"top_p": 0.0, "min_tokens_to_keep": 1}),
    ],
)
def test_sampling_of_one_token_gives_the_tokens_of_onnx_runtime(rule: str, limit: dict[str, Any]) -> None:
    wanted, found = both(*sampling(PROMPTS, 10, decoder(0, 1), **RULES[rule], **limit))
    np.testing.assert_array_equal(found[0], wanted[0])


SHARES: dict[str, dict[str, Any]] = {
    "everything": {"top_p": 1.0},
    "a share": {"top_p": 0.6, "temperature": 2.0},
    "a share, custom": {"top_p": 0.6, "temperature": 2.0, "custom": 1},
    "a few": {"top_p": 0.01, "min_tokens_to_keep": 4, "temperature": 3.0},
    "few are left, custom": {"top_p": 0.01, "min_tokens_to_keep": 4, "custom": 1},
    "the others are not impossible": {"top_p": 0.5, "filter_value": -1.0},
    "a mask and a penalty": {"top_p": 0.9, "mask": RULES["vocabulary"]["mask"], "penalty": real(1.5)},
}


@pytest.mark.parametrize("share", SHARES)
def test_sampling_draws_the_tokens_of_onnx_runtime_as_often(share: str) -> None:
    """Two tokens of equal texts; the numbers of both generators are different ones."""
    count = 3000
    made = sampling(PROMPTS[:1].repeat(count, 0), 5, decoder(4, 0.4), seed=integers(7), **SHARES[share])
    wanted, found = both(*made)
    for place in (3, 4):
        theirs, ours = (np.bincount(r[0][:, place], minlength=VOCABULARY) / count for r in (wanted, found))
        assert np.abs(ours - theirs).max() < 0.05  # four deviations of the difference at most
        assert not ours[theirs == 0].sum() > 0.01
        assert not theirs[ours == 0].sum() > 0.01


def test_a_seed_decides_the_tokens(tmp_path: Path) -> None:
    graph = decoder(3, 0.3)
    model, feeds = sampling(PROMPTS, 9, graph, open_=(8,), seed=integers(0), top_p=0.99)
    compiled = ge.compile(model)
    runs = [compiled(feeds["x0"], integers(seed)) for seed in (1, 1, 2, 3, 2**31 - 1, 0)]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert len({r.tobytes() for r in runs[1:]}) == 5
    np.testing.assert_array_equal(runs[0][:, :3], PROMPTS)
    fixed = ge.compile(sampling(PROMPTS, 9, graph, seed=integers(2), top_p=0.99)[0])
    for again in (fixed, ge.load(fixed.save(tmp_path / "drawn.om"))):
        np.testing.assert_array_equal(again(PROMPTS), runs[2])
    unseeded = ge.compile(sampling(PROMPTS, 9, graph, top_p=0.99)[0])
    np.testing.assert_array_equal(unseeded(PROMPTS), runs[5])


@pytest.mark.parametrize("penalty", [40.0, -40.0])
def test_present_tokens_are_less_probable(penalty: float) -> None:
    """ONNX Runtime subtracts all penalties from the first token of the first text: only that one is compared."""
    presence = np.zeros((1, VOCABULARY), np.int32)
    presence[0, 0] = 2
    rules = {"top_p": 0.001, "temperature": 0.5, "penalty": real(1.3)}
    made = sampling(PROMPTS[:1], 6, decoder(6, 1), presence=presence, presence_penalty=penalty, **rules)
    wanted, found = both(*made)
    np.testing.assert_array_equal(found[0], wanted[0])
    assert (found[0][0, 3:] == 0).any() == (penalty < 0)  # without a penalty the second token is 0


def test_every_text_has_tokens_that_are_present() -> None:
    graph = decoder(3, 1)
    plain = ge.compile(sampling(PROMPTS, 4, graph, top_p=0.001)[0])(PROMPTS)[:, 3]
    presence = np.zeros((3, VOCABULARY), np.int32)
    presence[[1, 2], plain[1:]] = 1
    made = sampling(PROMPTS, 4, graph, presence=presence, top_p=0.001, presence_penalty=100.0)
    changed = ge.compile(made[0])(PROMPTS)[:, 3]
    assert list(changed == plain) == [True, False, False]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "leave no token"),
        ({"top_p": 0.5, "temperature": 0.0}, "a temperature of 0"),
        ({"top_p": 0.5, "min_tokens_to_keep": VOCABULARY}, "of a vocabulary of 24"),
        ({"top_p": 0.5, "seed": integers(-1)}, "the seed -1 is negative"),
        ({"top_p": 0.5, "model_type": 1}, "an encoder and a decoder"),
    ],
)
def test_sampling_that_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ge.GeError, match=message):
        ge.compile(sampling(PROMPTS, 6, decoder(0, 1), **given)[0])
