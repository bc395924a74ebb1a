#!/usr/bin/env python3
"""Two sites on loopback, one of them besieged while it receives files; prints a line for each trial.

    python3 siege.py target/release/downpour FOLDER [who|paths|bodies|tcp|tls|slow …]

Needs curl, ss, and 11,000 open files (`ulimit -n`). FOLDER is made anew.
"""
import base64, glob, json, os, pathlib, shutil, socket, ssl, subprocess, sys, threading, time

PROGRAM, ROOT = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2]).absolute()
PORT = {"a": 29790, "b": 29791}
IDLE, BODY, SLOW = 10_000, 10_000_000_000, 300


def run(*words, **more):
    return subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, **more)


def set_up():
    shutil.rmtree(ROOT, ignore_errors=True)
    for name, more in [("a", []), ("b", ["--with", ROOT / "a"])]:
        listen = f"127.0.0.1:{PORT[name]}"
        done = run("init", name, "--folder", ROOT / name, "--listen", listen, "--address", listen, *more)
        assert done.returncode == 0, done.stderr
    (ROOT / "spool").mkdir()
    with open(ROOT / "a/site.toml", "a") as file:
        file.write(f'\n[[spool]]\nfolder = "{ROOT}/spool"\ncomplete = "rename"\n'
                   '[[rule]]\nname = "all"\nmatch = "*"\nto = "b"\n')
    sites = {}
    for name in PORT:
        log = open(ROOT / f"{name}.log", "w")
        config = ROOT / name / "site.toml"
        sites[name] = subprocess.Popen([PROGRAM, "serve", "--config", config], stderr=log, stdout=log)
    for name in PORT:
        while run("service", "status", "--config", ROOT / name / "site.toml").returncode == 3:
            time.sleep(0.1)
    return sites


def token(name, role, *more):
    done = run("token", "new", name, "--role", role, *more, "--config", ROOT / "b/site.toml")
    words = [word for word in done.stdout.split() if word.startswith("downpour-")]
    assert words, done.stdout + done.stderr
    return words[0]


def curl(path, bearer=None, method="GET", body=None, key=None, *more):
    """Status and answer."""
    words = ["curl", "-sk", "-m", "100", "-X", method, "-w", "\n%{http_code}", *more]
    if bearer:
        words += ["-H", f"Authorization: Bearer {bearer}"]
    if body is not None:
        words += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
    if key:
        words += ["--cert", f"{key}/node.crt", "--key", f"{key}/node.key"]
    words.append(f"https://127.0.0.1:{PORT['b']}{path}")
    text, _, status = subprocess.run(words, capture_output=True, text=True).stdout.rpartition("\n")
    return int(status), text


class Watch:
    """What b costs, and how others are served, as long as it is open."""

    def __init__(self, pid, admin):
        self.pid, self.admin, self.times, self.failed, self.rss, self.on = pid, admin, [], 0, 0, True
        self.arrived = count()
        self.thread = threading.Thread(target=self.look)

    def look(self):
        n = 0
        while self.on:
            begun = time.monotonic()
            status, _ = curl("/v1/services", self.admin)
            self.times.append(time.monotonic() - begun)
            self.failed += status != 200
            with open(f"/proc/{self.pid}/status") as file:
                rss = next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))
            self.rss = max(self.rss, rss)
            n += 1
            new = ROOT / "spool" / f".{time.time_ns()}"
            new.write_bytes(os.urandom(20_000))
            new.rename(ROOT / "spool" / f"{new.name[1:]}")
            time.sleep(0.1)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.on = False
        self.thread.join()

    def __str__(self):
        times = sorted(self.times)
        p = lambda share: 1000 * times[min(len(times) - 1, int(share * len(times)))]
        return (f"{len(times)} questions of others, {self.failed} failed, p50 {p(.5):.0f} ms, p95 {p(.95):.0f} ms, "
                f"worst {p(1):.0f} ms; {count() - self.arrived} files arrived; RSS {self.rss / 1000:.0f} MB at most")


def count():
    return len([f for f in glob.glob(f"{ROOT}/b/inbox/**", recursive=True) if os.path.isfile(f)])


CONTEXT = ssl.create_default_context()
CONTEXT.check_hostname, CONTEXT.verify_mode = False, ssl.CERT_NONE


def connect(source="127.0.0.1", tls=True, receive_buffer=None):
    plain = socket.socket()
    if receive_buffer:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    plain.bind((source, 0))
    plain.settimeout(20)
    plain.connect(("127.0.0.1", PORT["b"]))
    return CONTEXT.wrap_socket(plain) if tls else plain


def is_open(connection):
    try:
        connection.settimeout(0)
        return connection.recv(1) != b""
    except (BlockingIOError, ssl.SSLWantReadError):
        return True
    except OSError:
        return False


def say(what, *seen):
    print(f"{what}: {' '.join(map(str, seen))}", flush=True)


def who_may(admin):
    viewer, over = token("eye", "viewer"), token("gone", "admin", "--expires", "1s")
    time.sleep(1.1)
    stop = "/v1/services/dispatch/stop"
    say("no token", curl("/v1/services")[0])
    say("a guessed token", curl("/v1/services", "downpour-guess")[0])
    say("an expired token", curl("/v1/services", over)[0], json.loads(curl("/v1/services", over)[1])["what"])
    say("a viewer stops a service", curl(stop, viewer, "POST", {})[0])
    say("a viewer reads the audit record", curl("/v1/audit", viewer)[0])
    say("an admin's token between sites", curl("/v1/site/hello", admin)[0])
    run("init", "c", "--folder", ROOT / "c", "--listen", "127.0.0.1:29792")
    say("another node's key between sites", curl("/v1/site/hello", key=ROOT / "c/state")[0])
    say("a trusted node's key between sites", curl("/v1/site/hello", key=ROOT / "a/state")[0])


