#!/usr/bin/env python3
"""One side of a transfer by TCP over loopback dies (kill -9) at nine tenths, and is started again.

usage: killed.py PROGRAM sender|receiver GIGABYTES FOLDER      (FOLDER is made anew, on a disk that holds the file twice)
Prints what was sent again, what was read and the greatest memory: the table of docs/results/wan.md.
"""
import json, os, shutil, subprocess, sys, threading, time

PROGRAM, VICTIM, SIZE = os.path.realpath(sys.argv[1]), sys.argv[2], int(float(sys.argv[3]) * 1e9)
T = os.path.realpath(sys.argv[4])
shutil.rmtree(T, ignore_errors=True)
os.makedirs(f"{T}/out")
os.environ["HOME"] = T


def run(name, *words):
    return subprocess.Popen([PROGRAM, *words, "--report", f"{T}/{name}.json", "--quiet"], cwd=T, stdout=subprocess.DEVNULL)


def send(name):
    return run(name, "send", f"{T}/file", "--receivers", "1", "--listen", "127.0.0.1:28820", "--interface", "lo", "--path", "tcp", "--ticket", f"{T}/ticket")


def receive(name):
    return run(name, "receive", f"@{T}/ticket", "--out", f"{T}/out", "--interface", "lo", "--connections", "4")


def io(process, word):
    with open(f"/proc/{process.pid}/io") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(word + ":"))


def watched(process, seen):
    """Waits for its end; keeps the last of what it had read and its greatest memory."""
    while process.poll() is None:
        try:
            seen["read"], seen["wrote"] = io(process, "rchar"), io(process, "wchar")
            with open(f"/proc/{process.pid}/status") as lines:
                seen["memory"] = next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM"))
        except (OSError, StopIteration):
            pass
        time.sleep(0.02)
    return seen


print(f"writing {SIZE} random bytes", flush=True)
with open(f"{T}/file", "wb") as file, open("/dev/urandom", "rb") as random:
    for _ in range(SIZE // 4_000_000):
        file.write(random.read(4_000_000))
subprocess.run(["sync", f"{T}/file"])
SIZE = os.path.getsize(f"{T}/file")

subprocess.run([PROGRAM, "ticket", "new", "--address", "127.0.0.1:28820", "--out", f"{T}/ticket"], check=True, capture_output=True)
sender, receiver = send("sender"), receive("receiver")
while io(receiver, "wchar") < SIZE * 0.9:
    assert sender.poll() is None and receiver.poll() is None, "ended before"
    time.sleep(0.01)
before = {"sender": io(sender, "rchar"), "receiver": io(receiver, "rchar")}
wrote = io(sender, "wchar")
victim = sender if VICTIM == "sender" else receiver
victim.kill()
victim.wait()
if VICTIM == "sender":
    sender = send("sender2")
else:
    receiver = receive("receiver2")
survivor = receiver if VICTIM == "sender" else sender
successor = sender if VICTIM == "sender" else receiver
kept, new = {}, {}
threads = [threading.Thread(target=watched, args=pair) for pair in ((survivor, kept), (successor, new))]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert sender.returncode == 0 and receiver.returncode == 0, (sender.returncode, receiver.returncode)
assert subprocess.run(["cmp", f"{T}/file", f"{T}/out/file"]).returncode == 0
last = json.load(open(f"{T}/{'sender2' if VICTIM == 'sender' else 'sender'}.json"))
sent = last["session"]["sent"]["pull_bytes"]
if VICTIM == "sender":
    # What the dead one sent cannot be asked any more, only what it wrote, with TLS around it: as much as at its successor.
    again = round(wrote * sent / new["wrote"]) + sent - SIZE
else:
    again = sent - SIZE
print(f"{VICTIM} killed at 0.9 of {SIZE}: {again} bytes again, {100 * again / SIZE:.2f} %; the file is the same")
print(f"survivor read {kept['read'] - before['receiver' if VICTIM == 'sender' else 'sender']} bytes after it, {kept['memory']} MB at most")
print(f"successor sent {sent if VICTIM == 'sender' else 0}, read {new['read']} bytes, {new['memory']} MB at most")
shutil.rmtree(T)
