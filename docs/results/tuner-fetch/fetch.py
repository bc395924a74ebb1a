#!/usr/bin/env python3
"""Three sites that have a file, over unlike paths of which one degrades in the middle; a fourth one fetches it.

usage: fetch.py PROGRAM LAB FOLDER [ROUNDS]      (root; FOLDER is made anew; the lab's emulator makes the paths)
Prints the table of docs/results/tuner-fetch.md, in Markdown. Seconds are from the order to the verified file.
"""
import json, os, shutil, statistics, subprocess, sys, time

PROGRAM, LAB, T = (os.path.realpath(p) for p in sys.argv[1:4])
ROUNDS = int(sys.argv[4]) if len(sys.argv) > 4 else 3
SIZE = 120_000_000
HINT = 8_000_000
PREFIX = "fetch"
SITES = "abcd"
WAYS = {"a": ("80mbit", "5ms"), "b": ("40mbit", "30ms"), "c": ("20mbit", "75ms")}
DEGRADED = ("5mbit", "5ms")
children = []


def shape(rate=None, delay="0"):
    return {"queue": "50ms", "delay": delay, **({"rate": rate} if rate else {})}


def run(*words, **more):
    done = subprocess.run(words, text=True, capture_output=True, **more)
    if done.returncode:
        print(words, done.stderr, file=sys.stderr)
        done.check_returncode()
    return done.stdout


