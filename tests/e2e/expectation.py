"""The expected and the found values of a failed check, read from its source: `check(got["steps"] == 2, …)` that fails says

    test_json.py:36: expected got["steps"] == 2
      found got["steps"] = 3
"""
import ast, os, reprlib

SHORT = reprlib.Repr()
SHORT.maxother = SHORT.maxstring = 400
SHORT.maxlist = SHORT.maxdict = SHORT.maxset = SHORT.maxtuple = 12
SHORT.maxlevel = 4


def call_of(frame):
    """The syntax tree and the text of the call that the frame executes; None without the source."""
    where = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    try:
        text = open(frame.f_code.co_filename, encoding="utf-8").read()
    except OSError:
        return None, None
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset) == where:
            return node, text
    return None, None


def is_plain(node):
    """True if a second evaluation has no effect: names, attributes and elements."""
    return all(isinstance(n, (ast.Name, ast.Attribute, ast.Subscript, ast.Slice, ast.Constant, ast.expr_context,
                              ast.UnaryOp, ast.unaryop)) for n in ast.walk(node))


def parts(node):
    """The largest plain parts of an expression, in the order of the text, without constants and functions' names."""
    if isinstance(node, ast.Call):
        children = [*node.args, *(k.value for k in node.keywords)]
        children += [node.func.value] if isinstance(node.func, ast.Attribute) else []
    elif isinstance(node, ast.Constant):
        return
    elif is_plain(node):
        yield node
        return
    else:
        children = ast.iter_child_nodes(node)
    for child in children:
        yield from parts(child)


def found(node, text, frame):
    """'source = value' of each plain part of the expression that has a value in the frame"""
    lines = {}
    for part in parts(node):
        source = ast.get_source_segment(text, part)
        try:
            value = eval(compile(ast.Expression(part), "check", "eval"), frame.f_globals, frame.f_locals)
        except Exception:                      # a comprehension's variable
            continue
        if not callable(value):
            lines.setdefault(source, f"  found {source} = {SHORT.repr(value)}")
    return list(lines.values())


def explain(frame):
    """The lines about the failed call, whose first argument is the expected condition."""
    where = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
    call, text = call_of(frame)
    if not call or not call.args:
        return [where]
    expected = " ".join(ast.get_source_segment(text, call.args[0]).split())
    return [f"{where}: expected {expected}", *found(call.args[0], text, frame)]
