"""Walks over one file and applies every rule to the nodes it is declared for; each change has a reason.

1. Rules replace nodes and never edit text, so the result parses if the file did.
2. Names are resolved through the file's imports: `tf.Session`, `tensorflow.compat.v1.Session` and an imported
   `Session` are the same name.
3. Imports needed by the new code are added once, after those of the framework.
4. Porting is idempotent.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import libcst as cst
from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider, QualifiedNameProvider

from npu_tools.port.result import Change, Leftover, Ported
from npu_tools.port.syntax import statement

__all__ = ["Facts", "Porter", "Rules", "port_source"]

_WIDTH = 100


@dataclass(frozen=True)
class Facts:
    """Facts about a file or its folder."""

    frameworks: frozenset[str]  # "tensorflow", "tensorflow1", "torch"
    modules: frozenset[str]  # imported
    source: str
    entry: bool = True  # started as a script, not imported by another file

    def __contains__(self, framework: str) -> bool:
        return framework in self.frameworks


CallRule = Callable[["Porter", cst.Call, cst.Call, str], cst.BaseExpression | None]
NameRule = Callable[["Porter", Any, str], cst.BaseExpression | None]
StringRule = Callable[["Porter", Any, str], Any]
StatementRule = Callable[["Porter", cst.SimpleStatementLine, str], str | None]


@dataclass(frozen=True)
class Rules:
    """The rules of one framework."""

    calls: Sequence[CallRule] = ()
    names: Sequence[NameRule] = ()
    strings: Sequence[StringRule] = ()
    statements: Sequence[StatementRule] = ()  # replace whole statements, by their text
    imports: Callable[[Porter], None] = lambda porter: None  # imports that every file of the framework needs


@dataclass
class _Needed:
    """Code to insert after the framework's imports."""

    imports: list[str] = field(default_factory=list)
    names: dict[str, set[str]] = field(default_factory=dict)  # module: names to import from it
    setup: list[str] = field(default_factory=list)