class Network:
    """Each site is a namespace with one emulated link to a bridge."""

    def __init__(self):
        for name in "w" + SITES:
            run("ip", "netns", "add", f"{PREFIX}-{name}")
        inside = ["ip", "netns", "exec", f"{PREFIX}-w"]
        run("ip", "-n", f"{PREFIX}-w", "link", "add", "br0", "type", "bridge")
        run("ip", "-n", f"{PREFIX}-w", "link", "set", "br0", "up")
        self.emulator = subprocess.Popen(
            [*inside, "chrt", "-r", "50", LAB, "emulator", "serve"], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        children.append(self.emulator)
        wires = [{"near": f"m{n}", "far": f"p{n}", "up": shape(), "down": shape()} for n in SITES]
        self.order({"build": {"wires": wires, "seed": 1}})
        assert self.emulator.stdout.readline().strip() == "ready"
        for number, name in enumerate(SITES, 1):
            space = f"{PREFIX}-{name}"
            run("ip", "-n", f"{PREFIX}-w", "link", "set", "dev", f"m{name}", "netns", space, "name", "eth0")
            run("ip", "-n", f"{PREFIX}-w", "link", "set", "dev", f"p{name}", "master", "br0", "up")
            run("ip", "-n", space, "addr", "add", f"10.78.0.{number}/24", "dev", "eth0")
            run("ip", "-n", space, "link", "set", "eth0", "up")
            run("ip", "-n", space, "link", "set", "lo", "up")

    def order(self, order):
        self.emulator.stdin.write(json.dumps(order) + "\n")
        self.emulator.stdin.flush()

    def set(self, name, rate, delay):
        wire = SITES.index(name)
        self.order({"reshape": {"wire": wire, "up": shape(rate, delay), "down": shape(None, delay)}})

    def usual(self):
        for name, (rate, delay) in WAYS.items():
            self.set(name, rate, delay)


def edit(name, old, new):
    path = f"{T}/{name}/site.toml"
    text = open(path).read()
    assert old in text, (name, old)
    open(path, "w").write(text.replace(old, old + new + "\n", 1))


def at(name, *words):
    return run("ip", "netns", "exec", f"{PREFIX}-{name}", PROGRAM, *words, "--config", f"{T}/{name}/site.toml")


def set_up():
    shutil.rmtree(T, ignore_errors=True)
    os.makedirs(f"{T}/data")
    for number, name in enumerate(SITES, 1):
        door = f"10.78.0.{number}:28790"
        others = [word for other in SITES[:number - 1] for word in ("--with", f"{T}/{other}")]
        run(PROGRAM, "init", name, "--folder", f"{T}/{name}", "--listen", door, "--address", door, *others)
    edit("a", "[transfer]\n", f'folders = ["{T}/data"]')
    for name in "bc":
        edit(name, "[transfer]\n", 'folders = ["inbox"]')
    for name, other in [("a", "c"), ("b", "c"), ("a", "d"), ("b", "d"), ("c", "d")]:
        edit(name, f'name = "{other}"\n', "pull = true")
    edit("c", "[mirror]\n", 'of = ["a"]\nevery = "500ms"')
    edit("d", "[mirror]\n", 'of = ["a", "c"]\nevery = "500ms"')
    for name in SITES:
        environment = {**os.environ, "DOWNPOUR_HOME": f"{T}/{name}/home"}
        log = open(f"{T}/{name}.log", "w")
        children.append(subprocess.Popen(
            ["ip", "netns", "exec", f"{PREFIX}-{name}", PROGRAM, "serve", "--config", f"{T}/{name}/site.toml"],
            stdout=log, stderr=log, env=environment))
    for name in SITES:
        until(f"{name} is up", lambda: works(name, "service", "status"))


def works(name, *words):
    try:
        return at(name, *words) or True
    except subprocess.CalledProcessError:
        return None


def until(what, seen):
    end = time.monotonic() + 300
    while time.monotonic() < end:
        found = seen()
        if found:
            return found
        time.sleep(0.1)
    raise SystemExit(f"never: {what}")


def ask(name, file, *more):
    try:
        return json.loads(at(name, "transfer", "fetch", "a", file, "--json", *more))
    except subprocess.CalledProcessError:
        return None


def replicate(network, files):
    """a has them; b gets them from a, c too."""
    for name in WAYS:
        network.set(name, None, "0")
    for file, size in files.items():
        with open(f"{T}/data/{file}", "wb") as out, open("/dev/urandom", "rb") as random:
            out.write(random.read(size))
    at("a", "transfer", "submit", f"{T}/data", "b", "--wait")
    for file in files:
        until("c knows of it", lambda: ask("c", file, "--ask"))
        at("c", "transfer", "fetch", "a", file, "--wait")
    for file in files:
        until("d knows of three", lambda: len((ask("d", file, "--ask") or {"sources": []})["sources"]) == 3)


def fetch(network, file, degrades, *more):
    """Seconds, and the report."""
    network.usual()
    time.sleep(1)
    begun = time.monotonic()
    report = ask("d", file, *more)
    number, first = report["id"], report["sources"]
    part = f"{T}/d/inbox/.downpour/fetch"
    while not report["done"]:
        if degrades and sum(source["brought"] for source in report["sources"]) >= SIZE / 2:
            network.set("a", *DEGRADED)
            degrades = False
        time.sleep(0.1)
        report = api(number)
    took = time.monotonic() - begun
    assert not report.get("failure"), report
    same = subprocess.run(["cmp", f"{T}/data/{file}", f"{T}/d/inbox/{file}"])
    assert same.returncode == 0
    for place in (f"{T}/data", *(f"{T}/{site}/inbox" for site in "bcd")):
        os.remove(f"{place}/{file}")
    return took, report, first


def api(number):
    token = open(f"{T}/d/state/admin.token").read().strip()
    return json.loads(run(
        "ip", "netns", "exec", f"{PREFIX}-d", "curl", "-sk", "-H", f"Authorization: Bearer {token}",
        f"https://10.78.0.4:28790/v1/fetches/{number}"))


CASES = [
    ("from a alone", False, ["--one", "--from", "a"]),
    ("from b alone", False, ["--one", "--from", "b"]),
    ("from c alone", False, ["--one", "--from", "c"]),
    ("from all at once", False, []),
    ("from a alone, which degrades", True, ["--one", "--from", "a"]),
    ("from one at a time, a degrades", True, ["--one"]),
    ("from all at once, a degrades", True, []),
]


def table(network):
    print("| fetch | s, median (least-greatest) | MB brought by a, b, c | what was changed |\n| --- | --- | --- | --- |")
    for case, (name, degrades, more) in enumerate(CASES):
        times, shares, told = [], [], []
        for round in range(ROUNDS):
            file = f"f{case}-{round}"
            hints = {f"h{case}-{round}-{site}": HINT for site in WAYS}
            replicate(network, {file: SIZE, **hints})
            # What d expects of each: what it brought last.
            for hint in hints:
                fetch(network, hint, False, "--one", "--from", hint[-1])
            took, report, _ = fetch(network, file, degrades, *more)
            times.append(took)
            brought = {source["site"]: source["brought"] / 1e6 for source in report["sources"]}
            shares.append("+".join(f"{brought.get(site, 0):.0f}" for site in "abc"))
            told += report["changes"]
        spread = f"{statistics.median(times):.1f} ({min(times):.1f}-{max(times):.1f})"
        print(f"| {name} | {spread} | {'; '.join(shares)} | {'; '.join(told)} |", flush=True)


def clean():
    for child in reversed(children):
        child.terminate()
    for child in children:
        child.wait()
    for name in "w" + SITES:
        subprocess.run(["ip", "netns", "del", f"{PREFIX}-{name}"], stderr=subprocess.DEVNULL)
    shutil.rmtree(T, ignore_errors=True)


if __name__ == "__main__":
    try:
        network = Network()
        set_up()
        table(network)
    finally:
        if "KEEP" not in os.environ:
            clean()
