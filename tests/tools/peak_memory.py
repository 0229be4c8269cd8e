#!/usr/bin/env python3
"""peak_memory.py PLANC PLANRUN PLAN [planc's options] [-- planrun's options]: each rank, a process of its
own, runs two steps; its peak of resident memory is within 3 % and 64 MiB of its arena, and `planc explain`
says that arena. More ranks than one talk over TCP, or by mpirun with `--comm mpi` among planrun's options."""
import json
import os
import socket
import subprocess
import sys
import tempfile

MIB = 1 << 20


def bound(arena):
    return 0.03 * arena + 64 * MIB


def start(command, ranks, folder):
    """A process a rank; each waits in a process that tells what it took."""
    wrapper = [sys.executable, os.path.abspath(__file__), "--rank", folder]
    if "mpi" in command:
        return [subprocess.Popen(["mpirun", "-n", str(ranks)] + wrapper + command)]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    told = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if ranks == 1:
        return [subprocess.Popen(wrapper + command)]
    return [subprocess.Popen(wrapper + command + ["--comm", "tcp"],
                             env=dict(os.environ, RANK=str(rank), **told)) for rank in range(ranks)]


def run_rank(folder, command):
    """Runs the command and tells the peak of its memory, by its rank."""
    rank = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("RANK", "0"))
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    with open(os.path.join(folder, "peak" + rank), "w") as file:
        file.write(str(usage.ru_maxrss * 1024))
    return os.waitstatus_to_exitcode(status)


def main():
    if sys.argv[1] == "--rank":
        return run_rank(sys.argv[2], sys.argv[3:])
    planc, planrun, plan, *options = sys.argv[1:]
    with open(planrun, "rb") as file:
        if b"san_init" in file.read():
            print("skipped: sanitizers take memory of their own")
            return 0
    split = options.index("--") if "--" in options else len(options)
    options, more = options[:split], options[split + 1:]
    said = json.loads(subprocess.run([planc, "explain", plan, "--json"] + options, check=True,
                                     capture_output=True, text=True).stdout)
    with tempfile.TemporaryDirectory() as folder:
        program, data, told = (os.path.join(folder, name) for name in ("x.planx", "x.bin", "summary"))
        subprocess.run([planc, "compile", plan, "-o", program] + options, check=True)
        with open(data, "wb") as file:
            file.write(b"\0\0\1\0" * (1 << 16))
        command = [planrun, "run", program, "--data", data, "--steps", "2", "--summary", told] + more
        if any([process.wait() for process in start(command, said["ranks"], folder)]):
            return 1
        wrong = 0
        with open(told) as file:
            ranks = [json.loads(line) for line in file]
        arenas = {stage["memory"]["arena_bytes"] for stage in said["stages"]}
        for rank in ranks:
            with open(os.path.join(folder, f"peak{rank['rank']}")) as file:
                peak = int(file.read())
            arena = rank["arena_bytes"]
            off = abs(peak - arena) > bound(arena) or arena not in arenas
            wrong += off
            print(f"rank {rank['rank']}: arena {arena / MIB:.1f} MiB, peak {peak / MIB:.1f} MiB, "
                  f"{(peak - arena) / MIB:+.1f} of {bound(arena) / MIB:.1f}{' WRONG' if off else ''}")
    return 1 if wrong or len(ranks) != said["ranks"] else 0


if __name__ == "__main__":
    sys.exit(main())
