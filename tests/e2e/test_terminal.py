"""The output of a run on a terminal: lines that fit its width, and one row for the status line."""
import fcntl, json, os, pty, re, struct, subprocess, termios, threading

from harness import ROOT, check, small

BYTES = """import "{root}/examples/llama.lm": Llama
data Text {{ tokenizer = bytes(); source s = text("text.txt"); pack best_fit(seq = 32 tokens) }}
recipe Train {{
  model = Llama(depth = 1, d = 32, ff = 64, heads = 2, kv = 1, e = 16, vocab = 256)
  data = Text; run = 1 steps; batch = 128 tokens; optimizer = adamw(lr = 1e-2)
}}
"""


class Screen:
    """The rows that a terminal of this width shows; a character in the last column waits for the next one to wrap."""

    def __init__(self, width):
        self.width, self.rows, self.row, self.column = width, [""], 0, 0

    def newline(self):
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append("")

    def put(self, c):
        if self.column == self.width:
            self.newline()
            self.column = 0
        line = self.rows[self.row].ljust(self.column)
        self.rows[self.row] = line[: self.column] + c + line[self.column + 1 :]
        self.column += 1

    def feed(self, text):
        for part in re.findall(r"\x1b\[K|\r|\n|[^\x1b]", text):
            if part == "\x1b[K":
                self.rows[self.row] = self.rows[self.row][: self.column]
            elif part == "\r":
                self.column = 0
            elif part == "\n":
                self.newline()
            else:
                self.put(part)


def on_terminal(run, width, *args, status=0, **env):
    """all that the command writes to a terminal of this width, which a second thread reads as it comes"""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    chunks = []

    def read():
        try:
            while chunk := os.read(ours, 65536):
                chunks.append(chunk)
        except OSError:                     # the other end of the terminal is closed
            pass
    reader = threading.Thread(target=read)
    reader.start()
    code = subprocess.run([run.lmc, *map(str, args)], stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, cwd=run.folder,
                          env={**os.environ, **env}).returncode
    os.close(theirs)
    reader.join()
    os.close(ours)
    text = b"".join(chunks).decode(errors="replace")
    check(code == status, f"exit status {code}\n{text}")
    return text


def test_widths(run):
    """no line is wider than the terminal, the status line takes one row, and drops what matters least"""
    file, steps = small(run, steps=6), 6
    for width in (200, 100, 80, 60, 40, 20, 7):
        text = on_terminal(run, width, "run", file, "--out", run.path(f"run-{width}"))
        screen = Screen(width)
        screen.feed(text)
        shown = "\n".join(screen.rows)
        updates = re.findall(r"\r\x1b\[K(step [^\r\n]*)", text)
        check(len(updates) == steps, f"{width} columns: {len(updates)} updates\n{text!r}")
        check(all(len(line) < width for line in updates), f"{width} columns: {updates}")
        if width < 20:
            continue
        rows = [row for row in screen.rows if row.startswith("step ")]
        check(rows == updates[-1:], f"{width} columns: not one row for the status\n{shown}")
        fields = {80: ("step", "loss", "lr", "norm", "tok/s", "ETA"), 60: ("step", "loss", "tok/s", "ETA"), 40: ("step", "loss", "ETA"), 20: ("step 6/6",)}
        for field in fields.get(width, ("step", "loss", "lr", "norm", "tok/s", "MFU", "ETA", "B")):
            check(field in rows[0], f"{width} columns: no {field} in {rows[0]!r}")
        if width >= 60:
            memory = shown[shown.index("memory") :]
            memory = memory[: memory.index("time ")].rstrip()
            first, *more = memory.split("\n")
            check(all(len(x) <= width and x.startswith(" " * 8 + x.strip()[:1]) for x in more), f"{width} columns:\n{shown}")
            whole = " ".join(x.strip() for x in (first, *more))
            check(bool(more) == (len(whole) > width), f"{width} columns: the line about memory is not broken where it must be\n{shown}")
            check(re.fullmatch(r"memory  [\d.]+ .B: (\w[\w ]* [\d.]+ (.B|bytes)(, )?)+", whole), whole)


def test_check_fits(run):
    """the report of lmc check is broken where a terminal ends, and whole in a pipe; the table of parameters fits, and so do errors"""
    program = open(small(run, steps=1)).read()
    call = re.search(r"model = (Llama\(.*\))", program)[1]
    edited = f"model Part = {call} with {{ freeze @**\n  adapt @layers.*.**.wq = lora(rank = 4) }}\n"
    file = run.write("part.lm", "import std.adapt: lora\n" + program.replace(call, "Part").replace("data Batches {", edited + "data Batches {")
                     .replace("group @**", "# group @**"))
    text = on_terminal(run, 80, "check", file).replace("\r", "")
    whole = run("check", file)
    check(max(map(len, text.splitlines())) <= 80 < max(map(len, whole.splitlines())), text)
    check(text.split() == whole.split(), "a word is lost")
    check(any(row.endswith("  frozen") and "layers.#.attn.wo" in row for row in text.splitlines()), text)
    error = on_terminal(run, 60, "new", "x", "--data", "part.lm", "--arch", "none", status=1).replace("\r", "")
    check(max(map(len, error.splitlines())) <= 60 and error.split() == run("new", "x", "--data", "part.lm", "--arch", "none", status=1).split(), error)


