"""sequence.py - at most one operand of a call, an operator or a list of initializers adds to a module.

C does not specify the order in which operands are evaluated: GCC evaluates the arguments of a call from the right, Clang from
the left. If two of them add operations, axes or globals, the compiler that compiles lmc decides the order in which the IR
lists them. Each such operand but one is computed into a variable before.

A function adds to a module if it is in SEEDS or calls one that does; also through a member of a struct to which a designated
initializer or an assignment gives one. First checks that the operands of PLANTED are found. Fails with the operands that
add after another one.
"""
import pathlib, re, subprocess, sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ["compiler", "dsl", "codegen", "driver", "lmc"]
SEEDS = {"lm_value_new", "lm_op_link", "lm_axis_add", "lm_axis_part", "extent_find", "lm_global_add", "lm_func_add"}
BLANKED = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
MACRO = re.compile(r"^#define (\w+)\([\w, .]*\)((?:[^\n]*\\\n)*[^\n]*)", re.M)
FUNCTION = re.compile(r"^(\w[\w \t*]*?)\b(\w+)\([^;{}]*?\) \{\n(.*?)^\}", re.M | re.S)
CALL = re.compile(r"(?:->|\.)?\b\w+\(")
POINTER = re.compile(r"\.(\w+) = (\w+)[,;}\n]")
TOKEN = re.compile(r"&&|\|\||[()\[\]{},;?:]")
PAIRS = {"(": ")", "[": "]", "{": "}"}
SEQUENCED = {"&&", "||", "?", ":", ";"}
CONTROL = {"if", "while", "for", "switch", "return", "sizeof"}

PLANTED = """\
static lm_value *one(lm_builder *b) {
  return lm_value_new(b);
}
static const methods m = {.read = one};
void operands(lm_builder *b, lm_value *x) {
  f(m->read(b), m->read(b)); // found
  f(x, one(b));
  f(one(b), g(x), one(b)); // found
  f(one(b), x ? x : one(b)); // found
  f(f(one(b), one(b)), x); // found
  int n = one(b)->id + one(b)->id; // found
  lm_value *in[] = {x, one(b), one(b)}; // found
  form y = (form){.a = one(b), .b = one(b)}; // found
  if (one(b) && one(b))
    f(x, one(b));
  lm_value *u = one(b), *v = one(b);
  for (u = one(b); v; v = one(b)) {
    f(one(b), u);
  }
  return x ? one(b) : f(one(b));
}
"""


def calls(text):
    """The names of the functions that a text calls; of pointers in a struct with a dot: .name"""
    return [re.sub(r"^(->|\.)", ".", c[:-1]) for c in CALL.findall(text)]


class Source:
    """A file: the bodies of its functions and macros, as name → (offset, text, is it of this file only)."""

    def __init__(self, path, text):
        self.path = path
        self.text = BLANKED.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)
        self.bodies = {m[1]: (m.start(2), m[2], path.endswith(".c")) for m in MACRO.finditer(self.text)}
        for m in FUNCTION.finditer(self.text):
            self.bodies[m[2]] = (m.start(3), m[3], "static" in m[1] and path.endswith(".c"))
        self.calls = {name: set(calls(body[1])) for name, body in self.bodies.items()}
        self.pointers = POINTER.findall(self.text)  # (member, function)
        self.own = {name for name, body in self.bodies.items() if body[2]}
        self.adds = set()   # of own

    def names(self, common):
        """The functions that add to a module, as this file names them."""
        return self.adds | (common - self.own)


def closure(sources):
    """The functions of all files that add to a module; sets `adds` of each file."""
    common, grew = set(SEEDS), True
    while grew:
        grew = False
        for s in sources:
            names = s.names(common)
            new = {f for f, calls in s.calls.items() if f not in names and not names.isdisjoint(calls)}
            s.adds |= new & s.own
            pointers = {"." + member for member, function in s.pointers if function in names} - common
            common |= (new - s.own) | pointers
            grew |= bool(new or pointers)
    return common


class Body:
    """Reads the body of a function; `found` holds the offsets of operands that add after another one."""

    def __init__(self, names, text):
        self.names, self.text, self.found = names, text, []
        self.tokens = TOKEN.finditer(text)
        self.group("{", False)

    def opening(self, bracket, offset, in_list):
        """Do the commas in this bracket separate operands? And the name before it."""
        before = self.text[max(offset - 80, 0):offset]
        name = re.search(r"((?:->|\.)?\w*) ?$", before)[1].replace("->", ".") if bracket == "(" else ""
        initializes = bracket == "{" and (in_list or before.endswith(("= ", ")", "]")))
        return initializes or (name != "" and name not in CONTROL), name

    def group(self, bracket, is_list):
        """Reads up to the end of a bracket; True if anything in it adds."""
        adds = earlier = own = part = False  # in the bracket, in earlier operands, in this one, in this part of it
        for m in self.tokens:
            token = m[0]
            if token == PAIRS[bracket]:
                break
            if token in PAIRS:
                inner_list, name = self.opening(token, m.start(), is_list)
                inner = self.group(token, inner_list) or (token == "(" and name in self.names)
                if inner and (earlier or part):
                    self.found.append(m.start())
                adds, own, part = adds or inner, own or inner, part or inner
                if name in CONTROL or (token == "{" and not inner_list):
                    part = False
            elif token == "," and is_list:
                earlier, own, part = earlier or own, False, False
            elif token == "," or token in SEQUENCED:
                part = False
        return adds


def found_in(sources):
    """(path, line) of each operand that adds after another one."""
    common = closure(sources)
    for s in sources:
        names = s.names(common)
        for start, text, _ in s.bodies.values():
            if sum(c in names for c in calls(text)) > 1:
                for offset in Body(names, text).found:
                    yield s.path, s.text.count("\n", 0, start + offset) + 1


def main():
    planted = {line for _, line in found_in([Source("planted.c", PLANTED)])}
    assert planted == {i for i, text in enumerate(PLANTED.split("\n"), 1) if "// found" in text}, planted
    files = subprocess.check_output(["git", "ls-files", "-z", *FOLDERS], cwd=ROOT, text=True).split("\0")
    sources = [Source(f, (ROOT / f).read_text()) for f in files if f.endswith((".c", ".h", ".y", ".def"))]
    found = sorted(set(found_in(sources)))
    for path, line in found:
        print(f"{path}:{line}: C does not specify whether this operand or an earlier one adds to the module first; compute it before")
    if not found:
        print("sequence: ok")
    return bool(found)


sys.exit(main())
