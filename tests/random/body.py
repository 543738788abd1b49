"""Bodies of functions drawn at random: each operation is written at once in the language and in PyTorch.

In PyTorch a tensor's axes stand in the order that the language's rules give them; named.py holds what the rules say.
Drawn functions are continuous, possibly with kinks, and no norm is taken of less than four numbers: float32 has to follow float64.
"""
import math

INNER = "e f g h m n".split()


class Var:
    def __init__(self, name, axes):
        self.name, self.axes = name, list(axes)

    @property
    def inner(self):
        return [a for a in self.axes if a not in ("b", "t")]

    @property
    def text(self):                                   # for named.py
        return f"{self.name}, '{' '.join(self.axes)}'"


class Body:
    """A method's body: its values so far, axes with their sizes, parameters, and both texts."""
    def __init__(self, rng, sizes):
        self.r, self.size = rng, dict(sizes)
        self.lm, self.py, self.params, self.values, self.dims, self.n = [], [], [], [], [], 0

    def both(self, lm, py):
        self.lm.append(lm), self.py.append(py)

    def need(self, size, *taken):
        """a name for an axis of this size; where none is left, a declared one of another size"""
        return self.axis(size, *taken) or self.r.choice([a for a in INNER if a not in taken])

    def fresh(self, prefix="v"):
        self.n += 1
        return f"{prefix}{self.n}"

    def axis(self, size, *taken):
        """a name for a new axis of this size, possibly the name of a declared axis of the same size"""
        names = [a for a in INNER if a not in taken and self.size.get(a, size) == size]
        if not names:
            return None
        a = self.r.choice(names)
        if a not in self.size:
            self.size[a] = size
            self.dims.append(a)
        return a

    def param(self, axes, std=None, fill=None):
        name, axes = self.fresh("w"), list(axes)
        foreign = axes[:]
        self.r.shuffle(foreign)
        cut = self.r.randrange(len(foreign)) if foreign else 0
        groups = [foreign[:cut], *[[a] for a in foreign[cut:]]] if cut else [[a] for a in foreign]
        self.params.append((name, axes, groups, std, fill))
        shape = ", ".join(str(self.size[a]) for a in foreign)
        order = ", ".join(str(foreign.index(a)) for a in axes)
        self.py.append(f"{name} = W[p + '{name}'].reshape({shape}).permute({order})")
        return Var(name, axes)

    def let(self, lm, py, axes):
        v = Var(self.fresh(), axes)
        self.lm.append(f"let {v.name} = {lm}")
        self.py.append(f"{v.name} = {py}")
        self.values.append(v)
        return v

    def pick(self, enough=0):
        got = [v for v in self.values if len(v.inner) >= enough]
        return self.r.choice(got[-4:]) if got else None

    def some(self, axes, least=1):
        k = self.r.randint(least, len(axes))
        return self.r.sample(axes, k)

    # -- operations
    def project(self):
        v, new = self.pick(1), []
        over = self.some(v.inner)
        shared = [a for a in v.inner if a not in over and self.r.random() < 0.2]
        for _ in range(self.r.choice((0, 1, 1, 2))):
            a = self.axis(self.r.choice((2, 3, 4, 6)), *v.axes, *new)
            new += [a] if a else []
        axes = over + shared + new
        self.r.shuffle(axes)
        w = self.param(axes, std=self.norm(over))
        out = [a for a in v.axes if a not in over] + [a for a in w.axes if a in new]
        return self.let(f"dot({v.name}, {w.name}, ({', '.join(over)}))", f"dot({v.text}, {w.text}, '{' '.join(over)}')", out)

    def norm(self, axes):
        return math.prod(self.size[a] for a in axes) ** -0.5

    def to(self, v, axes):
        """v, made to have exactly these inner axes after b and t: by a dot if possible, else by a table of weights"""
        lost, new = [a for a in v.inner if a not in axes], [a for a in axes if a not in v.axes]
        if lost:
            w = self.param(self.some(lost + new, len(lost + new)), std=self.norm(lost))
            out = [a for a in v.axes if a not in lost] + [a for a in w.axes if a in new]
            v = self.let(f"dot({v.name}, {w.name}, ({', '.join(lost)}))", f"dot({v.text}, {w.text}, '{' '.join(lost)}')", out)
        elif new:
            w = self.param(self.some(new, len(new)), std=1)
            order = " ".join(v.axes + w.axes)
            v = self.let(f"expand({v.name}, {', '.join(w.axes)}) * {w.name}", f"spread({v.text}, '{order}') * spread({w.text}, '{order}')", v.axes + w.axes)
        want = ["b", "t", *axes]
        return v if v.axes == want else self.permute(v, want)

    def permute(self, v=None, axes=None):
        v = v or self.pick(1)
        axes = axes or self.some(v.axes, len(v.axes))
        return self.let(f"permute({v.name}, ({', '.join(axes)}))", f"spread({v.text}, '{' '.join(axes)}')", axes)

    def unary(self):
        v = self.pick()
        lm, py = self.r.choice((
            ("tanh({})", "{}.tanh()"), ("sin({})", "{}.sin()"), ("cos({})", "{}.cos()"), ("erf({})", "{}.erf()"),
            ("sigmoid({})", "{}.sigmoid()"), ("exp(-{0} * {0})", "(-{0} * {0}).exp()"), ("log(1 + {0} * {0})", "(1 + {0} * {0}).log()"), ("log1p({0} * {0})", "({0} * {0}).log1p()"),
            ("sqrt({0} * {0} + 0.1)", "({0} * {0} + 0.1).sqrt()"), ("rsqrt({0} ^ 2 + 0.5)", "({0} ** 2 + 0.5).rsqrt()"),
            ("abs({})", "{}.abs()"), ("0.1 * {0} ^ 3", "0.1 * {0} ** 3"), ("silu({})", "F.silu({})"), ("gelu({})", "F.gelu({})"),
            ("select({0} > 0, {0}, 0.2 * {0})", "torch.where({0} > 0, {0}, 0.2 * {0})"), ("softplus({})", "F.softplus({})"),
            ("sign({0}) * (sqrt(abs({0}) + 0.01) - 0.1)", "{0}.sign() * (({0}.abs() + 0.01).sqrt() - 0.1)"),
            ("stop_grad({0}) * 0.5 + {0}", "{0}.detach() * 0.5 + {0}"), ("minimum({}, 0.7)", "{}.clamp(max=0.7)"), ("-{}", "-{}"),
            ("{0} / (1 + abs({0}))", "{0} / (1 + {0}.abs())"), ("(1 - {0}) * {0} + 0.25", "(1 - {0}) * {0} + 0.25")))
        return self.let(lm.format(v.name), py.format(v.name), v.axes)

    def binary(self):
        u = self.pick()
        fits = [v for v in self.values if set(v.axes) <= set(u.axes)]
        if self.r.random() < 0.4:
            some = self.some(u.inner, 0)
            fits = [self.param(some, fill=self.r.choice((0, 1)))] if some else fits
        v = self.r.choice(fits)
        axes = u.axes
        if self.r.random() < 0.5:
            u, v = v, u
        if set(u.axes) == set(v.axes):                     # the first's order
            axes = u.axes
        x, y = (f"spread({q.text}, '{' '.join(axes)}')" for q in (u, v))
        lm, py = self.r.choice((("{} + {}", "{} + {}"), ("{} * {}", "{} * {}"), ("{} - {}", "{} - {}"),
                                ("maximum({}, {})", "torch.maximum({}, {})"), ("{0} / (1 + {1} * {1})", "{0} / (1 + {1} * {1})"),
                                ("select({0} < {1}, {0}, 2 * {1} - {0})", "torch.where({0} < {1}, {0}, 2 * {1} - {0})")))
        return self.let(lm.format(u.name, v.name), py.format(x, y), axes)

    def normed(self):
        v = self.pick(1)
        over = self.some(v.inner)
        kind = self.r.choice(("rms", "rms", "layer", "soft")) if self.norm(over) <= 0.5 else "soft"     # of two numbers a norm leaves the signs
        if kind == "soft":
            a = over[0]
            return self.let(f"softmax({v.name}, {a}) * {self.size[a]}", f"{v.name}.softmax({v.axes.index(a)}) * {self.size[a]}", v.axes)
        w = self.param(over, fill=1)
        if kind == "layer":
            c = self.param(over, fill=0)
            return self.let(f"layernorm({v.name}, {w.name}, {c.name})", f"layer({v.text}, {w.text}, {c.name})", v.axes)
        return self.let(f"rmsnorm({v.name}, {w.name})", f"rms({v.text}, {w.text})", v.axes)

    def reduce(self):
        v = self.pick(2)
        over = self.some(v.inner)
        f = self.r.choice(("sum", "mean", "max"))
        return self.let(f"{f}({v.name}, ({', '.join(over)}))", f"reduce({v.text}, '{f}', '{' '.join(over)}')",
                        [a for a in v.axes if a not in over])

    def split_axis(self):
        v = self.pick(1)
        even = [a for a in v.inner if self.size[a] % 2 == 0 and self.size[a] > 2]
        if not even:
            return self.unary()
        a = self.r.choice(even)
        sizes = [2, self.size[a] // 2]
        self.r.shuffle(sizes)
        x = self.axis(sizes[0], *v.axes)
        y = self.axis(sizes[1], *v.axes, x)
        if not x or not y:
            return self.unary()
        i = v.axes.index(a)
        return self.let(f"view({v.name}, {a} -> ({x}, {y}))", f"{v.name}.unflatten({i}, ({sizes[0]}, {sizes[1]}))", v.axes[:i] + [x, y] + v.axes[i + 1:])

    def merge(self):
        v = self.pick(2)
        pairs = [i for i in range(len(v.axes) - 1) if v.axes[i] in v.inner and v.axes[i + 1] in v.inner]
        if not pairs:
            return self.permute(v)
        i = self.r.choice(pairs)
        a = self.axis(self.size[v.axes[i]] * self.size[v.axes[i + 1]], *v.axes)
        if not a:
            return self.permute(v)
        return self.let(f"view({v.name}, ({v.axes[i]}, {v.axes[i + 1]}) -> {a})", f"{v.name}.flatten({i}, {i + 1})", v.axes[:i] + [a] + v.axes[i + 2:])

    def halves(self):
        """interval by interval: cut an axis in two, treat the parts differently, put them together again"""
        v = self.pick(1)
        long = [a for a in v.inner if self.size[a] >= 3]
        if not long:
            return self.unary()
        a = self.r.choice(long)
        k = self.r.randint(1, self.size[a] - 1)
        i = v.axes.index(a)
        x, y = self.fresh("lo"), self.fresh("hi")
        ax, ay = self.fresh("p"), self.fresh("q")
        self.lm.append(f"let ({x}, {y}) = split({v.name}, {a} -> ({ax} = {k}, {ay}))")
        self.py.append(f"{x}, {y} = {v.name}.split(({k}, {self.size[a] - k}), {i})")
        parts = [(x, ax, "tanh({})", "{}.tanh()"), (y, ay, "{} * 0.5", "{} * 0.5")]
        if self.r.random() < 0.5:
            parts.reverse()
        return self.let(f"concat(({', '.join(p[2].format(p[0]) for p in parts)}), ({', '.join(p[1] for p in parts)}) -> {a})",
                        f"torch.cat(({', '.join(p[3].format(p[0]) for p in parts)}), {i})", v.axes)

    def interval(self):
        """a range of an axis, padded with zeros"""
        v = self.pick(1)
        a = self.r.choice(v.inner)
        n, i = self.size[a], v.axes.index(a)
        if n < 3:
            return self.unary()
        first = self.r.randint(0, n - 2)
        size = self.r.randint(1, n - first)
        x = self.fresh("s")
        self.lm.append(f"let {x} = slice({v.name}, {a} -> ({x}a = {size}), {first})")
        self.py.append(f"{x} = {v.name}.narrow({i}, {first}, {size})")
        before = self.r.randint(0, n - size)
        return self.let(f"pad({x}, {x}a -> {a}, {before}, {n - size - before})",
                        f"torch.cat(({v.name}.narrow({i}, 0, {before}) * 0, {x}, {v.name}.narrow({i}, 0, {n - size - before}) * 0), {i})", v.axes)

    def windowed(self):
        v = self.pick(1)
        if not v.inner:
            return self.unary()
        a = self.r.choice(v.inner)
        n, i, taps, dilate = self.size[a], v.axes.index(a), self.r.randint(1, 3), self.r.randint(1, 2)
        before = self.r.randint(0, dilate * (taps - 1))
        after = dilate * (taps - 1) - before
        x = self.fresh("s")
        self.lm.append(f"let {x} = window({v.name}, {a} -> ({a}, {x}a = {taps}), before = {before}, after = {after}, dilate = {dilate})")
        self.py.append(f"{x} = torch.cat(({v.name}.narrow({i}, 0, 1).repeat_interleave({before}, {i}) * 0, {v.name}, "
                       f"{v.name}.narrow({i}, 0, 1).repeat_interleave({after}, {i}) * 0), {i})")
        return self.let(f"sum({x}, {x}a) / {taps}", f"sum({x}.narrow({i}, k * {dilate}, {n}) for k in range({taps})) / {taps}", v.axes)

    def paired(self):
        v = self.pick(1)
        even = [a for a in v.inner if self.size[a] == 2]
        if not even:
            return self.split_axis()
        a = self.r.choice(even)
        i = v.axes.index(a)
        x, y = self.fresh("x"), self.fresh("y")
        self.lm.append(f"let ({x}, {y}) = unstack({v.name}, {a})")
        self.py.append(f"{x}, {y} = {v.name}.unbind({i})")
        where, at = "", len(v.axes) - 1
        if i + 1 < len(v.axes):
            where, at = f", before = {v.axes[i + 1]}", i
        axes = [q for q in v.axes if q != a]
        return self.let(f"stack(({y} - {x}, {x} * {y}), {a}{where})", f"torch.stack(({y} - {x}, {x} * {y}), {at})", axes[:at] + [a] + axes[at:])

    def table(self):
        inner = [a for a in (self.axis(self.r.choice((2, 3, 4))) for _ in range(self.r.randint(0, 2))) if a]
        inner = list(dict.fromkeys(inner))
        n = self.axis(self.r.choice((3, 5)), *inner)
        if not n:
            return self.unary()
        axes = [n, *inner]
        self.r.shuffle(axes)
        w = self.param(axes, std=1)
        index, formula = self.r.choice((("pos mod {n}", "pos % {n}"), ("idiv(pos, 2) mod {n}", "pos // 2 % {n}"), ("minimum(pos, {n} - 1)", "pos.clamp(max={n} - 1)")))
        rest = [a for a in axes if a != n]
        return self.let(f"gather({w.name}, {index.format(n=n)}, {n})",
                        f"spread({w.text}, '{' '.join([n] + rest)}')[{formula.format(n=self.size[n])}]", ["b", "t", *rest])

    def chosen(self):
        """for each position the value that its position selects"""
        v = self.pick(1)
        a = self.r.choice(v.inner)
        if v.inner != [a]:
            return self.reduce() if len(v.inner) > 1 else self.unary()
        v = v if v.axes == ["b", "t", a] else self.permute(v, ["b", "t", a])
        return self.let(f"gather({v.name}, pos mod {a}, {a})", f"{v.name}.gather(2, (pos % {self.size[a]})[..., None])[..., 0]", ["b", "t"])

    def scores(self, x, heads, g, e):
        """queries, keys and their scores before any mask; also what history gave"""
        in_k = self.some(e, len(e))                         # rows of two axes stand in another order in keys
        q, k = self.to(x, [*heads, *e]), self.to(x, [g, *in_k])
        if len(e) == 1 and self.size[e[0]] % 2 == 0 and self.r.random() < 0.5:
            q, k = (self.let(f"rope({u.name}, pos, 100)", f"rope({u.text}, pos, 100.0)", u.axes) for u in (q, k))
        f = self.need(self.r.choice((2, 3, 4)), *heads, *e)
        v = self.to(x, [g, f])
        ks, vs, ps, ss, a = (self.fresh(c) for c in ("ks", "vs", "ps", "ss", "a"))
        self.lm.append(f"let ({ks}, {vs}, {ps}, {ss}) = history(({k.name}, {v.name}, pos, seg), t -> s)")
        self.py += [f"{ks}, {vs} = {k.name}, {v.name}", "back = pos[:, :, None] - pos[:, None, :]"]
        over = self.some(e, len(e))
        self.both(f"let {a} = f32(dot({q.name}, {ks}, ({', '.join(over)}))) * rsqrt({' * '.join(e)})",
                  f"{a} = dot({q.text}, {ks}, 'b s {g} {' '.join(in_k)}', '{' '.join(over)}') * {math.prod(self.size[i] for i in e)} ** -0.5")
        return a, f, vs, ps, ss

    def biased(self, a, heads, g, ps, taken):
        """a soft cap, a slope for each group, or a table of relative positions on the scores a[b, t, heads, s]"""
        order, over, kind = f"b t {' '.join(heads)} s", ", ".join(heads), self.r.choice(("", "", "cap", "slope", "table"))
        if kind == "cap":
            self.both(f"let {a}c = 3 * tanh({a} / 3)", f"{a}c = 3 * ({a} / 3).tanh()")
        elif kind == "slope":
            w = self.param([g], fill=0)
            self.both(f"let {a}c = {a} + expand(f32({ps}) - f32(expand(pos, s)), {over}, before = s) * f32({w.name})",
                      f"{a}c = {a} - spread(back.double(), 'b t s', '{order}') * spread({w.text}, '{order}')")
        elif kind == "table":
            n = self.need(5, *taken)
            w, r = self.param([g, n], std=1), self.fresh("r")
            self.both(f"let {r} = f32(gather({w.name}, minimum(abs(expand(pos, s) - {ps}), {n} - 1), {n}))",
                      f"{r} = spread({w.text}, '{n} {g}')[back.abs().clamp(max={self.size[n] - 1})]")
            wide = r if heads == [g] else f"expand({r}, {heads[1]})"
            self.both(f"let {a}c = {a} + permute({wide}, (b, t, {over}, s))", f"{a}c = {a} + spread({r}, 'b t s {g}', '{order}')")
        return a + "c" if kind else a

    def meet(self):
        """positions meet: attention of one kind or another, through history"""
        x = self.pick(1)
        g = self.need(self.r.choice((1, 2, 3)))
        heads = [g, self.need(2, g)] if self.r.random() < 0.6 else [g]
        e = [self.need(self.r.choice((2, 4)), *heads)]
        e += [self.need(3, *heads, *e)] if self.r.random() < 0.3 else []
        a, f, vs, ps, ss = self.scores(x, heads, g, e)
        lm, py = self.r.choice((("", ""), ("", ""), (f" & expand(pos, s) < {ps} + 4", " & (back < 4)"),
                                (f" & ((expand(pos, s) - {ps}) mod 2 == 0)", " & (back % 2 == 0)")))
        see = self.fresh("see")
        self.both(f"let {see} = expand(pos, s) >= {ps} & expand(seg, s) == {ss}{lm}",
                  f"{see} = (back >= 0) & (seg[:, :, None] == seg[:, None, :]){py}")
        a = self.biased(a, heads, g, ps, [*heads, *e, f])
        order, out, value = f"b t {' '.join(heads)} s", ["b", "t", *heads, f], f"{vs}, 'b s {g} {f}', 's'"
        way = self.r.choice(("attend", "attend", "hand", "linear", "best"))
        if way == "attend":
            return self.let(f"attend({a}, {vs}, {see})", f"dot(masked({a}, {see}, '{order}', -1e30).softmax(-1), '{order}', {value})", out)
        if way == "linear":
            return self.let(f"dot(real(select({see}, {a}, 0)), {vs}, s)", f"dot(masked({a}, {see}, '{order}', 0.0), '{order}', {value})", out)
        if way == "best":
            return self.let(f"real(max(select({see}, {a}, -1e30), s))", f"masked({a}, {see}, '{order}', -1e30).amax(-1)", ["b", "t", *heads])
        p = self.fresh("p")
        self.both(f"let {p} = exp(select({see}, minimum({a}, 4), -1e30))", f"{p} = masked({a}.clamp(max=4), {see}, '{order}', -1e30).exp()")
        return self.let(f"dot(real({p} / (0.5 + sum({p}, s))), {vs}, s)", f"dot({p} / (0.5 + {p}.sum(-1, keepdim=True)), '{order}', {value})", out)

    def shift(self):
        v = self.pick(1)
        v = v if v.axes[:2] == ["b", "t"] else self.permute(v, ["b", "t", *v.inner])
        vs, ps, ss = (self.fresh(c) for c in ("vs", "ps", "ss"))
        self.lm.append(f"let ({vs}, {ps}, {ss}) = history(({v.name}, pos, seg), t -> s)")
        inner = " ".join(v.inner)
        return self.let(f"dot(real(select(expand(pos, s) == {ps} + 1 & expand(seg, s) == {ss}, 1.0, 0.0)), {vs}, s)",
                        f"dot(((pos[:, :, None] == pos[:, None, :] + 1) & (seg[:, :, None] == seg[:, None, :])).double(), 'b t s', {v.name}, 'b s {inner}', 's')",
                        ["b", "t", *v.inner])

    OPS = dict(project=6, unary=5, binary=6, normed=3, reduce=2, split_axis=2, merge=2, permute=1, halves=1, interval=1, windowed=1, paired=2,
               table=1, chosen=1, meet=3, shift=1)

    def draw(self, n):
        for _ in range(n):
            f = self.r.choices(list(self.OPS), list(self.OPS.values()))[0]
            need = {"reduce": 2, "merge": 2, "unary": 0, "binary": 0, "table": 0}.get(f, 1)     # inner axes
            if self.pick(need):
                getattr(self, f)()