def test_diagnostics_fit(run):
    """headline, label and notes of a located error are broken where a terminal ends, the quoted source is not; a pipe gets whole lines"""
    program = open(f"{ROOT}/examples/llama.lm").read()
    run.write("wrong.lm", program.replace("dot(x, wk, d)", "dot(x, wk, nothing)", 1).replace("qwen3", "qwen-of-another-world", 1))
    whole = run("check", "wrong.lm", cwd=run.folder, status=1)
    for width in (80, 60):
        text = re.sub(r"\x1b\[[\d;]*m", "", on_terminal(run, width, "check", "wrong.lm", status=1)).replace("\r", "")
        lines = [x for x in text.splitlines() if not re.match(r"\d+ \||`lmc explain", x)]
        check(max(map(len, lines)) <= width < max(len(x) for x in whole.splitlines() if not re.match(r"\d+ \|", x)), text)
        check(text.split()[: len(whole.split())] == whole.split(), f"a word is lost\n{text}\n{whole}")


def test_reports_fit(run):
    """the reports of doctor, memory, data, import and export are broken where a terminal ends, in their last column, and whole in a pipe"""
    run.write("text.txt", "the cat sat on the mat and the dog sat by the door\n" * 100)
    file = run.write("bytes.lm", BYTES.format(root=ROOT).replace("32 tokens", "160 tokens").replace("128 tokens", "160 tokens"))
    run("run", file, "--out", run.path("run"), "-q")
    run("export", run.path("run"), "-o", run.path("hf"))
    model = "import", "hf", run.path("hf"), "--model", f"{ROOT}/examples/llama.lm:Llama", "-o"
    sizes = lambda text: re.sub(r"[\d.]+\s+\w?B", "", text).split()
    for column, command in ((26, ("doctor",)), (14, ("explain", file, "memory")), (4, ("data", file, "--show", 1)), (2, (*model, run.path("one"))), (2, ("export", run.path("run"), "-o", run.path("hf")))):
        whole, text = run(*command), on_terminal(run, 60, *command).replace("\r", "")
        lines = text.splitlines()
        check(sizes(whole) == sizes(text), f"a word is lost\n{text}")
        check(max(len(x) for x in lines if not re.search(r"\S{20,}$", x)) <= 60 < max(map(len, whole.splitlines())), text)
        check(any(re.match(" " * column + r"\S", x) for x in lines if x not in whole.splitlines()), text)


def test_help_fits(run):
    """help is broken where a terminal ends, in a pipe and in docs/commands.md after 100 columns; commands to copy stay whole"""
    for command in ("--help",), ("run", "--help"), ("tokenizer", "--help"), ("doctor", "--help"):
        text, piped = on_terminal(run, 60, *command).replace("\r", ""), run(*command)
        whole = [x for x in piped.splitlines() if len(x) > 60 and re.match(r"  (lmc|echo) ", x)]
        lines = [x for x in text.splitlines() if x not in whole]
        check(max(map(len, lines)) <= 60 < max(map(len, piped.splitlines())) <= 100, text)
        check(text.split() == piped.split(), f"a word is lost\n{text}")
    options = on_terminal(run, 60, "run", "--help").replace("\r", "")
    check("  --change KEY                 on resume, accepts another\n" + " " * 31 + "value of KEY" in options, options)
    check("\n  echo 'Hello, world!' | lmc tokenizer encode 'bpe(\"encoder.json\", \"vocab.bpe\")'\n"
          in on_terminal(run, 60, "tokenizer", "--help").replace("\r", ""), "a command is broken")


def test_no_terminal(run):
    """a pipe gets whole lines"""
    out = run("run", small(run, steps=3), "--out", run.path("run"))
    check("\x1b" not in out and "\r" not in out, repr(out))
    lines = [line for line in out.splitlines() if line.startswith("step ")]
    check(len(lines) == 3 and all("ETA" in x and re.search(r"\d[kMG]?B$", x) for x in lines), out)
    check(sum(line.startswith("memory") for line in out.splitlines()) == 1 and "\n        " not in out, out)


def test_plan_before_measurement(run):
    """a pipe gets the lines of the plan before a micro-batch is measured, which can take minutes"""
    run.write("text.txt", "In the beginning\n" * 100)
    text = BYTES.format(root=ROOT).replace("run = 1 steps; batch = 128", "run = 9 steps; micro = 192Ki tokens; batch = 192Ki")
    p = run.start("run", run.write("large.lm", text), "--out", run.path("large"))
    first = p.stdout.readline()
    p.kill()
    out = p.stdout.read()
    p.communicate()
    check(first.startswith("model ") and "time " not in out, first + out)


