"""Runs pytest many times in processes of their own, without importing torch in each: a child for every line read.

Reads {"arguments": [...], "cwd": ..., "environment": {...}, "stdout": FILE, "stderr": FILE} and answers the exit status.
"""

import json
import os
import sys
import traceback

import pytest
import torch

import kernelpact.plugin.session  # noqa: F401 - loaded once, for all children

torch.use_deterministic_algorithms(True)  # its first call imports much
torch.use_deterministic_algorithms(False)


def child(arguments, cwd, environment, stdout, stderr):
    """Run pytest with these arguments, and end."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    for stream, path in ((1, stdout), (2, stderr)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.path.insert(0, cwd)
    status = 70
    try:
        status = int(pytest.main(arguments))
    except BaseException:  # noqa: BLE001 - this process ends here, and what pytest lets through must be seen
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    for line in sys.stdin:
        if (process := os.fork()) == 0:
            child(**json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
