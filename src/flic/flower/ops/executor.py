"""Flower's SuperExec of a silo, which imports torch once: `python executor.py …`.

Flower starts a process for every message, and each would import torch anew. Here they are forked
from one that has imported flic's app already (the fork server of the standard library), so that
they still share nothing with each other. The arguments are flower-superexec's own.
"""

import multiprocessing
import os
import signal
import threading
from multiprocessing import forkserver

from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from flwr.supercore.superexec.executor.types import ExecutionSpec, LaunchResult

from flic.flower.patches import use_executor

PRELOADED = ["flic.flower.client_app", "flwr.supernode.runtime.run_clientapp", "httpcore"]


class ForkingExecutor(SubprocessExecutor):
    """Runs a silo's app in a fork, and nothing else."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED)
        forkserver.ensure_running()  # so that torch is there before the first message

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Answer one message in a process of its own."""
        if spec.task_type != TaskType.CLIENT_APP:
            return LaunchResult.failed(f"a silo runs no {spec.task_type}")
        work = (spec.runtime_api_address, spec.token, os.getpid())
        self._context.Process(target=answer, args=work, name="flic-silo").start()
        return LaunchResult.accepted()

    def reconcile(self) -> None:
        """Leave no dead process behind."""
        multiprocessing.active_children()


def answer(address: str, token: str, parent: int) -> None:
    """Take the message from the SuperNode, which is on this machine, and answer it."""
    heed_interrupts()
    from flwr.supernode.runtime.run_clientapp import run_clientapp

    from flic.engine.runners import leave_with_parent

    # Flower's own way out first tries for a minute to reach a SuperNode that is gone.
    threading.Thread(target=leave_with_parent, daemon=True).start()
    run_clientapp(
        runtime_api_address=address,
        token=token,
        insecure=True,
        parent_pid=parent,
        runtime_dependency_install=False,
    )


def heed_interrupts() -> None:
    """End on SIGINT, as Flower makes a process do whose parent is gone.

    Whatever a shell starts in the background ignores it, and so would all processes under it.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


def main() -> None:
    """Run the SuperExec with forks in place of new processes."""
    # Not at the top: every fork reads this file anew, and this import takes most of a second.
    from flwr.supercore.cli import flower_superexec

    use_executor(ForkingExecutor)
    flower_superexec()


if __name__ == "__main__":
    main()