def test_eval_shows_its_progress(run):
    """lmc eval shows tokens done, tokens to do and the time left in one row, which the result replaces"""
    run.write("text.txt", "the cat sat on the mat and the dog sat by the door\n" * 100)
    run("run", run.write("bytes.lm", BYTES.format(root=ROOT)), "--out", run.path("run"), "-q")
    text = on_terminal(run, 80, "eval", run.path("run"), "--on", "train")
    updates = re.findall(r"\r(train: [^\r\n\x1b]*)", text)
    check(updates and all(re.fullmatch(r"train: [\d.]+[kM]? of [\d.]+[kM]? tokens  ETA .*s", x) for x in updates), repr(text))
    screen = Screen(80)
    screen.feed(text)
    check([row.split()[:2] for row in screen.rows if row.startswith("train")] == [["train", "loss"]], screen.rows)
    text = on_terminal(run, 80, "generate", run.path("run"), "--prompt", "a", "-n", 2000, "-t", 3).replace("\r\n", "\n")
    check(re.search(r"\\x[01][0-9a-f]", text) and set(hidden(text)) <= {"\t"}, f"bytes that a model generates control the terminal: {hidden(text)}")


HOSTILE = "red \x1b[31m rtl \u202e bell \x07 tab \t del \x7f c1 \x9b"


def hidden(text):
    return [c for c in text if (ord(c) < 32 and c != "\n") or 0x7f <= ord(c) < 0xa0 or c in "\u202a\u202b\u202c\u202d\u202e\u2066\u2069"]


def test_reports_are_escaped(run):
    """text of files, names of files and arguments reach standard output and standard error without control characters"""
    run.write("text.txt", (HOSTILE + "\n") * 200)
    name = "c1 \x9b[31m bidi \u202e.lm"
    file = run.write(name, f'''import "{ROOT}/examples/llama.lm": Llama
data D {{ source s = text("text.txt", split = "\\n"); holdout dev = tail(10%); pack best_fit(seq = 32 tokens) }}
recipe R {{
  model = Llama(depth = 1, d = 16, ff = 16, heads = 2, kv = 1, e = 8, vocab = 256); data = D
  run = 1 steps; batch = 64 tokens; optimizer = adamw(lr = 1e-3); eval dev {{ data = D.dev; every = 1 steps }}
}}
''')
    out = run.path("run \x9b[32m \u202e")
    for command in (("check", file), ("explain", file, "optimizer.lr"), ("explain", file, "memory"), ("data", file, "--show", 2),
                    ("run", file, "--out", out), ("eval", out), ("tokenizer", "train", "-o", run.path("tok \u202e.json"), run.path("text.txt")),
                    ("new", "first", "--data", run.path("text.txt"), "--minutes", "3 s"), ("check", file + "gone")):
        for json_too in ((), ("--json",)):
            if command[0] == "new" and json_too:
                continue
            code, printed, err = run.result(*command, *json_too, cwd=run.folder)
            check(not hidden(printed + err), (command, hidden(printed + err), printed + err))
            check(code == (1 if file + "gone" in command else 0), (command, err))
            if json_too and code == 0:
                json.loads(printed)


def test_paths_without_control_characters(run):
    """a control character in a path of the command line is refused by an error of one line"""
    for args in (("check", "a\nb.lm"), ("eval", "a\tb"), ("run", "a.lm", "--out", "x\ny"), ("tokenizer", "train", "-o", "t\x1bx.json", "a")):
        code, out, err = run.result(*args)
        check(code == 1 and "holds the control character" in err and len(err.splitlines()) == 1 and not hidden(err), err)


def test_no_color(run):
    """errors are colored on a terminal, but not with NO_COLOR, nor on a terminal without colors"""
    run.write("bad.lm", "fn f(x: real[b, t, d]) -> real[b, t, d] { return x + y }\n")
    for env, colored in (dict(NO_COLOR="", TERM="xterm"), True), (dict(NO_COLOR="1", TERM="xterm"), False), (dict(NO_COLOR="", TERM="dumb"), False):
        text = on_terminal(run, 40, "check", "bad.lm", status=1, **env)
        check(("\x1b" in text) == colored, f"{env}: {text!r}")
        check("E020" in text, f"{env}: {text!r}")


def test_passes_fit(run):
    """the list of passes is wrapped on a terminal, and keeps its words"""
    text, piped = on_terminal(run, 60, "opt", "--list").replace("\r", ""), run("opt", "--list")
    check(max(map(len, text.splitlines())) <= 60 < max(map(len, piped.splitlines())), text)
    check(text.split() == piped.split(), text)
