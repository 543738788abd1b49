"""words.py - words for which docs/glossary.md has the field's term, in every text file of the tree.

Comment markers, quotes of continued strings and line ends count as spaces, so phrases that are broken across lines are
found. FINE lists phrases in which a word has its usual meaning, ALLOWED files in which it has. Fails with the lines.
"""
import bisect, pathlib, re, subprocess, sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORDS = [
    # The glossary: position, iteration, GEMM, tile, workspace, expensive, unsupported, resume, reported, default.
    "places?", "turns?", "products?", "slabs?", "stretch(es)?", "swathe?s?", "scratch", "jam(s|med)?", "dear(er|est|ly)?", "can(not)? be had",
    "(go|goes|going|went|gone) on", "told", "how-manieth", "otherwise than", "rivals?", "dealt", "turned T", "lookahead pass",
    # Sentences in which a pronoun stands for a thing that has a name.
    "what (is|are|was|were|it|they|we|he|has|had|lies|comes|came|stands|follows|remains|one|that|this|these)", "(that|those) which",
    "of (its|their|his|her|our|my) own", "of whom", "whoever", "nobody", "somebody", "whichever",
    # Old or rare English.
    "beneath", "for ever", "at hand", "at the (least|most)", "anew", "afresh", "lest", "thereof", "upon", "likewise", "alike", "hence", "as good as",
    "but for", "held to", "none other", "whence",
]
FINE = ["in place", "in-place", "last place", "in turn", "(outer|dot) products?", "from scratch"]
SKIPPED = re.compile(r"LICENSE|docs/glossary\.md|tests/structure/words\.(py|sh)|tests/fuzz/seeds/.*|tests/runtime/(make_)?tokenizer_cases\..*|tests/product/tokenizers_side\.py|.*\.(safetensors|bin|zst|dict)")
# Files in which words have their usual meaning: products of numbers; former names that are still read; quoted texts.
ALLOWED = [(re.compile(line.split(": ")[0]), line.split(": ")[1].split()) for line in r"""
CHANGELOG\.md|docs/json\.md|tests/cli/run\.txt|driver/tune/tune_(gemm_cuda|store|variant)\.[ch]|tests/e2e/test_tuned\.py: places product products
compiler/passes/passes\.def|tests/passes/pass_test\.c|tests/e2e/test_passes\.py: jam slab
docs/tutorial\.md|tests/product/sentencepiece_side\.py: thereof upon
tests/e2e/run\.py|docs/tokenizers\.md: product
codegen/(common|cpu|cuda)/.*|compiler/(analysis/row_mix\.h|passes/causal/causal_row\.c)|runtime/(base/(hash\.c|diag_e.*)|plan/plan\.h)|runtime/weights/.*: product products
docs/(errors|language|numerics|stdlib)\.md|stdlib/nn\.lm|tests/codegen/compilers_test\.c: product products
""".strip().split("\n")]


def pattern(words):
    return re.compile(r"\b(" + "|".join(w.replace(" ", " +") for w in words) + r")\b", re.I)


def plain(text):
    """the text with comment markers, quotes of continued strings, line ends and FINE phrases as spaces, of equal length"""
    blank = lambda m: " " * len(m[0])
    text = re.sub(r'"[ \t]*\\?\n\s*"', blank, text)
    text = re.sub(r"\n[ \t]*(//+|\*|#+)?[ \t]*", blank, text)
    return pattern(FINE).sub(blank, text)


def tree():
    """(name, text) of every tracked text file"""
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    for name in names:
        if name and not SKIPPED.fullmatch(name) and (ROOT / name).is_file():
            data = (ROOT / name).read_bytes()
            if b"\0" not in data:
                yield name, data.decode("utf-8", "replace")


def main():
    found, words = [], pattern(WORDS)
    for name, text in tree():
        ends, clear = [m.start() for m in re.finditer("\n", text)], plain(text)
        for m in words.finditer(clear):
            word, around = (re.sub(r"\s+", " ", s) for s in (m[0], clear[max(0, m.start() - 60):m.end() + 40]))
            if not any(f.fullmatch(name) and word.lower() in allowed for f, allowed in ALLOWED):
                found.append(f"{name}:{bisect.bisect_left(ends, m.start()) + 1}: '{word}' in: {around}")
    print("\n".join(found) if found else "words: ok")
    sys.exit("docs/glossary.md has the terms to use instead" if found else 0)


main()
