#!/usr/bin/env python3
"""same_arena.py IR JSON STAGE: the arena of a dumped program is what `planc explain --json` says."""
import json
import re
import sys

dumped = int(re.search(r"arena (0x[0-9a-f]+)", open(sys.argv[1]).read())[1], 16)
said = json.load(open(sys.argv[2]))["pipeline"]["stages"][int(sys.argv[3])]["arena_bytes"]
if dumped != said:
    sys.exit(f"the program's arena has {dumped} bytes, and explain says {said}")