def paths(admin):
    secret = ROOT / "secret"
    secret.write_text("secret")
    for path in ["/etc/passwd", f"{ROOT}/b/inbox/../../secret", "../secret"]:
        wish = {"paths": [path], "to": "a"}
        status, answer = curl("/v1/transfers", admin, "POST", wish)
        answer = json.loads(answer)
        say(f"submitted {path.replace(str(ROOT), '…')}", status, answer.get("refused") or answer.get("what"))
    for into in ["../../escaped", "/tmp/escaped", "a/../../escaped", "x\0y", ".downpour/receipts.ndjson"]:
        item = {"site": "a", "name": into, "version": 1, "taken_in_us": 1, "rule": "all", "size": 6,
                "blake3": "0" * 64, "into": into}
        offer = {"batch": os.urandom(16).hex(), "items": [item]}
        status, answer = curl("/v1/site/offers", None, "POST", offer, ROOT / "a/state")
        say(f"offered as {into!r}", status, answer[:160])
    for path in ["/v1/reconcile/..%2f..%2fsite.toml", "/v1/files/..%2f1/content"]:
        say(f"asked for {path}", curl(path, admin)[0])
    escaped = [f for f in glob.glob(f"{ROOT}/**", recursive=True) if "escaped" in f]
    say("files outside", escaped)


def head(admin, more, path="/v1/tokens", method="POST"):
    return f"{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {admin}\r\n{more}\r\n".encode()


def bodies(pid, admin):
    with Watch(pid, admin) as watch:
        told = connect()
        told.sendall(head(admin, f"content-length: {BODY}\r\n"))
        say("a body of 10 GB, told", told.recv(100).split(b"\r\n")[0].decode())
        untold, sent, begun = connect(), 0, time.monotonic()
        untold.sendall(head(admin, "transfer-encoding: chunked\r\n"))
        piece = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        try:
            while sent < BODY:
                untold.sendall(piece)
                sent += 0x10000
        except OSError as error:
            say("a body of 10 GB, untold", f"{sent / 1e6:.1f} MB went out in {time.monotonic() - begun:.2f} s, then {error}")
        stranger = connect()
        stranger.sendall(head("guess", "transfer-encoding: chunked\r\n"))
        say("the same of a stranger", stranger.recv(100).split(b"\r\n")[0].decode())
    say("  meanwhile", watch)


def idle(pid, admin, tls):
    with Watch(pid, admin) as watch:
        begun, held, refused = time.monotonic(), [], 0
        for number in range(IDLE):
            try:
                held.append(connect(f"127.0.{1 + number % 20}.1", tls))
            except OSError:
                refused += 1
        took = time.monotonic() - begun
        still = sum(map(is_open, held))
        time.sleep(3)
    kind = "TLS" if tls else "TCP"
    say(f"{IDLE} idle {kind} connections from 20 addresses",
        f"in {took:.0f} s; {refused} refused, {still} still open at the end")
    say("  meanwhile", watch)
    for one in held:
        one.close()


def slow(pid, admin):
    with Watch(pid, admin) as watch:
        begun, readers, writers = time.monotonic(), [], []
        for _ in range(SLOW):
            reader = connect("127.0.3.1", receive_buffer=4096)
            reader.sendall(head(admin, "", "/v1/openapi.json", "GET") * 200)
            readers.append(reader)
        for _ in range(SLOW):
            writer = connect("127.0.2.1")
            writer.sendall(head(admin, f"content-length: 1000\r\n"))
            writers.append(writer)
        made = time.monotonic() - begun
        while time.monotonic() - begun < made + 100 and any(map(served, ["127.0.2.1", "127.0.3.1"])):
            for writer in writers:
                trickle(writer, lambda: writer.sendall(b" "))
            for reader in readers:
                trickle(reader, lambda: reader.recv(1))
            time.sleep(1)
    say(f"{SLOW} readers of a byte a second, {SLOW} writers of a byte a second, all with a token",
        f"{time.monotonic() - begun - made:.0f} s later b holds {served('127.0.3.1')} readers and {served('127.0.2.1')} writers")
    say("  meanwhile", watch)


def served(address):
    """Connections from there that b has open, as its kernel says: a reader finds out only when it has read what is there."""
    words = ["ss", "-tnH", "state", "established", "sport", "=", str(PORT["b"]), "dst", address]
    return len(subprocess.run(words, capture_output=True, text=True).stdout.splitlines())


def trickle(connection, step):
    connection.settimeout(0.01)
    try:
        step()
    except OSError:
        pass


def main():
    sites = set_up()
    try:
        admin = (ROOT / "b/state/admin.token").read_text().strip()
        pid = sites["b"].pid
        with Watch(pid, admin) as watch:
            time.sleep(10)
        say("at rest", watch)
        trials = {
            "who": lambda: who_may(admin),
            "paths": lambda: paths(admin),
            "bodies": lambda: bodies(pid, admin),
            "tcp": lambda: idle(pid, admin, tls=False),
            "tls": lambda: idle(pid, admin, tls=True),
            "slow": lambda: slow(pid, admin),
        }
        for name in sys.argv[3:] or trials:
            trials[name]()
        with Watch(pid, admin) as watch:
            time.sleep(10)
        say("afterwards", watch)
        whole = {site: process.poll() is None for site, process in sites.items()}
        say("daemons live", whole)
    finally:
        for process in sites.values():
            process.kill()


main()
