"""Classical models (domain ai.onnx.ml): scikit-learn's estimators as skl2onnx exports them, beside ONNX Runtime."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import ge
from ge.conformance import sklearn as classical
from ge.options import CompileOptions

onnxruntime = pytest.importorskip("onnxruntime")
skl2onnx = pytest.importorskip("skl2onnx")
sklearn = pytest.importorskip("sklearn")

from sklearn import ensemble, linear_model, neural_network, pipeline, preprocessing, svm, tree  # noqa: E402
from sklearn.impute import SimpleImputer  # noqa: E402

RNG = np.random.default_rng(0)
ROWS = RNG.standard_normal((60, 5)).astype(np.float32)
TWO = (ROWS[:, 0] + ROWS[:, 1] > 0).astype(np.int64)
THREE = TWO + (ROWS[:, 2] > 0.3)
REAL = ROWS @ np.arange(1, 6).astype(np.float32) + np.sin(ROWS[:, 0])
SEVERAL = np.stack([REAL, REAL**2], 1)

ESTIMATORS: dict[str, tuple[Any, Any]] = {
    "tree": (tree.DecisionTreeClassifier(random_state=0), THREE),
    "tree, two classes": (tree.DecisionTreeClassifier(random_state=0), TWO),
    "regression tree": (tree.DecisionTreeRegressor(random_state=0), REAL),
    "regression tree, two targets": (tree.DecisionTreeRegressor(random_state=0), SEVERAL),
    "forest": (ensemble.RandomForestClassifier(7, random_state=0), THREE),
    "forest, two classes": (ensemble.RandomForestClassifier(7, random_state=0), TWO),
    "regression forest": (ensemble.RandomForestRegressor(11, random_state=0), REAL),
    "extra trees": (ensemble.ExtraTreesRegressor(5, random_state=0), SEVERAL),
    "boosting": (ensemble.GradientBoostingClassifier(n_estimators=5, random_state=0), TWO),
    "boosting, three classes": (ensemble.GradientBoostingClassifier(n_estimators=5, random_state=0), THREE),
    "regression boosting": (ensemble.GradientBoostingRegressor(n_estimators=5, random_state=0), REAL),
    "logistic": (linear_model.LogisticRegression(), TWO),
    "logistic, three classes": (linear_model.LogisticRegression(), THREE),
    "linear": (linear_model.LinearRegression(), REAL),
    "linear, two targets": (linear_model.Ridge(), SEVERAL),
    "stochastic gradient": (linear_model.SGDClassifier(random_state=0), THREE),
    "network": (neural_network.MLPClassifier((4,), max_iter=20, random_state=0), THREE),
    "support vectors": (svm.SVR(kernel="rbf"), REAL),
    "support vectors, poly": (svm.SVR(kernel="poly"), REAL),
    "linear support vectors": (svm.LinearSVC(random_state=0), TWO),
    "scaled": (
        pipeline.make_pipeline(preprocessing.StandardScaler(), linear_model.LogisticRegression()),
        TWO,
    ),
    "normalised": (pipeline.make_pipeline(preprocessing.Normalizer("l1"), linear_model.Ridge()), REAL),
    "binarised": (pipeline.make_pipeline(preprocessing.Binarizer(threshold=0.1), linear_model.Ridge()), REAL),
    "filled": (pipeline.make_pipeline(SimpleImputer(), tree.DecisionTreeRegressor(random_state=0)), REAL),
    "robust": (pipeline.make_pipeline(preprocessing.RobustScaler(), svm.SVR()), REAL),
}


def exported(estimator: Any, rows: int) -> onnx.ModelProto:
    kind = skl2onnx.common.data_types.FloatTensorType([rows, ROWS.shape[1]])
    lists = sklearn.base.is_classifier(estimator) and not isinstance(estimator, svm.LinearSVC)
    options = {id(estimator): {"zipmap": False}} if lists else None
    return skl2onnx.convert_sklearn(estimator, initial_types=[("x", kind)], options=options, target_opset=17)


def both(model: onnx.ModelProto, x: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = ge.compile(model, CompileOptions(input_shapes={"x": x.shape}))(x)
    return session.run(None, {"x": x}), list(found) if isinstance(found, list | tuple) else [found]


@pytest.mark.parametrize("rows", [1, 20])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_estimator_gives_onnx_runtimes_results(name: str, rows: int) -> None:
    estimator, wanted = ESTIMATORS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator.fit(ROWS, wanted)
        model = exported(estimator, rows)
    x = np.ascontiguousarray(ROWS[:rows])
    if name == "filled":
        x = np.where(RNG.random(x.shape) < 0.3, np.float32(np.nan), x)
    for theirs, ours in zip(*both(model, x), strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


def ensemble_of(mode: str, missing: int, aggregate: str) -> onnx.ModelProto:
    """Two trees over three features, the first two levels deep, with weights for two targets."""
    node = helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=2, aggregate_function=aggregate,
        nodes_treeids=[0] * 5 + [1] * 3, nodes_nodeids=[0, 1, 2, 3, 4, 0, 1, 2],
        nodes_featureids=[0, 1, 0, 0, 0, 2, 0, 0], nodes_values=[0.0, 1.0, 0, 0, 0, -1.0, 0, 0],
        nodes_modes=[mode, mode, "LEAF", "LEAF", "LEAF", mode, "LEAF", "LEAF"],
        nodes_truenodeids=[1, 3, 0, 0, 0, 1, 0, 0], nodes_falsenodeids=[2, 4, 0, 0, 0, 2, 0, 0],
        nodes_missing_value_tracks_true=[missing] * 8,
        target_treeids=[0, 0, 0, 1, 1, 1], target_nodeids=[2, 3, 4, 1, 1, 2], target_ids=[0, 1, 0, 0, 1, 1],
        target_weights=[1.0, 2.0, 4.0, 8.0, -16.0, 32.0],
    )  # fmt: skip
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [None, c]) for n, c in (("x", 3), ("y", 2))]
    graph = helper.make_graph([node], "net", ports[:1], ports[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("missing", [0, 1])
@pytest.mark.parametrize("mode", MODES)
def test_every_test_of_a_node_with_values_at_the_threshold_and_nan(mode: str, missing: int) -> None:
    choices = np.asarray([-1.0, 0.0, 1.0, np.nan, 2.0, -np.inf], np.float32)
    x = np.stack(np.meshgrid(choices, choices, choices), -1).reshape(-1, 3)
    (theirs,), (ours,) = both(ensemble_of(mode, missing, "SUM"), x)
    np.testing.assert_array_equal(ours, theirs)


def forest_with_sets(missing: int) -> onnx.ModelProto:
    """Two trees: sets of three values, of one and of none; children of one test for a set, and for a threshold."""
    modes = np.asarray([6, 6, 6, 0, 0, 6], np.uint8)  # 6: one of a set, 0: at most
    sets = np.asarray([0.0, 2.0, -1.0, np.nan, 1.0, np.nan, np.nan, 2.0, 1.0, np.nan], np.float32)
    node = helper.make_node(
        "TreeEnsemble", ["x"], ["y"], domain="ai.onnx.ml", n_targets=2, aggregate_function=1, post_transform=0,
        tree_roots=[0, 5], nodes_featureids=[0, 1, 2, 1, 0, 2], membership_values=onnx.numpy_helper.from_array(sets),
        nodes_modes=onnx.numpy_helper.from_array(modes),
        nodes_splits=onnx.numpy_helper.from_array(np.asarray([0, 0, 0, 0.5, 1.0, 0], np.float32)),
        nodes_truenodeids=[1, 2, 0, 2, 4, 6], nodes_trueleafs=[0, 0, 1, 1, 1, 1],
        nodes_falsenodeids=[3, 4, 1, 3, 5, 7], nodes_falseleafs=[0, 0, 1, 1, 1, 1],
        nodes_missing_value_tracks_true=[missing] * 6,
        leaf_targetids=[0, 1, 0, 1, 0, 1, 0, 1],
        leaf_weights=onnx.numpy_helper.from_array(np.asarray([1, 2, 4, 8, 16, 32, 64, 128], np.float32)),
    )  # fmt: skip
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [None, c]) for n, c in (("x", 3), ("y", 2))]
    graph = helper.make_graph([node], "net", ports[:1], ports[1:])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 5)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def falls_to(key: int, row: np.ndarray, missing: int) -> int:
    """The leaf that a row reaches in the forest with sets, from a node."""
    features, sets = [0, 1, 2, 1, 0, 2], {0: (0, 2, -1), 1: (1,), 2: (), 5: (2, 1)}
    true = [(1, 0), (2, 0), (0, 1), (2, 1), (4, 1), (6, 1)]
    false = [(3, 0), (4, 0), (1, 1), (3, 1), (5, 1), (7, 1)]
    value = row[features[key]]
    passes = (
        bool(missing)
        if np.isnan(value)
        else value in sets[key]
        if key in sets
        else value <= (0.5, 1.0)[key - 3]
    )
    child, leaf = true[key] if passes else false[key]
    return child if leaf else falls_to(child, row, missing)


@pytest.mark.parametrize("missing", [0, 1])
def test_tests_for_a_set_of_values(missing: int) -> None:
    choices = np.asarray([-1.0, 0.0, 0.5, 1.0, np.nan, 2.0, 3.0], np.float32)
    x = np.stack(np.meshgrid(choices, choices, choices), -1).reshape(-1, 3)
    model = ge.compile(forest_with_sets(missing), CompileOptions(input_shapes={"x": x.shape}))
    expected = np.zeros((len(x), 2), np.float32)
    for row, sums in zip(x, expected, strict=True):
        for root in (0, 5):
            leaf = falls_to(root, row, missing)
            sums[leaf % 2] += 2**leaf
    np.testing.assert_array_equal(model(x), expected)


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_aggregates(aggregate: str) -> None:
    x = RNG.standard_normal((11, 3)).astype(np.float32)
    (theirs,), (ours,) = both(ensemble_of("BRANCH_LEQ", 0, aggregate), x)
    reached = np.isfinite(ours) & (np.abs(theirs) < 1e30)  # a target that no leaf names has no minimum
    np.testing.assert_array_equal(ours[reached], theirs[reached])


def one_node(type_: str, x: np.ndarray, **attrs: Any) -> onnx.ModelProto:
    node = helper.make_node(type_, ["x"], ["y"], domain="ai.onnx.ml", **attrs)
    port = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
    result = onnx.ValueInfoProto(name="y")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(
        helper.make_graph([node], "net", [port], [result]), opset_imports=opsets, ir_version=8
    )


def test_encoders() -> None:
    numbers = np.asarray([[3, 1], [7, 3]], np.int64)
    for type_, attrs in {
        "OneHotEncoder": {"cats_int64s": [1, 3, 5]},
        "LabelEncoder": {"keys_int64s": [1, 3], "values_floats": [0.5, 1.5], "default_float": -2.0},
        "Imputer": {"replaced_value_int64": 3, "imputed_value_int64s": [9]},
    }.items():
        (theirs,), (ours,) = both(one_node(type_, numbers, **attrs), numbers)
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


def test_what_is_not_a_tree_is_refused() -> None:
    model = ensemble_of("BRANCH_LEQ", 0, "SUM")
    for attribute in model.graph.node[0].attribute:
        if attribute.name == "nodes_truenodeids":
            attribute.ints[1] = 4  # where the other branch goes: node 3 hangs in the air
    with pytest.raises(ge.GeError, match="tree 0 has 2 roots"):
        ge.compile(model, CompileOptions(input_shapes={"x": (2, 3)}))


FEW = ("LogisticRegression, names", "RandomForestClassifier, names", "SVC", "SVC, two", "SVC, probabilities",
       "OneClassSVM", "OneHotEncoder of strings", "OrdinalEncoder of strings", "TfidfVectorizer, classifier",
       "LGBMClassifier, names", "XGBClassifier", "KNeighborsClassifier")  # fmt: skip


@pytest.mark.parametrize("name", FEW)
def test_a_default_export_gives_labels_strings_and_dictionaries_as_onnx_runtime_does(name: str) -> None:
    sample = next((s for s in classical.samples() if s.name == name), None)
    if sample is None:
        pytest.skip("the package is not installed")
    outcome = classical.compare(sample)
    assert outcome.status == "pass", outcome.detail


@pytest.mark.slow
def test_all_classical_models_agree_with_onnx_runtime() -> None:
    outcomes = [classical.compare(s) for s in classical.samples() if s.name not in FEW]
    faults = [o for o in outcomes if o.status in ("wrong", "error", "refused") and o.name != "KNNImputer"]
    assert faults == []
    assert sum(o.status == "pass" for o in outcomes) >= 60


def test_unknown_categories_are_an_error_where_the_encoder_says_so() -> None:
    known, unknown = (np.asarray([[v]], object) for v in ("red", "pink"))
    node = helper.make_node(
        "OneHotEncoder", ["x"], ["y"], domain="ai.onnx.ml", cats_strings=["red", "blue"], zeros=0
    )
    ports = [helper.make_tensor_value_info("x", TensorProto.STRING, [1, 1]), onnx.ValueInfoProto(name="y")]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph([node], "net", ports[:1], ports[1:])
    model = ge.compile(helper.make_model(graph, opset_imports=opsets, ir_version=8))
    np.testing.assert_array_equal(model(known), [[[1, 0]]])
    with pytest.raises(ge.GeError, match="none of the categories"):
        model(unknown)


def tree_of(*nodes: tuple[str, int, float, int, int]) -> onnx.ModelProto:
    """A tree of (mode, feature, value, true, false); a leaf weighs its value."""
    modes, features, values, true, false = zip(*nodes, strict=True)
    leaves = [i for i, mode in enumerate(modes) if mode == "LEAF"]
    return one_node(
        "TreeEnsembleRegressor", np.zeros((27, 3), np.float32), n_targets=1, nodes_modes=list(modes),
        nodes_treeids=[0] * len(nodes), nodes_nodeids=list(range(len(nodes))), nodes_featureids=list(features),
        nodes_values=[0.0 if m == "LEAF" else v for m, v in zip(modes, values, strict=True)],
        nodes_truenodeids=list(true), nodes_falsenodeids=list(false),
        target_treeids=[0] * len(leaves), target_nodeids=leaves, target_ids=[0] * len(leaves),
        target_weights=[float(values[i]) for i in leaves],
    )  # fmt: skip


@pytest.mark.parametrize("aggregate", ["MIN", "MAX"])
def test_the_extreme_of_no_weights_is_zero(aggregate: str) -> None:
    leaf, leaves = ("LEAF", 0, 0.0, 0, 0), ([0, 1], [2, 1])
    model = tree_of(("BRANCH_LEQ", 0, 0.5, 1, 2), leaf, leaf)
    attributes = {a.name: a for a in model.graph.node[0].attribute}
    given = {
        "n_targets": 3,
        "aggregate_function": aggregate,
        "target_ids": leaves[0],
        "target_weights": [10.0, -20.0],
    }
    for name, value in given.items():
        if name in attributes:
            model.graph.node[0].attribute.remove(attributes[name])
        model.graph.node[0].attribute.append(helper.make_attribute(name, value))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [27, 3]))
    rows = np.linspace(0, 1, 81, dtype=np.float32).reshape(27, 3)
    (theirs,), (ours,) = both(model, rows)
    np.testing.assert_array_equal(ours, theirs)


CHAIN = [
    ("BRANCH_EQ", 0, 1.0, 3, 1),
    ("BRANCH_EQ", 0, 2.0, 3, 2),
    ("LEAF", 0, 10.0, 0, 0),
    ("BRANCH_LEQ", 1, 1.0, 4, 5),
    ("LEAF", 0, 20.0, 0, 0),
    ("LEAF", 0, 30.0, 0, 0),
]
MESH = [
    ("BRANCH_EQ", 0, 1.0, 3, 1),
    ("BRANCH_EQ", 1, 2.0, 3, 2),
    ("BRANCH_GT", 0, 3.0, 4, 3),
    ("BRANCH_EQ", 1, 1.0, 4, 5),
    ("BRANCH_EQ", 2, 2.0, 5, 6),
    ("LEAF", 0, 10.0, 0, 0),
    ("LEAF", 0, 20.0, 0, 0),
]
TESTS = {"BRANCH_EQ": np.equal, "BRANCH_LEQ": np.less_equal, "BRANCH_GT": np.greater}


@pytest.mark.parametrize("nodes", [CHAIN, MESH])
def test_branches_of_a_tree_may_meet_again(nodes: list[tuple[str, int, float, int, int]]) -> None:
    """LightGBM writes a set of categories as a chain of tests that lead to the same child."""

    def falls(row: np.ndarray, at: int) -> float:
        mode, feature, value, true, false = nodes[at]
        return value if mode == "LEAF" else falls(row, true if TESTS[mode](row[feature], value) else false)

    values = np.float32([1, 2, 4])
    x = np.stack(np.meshgrid(values, values, values), -1).reshape(-1, 3)
    np.testing.assert_array_equal(ge.compile(tree_of(*nodes))(x)[:, 0], [falls(row, 0) for row in x])


def test_a_tree_that_leads_back_is_refused() -> None:
    branch = ("BRANCH_EQ", 0, 1.0)
    model = tree_of((*branch, 1, 3), (*branch, 2, 3), (*branch, 1, 3), ("LEAF", 0, 1.0, 0, 0))
    with pytest.raises(ge.GeError, match="leads back to its node 1"):
        ge.compile(model)
