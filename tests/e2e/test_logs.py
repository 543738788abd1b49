"""Logs of a run, read by other programs: TensorBoard and an XML parser."""
import json, os, subprocess, xml.etree.ElementTree as xml

from harness import Skip, check, small

READ = """import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
log = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
log.Reload()
print(json.dumps({tag: [(e.step, e.value, e.wall_time) for e in log.Scalars(tag)] for tag in log.Tags()["scalars"]}))
"""


def trained(run):
    """a run of 12 steps in two parts, the second from the checkpoint before the last"""
    file = small(run, steps=12, more='save = checkpoint("run", every = 4 steps, keep = all)')
    run("run", file, "--out", run.path("run"), "-q", "--steps", 8)
    subprocess.run(["rm", "-r", run.path("run/step-000008")], check=True)
    run("run", file, "--out", run.path("run"), "-q")
    return [json.loads(x) for x in open(run.path("run/metrics.jsonl"))]


def test_tensorboard(run):
    python = os.environ.get("LMC_HF_PYTHON")
    if not python:
        raise Skip("LMC_HF_PYTHON names no Python that has TensorBoard")
    metrics = trained(run)
    p = subprocess.run([python, "-c", READ, run.path("run")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    check(p.returncode == 0, p.stderr)
    scalars = json.loads(p.stdout)
    check({"loss", "grad_norm", "lr"} <= scalars.keys(), sorted(scalars))
    for tag, events in scalars.items():
        want = [(m["step"], m[tag]) for m in metrics if m.get(tag) is not None]
        check([e[0] for e in events] == [w[0] for w in want], f"{tag}: steps {[e[0] for e in events]}")
        check(all(abs(e[1] - w[1]) <= 1e-6 * abs(w[1]) for e, w in zip(events, want)), f"{tag}: {events}, {want}")
    times = [e[2] for e in scalars["loss"]]
    check(times == sorted(times) and times[0] > 1.6e9, "wall clock times")


def test_numbers(run):
    """integers are written as integers; lr is the learning rate outside of groups, also if groups set another one"""
    file = small(run, steps=4, rows=64, more='save = checkpoint("run"); group @embed = (lr = 1e-5)')
    run("run", file, "--out", run.path("run"), "-q")
    lines = open(run.path("run/metrics.jsonl")).read().splitlines()
    check(all(f'"tokens": {json.loads(x)["tokens"]:d},' in x for x in lines), lines)
    texts = xml.parse(run.path("run/loss.svg")).getroot().iter("{http://www.w3.org/2000/svg}text")
    ticks = [t.text for t in texts if t.get("text-anchor") == "middle" and t.text[0].isdigit()]
    check(ticks == ["0", "1", "2", "3", "4"], f"the ticks of the chart are whole steps: {ticks}")
    plain = small(run, steps=4, rows=64, name="plain.lm")
    want = run.trace(plain, "--values", "lr")["lr"]
    check(min(want) > 0 and all(abs(json.loads(x)["lr"] - lr) < 1e-6 * lr for x, lr in zip(lines, want)), f"{lines}, {want}")


def test_chart(run):
    metrics = trained(run)
    root = xml.parse(run.path("run/loss.svg")).getroot()
    ns = "{http://www.w3.org/2000/svg}"
    check(root.tag == ns + "svg", root.tag)
    lines = [[tuple(map(float, p.split(","))) for p in line.get("points").split()] for line in root.iter(ns + "polyline")]
    check(lines and max(map(len, lines)) == len(metrics), f"a point for each of {len(metrics)} steps: {list(map(len, lines))}")
    curve = max(lines, key=len)
    check([x for x, _ in curve] == sorted(x for x, _ in curve), "from left to right")
    losses = [m["loss"] for m in metrics]
    lowest = min(range(len(losses)), key=losses.__getitem__)
    check(curve[lowest][1] == max(y for _, y in curve), "the lowest loss must be lowest in the picture")
    width, height = (float(root.get(k)) for k in ("width", "height"))
    check(all(0 <= x <= width and 0 <= y <= height for line in lines for x, y in line), "all points must be inside of the picture")
