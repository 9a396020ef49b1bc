"""Compares classical models with ONNX Runtime: scikit-learn via skl2onnx, XGBoost and LightGBM via onnxmltools.

Every estimator is fitted on a little data and exported with its converter's defaults (ZipMap, string labels). The
engine must return the same labels, strings and dictionaries as ONNX Runtime, and numbers to 1e-4.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np
import onnx
import typer
from rich.console import Console
from rich.table import Table

import ge
from ge.errors import GeError
from ge.options import CompileOptions

__all__ = ["Outcome", "Sample", "compare", "samples", "sklearn"]

OPSETS = {"": 18, "ai.onnx.ml": 3}
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Sample:
    """An estimator with its training data and inputs."""

    family: str
    name: str
    make: Callable[[], Any]
    data: str = "numbers"  # numbers, gaps, counts, mixed, text
    target: str = "three"  # two, three, names, real, several, none
    options: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Outcome:
    """Outcome of one model."""

    family: str
    name: str
    status: str  # pass, wrong, refused, error, or absent: the package or the converter is missing
    detail: str = ""


# -- data ------------------------------------------------------------------------------------------------------

_WORDS = ("red", "green", "blue", "night", "day", "river", "stone", "cloud", "bird", "tree")


def _numbers(rows: int = 80) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((rows, 5)).astype(np.float32)


def _data(kind: str) -> Any:
    x, rng = _numbers(), np.random.default_rng(1)
    if kind == "gaps":
        return np.where(rng.random(x.shape) < 0.2, np.float32(np.nan), x)
    if kind == "counts":
        return np.abs(np.round(x * 3)).astype(np.float32)
    if kind == "text":
        return np.array([" ".join(rng.choice(_WORDS, 6)) for _ in x], object).reshape(-1, 1)
    if kind == "strings":
        return np.stack([rng.choice(_WORDS[:4], len(x)), rng.choice(_WORDS[4:7], len(x))], 1).astype(object)
    return x


def _target(kind: str) -> Any:
    x = _numbers()
    two = (x[:, 0] + x[:, 1] > 0).astype(np.int64)
    real = x @ np.arange(1, 6).astype(np.float32) + np.sin(x[:, 0])
    return {
        "two": two,
        "three": two + (x[:, 2] > 0.3),
        "names": np.array(["cat", "dog", "owl"])[two + (x[:, 2] > 0.3)],
        "real": real,
        "positive": np.exp(real / 10),
        "several": np.stack([real, real**2], 1),
        "none": None,
    }[kind]


# -- models ----------------------------------------------------------------------------------------------------


def samples() -> list[Sample]:
    """All models by family; skips packages that are not installed."""
    found = [*_linear(), *_trees(), *_vectors(), *_others(), *_preparations(), *_texts()]
    for family, make in (("xgboost", _xgboost), ("lightgbm", _lightgbm)):
        try:
            found += make()
        except ImportError as error:
            found.append(Sample(family, str(error), lambda: None))
    return found


def _linear() -> list[Sample]:
    from sklearn import linear_model as lm

    sample = partial(Sample, "linear")
    return [
        sample("LinearRegression", lm.LinearRegression, target="real"),
        sample("Ridge, two targets", lm.Ridge, target="several"),
        sample("Lasso", lm.Lasso, target="real"),
        sample("ElasticNet", lm.ElasticNet, target="real"),
        sample("BayesianRidge", lm.BayesianRidge, target="real"),
        sample("HuberRegressor", lm.HuberRegressor, target="real"),
        sample("PoissonRegressor", lm.PoissonRegressor, target="positive"),
        sample("LogisticRegression, two", lm.LogisticRegression, target="two"),
        sample("LogisticRegression", lm.LogisticRegression),
        sample("LogisticRegression, names", lm.LogisticRegression, target="names"),
        sample("RidgeClassifier", lm.RidgeClassifier),
        sample("SGDClassifier", lambda: lm.SGDClassifier(random_state=0)),
        sample(
            "SGDClassifier, log loss",
            lambda: lm.SGDClassifier(loss="log_loss", random_state=0),
            target="names",
        ),
        sample("Perceptron", lambda: lm.Perceptron(random_state=0), target="two"),
    ]


def _trees() -> list[Sample]:
    from sklearn import ensemble as e
    from sklearn import tree as t

    sample = partial(Sample, "trees")
    return [
        sample("DecisionTreeClassifier", lambda: t.DecisionTreeClassifier(random_state=0)),
        sample(
            "DecisionTreeClassifier, names", lambda: t.DecisionTreeClassifier(random_state=0), target="names"
        ),
        sample("DecisionTreeRegressor", lambda: t.DecisionTreeRegressor(random_state=0), target="several"),
        sample("ExtraTreeClassifier", lambda: t.ExtraTreeClassifier(random_state=0), target="two"),
        sample(
            "RandomForestClassifier, names",
            lambda: e.RandomForestClassifier(7, random_state=0),
            target="names",
        ),
        sample("RandomForestRegressor", lambda: e.RandomForestRegressor(7, random_state=0), target="real"),
        sample("ExtraTreesClassifier", lambda: e.ExtraTreesClassifier(5, random_state=0)),
        sample(
            "GradientBoostingClassifier", lambda: e.GradientBoostingClassifier(n_estimators=5, random_state=0)
        ),
        sample(
            "GradientBoostingClassifier, two",
            lambda: e.GradientBoostingClassifier(n_estimators=5, random_state=0),
            target="two",
        ),
        sample(
            "GradientBoostingRegressor", lambda: e.GradientBoostingRegressor(n_estimators=5), target="real"
        ),
        sample(
            "HistGradientBoostingClassifier",
            lambda: e.HistGradientBoostingClassifier(max_iter=5),
            data="gaps",
        ),
        sample(
            "HistGradientBoostingRegressor",
            lambda: e.HistGradientBoostingRegressor(max_iter=5),
            "gaps",
            "real",
        ),
        sample("AdaBoostClassifier", lambda: e.AdaBoostClassifier(n_estimators=4, random_state=0)),
        sample(
            "AdaBoostRegressor", lambda: e.AdaBoostRegressor(n_estimators=4, random_state=0), target="real"
        ),
        sample("BaggingClassifier", lambda: e.BaggingClassifier(n_estimators=3, random_state=0)),
        sample("IsolationForest", lambda: e.IsolationForest(n_estimators=5, random_state=0), target="none"),
        sample("VotingClassifier", _voting, target="names"),
        sample("StackingRegressor", _stacking, target="real"),
    ]


def _voting() -> Any:
    from sklearn import ensemble, linear_model, tree

    parts = [
        ("line", linear_model.LogisticRegression()),
        ("tree", tree.DecisionTreeClassifier(random_state=0)),
    ]
    return ensemble.VotingClassifier(parts, voting="soft", flatten_transform=False)


def _stacking() -> Any:
    from sklearn import ensemble, linear_model, tree

    parts = [("line", linear_model.Ridge()), ("tree", tree.DecisionTreeRegressor(random_state=0))]
    return ensemble.StackingRegressor(parts, linear_model.Ridge())


def _vectors() -> list[Sample]:
    from sklearn import svm

    return [
        Sample("support vectors", "SVR", svm.SVR, target="real"),
        Sample("support vectors", "SVR, poly", lambda: svm.SVR(kernel="poly"), target="real"),
        Sample("support vectors", "SVR, sigmoid", lambda: svm.SVR(kernel="sigmoid"), target="real"),
        Sample("support vectors", "NuSVR", svm.NuSVR, target="real"),
        Sample("support vectors", "LinearSVR", lambda: svm.LinearSVR(random_state=0), target="real"),
        Sample("support vectors", "LinearSVC", lambda: svm.LinearSVC(random_state=0)),
        Sample("support vectors", "LinearSVC, names", lambda: svm.LinearSVC(random_state=0), target="names"),
        Sample("support vectors", "SVC", svm.SVC),
        Sample("support vectors", "SVC, two", svm.SVC, target="two"),
        Sample("support vectors", "SVC, names", lambda: svm.SVC(kernel="linear"), target="names"),
        Sample("support vectors", "SVC, probabilities", lambda: svm.SVC(probability=True, random_state=0)),
        Sample(
            "support vectors",
            "SVC, probabilities, two",
            lambda: svm.SVC(probability=True, random_state=0),
            target="two",
        ),
        Sample("support vectors", "NuSVC", lambda: svm.NuSVC(kernel="poly")),
        Sample("support vectors", "OneClassSVM", svm.OneClassSVM, target="none"),
    ]


def _others() -> list[Sample]:
    from sklearn import (
        cluster,
        decomposition,
        discriminant_analysis,
        gaussian_process,
        mixture,
        naive_bayes,
        neighbors,
    )
    from sklearn import neural_network as nn

    sample = partial(Sample, "others")
    return [
        sample("MLPClassifier", lambda: nn.MLPClassifier((4,), max_iter=20, random_state=0), target="names"),
        sample(
            "MLPRegressor",
            lambda: nn.MLPRegressor(hidden_layer_sizes=(4,), max_iter=20, random_state=0),
            target="real",
        ),
        sample("GaussianNB", naive_bayes.GaussianNB),
        sample("MultinomialNB", naive_bayes.MultinomialNB, data="counts", target="names"),
        sample("BernoulliNB", naive_bayes.BernoulliNB, data="counts"),
        sample("KNeighborsClassifier", neighbors.KNeighborsClassifier, target="names"),
        sample("KNeighborsRegressor", neighbors.KNeighborsRegressor, target="real"),
        sample("LinearDiscriminantAnalysis", discriminant_analysis.LinearDiscriminantAnalysis),
        sample("QuadraticDiscriminantAnalysis", discriminant_analysis.QuadraticDiscriminantAnalysis),
        sample("KMeans", lambda: cluster.KMeans(3, random_state=0, n_init=1), target="none"),
        sample("GaussianMixture", lambda: mixture.GaussianMixture(2, random_state=0), target="none"),
        sample("PCA", lambda: decomposition.PCA(2), target="none"),
        sample("TruncatedSVD", lambda: decomposition.TruncatedSVD(2, random_state=0), target="none"),
        sample("GaussianProcessRegressor", gaussian_process.GaussianProcessRegressor, target="real"),
    ]


def _preparations() -> list[Sample]:
    from sklearn import compose, feature_selection, impute, pipeline
    from sklearn import linear_model as lm
    from sklearn import preprocessing as pre

    def after(*steps: Any) -> Callable[[], Any]:
        return lambda: pipeline.make_pipeline(*(step() for step in steps))

    sample = partial(Sample, "preparation")
    return [
        sample("StandardScaler", after(pre.StandardScaler, lm.LogisticRegression), target="names"),
        sample("MinMaxScaler", after(pre.MinMaxScaler, lm.Ridge), target="real"),
        sample("MaxAbsScaler", after(pre.MaxAbsScaler, lm.Ridge), target="real"),
        sample("RobustScaler", after(pre.RobustScaler, lm.Ridge), target="real"),
        sample("Normalizer", after(pre.Normalizer, lm.Ridge), target="real"),
        sample("Binarizer", after(pre.Binarizer, lm.Ridge), target="real"),
        sample("PolynomialFeatures", after(pre.PolynomialFeatures, lm.Ridge), target="real"),
        sample("PowerTransformer", after(pre.PowerTransformer, lm.Ridge), target="real"),
        sample("KBinsDiscretizer", lambda: pre.KBinsDiscretizer(3, encode="ordinal"), target="none"),
        sample("SimpleImputer", after(impute.SimpleImputer, lm.Ridge), "gaps", "real"),
        sample("KNNImputer", after(impute.KNNImputer, lm.Ridge), "gaps", "real"),
        sample("SelectKBest", after(lambda: feature_selection.SelectKBest(k=2), lm.Ridge), target="three"),
        sample("OneHotEncoder of strings", pre.OneHotEncoder, "strings", "none"),
        sample("OrdinalEncoder of strings", pre.OrdinalEncoder, "strings", "none"),
        sample(
            "OneHotEncoder of strings, classifier",
            after(lambda: pre.OneHotEncoder(handle_unknown="ignore"), lm.LogisticRegression),
            "strings",
            "names",
        ),
        sample(
            "ColumnTransformer",
            after(
                lambda: compose.ColumnTransformer(
                    [("a", pre.StandardScaler(), [0, 1])], remainder="passthrough"
                ),
                lm.Ridge,
            ),
            target="real",
        ),
    ]


def _texts() -> list[Sample]:
    from sklearn import feature_extraction, naive_bayes, pipeline
    from sklearn import linear_model as lm

    text = feature_extraction.text

    def after(vectorise: Callable[[], Any], model: Any) -> Callable[[], Any]:
        return lambda: pipeline.make_pipeline(vectorise(), model())

    sample = partial(Sample, "text")
    return [
        sample("CountVectorizer", text.CountVectorizer, "text", "none"),
        sample("CountVectorizer, pairs", lambda: text.CountVectorizer(ngram_range=(1, 2)), "text", "none"),
        sample("TfidfVectorizer", text.TfidfVectorizer, "text", "none"),
        sample(
            "TfidfVectorizer, classifier", after(text.TfidfVectorizer, lm.LogisticRegression), "text", "names"
        ),
        sample(
            "CountVectorizer, Bayes", after(text.CountVectorizer, naive_bayes.MultinomialNB), "text", "names"
        ),
    ]


def _xgboost() -> list[Sample]:
    import onnxmltools  # noqa: F401
    import xgboost

    few: dict[str, Any] = {"n_estimators": 5, "max_depth": 3, "n_jobs": 1, "random_state": 0}
    sample = partial(Sample, "xgboost")
    return [
        sample("XGBClassifier", lambda: xgboost.XGBClassifier(**few)),
        sample("XGBClassifier, two", lambda: xgboost.XGBClassifier(**few), target="two"),
        sample("XGBClassifier, gaps", lambda: xgboost.XGBClassifier(**few), data="gaps"),
        sample("XGBRegressor", lambda: xgboost.XGBRegressor(**few), target="real"),
        sample("XGBRegressor, gaps", lambda: xgboost.XGBRegressor(**few), data="gaps", target="real"),
        sample("XGBRFRegressor", lambda: xgboost.XGBRFRegressor(**few), target="real"),
    ]


def _lightgbm() -> list[Sample]:
    import lightgbm
    import onnxmltools  # noqa: F401

    few: dict[str, Any] = {
        "n_estimators": 5,
        "max_depth": 3,
        "n_jobs": 1,
        "verbose": -1,
        "min_child_samples": 5,
    }
    sample = partial(Sample, "lightgbm")
    return [
        sample("LGBMClassifier", lambda: lightgbm.LGBMClassifier(**few)),
        sample("LGBMClassifier, two", lambda: lightgbm.LGBMClassifier(**few), target="two"),
        sample("LGBMClassifier, names", lambda: lightgbm.LGBMClassifier(**few), target="names"),
        sample("LGBMRegressor", lambda: lightgbm.LGBMRegressor(**few), target="real"),
        sample("LGBMRegressor, gaps", lambda: lightgbm.LGBMRegressor(**few), data="gaps", target="real"),
    ]


# -- running ---------------------------------------------------------------------------------------------------


def export(sample: Sample, data: Any) -> onnx.ModelProto:
    """The fitted model as exported by its converter."""
    model = sample.make()
    target = _target(sample.target)
    fitted = data.reshape(-1) if sample.data == "text" else data
    model.fit(fitted) if target is None else model.fit(fitted, target)
    if sample.family in ("xgboost", "lightgbm"):
        import onnxmltools
        from onnxmltools.convert.common.data_types import FloatTensorType

        convert = getattr(onnxmltools, f"convert_{sample.family}")
        return convert(model, initial_types=[("x", FloatTensorType([None, data.shape[1]]))], target_opset=15)
    import skl2onnx
    from skl2onnx.common import data_types

    kind = data_types.StringTensorType if data.dtype == object else data_types.FloatTensorType
    proto = skl2onnx.convert_sklearn(
        model, initial_types=[("x", kind([None, data.shape[1]]))], target_opset=OPSETS
    )
    for node in proto.graph.node:
        if (
            node.op_type == "StringNormalizer"
        ):  # ONNX Runtime fails on machines without the default locale en_US
            node.attribute.append(onnx.helper.make_attribute("locale", "C"))
    return proto


def compare(sample: Sample, rows: tuple[int, ...] = (1, 20)) -> Outcome:
    """One model in ONNX Runtime and in the engine, at several batch sizes."""
    import onnxruntime

    try:
        data = _data(sample.data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            proto = export(sample, data)
        session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        wanted = [session.run(None, {"x": data[:n]}) for n in rows]
    except Exception as error:
        return Outcome(sample.family, sample.name, "absent", f"{type(error).__name__}: {_line(error)}")
    for count, theirs in zip(rows, wanted, strict=True):
        x = data[:count]
        try:
            found = ge.compile(proto, CompileOptions(input_shapes={"x": x.shape}))(x)
        except GeError as error:
            return Outcome(sample.family, sample.name, "refused", _line(error, 400))
        except Exception as error:
            return Outcome(sample.family, sample.name, "error", f"{type(error).__name__}: {_line(error)}")
        ours = list(found) if isinstance(found, tuple) else [found]
        fault = difference(ours, theirs)
        if fault:
            return Outcome(sample.family, sample.name, "wrong", f"{count} rows: {fault}")
    return Outcome(sample.family, sample.name, "pass")


def difference(ours: Any, theirs: Any) -> str:
    """Describe how two results differ (lists, dictionaries, strings, numbers); "" if equal."""
    if isinstance(theirs, list | dict):
        if type(ours) is not type(theirs) or len(ours) != len(theirs):
            return f"{ours!r:.60} where ONNX Runtime has {theirs!r:.60}"
        keys: Any = theirs.keys() if isinstance(theirs, dict) else range(len(theirs))
        faults = (difference(ours[k], theirs[k]) if k in keys else f"no key {k}" for k in keys)
        return next((fault for fault in faults if fault), "")
    if not isinstance(theirs, np.ndarray):
        return (
            ""
            if np.isclose(ours, theirs, TOLERANCE, TOLERANCE)
            else f"{ours} where ONNX Runtime has {theirs}"
        )
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return f"{ours.dtype}{list(ours.shape)} where ONNX Runtime has {theirs.dtype}{list(theirs.shape)}"
    if theirs.dtype.kind in "OUSib":
        return (
            ""
            if (ours == theirs).all()
            else f"{ours.tolist()} where ONNX Runtime has {theirs.tolist()}"[:200]
        )
    size = np.abs(theirs[np.isfinite(theirs)]).max(initial=1)
    close = np.isclose(ours, theirs, TOLERANCE, TOLERANCE * size, equal_nan=True)
    return "" if close.all() else f"differs by {np.abs(ours - theirs).max():.2g} of {size:.2g}"


def _line(error: Exception, most: int = 160) -> str:
    return " ".join(str(error).split())[:most]


def sklearn(
    only: Annotated[
        str, typer.Option("--filter", help="only models whose family or name contains this")
    ] = "",
) -> None:
    """Export classical models and compare all results with ONNX Runtime's."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    chosen = [s for s in samples() if only in s.family or only in s.name]
    outcomes = [compare(sample) for sample in chosen]
    statuses = ("pass", "wrong", "refused", "error", "absent")
    table = Table("family", *statuses)
    for family in dict.fromkeys(o.family for o in outcomes):
        table.add_row(
            family, *(str(sum(o.family == family and o.status == s for o in outcomes)) for s in statuses)
        )
    table.add_row("all", *(str(sum(o.status == s for o in outcomes)) for s in statuses))
    console = Console()
    console.print(table)
    for outcome in outcomes:
        if outcome.status != "pass":
            console.print(
                f"[bold]{outcome.status}[/] {outcome.family}, {outcome.name}: {outcome.detail}",
                highlight=False,
            )
    raise typer.Exit(int(any(o.status in ("wrong", "error") for o in outcomes)))
