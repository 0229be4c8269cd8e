"""signal_rank.py LOG SIGNAL RANK SECONDS -- mpirun ...: starts ranks, sends one of them a signal once LOG
has a step, and passes on what they say and their exit status. Fails when they take longer than SECONDS
to end then."""
import os
import signal
import subprocess
import sys
import time

log, name, rank, seconds = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])
run = subprocess.Popen(sys.argv[6:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
deadline = time.time() + 60
while not (os.path.exists(log) and os.path.getsize(log) > 0):
    assert run.poll() is None and time.time() < deadline, "no step was made"
    time.sleep(0.05)


def parent(pid):
    return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])


def descends(pid):
    while pid > 1 and pid != run.pid:
        pid = parent(pid)
    return pid == run.pid


target = None
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        environment = open(f"/proc/{pid}/environ").read().split("\0")
        ranks = {f"{v}={rank}" for v in ("OMPI_COMM_WORLD_RANK", "PMI_RANK")}
        if ranks & set(environment) and descends(int(pid)):
            target = int(pid)
    except OSError:
        pass  # ended meanwhile, or another user's
assert target, "no such rank"
os.kill(target, getattr(signal, "SIG" + name))
start = time.time()
_, said = run.communicate(timeout=120)
took = time.time() - start
sys.stderr.write(said)
assert took <= seconds, f"took {took:.1f} s to end"
sys.exit(run.returncode & 127)
