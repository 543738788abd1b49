"""Attacks on the cache and on the files of a run, and the files that failures leave behind: code of another user,
FIFOs and devices instead of files, data that is changed while a run reads it, private text, killed compilers, few descriptors."""
import ctypes, glob, os, shutil, signal, stat, struct, subprocess, time

import numpy as np
from harness import Skip, check, load, random_batches, save, small, wait_for
from test_faults import TINY

PLAIN_BUILD = {"archive_bomb"}
A, B = 20001, 20002   # users


def tiny(run, steps=2, every=1):
    lines = ["abc def gh" * (1 + i % 5) for i in range(400)]
    run.write("text.txt", "\n".join(lines))
    return run.write("tiny.lm", TINY.replace("run = 2 steps", f"run = {steps} steps").replace("every = 1 steps", f"every = {every} steps"))


def train(run, file, cache, out="run", **how):
    return run.result("run", file, "--out", run.path(out), "-q", env={"LMC_CACHE": run.path(cache), **how.pop("env", {})}, **how)


def as_user(run, user, file, cache, out, umask=0o022):
    """lmc run as that user of group 20000"""
    env = {**os.environ, "LMC_CACHE": run.path(cache), "HOME": run.path(f"home-{user}")}
    p = subprocess.run([run.path("lmc"), "run", file, "--out", run.path(out), "-q"], env=env, user=user, group=20000, extra_groups=[], umask=umask,
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return p.returncode, p.stdout


def users(run):
    """the home folders of two users with the same recipe, and a copy of the command where both reach it"""
    if os.geteuid():
        raise Skip("several users take root")
    os.chmod(run.folder, 0o755)
    shutil.copy(run.lmc, run.path("lmc"))
    file = tiny(run)
    for user in (A, B):
        os.mkdir(run.path(f"home-{user}"))
        os.chown(run.path(f"home-{user}"), user, 20000)
    if as_user(run, A, file, "home-20001/probe", "home-20001/probe-run")[0]:
        raise Skip("other users cannot reach this build")
    return file


def plant(run, mine, to, owner=B):
    """plants entries of another user for all kernels in the folder `mine`; their constructor writes the user that runs it"""
    c = run.write("evil.c", '#include <stdio.h>\n#include <unistd.h>\n__attribute__((constructor)) static void f(void) {\n'
                  f'  FILE *o = fopen("{run.path("owned")}", "a");\n  if (o) fprintf(o, "%d\\n", (int)getuid());\n}}\n')
    subprocess.run(["cc", "-shared", "-fPIC", c, "-o", run.path("evil.so")], check=True)
    text = open(run.path("evil.so"), "rb").read()
    text += b"lmc-so1\0" + struct.pack("<QQ", len(text), lm_hash(text))
    names = glob.glob(os.path.join(mine, "**/*.so"), recursive=True)
    check(names, "the planted entries must have the names of the kernels")
    for name in names:
        path = os.path.join(to, os.path.basename(name))
        with open(path, "wb") as f:
            f.write(text)
        os.chown(path, owner, 20000)
        os.chmod(path, 0o755)


def lm_hash(data, seed=0):
    mask, k0, k1, k2 = (1 << 64) - 1, 0xA0761D6478BD642F, 0xE7037ED1A0B428DB, 0x8EBC6AF09C88C6E3
    fold = lambda a, b: ((a * b) & mask) ^ ((a * b) >> 64)
    h = seed ^ k0
    for i in range(0, len(data), 16):
        a, b = data[i : i + 8], data[i + 8 : i + 16]
        h = fold(int.from_bytes(a, "little") ^ k1, int.from_bytes(b, "little") ^ h)
    return fold(k2 ^ len(data), fold(h ^ k1, k2 ^ seed))


def test_code_of_another_user(run):
    """foreign entries under the names that a run looks up, in a folder writable by all and in one writable by a group, are not loaded"""
    file = users(run)
    check(as_user(run, B, file, "home-20002/cache", "home-20002/run")[0] == 0, "the run that names the entries must succeed")
    open(run.path("owned"), "w").close()
    os.chmod(run.path("owned"), 0o666)
    for name, mode, owner in (("shared", 0o1777, 0), ("open", 0o777, 0), ("group", 0o775, A), ("of-other", 0o755, B)):
        os.mkdir(run.path(name))
        plant(run, run.path("home-20002/cache"), run.path(name))
        os.mkdir(run.path(name, "user-20001"))
        plant(run, run.path("home-20002/cache"), run.path(name, "user-20001"))
        for path in (run.path(name), run.path(name, "user-20001")):
            os.chown(path, owner if path == run.path(name) else B, 20000)
            os.chmod(path, mode)
        code, text = as_user(run, A, file, name, f"home-20001/{name}", 0o002)
        check(code == 0, text)
        check(not open(run.path("owned")).read(), f"{name}: code of another user ran")
    # a private folder with files of another user in it
    for path in glob.glob(run.path("home-20001/probe/*.so")):
        os.remove(path)
    plant(run, run.path("home-20002/cache"), run.path("home-20001/probe"))
    check(as_user(run, A, file, "home-20001/probe", "home-20001/own")[0] == 0 and not open(run.path("owned")).read(), "files of another user's")
    # the planted code works: as A's own files the same entries are run
    plant(run, run.path("home-20002/cache"), run.path("home-20001/probe"), A)
    as_user(run, A, file, "home-20001/probe", "home-20001/trapped")
    check("20001" in open(run.path("owned")).read(), "the planted code does not run even for its owner")


def test_two_users(run):
    """each user of a shared cache folder has a private subfolder"""
    file = users(run)
    os.mkdir(run.path("all"))
    os.chmod(run.path("all"), 0o1777)
    for user in (A, B, A):
        code, text = as_user(run, user, file, "all", f"home-{user}/run", 0o002)
        check(code == 0 and not text, text)
    for user in (A, B):
        for path in (run.path("all", f"user-{user}"), run.path("all", f"user-{user}", "data")):
            s = os.stat(path)
            check(s.st_uid == user and stat.S_IMODE(s.st_mode) == 0o700, path)
    own = glob.glob(run.path("all", f"user-{A}", "data", "*"))
    for path in own:                                   # as sudo leaves them
        os.chown(path, 0, 0)
        os.chmod(path, 0o600)
    code, text = as_user(run, A, file, "all", f"home-{A}/again")
    check(code == 0 and own and all(os.stat(path).st_uid == A for path in own), f"files that the user cannot read give way: {text}")


def test_links_in_the_cache(run):
    """links under the names of temporary files do not overwrite the file that they point to"""
    file = tiny(run)
    check(train(run, file, "cache")[0] == 0, "the run must succeed")
    precious = run.write("precious", "precious")
    for path in glob.glob(run.path("cache/data/*")):
        os.remove(path)
        os.symlink(precious, path + ".tmp")
    shutil.rmtree(run.path("run"))
    code, _, err = train(run, file, "cache")
    check(code == 0 and open(precious).read() == "precious", err)


def test_folders_in_the_cache(run):
    """a folder with the name of a temporary file is moved aside; if the `data` folder is a file, the error names it"""
    file = tiny(run)
    check(train(run, file, "cache")[0] == 0, "the run must succeed")
    for i, path in enumerate(glob.glob(run.path("cache/data/*"))):
        os.remove(path)
        os.makedirs(os.path.join(path + ".tmp", "contents" if i else ""))
    code, _, err = train(run, file, "cache", "again")
    check(code == 0 and not err, err)
    left = [os.path.basename(path) for path in glob.glob(run.path("cache/data/*.tmp"))]
    check(len(left) == i and all(name.startswith("foreign-") for name in left), f"folders with contents are renamed: {left}")
    shutil.rmtree(run.path("cache/data"))
    for make in (lambda p: open(p, "w").close(), os.mkfifo, lambda p: os.symlink("nothing", p)):
        make(run.path("cache/data"))
        code, _, err = train(run, file, "cache", "again")
        check(code == 2 and "cache/data: a file of that name is in the way" in err and "^" not in err, err)
        os.remove(run.path("cache/data"))


def test_read_only_cache(run):
    """a read-only cache is used; new entries go to the default folder"""
    file = users(run)
    check(train(run, file, "image")[0] == 0, "the first run must fill the cache")
    subprocess.run(["chmod", "-R", "a+rX", run.path("image")], check=True)
    code, text = as_user(run, A, file, "image", "home-20001/run")
    check(code == 0 and not text, text)
    check(not glob.glob(run.path("home-20001/.cache/lmc/*.so")), "no kernel was compiled")
    os.remove(sorted(glob.glob(run.path("image/*.so")))[0])
    check(as_user(run, A, file, "image", "home-20001/run2")[0] == 0, "a run with one missing entry must succeed")
    check(len(glob.glob(run.path("home-20001/.cache/lmc/*.so"))) == 1, "the missing kernel must be compiled and stored")


# ---- files that are not regular

def replaced(path, what):
    os.remove(path)
    if what == "fifo":
        os.mkfifo(path)
    elif what == "link":
        os.symlink("/dev/zero", path)
    elif what == "folder":
        os.makedirs(os.path.join(path, "contents"))
    elif what == "empty":
        os.mkdir(path)
    else:
        os.symlink(os.path.basename(path), path)


def test_cache_entries(run):
    """a FIFO, a link to a device, a link loop or a folder instead of an entry: the entry is created again"""
    file = tiny(run)
    for what in ("fifo", "link", "loop", "empty", "folder"):
        check(train(run, file, "cache", f"run-{what}")[0] == 0, "the first run must fill the cache")
        entries = glob.glob(run.path("cache/*.so")) + glob.glob(run.path("cache/version-*")) + glob.glob(run.path("cache/data/*"))
        for path in entries:
            replaced(path, what)
        code, _, err = train(run, file, "cache", f"again-{what}")
        check(code == 0 and not err, err)
        check(all(os.path.isfile(path) and not os.path.islink(path) for path in entries), what)
    check(len(glob.glob(run.path("cache/**/foreign-*/contents"), recursive=True)) == len(entries), "folders with contents are renamed")


def test_checkpoint_files(run):
    file = tiny(run)
    check(train(run, file, "cache")[0] == 0, "two checkpoints")
    for name in ("model.safetensors", "optimizer.safetensors", "state.json", "checksums.txt"):
        shutil.copytree(run.path("run"), run.path(name))
        replaced(run.path(name, "step-000002", name), "fifo")
        code, _, err = train(run, file, "cache", name)
        check(code == 0 and name in err and "not a regular file" in err, err)


def test_sources(run):
    file = tiny(run)
    os.remove(run.path("text.txt"))
    for make in (lambda p: os.mkfifo(p), lambda p: os.symlink("/dev/zero", p)):
        make(run.path("text.txt"))
        code, _, err = train(run, file, "cache")
        check(code == 1 and "text.txt is a FIFO, a socket or a device" in err and "tiny.lm:" in err, err)
        os.remove(run.path("text.txt"))


def test_archive_bomb(run):
    """a compressed file of 100 KB that expands to 900 MB is rejected early"""
    try:
        zstd = ctypes.CDLL("libzstd.so.1")
    except OSError:
        raise Skip("no zstd library")
    line = b"x" * 999 + b"\n"
    packed = ctypes.create_string_buffer(1 << 20)
    zstd.ZSTD_compress.restype = ctypes.c_size_t
    text = line * 9000
    n = zstd.ZSTD_compress(packed, ctypes.c_size_t(1 << 20), text, ctypes.c_size_t(len(text)), 3)
    with open(run.path("text.txt.zst"), "wb") as f:
        f.write(packed.raw[:n] * 100)
    file = run.write("bomb.lm", TINY.replace("text.txt", "text.txt.zst"))
    code, _, err = train(run, file, "cache")
    check(code == 1 and "decompress to more than 1000 times as much" in err and "decompress it and use the result" in err, err)
    check(not glob.glob(run.path("cache/data/*")), "no cache file must be left")


# ---- data that changes during a run

def disturbed(run, file, cache, change):
    """(status, stderr, steps) of a run whose data is changed once it has saved"""
    p = run.start("run", file, "--out", run.path("run"), "-q", env={"LMC_CACHE": run.path(cache)})
    wait_for(run.path("run/step-*"), p)
    p.send_signal(signal.SIGSTOP)
    change()
    p.send_signal(signal.SIGCONT)
    _, err = p.communicate(timeout=300)
    saved = sorted(x for x in os.listdir(run.path("run")) if x.startswith("step-"))
    shutil.rmtree(run.path("run"))
    return p.returncode, err, int(saved[-1][5:])


def overwritten(path, at, data):
    with open(path, "r+b") as f:
        f.seek(at)
        f.write(data)


STEPS = 4000   # a busy machine changes the data before the last of them


def test_cached_data_changed(run):
    """truncated or overwritten cache files are reported; the process never dies from a signal"""
    file = tiny(run, STEPS, 20)
    change = {"tok": lambda p: overwritten(p, 0, b"\7" * 2000), "row": lambda p: os.truncate(p, 0), "doc": lambda p: os.truncate(p, 100)}
    for ending, how in change.items():
        code, err, step = disturbed(run, file, "cache-" + ending, lambda: [how(p) for p in glob.glob(run.path(f"cache-{ending}/data/*.{ending}"))])
        check(code == 2 and f".{ending}" in err and step < STEPS, f"{ending}: status {code}, step {step}: {err}")


def test_cached_data_deleted(run):
    """deleting the files is harmless to a run that has them open"""
    file = tiny(run, 60, 20)
    code, err, step = disturbed(run, file, "cache", lambda: [os.remove(p) for p in glob.glob(run.path("cache/data/*"))])
    check(code == 0 and step == 60, f"status {code}, step {step}: {err}")


def test_batches_changed(run):
    batches = random_batches(40, 4, 16)
    repeated = {k: np.tile(v, (STEPS // 40, 1, 1)) for k, v in batches.items()}
    file = small(run, steps=STEPS, batches=repeated, more='save = checkpoint("run", every = 20 steps, keep = 2)')
    path = run.path("batches.safetensors")
    whole = open(path, "rb").read()
    start = 8 + struct.unpack("<Q", whole[:8])[0]
    tok = np.frombuffer(repeated["tok"].tobytes(), "<i4")
    changes = {
        "other ids": lambda: overwritten(path, start, ((tok + 1) % 64).astype("<i4").tobytes()),
        "ids out of the vocabulary": lambda: overwritten(path, start, np.full(tok.size, 2**30, "<i4").tobytes()),
        "negative ids": lambda: overwritten(path, start, np.full(tok.size, -5, "<i4").tobytes()),
        "a shorter file": lambda: os.truncate(path, start),
    }
    for what, change in changes.items():
        with open(path, "wb") as f:
            f.write(whole)
        code, err, step = disturbed(run, file, "cache", change)
        check(code == 2 and "batches.safetensors" in err and step < STEPS, f"{what}: status {code}, step {step}: {err}")
    check("was truncated" in err, err)


def test_touched_batches(run):
    """a changed time or mode of a file is not changed data"""
    batches = random_batches(60, 4, 16)
    file = small(run, steps=60, batches=batches, more='save = checkpoint("run", every = 20 steps, keep = 2)')
    path = run.path("batches.safetensors")
    code, err, step = disturbed(run, file, "cache", lambda: (os.utime(path), os.chmod(path, 0o600)))
    check(code == 0 and step == 60, f"status {code}, step {step}: {err}")


# ---- permissions

def modes(folder):
    return {os.path.join(base, f): stat.S_IMODE(os.lstat(os.path.join(base, f)).st_mode) for base, dirs, files in os.walk(folder) for f in dirs + files}


def test_private_text(run):
    """files derived from text have the permissions of the text"""
    file = tiny(run)
    for mode, mask in ((0o644, 0), (0o640, 0o007), (0o600, 0o077)):
        os.chmod(run.path("text.txt"), mode)
        out = f"run-{mode:o}"
        code, _, err = train(run, file, f"cache-{mode:o}", out)
        check(code == 0, err)
        check(stat.S_IMODE(os.stat(run.path(out)).st_mode) == 0o755 & ~mask, f"{mode:o}: the run's folder")
        check(not any(m & mask for m in modes(run.path(out)).values()), f"{mode:o}: {modes(run.path(out))}")
        check(any(m & 0o044 for m in modes(run.path(out)).values()) == (mode != 0o600), f"{mode:o}")
        check(stat.S_IMODE(os.stat(run.path(f"cache-{mode:o}")).st_mode) == 0o700, "the cache")


# ---- files that are left behind, and the exit status

def test_killed_while_compiling(run):
    """a run removes the temporary files of a killed run, and none of a run in progress"""
    file = tiny(run)
    slow = run.write("slow", '#!/bin/sh\ncase "$*" in *unit-*) sleep 60;; esac\nexec cc "$@"\n')
    os.chmod(slow, 0o755)
    run.write("cache/data/0123456789abcdef.tok.tmp", "left")
    started = [run.start("run", file, "--out", run.path(f"run{i}"), "-q", env={"LMC_CACHE": run.path("cache"), "LMC_CC": slow}) for i in range(2)]
    end = time.time() + 60
    while len(glob.glob(run.path("cache/.lmc-tmp-*/unit-0.c"))) < 2 and time.time() < end:
        time.sleep(0.01)
    check(len(glob.glob(run.path("cache/.lmc-tmp-*"))) == 2, os.listdir(run.path("cache")))
    started[0].kill()
    started[0].communicate()
    code, _, err = train(run, file, "cache")
    check(code == 0 and len(glob.glob(run.path("cache/.lmc-tmp-*"))) == 1, f"{err}{os.listdir(run.path('cache'))}")
    check(not glob.glob(run.path("cache/data/*.tmp")), "the half-written data file must be removed too")
    started[1].kill()
    started[1].communicate()


def test_noexec(run):
    """a cache on a file system mounted with noexec"""
    file = tiny(run)
    os.mkdir(run.path("mounted"))
    command = f"mount -t tmpfs -o noexec x {run.path('mounted')} || exit 77; LMC_CACHE={run.path('mounted')} {run.lmc} compile {file}"
    p = subprocess.run(["unshare", "-m", "sh", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if p.returncode in (1, 77) and "compiled kernel" not in p.stdout:
        raise Skip("mounting is not allowed here")
    check(p.returncode == 2 and "is mounted with noexec: set LMC_CACHE to a folder of another one" in p.stdout, p.stdout)


def test_limit(run):
    """the cache keeps at most LMC_CACHE_SIZE"""
    file = tiny(run)
    env = {"LMC_CACHE_SIZE": "1"}
    check(train(run, file, "cache", env=env)[0] == 0, "one recipe")
    kernels = lambda: glob.glob(run.path("cache/*.so"))
    before = len(kernels())
    for path in kernels():
        os.utime(path, (1, 1))
    other = run.write("other.lm", TINY.replace("d = 8", "d = 12"))
    check(train(run, other, "cache", "run2", env=env)[0] == 0, "another one")
    check(before and kernels() and all(os.stat(path).st_mtime > 1 for path in kernels()), "kernels that the second recipe does not need must be removed")
    check(glob.glob(run.path("cache/data/*.tok")), "data must not be removed")
    err = run("run", file, "--out", run.path("x"), env={"LMC_CACHE_SIZE": "many"}, status=2)
    check("LMC_CACHE_SIZE is 'many'" in err, err)


def test_few_descriptors(run):
    """running out of file descriptors at any point is an environment error with a remedy"""
    file = tiny(run)
    limited = 0
    for n in (4, 5, 6, 7, 8, 9, 10, 12, 14, 40):
        cache = run.path(f"cache{n}")
        p = subprocess.run(["sh", "-c", f'ulimit -n {n}; exec "$0" "$@"', run.lmc, "run", file, "--out", run.path(f"run{n}"), "-q"],
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "LMC_CACHE": cache})
        check(p.returncode in (0, 2, 127), f"{n}: status {p.returncode}: {p.stdout}")
        if p.returncode == 2:
            limited += 1
            check("ulimit -n" in p.stdout and "^" not in p.stdout, f"{n}: {p.stdout}")
    check(limited >= 2 and p.returncode == 0, f"{limited}: {p.stdout}")
