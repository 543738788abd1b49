#!/usr/bin/python3
"""Measures the source tree and fails if a figure exceeds its bound.

usage: figures.py [BUILD]
    BUILD   a build folder: also the circles of calls between source files, from object files
"""
import os, re, subprocess, sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOKEN = re.compile(r'''"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[A-Za-z_]\w*|\d[\w.]*|->|\+\+|--|<<=?|>>=?'''
                   r'''|[-+*/%&|^=!<>]=|&&|\|\||\.\.\.|\S''')
MAY_BE_CIRCULAR = re.compile(r"^(dsl/(elab|.*/elab)|runtime/template)")     # evaluators of nested expressions


def tracked(*patterns):
    out = subprocess.run(["git", "ls-files", "--", *patterns], cwd=ROOT, text=True, stdout=subprocess.PIPE, check=True)
    return [p for p in out.stdout.split("\n") if p]


def text_of(path):
    with open(os.path.join(ROOT, path), errors="replace") as f:
        return f.read()


def without_comments(text):
    keep_lines = lambda m: "\n" * m.group().count("\n")
    return re.sub(r"//[^\n]*", "", re.sub(r"/\*.*?\*/", keep_lines, text, flags=re.S))


def tokens_per_line(paths):
    tokens = lines = 0
    for path in paths:
        for line in without_comments(text_of(path)).split("\n"):
            n = len(TOKEN.findall(line))
            tokens += n
            lines += n > 0
    return tokens / max(lines, 1)


def wide_lines(paths):
    return [f"{p}:{i}" for p in paths for i, line in enumerate(text_of(p).split("\n"), 1) if len(line) > 100]


def function_lengths(paths):
    """lines between the braces of each function, in files whose function bodies end with a brace in the first column"""
    out = []
    for path in paths:
        start = None
        for i, line in enumerate(text_of(path).split("\n"), 1):
            if re.match(r"[A-Za-z_].*\) *\{$", line) and not line.startswith(("typedef", "enum", "struct ")):
                start = i
            elif line == "}" and start:
                out.append((i - start - 1, f"{path}:{start}"))
                start = None
    return sorted(out)


def symbols(paths):
    """by object file: (defined, undefined) global names"""
    out = subprocess.run(["nm", "-A", "-P", *paths], text=True, stdout=subprocess.PIPE, check=True).stdout
    found = {path: (set(), set()) for path in paths}
    for line in out.splitlines():
        path, name, kind = line.split()[:3]
        defined, undefined = found[path.rstrip(":")]
        if kind in "TDBRV":
            defined.add(name)
        elif kind == "U":
            undefined.add(name)
    return found


def object_files(build):
    """by source file: one of its object files"""
    objects = {}
    for folder, _, names in os.walk(build):
        for name in names:
            source = re.search(r"\.dir/(.*\.c)\.o$", os.path.join(folder, name))
            if source and not source[1].startswith("tests/") and os.path.exists(os.path.join(ROOT, source[1])):
                objects[source[1]] = os.path.join(folder, name)
    return objects


def calls(build):
    """which source file uses a name that another one defines"""
    objects = object_files(build)
    if not objects:
        sys.exit(f"figures.py: {build} has no object files: build first")
    names = symbols(sorted(objects.values()))
    owner = {n: source for source, path in objects.items() for n in names[path][0]}
    return {s: {owner[n] for n in names[path][1] if owner.get(n, s) != s} for s, path in objects.items()}


def circles(edges):
    """strongly connected components of more than one file (Tarjan)"""
    sys.setrecursionlimit(10000)
    index, low, stack, out = {}, {}, [], []

    def visit(v):
        index[v] = low[v] = len(index)
        stack.append(v)
        for w in edges.get(v, ()):
            if w not in index:
                visit(w)
            if w in stack:
                low[v] = min(low[v], low[w])
        if low[v] == index[v]:
            at = stack.index(v)
            if len(stack) - at > 1:
                out.append(sorted(stack[at:]))
            del stack[at:]

    for v in edges:
        if v not in index:
            visit(v)
    return out


class Report:
    def __init__(self):
        self.failed = 0

    def line(self, what, value, bound, locations=()):
        bad = value > bound
        self.failed += bad
        print(f"{'FAIL' if bad else 'ok  '}  {what}: {value:.4g} (at most {bound})")
        for location in list(locations)[:10] if bad else ():
            print(f"        {location}")


def main():
    r = Report()
    code = [p for p in tracked("*.c", "*.h") if not p.startswith("tests/")]
    text = [p for p in tracked("*.c", "*.h", "*.def", "*.cuh", "*.cu", "*.lm", "*.sh") if not p.startswith("tests/")]
    r.line("tokens per line of code", tokens_per_line(code), 10)
    wide = wide_lines(text)
    r.line("lines of more than 100 columns", len(wide), 0, wide)
    lengths = function_lengths(code)
    r.line("lines of a function, 90th percentile", lengths[len(lengths) * 9 // 10][0], 25)
    r.line("lines of the longest function", lengths[-1][0], 80, [lengths[-1][1]])
    sizes = sorted((text_of(p).count("\n"), p) for p in code)
    r.line("lines of the longest file", sizes[-1][0], 600, [f"{n} {p}" for n, p in sizes[:-6:-1]])
    helpers = [p for p in code if p.startswith("lmc/") and not re.match(r"lmc/cmd_\w+\.c$", p)]
    r.line("lines of lmc/ beside cmd_*.c", sum(text_of(p).count("\n") for p in helpers), 625)
    commands = sorted((n, p) for n, p in sizes if re.match(r"lmc/cmd_\w+\.c$", p))
    r.line("lines of the longest cmd_*.c", commands[-1][0], 150, [f"{n} {p}" for n, p in commands[::-1]])
    if len(sys.argv) > 1:
        found = [c for c in circles(calls(sys.argv[1])) if not all(MAY_BE_CIRCULAR.match(p) for p in c)]
        r.line("circles of calls between files", len(found), 0, [" ".join(c) for c in found])
    return r.failed > 0


sys.exit(main())
