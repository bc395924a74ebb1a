#!/usr/bin/env python3
"""As fetch.py; what d knows of the paths is told by three archives of measurements, which die one after the other.

usage: archives.py PROGRAM LAB FOLDER      (root; FOLDER is made anew)
Prints the table of docs/results/tuner-fetch.md, in Markdown. d is started anew for each row, so that it does not know
what it fetched before; the archive of the row dies while d runs.
"""
import datetime, http.server, json, os, signal, subprocess, sys, time

import fetch
from fetch import ask, at, children, clean, fetch as brings, replicate, set_up, until

SIZE = 40_000_000
# Each knows the paths to d; what they say differs by the hour at which they measured.
ARCHIVES = {
    "near": ("opensearch", 9001, {"a": 76, "b": 38, "c": 19}),
    "far": ("opensearch", 9002, {"a": 70, "b": 35, "c": 17}),
    "old": ("dashboard", 9003, {"a": 60, "b": 30, "c": 15}),
}
HOW = {
    "near": ("does not answer any more (stopped)", signal.SIGSTOP),
    "far": ("is switched off (killed)", signal.SIGKILL),
    "old": ("is switched off (killed)", signal.SIGKILL),
}
ADDRESS = {name: f"10.78.0.{number}" for number, name in enumerate(fetch.SITES, 1)}


def documents(kind, says, now):
    """What an archive answers, whomever one asks about: who asks looks for the pair."""
    if kind == "opensearch":
        hits = [{"_source": {
            "meta": {"source": {"ip": ADDRESS[site]}, "destination": {"ip": ADDRESS["d"]}, "ip_version": 4},
            "pscheduler": {"end_time": now.strftime("%Y-%m-%dT%H:%M:%SZ"), "tool": "iperf3"},
            "test": {"type": "throughput"},
            "result": {"succeeded": True, "throughput": mbit * 1e6},
        }} for site, mbit in says.items()]
        return {"hits": {"hits": hits}}
    return [{
        "summary": f"PS_CHECK_THROUGHPUT OK - Average throughput is {mbit}.0Mbps ", "status": 0,
        "monitor": ADDRESS[site], "source": ADDRESS[site], "destination": ADDRESS["d"],
        "lastCheckTime": now.strftime("%Y-%m-%d %H:%M:%S.0"),
        "parameters": {"Throughput Avg": {"unit": "Mb/s", "value": mbit}},
    } for site, mbit in says.items()]


class Archive(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        kind, _, says = ARCHIVES[self.server.name]
        rate = "latency" not in self.path and "rtt" not in self.path
        body = json.dumps(documents(kind, says if rate else {}, datetime.datetime.now(datetime.UTC))).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST

    def log_message(self, *_):
        pass


def serve(name):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", ARCHIVES[name][1]), Archive)
    server.name = name
    server.serve_forever()


def start_archives():
    up = {}
    for name in ARCHIVES:
        up[name] = subprocess.Popen(
            ["ip", "netns", "exec", f"{fetch.PREFIX}-d", sys.executable, os.path.realpath(__file__),
             fetch.PROGRAM, fetch.LAB, fetch.T, "1", name])
        children.append(up[name])
    return up


def tell_d():
    text = "".join(
        f'\n[[tuner_source]]\nname = "{name}"\nkind = "{kind}"\ntimeout = "2s"\n'
        f'url = "http://127.0.0.1:{port}/{"exda/" if kind == "dashboard" else kind + "/"}"\n'
        for name, (kind, port, _) in ARCHIVES.items())
    fetch.edit("d", "[tuner]\n", 'every = "3s"')
    with open(f"{fetch.T}/d/site.toml", "a") as out:
        out.write(text)


def restart_d(d):
    d.terminate()
    d.wait()
    environment = {**os.environ, "DOWNPOUR_HOME": f"{fetch.T}/d/home"}
    d = subprocess.Popen(
        ["ip", "netns", "exec", f"{fetch.PREFIX}-d", fetch.PROGRAM, "serve", "--config", f"{fetch.T}/d/site.toml"],
        stdout=open(f"{fetch.T}/d.log", "a"), stderr=subprocess.STDOUT, env=environment)
    children.append(d)
    until("d is up", lambda: fetch.works("d", "service", "status"))
    return d


def tuner_line():
    lines = at("d", "service", "status").splitlines()
    return next((line for line in lines if line.split()[:1] == ["tuner"]), "")


def ranking(file):
    sources = (ask("d", file, "--ask") or {"sources": []})["sources"]
    return [(source["site"], source.get("takes_s"), source["why"]) for source in sources]


def stands_on(file, alive):
    """The ranking, once it says what the first archive that lives says; without one, once no archive is heard in it."""
    found = ranking(file)
    if len(found) < 3:
        return None
    told = lambda archive: [f"{ARCHIVES[archive][2][site]}.0 Mbit/s" in why for site, _, why in found]
    # With none alive only what d has fetched itself is known.
    good = all(told(alive[0])) if alive else not any(any(told(archive)) for archive in ARCHIVES)
    return found if good else None


def table(network):
    print("| archives | found after, s | named | ranking of d | fetched, s | from |\n| --- | --- | --- | --- | --- | --- |")
    up, d = start_archives(), children[-1 - len(ARCHIVES)]
    dead = []
    for row in [None, *ARCHIVES]:
        file = f"f-{row}"
        replicate(network, {file: SIZE})
        network.usual()
        alive = [name for name in ARCHIVES if name not in dead]
        d = restart_d(d)
        until("d knows the paths", lambda: stands_on(file, alive))
        begun = time.monotonic()
        if row:
            up[row].send_signal(HOW[row][1])
            dead.append(row)
            alive.remove(row)
        until("d is told", lambda: all(f"{name}: " in tuner_line() for name in dead))
        found = until("d ranks anew", lambda: stands_on(file, alive))
        after = f"{time.monotonic() - begun:.1f}" if row else ""
        named = ", ".join(word for word in tuner_line().split(", ") if ": " in word) if dead else ""
        order = "; ".join(f"{site} {takes:.1f} s" if takes else f"{site}: {why}" for site, takes, why in found)
        took, report, _ = brings(network, file, False, "--one")
        who = ", ".join(s["site"] for s in report["sources"] if s["brought"])
        what = "all three answer" if not row else f"`{row}` {HOW[row][0]}"
        print(f"| {what} | {after} | {named} | {order} | {took:.1f} | {who} |", flush=True)
    print("\n" + "\n".join(f"- {site}: {why}" for site, _, why in found))


if __name__ == "__main__":
    if len(sys.argv) > 5:
        serve(sys.argv[5])
    try:
        network = fetch.Network()
        set_up()
        tell_d()
        table(network)
    finally:
        for child in children:
            child.send_signal(signal.SIGCONT)
        if "KEEP" not in os.environ:
            clean()
