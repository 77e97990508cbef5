"""Small faults, one at a time: what a slip of the hand would leave behind in the source.

Every mutant is one changed node of the syntax tree. Left alone: annotations, decorators, imports,
documentation, the text of messages. The families are those of the public lists that safety code
for vehicles is tested with: comparison flip, boundary, arithmetic, constant, boolean, negation,
assignment, removal.
"""

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

FLIPS = {
    ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
BOUNDARIES = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
ARITHMETIC = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.MatMult: ast.Mult,
}  # fmt: skip
SWAPPED_CALLS = {
    "min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "argmin": "argmax",
    "argmax": "argmin", "narrow_up": "narrow_down", "narrow_down": "narrow_up",
    "settle_up": "settle_down", "settle_down": "settle_up",
}  # fmt: skip
BARE_CALLS = {"abs", "sqrt", "bool", "float"}
CONDITIONS = (ast.If, ast.While, ast.IfExp)
REMOVED = (ast.Raise, ast.Continue, ast.Break, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr)
UNTOUCHED = (ast.JoinedStr, ast.Import, ast.ImportFrom)


@dataclass(frozen=True)
class Mutant:
    """One fault."""

    file: str
    line: int
    family: str
    change: str
    """`before -> after`."""
    owner: str
    """Function or method whose code changes; empty: the module itself, or a class body."""
    code: CodeType
    """Of the whole module."""
    source: str
    """Of the whole module, where there is no owner."""


def function_code(code: CodeType, owner: str) -> CodeType | None:
    """Code of function `owner` inside the code of its module."""
    for const in code.co_consts:
        if isinstance(const, CodeType):
            if const.co_qualname == owner:
                return const
            if owner.startswith(f"{const.co_qualname}."):
                found = function_code(const, owner)
                if found is not None:
                    return found
    return None


def mutants_of(file: str, text: str) -> Iterator[Mutant]:
    """Every mutant of a module's source text."""
    tree = ast.parse(text)
    for parent, field, index, node, owner in list(_sites(tree, "")):
        for family, new in _variants(parent, field, node):
            if (family == "removal" and not owner) or ast.dump(new) == ast.dump(node):
                continue
            ast.copy_location(new, node)
            change = f"{_short(node)} -> {_short(new)}"
            _put(parent, field, index, new)
            ast.fix_missing_locations(tree)
            source = "" if owner else ast.unparse(tree)
            code = compile(tree, file, "exec")
            _put(parent, field, index, node)
            yield Mutant(file, node.lineno, family, change, owner, code, source)


def _short(node: ast.AST) -> str:
    text = ast.unparse(node).split("\n")[0]
    return text if len(text) <= 90 else f"{text[:87]}..."


def _put(parent: ast.AST, field: str, index: int | None, new: ast.AST) -> None:
    if index is None:
        setattr(parent, field, new)
    else:
        getattr(parent, field)[index] = new


def _sites(node: ast.AST, owner: str, path: tuple[str, ...] = ()) -> Iterator[tuple]:
    """(parent, field, index, node, owner) of every node that may change."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "bases"):
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST) or isinstance(child, UNTOUCHED):
                continue
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                continue
            inside = owner
            if isinstance(node, ast.FunctionDef | ast.Lambda) and field == "body" and not owner:
                inside = ".".join(path)
            named = isinstance(child, ast.FunctionDef | ast.ClassDef)
            if hasattr(child, "lineno"):
                yield node, field, index, child, inside
            if not isinstance(child, ast.Raise):
                yield from _sites(child, inside, (*path, child.name) if named else path)


def _variants(parent: ast.AST, field: str, node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node, ast.expr):
        yield from _expressions(node)
        if isinstance(parent, CONDITIONS) and field == "test":
            yield "negation", ast.UnaryOp(ast.Not(), copy.deepcopy(node))
            if isinstance(parent, ast.If):
                yield "removal", ast.Constant(False)
    if isinstance(node, ast.AugAssign):
        kind = ARITHMETIC.get(type(node.op))
        if kind is not None:
            yield "arithmetic", ast.AugAssign(node.target, kind(), node.value)
        yield "assignment", ast.Assign([node.target], node.value)
    if isinstance(node, ast.Return) and not _is_nothing(node.value):
        yield "removal", ast.Return(ast.Constant(None))
    if isinstance(node, REMOVED):
        yield "removal", ast.Pass()


def _is_nothing(value: ast.expr | None) -> bool:
    """None, False or an empty tuple: to return None instead is the same to everyone who asks."""
    if isinstance(value, ast.Tuple):
        return not value.elts
    return value is None or (isinstance(value, ast.Constant) and value.value in (None, False))


def _expressions(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.Compare):
        for table, family in ((FLIPS, "comparison"), (BOUNDARIES, "boundary")):
            for i, operator in enumerate(node.ops):
                if type(operator) in table:
                    ops = [*node.ops]
                    ops[i] = table[type(operator)]()
                    yield family, ast.Compare(node.left, ops, node.comparators)
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        family = "boolean" if isinstance(node.op, ast.BitAnd | ast.BitOr) else "arithmetic"
        yield family, ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield "arithmetic", node.operand
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "negation", node.operand
    elif isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield "boolean", ast.BoolOp(other, node.values)
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield "boolean", ast.Constant(not node.value)
        elif isinstance(node.value, int | float):
            yield "constant", ast.Constant(node.value + 1)
    elif isinstance(node, ast.Call):
        yield from _calls(node)


def _calls(node: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
    if name in SWAPPED_CALLS:
        swapped = copy.copy(node.func)
        setattr(swapped, "id" if isinstance(swapped, ast.Name) else "attr", SWAPPED_CALLS[name])
        yield "arithmetic", ast.Call(swapped, node.args, node.keywords)
    if name in BARE_CALLS and len(node.args) == 1:
        yield "arithmetic", node.args[0]