class Porter(cst.CSTTransformer):
    """Applies rules to a file."""

    METADATA_DEPENDENCIES = (PositionProvider, QualifiedNameProvider, ParentNodeProvider)

    def __init__(self, facts: Facts, rules: Sequence[Rules], roots: frozenset[str]) -> None:
        super().__init__()
        self.facts, self.rules, self.roots = facts, rules, roots
        self.changes: set[Change] = set()
        self.leftovers: set[Leftover] = set()
        self._needed = _Needed()
        self._module: cst.Module | None = None
        self._gone: Counter[cst.CSTNode] = Counter()  # statements that went, by block

    # -- what rules use ----------------------------------------------------------------------------------------

    def line(self, node: cst.CSTNode) -> int:
        position: Any = self.get_metadata(PositionProvider, node)
        return int(position.start.line)

    def name(self, node: cst.CSTNode) -> str:
        """Fully qualified name of an expression; "" if it does not come from an import."""
        found: Any = self.get_metadata(QualifiedNameProvider, node, set())
        names = [n.name for n in found if n.source.name == "IMPORT"]
        return names[0].replace("tensorflow.compat.v1.", "tensorflow.") if len(names) == 1 else ""

    def text(self, node: cst.CSTNode) -> str:
        return cst.Module([]).code_for_node(node)

    def changed(self, node: cst.CSTNode, reason: str) -> None:
        self.changes.add(Change(self.line(node), reason))

    def note(self, line: int, reason: str) -> None:
        """Record a change of a line."""
        self.changes.add(Change(line, reason))

    def left(self, node: cst.CSTNode, text: str, remedy: str) -> None:
        self.leave(self.line(node), text, remedy)

    def leave(self, line: int, text: str, remedy: str) -> None:
        """Record a change left to the user."""
        self.leftovers.add(Leftover(line, text, remedy))

    def need_import(self, line: str) -> None:
        """Request an import statement after the framework's."""
        if line not in self._needed.imports and line not in self.facts.source:
            self._needed.imports.append(line)

    def need_name(self, module: str, name: str) -> None:
        """Request `from module import name` after the framework's imports."""
        self._needed.names.setdefault(module, set()).add(name)

    def need_setup(self, line: str) -> None:
        """Request a statement after all leading imports."""
        if line not in self._needed.setup and line not in self.facts.source:
            self._needed.setup.append(line)

    def imports_from(self, module: str) -> bool:
        """True if a name of a module will be imported."""
        return module in self._needed.names

    def parent(self, node: cst.CSTNode) -> cst.CSTNode:
        found: Any = self.get_metadata(ParentNodeProvider, node)
        assert isinstance(found, cst.CSTNode)
        return found

    # -- the walk ----------------------------------------------------------------------------------------------

    def visit_Module(self, node: cst.Module) -> None:
        self._module = node

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        name = self.name(original_node.func)
        made = (rule(self, original_node, updated_node, name) for rules in self.rules for rule in rules.calls)
        return next((node for node in made if node is not None), updated_node)

    def leave_Attribute(
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> cst.BaseExpression:
        return self._named(original_node, updated_node)

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        parent = self.parent(original_node)
        if isinstance(parent, (cst.ImportAlias, cst.ImportFrom, cst.AsName, cst.Param)):
            return updated_node
        if isinstance(parent, (cst.Attribute, cst.Arg)) and original_node is not parent.value:
            return updated_node
        return self._named(original_node, updated_node)

    def _named(self, original_node: Any, updated_node: Any) -> cst.BaseExpression:
        name = self.name(original_node)
        made = (rule(self, original_node, name) for rules in self.rules for rule in rules.names)
        return next((node for node in made if node is not None), updated_node)

    def leave_SimpleString(
        self, original_node: cst.SimpleString, updated_node: cst.SimpleString
    ) -> cst.BaseExpression:
        value = original_node.evaluated_value
        if not isinstance(value, str) or isinstance(self.parent(original_node), cst.Expr):
            return updated_node
        return self._string(original_node, updated_node, value)

    def leave_FormattedStringText(
        self, original_node: cst.FormattedStringText, updated_node: cst.FormattedStringText
    ) -> cst.BaseFormattedStringContent:
        whole = self.parent(original_node)
        first = isinstance(whole, cst.FormattedString) and whole.parts[0] is original_node
        return self._string(original_node, updated_node, original_node.value) if first else updated_node

    def _string(self, original_node: Any, updated_node: Any, value: str) -> Any:
        made = (rule(self, original_node, value) for rules in self.rules for rule in rules.strings)
        return next((node for node in made if node is not None), updated_node)

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.BaseStatement | cst.RemovalSentinel:
        assert self._module is not None
        for rules in self.rules:
            for rule in rules.statements:
                text = rule(self, original_node, self.text(original_node).strip())
                if text == "" and self._may_go(original_node):
                    return cst.RemoveFromParent()
                if text is not None:
                    text = text or "pass\n"
                    made = statement(text, self._module.config_for_parsing)
                    return made.with_changes(
                        leading_lines=updated_node.leading_lines,
                        trailing_whitespace=updated_node.trailing_whitespace,
                    )
        return updated_node

    def _may_go(self, node: cst.SimpleStatementLine) -> bool:
        """True if a statement can be removed without losing a comment or emptying a block."""
        block = self.parent(node)
        if any(line.comment is not None for line in node.leading_lines):
            return False
        if isinstance(block, cst.IndentedBlock):
            self._gone[block] += 1
            return self._gone[block] < len(block.body)
        return isinstance(block, cst.Module)

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        for rules in self.rules:
            rules.imports(self)
        config = original_node.config_for_parsing
        lines = [
            *self._needed.imports,
            *(_import_line(module, sorted(names)) for module, names in self._named_imports()),
        ]
        body = list(updated_node.body)
        first, last = _places(body, self.roots)
        body[last:last] = [statement(f"\n{line}\n", config) for line in self._needed.setup]
        body[first:first] = [statement(f"{line}\n", config) for line in lines]
        return updated_node.with_changes(body=body)

    def _named_imports(self) -> list[tuple[str, set[str]]]:
        """The names to import that the file does not import yet."""
        found = []
        tree = ast.parse(self.facts.source)
        for module, names in sorted(self._needed.names.items()):
            had = {
                f"{alias.name} as {alias.asname}" if alias.asname else alias.name
                for node in ast.walk(tree)
                if isinstance(node, ast.ImportFrom) and node.module == module
                for alias in node.names
            }
            missing = set() if "*" in had else names - had
            if missing:
                found.append((module, missing))
        return found


def _places(body: Sequence[Any], roots: frozenset[str]) -> tuple[int, int]:
    """Positions of new imports (after the framework's first) and of new statements (after the imports there)."""
    first = next((i for i, node in enumerate(body) if _imports(node) & roots), None)
    if first is None:
        start = 0
        while start < len(body) and (_is_docstring(body[start]) or "__future__" in _imports(body[start])):
            start += 1
        return start, start
    last = first
    while last + 1 < len(body) and _imports(body[last + 1]):
        last += 1
    return first + 1, last + 1


def _import_line(module: str, names: Sequence[str]) -> str:
    """Format an import statement, with one name per line if it is long.

    >>> _import_line("os", ["path", "sep"])
    'from os import path, sep'
    """
    line = f"from {module} import {', '.join(names)}"
    return (
        line
        if len(line) <= _WIDTH
        else f"from {module} import (\n" + "".join(f"    {n},\n" for n in names) + ")"
    )


def _imports(node: cst.CSTNode) -> frozenset[str]:
    """Packages imported by a statement that does nothing else, including inside `try` and `if`."""
    found: set[str] = set()
    return frozenset(found) if _collect(node, found) else frozenset()


def _collect(node: cst.CSTNode, found: set[str]) -> bool:
    """Collect packages; False if there is anything but imports."""
    if isinstance(node, cst.Import):
        found |= {_first(alias.name) for alias in node.names}
        return True
    if isinstance(node, cst.ImportFrom):
        found |= {_first(node.module)} if node.module is not None else {"."}
        return True
    if isinstance(node, cst.SimpleStatementLine):
        return all(_collect(small, found) for small in node.body)
    if isinstance(node, cst.IndentedBlock):
        return all(_collect(inner, found) for inner in node.body)
    if isinstance(node, cst.If):
        return _collect(node.body, found) and (node.orelse is None or _collect(node.orelse, found))
    if isinstance(node, cst.Else):
        return _collect(node.body, found)
    if isinstance(node, cst.Try):
        return _collect(node.body, found) and all(_handled(handler) for handler in node.handlers)
    return False


def _handled(handler: cst.ExceptHandler) -> bool:
    """True if a handler is about the import: imports, assignments, `pass` and `raise`."""
    quiet = (cst.Import, cst.ImportFrom, cst.Assign, cst.Pass, cst.Raise)
    return all(
        isinstance(line, cst.SimpleStatementLine) and all(isinstance(small, quiet) for small in line.body)
        for line in handler.body.body
    )


def _first(node: cst.BaseExpression) -> str:
    while isinstance(node, cst.Attribute):
        node = node.value
    return node.value if isinstance(node, cst.Name) else ""


def _is_docstring(node: cst.CSTNode) -> bool:
    return (
        isinstance(node, cst.SimpleStatementLine)
        and isinstance(node.body[0], cst.Expr)
        and isinstance(node.body[0].value, (cst.SimpleString, cst.ConcatenatedString))
    )


def port_source(
    source: str, path: str, facts: Facts, rules: Iterable[Rules], roots: frozenset[str]
) -> Ported:
    """Port one file; new imports go after those of the packages `roots`."""
    porter = Porter(facts, list(rules), roots)
    after = MetadataWrapper(cst.parse_module(source)).visit(porter).code
    ast.parse(after)  # never write a file that a rule broke
    changes = sorted(porter.changes) if after != source else []
    return Ported(path, source, after, changes, sorted(porter.leftovers))
