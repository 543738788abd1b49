"""compile = mode("max-autotune"): a run measures once and stores the result in its folder."""
import json, os

from harness import check, on_one_cpu, small
from test_runs import checkpoint, same

PLAIN_BUILD = {"step_cache"}
MORE = 'save = checkpoint("run", every = 4 steps)\n  compile = mode("max-autotune", budget = {budget})'


GEMMS = ("--enable-pass", "cse")       # passes are given by an option, so only GEMMs are tuned, not steps


def tuned(run, folder):
    return json.load(open(run.path(folder, "tuned.json")))


def train(run, file, folder, *args, **how):
    return json.loads(run("run", file, "--out", run.path(folder), "--json", *args, **how))


def cached(run):
    return [x for x in os.listdir(run.path("cache")) if x.startswith("tuned-")]


def file_of(run, budget="3600 s", name="small.lm"):
    return small(run, rows=8, seq=64, more=MORE.format(budget=budget), name=name)


def test_lock_and_cache(run):
    """GEMMs are measured once, not by a second run on the machine nor by a resumed run, which gives the bits of an uninterrupted one"""
    file, own = file_of(run), {"LMC_CACHE": run.path("cache")}
    first = train(run, file, "whole", *GEMMS, env=own)
    lock = tuned(run, "whole")
    check(first["measured"] == len(lock["gemms"]) > 2, f"{first} {lock}")
    check(first["tuned"] == sum(p["gain"] > 1 for p in lock["gemms"]), f"{first} {lock}")
    check(all(p["gain"] >= 1 for p in lock["gemms"]), str(lock))
    again = train(run, file, "parts", "--steps", 4, *GEMMS, env=own)
    check(again["measured"] == 0 and again["tuned"] == first["tuned"] and tuned(run, "parts") == lock, f"by the cache: {again}")
    for x in cached(run):
        os.chmod(run.path("cache", x), 0o666)
    alone = train(run, file_of(run, "0 s", "hasty.lm"), "alone", "--steps", 1, *GEMMS, env=own)
    check(alone["tuned"] == 0 and all(p["gain"] == 0 for p in tuned(run, "alone")["gemms"]), f"others may have written the cache's: {alone}")
    for x in cached(run):
        os.remove(run.path("cache", x))
    rest = train(run, file, "parts", *GEMMS, env=own)
    check(rest["resumed"] == 4 and rest["measured"] == 0 and rest["tuned"] == first["tuned"] and tuned(run, "parts") == lock, f"by the lock: {rest}")
    same(checkpoint(run, "whole", 8), checkpoint(run, "parts", 8), "in one and in two parts")
    check(not cached(run), "the cache must be unchanged")
    check("measured now" in run("run", file, "--out", run.path("reported"), "--steps", 1, *GEMMS, env=own), "the run must report its tuning")


def test_threads(run):
    """one tuned.json gives the same bits for any number of threads, here with unusual tiles"""
    file = file_of(run, "0 s")
    for name in ("one", "all"):
        train(run, file, name, "--steps", 4)
        lock = tuned(run, name)
        for p in lock["gemms"]:
            p["tile"] = [48, 80]
        run.write(f"{name}/tuned.json", json.dumps(lock))
    on_one_cpu(lambda: train(run, file, "one"))
    cut, usual = train(run, file, "all")["loss"], train(run, file, "usual", "--mode", "default")["loss"]
    check(abs(cut - usual) < 1e-4, f"{cut} and {usual}")
    check(all(p["tile"] == [48, 80] for p in tuned(run, "one")["gemms"]), "the tiles of tuned.json must be used")
    same(checkpoint(run, "one", 8), checkpoint(run, "all", 8), "one thread and all")


STEP = {"off": "licm", "on": "fuse_gemms", "rows": 256, "points": 8, "gain": 1.5}


def former_names(lock):
    """the lock as an earlier version wrote it"""
    step = {"places" if key == "points" else key: value for key, value in lock["step"].items()}
    return {**{key: value for key, value in lock.items() if key != "gemms"}, "products": lock["gemms"], "step": step}


def test_step_lock(run):
    """a resumed run takes the variant of its steps from tuned.json, here one that tuning would not choose, also under the former keys"""
    file, own = file_of(run, "0 s"), {"LMC_CACHE": run.path("cache")}
    for name in ("one", "other"):
        begun = train(run, file, name, "--steps", 4, env=own)
        check(begun["tuned_step"] == {"off": "", "on": "", "rows": 0, "points": 0, "places": 0, "gain": 0}, f"without time: {begun}")
        lock = {**tuned(run, name), "step": STEP}
        run.write(f"{name}/tuned.json", json.dumps(lock if name == "one" else former_names(lock)))
    one, other, usual = train(run, file, "one"), train(run, file, "other"), train(run, file, "usual", "--mode", "default")
    check(one["tuned_step"] == other["tuned_step"] == {**STEP, "places": STEP["points"]}, str(one))
    check(tuned(run, "one")["step"] == STEP, "tuned.json holds the current key only")
    check(abs(one["loss"] - usual["loss"]) < 1e-4, f"{one['loss']} and {usual['loss']}")
    same(checkpoint(run, "one", 8), checkpoint(run, "other", 8), "the same plan twice")
    run("run", file, "--out", run.path("one"), "--steps", 8, "--disable-pass", "fuse_loops", status=1)


