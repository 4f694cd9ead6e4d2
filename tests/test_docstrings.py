"""Docstrings name parameters, attributes and values that exist."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Iterator

import pytest

from source_tree import broken, modules, parsed

pytestmark = pytest.mark.timeout(240)  # reads all modules
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
SUBJECT = re.compile(r"(?:^|[.:;] |\n\n)`([a-z_]\w*)` (?:is|are|has|[a-z]+s)\b")
"""A name in backticks that is the subject of a sentence."""
SIGNATURE = re.compile(r"`[^`]*\(([^`]*)\)`")


def identifiers(tree: ast.AST) -> Iterator[str]:
    """Yield the parameters, variables, attributes, keywords and definitions in `tree`."""
    for node in ast.walk(tree):
        match node:
            case ast.arg(arg=name) | ast.keyword(arg=str(name)) | ast.Name(id=name) | ast.Attribute(attr=name):
                yield name
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name
            case ast.alias(name=name, asname=other):
                yield other or name


def string_words(tree: ast.AST) -> Iterator[str]:
    """Yield the words of all strings in `tree` except docstrings."""
    docs = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield from re.findall(r"\w+", node.value)


def module_names(tree: ast.Module) -> Iterator[str]:
    """Yield the names of all definitions in `tree`, and of the variables and imports at the top level."""
    yield from (node.name for node in ast.walk(tree) if isinstance(node, Definition))
    for node in tree.body:
        if not isinstance(node, Definition):
            yield from identifiers(node)


def described(definition: Definition, all_definitions: Iterable[Definition]) -> Iterator[Definition]:
    """Yield `definition`, its overloads, and its base classes in the same module."""
    bases = {node.id for node in getattr(definition, "bases", ()) if isinstance(node, ast.Name)}
    yield from (each for each in all_definitions if each.name == definition.name or each.name in bases)


def unknown_names(source: str) -> list[str]:
    """Return the names in backticks that docstrings in `source` describe, but that do not exist."""
    tree = parsed(source)
    definitions = [node for node in ast.walk(tree) if isinstance(node, Definition)]
    shared = {*dir(builtins), *module_names(tree), *string_words(tree)}
    found = []
    for definition in definitions:
        doc = re.sub(r"(?<!\n)\n(?![\n-])", " ", ast.get_docstring(definition) or "")
        subjects = set(SUBJECT.findall(doc)) - shared
        if subjects:
            own = {name for each in described(definition, definitions) for name in identifiers(each)}
            in_signatures = {name for text in SIGNATURE.findall(doc) for name in re.findall(r"\w+", text)}
            found += [f"{definition.name}: {name}" for name in sorted(subjects - own - in_signatures)]
    return found


def test_described_names_exist() -> None:
    """The subject of a sentence in a docstring, if it is a name in backticks, is a name in the code."""
    assert broken(lambda module: unknown_names(module.source), modules(), lambda module: module.name) == {}


def test_rule_catches_a_renamed_parameter() -> None:
    """The rule reports an unknown parameter or attribute. It accepts base classes, strings and signatures."""
    assert unknown_names('def f(new):\n    """Return `new`. `old` is the limit."""') == ["f: old"]
    assert unknown_names('class A:\n    """`old` returns text."""\n    def __init__(self, new): ...') == ["A: old"]
    source = """
class A:
    x: int
class B(A):
    '''`x` is a number. `kind` is a word. `args` contains the arguments of `call(args)`. `open` is a function.'''
    table = {"kind": 1}
"""
    assert unknown_names(source) == []
