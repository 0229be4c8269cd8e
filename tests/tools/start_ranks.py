"""Starts N processes of a command as torchrun would: RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and a free
MASTER_PORT. Exits with the largest of their exit codes. Usage: start_ranks.py N COMMAND..."""

import os
import socket
import subprocess
import sys

count = int(sys.argv[1])
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
ranks = [subprocess.Popen(sys.argv[2:], env={**os.environ, "RANK": str(r), "LOCAL_RANK": str(r),
                                             "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1",
                                             "MASTER_PORT": str(port)}) for r in range(count)]
sys.exit(max(abs(rank.wait()) for rank in ranks))