def test_step_cache(run):
    """steps are measured once; the variant of the cache is used; with passes of an option nothing is tuned"""
    file, own = small(run, depth=1, steps=2, more='compile = mode("max-autotune", budget = 3600 s)'), {"LMC_CACHE": run.path("cache"), "OMP_NUM_THREADS": "1"}
    bench = lambda *options: json.loads(run("bench", file, "--json", "--steps", 1, *options, env=own))["tuned_step"]
    first = bench()
    kept = [x for x in os.listdir(run.path("cache")) if x.startswith("step-")]
    check(len(kept) == 1 and first["gain"] >= 1, f"{kept} {first}")
    cached = json.load(open(run.path("cache", kept[0])))
    check({**cached, "places": cached["points"]} == first == bench(), "the second run reads the variant from the cache")
    run.write(f"cache/{kept[0]}", json.dumps(STEP))
    check(bench() == {**STEP, "places": STEP["points"]}, "the variant of the cache is used")
    check("the step is without licm, with fuse_gemms, 256 rows at a time, 8 points a kernel, 1.50 times as fast" in run("bench", file, "--steps", 1, env=own), "the variant must be reported")
    check(bench("--disable-pass", "fuse_loops")["gain"] == 0, "with passes of an option nothing is tuned")
    os.chmod(run.path("cache", kept[0]), 0o664)
    check(bench("--set", 'compile = mode("max-autotune", budget = 0 s)')["gain"] == 0, "others may have written the variant of the cache")
    os.chmod(run.path("cache", kept[0]), 0o644)
    run.write(f"cache/{kept[0]}", "{")
    check(bench()["gain"] >= 1, "a damaged entry must be measured again")


def test_no_time(run):
    """with no time budget nothing is measured, and the plan is the default one"""
    none = train(run, file_of(run, "0 s"), "none", env={"LMC_CACHE": run.path("cache")})
    check(none["measured"] == none["tuned"] == 0, str(none))
    check(all(p["gain"] == 0 for p in tuned(run, "none")["gemms"]), "not measured")
    usual = train(run, file_of(run, "0 s"), "usual", "--mode", "default")
    check(usual["tuned"] == 0 and not os.path.exists(run.path("usual/tuned.json")), "--mode replaces the recipe's")
    same(checkpoint(run, "none", 8), checkpoint(run, "usual", 8), "no time, and the default")


def test_bad_locks(run):
    file = file_of(run, "0 s")
    train(run, file, "run", "--steps", 4)
    good, resume = tuned(run, "run"), lambda status: run("run", file, "--out", run.path("run"), "-q", status=status)
    p = good["gemms"][0]
    for text, words in [("{", "tuned.json"), ("[]", "not a list of tilings of GEMMs"), (json.dumps({**good, "version": 2}), "a list of tilings of GEMMs from another version of lmc"),
                        (json.dumps({**good, "processor": "Z80"}), "made on Z80"), (json.dumps({**good, "gemms": [3]}), "GEMM 1 is malformed"),
                        (json.dumps({**good, "gemms": [p, {**p, "tile": [0, 64]}]}), "GEMM 2 is malformed"),
                        (json.dumps({**good, "gemms": [{**p, "tile": [64, 2**60]}]}), "GEMM 1 is malformed"),
                        (json.dumps({**good, "gemms": [{**p, "type": "int"}]}), "GEMM 1 is malformed"), (json.dumps({**good, "step": []}), "its step is malformed"),
                        *((json.dumps({**good, "step": {**STEP, **bad}}), "its step is malformed")
                          for bad in ({"off": "frob"}, {"off": "grad"}, {"off": "fuse_gemms"}, {"rows": -1}, {"points": 2**40}, {"gain": "fast"}, {"more": 1}))]:
        run.write("run/tuned.json", text)
        err = resume(1)
        check(words in err and "tuned.json" in err, f"{text[:40]}: {err}")
    run("run", file, "--out", run.path("run"), "-q", "--steps", 5, "--mode", "default")   # without max-autotune the file is not read
    run.write("run/tuned.json", json.dumps({**good, "gemms": [{**x, "tile": [2**31 - 1, 2**31 - 1]} for x in good["gemms"]]}))
    resume(0)                                          # tiles larger than the GEMM are clipped


def test_elsewhere(run):
    """commands that measure nothing reject max-autotune; a damaged cache counts as empty; bench reports tuning too"""
    file = file_of(run)
    check("lmc run, lmc bench" in run("compile", file, "--mode", "max-autotune", status=1), "compile measures nothing")
    check("there are default" in run("run", file, "--mode", "fast", status=1), "the modes")
    own = {"LMC_CACHE": run.path("cache")}
    bench = json.loads(run("bench", file, "--json", "--steps", 1, *GEMMS, env=own))
    check(bench["measured"] > 2 and bench["tuned"] <= bench["measured"], str(bench))
    check(len(cached(run)) == 1, str(cached(run)))
    check(json.loads(run("bench", file, "--json", "--steps", 1, *GEMMS, env=own))["measured"] == 0, "by the cache")
    run.write(f"cache/{cached(run)[0]}", "{")
    check(json.loads(run("bench", file, "--json", "--steps", 1, *GEMMS, env=own))["measured"] == bench["measured"], "without the cache")
